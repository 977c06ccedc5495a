// The work that a node saves, per byte and per access since its last use. The idea is that of Marconi (Pan et al.,
// 2024), which adds recency and saved work per byte; here they are multiplied, as in hyperbolic caching (Blankstein et
// al., 2017), so no weight between them has to be found.
//
// Work: computing the tokens between the next point above and this one, deep tokens more than shallow ones. So where
// points stand close together, each is worth little, and the pool thins them out; when one has gone, its neighbour
// below is worth more. The state in the middle of a conversation saves work only for a request that leaves the
// conversation there, which is rare: its worth is multiplied by `inner`.
#include <algorithm>
#include <limits>

#include "policy/base/wide.hpp"
#include "policy/config.hpp"
#include "policy/pool_eviction.hpp"

namespace kvtwin {
namespace {

class WorkPerByte final : public PoolEviction {
 public:
  WorkPerByte(const EngineConfig& config, const Parameters& parameters)
      : doubling_(config.cost_doubling_tokens),
        inner_(parameters.per_1024("inner", {.fallback = "0.3",
                                             .most = "1",
                                             .help = "worth of a window or state behind which exactly one path goes "
                                                     "on, as a share of that of others"})),
        leaves_(parameters.flag("leaves", true,
                                "choose the leaves of the pages by their worth, too, in place of cache.eviction")) {}

  bool orders_leaves() const override { return leaves_; }
  std::uint64_t worth(const PoolCandidate& c) const override {
    constexpr unsigned kFractionBits = 44;  // work has at most 62 bits, and the share 10
    const UnsignedWide length = c.to - c.from;
    const UnsignedWide work = length + length * (UnsignedWide{c.to} + c.from) / (2 * UnsignedWide{doubling_});
    const UnsignedWide expected = work * (c.inner ? inner_ : 1024) << kFractionBits;
    const UnsignedWide worth = expected / (UnsignedWide{c.idle} + 1) / (c.bytes / 1024 + 1);
    return static_cast<std::uint64_t>(std::min<UnsignedWide>(worth, std::numeric_limits<std::uint64_t>::max()));
  }

 private:
  const Tokens doubling_;
  const std::uint32_t inner_;  // in 1/1024
  const bool leaves_;
};

}  // namespace

std::unique_ptr<PoolEviction> make_work_per_byte_pool_eviction(const EngineConfig& config,
                                                               const Parameters& parameters) {
  return std::make_unique<WorkPerByte>(config, parameters);
}

}  // namespace kvtwin

// Sends a request to the engine to which its longest known prefix was sent last, if the prefix is at least a share of
// the prompt (min_prefix) and the engines' loads are even (uneven_*); else to the least loaded engine (the rule of
// SGLang's cache-aware router). The load is the number of requests that were sent and have not ended. Ties go to the
// first engine.
#include <algorithm>

#include "policy/route.hpp"
#include "policy/route/open_requests.hpp"
#include "policy/route/recent.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kPages = std::size_t{1} << 20;  // remembered, of those sent last

class PrefixAffinity final : public Router {
 public:
  explicit PrefixAffinity(const RouterSetup& setup)
      : min_prefix_x1024_(setup.parameters.per_1024(
            "min_prefix",
            {.fallback = "0.5", .most = "1", .help = "shortest known prefix that decides, as a share of the prompt"})),
        uneven_(setup.parameters),
        open_(setup) {}

  std::size_t route(const Arrival& arrival) override {
    std::size_t engine = open_.least();
    const std::size_t known = known_pages(arrival.keys);
    const bool long_enough = 1024 * known >= min_prefix_x1024_ * arrival.keys.size();
    if (known > 0 && long_enough && !open_.uneven(uneven_)) {
      if (const std::size_t last = *sent_to_.find(arrival.keys[known - 1]); !open_.is_gone(last)) engine = last;
    }
    sent_to_.reserve(arrival.keys.size());
    for (const PageKey& key : arrival.keys) sent_to_.put(key, engine);
    open_.sent(engine);
    return engine;
  }

  void ended(std::size_t engine) override { open_.ended(engine); }
  void gone(std::size_t engine) override { open_.gone(engine); }

 private:
  // A request that was sent with a page was sent with all pages before it.
  std::size_t known_pages(std::span<const PageKey> keys) const {
    const auto unknown =
        std::ranges::partition_point(keys, [this](const PageKey& key) { return sent_to_.find(key) != nullptr; });
    return static_cast<std::size_t>(unknown - keys.begin());
  }

  const std::uint32_t min_prefix_x1024_;
  const UnevenLoads uneven_;
  OpenRequests open_;
  Recent<PageKey, std::size_t, PageKeyHash> sent_to_{kPages};  // engine by page
};

}  // namespace

std::unique_ptr<Router> make_prefix_affinity_router(const RouterSetup& setup) {
  return std::make_unique<PrefixAffinity>(setup);
}

}  // namespace kvtwin

// SGLang 0.5.23, --mamba-radix-cache-strategy no_buffer: a state at the end of each prefill pass, and at the end of the
// request. The engine has pages of one token with it. Source: mem_cache/unified_cache/components/mamba.py.
#include <numeric>

#include "policy/config.hpp"
#include "policy/state_points.hpp"

namespace kvtwin {
namespace {

class NoBuffer final : public StatePoints {
 public:
  explicit NoBuffer(const EngineConfig& config) : grid_(std::lcm(Tokens{config.shape.page_tokens}, Tokens{64})) {}

  std::uint32_t tracking_slots() const override { return 0; }
  Tokens after_prefill(Tokens, Tokens to, Tokens) const override { return to; }
  bool after_decode(Tokens) const override { return false; }
  Tokens grid() const override { return grid_; }

 private:
  const Tokens grid_;
};

}  // namespace

std::unique_ptr<StatePoints> make_no_buffer_state_points(const EngineConfig& config, const Parameters&) {
  return std::make_unique<NoBuffer>(config);
}

}  // namespace kvtwin

// SGLang's hrrn (0.5.23): the highest response ratio next. The ratio is 1 + waited / uncached. Time is counted in
// tokens: `waited` is the number of prefill tokens that the engine has computed since the request began to wait, and
// `uncached` the number of prompt tokens that the request has to compute itself. A short request overtakes a long one,
// and a request that has waited long overtakes both.
#include <algorithm>

#include "policy/base/wide.hpp"
#include "policy/order.hpp"

namespace kvtwin {
namespace {

class HighestResponseRatioNext final : public RequestOrder {
 public:
  std::uint64_t rank(const WaitingRequest& request) const override {
    constexpr UnsignedWide kMaxRank = ~std::uint64_t{0};
    if (request.cached_tokens >= request.prompt_tokens)
      return static_cast<std::uint64_t>(kMaxRank);  // after a retraction
    const Tokens uncached = request.prompt_tokens - request.cached_tokens;
    // In 1/2^32.
    return static_cast<std::uint64_t>(std::min(kMaxRank, (UnsignedWide{request.computed_tokens} << 32) / uncached));
  }
};

}  // namespace

std::unique_ptr<RequestOrder> make_hrrn_order(const Parameters&) {
  return std::make_unique<HighestResponseRatioNext>();
}

}  // namespace kvtwin

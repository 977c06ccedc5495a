// SGLang's shortest-prefill-first (0.5.23): the request with the fewest tokens to compute is admitted first.
//
// SGLang also ends the chunk of a long prompt early, so that shorter requests join the same pass. Here a prompt in
// chunks takes its whole pass (scheduler.chunk_tokens).
#include "policy/order.hpp"

namespace kvtwin {
namespace {

class ShortestPrefillFirst final : public RequestOrder {
 public:
  std::uint64_t rank(const WaitingRequest& request) const override {
    return ~(request.prefill_tokens - request.cached_tokens);
  }
};

}  // namespace

std::unique_ptr<RequestOrder> make_shortest_prefill_first_order(const Parameters&) {
  return std::make_unique<ShortestPrefillFirst>();
}

}  // namespace kvtwin

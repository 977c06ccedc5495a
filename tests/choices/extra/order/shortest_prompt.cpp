#include "policy/order.hpp"

namespace kvtwin {
namespace {

class ShortestPrompt final : public RequestOrder {
 public:
  std::uint64_t rank(const WaitingRequest& request) const override { return ~request.prompt_tokens; }
};

}  // namespace

std::unique_ptr<RequestOrder> make_shortest_prompt_order(const Parameters&) {
  return std::make_unique<ShortestPrompt>();
}

}  // namespace kvtwin

#include "policy/order.hpp"

namespace kvtwin {
namespace {

// The request with the longest cached prefix first.
class LongestPrefix final : public RequestOrder {
 public:
  std::uint64_t rank(const WaitingRequest& request) const override { return request.device_pages + request.host_pages; }
};

}  // namespace

std::unique_ptr<RequestOrder> make_longest_prefix_order(const Parameters&) { return std::make_unique<LongestPrefix>(); }

}  // namespace kvtwin

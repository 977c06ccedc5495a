#include "policy/order.hpp"

namespace kvtwin {
namespace {

// Order of arrival.
class FirstComeFirstServed final : public RequestOrder {
 public:
  bool reorders() const override { return false; }
  std::uint64_t rank(const WaitingRequest&) const override { return 0; }
};

}  // namespace

std::unique_ptr<RequestOrder> make_fcfs_order(const Parameters&) { return std::make_unique<FirstComeFirstServed>(); }

}  // namespace kvtwin

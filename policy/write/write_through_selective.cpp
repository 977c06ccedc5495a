#include "policy/write.hpp"

namespace kvtwin {
namespace {

// Pages are written at the second insertion.
class WriteThroughSelective final : public WritePolicy {
 public:
  std::uint32_t writes_after_inserts() const override { return 2; }
};

}  // namespace

std::unique_ptr<WritePolicy> make_write_through_selective_write_policy(const Parameters&) {
  return std::make_unique<WriteThroughSelective>();
}

}  // namespace kvtwin

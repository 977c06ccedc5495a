#include "policy/write.hpp"

namespace kvtwin {
namespace {

// Pages are written at the first insertion.
class WriteThrough final : public WritePolicy {
 public:
  std::uint32_t writes_after_inserts() const override { return 1; }
};

}  // namespace

std::unique_ptr<WritePolicy> make_write_through_write_policy(const Parameters&) {
  return std::make_unique<WriteThrough>();
}

}  // namespace kvtwin

#include "policy/write.hpp"

namespace kvtwin {
namespace {

class ThirdInsert final : public WritePolicy {
 public:
  std::uint32_t writes_after_inserts() const override { return 3; }
};

}  // namespace

std::unique_ptr<WritePolicy> make_third_insert_write_policy(const Parameters&) {
  return std::make_unique<ThirdInsert>();
}

}  // namespace kvtwin

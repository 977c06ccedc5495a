#include "policy/write.hpp"

namespace kvtwin {
namespace {

// Pages are written to L2 when they are chosen to leave L1.
class WriteBack final : public WritePolicy {
 public:
  std::uint32_t writes_after_inserts() const override { return 1; }
  bool writes_when_evicted() const override { return true; }
};

}  // namespace

std::unique_ptr<WritePolicy> make_write_back_write_policy(const Parameters&) { return std::make_unique<WriteBack>(); }

}  // namespace kvtwin

#include "impl/remote/remote_name.hpp"
#include "policy/index/page_key.hpp"
#include "tests/conformance.hpp"
#include "tests/mooncake_stand_in_rig.hpp"

namespace kvtwin::test {
namespace {

// A store in this process, behind Mooncake's C interface.
class MooncakeMedium final : public StorageMedium {
 public:
  explicit MooncakeMedium(bool seals) {
    library_.reset();
    master_.answer();
    config_ = master_.config();
    config_.seal = seals ? &seal_ : nullptr;
    config_.bytes_in_flight = 4096;  // several batches an operation
  }
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages capacity) override {
    form_ = form;
    library_.capacity = capacity;
    return make_mooncake_backend(config_, form);
  }
  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    const std::lock_guard lock(library_.mutex);
    const auto found = library_.values.find(name_of(space, key));
    return found == library_.values.end() ? std::vector<std::byte>() : found->second;
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    const std::lock_guard lock(library_.mutex);
    library_.values[name_of(space, key)] = bytes;
  }
  ~MooncakeMedium() override {
    EXPECT_EQ(library_.misuses, 0);
    EXPECT_EQ(library_.clients, 0);
  }

 private:
  std::string name_of(const PageKey& space, const PageKey& key) const {
    return remote_name_of(stored_page_key(form_, space, key), id_of(config_.seal));
  }

  MooncakeStandIn& library_ = mooncake_stand_in();
  MooncakePort master_;
  const PageSeal seal_{"sixteen characters and more"};
  MooncakeConfig config_;
  PageForm form_;
};

BackendKind library(const char* name, bool seals) {
  return {.name = name, .medium = [=] { return std::make_unique<MooncakeMedium>(seals); }, .persists = true};
}

KVTWIN_CONFORMS(Mooncake, library("c_interface", false), library("with_a_secret", true));

}  // namespace
}  // namespace kvtwin::test

// The conformance suite on a Mooncake Store with a master and a storage node.
#include "impl/remote/remote_name.hpp"
#include "policy/index/page_key.hpp"
#include "tests/conformance.hpp"
#include "tests/remote/mooncake_servers.hpp"

namespace kvtwin::test {
namespace {

// A store of its own for each test.
class MooncakeMedium final : public StorageMedium {
 public:
  MooncakeMedium() : node_(master_, 256), config_(master_.config()) {
    config_.bytes_in_flight = 4096;  // several batches an operation
  }
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages) override {
    form_ = form;
    return make_mooncake_backend(config_, form);
  }
  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    return client().get(name_of(space, key));
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    client().remove(name_of(space, key));
    if (!bytes.empty()) client().put(name_of(space, key), bytes);  // Mooncake has no empty values
  }

 private:
  std::string name_of(const PageKey& space, const PageKey& key) const {
    return remote_name_of(stored_page_key(form_, space, key));
  }
  MooncakeClient& client() {  // its end takes a second
    if (!client_) client_ = std::make_unique<MooncakeClient>(master_);
    return *client_;
  }

  MooncakeMaster master_;
  MooncakeNode node_;
  MooncakeConfig config_;
  PageForm form_;
  std::unique_ptr<MooncakeClient> client_;
};

// The nodes' memory is the limit, not a number of pages. The stand-in (tests/conformance/impl/mooncake_test.cpp) tests
// secrets.
KVTWIN_CONFORMS(MooncakePackage, {.name = "tcp",
                                  .medium = [] { return std::make_unique<MooncakeMedium>(); },
                                  .bounded = false,
                                  .persists = true});

}  // namespace
}  // namespace kvtwin::test

// The conformance suite on NIXL: files of a folder, and objects of an S3 server (SeaweedFS).
#include <fstream>

#include "impl/remote/nixl_backend.hpp"
#include "impl/remote/remote_name.hpp"
#include "policy/index/page_key.hpp"
#include "tests/conformance.hpp"
#include "tests/remote/nixl_stores.hpp"

namespace kvtwin::test {
namespace {

std::string name_of(const PageForm& form, const PageKey& space, const PageKey& key) {
  return remote_name_of(stored_page_key(form, space, key));
}

class NixlFolder final : public StorageMedium {
 public:
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages) override {
    form_ = form;
    return make_nixl_backend(nixl_files(folder_ / "pages"), form);
  }
  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    std::ifstream file(path(space, key), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return {bytes, bytes + text.size()};
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    std::ofstream file(path(space, key), std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string path(const PageKey& space, const PageKey& key) const {
    return (folder_.path() / "pages" / name_of(form_, space, key)).string();
  }
  Folder folder_;
  PageForm form_;
};

KVTWIN_CONFORMS(Nixl, {.name = "files",
                       .medium = [] { return std::make_unique<NixlFolder>(); },
                       .bounded = false,
                       .persists = true});

// One server for all tests, which ends with this process; a bucket for each test.
class NixlBucket final : public StorageMedium {
 public:
  NixlBucket() : config_(server().new_bucket()) { config_.bytes_in_flight = 65'536; }
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages) override {
    form_ = form;
    return make_nixl_backend(config_, form);
  }
  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    return server().get(config_, name_of(form_, space, key));
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    server().put(config_, name_of(form_, space, key), bytes);
  }

 private:
  static S3Server& server() {
    static S3Server one;
    return one;
  }
  NixlConfig config_;
  PageForm form_;
};

KVTWIN_CONFORMS(NixlS3, {.name = "objects",
                         .medium = [] { return std::make_unique<NixlBucket>(); },
                         .bounded = false,
                         .persists = true});

}  // namespace
}  // namespace kvtwin::test

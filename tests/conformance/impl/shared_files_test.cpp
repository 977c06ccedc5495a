#include <fstream>
#include <iterator>

#include "impl/disk/shared_files.hpp"
#include "policy/index/page_key.hpp"
#include "tests/conformance.hpp"
#include "tests/folder.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

class SharedFilesMedium final : public StorageMedium {
 public:
  explicit SharedFilesMedium(bool seals) : seals_(seals) {}
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages capacity) override {
    form_ = form;
    return make_shared_files(
        {.folder = folder_.path() / "shared", .capacity = capacity * shared_file_bytes(form), .seal = seal()}, form);
  }
  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    std::ifstream file(path_of(space, key), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    std::vector<std::byte> result;
    for (const char byte : bytes) result.push_back(static_cast<std::byte>(byte));
    return result;
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    std::ofstream(path_of(space, key), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  const PageSeal* seal() const { return seals_ ? &seal_ : nullptr; }
  std::filesystem::path path_of(const PageKey& space, const PageKey& key) const {
    return folder_.path() / "shared" / shared_file_name(stored_page_key(form_, space, key), id_of(seal()));
  }

  Folder folder_;
  const bool seals_;
  const PageSeal seal_{"sixteen characters and more"};
  PageForm form_;
};

BackendKind shared_files(const char* name, bool seals) {
  return {.name = name,
          .medium = [=] { return std::make_unique<SharedFilesMedium>(seals); },
          .bounded = false,  // evicts pages by itself
          .persists = true};
}

KVTWIN_CONFORMS(SharedFiles, shared_files("files", false), shared_files("with_a_secret", true));

}  // namespace
}  // namespace kvtwin::test

// The example of docs/examples/store: a store library in a project of its own.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "impl/remote/store_library.hpp"
#include "impl/storage/page_seal.hpp"
#include "tests/conformance.hpp"
#include "tests/folder.hpp"
#include "tests/paths.hpp"

namespace kvtwin::test {
namespace {

class LibraryMedium final : public StorageMedium {
 public:
  explicit LibraryMedium(bool seals) {
    config_.library = std::string(kBuildFolder) + "/store_library/files_store.so";
    config_.text = folder_ / "values";
    config_.timeout = 60 * kNsPerSecond;  // a test machine may be slow
    config_.seal = seals ? &seal_ : nullptr;
    config_.bytes_in_flight = 4096;  // several batches an operation
  }
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages) override {
    form_ = form;
    return make_library_backend(config_, form);
  }
  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    std::ifstream file(file_of(space, key), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::vector<std::byte> bytes(text.size());
    std::ranges::transform(text, bytes.begin(), [](char byte) { return static_cast<std::byte>(byte); });
    return bytes;
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    std::ofstream file(file_of(space, key), std::ios::binary | std::ios::trunc);
    for (const std::byte byte : bytes) file.put(static_cast<char>(byte));
  }

 private:
  // The 16 bytes of the hash, the id of the secret, and zeros, in hex.
  std::string file_of(const PageKey& space, const PageKey& key) const {
    const PageKey name = stored_page_key(form_, space, key);
    std::array<char, 65> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx%016llx%08x%024d",
                  static_cast<unsigned long long>(name.words[0]), static_cast<unsigned long long>(name.words[1]),
                  id_of(config_.seal), 0);
    return config_.text + "/" + digits.data();
  }

  const Folder folder_;
  const PageSeal seal_{"sixteen characters and more"};
  StoreLibraryConfig config_;
  PageForm form_;
};

BackendKind files(const char* name, bool seals) {
  return {.name = name,
          .medium = [=] { return std::make_unique<LibraryMedium>(seals); },
          .bounded = false,
          .persists = true};
}

KVTWIN_CONFORMS(StoreLibrary, files("example", false), files("with_a_secret", true));

}  // namespace
}  // namespace kvtwin::test

#include "tests/conformance.hpp"
#include "tests/conformance/impl/memory_backend.hpp"

namespace kvtwin::test {
namespace {

class MapMedium final : public StorageMedium {
 public:
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages capacity) override {
    return std::make_unique<MemoryBackend>(map_, form, capacity);
  }
  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    const std::lock_guard lock(map_.mutex);
    const auto found = map_.pages.find(storage_page_key(space, key));
    return found == map_.pages.end() ? std::vector<std::byte>() : found->second;
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    const std::lock_guard lock(map_.mutex);
    map_.pages[storage_page_key(space, key)] = bytes;
  }

 private:
  PageMap map_;
};

KVTWIN_CONFORMS(Memory, {.name = "map", .medium = [] { return std::make_unique<MapMedium>(); }, .persists = true});

}  // namespace
}  // namespace kvtwin::test

#include <fstream>
#include <iterator>

#include "impl/disk/hicache_files.hpp"
#include "tests/conformance.hpp"
#include "tests/folder.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

class HiCacheMedium final : public StorageMedium {
 public:
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages capacity) override {
    return make_hicache_files({.folder = folder_.path() / "hicache",
                               .model = "org/model-1.5",
                               .tp_rank = 1,
                               .tp_size = 2,
                               .space = kSpace,
                               .capacity = capacity},
                              form);
  }

 private:
  Folder folder_;
};

KVTWIN_CONFORMS(HiCacheFiles, {.name = "files",
                               .medium = [] { return std::make_unique<HiCacheMedium>(); },
                               .vouches = false,  // only the length of a file is checked
                               .persists = true,
                               .exclusive = true,
                               .spaces = false,
                               .objects = false});  // HiCache stores a page as one file

}  // namespace
}  // namespace kvtwin::test

// kill -9, restarts and damage, 200 times, over a disk tier in HiCache's format. See store_storm.hpp. The C interface
// has no store in this format. The files have no checks, so that only their lengths are damaged.
#include "tests/store_storm.hpp"

#include "impl/disk/hicache_files.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form(64);

// The pages of one call, in memory of the caller.
class MemoryWork final : public PageWork {
 public:
  MemoryWork(StorageVerb verb, std::span<const std::uint32_t> pages, std::byte* bytes)
      : PageWork(kForm), verb_(verb), pages_(pages), bytes_(bytes), ends(pages.size()) {}
  bool next(PageTask& task) override {
    if (begun_ == pages_.size()) return false;
    task = {verb_, some_space(), numbered_key(pages_[begun_]), begun_};
    ++begun_;
    return true;
  }
  bool pieces(const PageTask& task, Pieces& pieces) override {
    pieces.emplace_back(bytes_ + task.ticket * kForm.bytes(), kForm.bytes());
    return true;
  }
  void end(const PageTask& task, Cause cause) override {
    const bool absent = cause == Cause::missing || cause == Cause::corrupt;
    ends[task.ticket] = cause == Cause::none ? StormStore::End::ok
                        : absent             ? StormStore::End::absent
                                             : StormStore::End::other;
  }

 private:
  const StorageVerb verb_;
  const std::span<const std::uint32_t> pages_;
  std::byte* const bytes_;
  std::size_t begun_ = 0;

 public:
  std::vector<StormStore::End> ends;
};

class BackendStore final : public StormStore {
 public:
  explicit BackendStore(std::unique_ptr<StorageBackend> store) : store_(std::move(store)) {}
  std::vector<End> put(std::span<const std::uint32_t> pages, std::span<const unsigned char> bytes) override {
    return write(StorageVerb::set, pages, const_cast<unsigned char*>(bytes.data()));
  }
  std::vector<End> get(std::span<const std::uint32_t> pages, std::span<unsigned char> bytes) override {
    MemoryWork work(StorageVerb::get, pages, reinterpret_cast<std::byte*>(bytes.data()));
    store_->read(work);
    return work.ends;
  }
  std::vector<End> remove(std::span<const std::uint32_t> pages) override {
    return write(StorageVerb::remove, pages, nullptr);
  }
  std::size_t page_bytes() const override { return kForm.bytes(); }
  void finish() override { store_->finish(); }

 private:
  std::vector<End> write(StorageVerb verb, std::span<const std::uint32_t> pages, unsigned char* bytes) {
    MemoryWork work(verb, pages, reinterpret_cast<std::byte*>(bytes));
    store_->write(work);
    return work.ends;
  }
  std::unique_ptr<StorageBackend> store_;
};

TEST(StoreStorm, hicache_files) {
  StormTerms terms;
  terms.checks_bytes = false;
  terms.open = [](const std::string& folder, std::uint32_t, Splitmix& rng) {
    HiCacheFilesConfig config{.folder = folder, .model = "storm", .space = some_space()};
    config.capacity = rng.chance(50) ? 100 : 16;
    return std::make_unique<BackendStore>(make_hicache_files(config, kForm));
  };
  expect_storm_to_pass(terms);
}

}  // namespace
}  // namespace kvtwin::test

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "impl/disk/segment_store.hpp"
#include "impl/disk/slot_format.hpp"
#include "tests/conformance.hpp"
#include "tests/direct_pages.hpp"
#include "tests/folder.hpp"

namespace kvtwin::test {
namespace {

class SegmentsMedium final : public StorageMedium {
 public:
  // `direct` > 0: gets load directly into L1; 0: into L2.
  explicit SegmentsMedium(bool threads, std::uint32_t direct = 0, bool seals = false)
      : threads_(threads), direct_(direct), seals_(seals) {}

  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages capacity) override {
    form_ = form;
    SegmentStoreConfig config;
    config.folder = folder_.path() / "tier";
    config.capacity_pages = capacity;
    config.form = form;
    config.force_threads = threads_;
    config.seal = seals_ ? &seal_ : nullptr;
    if (direct_ == 0) return std::make_unique<SegmentStore>(config);
    FolderOptions options;
    options.force_threads = threads_;
    return std::make_unique<DirectStore>(config, make_folder_files(config.folder, options), direct_);
  }

  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    const Spot spot = find(space, key);
    if (spot.file.empty()) return {};
    std::vector<std::byte> page(spot.slot.begin(), spot.slot.begin() + kPageHeaderBytes);
    const auto payload = spot.slot.begin() + kBlockBytes;
    page.insert(page.end(), payload, payload + static_cast<std::ptrdiff_t>(form_.bytes()));
    return page;
  }

  // Overwrites a stored page. The header block stays valid, so that the checks after it are tested, too. If the bytes
  // have a different length, the checksum isn't written.
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    const Spot spot = find(space, key);
    if (spot.file.empty()) throw std::logic_error("only a page that is there can be overwritten");
    std::vector<std::byte> page = bytes;
    page.resize(kPageHeaderBytes + form_.bytes());
    std::vector<std::byte> slot(slot_bytes(form_));
    std::copy(page.begin(), page.begin() + kPageHeaderBytes, slot.begin());
    std::copy(page.begin() + kPageHeaderBytes, page.end(), slot.begin() + kBlockBytes);
    if (bytes.size() == page.size()) {
      const auto sum = read_page_sum(std::span<const std::byte>(spot.slot).first<kBlockBytes>());
      seal_header_block(spot.number, spot.index, std::span(slot).first<kBlockBytes>(), sum);
    }
    std::fstream out(spot.file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(slot_offset(form_, spot.index)));
    out.write(reinterpret_cast<const char*>(slot.data()), static_cast<std::streamsize>(slot.size()));
    if (!out.flush()) throw std::runtime_error(spot.file.string() + " can't be written");
    spots_[{space, key}] = spot;
  }

 private:
  struct Spot {
    std::filesystem::path file;  // empty: the page isn't stored
    FileNumber number = 0;
    std::uint32_t index = 0;
    std::vector<std::byte> slot;
  };

  // Finds the newest copy of the page. If the page was overwritten, finds the place of the overwritten copy.
  Spot find(const PageKey& space, const PageKey& key) const {
    Spot found;
    if (!std::filesystem::exists(folder_.path() / "tier")) return found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "tier")) {
      const FileNumber number = std::stoull(entry.path().filename().string(), nullptr, 16);
      if (number == 0 || number < found.number) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
      for (std::uint32_t i = 0; slot_offset(form_, i + 1) <= bytes.size(); ++i) {
        const auto slot = bytes.subspan(slot_offset(form_, i), slot_bytes(form_));
        PageClaim claim;
        const HeaderKind kind = read_header_block(form_, number, i, slot.first<kBlockBytes>(), claim);
        if (kind != HeaderKind::page || claim.space != space || claim.key != key) continue;
        found = {entry.path(), number, i, {slot.begin(), slot.end()}};
      }
    }
    const auto before = spots_.find({space, key});
    if (found.file.empty() && before != spots_.end()) found = before->second;
    return found;
  }

  const bool threads_;
  const std::uint32_t direct_;
  const bool seals_;
  const PageSeal seal_{"sixteen characters and more"};
  PageForm form_;
  Folder folder_;
  std::map<std::pair<PageKey, PageKey>, Spot> spots_;
};

BackendKind segments(const char* name, bool threads, std::uint32_t direct = 0, bool seals = false) {
  return {.name = name,
          .medium = [=] { return std::make_unique<SegmentsMedium>(threads, direct, seals); },
          .persists = true,
          .exclusive = true,
          .objects = direct == 0};  // a GPU takes whole pages
}

KVTWIN_CONFORMS(Disk, segments("segments", false), segments("segments_by_threads", true),
                segments("segments_into_l1", false, 6), segments("segments_into_l1_one_by_one", true, 1),
                segments("segments_with_a_secret", false, 0, true));

}  // namespace
}  // namespace kvtwin::test

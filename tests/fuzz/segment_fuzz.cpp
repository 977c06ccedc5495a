// Any bytes as the segment files of a folder: opening them must end, a page that a lookup reports must be readable, and
// every page that is read must have the bytes that belong to its key. With or without valid superblocks and header
// checksums, so that the code behind these checks is reached, too.
// Input: one byte that chooses the number of files and what is repaired; then the bytes of the files, in equal parts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "impl/disk/segment_store.hpp"
#include "impl/disk/slot_format.hpp"
#include "tests/power_loss_files.hpp"
#include "tests/stored_pages.hpp"

namespace {

using namespace kvtwin;

void require(bool condition) {
  if (!condition) std::abort();
}

const PageForm kForm = test::small_form();
constexpr std::uint64_t kPages = 8;

// Returns a file in which each block starts with the next 64 of the given bytes; the rest of each block is zero.
std::vector<std::byte> file_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = 64;
  std::vector<std::byte> file((bytes.size() + kPiece - 1) / kPiece * kBlockBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) file[i / kPiece * kBlockBytes + i % kPiece] = bytes[i];
  return file;
}

// Writes valid superblocks (bit 0 of `how`) and page headers (bit 1) into the file.
void repair(FileNumber number, unsigned how, std::vector<std::byte>& file) {
  if (file.size() < kBlockBytes) return;
  const auto block = [&](std::size_t at) { return std::span(file).subspan(at).first<kBlockBytes>(); };
  const std::uint64_t slots = std::to_integer<std::uint64_t>(file[0]);
  if ((how & 1) != 0) write_superblock(kForm, number, slots, block(0));
  for (std::uint32_t slot = 0; (how & 2) != 0 && slot_offset(kForm, slot + 1) <= file.size(); ++slot) {
    const Bytes at = slot_offset(kForm, slot);
    const PageKey key = test::numbered_key(std::to_integer<std::uint64_t>(file[at]) % kPages);
    const auto payload = std::span(file).subspan(at + kBlockBytes, kForm.bytes());
    // Every second slot gets the correct payload. In the others the header has the checksum of the correct payload, but
    // the payload is wrong.
    if (slot % 2 == 0) test::fill_page(key, payload);
    std::vector<std::byte> right(kForm.bytes());
    test::fill_page(key, right);
    const PageHeader header = make_page_header(kForm, test::some_space(), key, right);
    std::ranges::copy(header, file.begin() + static_cast<std::ptrdiff_t>(at));
    seal_header_block(number, slot, block(at));
  }
}

void open_and_use(const std::shared_ptr<test::PowerLossFiles>& files) {
  SegmentStoreConfig config;
  config.capacity_pages = 6;
  config.form = kForm;
  config.depth = 3;
  config.segment_bytes = 2 * slot_bytes(kForm);
  config.files = files;
  SegmentStore store(config);
  for (int round = 0; round < 2; ++round) {
    test::ListedWork gets(kForm);
    for (std::uint64_t i = 0; i < kPages; ++i) gets.add(StorageVerb::get, test::numbered_key(i));
    store.read(gets);
    require(gets.wrong_bytes == 0);
    for (std::uint64_t i = 0; i < kPages; ++i) require((gets.cause(i) == Cause::none) == test::looks_up(store, i));
    for (std::uint64_t i = 0; i < 6; ++i) require(test::set_page(store, kForm, i) == Cause::none);
    for (std::uint64_t i = 0; i < 6; ++i) require(test::get_page(store, kForm, i) == Cause::none);
    for (std::uint64_t i = 0; i < 3; ++i) require(test::remove_page(store, kForm, i) == Cause::none);
    store.check_invariants();
  }
  require(store.sync());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 20'000) return 0;
  const unsigned pick = data[0];
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const std::size_t count = pick % 4 + 1;
  const auto files = std::make_shared<test::PowerLossFiles>(pick);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = i * bytes.size() / count, end = (i + 1) * bytes.size() / count;
    std::vector<std::byte> file = file_of(bytes.subspan(first, end - first));
    repair(i + 1, pick >> 2, file);
    files->put(i + 1, std::move(file));
  }
  open_and_use(files);
  return 0;
}

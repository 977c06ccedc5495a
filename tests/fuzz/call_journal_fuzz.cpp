// Any bytes as a journal of calls: reading must end; the records that were read must be written back as the same bytes;
// and the calls can be made on a tree. With and without valid checksums, so that the code behind the checks is reached,
// too. Input: a journal.
//
// Only a tree of an earlier journal, with a policy's parameters as numbers, is written in another form. Then what was
// written must be read and written back as the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "policy/base/byte_order.hpp"
#include "policy/hosted/call_journal.hpp"
#include "tests/journal_test_support.hpp"

namespace {

using namespace kvtwin;

void require(bool condition) {
  if (!condition) std::abort();
}

// The policy's numbers in the tree record at this offset are not those that the writer puts there.
bool has_numbers(std::span<const std::byte> bytes, std::size_t offset) {
  constexpr std::size_t kRecordHead = 20, kNumbers = 32;  // policy/seam/frames.hpp, call_journal.hpp
  const std::byte* at = bytes.data() + offset + kRecordHead + kNumbers;
  return load_le32(at) != kSlruProtected || load_le64(at + 4) != 0 || load_le64(at + 12) != 0;
}

// Returns whether the journal has a tree in the earlier form. Writes what was read to `again`.
bool try_journal(std::span<const std::byte> bytes, test::ByteVector& again) {
  constexpr Pages kMaxTreePages = 4096;  // a policy's memory grows with the tier
  CallJournalReader reader(bytes);
  if (reader.header() != JournalStatus::record) return false;
  bool earlier = false;
  CallJournalWriter writer(again, reader.text());
  std::optional<HostedTree> tree;
  CallRecord record;
  JournalStatus status = JournalStatus::record;
  while ((status = reader.next(record)) == JournalStatus::record) {
    if (record.tree) {
      earlier = earlier || has_numbers(bytes, reader.place().offset);
      writer.tree(*record.tree);
      HostedSetup setup = *record.tree;
      setup.device_pages = std::min(setup.device_pages, kMaxTreePages);
      setup.host_pages = std::min(setup.host_pages, kMaxTreePages);
      tree.emplace(setup);
    } else if (record.storage) {
      writer.append(*record.storage);
    } else {
      writer.append(record.call, record.answer, record.after);
      Answer answer;
      if (tree) static_cast<void>(tree->call(record.call, answer));
    }
  }
  if (status == JournalStatus::end) writer.finish();
  if (tree) tree->tree().check_invariants();
  return earlier;
}

// An unknown flag or a reserved byte would be lost in what was written.
bool begins(const test::ByteVector& written, std::span<const std::byte> bytes) {
  return written.bytes.size() <= bytes.size() && std::equal(written.bytes.begin(), written.bytes.end(), bytes.begin());
}

void try_journal(std::span<const std::byte> bytes) {
  test::ByteVector again, once_more;
  if (!try_journal(bytes, again)) return require(begins(again, bytes));
  require(!try_journal(again.bytes, once_more) && once_more.bytes == again.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size);
  std::transform(data, data + size, bytes.begin(), [](std::uint8_t byte) { return std::byte{byte}; });
  try_journal(bytes);
  test::mend_checks(bytes);
  try_journal(bytes);
  return 0;
}

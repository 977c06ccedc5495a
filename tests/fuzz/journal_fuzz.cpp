// Any bytes as a journal: reading must end, with the same result for the whole journal and in pieces; the records that
// were read must be written back as the same bytes (an old version: as a current journal with as many records); and an
// engine can replay the journal. With and without valid checksums, so that the code behind the checks is reached, too.
// Input: a journal, maybe with extra bytes at its end. The last byte also chooses the engine's sizes and role and the
// size of the pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "policy/base/byte_order.hpp"
#include "policy/replay.hpp"
#include "tests/fuzz/journal_config.hpp"
#include "tests/journal_test_support.hpp"

namespace {

using namespace kvtwin;

constexpr std::size_t kVersionAt = 8;  // after the magic number
constexpr std::size_t kEndBytes = 16 + 4 + 24 + 4;

void require(bool condition) {
  if (!condition) std::abort();
}

void write_back(std::span<const std::byte> bytes, const test::WholeJournal& read) {
  JournalReader reader(bytes);
  if (reader.header() != JournalStatus::record) return;
  const test::ByteVector again = test::write_all(read.records, reader.text(), false);
  if (load_le32(bytes.data() + kVersionAt) != kJournalVersion) {  // written again in the current version
    require(test::read_all(again.bytes).records.size() == read.records.size());
    return;
  }
  // The end record has its own time, so it isn't written back.
  const std::size_t end = read.place.number == read.records.size() + 2 ? kEndBytes : 0;
  require(again.bytes.size() + end == read.place.offset);
  require(read.status != JournalStatus::end || read.place.offset + kEndBytes == bytes.size());
  require(std::equal(again.bytes.begin(), again.bytes.end(), bytes.begin()));
}

void read_in_pieces(std::span<const std::byte> bytes, std::size_t piece, const test::WholeJournal& whole) {
  JournalReader reader({});
  JournalRecord record;
  std::size_t records = 0;
  JournalStatus status = JournalStatus::truncated;
  for (std::size_t size = 0; size < bytes.size();) {
    size = std::min(bytes.size(), size + piece);
    reader.extend(bytes.first(size));
    while ((status = reader.next(record)) == JournalStatus::record) ++records;
    if (status != JournalStatus::end && status != JournalStatus::truncated) break;
  }
  require(status == whole.status && records == whole.records.size());
  require(reader.place() == whole.place);
}

void try_journal(std::span<const std::byte> bytes, unsigned pick) {
  const test::WholeJournal read = test::read_all(bytes);
  require(read.status != JournalStatus::record && read.place.offset <= bytes.size());
  write_back(bytes, read);
  read_in_pieces(bytes, 1 + pick, read);
  JournalReader reader(bytes);
  const ReplayResult result = replay(reader, test::fuzzed_engine(pick));
  require(result.inputs <= read.records.size());
  require(result.verdict != ReplayVerdict::equal || result.inputs == read.records.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size);
  std::transform(data, data + size, bytes.begin(), [](std::uint8_t byte) { return std::byte{byte}; });
  const unsigned pick = data[size - 1];
  try_journal(bytes, pick);
  test::mend_checks(bytes);
  try_journal(bytes, pick);
  return 0;
}

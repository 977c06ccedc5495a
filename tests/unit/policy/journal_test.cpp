#include "policy/seam/journal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "policy/index/page_key.hpp"
#include "tests/journal_test_support.hpp"
#include "tests/paths.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {
namespace {

constexpr std::string_view kText = "[cache]\neviction = \"lru\"\n";

// Records of every kind, with a value in every field, including extreme values.
std::vector<KeptRecord> every_kind_before_version_4() {
  std::vector<KeptRecord> records;
  const std::vector<PageKey> keys = {{{1, 2, 3, 4}}, {{~std::uint64_t{0}, 0, 0x0123456789ABCDEF, 7}}};
  records.push_back(kept({0, Arrival{0, 17, 3, -5, 99, keys}}, {2, 0xFEDCBA9876543210}));
  records.push_back(
      kept({0, Reduction{OperationId{1},
                         {0, 1, -1, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                          5, 6, 7, 8, 9, 10, 11, 12, 13, 14, -15}}},
           {2, 0xFEDCBA9876543210}));
  records.push_back(kept({1500, Completion{OperationId{2}, Status::cancelled, 4096, 12, 250}}, {5, 1}));
  records.push_back(kept({1500, TimerFired{OperationId{~std::uint64_t{0}}}}, {5, 1}));
  records.push_back(kept({1501, Hint{HintKind::unpin, 77, -9}}, {5, 1}));
  records.push_back(
      kept({std::numeric_limits<TimeNs>::max(),
            Arrival{kNoRequest - 1, kMaxJournalTokens, 1, std::numeric_limits<std::int32_t>::min(), 0, {}}},
           {6, 0}));
  return records;
}

// `system_tokens`: of an arrival; since version 7.
std::vector<KeptRecord> every_kind(Tokens system_tokens = 1) {
  std::vector<KeptRecord> records = every_kind_before_version_4();
  constexpr TimeNs now = std::numeric_limits<TimeNs>::max();
  const std::vector<SlotId> slots = {7, 0, ~SlotId{0}};
  Arrival part{5, 1, 2, 0, 3, {}};
  part.part = RequestPart::decode;
  part.peer = 4;
  part.attempt = 1;
  part.system_tokens = system_tokens;
  records.push_back(kept({now, part}, {6, 0}));
  records.push_back(kept({now, Notice{NoticeKind::room, 5, 1, 4, 9, slots}}, {6, 0}));
  records.push_back(kept({now, Notice{NoticeKind::peer_lost, kNoRequest, 0, ~0U, 0, {}}}, {6, 0}));
  return records;
}

// Completions of storage operations with every cause, with and without pages.
// `lengths`: of a look-up with needs; since version 6.
std::vector<KeptRecord> storage_completions(const std::vector<Pages>& lengths = {1, 7, 300}) {
  std::vector<KeptRecord> records;
  for (std::uint64_t i = 0; i <= static_cast<std::uint64_t>(Cause::lease); ++i) {
    const Status status = i == 0 ? Status::done : i == 3 ? Status::cancelled : Status::failed;
    records.push_back(kept(
        {static_cast<TimeNs>(100 * i), Completion{OperationId{i + 1}, status, 4096 * i, 0, 0, i == 1 ? ~Pages{0} : i,
                                                  static_cast<Cause>(i), i == 0 ? lengths : std::span<const Pages>{}}},
        {i, 7 * i}));
  }
  return records;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const auto value = static_cast<unsigned>(byte);
    text += "0123456789abcdef"[value >> 4];
    text += "0123456789abcdef"[value & 15];
  }
  return text;
}

std::vector<std::byte> file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> bytes;
  std::transform(std::istreambuf_iterator<char>(file), {}, std::back_inserter(bytes),
                 [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

TEST(Journal, gives_back_every_field_of_every_kind) {
  const std::vector<KeptRecord> records = every_kind();
  const ByteVector journal = write_all(records, kText);
  const WholeJournal read = read_all(journal.bytes);
  EXPECT_EQ(read.status, JournalStatus::end);
  EXPECT_EQ(read.place, (JournalPlace{records.size() + 1, journal.ends[records.size()]}));
  ASSERT_EQ(read.records.size(), records.size());
  for (std::size_t i = 0; i < records.size(); ++i) EXPECT_EQ(read.records[i], records[i]) << "record " << i + 1;
}

TEST(Journal, gives_back_what_storage_operations_ended_with) {
  const std::vector<KeptRecord> records = storage_completions();
  const WholeJournal read = read_all(write_all(records, kText).bytes);
  EXPECT_EQ(read.status, JournalStatus::end);
  EXPECT_EQ(read.records, records);
}

TEST(Journal, tells_number_and_place_of_each_record) {
  const ByteVector journal = write_all(every_kind(), kText);
  JournalReader reader(journal.bytes);
  JournalRecord record;
  EXPECT_EQ(reader.kind_here(), "header");
  const std::vector<KeptRecord> records = every_kind();
  for (std::size_t i = 0; i < records.size(); ++i) {
    ASSERT_EQ(reader.next(record), JournalStatus::record);
    EXPECT_EQ(record.number, i + 1);
    EXPECT_EQ(reader.place(), (JournalPlace{i + 1, journal.ends[i]}));
    EXPECT_EQ(reader.kind_here(), name_of(kind_of(records[i].input)));
    EXPECT_EQ(reader.last_now(), records[i].input.now);
  }
  for (int again = 0; again < 2; ++again) {
    ASSERT_EQ(reader.next(record), JournalStatus::end);
    EXPECT_EQ(reader.place(), (JournalPlace{records.size() + 1, journal.ends[records.size()]}));
    EXPECT_EQ(reader.kind_here(), "end");
  }
}

// A run that was killed between two inputs leaves only complete records, but its journal counts as truncated, too.
TEST(Journal, without_its_end_is_truncated) {
  const std::vector<KeptRecord> records = every_kind();
  const ByteVector journal = write_all(records, kText, false);
  const WholeJournal read = read_all(journal.bytes);
  EXPECT_EQ(read.status, JournalStatus::truncated);
  EXPECT_EQ(read.records.size(), records.size());
  EXPECT_EQ(read.place, (JournalPlace{records.size() + 1, journal.bytes.size()}));
  EXPECT_EQ(read_all(write_all({}, kText, false).bytes).status, JournalStatus::truncated);
}

TEST(Journal, with_anything_behind_its_end_is_corrupt) {
  const std::vector<KeptRecord> records = every_kind();
  const ByteVector whole = write_all(records, kText);
  for (const std::size_t more : {1U, 19U, 52U, 400U}) {
    std::vector<std::byte> bytes = whole.bytes;
    for (std::size_t i = 0; i < more; ++i) bytes.push_back(whole.bytes[whole.ends[0] + i]);
    const WholeJournal read = read_all(bytes);
    EXPECT_EQ(read.status, JournalStatus::corrupt) << more;
    EXPECT_EQ(read.records.size(), records.size());
    EXPECT_EQ(read.place, (JournalPlace{records.size() + 2, whole.bytes.size()}));
    JournalReader reader(whole.bytes);
    JournalRecord record;
    while (reader.next(record) == JournalStatus::record) {
    }
    reader.extend(bytes);
    EXPECT_EQ(reader.next(record), JournalStatus::corrupt);
    EXPECT_EQ(reader.place(), read.place);
  }
}

TEST(Journal, carries_the_text_and_its_digest) {
  const ByteVector journal = write_all({}, "abc");
  JournalReader reader(journal.bytes);
  EXPECT_EQ(reader.text(), "");
  ASSERT_EQ(reader.header(), JournalStatus::record);
  EXPECT_EQ(reader.place(), JournalPlace{});
  EXPECT_EQ(reader.text(), "abc");
  EXPECT_EQ(hex(reader.text_digest()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  JournalRecord record;
  EXPECT_EQ(reader.next(record), JournalStatus::end);
  EXPECT_EQ(read_all(write_all({}, "").bytes).status, JournalStatus::end);
}

// The stored journals are also the start corpus of the fuzzer. A change of the format needs a new kJournalVersion and
// new files: KVTWIN_WRITE_JOURNALS=1 unit_policy --gtest_filter='Journal.*'
TEST(Journal, of_this_version_is_written_byte_by_byte_as_ever) {
  const std::filesystem::path folder = std::filesystem::path(kSourceFolder) / "tests/fuzz/corpus/journal";
  std::vector<KeptRecord> records = every_kind();
  const ByteVector whole = write_all(records, kText);
  const ByteVector bare = write_all({}, "");
  const ByteVector storage = write_all(storage_completions(), kText);
  if (std::getenv("KVTWIN_WRITE_JOURNALS") != nullptr) {
    const auto write = [&](const char* name, std::span<const std::byte> bytes) {
      std::ofstream file(folder / name, std::ios::binary);
      file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    };
    write("every_kind", whole.bytes);
    write("bare", bare.bytes);
    write("storage", storage.bytes);
    write("cut", std::span(whole.bytes).first(whole.ends[3] + 30));
  }
  EXPECT_EQ(hex(file_bytes(folder / "every_kind")), hex(whole.bytes));
  EXPECT_EQ(hex(file_bytes(folder / "bare")), hex(bare.bytes));
  EXPECT_EQ(hex(file_bytes(folder / "storage")), hex(storage.bytes));
  EXPECT_EQ(hex(std::span(whole.bytes).first(16)), "896b767477696e0a0700000019000000");
}

// Before version 7, no arrival has a system prompt.
TEST(Journal, of_version_6_is_read_as_what_it_was) {
  const std::filesystem::path folder = std::filesystem::path(kSourceFolder) / "tests/fuzz/corpus/journal";
  std::vector<std::byte> bytes = file_bytes(folder / "every_kind_version_6");
  EXPECT_EQ(hex(std::span(bytes).first(16)), "896b767477696e0a0600000019000000");
  const WholeJournal read = read_all(bytes);
  EXPECT_EQ(read.status, JournalStatus::end);
  EXPECT_EQ(read.records, every_kind(0));
}

// Before version 6, no completion has lengths.
TEST(Journal, of_version_5_is_read_as_what_it_was) {
  const std::filesystem::path folder = std::filesystem::path(kSourceFolder) / "tests/fuzz/corpus/journal";
  std::vector<std::byte> bytes = file_bytes(folder / "storage_version_5");
  EXPECT_EQ(hex(std::span(bytes).first(16)), "896b767477696e0a0500000019000000");
  const WholeJournal read = read_all(bytes);
  EXPECT_EQ(read.status, JournalStatus::end);
  EXPECT_EQ(read.records, storage_completions({}));
  store_le32(bytes.data() + 8, 6);
  mend_checks(bytes);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::corrupt) << "a completion of version 6 has its lengths";
}

// Before version 5, the last cause is `full`.
TEST(Journal, of_version_4_is_read_as_what_it_was) {
  const std::filesystem::path folder = std::filesystem::path(kSourceFolder) / "tests/fuzz/corpus/journal";
  const std::vector<std::byte> bytes = file_bytes(folder / "storage_version_4");
  EXPECT_EQ(hex(std::span(bytes).first(16)), "896b767477696e0a0400000019000000");
  const WholeJournal read = read_all(bytes);
  EXPECT_EQ(read.status, JournalStatus::end);
  std::vector<KeptRecord> records = storage_completions({});
  records.pop_back();
  EXPECT_EQ(read.records, records);
  std::vector<std::byte> later = file_bytes(folder / "storage_version_5");
  store_le32(later.data() + 8, 4);
  mend_checks(later);
  EXPECT_EQ(read_all(later).status, JournalStatus::corrupt) << "a cause of version 5";
}

// Before version 4, an arrival is of a whole request, and there are no notices.
TEST(Journal, of_version_3_is_read_as_what_it_was) {
  const std::filesystem::path folder = std::filesystem::path(kSourceFolder) / "tests/fuzz/corpus/journal";
  std::vector<std::byte> bytes = file_bytes(folder / "every_kind_version_3");
  EXPECT_EQ(hex(std::span(bytes).first(16)), "896b767477696e0a0300000019000000");
  const WholeJournal read = read_all(bytes);
  EXPECT_EQ(read.status, JournalStatus::end);
  EXPECT_EQ(read.records, every_kind_before_version_4());
  store_le32(bytes.data() + 8, 4);
  mend_checks(bytes);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::corrupt) << "an arrival of version 4 has its part";
}

// The journal was written by a program before version 3: a reduction always has 16 values, without a count.
TEST(Journal, of_version_2_is_read_as_what_it_was) {
  const std::filesystem::path folder = std::filesystem::path(kSourceFolder) / "tests/fuzz/corpus/journal";
  std::vector<std::byte> bytes = file_bytes(folder / "every_kind_version_2");
  EXPECT_EQ(hex(std::span(bytes).first(16)), "896b767477696e0a0200000019000000");
  const WholeJournal read = read_all(bytes);
  EXPECT_EQ(read.status, JournalStatus::end);
  EXPECT_EQ(read.records, every_kind_before_version_4());
  store_le32(bytes.data() + 8, 3);
  mend_checks(bytes);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::corrupt) << "a reduction of version 3 has a count";
}

TEST(Journal, cut_anywhere_is_truncated_and_whole_up_to_there) {
  const std::vector<KeptRecord> records = every_kind();
  const ByteVector journal = write_all(records, kText);
  for (std::size_t cut = 0; cut <= journal.bytes.size(); ++cut) {
    const WholeJournal read = read_all(std::span(journal.bytes).first(cut));
    const auto whole = static_cast<std::size_t>(std::ranges::upper_bound(journal.ends, cut) - journal.ends.begin());
    const bool at_end = cut == journal.bytes.size();
    ASSERT_EQ(read.status, at_end ? JournalStatus::end : JournalStatus::truncated) << "cut at " << cut;
    ASSERT_EQ(read.records.size(), std::min(records.size(), whole == 0 ? 0 : whole - 1)) << "cut at " << cut;
    const std::size_t number = at_end ? whole - 1 : whole;
    ASSERT_EQ(read.place, (JournalPlace{number, number == 0 ? 0 : journal.ends[number - 1]})) << "cut at " << cut;
  }
}

TEST(Journal, is_read_while_it_grows) {
  const std::vector<KeptRecord> records = every_kind();
  const ByteVector journal = write_all(records, kText);
  JournalReader reader({});
  JournalRecord record;
  std::size_t read = 0;
  std::vector<std::byte> before;
  for (std::size_t size = 0; size <= journal.bytes.size(); ++size) {
    // The bytes are at a different address each time, and the former bytes are freed one iteration later.
    std::vector<std::byte> now(journal.bytes.begin(), journal.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    reader.extend(now);
    before.swap(now);
    JournalStatus status = JournalStatus::record;
    while ((status = reader.next(record)) == JournalStatus::record) {
      ASSERT_EQ(kept(record.input, record.after), records.at(read++));
    }
    ASSERT_TRUE(status == JournalStatus::truncated || status == JournalStatus::end);
    ASSERT_EQ(reader.text(), reader.header() == JournalStatus::record ? kText : "");
  }
  EXPECT_EQ(read, records.size());
  const ThrowingChecks checks;
  EXPECT_THROW(reader.extend({}), BrokenPromise);
}

TEST(Journal, with_any_bit_flipped_is_corrupt_from_there_on) {
  const std::vector<KeptRecord> records = every_kind();
  const ByteVector journal = write_all(records, kText);
  for (std::size_t at = 0; at < journal.bytes.size(); ++at) {
    const auto hurt = static_cast<std::size_t>(std::ranges::upper_bound(journal.ends, at) - journal.ends.begin());
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> bytes = journal.bytes;
      bytes[at] ^= std::byte{1} << bit;
      const WholeJournal read = read_all(bytes);
      const std::uint32_t version = load_le32(bytes.data() + 8);
      const bool is_read = version >= kOldestJournalVersion && version <= kJournalVersion;
      ASSERT_EQ(read.status, is_read ? JournalStatus::corrupt : JournalStatus::wrong_version) << at << " bit " << bit;
      ASSERT_EQ(read.place.number, hurt) << at << " bit " << bit;
      ASSERT_EQ(read.records.size(), hurt == 0 ? 0 : hurt - 1) << at << " bit " << bit;
      for (std::size_t i = 0; i < read.records.size(); ++i) ASSERT_EQ(read.records[i], records[i]);
    }
  }
}

TEST(Journal, stays_corrupt) {
  std::vector<std::byte> bytes = write_all(every_kind(), kText).bytes;
  bytes[bytes.size() - 1] ^= std::byte{1};
  JournalReader reader(bytes);
  JournalRecord record;
  while (reader.next(record) == JournalStatus::record) {
  }
  const JournalPlace place = reader.place();
  EXPECT_EQ(reader.next(record), JournalStatus::corrupt);
  EXPECT_EQ(reader.place(), place);
}

// Returns the pieces of journals joined in the given order.
std::vector<std::byte> joined(std::initializer_list<std::span<const std::byte>> pieces) {
  std::vector<std::byte> bytes;
  for (const auto piece : pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
  return bytes;
}

TEST(Journal, with_records_swapped_dropped_repeated_or_of_another_journal_is_corrupt) {
  const ByteVector ours = write_all(every_kind(), kText);
  const ByteVector other = write_all(every_kind(), "another text");
  const std::span<const std::byte> all(ours.bytes);
  const auto record = [&](const ByteVector& journal, std::size_t number) {
    const std::size_t begin = journal.ends[number - 1];
    return std::span(journal.bytes).subspan(begin, journal.ends[number] - begin);
  };
  const auto rest = [&](std::size_t number) { return all.subspan(ours.ends[number]); };
  const auto head = [&](std::size_t number) { return all.first(ours.ends[number]); };
  const auto corrupt_at = [&](std::size_t number, const std::vector<std::byte>& bytes) {
    const WholeJournal read = read_all(bytes);
    EXPECT_EQ(read.status, JournalStatus::corrupt);
    EXPECT_EQ(read.place.number, number);
  };
  corrupt_at(3, joined({head(2), record(ours, 4), record(ours, 3), rest(4)}));
  corrupt_at(3, joined({head(2), rest(3)}));
  corrupt_at(4, joined({head(3), record(ours, 3), rest(3)}));
  corrupt_at(3, joined({head(2), record(other, 3), rest(3)}));
}

TEST(Journal, with_fields_out_of_range_is_corrupt_even_if_every_check_holds) {
  const std::vector<KeptRecord> records = every_kind();
  const ByteVector journal = write_all(records, kText);
  const auto status_with = [&](std::size_t number, std::size_t offset, std::uint64_t value, bool is_long) {
    std::vector<std::byte> bytes = journal.bytes;
    std::byte* const at = bytes.data() + journal.ends[number - 1] + offset;
    is_long ? store_le64(at, value) : store_le32(at, static_cast<std::uint32_t>(value));
    mend_checks(bytes);
    const WholeJournal read = read_all(bytes);
    EXPECT_EQ(read.place.number, read.status == JournalStatus::corrupt ? number : records.size() + 1);
    return read.status;
  };
  constexpr std::size_t payload = 20, what = payload + 24;
  EXPECT_EQ(status_with(1, what + 24, 100, true), JournalStatus::end) << "a journal altered well is a journal";
  for (const std::uint64_t type : {0U, 6U, 7U, 2U, ~0U})
    EXPECT_EQ(status_with(1, 4, type, false), JournalStatus::corrupt);
  EXPECT_EQ(status_with(1, 8, 2, true), JournalStatus::corrupt) << "number";
  EXPECT_EQ(status_with(4, 0, 33, false), JournalStatus::corrupt) << "length of a timer";
  EXPECT_EQ(status_with(1, 0, 0xFFFFFFFF, false), JournalStatus::corrupt) << "length of an arrival";
  EXPECT_EQ(status_with(1, payload, ~std::uint64_t{0}, true), JournalStatus::corrupt) << "time below zero";
  EXPECT_EQ(status_with(4, payload, 1499, true), JournalStatus::corrupt) << "time going back";
  EXPECT_EQ(status_with(2, payload + 8, 1, true), JournalStatus::corrupt) << "decisions undone";
  EXPECT_EQ(status_with(2, payload + 16, 1, true), JournalStatus::corrupt) << "a digest changed by no decision";
  EXPECT_EQ(status_with(1, what, kNoRequest, true), JournalStatus::corrupt);
  EXPECT_EQ(status_with(1, what + 8, 0, true), JournalStatus::corrupt) << "prompt";
  EXPECT_EQ(status_with(1, what + 8, kMaxJournalTokens + 1, true), JournalStatus::corrupt) << "prompt";
  EXPECT_EQ(status_with(1, what + 16, 0, true), JournalStatus::corrupt) << "output";
  for (const std::uint64_t keys : {1U, 3U, ~0U}) {
    EXPECT_EQ(status_with(1, what + 36, keys, false), JournalStatus::corrupt) << "keys";
  }
  EXPECT_EQ(status_with(2, what, 0, true), JournalStatus::corrupt) << "id";
  for (const std::uint64_t values : {0U, 15U, 17U, ~0U}) {
    EXPECT_EQ(status_with(2, what + 8, values, false), JournalStatus::corrupt) << "values of a reduction";
  }
  EXPECT_EQ(status_with(3, what, 0, true), JournalStatus::corrupt) << "id";
  EXPECT_EQ(status_with(3, what + 24, ~std::uint64_t{0}, true), JournalStatus::corrupt) << "stalled below zero";
  for (const std::uint64_t status : {4U, 256U, ~0U}) {
    EXPECT_EQ(status_with(3, what + 40, status, false), JournalStatus::corrupt) << "status";
  }
  for (const std::uint64_t cause : {7U, 256U, ~0U}) {
    EXPECT_EQ(status_with(3, what + 44, cause, false), JournalStatus::corrupt) << "cause";
  }
  EXPECT_EQ(status_with(3, what + 44, 6, false), JournalStatus::end) << "the last cause";
  EXPECT_EQ(status_with(5, what + 16, 4, false), JournalStatus::end) << "an abort";
  EXPECT_EQ(status_with(5, what + 16, kHintKinds, false), JournalStatus::corrupt) << "kind of hint";
  const std::size_t end = records.size() + 1;
  EXPECT_EQ(status_with(end, payload, 7, true), JournalStatus::corrupt) << "an end before the last input";
  EXPECT_EQ(status_with(end, payload + 8, 7, true), JournalStatus::corrupt) << "a decision without an input";
  EXPECT_EQ(status_with(end, payload + 16, 7, true), JournalStatus::corrupt) << "another digest";
  EXPECT_EQ(status_with(end, 0, 25, false), JournalStatus::corrupt) << "length of an end";
  EXPECT_EQ(status_with(end, 4, 4, false), JournalStatus::corrupt) << "an end as a timer";
}

TEST(Journal, header_believes_no_length_and_no_digest) {
  std::vector<std::byte> bytes = write_all({}, kText).bytes;
  store_le32(bytes.data() + 12, 0xFFFFFFFF);
  mend_checks(bytes);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::corrupt) << "longer than any text";
  bytes = write_all({}, kText, false).bytes;
  store_le32(bytes.data() + 12, 26);
  mend_checks(bytes);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::truncated);
  bytes = write_all({}, kText).bytes;
  bytes[20] ^= std::byte{1};
  mend_checks(bytes);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::corrupt) << "the text isn't the digest's";
}

TEST(Journal, of_another_version_is_told_from_what_is_no_journal) {
  std::vector<std::byte> bytes = write_all(every_kind(), kText).bytes;
  store_le32(bytes.data() + 8, kJournalVersion + 1);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::wrong_version);
  store_le32(bytes.data() + 8, kOldestJournalVersion - 1);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::wrong_version);
  bytes.resize(12);
  EXPECT_EQ(read_all(bytes).status, JournalStatus::wrong_version);
  std::vector<std::byte> text;
  for (const char c : std::string_view("{\"a\": 1}\n")) text.push_back(static_cast<std::byte>(c));
  EXPECT_EQ(read_all(text).status, JournalStatus::corrupt);
  EXPECT_EQ(read_all(std::span(text).first(1)).status, JournalStatus::corrupt);
}

TEST(JournalWriter, hands_over_one_whole_record_a_call) {
  const std::vector<KeptRecord> records = every_kind();
  EXPECT_EQ(write_all(records, kText).ends.size(), records.size() + 2);
}

TEST(JournalWriter, breaks_off_rather_than_write_what_no_reader_takes) {
  const ThrowingChecks checks;
  ByteVector sink;
  JournalWriter writer(sink, "");
  writer.append({10, TimerFired{OperationId{1}}}, {3, 5});
  const auto refused = [&](const Input& input, const DecisionMark& after) {
    EXPECT_THROW(writer.append(input, after), BrokenPromise);
  };
  refused({9, TimerFired{OperationId{1}}}, {3, 5});
  refused({10, TimerFired{}}, {3, 5});
  refused({10, TimerFired{OperationId{1}}}, {2, 5});
  refused({10, TimerFired{OperationId{1}}}, {3, 6});
  refused({10, Arrival{}}, {3, 5});
  refused({10, Arrival{0, 1, 0, 0, 0, {}}}, {3, 5});
  refused({10, Completion{}}, {3, 5});
  refused({10, Completion{OperationId{1}, Status::done, 0, 0, -1}}, {3, 5});
  refused({10, Completion{OperationId{1}, static_cast<Status>(4), 0, 0, 0}}, {3, 5});
  refused({10, Completion{OperationId{1}, Status::failed, 0, 0, 0, 0, static_cast<Cause>(7)}}, {3, 5});
  refused({10, Hint{static_cast<HintKind>(9), 0, 0}}, {3, 5});
  refused({10, Reduction{}}, {3, 5});
  writer.append({10, TimerFired{OperationId{2}}}, {4, 5});
  EXPECT_EQ(writer.records(), 2U);
  EXPECT_EQ(read_all(sink.bytes).records.size(), 2U);
  EXPECT_THROW(writer.finish(9, {4, 5}), BrokenPromise);
  EXPECT_THROW(writer.finish(10, {5, 5}), BrokenPromise);
  EXPECT_THROW(writer.finish(10, {4, 6}), BrokenPromise);
  writer.finish(12, {4, 5});
  EXPECT_THROW(writer.finish(12, {4, 5}), BrokenPromise);
  refused({12, TimerFired{OperationId{3}}}, {4, 5});
  EXPECT_EQ(writer.records(), 2U);
  EXPECT_EQ(read_all(sink.bytes).status, JournalStatus::end);
}

TEST(JournalNames, are_words) {
  EXPECT_EQ(name_of(kind_of({0, Reduction{}})), "reduction");
  EXPECT_EQ(name_of(kind_of({0, Arrival{}})), "arrival");
  EXPECT_EQ(name_of(InputKind::hint), "hint");
  EXPECT_EQ(name_of(InputKind::notice), "notice");
  EXPECT_EQ(name_of(InputKind::completion), "completion");
  EXPECT_EQ(name_of(InputKind::timer), "timer");
  EXPECT_EQ(name_of(JournalStatus::wrong_version), "wrong_version");
  EXPECT_EQ(name_of(JournalStatus::truncated), "truncated");
}

}  // namespace
}  // namespace kvtwin::test

// A journal returns all recorded inputs, whatever they are, and damaged bytes never give a wrong record.
#include "policy/seam/journal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/journal_test_support.hpp"

namespace kvtwin::test {
namespace {

TEST(JournalProperty, random_inputs_come_back) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Splitmix random(seed << 32);
    const std::vector<KeptRecord> records = random_records(random, random.below(60));
    const ByteVector journal = write_all(records, std::string(random.below(200), 'x'));
    const WholeJournal read = read_all(journal.bytes);
    ASSERT_EQ(read.status, JournalStatus::end) << "seed " << seed;
    ASSERT_TRUE(read.records == records) << "seed " << seed;
  }
}

TEST(JournalProperty, a_random_byte_changed_is_seen) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Splitmix random(seed << 32);
    const std::vector<KeptRecord> records = random_records(random, 1 + random.below(20));
    const ByteVector journal = write_all(records, "text");
    for (int i = 0; i < 50; ++i) {
      std::vector<std::byte> bytes = journal.bytes;
      const std::size_t at = random.below(bytes.size());
      bytes[at] ^= static_cast<std::byte>(1 + random.below(255));
      const WholeJournal read = read_all(bytes);
      ASSERT_TRUE(read.status == JournalStatus::corrupt || read.status == JournalStatus::wrong_version)
          << "seed " << seed << ", byte " << at;
      ASSERT_LE(read.place.offset, at);
      ASSERT_TRUE(std::equal(read.records.begin(), read.records.end(), records.begin())) << "seed " << seed;
    }
  }
}

// A part of the journal is replaced by zeros, by another journal or by random bytes, as a bad disk might do: every
// record that is read must be one that was written.
TEST(JournalProperty, damage_never_makes_a_record) {
  std::vector<std::byte> other;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Splitmix random(seed << 32);
    const std::vector<KeptRecord> records = random_records(random, 1 + random.below(20));
    const ByteVector journal = write_all(records, std::to_string(seed));
    const std::vector<std::byte>& whole = journal.bytes;
    std::vector<std::byte> bytes = whole;
    // Only bytes after the header: a journal that is replaced from its first byte on would be a different, valid one.
    const std::size_t from = journal.ends[0] + random.below(bytes.size() - journal.ends[0]);
    const std::size_t size = 1 + random.below(bytes.size() - from);
    const std::uint64_t way = random.below(4);
    for (std::size_t i = from; i < from + size; ++i) {
      if (way == 0) bytes[i] = std::byte{0};
      if (way == 1) bytes[i] = static_cast<std::byte>(random.below(256));
      if (way == 2 && i < other.size()) bytes[i] = other[i];
    }
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(from);
    if (way == 3) bytes.erase(first, first + static_cast<std::ptrdiff_t>(size));
    const WholeJournal read = read_all(bytes);
    ASSERT_LE(read.records.size(), records.size());
    ASSERT_TRUE(std::equal(read.records.begin(), read.records.end(), records.begin())) << "seed " << seed;
    if (read.status == JournalStatus::end && bytes.size() == whole.size()) {
      ASSERT_TRUE(bytes == whole) << "seed " << seed;
    }
    other = whole;
  }
}

TEST(JournalProperty, grows_in_pieces_of_any_size) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Splitmix random(seed << 32);
    const std::vector<KeptRecord> records = random_records(random, random.below(30));
    const ByteVector journal = write_all(records, "text");
    JournalReader reader({});
    JournalRecord record;
    std::vector<KeptRecord> read;
    for (std::size_t size = 0; size < journal.bytes.size();) {
      size = std::min(journal.bytes.size(), size + 1 + random.below(300));
      reader.extend(std::span(journal.bytes).first(size));
      while (reader.next(record) == JournalStatus::record) read.push_back(kept(record.input, record.after));
    }
    ASSERT_EQ(reader.next(record), JournalStatus::end) << "seed " << seed;
    ASSERT_TRUE(read == records) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvtwin::test

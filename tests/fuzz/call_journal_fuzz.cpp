// Any bytes as a journal of calls: reading must end; the records that were read must be written back as the same bytes;
// and the calls can be made on a tree. With and without valid checksums, so that the code behind the checks is reached,
// too. Input: a journal.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "policy/hosted/call_journal.hpp"
#include "tests/journal_test_support.hpp"

namespace {

using namespace kvtwin;

void require(bool condition) {
  if (!condition) std::abort();
}

void try_journal(std::span<const std::byte> bytes) {
  constexpr Pages kMaxTreePages = 4096;  // a policy's memory grows with the tier
  CallJournalReader reader(bytes);
  if (reader.header() != JournalStatus::record) return;
  test::ByteVector again;
  CallJournalWriter writer(again, reader.text());
  std::optional<HostedTree> tree;
  CallRecord record;
  JournalStatus status = JournalStatus::record;
  while ((status = reader.next(record)) == JournalStatus::record) {
    if (record.tree) {
      writer.tree(*record.tree);
      HostedSetup setup = *record.tree;
      setup.device_pages = std::min(setup.device_pages, kMaxTreePages);
      setup.host_pages = std::min(setup.host_pages, kMaxTreePages);
      tree.emplace(setup);
    } else {
      writer.append(record.call, record.answer, record.after);
      Answer answer;
      if (tree) static_cast<void>(tree->call(record.call, answer));
    }
  }
  if (status == JournalStatus::end) writer.finish();
  if (tree) tree->tree().check_invariants();
  // An unknown flag or a reserved byte would be lost here.
  require(again.bytes.size() <= bytes.size() && std::equal(again.bytes.begin(), again.bytes.end(), bytes.begin()));
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

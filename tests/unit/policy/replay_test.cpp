#include "policy/replay.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "decorated_rig.hpp"
#include "tests/paths.hpp"

namespace kvtwin::test {
namespace {

EngineConfig config() { return small_config(6, 16); }

ReplayResult replayed(std::span<const std::byte> bytes, const EngineConfig& with) {
  JournalReader reader(bytes);
  return replay(reader, with);
}

std::vector<std::byte> file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Returns a journal of these records with valid checksums.
std::vector<std::byte> rewritten(const std::vector<KeptRecord>& records) { return write_all(records, "again").bytes; }

struct KindCounter final : DecisionSink {
  void decided(const Decision&) override { ++count; }
  std::uint64_t count = 0;
};

struct InputLog final : InputHandler {
  explicit InputLog(const KindCounter& decided) : sink(decided) {}
  void handle(const Input& input) override {
    if (times.empty()) first_of_each = sink.count == 0;
    times.push_back(input.now);
  }
  const KindCounter& sink;
  std::vector<TimeNs> times;
  bool first_of_each = false;
};

TEST(Replay, decides_again_what_was_recorded) {
  DecoratedRig rig(config());
  rig.serve_ten();
  EXPECT_GT(rig.events.page_count(EventKind::evicted), 0U);
  EXPECT_GT(rig.events.page_count(EventKind::load_done), 0U);
  JournalReader reader(rig.journal.bytes);
  KindCounter sink;
  EventCounter events;
  InputLog inputs(sink);
  const ReplayResult result = replay(reader, config(), {&sink, &events, &inputs});
  EXPECT_TRUE(result.whole_and_equal());
  EXPECT_EQ(inputs.times.size(), rig.writer.records());
  EXPECT_TRUE(inputs.first_of_each) << "told of before anything is decided on it";
  EXPECT_EQ(result.inputs, rig.writer.records());
  EXPECT_EQ(result.got, (DecisionMark{rig.decisions.count(), rig.decisions.digest()}));
  EXPECT_EQ(result.place, (JournalPlace{rig.writer.records() + 1, rig.journal.ends[rig.writer.records()]}));
  EXPECT_EQ(result.now, rig.world.time);
  EXPECT_EQ(sink.count, rig.decisions.count());
  EXPECT_EQ(events.counts, rig.events.counts);
}

TEST(Replay, decides_again_what_faults_led_to) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    DecoratedRig rig(config(), {.failed_transfers = 300, .cut_bursts = 300}, seed);
    rig.serve_ten();
    EXPECT_TRUE(replayed(rig.journal.bytes, config()).whole_and_equal()) << "seed " << seed;
  }
}

TEST(Replay, of_an_empty_journal_is_equal) {
  const ReplayResult result = replayed(write_all({}, "").bytes, config());
  EXPECT_TRUE(result.whole_and_equal());
  EXPECT_EQ(result.inputs, 0U);
}

TEST(Replay, by_another_eviction_names_the_first_record_that_differs) {
  DecoratedRig rig(config());
  rig.arrive(0, document({1, 2}), 8, 1);
  rig.drain();
  rig.arrive(1, document({11, 12}), 8, 1);
  rig.drain();
  rig.arrive(2, document({1, 2}), 9, 1);  // uses the older document again: lru keeps it, fifo evicts it
  rig.drain();
  const std::uint64_t before = rig.writer.records();
  rig.arrive(3, document({21, 22}), 9, 1);
  rig.finish();
  EngineConfig fifo = config();
  fifo.eviction = "fifo";
  const ReplayResult result = replayed(rig.journal.bytes, fifo);
  EXPECT_EQ(result.verdict, ReplayVerdict::diverged);
  EXPECT_FALSE(result.whole_and_equal());
  EXPECT_GT(result.place.number, before);
  EXPECT_EQ(result.inputs, result.place.number - 1);
  EXPECT_EQ(result.kind, InputKind::reduction) << "a step decides";
  EXPECT_NE(result.expected, result.got);
  const WholeJournal read = read_all(rig.journal.bytes);
  EXPECT_EQ(result.agreed, read.records[result.place.number - 2].after);
  EXPECT_EQ(result.expected, read.records[result.place.number - 1].after);
}

TEST(Replay, by_another_configuration_never_breaks_the_engine) {
  DecoratedRig rig(config());
  rig.serve_ten();
  std::vector<EngineConfig> others(15, config());
  others[0].device_pages = 5;
  others[1].device_pages = 1000;
  others[2].host_pages = 0;
  others[3].chunk_tokens = 8;
  others[4].burst_steps = 1;  // no decision differs, only the number of steps of the passes
  others[5].shape.page_tokens = 1;
  others[6].shape.page_tokens = 64;
  others[7].max_running = 1;
  others[8].max_waiting = 1;
  others[9].write_threshold = 3;
  others[10].load_back_min_tokens = 1000;
  others[11].cache_output = false;
  others[12].write_policy = others[13].write_policy = "write_back";
  others[13].tiering = Tiering::exclusive;
  others[14].reclaim_shadowed = true;
  std::size_t equal = 0;
  for (const EngineConfig& other : others) {
    const ReplayResult result = replayed(rig.journal.bytes, other);
    equal += result.whole_and_equal();
    EXPECT_EQ(result.misfit != nullptr, result.verdict == ReplayVerdict::misfit);
  }
  EXPECT_EQ(replayed(rig.journal.bytes, others[4]).verdict, ReplayVerdict::misfit);
  EXPECT_LE(equal, 4U);
  EngineConfig refreshing = config();  // no request here leaves a node in its middle
  refreshing.split_refreshes = true;
  EXPECT_EQ(replayed(rig.journal.bytes, refreshing).misfit, nullptr);
  EngineConfig counting = config();  // read by lfu and slru only
  counting.count_touches = TouchCount::insert;
  EXPECT_EQ(replayed(rig.journal.bytes, counting).misfit, nullptr);
}

TEST(Replay, of_an_altered_completion_differs) {
  DecoratedRig rig(config());
  rig.serve_ten();
  const std::vector<KeptRecord> records = read_all(rig.journal.bytes).records;
  ASSERT_TRUE(replayed(rewritten(records), config()).whole_and_equal());
  std::size_t altered = 0, diverged = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (!std::holds_alternative<Completion>(records[i].input.what)) continue;
    ++altered;
    std::vector<KeptRecord> other = records;
    auto& completion = std::get<Completion>(other[i].input.what);
    // A failed transfer changes what is cached; later decisions may or may not change. A pass with a wrong number of
    // steps is a misfit.
    completion.status = Status::failed;
    if (completion.steps > 0) ++completion.steps;
    const ReplayResult result = replayed(rewritten(other), config());
    diverged += result.verdict != ReplayVerdict::equal;
    EXPECT_TRUE(result.verdict == ReplayVerdict::equal || result.place.number > i);
    if (completion.steps > 0) {
      EXPECT_EQ(result.verdict, ReplayVerdict::misfit);
      EXPECT_EQ(result.place.number, i + 1);
      EXPECT_EQ(result.kind, InputKind::completion);
    }
  }
  EXPECT_GT(altered, 20U);
  EXPECT_GT(diverged, altered / 2);
}

TEST(Replay, of_inputs_that_answer_nothing_is_a_misfit) {
  DecoratedRig rig(config());
  rig.arrive(0, document({1, 2}), 8, 3);
  rig.drain();
  const std::vector<KeptRecord> records = read_all(rig.journal.bytes).records;
  const auto with = [&](const KeptRecord& extra) {
    std::vector<KeptRecord> other = records;
    other.push_back(extra);
    return replayed(rewritten(other), config());
  };
  const TimeNs now = records.back().input.now;
  const DecisionMark after = records.back().after;
  for (const Input& input : {Input{now, Completion{.id = OperationId{1}}},
                             Input{now, Completion{.id = OperationId{1000}}}, Input{now, TimerFired{OperationId{1}}},
                             Input{now, Reduction{OperationId{1}, {}}}, Input{now, Arrival{0, 1, 1, 0, 0, {}}}}) {
    const ReplayResult result = with(kept(input, after));
    EXPECT_EQ(result.verdict, ReplayVerdict::misfit) << input.what.index();
    EXPECT_EQ(result.place.number, records.size() + 1);
    EXPECT_EQ(result.kind, kind_of(input));
    ASSERT_NE(result.misfit, nullptr);
  }
}

TEST(Replay, of_two_records_swapped_differs_unless_their_order_matters_to_nobody) {
  DecoratedRig rig(config());
  rig.serve_ten();
  const std::vector<KeptRecord> records = read_all(rig.journal.bytes).records;
  std::size_t differs = 0;
  for (std::size_t i = 0; i + 1 < records.size(); ++i) {
    std::vector<KeptRecord> other = records;
    // The times and the digests after each record are not swapped: the writer accepts only growing times.
    std::swap(other[i].input.what, other[i + 1].input.what);
    std::swap(other[i].keys, other[i + 1].keys);
    const ReplayResult result = replayed(rewritten(other), config());
    differs += !result.whole_and_equal();
    const bool answers_unasked = std::holds_alternative<Reduction>(records[i + 1].input.what);
    ASSERT_TRUE(!answers_unasked || result.verdict == ReplayVerdict::misfit) << "record " << i + 1;
    ASSERT_GE(result.place.number, i + 1);
  }
  EXPECT_GT(differs, records.size() * 3 / 4);
}

TEST(Replay, of_a_journal_cut_anywhere_is_equal_up_to_there) {
  DecoratedRig rig(config());
  rig.arrive(0, document({1, 2, 3}), 13, 3);
  rig.finish();
  const ByteVector& journal = rig.journal;
  for (std::size_t cut = 0; cut <= journal.bytes.size(); ++cut) {
    const ReplayResult result = replayed(std::span(journal.bytes).first(cut), config());
    const auto whole = static_cast<std::size_t>(std::ranges::upper_bound(journal.ends, cut) - journal.ends.begin());
    const bool at_end = cut == journal.bytes.size();
    ASSERT_EQ(result.verdict, ReplayVerdict::equal) << "cut at " << cut;
    ASSERT_EQ(result.journal, at_end ? JournalStatus::end : JournalStatus::truncated) << "cut at " << cut;
    ASSERT_EQ(result.inputs, std::min<std::size_t>(rig.writer.records(), whole == 0 ? 0 : whole - 1)) << cut;
    ASSERT_EQ(result.agreed, result.got) << "cut at " << cut;
  }
}

// The journal of a stored run, which is also in the start corpus of the fuzzer: it must stay readable, whatever the
// policy decides today. One extra byte at its end makes the fuzzer choose this configuration. KVTWIN_WRITE_JOURNALS=1
// writes the file again.
TEST(Replay, of_a_stored_journal_has_a_verdict) {
  const std::filesystem::path path = std::filesystem::path(kSourceFolder) / "tests/fuzz/corpus/journal/served";
  if (std::getenv("KVTWIN_WRITE_JOURNALS") != nullptr) {
    DecoratedRig rig(config(), {.failed_transfers = 200, .cut_bursts = 200}, 3);
    rig.serve_ten();
    rig.journal.bytes.push_back(std::byte{0});
    const auto write = [&](const std::filesystem::path& to, std::span<const std::byte> bytes) {
      std::ofstream file(to, std::ios::binary);
      file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    };
    write(path, rig.journal.bytes);
    // A case that the fuzzer found: a complete journal in which a key has two different parent keys.
    std::vector<KeptRecord> records = {read_all(rig.journal.bytes).records.front()};
    records.push_back(records.front());
    std::get<Arrival>(records[1].input.what).request = 1;
    std::swap(records[1].keys[1], records[1].keys[2]);
    ByteVector two_chains = write_all(records, "by hand");
    two_chains.bytes.push_back(std::byte{0});
    write(path.parent_path() / "key_in_two_chains", two_chains.bytes);
  }
  EXPECT_EQ(replayed(file_bytes(path.parent_path() / "key_in_two_chains"), config()).verdict, ReplayVerdict::misfit);
  const std::vector<std::byte> bytes = file_bytes(path);
  const WholeJournal read = read_all(bytes);
  EXPECT_EQ(read.status, JournalStatus::corrupt) << "by the one byte behind the end";
  EXPECT_EQ(read.place.offset + 1, bytes.size());
  const ReplayResult result = replayed(bytes, config());
  EXPECT_TRUE(result.verdict != ReplayVerdict::equal || result.inputs == read.records.size());
}

TEST(Replay, stops_where_the_journal_is_corrupt) {
  DecoratedRig rig(config());
  rig.serve_ten();
  std::vector<std::byte> bytes = rig.journal.bytes;
  bytes[rig.journal.ends[7] + 25] ^= std::byte{1};
  const ReplayResult result = replayed(bytes, config());
  EXPECT_EQ(result.verdict, ReplayVerdict::equal);
  EXPECT_EQ(result.journal, JournalStatus::corrupt);
  EXPECT_EQ(result.place, (JournalPlace{8, rig.journal.ends[7]}));
  EXPECT_EQ(result.inputs, 7U);
}

}  // namespace
}  // namespace kvtwin::test

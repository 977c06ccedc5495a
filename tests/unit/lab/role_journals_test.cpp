// Journals of engines with roles in the start corpus of the fuzzer (tests/fuzz/journal_fuzz.cpp): two prefill and two
// decode engines of the event world, with failed hand-overs, aborts, and an engine of each role that dies.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lab/experiment/request_route.hpp"
#include "policy/replay.hpp"
#include "policy/seam/decorators.hpp"
#include "sim/world.hpp"
#include "tests/fuzz/journal_config.hpp"
#include "tests/journal_test_support.hpp"
#include "tests/paths.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {
namespace {

struct StoredJournal {
  const char* name;
  unsigned pick;  // the last byte: 16 times the role, 64 times the unit, and an even number for pages of four tokens
  std::size_t seat;
};
constexpr StoredJournal kJournals[] = {
    {"prefill_whole", 16, 0}, {"prefill_chunks", 64 + 2, 0}, {"prefill_layers", 160, 0},
    {"decode_whole", 32, 3},  {"decode_chunks", 80 + 2, 3},
};

class Cost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    return static_cast<TimeNs>(5000 * steps + 500 * shape.prefill_tokens);
  }
  TransferCost transfer(const Plan& plan) const override { return {2000, plan.bytes, 0}; }
  TransferCost storage(const StorageWork&) const override { return {}; }
};

// 24 requests over four documents; each fifth is aborted after the next arrival.
class Traffic final : public InputSource {
 public:
  bool next(Input& input) override {
    time_ += 9000;
    if (request_ % 5 == 4 && !std::exchange(aborted_, true)) {
      input = {time_, Hint{HintKind::abort, request_ - 2, 0}};
      return true;
    }
    if (request_ == 24) return false;
    aborted_ = false;
    const std::uint64_t first = 100 * (request_ % 4);
    keys_ = chain({first + 1, first + 2, first + 3, first + 4});
    Arrival arrival;
    arrival.request = request_++;
    arrival.prompt_tokens = 9 + arrival.request % 9;
    arrival.output_tokens = 1 + arrival.request % 5;
    arrival.keys = std::span(keys_).first(arrival.prompt_tokens / 4);
    input = {time_, arrival};
    return true;
  }

 private:
  TimeNs time_ = 0;
  RequestId request_ = 0;
  bool aborted_ = true;
  std::vector<PageKey> keys_;
};

class RecordedEngine final : public Observer {
 public:
  RecordedEngine(std::size_t seat, const EngineConfig& config, Substrate& world, RequestRoute& route)
      : seat_(seat),
        route_(route),
        faulty_(world, {.failed_transfers = 100, .cut_bursts = 100, .failed_hand_overs = 200}, seat + 1),
        engine_(config, faulty_, decisions_, this),
        writer_(journal, "by roles"),
        recording_(engine_, decisions_, writer_) {
    faulty_.connect(recording_);
  }
  InputHandler& first() { return faulty_; }
  void finish(TimeNs now) { writer_.finish(now, {decisions_.count(), decisions_.digest()}); }
  void on_event(const Event& event) override { route_.on_event(seat_, event); }
  ByteVector journal;

 private:
  std::size_t seat_;
  RequestRoute& route_;
  DecisionLog decisions_;
  Faulty faulty_;
  Engine engine_;
  JournalWriter writer_;
  Recording recording_;
};

// Returns the journal of one engine: two prefill engines (0, 1) and two decode engines. Engines 1 and 2 die.
std::vector<std::byte> recorded(const StoredJournal& stored) {
  EngineConfig configs[2] = {fuzzed_engine(stored.pick), fuzzed_engine(stored.pick)};
  configs[0].hand_over.role = EngineRole::prefill;
  configs[1].hand_over.role = EngineRole::decode;
  RouterSetup router;
  router.engines = 2;
  router.page_tokens = configs[0].shape.page_tokens;
  router.device_pages = configs[0].device_pages;
  RouteRoles roles;
  roles.prefill = 2;
  roles.decode = router;
  roles.decode_policy = "round_robin";
  roles.engines_die = true;
  RequestRoute route("round_robin", router, 0, roles);
  const Cost cost;
  WorldConfig config;
  config.h2d_bytes_per_second = config.d2h_bytes_per_second = 1'000'000'000;
  config.nic_bytes_per_second = 100'000'000;
  config.engines = 4;
  config.prefill_engines = 2;
  config.notice_ns = 1000;
  config.deaths = {{1, 120'000}, {2, 160'000}};
  config.detect_ns = 2000;
  config.cost = &cost;
  const std::unique_ptr<World> world = make_event_world(config);
  std::deque<RecordedEngine> engines;
  std::vector<InputHandler*> handlers;
  for (std::size_t seat = 0; seat < 4; ++seat) {
    engines.emplace_back(seat, configs[seat < 2 ? 0 : 1], world->substrate_of(seat), route);
    handlers.push_back(&engines.back().first());
  }
  Traffic traffic;
  world->run_seats(traffic, handlers, &route);
  engines[stored.seat].finish(world->now());
  return engines[stored.seat].journal.bytes;
}

std::vector<std::byte> file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> bytes;
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) bytes.push_back(std::byte(*at));
  return bytes;
}

ReplayResult replayed(std::span<const std::byte> bytes, unsigned pick) {
  JournalReader reader(bytes);
  return replay(reader, fuzzed_engine(pick));
}

// A stored journal must stay readable, whatever the policy decides today: it has a verdict. A new one is equal.
// KVTWIN_WRITE_JOURNALS=1 writes the files again.
TEST(RoleJournals, AreReplayedByTheFuzzersEngine) {
  const std::filesystem::path folder = std::filesystem::path(kSourceFolder) / "tests/fuzz/corpus/journal";
  std::set<NoticeKind> notices;
  std::set<Status> ends;
  for (const StoredJournal& stored : kJournals) {
    SCOPED_TRACE(stored.name);
    std::vector<std::byte> bytes = recorded(stored);
    for (const KeptRecord& record : read_all(bytes).records) {
      if (const auto* notice = std::get_if<Notice>(&record.input.what)) notices.insert(notice->kind);
      if (const auto* done = std::get_if<Completion>(&record.input.what)) ends.insert(done->status);
    }
    const ReplayResult result = replayed(bytes, stored.pick);
    EXPECT_TRUE(result.whole_and_equal()) << (result.misfit == nullptr ? "" : result.misfit);
    bytes.push_back(std::byte(stored.pick));
    if (std::getenv("KVTWIN_WRITE_JOURNALS") != nullptr) {
      std::ofstream file(folder / stored.name, std::ios::binary);
      file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    const std::vector<std::byte> kept = file_bytes(folder / stored.name);
    ASSERT_FALSE(kept.empty());
    EXPECT_EQ(kept.back(), std::byte(stored.pick));
    const WholeJournal read = read_all(kept);
    EXPECT_EQ(read.status, JournalStatus::corrupt) << "by the one byte behind the end";
    EXPECT_EQ(read.place.offset + 1, kept.size());
    const ReplayResult again = replayed(kept, stored.pick);
    EXPECT_TRUE(again.verdict != ReplayVerdict::equal || again.inputs == read.records.size());
  }
  EXPECT_EQ(notices.size(), 5U) << "all kinds";
  EXPECT_EQ(ends.size(), 4U) << "all kinds";
}

}  // namespace
}  // namespace kvtwin::test

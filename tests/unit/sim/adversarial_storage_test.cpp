// Storage operations in the adversarial world: the contract holds for every seed and every fault, and wrong bytes that
// an unchecked world would return are found.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/adversary/adversarial_world.hpp"
#include "tests/listed_inputs.hpp"
#include "tests/storage_traffic.hpp"

namespace kvtwin::test {
namespace {

constexpr Tokens kPageTokens = 4;
constexpr std::uint64_t kSeeds = 300;

Input first_arrival() { return Input{0, Arrival{.request = 0, .prompt_tokens = 1, .output_tokens = 1, .keys = {}}}; }

AdversarialConfig config_of(std::uint64_t seed, bool faults) {
  AdversarialConfig config;
  config.seed = seed;
  config.page_tokens = kPageTokens;
  config.device_pages = config.host_pages = 24;
  config.disk.pages = 8;
  config.remote.pages = 8;
  config.faults = faults;
  config.tracks_slots = false;
  return config;
}

const std::vector<PageKey>& pages_of_a_document() {
  static const std::vector<PageKey> keys = chain({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  return keys;
}

// A policy controlled by the test: page i is in slot i of device and host memory, unless the test names other slots.
class Hand {
 public:
  explicit Hand(Substrate& substrate) : substrate_(substrate) {}

  OperationId compute(SlotId pages) {
    std::vector<SlotId> places = slots(0, pages);
    return pass(0, pages * kPageTokens, places, {});
  }
  OperationId attend(SlotId first_slot, SlotId pages, std::vector<OperationId> gates = {}) {
    std::vector<SlotId> places = slots(first_slot, pages);
    return pass(pages * kPageTokens, 0, places, gates);
  }
  OperationId storage(StorageVerb verb, std::size_t first, std::size_t count, SlotId slot = 0, Tier tier = Tier::disk,
                      Tier memory = Tier::device) {
    std::vector<StoragePage> pages;
    const bool moves = verb == StorageVerb::get || verb == StorageVerb::set;
    for (std::size_t i = 0; i < count; ++i) {
      pages.push_back({pages_of_a_document()[first + i], moves ? slot + static_cast<SlotId>(i) : kNoSlot});
    }
    StorageOperation operation;
    operation.work = {.verb = verb, .tier = tier, .memory = memory, .pages = count, .page_bytes = 100, .ranks = 2};
    operation.pages = pages;
    return substrate_.submit(operation);
  }
  void cancel(OperationId id) { substrate_.cancel(id); }

 private:
  OperationId pass(Tokens context, Tokens fresh, const std::vector<SlotId>& places,
                   const std::vector<OperationId>& gates) {
    const std::vector<PageKey> keys(pages_of_a_document().begin(),
                                    pages_of_a_document().begin() + static_cast<std::ptrdiff_t>(places.size()));
    const SequenceWork work{0, context, fresh, places, keys};
    ForwardOperation operation;
    operation.sequences = std::span(&work, 1);
    operation.gates = gates;
    return substrate_.submit(operation);
  }
  Substrate& substrate_;
};

// Calls step(n) with the completions so far, whenever everything that it submitted has ended.
struct Story final : InputHandler {
  using Step = std::function<std::vector<OperationId>(Hand&, int, const std::map<OperationId, Completion>&)>;
  Story(Substrate& substrate, Step tells) : hand(substrate), step(std::move(tells)) {}
  void handle(const Input& input) override {
    if (const auto* completion = std::get_if<Completion>(&input.what)) {
      EXPECT_TRUE(awaited.erase(completion->id) == 1) << "each is answered once";
      seen[completion->id] = *completion;
      order.push_back(completion->id);
    }
    if (!awaited.empty()) return;
    for (const OperationId id : step(hand, at, seen)) awaited.insert(id);
    ++at;
  }
  Hand hand;
  Step step;
  int at = 0;
  std::set<OperationId> awaited;
  std::map<OperationId, Completion> seen;
  std::vector<OperationId> order;
};

struct Told {
  std::map<OperationId, Completion> seen;
  std::vector<OperationId> order;
  std::uint64_t violations = 0;
  const Completion& of(std::uint64_t id) const { return seen.at(OperationId{id}); }
};
Told tell(const AdversarialConfig& config, const Story::Step& step) {
  const auto world = make_adversarial_world(config);
  Story story(world->substrate(), step);
  ListedInputs source({first_arrival()});
  world->run(source, story);
  EXPECT_TRUE(story.awaited.empty()) << "everything is answered";
  return {story.seen, story.order, world->violation_count()};
}

using Seen = std::map<OperationId, Completion>;
using Ids = std::vector<OperationId>;

TEST(AdversarialStorage, StoresAndGivesBack) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto told = tell(config_of(seed, false), [](Hand& hand, int n, const Seen&) -> Ids {
      switch (n) {
        case 0: return {hand.compute(4)};
        case 1: return {hand.storage(StorageVerb::set, 0, 4)};
        case 2: return {hand.storage(StorageVerb::look_up, 0, 6), hand.storage(StorageVerb::look_up, 1, 3)};
        case 3: return {hand.storage(StorageVerb::get, 0, 6, 10)};
        case 4: return {hand.attend(10, 4)};
        case 5: return {hand.storage(StorageVerb::remove, 1, 2)};
        case 6: return {hand.storage(StorageVerb::look_up, 0, 4), hand.storage(StorageVerb::look_up, 3, 1)};
        default: return {};
      }
    });
    EXPECT_EQ(told.violations, 0U);
    EXPECT_EQ(told.of(2).status, Status::done);
    EXPECT_EQ(told.of(2).pages, 4U);
    EXPECT_EQ(told.of(2).bytes, 800U);
    EXPECT_EQ(told.of(3).pages, 4U);
    EXPECT_EQ(told.of(3).status, Status::done) << "a miss is no failure";
    EXPECT_EQ(told.of(4).pages, 3U);
    EXPECT_EQ(told.of(5).status, Status::failed);
    EXPECT_EQ(told.of(5).cause, Cause::missing);
    EXPECT_EQ(told.of(5).pages, 4U);
    EXPECT_EQ(told.of(7).status, Status::done);
    EXPECT_EQ(told.of(8).pages, 1U);
    EXPECT_EQ(told.of(9).pages, 1U);
  }
}

TEST(AdversarialStorage, ADiskRefusesAndARemotePoolMakesRoom) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const Tier tier : {Tier::disk, Tier::remote}) {
      const auto told = tell(config_of(seed, false), [tier](Hand& hand, int n, const Seen&) -> Ids {
        if (n == 0) return {hand.compute(12)};
        if (n == 1) return {hand.storage(StorageVerb::set, 0, 12, 0, tier)};
        if (n == 2) return {hand.storage(StorageVerb::look_up, 0, 8, 0, tier)};
        return {};
      });
      const bool disk = tier == Tier::disk;
      EXPECT_EQ(told.of(2).pages, disk ? 8U : 12U);
      EXPECT_EQ(told.of(2).cause, disk ? Cause::full : Cause::none);
      EXPECT_EQ(told.of(3).pages, disk ? 8U : 0U) << "the first four made room for the last";
    }
  }
}

TEST(AdversarialStorage, SetsAndRemovesOfAPageTakeEffectInTheirOrder) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto told = tell(config_of(seed, false), [](Hand& hand, int n, const Seen&) -> Ids {
      if (n == 0) return {hand.compute(4)};
      if (n == 1) {
        return {hand.storage(StorageVerb::set, 0, 4), hand.storage(StorageVerb::remove, 1, 3),
                hand.storage(StorageVerb::set, 2, 1, 2)};
      }
      return n == 2 ? Ids{hand.storage(StorageVerb::look_up, 0, 4), hand.storage(StorageVerb::look_up, 2, 2)} : Ids{};
    });
    EXPECT_EQ(told.of(5).pages, 1U);
    EXPECT_EQ(told.of(6).pages, 1U);
    EXPECT_EQ(told.violations, 0U);
  }
}

TEST(AdversarialStorage, OneVerbOfOneTierEndsInOrder) {
  int overtaken = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto told = tell(config_of(seed, true), [](Hand& hand, int n, const Seen&) -> Ids {
      if (n == 0) return {hand.compute(8)};
      if (n > 1) return {};
      Ids ids;
      for (SlotId i = 0; i < 8; ++i) {
        ids.push_back(i % 2 == 0 ? hand.storage(StorageVerb::set, i, 1, i)
                                 : hand.storage(StorageVerb::get, i, 1, 12 + i, Tier::disk, Tier::host));
      }
      hand.cancel(ids[4]);
      return ids;
    });
    for (const std::uint64_t verb : {0U, 1U}) {
      OperationId last = OperationId::none;
      for (const OperationId id : told.order) {
        if (static_cast<std::uint64_t>(id) < 2 || static_cast<std::uint64_t>(id) % 2 != verb) continue;
        EXPECT_GT(id, last);
        last = id;
      }
    }
    overtaken += !std::ranges::is_sorted(told.order);
  }
  EXPECT_GT(overtaken, 50) << "a get and a set know no order";
}

TEST(AdversarialStorage, ACancelledOneCountsWhatIsWhole) {
  std::map<Pages, int> moved;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto told = tell(config_of(seed, false), [](Hand& hand, int n, const Seen& seen) -> Ids {
      if (n == 0) return {hand.compute(6)};
      if (n == 1) return {hand.storage(StorageVerb::set, 0, 6)};
      if (n == 2) {
        const OperationId id = hand.storage(StorageVerb::get, 0, 6, 10);
        hand.cancel(id);
        return {id};
      }
      const auto pages = static_cast<SlotId>(seen.at(OperationId{3}).pages);
      return n == 3 && pages > 0 ? Ids{hand.attend(10, pages)} : Ids{};
    });
    const Completion& get = told.of(3);
    EXPECT_EQ(get.status, get.pages == 6 ? Status::done : Status::cancelled);
    EXPECT_EQ(get.bytes, get.pages * 200);
    EXPECT_EQ(told.violations, 0U);
    ++moved[get.pages];
  }
  EXPECT_EQ(moved.size(), 7U);
}

TEST(AdversarialStorage, AGetIntoL1GatesPasses) {
  int gate_failures = 0, stalls = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto told = tell(config_of(seed, false), [seed](Hand& hand, int n, const Seen&) -> Ids {
      if (n == 0) return {hand.compute(4)};
      if (n == 1) return {hand.storage(StorageVerb::set, 0, seed % 2 == 0 ? 4 : 3)};
      if (n > 2) return {};
      const OperationId get = hand.storage(StorageVerb::get, 0, 4, 10);
      return {get, hand.attend(10, 4, {get})};
    });
    EXPECT_EQ(told.violations, 0U);
    EXPECT_EQ(told.of(4).status, seed % 2 == 0 ? Status::done : Status::gate_failed);
    if (told.of(4).status == Status::done) {
      EXPECT_EQ(told.order[2], OperationId{3}) << "answered after its gate";
    }
    gate_failures += told.of(4).status == Status::gate_failed;
    stalls += told.of(4).stalled_ns > 0;
  }
  EXPECT_GT(gate_failures, 100);
  EXPECT_GT(stalls, 100);
}

TEST(AdversarialStorage, SeesASourceThatChangesUnderASet) {
  int blamed = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto told = tell(config_of(seed, false), [](Hand& hand, int n, const Seen&) -> Ids {
      if (n == 0) return {hand.compute(4)};
      if (n > 1) return {};
      return {hand.storage(StorageVerb::set, 0, 4), hand.storage(StorageVerb::get, 8, 2, 1)};
    });
    blamed += told.violations > 0;
  }
  EXPECT_GT(blamed, 200);
}

TEST(AdversarialStorage, SeesAGetThatIsNotAwaited) {
  int blamed = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto told = tell(config_of(seed, false), [](Hand& hand, int n, const Seen&) -> Ids {
      if (n == 0) return {hand.compute(4)};
      if (n == 1) return {hand.storage(StorageVerb::set, 0, 4)};
      if (n > 2) return {};
      return {hand.storage(StorageVerb::get, 0, 4, 10), hand.attend(10, 4)};
    });
    blamed += told.violations > 0;
  }
  EXPECT_GT(blamed, 200);
}

// ---- traffic -------------------------------------------------------------------------------------------------

using Marks = std::map<std::string, std::uint64_t>;

std::uint64_t run_traffic(const AdversarialConfig& config, Marks& marks) {
  const auto world = make_adversarial_world(config);
  StorageTraffic traffic(world->substrate(), {.seed = config.seed});
  ListedInputs source({first_arrival()});
  world->run(source, traffic);
  EXPECT_TRUE(traffic.idle());
  for (const auto& [name, count] : world->coverage()) marks[std::string(name)] += count;
  if (config.verifies_storage && world->violation_count() > 0) {
    ADD_FAILURE() << "seed " << config.seed << ": " << world->violations().front();
  }
  return world->violation_count();
}

TEST(AdversarialStorage, NoFaultEverPutsWrongBytesIntoACountedSlot) {
  Marks marks;
  for (std::uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
    AdversarialConfig config = config_of(seed, true);
    config.disk.pages = config.remote.pages = 6;  // full after a few pages, so that the traffic also removes pages
    run_traffic(config, marks);
  }
  // The traffic cuts no bursts, sets no timers and starts no reductions.
  for (const char* mark : {"burst_done", "burst_cut", "timer_cancelled", "reduction_delayed", "slot_poisoned"}) {
    marks.erase(mark);
  }
  for (const auto& [mark, count] : marks) EXPECT_GT(count, 0U) << mark << " never happened";
}

TEST(AdversarialStorage, WithoutFaultsNothingFails) {
  Marks marks;
  for (std::uint64_t seed = 0; seed < 100; ++seed) run_traffic(config_of(seed, false), marks);
  for (const char* mark : {"write_error", "torn_write", "misdirected_write", "lost_write", "flipped_payload",
                           "flipped_header", "flipped_key", "no_room", "read_error", "short_read", "misdirected_read",
                           "device_slow", "node_dead", "node_back_empty", "page_quarantined"}) {
    ASSERT_TRUE(marks.contains(mark));
    EXPECT_EQ(marks[mark], 0U) << mark;
  }
}

TEST(AdversarialStorage, WithoutChecksWrongBytesWouldBeServed) {
  int blamed = 0;
  Marks marks;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    AdversarialConfig config = config_of(seed, true);
    config.verifies_storage = false;
    blamed += run_traffic(config, marks) > 0;
  }
  EXPECT_EQ(marks["page_quarantined"], 0U);
  EXPECT_GT(blamed, 50);
}

TEST(AdversarialStorage, AWorldWithoutStoresListsNoStorage) {
  AdversarialConfig config = config_of(1, true);
  config.disk.pages = config.remote.pages = 0;
  for (const auto& [name, count] : make_adversarial_world(config)->coverage()) EXPECT_NE(name, "get_done");
}

TEST(AdversarialStorage, EqualSeedsGiveEqualRuns) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Marks first, again;
    run_traffic(config_of(seed, true), first);
    run_traffic(config_of(seed, true), again);
    EXPECT_EQ(first, again);
  }
}

}  // namespace
}  // namespace kvtwin::test

// The adversarial world finds wrong bytes, whatever caused them, and reports no correct policy. Each test acts as the
// policy, for many seeds: the careful policy is never reported, the careless one is reported for most seeds.
#include "tests/adversary/adversarial_world.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/adversary/page_arena.hpp"
#include "world_script.hpp"

namespace kvtwin::test {
namespace {

constexpr Tokens kPageTokens = 4;
constexpr std::uint64_t kSeeds = 200;

PageKey key(std::uint64_t i) {
  PageKey result;
  for (std::uint64_t& word : result.words) word = i = mix(i + 1);
  return result;
}

// A policy controlled by the test: page i of a sequence has key(i), and the test chooses the slots.
class Hand {
 public:
  explicit Hand(AdversarialWorld& world) : world_(world), substrate_(world.substrate()) {}

  void allocate(Tier tier, std::vector<SlotId> slots) { tell(EventKind::slots_allocated, tier, slots); }
  void release(Tier tier, std::vector<SlotId> slots) { tell(EventKind::slots_released, tier, slots); }

  // Moves the pages first to first + from.size() - 1.
  OperationId move(Lane lane, std::uint64_t first, std::vector<SlotId> from, std::vector<SlotId> to) {
    std::vector<PageMove> moves;
    for (std::size_t i = 0; i < from.size(); ++i) moves.push_back({key(first + i), from[i], to[i]});
    TransferOperation operation;
    operation.lane = lane;
    operation.plan.pages = moves.size();
    operation.plan.bytes = 1000 * moves.size();
    operation.pages = moves;
    return substrate_.submit(operation);
  }

  OperationId compute(Tokens context, Tokens fresh, std::vector<SlotId> slots, std::uint64_t steps = 1,
                      std::vector<OperationId> gates = {}) {
    std::vector<PageKey> keys;
    for (std::size_t i = 0; i < slots.size(); ++i) keys.push_back(key(i));
    const SequenceWork work{0, context, fresh, slots, keys};
    ForwardOperation operation;
    operation.steps = steps;
    operation.sequences = std::span(&work, 1);
    operation.gates = gates;
    return substrate_.submit(operation);
  }

  Substrate& substrate() { return substrate_; }

 private:
  void tell(EventKind kind, Tier tier, const std::vector<SlotId>& slots) {
    Event event;
    event.kind = kind;
    event.tier = tier;
    event.slots = slots;
    world_.on_event(event);
  }
  AdversarialWorld& world_;
  Substrate& substrate_;
};

// Calls step(n, completion of step n - 1's last operation) for n = 0, 1, ... as long as it names an operation.
class Sequencer final : public InputHandler {
 public:
  using Step = std::function<OperationId(Hand&, int, const Completion&)>;
  Sequencer(AdversarialWorld& world, Step step) : hand_(world), step_(std::move(step)) {}
  void handle(const Input& input) override {
    if (std::holds_alternative<Arrival>(input.what)) {
      awaited_ = step_(hand_, 0, Completion{});
    } else if (const auto* c = std::get_if<Completion>(&input.what)) {
      if (c->id == awaited_) awaited_ = step_(hand_, ++at_, *c);
    }
  }

 private:
  Hand hand_;
  Step step_;
  OperationId awaited_ = OperationId::none;
  int at_ = 0;
};

// Returns the number of seeds for which an error was found.
std::uint64_t blamed(const Sequencer::Step& step, bool faults = false, std::string* sentence = nullptr) {
  std::uint64_t seeds = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    AdversarialConfig config;
    config.seed = seed;
    config.page_tokens = kPageTokens;
    config.device_pages = 8;
    config.host_pages = 8;
    config.faults = faults;
    const auto world = make_adversarial_world(config);
    ListedInputs source({arrival(0, 0)});
    Sequencer handler(*world, step);
    world->run(source, handler);
    if (world->violation_count() > 0) ++seeds;
    if (sentence != nullptr && world->violation_count() > 0) *sentence = world->violations().front();
  }
  return seeds;
}

TEST(AdversarialWorld, ACarefulPolicyIsNeverBlamed) {
  const auto careful = [](Hand& hand, int step, const Completion&) {
    switch (step) {
      case 0: hand.allocate(Tier::device, {0, 1, 2}); return hand.compute(0, 10, {0, 1, 2});
      case 1: return hand.compute(10, 2, {0, 1, 2}, 2);
      case 2: hand.allocate(Tier::host, {5, 6, 7}); return hand.move(Lane::d2h, 0, {0, 1, 2}, {5, 6, 7});
      case 3: {
        hand.release(Tier::device, {0, 1, 2});
        hand.allocate(Tier::device, {3, 0, 1, 2});
        const OperationId gate = hand.move(Lane::h2d, 0, {5, 6, 7}, {3, 0, 1});
        return hand.compute(12, 4, {3, 0, 1, 2}, 1, {gate});
      }
      default: return OperationId::none;
    }
  };
  EXPECT_EQ(blamed(careful), 0u);
}

TEST(AdversarialWorld, SeesAContextThatWasNeverComputed) {
  std::string sentence;
  const auto careless = [](Hand& hand, int step, const Completion&) {
    if (step > 0) return OperationId::none;
    hand.allocate(Tier::device, {0, 1});
    return hand.compute(4, 2, {0, 1});
  };
  EXPECT_EQ(blamed(careless, false, &sentence), kSeeds);
  EXPECT_NE(sentence.find("operation 1 on lane compute"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("in slot 0"), std::string::npos) << sentence;
}

TEST(AdversarialWorld, SeesAReleasedSlotInUse) {
  const auto careless = [](Hand& hand, int step, const Completion&) {
    if (step == 0) hand.allocate(Tier::device, {0});
    if (step == 0) return hand.compute(0, 4, {0});
    if (step > 1) return OperationId::none;
    hand.release(Tier::device, {0});
    return hand.compute(4, 0, {0});
  };
  EXPECT_EQ(blamed(careless), kSeeds);
}

TEST(AdversarialWorld, SeesAPassThatDoesNotWaitForItsLoad) {
  const auto careless = [](Hand& hand, int step, const Completion&) {
    if (step == 0) hand.allocate(Tier::device, {0});
    if (step == 0) return hand.compute(0, 4, {0});
    hand.allocate(Tier::host, {0});
    if (step == 1) return hand.move(Lane::d2h, 0, {0}, {0});
    if (step > 2) return OperationId::none;
    hand.allocate(Tier::device, {1});
    hand.move(Lane::h2d, 0, {0}, {1});
    return hand.compute(4, 0, {1});
  };
  EXPECT_GT(blamed(careless), kSeeds / 3);
}

TEST(AdversarialWorld, SeesASourceReleasedUnderABackup) {
  const auto careless = [](Hand& hand, int step, const Completion&) {
    if (step == 0) hand.allocate(Tier::device, {0});
    if (step == 0) return hand.compute(0, 4, {0});
    if (step > 1) return OperationId::none;
    hand.allocate(Tier::host, {0});
    const OperationId backup = hand.move(Lane::d2h, 0, {0}, {0});
    hand.release(Tier::device, {0});
    return backup;
  };
  EXPECT_EQ(blamed(careless), kSeeds);
}

TEST(AdversarialWorld, SeesAContextOverwrittenByALoad) {
  const auto careless = [](Hand& hand, int step, const Completion&) {
    if (step == 0) hand.allocate(Tier::device, {0, 1});
    if (step == 0) hand.allocate(Tier::host, {0, 1});
    if (step == 0) return hand.compute(0, 8, {0, 1});
    if (step == 1) return hand.move(Lane::d2h, 0, {0, 1}, {0, 1});
    if (step > 2) return OperationId::none;
    const OperationId pass = hand.compute(8, 0, {0, 1});
    hand.move(Lane::h2d, 1, {1}, {0});  // page 1 into page 0's slot, while the pass runs
    return pass;
  };
  EXPECT_GT(blamed(careless), kSeeds / 3);
}

TEST(AdversarialWorld, SeesTokensThatACutBurstNeverWrote) {
  // The careless policy assumes that all eight steps were done.
  const auto careless = [](Hand& hand, int step, const Completion&) {
    if (step == 0) hand.allocate(Tier::device, {0, 1});
    if (step == 0) {
      const OperationId burst = hand.compute(0, 8, {0, 1}, 8);
      hand.substrate().cancel(burst);
      return burst;
    }
    return step == 1 ? hand.compute(8, 0, {0, 1}) : OperationId::none;
  };
  // The careful policy uses the number of steps in the completion.
  const auto careful = [](Hand& hand, int step, const Completion& burst) {
    if (step == 0) hand.allocate(Tier::device, {0, 1, 2});
    if (step == 0) {
      const OperationId id = hand.compute(0, 8, {0, 1}, 8);
      hand.substrate().cancel(id);
      return id;
    }
    return step == 1 ? hand.compute(burst.steps, 1, {0, 1, 2}) : OperationId::none;
  };
  EXPECT_GT(blamed(careless), kSeeds / 3);
  EXPECT_EQ(blamed(careful), 0u);
}

// The careless policy treats a failed backup as successful.
TEST(AdversarialWorld, SeesAFailedTransferBelieved) {
  for (const bool careful : {false, true}) {
    const auto step = [careful](Hand& hand, int n, const Completion& last) {
      if (n == 0) hand.allocate(Tier::device, {0, 1});
      if (n == 0) hand.allocate(Tier::host, {0});
      if (n == 0) return hand.compute(0, 4, {0});
      if (n == 1) return hand.move(Lane::d2h, 0, {0}, {0});
      if (careful && last.status != Status::done) return OperationId::none;
      if (n == 2) return hand.move(Lane::h2d, 0, {0}, {1});
      return n == 3 ? hand.compute(4, 0, {1}) : OperationId::none;
    };
    const std::uint64_t seeds = blamed(step, true);
    if (careful) {
      EXPECT_EQ(seeds, 0u);
    } else {
      EXPECT_GT(seeds, kSeeds / 20);
    }
  }
}

TEST(AdversarialWorld, CancelledTransfersReportWhatIsWhole) {
  std::map<Pages, int> moved;
  const auto step = [&moved](Hand& hand, int n, const Completion& last) {
    if (n == 0) hand.allocate(Tier::device, {0, 1, 2});
    if (n == 0) hand.allocate(Tier::host, {0, 1, 2});
    if (n == 0) return hand.compute(0, 12, {0, 1, 2});
    if (n == 1) {
      const OperationId backup = hand.move(Lane::d2h, 0, {0, 1, 2}, {0, 1, 2});
      hand.substrate().cancel(backup);
      return backup;
    }
    if (n > 2) return OperationId::none;
    EXPECT_EQ(last.bytes % 1000, 0u);
    const Pages whole = last.bytes / 1000;
    ++moved[whole];
    std::vector<SlotId> slots{0, 1, 2};
    slots.resize(whole);
    return whole == 0 ? OperationId::none : hand.move(Lane::h2d, 0, slots, slots);
  };
  EXPECT_EQ(blamed(step), 0u);
  EXPECT_EQ(moved.size(), 4u);  // 0, 1, 2 and 3 pages all happened
}

TEST(AdversarialWorld, EqualSeedsGiveEqualRuns) {
  const auto run = [](std::uint64_t seed) {
    AdversarialConfig config;
    config.seed = seed;
    config.device_pages = config.host_pages = 8;
    config.tracks_slots = false;
    const auto world = make_adversarial_world(config);
    return run_world(*world, {arrival(0, 0), arrival(1000, 1)}, [n = 0](Substrate& s, const Input& input) mutable {
      if (++n > 200) return;
      s.reduce_min(ReduceVector{n});
      const OperationId id = s.call_at(input.now + n % 7);
      if (n % 3 == 0) s.cancel(id);
      if (n % 5 == 0) s.submit(transfer(n % 2 == 0 ? Lane::h2d : Lane::d2h, 100, 0));
    });
  };
  for (std::uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(run(seed), run(seed));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace kvtwin::test

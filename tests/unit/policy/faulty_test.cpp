// What Faulty does to storage operations, one kind of fault at a time, above a world that the test controls. The
// contract checks each result.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "policy/seam/decorators.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {
namespace {

// A world that records the operations. The test gives the answers.
class HandWorld final : public Substrate {
 public:
  TimeNs now() const override { return time; }
  OperationId submit(const Operation& operation) override {
    const OperationId id{++last};
    if (const auto* pass = std::get_if<ForwardOperation>(&operation)) {
      gates[id].assign(pass->gates.begin(), pass->gates.end());
    }
    return id;
  }
  OperationId call_at(TimeNs at) override {
    timers.emplace(at, OperationId{++last});
    return OperationId{last};
  }
  OperationId reduce_min(const ReduceVector&) override { return OperationId{++last}; }
  void cancel(OperationId id) override { cancelled.push_back(id); }

  TimeNs time = 0;
  std::uint64_t last = 0;
  std::multimap<TimeNs, OperationId> timers;
  std::map<OperationId, std::vector<OperationId>> gates;
  std::vector<OperationId> cancelled;
};

struct Listener final : InputHandler {
  void handle(const Input& input) override {
    if (const auto* completion = std::get_if<Completion>(&input.what)) told.push_back(*completion);
    if (const auto* timer = std::get_if<TimerFired>(&input.what)) fired.push_back(timer->id);
    if (const auto* reduction = std::get_if<Reduction>(&input.what)) reduced.push_back(reduction->id);
  }
  std::vector<Completion> told;
  std::vector<OperationId> fired, reduced;
};

const std::vector<PageKey>& keys() {
  static const std::vector<PageKey> made = chain({1, 2, 3, 4});
  return made;
}

// A storage operation on four pages of one chain.
struct OwnedStorage {
  explicit OwnedStorage(StorageVerb verb, Tier tier = Tier::disk, Tier memory = Tier::host) {
    const bool moves = verb == StorageVerb::get || verb == StorageVerb::set;
    for (SlotId i = 0; i < 4; ++i) pages.push_back({keys()[i], moves ? i : kNoSlot});
    operation.work.verb = verb;
    operation.work.tier = tier;
    operation.work.memory = memory;
    operation.work.pages = 4;
    operation.work.page_bytes = 10;
    operation.pages = pages;
  }
  OwnedStorage(const OwnedStorage&) = delete;
  OwnedStorage& operator=(const OwnedStorage&) = delete;
  std::vector<StoragePage> pages;
  StorageOperation operation;
};

class Rig {
 public:
  explicit Rig(const FaultShares& shares, std::uint64_t seed = 1) : faulty(world, shares, seed << 32) {
    faulty.connect(listener);
  }
  OperationId submit(StorageVerb verb, Tier tier = Tier::disk, Tier memory = Tier::host) {
    return faulty.submit(OwnedStorage(verb, tier, memory).operation);
  }
  OperationId pass(std::vector<OperationId> gates) {
    ForwardOperation operation;
    operation.gates = gates;
    return faulty.submit(operation);
  }
  OperationId last() const { return OperationId{world.last}; }  // the world's id of the last operation
  // The world reports success for the operation.
  void done(OperationId theirs, Pages pages = 4, std::uint64_t steps = 0) {
    faulty.handle({world.time, Completion{.id = theirs, .bytes = 10 * pages, .steps = steps, .pages = pages}});
  }
  Completion through(StorageVerb verb, Tier tier = Tier::disk, Tier memory = Tier::host) {
    submit(verb, tier, memory);
    done(last());
    return listener.told.back();
  }
  void fire_all() {
    while (!world.timers.empty()) fire();
  }
  void fire() {
    const auto [at, id] = *world.timers.begin();
    world.timers.erase(world.timers.begin());
    world.time = std::max(world.time, at);
    faulty.handle({world.time, TimerFired{id}});
  }

  HandWorld world;
  Listener listener;
  Faulty faulty;
};

using enum StorageVerb;

struct EndCase {
  std::uint32_t FaultShares::*share;
  std::uint64_t FaultCounts::*count;
  StorageVerb verb;
  Cause cause;
};

TEST(FaultyStorage, ends_gets_and_sets_early) {
  const std::vector<EndCase> cases = {
      {&FaultShares::read_errors, &FaultCounts::read_errors, get, Cause::io_error},
      {&FaultShares::short_reads, &FaultCounts::short_reads, get, Cause::io_error},
      {&FaultShares::corrupt_pages, &FaultCounts::corrupt_pages, get, Cause::corrupt},
      {&FaultShares::write_errors, &FaultCounts::write_errors, set, Cause::io_error},
      {&FaultShares::full, &FaultCounts::full, set, Cause::full},
  };
  for (const EndCase& c : cases) {
    std::vector<int> ends(4);
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      FaultShares shares;
      shares.*c.share = 1024;
      Rig rig(shares, seed);
      const Completion told = rig.through(c.verb);
      ASSERT_LT(told.pages, 4U);
      ++ends[told.pages];
      EXPECT_EQ(told.status, Status::failed);
      EXPECT_EQ(told.cause, c.cause);
      EXPECT_EQ(told.bytes, 10 * told.pages);
      EXPECT_EQ(rig.faulty.counts().*c.count, 1U);
      for (const StorageVerb other : {look_up, remove, c.verb == get ? set : get}) {
        EXPECT_EQ(rig.through(other).pages, 4U) << "not its verb";
      }
    }
    EXPECT_EQ(std::ranges::count(ends, 0), c.cause == Cause::full ? 3 : 0);
  }
}

TEST(FaultyStorage, leaves_alone_what_the_world_failed_earlier) {
  Rig rig({.read_errors = 1024});
  rig.submit(get);
  rig.faulty.handle(
      {0, Completion{.id = rig.last(), .status = Status::failed, .pages = 0, .cause = Cause::unreachable}});
  EXPECT_EQ(rig.listener.told.back().cause, Cause::unreachable);
  EXPECT_EQ(rig.faulty.counts().read_errors, 0U);
}

TEST(FaultyStorage, loses_what_it_said_was_stored) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Rig rig({.lost_writes = 512}, seed);
    std::uint64_t sets = 0;
    while (rig.faulty.counts().lost_writes == 0) {
      EXPECT_EQ(rig.through(get).pages, 4U) << "nothing is lost yet";
      const Completion told = rig.through(set);
      EXPECT_EQ(told.status, Status::done);
      ASSERT_LT(++sets, 100U);
    }
    const Completion look = rig.through(look_up), got = rig.through(get);
    EXPECT_EQ(look.status, Status::done);
    EXPECT_EQ(look.cause, Cause::missing);
    EXPECT_LT(look.pages, 4U);
    EXPECT_EQ(got.status, Status::failed);
    EXPECT_EQ(got.cause, Cause::missing);
    EXPECT_EQ(got.pages, look.pages);
    EXPECT_EQ(rig.faulty.counts().lost_found, 2U);
    EXPECT_EQ(rig.through(get, Tier::remote).pages, 4U) << "another tier";
    while (rig.faulty.counts().lost_writes == sets) rig.through(set);
  }
}

TEST(FaultyStorage, finds_again_what_is_stored_again) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Rig rig({.lost_writes = 300}, seed);
    for (int i = 0; i < 30; ++i) {
      const std::uint64_t lost = rig.faulty.counts().lost_writes;
      rig.through(set);
      EXPECT_EQ(rig.through(get).pages == 4, rig.faulty.counts().lost_writes == lost);
    }
  }
}

TEST(FaultyStorage, takes_the_link_down_for_a_while_and_a_node_for_good) {
  Rig link({.link_down = 100});
  std::uint64_t down = 0, ups_after_down = 0;
  bool was_down = false;
  for (int i = 0; i < 400; ++i) {
    const Completion told = link.through(i % 2 == 0 ? get : look_up, Tier::remote);
    const bool is_down = told.cause == Cause::unreachable;
    if (is_down) {
      EXPECT_EQ(told.status, Status::failed);
      EXPECT_EQ(told.pages, 0U);
      EXPECT_EQ(told.bytes, 0U);
    }
    down += is_down;
    ups_after_down += was_down && !is_down;
    was_down = is_down;
    EXPECT_EQ(link.through(set).pages, 4U) << "the disk has no link";
  }
  EXPECT_EQ(link.faulty.counts().link_down, down);
  EXPECT_GT(ups_after_down, 5U);
  EXPECT_GT(down, 3 * ups_after_down);

  Rig node({.dead_node = 100});
  std::vector<bool> dead;
  for (int i = 0; i < 200; ++i) dead.push_back(node.through(set, Tier::remote).cause == Cause::unreachable);
  EXPECT_TRUE(std::ranges::is_sorted(dead));
  EXPECT_FALSE(dead.front());
  EXPECT_TRUE(dead.back());
  EXPECT_EQ(node.through(get).pages, 4U);
}

TEST(FaultyStorage, slows_down_in_order) {
  Rig rig({.slow = 1024});
  const OperationId first = rig.submit(get), first_below = rig.last();
  const OperationId second = rig.submit(get), second_below = rig.last();
  const OperationId other = rig.submit(set), other_below = rig.last();
  rig.world.time = 1000;
  rig.done(first_below);
  EXPECT_TRUE(rig.listener.told.empty());
  ASSERT_EQ(rig.world.timers.size(), 1U);
  const TimeNs until = rig.world.timers.begin()->first;
  EXPECT_GE(until, 2000);
  EXPECT_LE(until, 100'000);
  rig.world.time = 1001;
  rig.done(second_below);
  rig.done(other_below);
  rig.fire_all();
  ASSERT_EQ(rig.listener.told.size(), 3U);
  const auto at = [&](OperationId id) {
    return std::ranges::find(rig.listener.told, id, &Completion::id) - rig.listener.told.begin();
  };
  EXPECT_LT(at(first), at(second));
  EXPECT_LT(at(other), 3);
  EXPECT_TRUE(rig.listener.fired.empty()) << "its timers are its own";
  EXPECT_EQ(rig.faulty.counts().slow, 3U);
}

TEST(FaultyStorage, holds_back_what_came_after_a_held_one) {
  bool waited = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rig rig({.slow = 512}, seed);
    rig.submit(get);
    const OperationId first = rig.last();
    rig.submit(get);
    const OperationId second = rig.last();
    rig.submit(look_up);
    const OperationId third = rig.last();
    rig.world.time = 1000;
    rig.done(first);
    const bool held = rig.listener.told.empty();
    rig.done(second);
    const std::size_t timers = rig.world.timers.size();
    EXPECT_EQ(rig.listener.told.size(), held ? 0U : timers == 0 ? 2U : 1U) << "one verb, one tier";
    waited |= held && timers == 1;
    rig.done(third);
    rig.fire_all();
    ASSERT_EQ(rig.listener.told.size(), 3U);
  }
  EXPECT_TRUE(waited) << "without a timer of its own";
}

TEST(FaultyStorage, counts_1_2_3_whatever_its_timers_are_called_below) {
  Rig rig({.late = 1024});
  EXPECT_EQ(rig.submit(get), OperationId{1});
  rig.done(rig.last());  // Faulty sets a timer, which has id 2 in the world
  const OperationId timer = rig.faulty.call_at(0);
  EXPECT_EQ(timer, OperationId{2});
  EXPECT_EQ(rig.last(), OperationId{3});
  EXPECT_EQ(rig.faulty.reduce_min({}), OperationId{3});
  const OperationId reduction_below = rig.last();
  const OperationId load = rig.submit(get, Tier::disk, Tier::device);
  EXPECT_EQ(load, OperationId{4});
  const OperationId load_below = rig.last();
  rig.pass({load});
  EXPECT_EQ(rig.world.gates.at(rig.last()), std::vector{load_below});
  rig.faulty.cancel(load);
  EXPECT_EQ(rig.world.cancelled, std::vector{load_below});
  rig.faulty.handle({rig.world.time, Reduction{reduction_below, {}}});
  EXPECT_EQ(rig.listener.reduced, std::vector{OperationId{3}});
  rig.fire_all();
  EXPECT_EQ(rig.listener.fired, std::vector{timer});
  EXPECT_EQ(rig.listener.told.at(0).id, OperationId{1});
  EXPECT_EQ(rig.faulty.counts().late, 1U);
  rig.faulty.cancel(OperationId{1});
  EXPECT_EQ(rig.world.cancelled.size(), 1U) << "answered";
}

TEST(FaultyStorage, tells_twice) {
  Rig rig({.duplicates = 1024});
  const OperationId id = rig.submit(get);
  rig.done(rig.last());
  EXPECT_EQ(rig.listener.told.size(), 1U);
  rig.fire_all();
  ASSERT_EQ(rig.listener.told.size(), 2U);
  for (const Completion& told : rig.listener.told) {
    EXPECT_EQ(told.id, id);
    EXPECT_EQ(told.pages, 4U);
  }
  EXPECT_EQ(rig.faulty.counts().duplicates, 1U);
}

TEST(FaultyStorage, cancels_what_is_in_flight) {
  Rig rig({.cancels = 1024});
  rig.submit(get);
  const OperationId below = rig.last();
  EXPECT_TRUE(rig.world.cancelled.empty()) << "when something happens";
  for (int i = 0; i < 100 && rig.world.cancelled.empty(); ++i) rig.faulty.handle({0, Hint{}});
  EXPECT_EQ(rig.world.cancelled, std::vector{below});
  EXPECT_EQ(rig.faulty.counts().cancels, 1U);
  for (int i = 0; i < 100; ++i) rig.faulty.handle({0, Hint{}});
  EXPECT_EQ(rig.world.cancelled.size(), 1U) << "once";
}

TEST(FaultyStorage, fails_the_passes_that_a_get_gates) {
  Rig rig({.read_errors = 1024});
  const OperationId load = rig.submit(get, Tier::disk, Tier::device), load_below = rig.last();
  const OperationId pass = rig.pass({load}), pass_below = rig.last();
  rig.done(load_below);
  rig.done(pass_below, 0, 1);
  EXPECT_EQ(rig.listener.told.at(0).status, Status::failed);
  EXPECT_EQ(rig.listener.told.at(1).id, pass);
  EXPECT_EQ(rig.listener.told.at(1).status, Status::gate_failed);
  EXPECT_EQ(rig.listener.told.at(1).steps, 0U);
  EXPECT_EQ(rig.faulty.counts().failed_gates, 1U);
}

TEST(FaultyStorage, keeps_a_pass_until_its_gates_are_told) {
  for (const bool lost : {false, true}) {
    Rig rig({.read_errors = lost ? 1024U : 0U, .late = 1024});
    const OperationId load = rig.submit(get, Tier::disk, Tier::device), load_below = rig.last();
    const OperationId before = rig.pass({load}), before_below = rig.last();
    rig.done(load_below);
    const OperationId after = rig.pass({load}), after_below = rig.last();
    rig.done(before_below, 0, 1);
    if (lost) {
      EXPECT_FALSE(rig.world.gates.contains(after_below)) << "the world would run it";
    } else {
      EXPECT_TRUE(rig.world.gates.at(after_below).empty()) << "the world has answered it";
      rig.done(after_below, 0, 1);
    }
    EXPECT_TRUE(rig.listener.told.empty());
    rig.fire_all();
    ASSERT_EQ(rig.listener.told.size(), 3U);
    EXPECT_EQ(rig.listener.told[0].id, load);
    EXPECT_EQ(rig.listener.told[1].id, before);
    EXPECT_EQ(rig.listener.told[2].id, after);
    for (const std::size_t i : {1U, 2U}) {
      EXPECT_EQ(rig.listener.told[i].status, lost ? Status::gate_failed : Status::done);
    }
  }
}

TEST(FaultyStorage, draws_the_same_from_the_same_seed) {
  const FaultShares shares{.read_errors = 200, .corrupt_pages = 200, .write_errors = 200, .link_down = 50, .slow = 100};
  const auto causes = [&](std::uint64_t seed) {
    Rig rig(shares, seed);
    std::vector<std::pair<Cause, Pages>> all;
    for (int i = 0; i < 50; ++i) {
      rig.submit(i % 2 == 0 ? get : set, i % 3 == 0 ? Tier::remote : Tier::disk);
      rig.done(rig.last());
      rig.fire_all();
      all.emplace_back(rig.listener.told.back().cause, rig.listener.told.back().pages);
    }
    return all;
  };
  EXPECT_EQ(causes(3), causes(3));
  EXPECT_NE(causes(3), causes(4));
}

// ---- the contract -----------------------------------------------------------------------------------------------

class StorageContract : public testing::Test {
 protected:
  OperationId submit(SeamContract& contract, StorageVerb verb, Tier tier = Tier::disk, Tier memory = Tier::host) {
    const OwnedStorage owned(verb, tier, memory);
    EXPECT_EQ(contract.judge(Operation(owned.operation)), nullptr);
    EXPECT_EQ(contract.submitted(owned.operation, OperationId{++last}, 0), nullptr);
    return OperationId{last};
  }
  static bool takes(SeamContract& contract, const Completion& completion) {
    return contract.take({0, completion}) == nullptr;
  }
  std::uint64_t last = 0;
};

TEST_F(StorageContract, ends_one_verb_of_one_tier_in_order) {
  SeamContract contract({.page_tokens = 4});
  const OperationId first = submit(contract, get), second = submit(contract, get);
  const OperationId direct = submit(contract, get, Tier::disk, Tier::device);
  const OperationId remote = submit(contract, get, Tier::remote);
  const OperationId stored = submit(contract, set), removed = submit(contract, remove);
  const OperationId seen = submit(contract, look_up);
  for (const OperationId id : {direct, remote, seen}) {
    EXPECT_TRUE(takes(contract, {.id = id, .pages = 4}));
  }
  EXPECT_FALSE(takes(contract, {.id = second, .pages = 4}));
  EXPECT_FALSE(takes(contract, {.id = removed, .pages = 4}));
  for (const OperationId id : {first, second, stored, removed}) {
    EXPECT_TRUE(takes(contract, {.id = id, .pages = 4}));
  }
  EXPECT_EQ(contract.outstanding(), 0U);
}

TEST_F(StorageContract, counts_pages_as_the_status_says) {
  SeamContract contract({.page_tokens = 4});
  const OperationId id = submit(contract, get);
  EXPECT_FALSE(takes(contract, {.id = id, .pages = 5}));
  EXPECT_FALSE(takes(contract, {.id = id, .pages = 3}));
  EXPECT_FALSE(takes(contract, {.id = id, .status = Status::failed, .pages = 4}));
  EXPECT_TRUE(takes(contract, {.id = id, .status = Status::failed, .pages = 3, .cause = Cause::missing}));
  EXPECT_TRUE(takes(contract, {.id = submit(contract, look_up), .pages = 3}));
}

TEST_F(StorageContract, takes_duplicates_and_unasked_cancels_by_the_terms_only) {
  for (const bool lenient : {false, true}) {
    last = 0;
    SeamContract contract({.page_tokens = 4, .cancels_unrequested = lenient, .duplicates = lenient});
    const OperationId id = submit(contract, get), other = submit(contract, get);
    EXPECT_TRUE(takes(contract, {.id = id, .pages = 4}));
    EXPECT_EQ(takes(contract, {.id = id, .pages = 4}), lenient);
    EXPECT_EQ(takes(contract, {.id = other, .status = Status::cancelled}), lenient);
    EXPECT_FALSE(takes(contract, {.id = OperationId{3}, .pages = 4})) << "never submitted";
    EXPECT_EQ(contract.timer_set(0, OperationId{3}), nullptr);
    EXPECT_EQ(contract.take({0, TimerFired{OperationId{3}}}), nullptr);
    EXPECT_NE(contract.take({0, TimerFired{OperationId{3}}}), nullptr) << "of storage operations only";
  }
}

}  // namespace
}  // namespace kvtwin::test

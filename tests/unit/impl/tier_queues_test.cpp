// The storage queues of a rank or of drives that are slowed down: each operation takes the given factor longer than its
// backend, and no operation delays the end of an aborted run. (tests/conformance tests the queues with every backend.)
#include "impl/storage/tier_queues.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "policy/index/page_key.hpp"
#include "tests/conformance/impl/memory_backend.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

enum Side : std::size_t { looking_up, reading, writing, kSides };

// A backend that measures the time spent in each of its threads.
class TimedBackend final : public StorageBackend {
 public:
  struct Times {
    std::array<TimeNs, kSides> took{};
    std::array<Gate, kSides> begun;
  };
  TimedBackend(PageMap& map, const RunClock& clock, Times& times)
      : whole_(map, kSmallForm, 100), clock_(clock), times_(times) {}

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override {
    times_.begun[looking_up].open();
    const TimeNs begin = clock_.now();
    const LookedUp found = whole_.look_up(space, keys);
    times_.took[looking_up] = clock_.now() - begin;
    return found;
  }
  void read(PageWork& work) override { one(work, reading); }
  void write(PageWork& work) override { one(work, writing); }
  void finish() override {}
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override { return {}; }

 private:
  // Measures the time from taking a page to reporting its end.
  class OnePage final : public PageWork {
   public:
    OnePage(PageWork& work, TimedBackend& owner, Side side)
        : PageWork(work.form(), work.seal()), work_(work), owner_(owner), side_(side) {}
    bool next(PageTask& task) override {
      if (!work_.next(task)) return false;
      begin_ = owner_.clock_.now();
      owner_.times_.begun[side_].open();
      return true;
    }
    void take_bare(const PageTask& task, std::span<std::byte> payload) override { work_.take_bare(task, payload); }
    Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override {
      return work_.give_bare(task, payload);
    }
    void end(const PageTask& task, Cause cause) override {
      owner_.times_.took[side_] += owner_.clock_.now() - begin_;
      work_.end(task, cause);
    }

   private:
    PageWork& work_;
    TimedBackend& owner_;
    const Side side_;
    TimeNs begin_ = 0;
  };
  void one(PageWork& work, Side side) {
    OnePage page(work, *this, side);
    side == reading ? whole_.read(page) : whole_.write(page);
  }

  MemoryBackend whole_;
  const RunClock& clock_;
  Times& times_;
};

struct SlowTier {
  explicit SlowTier(double factor, std::vector<SlowSpan> spans = {})
      : queues(Tier::disk, only_part(), true, factor, std::move(spans)) {
    queues.start(completions, clock, [](OperationId, bool) {});
  }
  std::vector<StorePart> only_part() {
    std::vector<StorePart> parts;
    parts.push_back({std::make_unique<TimedBackend>(map, clock, times), &memory});
    return parts;
  }
  void submit(StorageVerb verb, const std::vector<PageKey>& keys) {
    std::vector<StoragePage> pages;
    for (const PageKey& key : keys) {
      pages.push_back({key, memory.take()});
      memory.at(Tier::host, pages.back().slot) = page_bytes(kSmallForm, kSpace, key);
    }
    StorageOperation operation;
    operation.work = {verb, Tier::disk, Tier::host, keys.size(), kSmallForm.bytes()};
    operation.space = kSpace;
    operation.pages = pages;
    queues.submit(OperationId{++last}, operation);
  }
  Finished answer() {
    std::vector<Finished> finished;
    completions.wait(std::nullopt);
    completions.take(finished);
    EXPECT_EQ(finished.size(), 1U);
    return finished.at(0);
  }
  // A set, a get and a look-up, one after another, take at least `factor` times the time of their backend.
  void expect_slowed(double factor) {
    for (const auto& [verb, side] : {std::pair{StorageVerb::set, writing}, std::pair{StorageVerb::get, reading},
                                     std::pair{StorageVerb::look_up, looking_up}}) {
      times.took[side] = 0;
      submit(verb, keys_of(5));
      const Finished finished = answer();
      EXPECT_EQ(finished.completion.status, Status::done);
      EXPECT_EQ(finished.completion.pages, 5U);
      const auto least = static_cast<TimeNs>(static_cast<double>(times.took[side]) * factor);
      EXPECT_GE(finished.span.end - finished.span.begin, least - 5 * static_cast<TimeNs>(factor)) << "rounded down";
    }
  }

  RunClock clock;
  CompletionQueue completions;
  SlotMemory memory{kSmallForm};
  PageMap map;
  TimedBackend::Times times;
  std::uint64_t last = 0;
  TierQueues queues;  // the last member: its threads use all members above
};

TEST(TierQueues, ASlowOnesOperationsTakeLonger) {
  SlowTier tier(30);
  tier.expect_slowed(30);
  tier.queues.finish();
}

// Here nobody reads the clock between two operations, so it can be set. An operation of the third hour would take
// years.
TEST(TierQueues, SlowDrivesSlowWhatBeginsInTheirTime) {
  constexpr TimeNs kHour = 3600 * kNsPerSecond;
  constexpr double kYears = 1e18;
  SlowTier tier(2, {{5, {0, kHour}}, {3, {0, kHour}}, {kYears, {2 * kHour, 3 * kHour}}});
  const auto set_clock = [&](TimeNs time) { tier.clock.start_at(RunClock::since_boot() - time); };
  tier.expect_slowed(2 * 5 * 3);
  set_clock(kHour);
  tier.expect_slowed(2);
  set_clock(3 * kHour);
  tier.expect_slowed(2);
  tier.queues.finish();
}

// With this factor the operations would take years.
TEST(TierQueues, ASlowOneThatBreaksOffIsntWaitedFor) {
  for (const auto& [verb, side] : {std::pair{StorageVerb::set, writing}, std::pair{StorageVerb::get, reading},
                                   std::pair{StorageVerb::look_up, looking_up}}) {
    SlowTier tier(1e18);
    tier.submit(verb, keys_of(5));
    tier.times.begun[side].pass();
  }
}

// A page has a target's part of two objects and a draft's part of one, in a store of its own.
struct TwoParts {
  static constexpr PageForm kDraftForm{{1, 2, 1, 3, 4}, Layout::page_first};
  TwoParts() {
    queues.start(completions, clock, [](OperationId, bool) {});
  }
  std::vector<StorePart> parts() {
    std::vector<StorePart> list;
    list.push_back({std::make_unique<MemoryBackend>(target_map, object_form(kSmallForm, 2), 1000), &target, 2});
    list.push_back({std::make_unique<MemoryBackend>(draft_map, kDraftForm, 1000), &draft, 1, 2});
    return list;
  }
  // Returns the completion. Sets fill the slots of both memories; a get's right pages are in both.
  Completion run(StorageVerb verb, const std::vector<PageKey>& keys) {
    std::vector<StoragePage> pages;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const bool moves = verb == StorageVerb::get || verb == StorageVerb::set;
      pages.push_back({keys[i], moves ? static_cast<SlotId>(i) : kNoSlot});
      if (!moves) continue;
      const bool stores = verb == StorageVerb::set;
      target.at(Tier::host, pages.back().slot) =
          stores ? page_bytes(kSmallForm, kSpace, keys[i]) : std::vector<std::byte>();
      draft.at(Tier::host, pages.back().slot) =
          stores ? page_bytes(kDraftForm, kSpace, keys[i]) : std::vector<std::byte>();
    }
    StorageOperation operation;
    operation.work = {verb, Tier::disk, Tier::host, keys.size(), kSmallForm.bytes() + kDraftForm.bytes()};
    operation.space = kSpace;
    operation.pages = pages;
    queues.submit(OperationId{++last}, operation);
    std::vector<Finished> finished;
    completions.wait(std::nullopt);
    completions.take(finished);
    EXPECT_EQ(finished.size(), 1U);
    const Completion completion = finished.at(0).completion;
    if (verb == StorageVerb::get) {
      EXPECT_EQ(completion.bytes, completion.pages * (kSmallForm.bytes() + kDraftForm.bytes()));
      for (std::size_t i = 0; i < completion.pages; ++i) {
        const auto slot = static_cast<SlotId>(i);
        EXPECT_TRUE(target.at(Tier::host, slot) == page_bytes(kSmallForm, kSpace, keys[i]));
        EXPECT_TRUE(draft.at(Tier::host, slot) == page_bytes(kDraftForm, kSpace, keys[i]));
      }
    }
    return completion;
  }

  RunClock clock;
  CompletionQueue completions;
  SlotMemory target{kSmallForm}, draft{kDraftForm, true};
  PageMap target_map, draft_map;
  std::uint64_t last = 0;
  TierQueues queues{Tier::disk, parts()};  // the last member: its threads use all members above
};

TEST(TierQueues, APageIsThereIfBothModelsPartsAre) {
  const std::vector<PageKey> keys = keys_of(4);
  for (int lost = 0; lost < 3; ++lost) {
    SCOPED_TRACE(lost);
    TwoParts tier;
    EXPECT_EQ(tier.run(StorageVerb::look_up, keys).pages, 0U);
    EXPECT_EQ(tier.run(StorageVerb::set, keys).status, Status::done);
    EXPECT_EQ(tier.target_map.pages.size(), 8U);
    EXPECT_EQ(tier.draft_map.pages.size(), 4U);
    EXPECT_EQ(tier.run(StorageVerb::get, keys).pages, 4U);
    PageMap& map = lost == 2 ? tier.draft_map : tier.target_map;
    const auto object = storage_object_key(keys[2], static_cast<std::uint32_t>(lost));
    EXPECT_EQ(map.pages.erase(storage_page_key(kSpace, object)), 1U);
    EXPECT_EQ(tier.run(StorageVerb::look_up, keys).pages, 2U);
    const Completion got = tier.run(StorageVerb::get, keys);
    EXPECT_EQ(got.pages, 2U);
    EXPECT_EQ(got.status, Status::failed);
    EXPECT_EQ(got.cause, Cause::missing);
    EXPECT_EQ(tier.run(StorageVerb::get, {keys[3]}).pages, 1U);
    EXPECT_EQ(tier.run(StorageVerb::set, keys).pages, 4U);
    EXPECT_EQ(tier.run(StorageVerb::get, keys).pages, 4U);
    EXPECT_EQ(tier.run(StorageVerb::remove, keys).pages, 4U);
    EXPECT_TRUE(tier.target_map.pages.empty() && tier.draft_map.pages.empty());
    tier.queues.finish();
    std::map<std::string, std::uint64_t> counted;
    for (const auto& [name, count] : tier.queues.counters()) counted[name] = count;
    EXPECT_EQ(counted["objects_per_page"], 3U);
    EXPECT_EQ(counted["objects_stored"], 24U);
  }
}

}  // namespace
}  // namespace kvtwin::test

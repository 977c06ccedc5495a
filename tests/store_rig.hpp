// The real queues of a storage tier in front of a back end. The test replaces the event loop, and SlotMemory replaces
// the pools. The rig checks every answer: one answer per operation, in order, and a slot never has the bytes of another
// page than the requested one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "impl/storage/tier_queues.hpp"
#include "policy/base/byte_order.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

inline constexpr PageKey kSpace{{11, 12, 13, 14}};
inline constexpr PageKey kOtherSpace{{11, 12, 13, 15}};
// A page of 160 bytes: not a power of two, and not a block of a disk.
inline constexpr PageForm kSmallForm{{2, 2, 2, 5, 4}, Layout::page_first};

inline std::vector<PageKey> keys_of(std::size_t count, std::uint64_t document = 0) {
  std::vector<std::uint64_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = 1000 * document + i;
  return chain(tokens);
}

// Returns the bytes of a page, which are unique to the page.
inline std::vector<std::byte> page_bytes(const PageForm& form, const PageKey& space, const PageKey& key) {
  std::uint64_t seed = 0;
  for (const std::uint64_t word : space.words) seed = mix(seed ^ word);
  for (const std::uint64_t word : key.words) seed = mix(seed ^ word);
  Splitmix random(seed);
  std::vector<std::byte> bytes(form.bytes() + 8);
  for (std::size_t at = 0; at < form.bytes(); at += 8) store_le64(bytes.data() + at, random.next());
  bytes.resize(form.bytes());
  return bytes;
}

// Two memories with slots. The test's thread takes and returns slots. The order of the queues determines which thread
// may use the bytes of a slot. `in_place`: the memory has pieces, two for each object.
class SlotMemory final : public PageMemory {
 public:
  static constexpr SlotId kSlots = 4096;

  explicit SlotMemory(const PageForm& form, bool in_place = false) : form_(form), in_place_(in_place) {
    for (auto& memory : slots_) memory.resize(kSlots);
    for (SlotId slot = kSlots; slot > 0; --slot) free_.push_back(slot - 1);
  }
  PageForm form() const override { return form_; }
  void read_page(Tier memory, SlotId slot, std::span<std::byte> page) override {
    if (before_read) before_read();
    std::ranges::copy(at(memory, slot), page.begin());
  }
  void write_page(Tier memory, SlotId slot, const PageKey&, std::span<const std::byte> page) override {
    if (before_write) before_write();
    at(memory, slot).assign(page.begin(), page.end());
  }
  bool pieces(Tier memory, SlotId slot, Bytes first, Bytes bytes, Pieces& pieces) override {
    if (!in_place_) return false;
    std::vector<std::byte>& page = at(memory, slot);
    if (page.empty()) {
      page.assign(form_.bytes(), std::byte{0xEE});
    } else if (before_read) {
      before_read();
    }
    const std::span<std::byte> object = std::span(page).subspan(first, bytes);
    if (bytes > 1) pieces.push_back(object.first(bytes / 2));
    pieces.push_back(object.subspan(bytes > 1 ? bytes / 2 : 0));
    return true;
  }
  void begin_write(Tier, SlotId) override {
    if (before_write) before_write();
  }
  bool in_place() const { return in_place_; }
  std::vector<std::byte>& at(Tier memory, SlotId slot) { return slots_[memory == Tier::host ? 0 : 1][slot]; }
  SlotId take() {
    if (free_.empty()) throw std::logic_error("a test has no more than 4096 pages under way");
    const SlotId slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(SlotId slot) { free_.push_back(slot); }

  // Called in the threads of the back end. Set them before the first operation.
  std::function<void()> before_read, before_write;

 private:
  PageForm form_;
  const bool in_place_;
  std::array<std::vector<std::vector<std::byte>>, 2> slots_;  // an empty slot has not been written
  std::vector<SlotId> free_;
};

// A back end that writes into the slots of L1 itself. Slots of failed pages may have damaged bytes.
class LandsPages {
 public:
  virtual ~LandsPages() = default;
  virtual void land_in(SlotMemory& memory) = 0;
};

// A gate: one open() lets one pass() return. (std::binary_semaphore of GCC 12 may sleep forever.)
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_one();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
    open_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

struct RigTerms {
  PageForm form = kSmallForm;
  std::uint32_t objects = 1;  // per page; the back end stores object_form(form, objects)
  bool in_place = false;      // the slots' memory has pieces
  bool starts = true;
  bool stores = true;
};

class StoreRig {
 public:
  // `beside`: the back end of pool 1, whose objects have the form of the pages; null: there is no such pool.
  explicit StoreRig(std::unique_ptr<StorageBackend> backend, const RigTerms& terms = {},
                    std::unique_ptr<StorageBackend> beside = nullptr)
      : memory(terms.form, terms.in_place),
        form_(terms.form),
        queues_(make(std::move(backend), terms, std::move(beside))) {
    if (terms.starts) start();
  }
  void start() {
    queues_->start(completions_, clock_, [this](OperationId id, bool done) {
      const std::lock_guard lock(landed_mutex_);
      EXPECT_TRUE(landed_.emplace(id, done).second) << "a load lands once";
    });
  }

  // Submits an operation; answer() waits for the completion.
  OperationId begin(StorageVerb verb, const std::vector<PageKey>& keys, const PageKey& space = kSpace,
                    std::optional<Tier> memory_tier = {}, std::size_t pool = 0,
                    const std::vector<StorageOperation::Need>& needs = {}) {
    const bool lands = lands_ && verb == StorageVerb::get && pool == 0;
    const Tier where = memory_tier.value_or(lands ? Tier::device : Tier::host);
    Flight flight{verb, where, space, {}};
    for (const PageKey& key : keys) {
      StoragePage page{key, kNoSlot};
      if (verb == StorageVerb::get || verb == StorageVerb::set) {
        page.slot = memory.take();
        std::vector<std::byte>& bytes = memory.at(where, page.slot);
        bytes.clear();
        if (verb == StorageVerb::set) bytes = page_bytes(form_, space, key);
      }
      flight.pages.push_back(page);
    }
    StorageOperation operation;
    operation.work = {verb, Tier::disk, where, keys.size(), form_.bytes()};
    operation.space = space;
    operation.pages = flight.pages;
    operation.pool = pool;
    operation.needs = needs;
    const OperationId id{++last_};
    queues_->submit(id, operation);
    flights_.emplace(id, std::move(flight));
    return id;
  }
  void cancel(OperationId id) { queues_->cancel(id); }
  Completion answer(OperationId id) {
    while (!answers_.contains(id)) pump();
    return answers_.at(id);
  }
  void wait_all() {
    while (!flights_.empty()) pump();
  }

  Completion set(const std::vector<PageKey>& keys, const PageKey& space = kSpace) {
    return answer(begin(StorageVerb::set, keys, space));
  }
  Completion get(const std::vector<PageKey>& keys, const PageKey& space = kSpace) {
    return answer(begin(StorageVerb::get, keys, space));
  }
  Completion remove(const std::vector<PageKey>& keys, const PageKey& space = kSpace) {
    return answer(begin(StorageVerb::remove, keys, space));
  }
  // Returns how many pages are present, counted from the first one to the first missing one.
  Pages look_up(const std::vector<PageKey>& keys, const PageKey& space = kSpace) {
    return answer(begin(StorageVerb::look_up, keys, space)).pages;
  }
  // Returns the lengths of the prefix that are usable.
  std::vector<Pages> usable(const std::vector<PageKey>& keys, const std::vector<StorageOperation::Need>& needs) {
    const OperationId id = begin(StorageVerb::look_up, keys, kSpace, {}, 0, needs);
    answer(id);
    return usable_[id];
  }
  bool has(const PageKey& key, const PageKey& space = kSpace) { return look_up({key}, space) == 1; }

  void finish() { queues_->finish(); }
  std::uint64_t counter(const std::string& name) const {
    for (const auto& [counted, value] : queues_->counters()) {
      if (counted == name) return value;
    }
    ADD_FAILURE() << "nothing is counted as " << name;
    return 0;
  }

  SlotMemory memory;

 private:
  struct Flight {
    StorageVerb verb;
    Tier memory;
    PageKey space;
    std::vector<StoragePage> pages;
  };

  std::unique_ptr<TierQueues> make(std::unique_ptr<StorageBackend> backend, const RigTerms& terms,
                                   std::unique_ptr<StorageBackend> beside) {
    if (auto* lands = dynamic_cast<LandsPages*>(backend.get())) {
      lands->land_in(memory);
      lands_ = true;
    }
    std::vector<StorePart> parts;
    parts.push_back({std::move(backend), &memory, terms.objects});
    if (beside != nullptr) parts.push_back({std::move(beside), &memory, terms.objects, 0, 1});
    return std::make_unique<TierQueues>(Tier::disk, std::move(parts), terms.stores);
  }
  void pump() {
    completions_.wait(std::nullopt);
    std::vector<Finished> finished;
    completions_.take(finished);
    for (const Finished& one : finished) judge(one);
  }
  void judge(const Finished& finished) {
    const Completion& completion = finished.completion;
    const auto found = flights_.find(completion.id);
    ASSERT_NE(found, flights_.end()) << "an answer to nothing";
    const Flight& flight = found->second;
    const bool writes = flight.verb == StorageVerb::set || flight.verb == StorageVerb::remove;
    if (flight.verb != StorageVerb::look_up) {
      OperationId& last = last_ended_[writes ? 1 : 0];
      EXPECT_LT(last, completion.id) << "operations end in order";
      last = completion.id;
    }
    const Pages asked = flight.pages.size();
    EXPECT_LE(completion.pages, asked);
    if (flight.verb != StorageVerb::look_up) {
      EXPECT_EQ(completion.status == Status::done, completion.pages == asked);
    }
    EXPECT_EQ(completion.status == Status::failed, completion.cause != Cause::none);
    if (flight.verb == StorageVerb::get) judge_slots(completion, flight);
    for (const StoragePage& page : flight.pages) {
      if (page.slot != kNoSlot) memory.give_back(page.slot);
    }
    answers_.emplace(completion.id, completion);
    usable_[completion.id] = {completion.usable.begin(), completion.usable.end()};
    flights_.erase(found);
  }
  void judge_slots(const Completion& completion, const Flight& flight) {
    EXPECT_EQ(completion.bytes, completion.pages * form_.bytes());
    if (flight.memory == Tier::device) {
      // The landing is reported after the completion, so the report may still be missing.
      const std::lock_guard lock(landed_mutex_);
      if (const auto told = landed_.find(completion.id); told != landed_.end()) {
        EXPECT_EQ(told->second, completion.status == Status::done);
      }
    }
    for (std::size_t i = 0; i < flight.pages.size(); ++i) {
      const std::vector<std::byte>& bytes = memory.at(flight.memory, flight.pages[i].slot);
      // A page that does not count was moved in place, or into GPU memory, before its check; otherwise it is right.
      if (i >= completion.pages && (lands_ || memory.in_place() || bytes.empty())) continue;
      EXPECT_TRUE(bytes == page_bytes(form_, flight.space, flight.pages[i].key)) << "a slot holds something else";
    }
  }

  PageForm form_;
  bool lands_ = false;
  CompletionQueue completions_;
  RunClock clock_;
  std::map<OperationId, Flight> flights_;
  std::map<OperationId, Completion> answers_;  // without `usable`
  std::map<OperationId, std::vector<Pages>> usable_;
  std::array<OperationId, 2> last_ended_{};
  std::uint64_t last_ = 0;
  std::mutex landed_mutex_;
  std::map<OperationId, bool> landed_;
  std::unique_ptr<TierQueues> queues_;  // last member: its threads use the members above
};

}  // namespace kvtwin::test

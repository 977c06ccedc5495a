// A world that the test controls: the world keeps all operations, and the test completes them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "policy/engine.hpp"
#include "policy/index/page_key.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class ManualWorld final : public Substrate {
 public:
  struct Transfer {
    OperationId id;
    Lane lane;
    std::vector<PageMove> pages;
  };
  struct Forward {
    OperationId id;
    ForwardShape shape;
    std::uint64_t steps;
    std::vector<OperationId> gates;
    std::size_t sequences;
  };

  struct Stored {
    OperationId id;
    StorageWork work;
    std::vector<StoragePage> pages;
    std::size_t pool = 0;
    std::vector<StorageOperation::Need> needs = {};
  };

  struct HandOver {
    OperationId id;
    Pages first;
    std::vector<PageMove> pages;
    bool last;
    OperationId pass;
    std::vector<PageMove> beside = {};
  };

  TimeNs now() const override { return time; }
  OperationId submit(const Operation& operation) override {
    const OperationId id{++last_};
    if (const auto* transfer = std::get_if<TransferOperation>(&operation)) {
      transfers.push_back({id, transfer->lane, {transfer->pages.begin(), transfer->pages.end()}});
    } else if (const auto* storage = std::get_if<StorageOperation>(&operation)) {
      stored.push_back({id,
                        storage->work,
                        {storage->pages.begin(), storage->pages.end()},
                        storage->pool,
                        {storage->needs.begin(), storage->needs.end()}});
    } else if (const auto* write = std::get_if<HandOverOperation>(&operation)) {
      hand_overs.push_back({id, write->first, {write->pages.begin(), write->pages.end()}, write->last, write->pass});
      for (const auto& part : write->parts) {
        hand_overs.back().beside.insert(hand_overs.back().beside.end(), part.moves.begin(), part.moves.end());
      }
    } else {
      const auto& pass = std::get<ForwardOperation>(operation);
      passes.push_back({id, pass.shape, pass.steps, {pass.gates.begin(), pass.gates.end()}, pass.sequences.size()});
    }
    return id;
  }
  OperationId call_at(TimeNs at) override {
    timers.push_back({OperationId{++last_}, at});
    return timers.back().first;
  }
  OperationId reduce_min(const ReduceVector& values) override {
    reductions.push_back({OperationId{++last_}, values});
    return reductions.back().id;
  }
  void cancel(OperationId id) override { cancelled.push_back(id); }
  void notify(std::uint32_t, const Notice& notice) override { notices.push_back(notice.kind); }

  TimeNs time = 0;
  std::deque<Transfer> transfers;
  std::deque<Forward> passes;
  std::deque<Stored> stored;  // operations of storage tiers
  std::deque<HandOver> hand_overs;
  std::vector<NoticeKind> notices;  // that the engine has sent
  std::deque<std::pair<OperationId, TimeNs>> timers;
  std::deque<Reduction> reductions;
  std::vector<OperationId> cancelled;

 private:
  std::uint64_t last_ = 0;
};

// Returns the page keys of a document. Two documents share the pages up to their first different number.
inline std::vector<PageKey> document(std::initializer_list<std::uint64_t> blocks) {
  std::vector<PageKey> keys;
  for (const std::uint64_t block : blocks) {
    const BlockSegment segment{block, 0, 4};
    keys.push_back(block_page_key(keys.empty() ? nullptr : &keys.back(), std::span(&segment, 1)));
  }
  return keys;
}

struct EventCounter final : Observer {
  void on_event(const Event& event) override {
    ++counts[static_cast<std::size_t>(event.kind)];
    pages[static_cast<std::size_t>(event.kind)] += event.pages;
    ++by_reason[{event.kind, event.reason}];
    if (event.kind == EventKind::load_direct_done) failed_loads += event.reason != Reason::none;
    if (event.kind == EventKind::evicted) evicted[static_cast<std::size_t>(event.tier)][event.reason] += event.pages;
    if (event.kind == EventKind::finished || event.kind == EventKind::rejected) records.push_back(*event.record);
  }
  std::uint64_t count(EventKind kind) const { return counts[static_cast<std::size_t>(kind)]; }
  std::uint64_t count(EventKind kind, Reason reason) { return by_reason[{kind, reason}]; }
  std::uint64_t page_count(EventKind kind) const { return pages[static_cast<std::size_t>(kind)]; }
  Pages evicted_pages(Tier tier, Reason reason) { return evicted[static_cast<std::size_t>(tier)][reason]; }
  std::array<std::uint64_t, 64> counts{}, pages{};
  std::array<std::map<Reason, Pages>, kTiers> evicted;
  std::map<std::pair<EventKind, Reason>, std::uint64_t> by_reason;
  std::vector<RequestRecord> records;
  std::uint64_t failed_loads = 0;  // loads directly from storage into L1
};

// Four-token pages of a two-layer model; small tiers.
inline EngineConfig small_config(Pages device, Pages host) {
  EngineConfig config;
  config.shape = {2, 2, 1, 8, 4};
  config.device_pages = device;
  config.host_pages = host;
  config.load_back_min_tokens = 1;
  config.chunk_tokens = 64;
  return config;
}

// An engine and a ManualWorld. After every input, all invariants of the engine are checked.
class EngineRig {
 public:
  explicit EngineRig(const EngineConfig& config) : engine(config, world, decisions, &events) {}

  void arrive(RequestId request, const std::vector<PageKey>& keys, Tokens prompt, Tokens output,
              std::int32_t priority = 0) {
    give_arrival(request, std::span(keys).first(std::min<std::size_t>(keys.size(), prompt / 4)), prompt, output,
                 priority);
  }
  // A prefill part.
  void arrive_part(RequestId request, const std::vector<PageKey>& keys, Tokens prompt) {
    Arrival arrival;
    arrival.request = request;
    arrival.prompt_tokens = prompt;
    arrival.output_tokens = 9;
    arrival.keys = keys;
    arrival.part = RequestPart::prefill;
    arrival.peer = 1;
    arrival.session = session;
    give(arrival);
  }
  void notice(const Notice& notice) { give(notice); }
  void complete_hand_over(Status status = Status::done) {
    const OperationId id = world.hand_overs.at(0).id;
    world.hand_overs.pop_front();
    complete(id, status);
  }
  // The arrival has page keys for the output too.
  void arrive_knowing_output(RequestId request, const std::vector<PageKey>& keys, Tokens prompt, Tokens output) {
    give_arrival(request, keys, prompt, output);
  }
  void complete(OperationId id, Status status = Status::done, std::uint64_t steps = 1) {
    Completion completion;
    completion.id = id;
    completion.status = status;
    completion.steps = steps;
    if (status != Status::done) failed_.insert(id);
    give(completion);
  }
  void complete_transfer(Status status = Status::done) {
    const OperationId id = world.transfers.at(0).id;
    world.transfers.pop_front();
    complete(id, status);
  }
  void complete_pass(Status status = Status::done) {
    const auto pass = world.passes.at(0);
    world.passes.pop_front();
    world.time += 1000;
    const bool spoilt = std::ranges::any_of(pass.gates, [this](OperationId gate) { return failed_.contains(gate); });
    complete(pass.id, spoilt ? Status::gate_failed : status, pass.steps);
  }
  // Completes the oldest storage operation with this verb. The completion counts `pages` pages, or all of them if the
  // operation has fewer.
  void complete_stored(StorageVerb verb, Pages pages, std::span<const Pages> usable = {}) {
    const auto at = std::ranges::find(world.stored, verb, [](const auto& o) { return o.work.verb; });
    ASSERT_NE(at, world.stored.end());
    Completion completion;
    completion.id = at->id;
    completion.pages = std::min<Pages>(pages, at->pages.size());
    completion.usable = usable;
    const bool all = completion.pages == at->pages.size() || verb == StorageVerb::look_up;
    const bool cancelled = std::ranges::find(world.cancelled, at->id) != world.cancelled.end();
    completion.status = all ? Status::done : cancelled ? Status::cancelled : Status::failed;
    completion.cause = all || cancelled ? Cause::none : Cause::missing;
    world.stored.erase(at);
    if (completion.status != Status::done) failed_.insert(completion.id);
    give(completion);
  }
  // Completes any operation id. The test has removed the operation from `world`, or the id no longer exists.
  void complete_answer(OperationId id, Pages pages, Status status = Status::done) {
    Completion completion;
    completion.id = id;
    completion.pages = pages;
    completion.status = status;
    give(completion);
  }
  static constexpr Pages kAll = ~Pages{0};
  // Completes the oldest storage operation as a store with the pages in `stores` would.
  void complete_stored() {
    const ManualWorld::Stored operation = world.stored.front();
    std::set<PageKey>& store = stores[static_cast<std::size_t>(operation.work.tier)];
    Pages run = 0;
    while (run < operation.pages.size() && store.contains(operation.pages[run].key)) ++run;
    for (const StoragePage& page : operation.pages) {
      if (operation.work.verb == StorageVerb::set) store.insert(page.key);
      if (operation.work.verb == StorageVerb::remove) store.erase(page.key);
    }
    const auto there = [&](std::size_t pool, Pages page) {
      return store.contains(pool_page_key(operation.pages[page].key, pool));
    };
    const std::vector<Pages> usable = usable_lengths(operation.needs, operation.needs.empty() ? 0 : run, there);
    const bool counts = operation.work.verb == StorageVerb::look_up || operation.work.verb == StorageVerb::get;
    complete_stored(operation.work.verb, counts ? run : kAll, usable);
  }
  void fire(TimeNs time) {
    world.time = time;
    while (!world.timers.empty()) {
      const auto due = std::ranges::find_if(world.timers, [&](const auto& timer) {
        return timer.second <= time || std::ranges::find(world.cancelled, timer.first) != world.cancelled.end();
      });
      if (due == world.timers.end()) return;
      const TimerFired fired{due->first};
      world.timers.erase(due);
      give(fired);
    }
  }
  void hint(HintKind kind, std::uint64_t subject, std::int64_t value = 0) { give(Hint{kind, subject, value}); }
  // Completes all operations, transfers first, until none is left.
  void drain() {
    for (int bound = 0; bound < 100000; ++bound) {
      if (!world.transfers.empty()) {
        complete_transfer();
      } else if (!world.stored.empty()) {
        complete_stored();
      } else if (!world.passes.empty()) {
        complete_pass();
      } else {
        return;
      }
    }
    FAIL() << "the engine doesn't come to rest";
  }

  std::array<std::set<PageKey>, kTiers> stores;
  std::uint64_t session = 0;                              // of the arrivals that follow
  std::function<void(ReduceVector& values)> other_ranks;  // lowers values of a reduction; may be empty
  ManualWorld world;
  DecisionLog decisions;
  EventCounter events;
  Engine engine;

 private:
  void give_arrival(RequestId request, std::span<const PageKey> keys, Tokens prompt, Tokens output,
                    std::int32_t priority = 0) {
    Arrival arrival;
    arrival.priority = priority;
    arrival.request = request;
    arrival.prompt_tokens = prompt;
    arrival.output_tokens = output;
    arrival.keys = keys;
    arrival.session = session;
    give(arrival);
  }
  std::set<OperationId> failed_;

  template <typename What>
  void give(const What& what) {
    engine.handle({world.time, what});
    engine.check_invariants();
    while (!world.reductions.empty()) {
      Reduction reduction = world.reductions.front();
      world.reductions.pop_front();
      if (other_ranks) other_ranks(reduction.values);
      engine.handle({world.time, reduction});
      engine.check_invariants();
    }
  }
};

}  // namespace kvtwin

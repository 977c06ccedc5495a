// A random policy for tests of worlds. It computes pages, copies pages between the memories, and gets, sets, looks up
// and removes pages in the storage tiers, with many operations at the same time. The policy always keeps the contract
// of the seam. So an error that a world reports is an error of the world.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "policy/seam/substrate.hpp"
#include "policy/transfer/plan.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

struct StorageTrafficConfig {
  std::uint64_t seed = 0;
  std::uint64_t operations = 300;
  std::uint32_t page_tokens = 4;
  SlotId device_slots = 24, host_slots = 24;
  std::vector<Tier> tiers = {Tier::disk, Tier::remote};
};

class StorageTraffic final : public InputHandler {
 public:
  StorageTraffic(Substrate& substrate, const StorageTrafficConfig& config)
      : substrate_(substrate), config_(config), rng_(mix(config.seed)), keys_(chain({1, 2, 3, 4, 5, 6, 7, 8})) {
    const std::vector<PageKey> more = chain({9, 10, 11, 12, 13, 14, 15, 16});
    keys_.insert(keys_.end(), more.begin(), more.end());
    memories_[0].resize(config.device_slots);
    memories_[1].resize(config.host_slots);
    space_.words = {1, 2, 3, 4};
  }

  void handle(const Input& input) override {
    if (const auto* completion = std::get_if<Completion>(&input.what)) end(*completion);
    for (std::uint64_t i = 1 + rng_.below(3); i > 0 && submitted_ < config_.operations; --i) act();
  }

  bool idle() const { return flights_.empty(); }
  std::uint64_t duplicates() const { return duplicates_; }
  std::uint64_t ended(StorageVerb verb, Status status, Cause cause) const {
    const auto at = ended_.find({verb, status, cause});
    return at == ended_.end() ? 0 : at->second;
  }

 private:
  enum class Kind : std::uint8_t { pass, transfer, look_up, get, set, remove };
  struct Slot {
    bool holds = false, filling = false;
    std::uint32_t readers = 0;
    PageKey key;
  };
  using Place = std::pair<std::size_t, SlotId>;  // memory, slot
  struct Flight {
    OperationId id = OperationId::none;
    Kind kind = Kind::pass;
    StorageVerb verb = StorageVerb::look_up;
    std::vector<Place> reads = {}, fills = {};
    std::vector<PageKey> keys = {};  // of `fills`
  };

  Slot& at(const Place& place) { return memories_[place.first][place.second]; }
  std::vector<Place> some(std::size_t memory, std::size_t most, bool held) {
    std::vector<Place> places;
    for (SlotId slot = 0; slot < memories_[memory].size(); ++slot) {
      const Slot& it = memories_[memory][slot];
      if (!it.filling && (held ? it.holds : it.readers == 0)) places.emplace_back(memory, slot);
    }
    for (std::size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[rng_.below(i)]);
    places.resize(std::min<std::size_t>(places.size(), 1 + rng_.below(most)));
    return places;
  }
  std::vector<PageKey> some_keys(std::size_t count) {
    std::vector<PageKey> keys = keys_;
    for (std::size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[rng_.below(i)]);
    keys.resize(std::min(keys.size(), count));
    return keys;
  }

  void act() {
    switch (rng_.below(12)) {
      case 0:
      case 1: compute(); break;
      case 2: copy(); break;
      case 3:
      case 4:
      case 5:
      case 6: get(); break;
      case 7:
      case 8: set(); break;
      case 9: store(StorageVerb::look_up, 1, {}, some_keys(1 + rng_.below(6))); break;
      case 10: store(StorageVerb::remove, 1, {}, some_keys(1 + rng_.below(3))); break;
      default:
        if (!flights_.empty()) substrate_.cancel(flights_[rng_.below(flights_.size())].id);
    }
  }

  // Submits a pass that computes one page. The context is some held pages, and pages of operations in flight, as gates.
  void compute() {
    Flight flight{.kind = Kind::pass};
    flight.reads = some(0, 4, true);
    std::vector<OperationId> gates;
    std::vector<PageKey> keys;
    std::vector<SlotId> slots;
    if (rng_.chance(60)) {
      for (const Flight& load : flights_) {
        const bool to_device = !load.fills.empty() && load.fills[0].first == 0;
        if (!to_device || load.kind == Kind::pass || gates.size() == 3) continue;
        gates.push_back(load.id);
        for (std::size_t i = 0; i < load.fills.size(); ++i) {
          flight.reads.push_back(load.fills[i]);
        }
      }
    }
    flight.fills = some(0, 1, false);
    if (flight.fills.empty()) return;
    std::erase(flight.reads, flight.fills[0]);
    for (const Place& place : flight.reads) {
      slots.push_back(place.second);
      keys.push_back(at(place).key);
    }
    flight.keys = some_keys(1);
    slots.push_back(flight.fills[0].second);
    keys.push_back(flight.keys[0]);
    const Tokens context = flight.reads.size() * config_.page_tokens;
    const SequenceWork work{0, context, config_.page_tokens, slots, keys};
    ForwardOperation operation;
    operation.shape.prefill_tokens = config_.page_tokens;
    operation.shape.prefill_context_tokens = context;
    operation.shape.prefill_sequences = 1;
    operation.sequences = std::span(&work, 1);
    operation.gates = gates;
    launch(std::move(flight), operation);
  }

  void copy() {
    const bool up = rng_.chance(50);
    Flight flight{.kind = Kind::transfer};
    flight.reads = some(up ? 1 : 0, 4, true);
    flight.fills = some(up ? 0 : 1, 4, false);
    const std::size_t pages = std::min(flight.reads.size(), flight.fills.size());
    if (pages == 0) return;
    flight.reads.resize(pages);
    flight.fills.resize(pages);
    std::vector<PageRun> runs;
    std::vector<PageMove> moves;
    for (std::size_t i = 0; i < pages; ++i) {
      const PageKey key = at(flight.reads[i]).key;
      runs.push_back({flight.reads[i].second, flight.fills[i].second, 1});
      moves.push_back({key, flight.reads[i].second, flight.fills[i].second});
      flight.keys.push_back(key);
    }
    TransferOperation operation;
    operation.lane = up ? Lane::h2d : Lane::d2h;
    operation.plan = plan_transfer(runs, up ? Direction::host_to_device : Direction::device_to_host,
                                   {{2, 2, 1, 8, config_.page_tokens}, Layout::page_first}, IoBackend::automatic, {});
    operation.pages = moves;
    launch(std::move(flight), operation);
  }

  void get() {
    const std::size_t memory = rng_.below(2);
    const std::vector<Place> places = some(memory, 5, false);
    if (!places.empty()) store(StorageVerb::get, memory, places, some_keys(places.size()));
  }
  void set() {
    const std::size_t memory = rng_.below(2);
    const std::vector<Place> places = some(memory, 5, true);
    std::vector<PageKey> keys;
    for (const Place& place : places) keys.push_back(at(place).key);
    if (!places.empty()) store(StorageVerb::set, memory, places, keys);
  }

  void store(StorageVerb verb, std::size_t memory, std::vector<Place> places, std::vector<PageKey> keys) {
    std::vector<StoragePage> pages;
    for (std::size_t i = 0; i < keys.size(); ++i)
      pages.push_back({keys[i], places.empty() ? kNoSlot : places[i].second});
    StorageOperation operation;
    operation.work.verb = verb;
    operation.work.tier = config_.tiers[rng_.below(config_.tiers.size())];
    operation.work.memory = memory == 0 ? Tier::device : Tier::host;
    operation.work.pages = pages.size();
    operation.work.page_bytes = 100;
    operation.work.ranks = 2;
    operation.space = space_;
    operation.pages = pages;
    Flight flight{.verb = verb};
    flight.kind = verb == StorageVerb::look_up ? Kind::look_up
                  : verb == StorageVerb::get   ? Kind::get
                  : verb == StorageVerb::set   ? Kind::set
                                               : Kind::remove;
    if (verb == StorageVerb::get) {
      flight.fills = std::move(places);
      flight.keys = std::move(keys);
    } else {
      flight.reads = std::move(places);
    }
    launch(std::move(flight), operation);
  }

  void launch(Flight flight, const Operation& operation) {
    ++submitted_;
    flight.id = substrate_.submit(operation);
    for (const Place& place : flight.reads) ++at(place).readers;
    for (std::size_t i = 0; i < flight.fills.size(); ++i) {
      Slot& slot = at(flight.fills[i]);
      slot = {false, true, slot.readers, flight.keys[i]};
    }
    flights_.push_back(std::move(flight));
  }

  void end(const Completion& completion) {
    const auto found = std::ranges::find(flights_, completion.id, &Flight::id);
    if (found == flights_.end()) {
      ++duplicates_;
      return;
    }
    const Flight flight = std::move(*found);
    flights_.erase(found);
    const bool stores = flight.kind != Kind::pass && flight.kind != Kind::transfer;
    if (stores) ++ended_[{flight.verb, completion.status, completion.cause}];
    const std::uint64_t whole = stores ? completion.pages : completion.status == Status::done ? flight.fills.size() : 0;
    for (const Place& place : flight.reads) --at(place).readers;
    for (std::size_t i = 0; i < flight.fills.size(); ++i) {
      at(flight.fills[i]).filling = false;
      at(flight.fills[i]).holds = i < whole;
    }
  }

  struct Ending {
    StorageVerb verb;
    Status status;
    Cause cause;
    auto operator<=>(const Ending&) const = default;
  };

  Substrate& substrate_;
  StorageTrafficConfig config_;
  Splitmix rng_;
  std::vector<PageKey> keys_;
  PageKey space_;
  std::array<std::vector<Slot>, 2> memories_;  // device, host
  std::vector<Flight> flights_;
  std::uint64_t submitted_ = 0, duplicates_ = 0;
  std::map<Ending, std::uint64_t> ended_;
};

}  // namespace kvtwin::test

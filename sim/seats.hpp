// The seats of a simulated world: one WorldCore per seat, and one clock.
//
// Merges the agendas in the order (time, seat, operation), and delivers arrivals and hints. If each rank has a seat
// (WorldConfig::instances), this class also implements the collective operations of an engine's ranks:
// - Reductions: the k-th reductions of all ranks belong together. All ranks get the result `reduce_ns` after the last
//   rank has entered.
// - Notices: the k-th notices of all ranks belong together, and must be equal. The other engine gets the notice once;
//   its first rank passes it on, so the other ranks get it notice_ns later, in the same order.
// - Hand-overs: each rank writes to the rank of its number. `handed` is given when the pages of all ranks have landed.
// - Forward passes: the k-th passes of all ranks belong together, because all-reduces inside the pass tie the ranks.
//   The pass starts when the last rank has submitted it, and ends on all ranks at once, with the duration of the
//   slowest rank. Its layers wait for the gates of all ranks. A gate that fails on any rank ends the pass on all ranks:
//   gate_failed, or failed on a rank without gates. A cancel by any rank, even before the start, ends the pass on all
//   ranks after the running step.
// Transfers and storage operations are private to a rank.
// Thread: single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "policy/seam/live_source.hpp"
#include "policy/seam/world.hpp"
#include "sim/next_steps.hpp"
#include "sim/shared_steps.hpp"
#include "sim/store_model.hpp"
#include "sim/world.hpp"
#include "sim/world_core.hpp"

namespace kvtwin {

class Seats final : private Collective, private JointPasses, private PeerPost {
 public:
  Seats(const WorldConfig& config, FlowBackend& backend);
  ~Seats() override;

  std::size_t size() const { return cores_.size(); }
  WorldCore& core(std::size_t seat) { return *cores_[seat]; }
  const WorldCore& core(std::size_t seat) const { return *cores_[seat]; }
  TimeNs now() const { return shared_.now; }
  // See World::stored_pages_max() and stored_pages_evicted().
  std::optional<Pages> stored_pages_max(Tier tier) const { return sum_of_stores(tier, &StoreModel::size_max); }
  std::optional<Pages> stored_pages_evicted(Tier tier) const { return sum_of_stores(tier, &StoreModel::evicted); }

  // Requires: one handler per seat. `route` may be null if there is one engine. All arguments outlive the run.
  void begin(InputSource& source, std::span<InputHandler* const> handlers, InputRoute* route);
  // Returns the time of the next step, or kNever if only flows remain.
  TimeNs next_time();
  // Handles the event or delivers the input of next_time(). Requires: every flow that ends at or before this time,
  // rounded to the nearest ns, has been reported by flow_ended().
  void step();

  void set_progress(void (*tick)(void* context, TimeNs now), void* context);
  // Returns whether every submitted operation has been answered, except those of dead engines.
  bool all_answered() const;
  bool is_dead(std::uint32_t seat) const override { return !dead_.empty() && dead_[seat / ranks_]; }
  void staged_at(std::uint32_t seat, const LaneSpan& span) override;
  TimeNs copied_at(std::uint32_t seat, Bytes bytes, std::uint32_t receivers) override;
  // The configuration of one seat before its own changes.
  static const WorldConfig& config_of(const WorldConfig& config, std::size_t engine) {
    return config.decode != nullptr && engine >= config.prefill_engines ? *config.decode : config;
  }
  // The first engine on the machine of this engine, and the number of that machine.
  static std::size_t first_on_machine(const WorldConfig& config, std::size_t engine) {
    return engine - in_role(config, engine) % config_of(config, engine).groups;
  }
  static std::size_t machine_of(const WorldConfig& config, std::size_t engine) {
    const std::size_t prefill = (engine - in_role(config, engine)) / config.groups;
    return prefill + in_role(config, engine) / config_of(config, engine).groups;
  }

 private:
  // Of the stores that are not private to an engine; nothing if the tier has none.
  std::optional<Pages> sum_of_stores(Tier tier, Pages (StoreModel::*figure)() const) const;
  // The number of the engine among those of its role.
  static std::size_t in_role(const WorldConfig& config, std::size_t engine) {
    return config.decode != nullptr && engine >= config.prefill_engines ? engine - config.prefill_engines : engine;
  }

  // An event of the world itself.
  struct Post {
    enum class Kind : std::uint8_t { notice, death, detection, steps };
    Kind kind = Kind::notice;
    std::uint32_t to = 0;  // seat; death, detection: engine; steps: the first engine on the machine
    Notice notice;
    std::vector<SlotId> slots;
  };

  // One pass of all ranks.
  struct JointPass {
    std::vector<std::uint32_t> slots;  // by rank; kNoSlotIndex = the pass does not hold the rank's compute lane yet
    std::size_t started = 0, ready = 0, ended = 0;
    bool failed = false, settled = false;
    TimeNs start = 0, cancel_time = -1;
  };
  // The collective operations of one engine that at least one rank has entered and not all ranks have left.
  struct Group {
    std::vector<std::deque<std::uint32_t>> reductions;  // by rank: slots
    std::deque<JointPass> passes;
    std::uint64_t first_pass = 0;           // ordinal of passes.front()
    std::vector<std::deque<Post>> notices;  // by rank: sent, and not by all ranks yet
    // By request, attempt and number of the hand-over: the ranks whose last pages have landed.
    std::map<std::tuple<RequestId, std::uint32_t, std::uint64_t>, std::size_t> landed;
  };

  void reduction_entered(std::uint32_t seat, std::uint32_t slot) override;
  void pass_started(std::uint32_t seat, std::uint64_t ordinal, std::uint32_t slot) override;
  void pass_ready(std::uint32_t seat, std::uint64_t ordinal) override;
  void pass_failed(std::uint32_t seat, std::uint64_t ordinal) override;
  void pass_cancelled(std::uint32_t seat, std::uint64_t ordinal) override;
  void pass_ended(std::uint32_t seat, std::uint64_t ordinal) override;

  void post(std::uint32_t from, std::uint32_t to, const Notice& notice, TimeNs delay) override;
  void landed(std::uint32_t from, std::uint32_t to, const Notice& handed, std::uint64_t number) override;
  void send(std::uint32_t from, std::uint32_t to, const Notice& notice, TimeNs delay);
  TimeNs next_post_time() const;
  void deliver_post();
  void deliver_to(std::size_t engine, const Input& input);
  void deliver_routed(Input& input);
  WorldConfig own_config(const WorldConfig& config, std::size_t seat);
  void make_stores(const WorldConfig& config);
  SharedSteps* shared_steps(const WorldConfig& config, std::size_t engine);
  Group& group_of(std::uint32_t seat) { return groups_[seat / ranks_]; }
  JointPass& pass_of(std::uint32_t seat, std::uint64_t ordinal);
  std::uint32_t first_seat_of(std::uint32_t seat) const { return seat - seat % static_cast<std::uint32_t>(ranks_); }
  WorldCore& core_of(std::uint32_t seat, std::size_t rank) { return *cores_[seat / ranks_ * ranks_ + rank]; }
  void settle(std::uint32_t seat, JointPass& pass);
  void deliver_arrival();

  std::size_t engines_, ranks_;  // ranks_: ranks with a seat of their own, else 1
  TimeNs reduce_ns_, notice_ns_;
  SharedState shared_;
  NextSteps next_steps_;
  std::vector<std::unique_ptr<CostModel>> slow_costs_;  // cost models of slower ranks
  std::deque<StoreModel> stores_;
  // Of tiers that several seats use on some machine: the stores of all machines.
  PerTier<std::vector<const StoreModel*>> common_stores_;
  std::vector<std::unique_ptr<WorldCore>> cores_;
  std::vector<Group> groups_;                                  // by engine; empty without instances
  std::map<std::size_t, std::unique_ptr<SharedSteps>> steps_;  // by the first engine on the machine; of groups only
  bool has_roles_ = false;
  TimeNs detect_ns_ = 0;
  std::map<std::pair<TimeNs, std::uint64_t>, Post> posts_;  // by time, then in the order of posting
  std::uint64_t last_post_ = 0;
  std::vector<bool> dead_;  // by engine; empty = none dies
  InputSource* source_ = nullptr;
  LiveSource* live_ = nullptr;  // source_ as a LiveSource, or null
  InputRoute* route_ = nullptr;
  Input arrival_;  // the next input of source_
  bool has_arrival_ = false;
};

// The part of a world that SimGrid and the event heap share. Subclasses implement run_seats().
class SeatedWorld : public World {
 public:
  Substrate& substrate() override { return seated().core(0); }
  TimeNs now() const override { return const_cast<SeatedWorld*>(this)->seated().now(); }
  void watch_lanes(LaneObserver* observer) override { watch_lanes_of(0, observer); }
  void set_progress(void (*tick)(void* context, TimeNs now), void* context) override {
    seated().set_progress(tick, context);
  }
  void run(InputSource& source, InputHandler& handler) override {
    InputHandler* const only = &handler;
    run_seats(source, std::span(&only, 1), nullptr);
  }
  std::optional<Pages> stored_pages_max(Tier tier) const override {
    return const_cast<SeatedWorld*>(this)->seated().stored_pages_max(tier);
  }
  std::optional<Pages> stored_pages_evicted(Tier tier) const override {
    return const_cast<SeatedWorld*>(this)->seated().stored_pages_evicted(tier);
  }
  bool has_died(std::size_t seat) const override {
    return const_cast<SeatedWorld*>(this)->seated().is_dead(static_cast<std::uint32_t>(seat));
  }
  std::size_t seats() const override { return const_cast<SeatedWorld*>(this)->seated().size(); }
  Substrate& substrate_of(std::size_t seat) override { return seated().core(seat); }
  void watch_lanes_of(std::size_t seat, LaneObserver* observer) override { seated().core(seat).watch_lanes(observer); }

 private:
  virtual Seats& seated() = 0;
};

}  // namespace kvtwin

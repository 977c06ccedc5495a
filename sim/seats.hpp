// The seats of a simulated world: one WorldCore each, in one clock. Merges their agendas in the order (time, seat,
// operation), hands out arrivals and hints, and is what the ranks of an engine do together where each has a seat of its
// own (WorldConfig::instances):
// - reductions: the k-th of each rank belong together. Answered to all at once, `reduce_ns` after the last has entered.
// - forward passes: the k-th of each rank belong together, as all-reduces inside tie them. One starts when the last
// rank
//   has submitted it and ends on all ranks at once, by the slowest rank's time; layers wait for the gates of all ranks.
//   A gate that fails anywhere ends it everywhere: gate_failed, or failed on a rank that had none. A cancel by any
//   rank, even one that comes before the start, cuts it for all after the step under way.
// Transfers and storage operations are each rank's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "policy/seam/live_source.hpp"
#include "policy/seam/world.hpp"
#include "sim/store_model.hpp"
#include "sim/world.hpp"
#include "sim/world_core.hpp"

namespace kvtwin {

class Seats final : private Collective {
 public:
  Seats(const WorldConfig& config, FlowBackend& backend);
  ~Seats() override;

  std::size_t size() const { return cores_.size(); }
  WorldCore& core(std::size_t seat) { return *cores_[seat]; }
  const WorldCore& core(std::size_t seat) const { return *cores_[seat]; }
  TimeNs now() const { return shared_.now; }

  // One handler a seat. All outlive the run; `route` may be null if there is one engine.
  void begin(InputSource& source, std::span<InputHandler* const> handlers, InputRoute* route);
  // Time of the next step; kNever when nothing is left but flows.
  TimeNs next_time();
  // Handles what next_time() has told of: an inner event, or one input. Only legal if no flow ends, rounded to the
  // nearest ns, at or before it without flow_ended() having said so.
  void step();

  void set_progress(void (*tick)(void* context, TimeNs now), void* context);
  // Nothing submitted is unanswered.
  bool quiet() const;

 private:
  // One pass of all ranks.
  struct JointPass {
    std::vector<std::uint32_t> slots;  // by rank; kNoSlotIndex = hasn't come to its compute lane
    std::size_t started = 0, ready = 0, ended = 0;
    bool failed = false, settled = false;
    TimeNs start = 0, cancel_time = -1;
  };
  // What the ranks of one engine have entered and not all have left.
  struct Group {
    std::vector<std::deque<std::uint32_t>> reductions;  // slots, by rank
    std::deque<JointPass> passes;
    std::uint64_t first_pass = 0;  // ordinal of passes.front()
  };

  void reduction_entered(std::uint32_t seat, std::uint32_t slot) override;
  void pass_started(std::uint32_t seat, std::uint64_t ordinal, std::uint32_t slot) override;
  void pass_ready(std::uint32_t seat, std::uint64_t ordinal) override;
  void pass_failed(std::uint32_t seat, std::uint64_t ordinal) override;
  void pass_cancelled(std::uint32_t seat, std::uint64_t ordinal) override;
  void pass_ended(std::uint32_t seat, std::uint64_t ordinal) override;

  WorldConfig config_of(const WorldConfig& config, std::size_t seat);
  void make_stores(const WorldConfig& config);
  Group& group_of(std::uint32_t seat) { return groups_[seat / ranks_]; }
  JointPass& pass_of(std::uint32_t seat, std::uint64_t ordinal);
  WorldCore& core_of(std::uint32_t seat, std::size_t rank) { return *cores_[seat / ranks_ * ranks_ + rank]; }
  void settle(std::uint32_t seat, JointPass& pass);
  void deliver_arrival();

  std::size_t engines_, ranks_;  // ranks that have seats
  TimeNs reduce_ns_;
  SharedTurn shared_;
  std::vector<SeatTurn> turns_;
  std::vector<std::unique_ptr<CostModel>> slow_costs_;  // of ranks that are slower
  std::deque<StoreModel> stores_;
  std::vector<std::unique_ptr<WorldCore>> cores_;
  std::vector<Group> groups_;  // by engine; none without instances
  InputSource* source_ = nullptr;
  LiveSource* live_ = nullptr;  // the same, if it is one
  InputRoute* route_ = nullptr;
  Input arrival_;  // pulled one ahead
  bool has_arrival_ = false;
  std::size_t first_ = 0;  // the seat whose turn is next ...
  TimeNs due_ = kNever;    // ... and when
};

// The world that seats make, but for how it runs.
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
  std::size_t seats() const override { return const_cast<SeatedWorld*>(this)->seated().size(); }
  Substrate& substrate_of(std::size_t seat) override { return seated().core(seat); }
  void watch_lanes_of(std::size_t seat, LaneObserver* observer) override { seated().core(seat).watch_lanes(observer); }

 private:
  virtual Seats& seated() = 0;
};

}  // namespace kvtwin

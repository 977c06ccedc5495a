// The steps of an engine with data parallelism of attention. Each group of its ranks has a policy, and thus a seat, of
// its own. The layers with experts are over all ranks, so the groups run their passes together, step by step.
//
// A step begins as soon as the step before it has ended and a group has a pass. It takes the passes that the groups
// have submitted by then, at most one of each; the other groups have nothing to do in it. It lasts
// CostModel::joint_step_ns(), and ends for all of its groups at once. Each pass of it waits for its own gates, and all
// wait for the last one. A failed gate ends its own pass only.
// Thread: single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "policy/seam/cost.hpp"
#include "sim/world_core.hpp"

namespace kvtwin {

class SharedSteps final : public JointPasses {
 public:
  // `wake_at`: calls wake() at a time, after all other events of that time. All arguments outlive this object.
  SharedSteps(const CostModel& cost, const SharedState& shared, std::function<void(TimeNs)> wake_at)
      : cost_(cost), shared_(shared), wake_at_(std::move(wake_at)) {}

  // To be called for the seat of each group, in order.
  void add(WorldCore& core);
  void wake();
  std::size_t groups() const { return groups_.size(); }
  // The engine is dead.
  void stop() { stopped_ = true; }

  void pass_started(std::uint32_t seat, std::uint64_t ordinal, std::uint32_t slot) override;
  void pass_ready(std::uint32_t seat, std::uint64_t ordinal) override;
  void pass_failed(std::uint32_t seat, std::uint64_t ordinal) override;
  // A pass has one step, which is not cut short.
  void pass_cancelled(std::uint32_t, std::uint64_t) override {}
  void pass_ended(std::uint32_t, std::uint64_t) override {}

 private:
  struct Group {
    WorldCore* core = nullptr;
    std::uint32_t slot = kNoSlotIndex;  // of the pass that holds the group's compute lane, until its end is known
    bool ready = false;                 // its gates have landed
    bool joined = false;                // it is in the running step
    TimeNs started = 0;
  };

  Group& group_of(std::uint32_t seat) { return groups_[seat - first_seat_]; }
  void settle();

  const CostModel& cost_;
  const SharedState& shared_;
  std::function<void(TimeNs)> wake_at_;
  std::uint32_t first_seat_ = 0;
  std::vector<Group> groups_;
  bool running_ = false;  // a step has begun and not ended
  bool woken_ = false;    // wake() will be called
  bool stopped_ = false;
  TimeNs start_ = 0, duration_ = 0;  // of the running step
};

}  // namespace kvtwin

#include "sim/shared_steps.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {

void SharedSteps::add(WorldCore& core) {
  if (groups_.empty()) first_seat_ = core.seat();
  groups_.emplace_back().core = &core;
}

void SharedSteps::pass_started(std::uint32_t seat, std::uint64_t, std::uint32_t slot) {
  Group& group = group_of(seat);
  KV_CHECK(group.core->pass_steps(slot) == 1, "groups of attention step together");
  group.slot = slot;
  group.ready = group.joined = false;
  group.started = shared_.now;
  if (running_ || woken_) return;
  woken_ = true;
  wake_at_(shared_.now);
}

void SharedSteps::pass_ready(std::uint32_t seat, std::uint64_t) {
  Group& group = group_of(seat);
  group.ready = true;
  if (group.joined) settle();
}

void SharedSteps::pass_failed(std::uint32_t seat, std::uint64_t) {
  Group& group = group_of(seat);
  const std::uint32_t slot = group.slot;
  const bool joined = group.joined;
  group.slot = kNoSlotIndex;
  group.joined = false;
  PassEnd end{Status::gate_failed, 0, shared_.now - group.started, shared_.now};
  group.core->end_pass_at(slot, group.started, end);
  if (joined) settle();
}

void SharedSteps::wake() {
  woken_ = running_ = false;
  if (stopped_) return;
  std::vector<ForwardShape> shapes;
  for (Group& group : groups_) {
    group.joined = group.slot != kNoSlotIndex;
    if (group.joined) shapes.push_back(group.core->pass_shape(group.slot));
  }
  if (shapes.empty()) return;
  running_ = true;
  start_ = shared_.now;
  duration_ = cost_.joint_step_ns(shapes);
  settle();
}

// As soon as the end of the step is known, sets it on all of its passes.
void SharedSteps::settle() {
  if (stopped_) return;
  TimeNs end = shared_.now;
  for (const Group& group : groups_) {
    if (!group.joined) continue;
    if (!group.ready) return;
    end = std::max({end, start_ + duration_, group.core->pass_gates(group.slot).finish});
  }
  for (Group& group : groups_) {
    if (!group.joined) continue;
    const std::uint32_t slot = std::exchange(group.slot, kNoSlotIndex);
    group.joined = false;
    group.core->end_pass_at(slot, start_, {Status::done, 1, end - start_ - duration_, end, duration_});
  }
  woken_ = true;
  wake_at_(end);
}

}  // namespace kvtwin

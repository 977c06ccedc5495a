// The walk of the ring kernel's two warps over a ring of stages. One warp fills stages, and the other drains them. Two
// barriers per stage (mbarriers in shared memory) tell each warp when the other is done. CPU and kernel use the same
// walk, so a test without a GPU runs it against a model of the barriers and of the asynchronous copies.
#pragma once

#include <cstdint>

#include "kernels/row_transfer.hpp"

namespace kvtwin {

// The batches of segments: first, first + step, ... < end. One batch fills one stage. Requires: stages >= 2, because a
// stage is released only when the next one is being stored.
struct RingWalk {
  std::uint64_t first = 0, step = 1, end = 0;
  std::uint32_t stages = 2;
};

// The place of a warp: a stage, and the parity of the barrier phase that ends when this stage is full in this round.
struct RingPlace {
  std::uint32_t stage = 0, parity = 0;
  KV_HD constexpr void advance(std::uint32_t stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Requires of Warp:
//   wait_empty(stage, parity)   waits until the phase of this parity of the stage's `empty` barrier has ended. Before
//                               the end of the first phase, the phase before it, of parity 1, counts as ended
//   load(batch, stage)          starts the copies into the stage, and makes `full` expect their bytes
//   arrive_full(stage)          all copies have been started
template <typename Warp>
KV_DEVICE inline void fill_ring(const RingWalk& walk, Warp& warp) {
  RingPlace at;
  for (std::uint64_t batch = walk.first; batch < walk.end; batch += walk.step) {
    warp.wait_empty(at.stage, at.parity ^ 1);
    warp.load(batch, at.stage);
    warp.arrive_full(at.stage);
    at.advance(walk.stages);
  }
}

// Requires of Warp:
//   wait_full(stage, parity)    like wait_empty, for `full`; the loaded bytes are then visible
//   store(batch, stage)         starts the copies from the stage, as one group
//   wait_reads_but_one()        waits until all groups except the newest have read their stages
//   arrive_empty(stage)         releases the stage
//   wait_stores()               waits until all groups have written
template <typename Warp>
KV_DEVICE inline void drain_ring(const RingWalk& walk, Warp& warp) {
  RingPlace at;
  std::uint32_t before = walk.stages;  // the stage that was stored last
  for (std::uint64_t batch = walk.first; batch < walk.end; batch += walk.step) {
    warp.wait_full(at.stage, at.parity);
    warp.store(batch, at.stage);
    if (before != walk.stages) {
      warp.wait_reads_but_one();
      warp.arrive_empty(before);
    }
    before = at.stage;
    at.advance(walk.stages);
  }
  warp.wait_stores();
}

}  // namespace kvtwin

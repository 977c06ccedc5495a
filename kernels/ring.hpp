// How the ring kernel's two warps walk a ring of stages: one fills stages, the other drains them, and two barriers a
// stage (mbarriers, in shared memory) tell each when the other is done. The walk is the same on the CPU and in the
// kernel, so that a test without a GPU runs it against a model of the barriers and of the copies, which come and go on
// their own.
#pragma once

#include <cstdint>

#include "kernels/row_transfer.hpp"

namespace kvtwin {

// Batches of segments first, first + step, ... < end; one fills a stage. stages >= 2: a stage is given back only when
// the next one is being stored.
struct RingWalk {
  std::uint64_t first = 0, step = 1, end = 0;
  std::uint32_t stages = 2;
};

// Where a warp is, and the parity of the barriers' phase that ends when this stage is full in this round.
struct RingPlace {
  std::uint32_t stage = 0, parity = 0;
  KV_HD constexpr void advance(std::uint32_t stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Warp:
//   wait_empty(stage, parity)   until the phase of this parity of the stage's `empty` barrier is over; before the first
//                               one ends, the one before it, of parity 1, counts as over
//   load(batch, stage)          begins the copies into the stage, and has `full` expect their bytes
//   arrive_full(stage)          all copies are begun
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

// Warp:
//   wait_full(stage, parity)    as wait_empty; what has been loaded is seen then
//   store(batch, stage)         begins the copies from the stage, as one group
//   wait_reads_but_one()        until all groups but the newest have read their stages
//   arrive_empty(stage)
//   wait_stores()               until all groups have written
template <typename Warp>
KV_DEVICE inline void drain_ring(const RingWalk& walk, Warp& warp) {
  RingPlace at;
  std::uint32_t before = walk.stages;  // the stage that was stored before this one
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

// The results that the ranks of a real run send to rank 0 for the report, after all requests are served.
// Requires: every rank calls the same functions in the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/world.hpp"
#include "lab/report/lane_meter.hpp"
#include "lab/run/real_ranks.hpp"
#include "policy/seam/journal.hpp"

namespace kvtwin {

struct RankOutcome {
  DecisionMark decisions;
  std::uint64_t reductions = 0;
  std::vector<LaneUse> lanes;  // of an engine's first rank: all lanes; else the lanes of the rank's GPU
  PerTier<Pages> used_max = {};
};

// Returns the outcomes of all ranks, in their order, on rank 0; an empty vector on the other ranks.
std::vector<RankOutcome> gather_outcomes(RealRanks& ranks, const RankOutcome& ours);

// Returns on rank 0 the sum of all ranks and all wrong pages, with their ranks; on the other ranks `ours`.
Verification gather_verification(RealRanks& ranks, const Verification& ours);

// Returns the figures of the event loops of all ranks, in their order, on rank 0; an empty vector on the other ranks.
std::vector<LoopReport> gather_loops(RealRanks& ranks, const LoopReport& ours);

// Returns on rank 0 the summed counters of the storage tiers of all ranks; on the other ranks `ours`.
std::vector<StorageCounters> gather_counters(RealRanks& ranks, const std::vector<StorageCounters>& ours);

}  // namespace kvtwin

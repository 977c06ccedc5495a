// What the ranks of a real run tell rank 0 when all has been served, for its report.
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
  std::vector<LaneUse> lanes;  // that are its own: its GPU's
};

// By rank, on rank 0; nothing elsewhere.
std::vector<RankOutcome> gather_outcomes(RealRanks& ranks, const RankOutcome& ours);

// Rank 0: what all have checked, and who found what is wrong. Elsewhere: ours.
Verification gather_verification(RealRanks& ranks, const Verification& ours);

// Likewise: what the storage tiers of all ranks have counted, in sum.
std::vector<StorageCounters> gather_counters(RealRanks& ranks, const std::vector<StorageCounters>& ours);

}  // namespace kvtwin

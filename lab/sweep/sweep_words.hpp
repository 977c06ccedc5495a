// The output of a sweep: tables, crossovers of pairs of cases along the x axis, and the last sentence.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/sweep/sweep_plan.hpp"
#include "models/json.hpp"

namespace kvtwin {

// One row of figures per cell, in the order of SweepPlan::cells().
using SweepRows = std::vector<Json>;

// A setting is compared only if it completes at least this share of the highest number of completed requests
// (--min-served, in
// %). Reason: latencies leave out rejected requests, so a setting that rejects requests would look fast.
inline constexpr double kMinServedShare = 0.99;
// Returns completed requests / all requests of a row; 0 without requests.
double served_share(const Json& row);

// The part of the x axis in which the first case of a pair is slower than the second, by mean TTFT. Slower: by more
// than 1 %. The crossing is interpolated on logarithmic axes between two cells. If one of two cells completes less than
// `min_served` of the other's requests, the cells are not compared.
enum class Slower : std::uint8_t { nowhere, everywhere, below, above, not_compared };
std::string_view name_of(Slower slower);
struct Crossover {
  std::size_t pair = 0;                              // of SweepPlan::pairs
  std::vector<std::optional<std::size_t>> settings;  // value of each axis but `along`, unless both cases set the key
  Slower slower = Slower::nowhere;
  double at = 0;                           // the crossing, for below and above
  double first_ratio = 1, last_ratio = 1;  // ratio of the mean TTFTs at the lowest and the highest compared value
  std::size_t left_out = 0;                // number of x values whose cells are not compared
};

std::vector<Crossover> crossovers_of(const SweepPlan& plan, const SweepRows& rows, double min_served);

// Returns the unit of a key, e.g. "GB/s" for hardware.set.remote_gbps; empty if the name has no unit.
std::string unit_of(std::string_view key);

// Returns one table for each shown figure and each combination of the axes other than `along`, with the cases side by
// side. Without an x axis or cases: one line per cell. If there are too many tables, only the first figure is shown. An
// absent figure is "-". Each table has the shares of rejected and failed requests.
std::string sweep_tables(const SweepPlan& plan, const SweepRows& rows);
// Returns one line: for each pair, where its first case is slower. Empty without pairs.
std::string sweep_sentence(const SweepPlan& plan, const std::vector<Crossover>& crossovers, double min_served);

}  // namespace kvtwin

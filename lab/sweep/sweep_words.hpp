// What a sweep's rows amount to: crossovers of pairs of cases along the sweep's x axis, the tables on the terminal,
// and the sentence at the end.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/sweep/sweep_plan.hpp"

namespace kvtwin {

// Rows of figures by cell, in the order of SweepPlan::cells().
using SweepRows = std::vector<nlohmann::ordered_json>;

// Settings that send requests away are not held against those that serve them: to be compared, a setting completes at
// least this share of what the setting that completes most does (--min-served, in %).
inline constexpr double kMinServedShare = 0.99;
// Of a row: completed requests as a share of all; 0 without requests.
double served_share(const nlohmann::ordered_json& row);

// Along the x axis, by mean TTFT: where the first case of a pair is slower than the second. Slower means by more than
// 1 %; what is less is called equal. Interpolated on logarithmic axes between the two cells around it. Two cells of
// which one completes less than `min_served` of what the other completes are not compared.
enum class Slower : std::uint8_t { nowhere, everywhere, below, above, not_compared };
std::string_view name_of(Slower slower);
struct Crossover {
  std::size_t pair = 0;                              // of SweepPlan::pairs
  std::vector<std::optional<std::size_t>> settings;  // of the axes: those that neither is pinned to, but `along`
  Slower slower = Slower::nowhere;
  double at = 0;                           // below, above
  double first_ratio = 1, last_ratio = 1;  // of the mean TTFTs, at the lowest and the highest value that are compared
  std::size_t left_out = 0;                // values of the x axis whose cells are not compared
};

std::vector<Crossover> crossovers_of(const SweepPlan& plan, const SweepRows& rows, double min_served);

// GB/s for hardware.remote_gbps; empty if the key doesn't tell.
std::string unit_of(std::string_view key);

// One table for each shown figure and combination of the axes besides `along`, cases side by side; when those are
// many, or there is no such axis, one line a cell. A figure that a cell doesn't have is "-". Every table tells which
// share of the requests was rejected and failed.
std::string sweep_tables(const SweepPlan& plan, const SweepRows& rows);
// One line: of each pair, below what its first case is slower. Empty without pairs.
std::string sweep_sentence(const SweepPlan& plan, const std::vector<Crossover>& crossovers, double min_served);

}  // namespace kvtwin

// Ladders of loads: the stages of one published entry, run folder or benchmark beside each other, and their knees.
//
// A knee is the first stage whose figure is over a limit, e.g. the first load at which the p90 TTFT is over 2 s. The
// error of a knee is in stages: predicted - measured. A ladder that stays within the limit has its knee behind its last
// stage.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/validate/validate_report.hpp"
#include "models/json.hpp"

namespace kvtwin {

// Reads "ttft_p90_s=2" (kvtwin validate --knee). Errors: InputError, also for a figure of which more is better.
std::pair<std::string, double> knee_limit_from(const std::string& text);
// Returns why the figure can have no knee; empty if it can.
std::string why_no_knee(std::string_view figure);

struct Knee {
  const FigureKind* kind = nullptr;
  double limit = 0;
  std::optional<std::size_t> measured, predicted;  // number of the stage, from 1; nothing: no stage is over the limit
  std::size_t stages = 0;                          // of the ladder
  double error() const;                            // in stages
};

struct Ladder {
  std::string name;
  std::vector<const ValidatedCell*> stages;
  std::vector<Knee> knees;
  std::vector<std::string> without;  // figures of limits that a stage does not have on both sides
};
// Returns the ladders of at least two stages, in the order of the cells. `limits`: by figure, of all ladders; an
// entry's own limits come first. Requires: `cells` outlive the result.
std::vector<Ladder> ladders_of(const std::vector<ValidatedCell>& cells, const std::map<std::string, double>& limits);

// The knees of all ladders with one limit.
struct KneeScore {
  const FigureKind* kind = nullptr;
  double limit = 0;
  std::size_t ladders = 0, equal = 0, left_out = 0;  // left out: ladders that lack the figure in a stage
  double mean_abs = 0, bias = 0;                     // of the errors, in stages
};
std::vector<KneeScore> knee_scores(const std::vector<Ladder>& ladders);

// Returns one table per ladder, a row per stage: TTFT, TPOT and throughput, measured and predicted.
std::string ladders_text(const std::vector<Ladder>& ladders);
std::string knee_scores_text(const std::vector<KneeScore>& scores);
Json ladders_json(const std::vector<Ladder>& ladders);
Json knee_scores_json(const std::vector<KneeScore>& scores);

}  // namespace kvtwin

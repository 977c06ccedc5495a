// Compares settings of one experiment. For each setting: the mean of its figures over the seeds with a 95 % interval,
// or its figures on the hardware as given and on hardware variants (models/hardware_draws.hpp). Marks the best setting,
// the settings that are as good, and the settings that meet a goal.
//
// A varied key is a choice (keys of cache and scheduler, cluster.route) or a circumstance (all other keys: tiers,
// hardware, workload). Settings are compared under equal circumstances. If no choice varies, all settings are compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/figures.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "lab/sweep/sweep_words.hpp"

namespace kvtwin {

// The runs of one setting: one per seed, or one on the hardware as given and one per hardware variant.
struct Repeats {
  std::size_t seeds = 1, draws = 0;  // only one of the two may differ from its default
  std::size_t runs() const { return draws == 0 ? seeds : draws + 1; }
};

struct Estimate {
  double mean = 0;             // over the seeds; with draws, the figure on the hardware as given
  std::optional<double> half;  // half the 95 % confidence interval of the mean (Student's t); nothing for one value
  std::optional<std::pair<double, double>> range;  // range of 95 % of the hardware variants
};
// `values`: one per seed.
Estimate estimate(std::span<const double> values);

// The mark of a figure. equal: the differences from the best setting, seed by seed or variant by variant, have an
// interval that includes 0; with one run, the figure is the same. If all settings are equal, there is no best. A
// setting that completes less than `min_served` of the highest number of completed requests has no mark.
enum class Standing : std::uint8_t { none, best, equal };

struct ComparedSetting {
  SweepCell place;                               // of the first run
  std::vector<std::optional<Estimate>> figures;  // by index in lab/report/figures.hpp; nothing if a run has no figure
  std::vector<Standing> standing;                // as `figures`
  // Over all runs; with draws, on the hardware as given.
  double served_share = 0, rejected_share = 0, failed_share = 0;
  bool serves_enough = true;                  // completes enough requests for a mark
  std::string failure;                        // reason of a failed run; empty = no failure
  std::vector<std::string> digests;           // of the decisions, by run
  double goal_share = 0;                      // share of the runs (with draws: of the variants) that meet the goal
  bool meets_goal = false;                    // the figure meets the goal, and enough requests complete
  bool only_figure_meets = false;             // the figure meets the goal, but too few requests complete
  std::optional<std::size_t> same_decisions;  // first setting of the group with the same decisions
};

struct Comparison {
  std::vector<bool> is_choice;                   // by axis of the plan, without the axis of seeds or draws
  std::vector<ComparedSetting> settings;         // in the order of the plan
  std::vector<std::vector<std::size_t>> groups;  // settings under equal circumstances
  bool has_noise = false;                        // a figure of a setting differs between runs
};

// `rows`: one per cell. The runs of a setting are neighbours: seeds or draws are the last axis of the plan.
Comparison compare_rows(const SweepPlan& plan, const SweepRows& rows, const Repeats& repeats,
                        const std::optional<Goal>& goal = {}, double min_served = kMinServedShare);

// Returns whether the axis is the size of a tier.
bool is_capacity(const SweepAxis& axis);

// The smallest size that meets the goal, for one combination of the other axes. The axis is the tier size with the most
// values (of equals the first). All larger sizes also meet the goal.
struct GoalLine {
  std::vector<std::pair<std::size_t, std::size_t>> others;  // axis, and index of its value
  // Index of the size whose figure meets the goal; and of the size at which 97.5 % of the runs meet the goal. Nothing:
  // not even the largest.
  std::optional<std::size_t> from, surely_from;
};
struct GoalLines {
  std::optional<std::size_t> along;  // the axis of the size; nothing: no size varies, and a line is a setting
  std::vector<GoalLine> lines;
  std::size_t only_figure_meets = 0;  // settings whose figure meets the goal, but too few requests complete
};
GoalLines goal_lines(const SweepPlan& plan, const Comparison& comparison);
std::string goal_text(const SweepPlan& plan, const Comparison& comparison, const Goal& goal, const Repeats& repeats);

// Returns one row per setting: axes, figures with `_ci95` (half the interval, or null; with draws `_low` and `_high`)
// and
// `_standing`; with a goal also `meets_goal` and `goal_share`.
SweepRows comparison_rows(const SweepPlan& plan, const Comparison& comparison, const Repeats& repeats,
                          const std::optional<Goal>& goal = {});
// Returns the table: one line per setting, grouped by circumstances, with the optimal figures below each group, then
// the meaning of the marks. `drawn`: seeds change the work. A column has enough digits that each printed figure is on
// the same side of the goal, and of the best figure, as the figure itself.
std::string comparison_text(const SweepPlan& plan, const Comparison& comparison, const Repeats& repeats, bool drawn,
                            const std::optional<Goal>& goal = {}, double min_served = kMinServedShare);

}  // namespace kvtwin

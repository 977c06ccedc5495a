// What runs of one piece of work under several settings amount to: of each setting the mean of its figures over the
// seeds, and how sure that is, or its figures on the machine, and on those that it may be (models/hardware_draws.hpp);
// which is the best, and which are as good as far as can be told; and which meet a goal.
//
// What varies is a choice (keys of cache and scheduler, cluster.route) or a circumstance (all others: tiers, hardware,
// work). Settings are held against each other under equal circumstances; where no choice varies, all against all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lab/sweep/sweep_plan.hpp"
#include "lab/sweep/sweep_words.hpp"

namespace kvtwin {

// Runs of one setting: as many seeds; or the machine itself, and as many machines that it may be.
struct Repeats {
  std::size_t seeds = 1, draws = 0;  // one of the two is more than that
  std::size_t runs() const { return draws == 0 ? seeds : draws + 1; }
};

struct Estimate {
  double mean = 0;             // of the seeds; with draws, of the machine itself
  std::optional<double> half;  // of the mean's 95 % confidence interval (Student's t); none of a single value
  std::optional<std::pair<double, double>> range;  // of 95 % of the draws
};
// One value a seed.
Estimate estimate(std::span<const double> values);

// Beside the best one's: `equal` is one whose differences from it, seed by seed or draw by draw, have an interval that
// includes 0; of a single run, the very same figure. Where that is so of all settings, none is the best: all are equal.
// A setting that completes less than `min_served` of what the setting that completes most does has no standing.
enum class Standing : std::uint8_t { none, best, equal };

struct ComparedFigure {
  const char* name = "";     // in JSON
  const char* heading = "";  // of the table
  double scale = 1;          // ... in which it is shown times that
  enum class Better : std::uint8_t { neither, more, less } better = Better::neither;
};
// hit_ratio, saved_s, gap_closed, TTFT's mean, p90 and p99; then those of hit-optimal and of LRU with the same
// capacity.
inline constexpr std::size_t kComparedFigures = 10, kShownFigures = 6;
std::span<const ComparedFigure, kComparedFigures> compared_figures();

struct ComparedSetting {
  SweepCell place;                                                // the first run's
  std::array<std::optional<Estimate>, kComparedFigures> figures;  // none: not of every run
  std::array<Standing, kComparedFigures> standing{};
  // Of the requests of all runs; with draws, of the machine itself.
  double served_share = 0, rejected_share = 0, failed_share = 0;
  bool serves_enough = true;                  // to have a standing
  std::string failure;                        // why a run of it failed; empty = none did
  std::vector<std::string> digests;           // of its decisions, by run
  double goal_share = 0;                      // of its runs (draws: without the machine itself) that meet the goal
  bool meets_goal = false;                    // its figure does, and enough requests are completed
  bool only_figure_meets = false;             // its figure does, but too few requests are completed
  std::optional<std::size_t> same_decisions;  // the first setting under these circumstances that decided the same
};

struct Comparison {
  std::vector<bool> is_choice;                   // by axis of the plan; the seeds' is neither
  std::vector<ComparedSetting> settings;         // in the plan's order
  std::vector<std::vector<std::size_t>> groups;  // settings under equal circumstances
  bool has_noise = false;                        // any figure of any setting differs between its runs
};

// A figure that shall be no worse than this, with at least `min_served` of all requests completed.
struct Goal {
  std::size_t figure = 0;  // of compared_figures()
  double value = 0;
  // "ttft_p90_s=2"; InputError if it isn't one.
  static Goal from_text(const std::string& text);
  bool met_by(double figure_value) const;
};

// `rows` of all cells; so many of them at a time are of one setting, the plan's last axis if there is more than one.
Comparison compare_rows(const SweepPlan& plan, const SweepRows& rows, const Repeats& repeats,
                        const std::optional<Goal>& goal = {}, double min_served = kMinServedShare);

// A key of a tier's size, whose values are numbers.
bool is_capacity(const SweepAxis& axis);

// Along the capacity that has the most values (of equals the first), the others being equal: from which size on the
// goal is met, up to the largest; and from which on 97.5 % of the runs meet it.
struct GoalLine {
  std::vector<std::pair<std::size_t, std::size_t>> others;  // axis and index of its value
  std::optional<std::size_t> from, surely_from;             // index of the capacity's value; none: not even the largest
};
struct GoalLines {
  std::optional<std::size_t> along;  // the capacity's axis; none: no capacity varies, and a line is a setting
  std::vector<GoalLine> lines;
  std::size_t only_figure_meets =
      0;  // settings that complete too few requests to meet the goal that their figure meets
};
GoalLines goal_lines(const SweepPlan& plan, const Comparison& comparison);
std::string goal_text(const SweepPlan& plan, const Goal& goal, const GoalLines& lines, const Repeats& repeats);

// A row a setting: its axes, figures, their `_ci95` (half an interval, null without; draws: `_low` and `_high`) and
// `_standing`; with a goal `meets_goal` and `goal_share`.
SweepRows comparison_rows(const SweepPlan& plan, const Comparison& comparison, const Repeats& repeats,
                          const std::optional<Goal>& goal = {});
// A line a setting, those under equal circumstances together, and below them what optimal would hit; then what the
// marks mean. `drawn`: something in the work is drawn, so that other seeds would give other figures. A column has so
// many digits that each of its figures is on the same side of the goal, and of the best one's, as it is printed.
std::string comparison_text(const SweepPlan& plan, const Comparison& comparison, const Repeats& repeats, bool drawn,
                            const std::optional<Goal>& goal = {}, double min_served = kMinServedShare);

}  // namespace kvtwin

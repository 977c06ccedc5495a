// What runs of one piece of work under several settings amount to: of each setting the mean of its figures over the
// seeds, and how sure that is; which is the best, and which are as good as far as can be told.
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
#include <vector>

#include "cli/sweep_plan.hpp"
#include "cli/sweep_words.hpp"

namespace kvtwin {

// A mean of one value a seed, and half of its 95 % confidence interval (Student's t); none of a single value.
struct Estimate {
  double mean = 0;
  std::optional<double> half;
};
Estimate estimate(std::span<const double> values);

// Beside the best one's: `equal` is one whose differences from it, seed by seed, have an interval that includes 0; with
// one seed, the very same figure.
enum class Standing : std::uint8_t { none, best, equal };

struct ComparedFigure {
  const char* name = "";     // in JSON
  const char* heading = "";  // of the table
  double scale = 1;          // ... in which it is shown times that
  enum class Better : std::uint8_t { neither, more, less } better = Better::neither;
};
// hit_ratio, saved_s, gap_closed, TTFT's mean and p99; then those of hit-optimal and of LRU with the same capacity.
inline constexpr std::size_t kComparedFigures = 9, kShownFigures = 5;
std::span<const ComparedFigure, kComparedFigures> compared_figures();

struct ComparedSetting {
  SweepCell place;                                                // the first seed's
  std::array<std::optional<Estimate>, kComparedFigures> figures;  // none: not of every run
  std::array<Standing, kComparedFigures> standing{};
  std::vector<std::string> digests;           // of its decisions, by seed
  std::optional<std::size_t> same_decisions;  // the first setting under these circumstances that decided the same
};

struct Comparison {
  std::vector<bool> is_choice;                   // by axis of the plan; the seeds' is neither
  std::vector<ComparedSetting> settings;         // in the plan's order
  std::vector<std::vector<std::size_t>> groups;  // settings under equal circumstances
  bool has_noise = false;                        // any figure of any setting differs between seeds
};

// `rows` of all cells; `seeds` of them at a time are of one setting, the plan's last axis if there is more than one.
Comparison compare_rows(const SweepPlan& plan, const SweepRows& rows, std::size_t seeds);

// A row a setting: its axes, figures, their `_ci95` (half an interval, null without) and `_standing`.
SweepRows comparison_rows(const SweepPlan& plan, const Comparison& comparison, std::size_t seeds);
// A line a setting, those under equal circumstances together, and below them what optimal would hit; then what the
// marks mean. `drawn`: something in the work is drawn, so that other seeds would give other figures.
std::string comparison_text(const SweepPlan& plan, const Comparison& comparison, std::size_t seeds, bool drawn);

}  // namespace kvtwin

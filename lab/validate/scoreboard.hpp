// Scores of predictions over many cells: for each figure, over all cells and for each group of cells.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lab/validate/validate_report.hpp"
#include "models/json.hpp"

namespace kvtwin {

// Errors as in validate_errors.hpp: relative, or a difference for a share.
struct FigureScore {
  std::string group;  // "" = all cells
  const FigureKind* kind = nullptr;
  std::size_t cells = 0;     // cells with this figure on both sides
  std::size_t left_out = 0;  // cells in which the figure was measured and has no error: in no number below
  double mean_abs = 0;       // mean of |error|; MAPE for a figure that is no share
  double bias = 0;           // mean of the error
  double p90 = 0;            // of |error|, nearest rank
  std::size_t with_interval = 0, inside = 0;  // cells with an 80 % interval; those whose measured figure is in it
  // Cells whose setting was published again with another figure: no prediction has a mean |error| below `floor` there.
  std::size_t repeated = 0, settings = 0;
  std::optional<double> floor{};  // nothing if `repeated` is 0
  double repeated_mean_abs = 0;   // of the predictions of these cells
  std::optional<double> tau{};    // Kendall's tau-b of the cells
  std::size_t choices = 0;        // works with at least two cells: the simulator chooses one of them
  std::optional<double> regret_mean{}, regret_max{};  // measured cost of the choices, relative to the best cell
};

// Figures in the order of figure_kinds(); all cells first, then groups in order of appearance. A figure of less than
// two cells has no score. A higher throughput and more hits are better; less of any other figure is better. A cell
// whose figure is 0 is in no choice.
std::vector<FigureScore> scoreboard(const std::vector<ValidatedCell>& cells);

// Also one row for each figure with settings that were published again: their spread.
std::string scoreboard_text(const std::vector<FigureScore>& scores);
Json scoreboard_json(const std::vector<FigureScore>& scores);

}  // namespace kvtwin

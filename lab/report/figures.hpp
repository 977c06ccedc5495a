// The figures of a run that rows of compare, goals and plans share. A row has one member per figure, with the
// figure's name, and null if the run does not have the figure.
//
// Units: the end of a name: _s seconds, _share and _ratio 0 to 1, _bytes bytes, _per_second, _per_day. Without such an
// end, the value is a count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/json.hpp"

namespace kvtwin {

struct RunFigure {
  // plain: a number without a unit; count: a number that may have a prefix (1.2 M).
  enum class Unit : std::uint8_t { plain, count, seconds, share, bytes, gigabytes_per_second, years, kilowatts };
  enum class Better : std::uint8_t { neither, more, less };
  // always: a column of each comparison; if_present: a column if a setting has the figure, or a goal names it;
  // on_demand: a column if a goal names it; never: no column.
  enum class Column : std::uint8_t { always, if_present, on_demand, never };

  std::string_view name;
  std::string_view words;    // of drawings and pages
  std::string_view heading;  // of a table's column
  double scale = 1;          // factor for the table
  Unit unit = Unit::plain;
  Better better = Better::neither;
  Column column = Column::on_demand;
  std::string_view help;  // one line without a full stop
};

std::span<const RunFigure> figures();
// Returns further figures of a simulation's row. They are no goals and no columns of a comparison.
std::span<const RunFigure> row_figures();
// Returns the description of all these figures: {"ttft_p90_s": {"words", "unit", "better", "help"}}. `better` is absent
// if neither direction is. The Python package draws by this list (tools/docs writes python/kvtwin/run_figures.json).
Json figures_json();
// Returns the index in figures(). Requires: the name is a figure's.
std::size_t figure_index(std::string_view name);

// Returns the direction of each figure that has one: {"ttft_p90_s": "less"}.
Json better_json();

// A goal: a figure that must not be worse than `value`. Figures that are neither better nor worse are no goals.
struct Goal {
  std::size_t figure = 0;  // index in figures()
  double value = 0;
  // Reads "ttft_p90_s=2". Errors: InputError.
  static Goal from_text(const std::string& text);
  bool met_by(double figure_value) const;
};

// Returns the figures of report.json (docs/reference/report.md), and the counts that they are made of.
Json report_figures(const Json& report);

}  // namespace kvtwin

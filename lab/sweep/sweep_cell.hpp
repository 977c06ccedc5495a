// A cell of a sweep: its simulation, which runs in a child process, and its row of figures.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lab/child_processes.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "models/json.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct CellRun {
  SweepCell place;
  std::uint64_t objects_a_page = 0;  // storage objects per page, all ranks together
  Bytes page_bytes = 0;              // all ranks together
  std::string identity;              // hash of the build, the settings and the contents of files
  std::vector<IdleKey> idle_keys;
  std::string engine;   // engine_line()
  std::string assumed;  // assumed_traffic()
};
// Returns a line for each different engine_line() of the cells, in their order.
std::string engine_lines(const std::vector<CellRun>& cells);
// Returns a line that says which part of the runs the figures are of; nothing without a row that has figures.
std::string measured_line(const std::vector<Json>& rows);
// Returns a line with the 80 % intervals of all times of the rows, as factors; nothing without a row that has them.
std::string intervals_line(const std::vector<Json>& rows);
// Returns the keys without effect in all cells.
std::vector<IdleKey> idle_in_all(const std::vector<CellRun>& cells);

// Returns the cells of the plan. Errors: InputError for everything that can be checked before the first cell runs.
std::vector<CellRun> cell_runs(const SweepPlan& plan, const Experiment& base);

// Returns the result of a cell's simulation, for row_of(). Thread: one call per process.
std::string simulated_cell(const Experiment& experiment, double warm_up);

// Returns the row of a cell: place, figures, settings, identity. A failed cell has `failure` (the reason) and `exit`
// (its exit code) instead of the figures.
Json row_of(const SweepPlan& plan, const CellRun& cell, std::size_t number, const ChildEnd& end);
bool has_failed(const Json& row);
// Returns an earlier row with the same identity at its new place.
Json row_again(const SweepPlan& plan, const CellRun& cell, std::size_t number, const Json& earlier);

}  // namespace kvtwin

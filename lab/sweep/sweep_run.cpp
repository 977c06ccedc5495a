#include "lab/sweep/sweep_run.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "lab/error.hpp"
#include "lab/sweep/sweep_cell.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;

// Takes the earlier rows of these cells. Errors: InputError if the folder has rows of other cells.
void take_earlier(const SweepArguments& arguments, const SweepPlan& plan, const std::vector<CellRun>& cells,
                  const SweepFolder& folder, SweepRows& rows) {
  const std::map<std::string, Json> earlier = folder.earlier();
  std::set<std::string> used;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto row = earlier.find(cells[i].identity);
    if (row == earlier.end()) continue;
    used.insert(row->first);
    rows[i] = row_again(plan, cells[i], i, row->second);
  }
  if (used.size() < earlier.size()) {
    throw InputError("--out " + arguments.out + ": holds " + std::to_string(earlier.size() - used.size()) +
                     " cells that aren't of this sweep (of other settings, or of another build); name another "
                     "folder, or --force to begin again");
  }
}

// Runs the cells in `wanted` that have no row yet.
void run_cells(const SweepPlan& plan, const Experiment& base, const std::vector<CellRun>& cells,
               const std::vector<std::size_t>& wanted, std::size_t jobs, SweepFolder* folder, SweepRows& rows,
               const Listener& listener) {
  std::vector<std::size_t> left;
  for (const std::size_t cell : wanted) {
    if (rows[cell].is_null()) left.push_back(cell);
  }
  if (left.size() < wanted.size()) {
    listener.begin(std::to_string(wanted.size() - left.size()) + " of " + std::to_string(wanted.size()) +
                   " cells are there already");
  }
  const Clock::time_point start = Clock::now();
  std::size_t done = 0;
  const auto simulate_one = [&](std::size_t number) {
    return simulated_cell(plan.experiment(base, cells[left[number]].place), plan.warm_up);
  };
  run_children(left.size(), jobs, simulate_one, [&](const ChildEnd& end) {
    const std::size_t cell = left[end.number];
    Json& row = rows[cell] = row_of(plan, cells[cell], cell, end);
    if (folder != nullptr && !has_failed(row)) folder->keep(row);  // a failed cell is run again next time
    ++done;
    if (listener.cells) {
      listener.cells({done, left.size(), std::chrono::duration<double>(Clock::now() - start).count()});
    }
  });
}

}  // namespace

void finish_plan(const SweepArguments& arguments, SweepPlan& plan, Experiment& base, const Listener& listener) {
  for (const std::string& list : arguments.lists) plan.vary(list);
  plan.check();
  for (const std::string& set : arguments.sets) {
    const std::string key = set.substr(0, set.find('='));
    for (const SweepAxis& axis : plan.axes) {
      if (std::ranges::find(axis.keys, key) != axis.keys.end()) {
        throw InputError("--set " + set + ": the sweep varies " + key + "; give --vary " + axis.name +
                         "=... instead, of one value or more");
      }
    }
  }
  std::vector<std::string> set_later = arguments.sets;
  for (const SweepAxis& axis : plan.axes) set_later.insert(set_later.end(), axis.keys.begin(), axis.keys.end());
  apply_engine_arguments(arguments.server, set_later, base);
  for (const std::string& set : arguments.sets) base.set(set);
  if (!arguments.world.empty()) base.set("sim.world=" + arguments.world, "--world");
  for (const std::string& note : arguments.notes) base.note(note);
  for (const std::string& note : base.notes()) listener.tell(note);
}

SweptRows run_sweep(const SweepArguments& arguments, const SweepPlan& plan, const Experiment& base,
                    const Listener& listener) {
  SweptRows swept;
  if (!arguments.shard.empty()) swept.shard = Shard::from_text(arguments.shard);
  const std::vector<CellRun> cells = cell_runs(plan, base);
  for (const std::string& sentence : idle_sentences(idle_in_all(cells))) listener.tell(sentence);
  std::set<std::string> assumed;
  for (const CellRun& cell : cells) {
    if (!cell.assumed.empty() && assumed.insert(cell.assumed).second) listener.tell(cell.assumed);
  }
  swept.engines = engine_lines(cells);
  swept.rows.resize(cells.size());
  if (!arguments.out.empty()) {
    swept.folder.emplace(arguments.out, swept.shard, arguments.force);
    take_earlier(arguments, plan, cells, *swept.folder, swept.rows);
  }
  std::vector<std::size_t> wanted;
  for (std::size_t cell = 0; cell < cells.size(); ++cell) {
    if (!swept.shard || swept.shard->holds(cell)) wanted.push_back(cell);
  }
  run_cells(plan, base, cells, wanted, children_at_once(arguments.jobs), swept.folder ? &*swept.folder : nullptr,
            swept.rows, listener);
  if (std::ranges::all_of(wanted, [&](std::size_t cell) { return has_failed(swept.rows[cell]); }) && !wanted.empty()) {
    const Json& row = swept.rows[wanted.front()];
    const std::string sentence =
        plan.name_of(cells[wanted.front()].place) + ": " + row.at("failure").get<std::string>();
    if (row.at("exit") == 2) throw InputError(sentence);
    throw WorkError(sentence);
  }
  return swept;
}

std::string failures_sentence(const SweepPlan& plan, const SweptRows& swept) {
  const std::vector<SweepCell> cells = plan.cells();
  std::size_t made = 0, failed = 0;
  std::string first;
  for (std::size_t cell = 0; cell < swept.rows.size(); ++cell) {
    const Json& row = swept.rows[cell];
    if (row.is_null()) continue;
    ++made;
    if (has_failed(row) && failed++ == 0)
      first = plan.name_of(cells[cell]) + ": " + row.at("failure").get<std::string>();
  }
  if (failed == 0) return "";
  return std::to_string(failed) + " of " + std::to_string(made) + " cells failed, the first of them " + first +
         "; the same command " + (swept.folder ? "runs the failed simulations again" : "runs all again");
}

std::string shard_text(const SweepArguments& arguments, const SweptRows& swept) {
  SweepRows own;
  for (std::size_t cell = 0; cell < swept.rows.size(); ++cell) {
    if (swept.shard->holds(cell)) own.push_back(swept.rows[cell]);
  }
  if (arguments.json) return json_lines(own);
  const auto there =
      static_cast<std::size_t>(std::ranges::count_if(swept.rows, [](const Json& row) { return !row.is_null(); }));
  return "shard " + arguments.shard + ": its " + std::to_string(own.size()) + " cells are in " + arguments.out + ", " +
         std::to_string(there) + " of " + std::to_string(swept.rows.size()) +
         " in all; without --shard the same command makes one of them\n";
}

}  // namespace kvtwin

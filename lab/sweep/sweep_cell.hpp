// A cell of a sweep: its simulation in a child process (SimGrid has one world per process), and its row of figures.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct CellRun {
  SweepCell place;
  std::uint64_t objects_a_page = 0;  // storage objects per page, all ranks together
  Bytes page_bytes = 0;              // all ranks together
  std::string identity;              // hash of the build, the settings and the contents of files
  std::vector<IdleKey> idle_keys;
};
// Returns the keys without effect in all cells.
std::vector<IdleKey> idle_in_all(const std::vector<CellRun>& cells);

// Returns the cells of the plan. Errors: InputError for everything that can be checked before the first cell runs.
std::vector<CellRun> cell_runs(const SweepPlan& plan, const Experiment& base);

// The end of a cell's process.
struct CellEnd {
  std::size_t cell = 0;
  std::string said;  // the text that the process sent
  int status = 0;    // of waitpid()
};

// Returns the row of a cell: place, figures, settings, identity. A failed cell has `failure` (the reason) and `exit`
// (its exit code) instead of the figures.
nlohmann::ordered_json row_of(const SweepPlan& plan, const CellRun& cell, std::size_t number, const CellEnd& end);
bool has_failed(const nlohmann::ordered_json& row);
// Returns an earlier row with the same identity at its new place.
nlohmann::ordered_json row_again(const SweepPlan& plan, const CellRun& cell, std::size_t number,
                                 const nlohmann::ordered_json& earlier);

// Running cells. The destructor kills processes that still run.
class CellProcesses {
 public:
  CellProcesses() = default;
  ~CellProcesses();
  CellProcesses(const CellProcesses&) = delete;
  CellProcesses& operator=(const CellProcesses&) = delete;

  std::size_t size() const { return list_.size(); }
  void start(const Experiment& experiment, double warm_up, std::size_t cell);
  // Waits for the next cell that ends.
  CellEnd wait();

 private:
  struct Child {
    pid_t id = -1;
    int pipe = -1;
    std::size_t cell = 0;
    std::string text;
  };
  static int end(Child& child);  // returns the status of waitpid()
  std::vector<Child> list_;
};

}  // namespace kvtwin

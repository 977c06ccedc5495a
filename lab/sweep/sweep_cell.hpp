// A cell of a sweep: simulated by a process of its own (SimGrid has one world a process), and the row of figures that
// comes of it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct CellRun {
  SweepCell place;
  std::uint64_t objects_a_page = 0;  // of all ranks
  Bytes page_bytes = 0;              // likewise
  std::string identity;              // of everything that its row depends on, wherever its files lie
  std::vector<IdleKey> idle_keys;
};
// Keys that have no effect in any of the cells.
std::vector<IdleKey> idle_in_all(const std::vector<CellRun>& cells);

// Everything that can be refused before the first cell runs is: InputError.
std::vector<CellRun> cell_runs(const SweepPlan& plan, const Experiment& base);

// How a cell's process ended.
struct CellEnd {
  std::size_t cell = 0;
  std::string said;
  int status = 0;  // as waitpid gives it
};

// A cell's row: place, figures, settings, identity. If the cell failed, `failure` (why) and `exit` (the exit code that
// the failure has) stand in the figures' place.
nlohmann::ordered_json row_of(const SweepPlan& plan, const CellRun& cell, std::size_t number, const CellEnd& end);
bool has_failed(const nlohmann::ordered_json& row);
// An earlier row of the same identity, whose place may have been another.
nlohmann::ordered_json row_again(const SweepPlan& plan, const CellRun& cell, std::size_t number,
                                 const nlohmann::ordered_json& earlier);

// Cells under way. Whoever is left when it goes is ended.
class CellProcesses {
 public:
  CellProcesses() = default;
  ~CellProcesses();
  CellProcesses(const CellProcesses&) = delete;
  CellProcesses& operator=(const CellProcesses&) = delete;

  std::size_t size() const { return list_.size(); }
  void start(const Experiment& experiment, double warm_up, std::size_t cell);
  // The next one that has ended.
  CellEnd wait();

 private:
  struct Child {
    pid_t id = -1;
    int pipe = -1;
    std::size_t cell = 0;
    std::string text;
  };
  static int end(Child& child);  // its status
  std::vector<Child> list_;
};

}  // namespace kvtwin

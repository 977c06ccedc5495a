// A past run, read from its files, and a rerun of it. A run with a journal is replayed (policy/replay.hpp). A simulated
// run without a journal is simulated again from its resolved experiment.
//
// Recorded decisions never enter a rerun. They are only compared with the new decisions, so an observer sees the policy
// of this program.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "policy/replay.hpp"

namespace kvtwin {

// Observes a rerun. `handle` receives each input before the engine does, so the observer knows the time of the
// decisions and events that follow.
class RerunObserver : public InputHandler, public DecisionSink, public Observer {
 public:
  void handle(const Input&) override {}
  void decided(const Decision&) override {}
  void on_event(const Event&) override {}
};

class PastRun {
 public:
  // `path`: a run folder or a journal. Errors: InputError if it is neither, or cannot be read.
  // `journal`: the number of the journal of a run folder: that of the engine, in a real run of the process. The number
  // in the name of a journal's file counts instead of it.
  explicit PastRun(std::filesystem::path path, std::size_t journal = 0);

  const std::filesystem::path& path() const { return path_; }
  bool has_journal() const { return !journal_path_.empty(); }
  const std::filesystem::path& journal_path() const { return journal_path_; }
  // The experiment of the run: the text of the journal, or the resolved experiment of the folder.
  const Experiment& experiment() const { return *experiment_; }
  // The text of report.json; empty if there is none, for example after a killed run.
  const std::string& report() const { return report_; }
  // Returns whether the run is known to be a simulation: by the report of its folder, or because it has no journal.
  bool is_simulation() const { return simulated_; }
  // Several engines: journals of one engine. One per rank in a real run, else one.
  std::size_t journals_per_engine() const { return journals_per_engine_; }
  // Count and digest of the decisions, as in the report.
  const std::optional<DecisionMark>& reported() const { return reported_; }

 private:
  friend class Rerun;
  std::size_t engine_ = 0;  // of a run of several engines
  std::size_t journals_per_engine_ = 1;
  void find_engine(const std::filesystem::path& folder);
  void read_report();
  void read_world(const std::filesystem::path& folder);
  void read_experiment();
  void keep_old_rules();

  std::filesystem::path path_, journal_path_;
  std::vector<std::byte> journal_;
  std::optional<Experiment> experiment_;
  std::string report_;
  std::optional<DecisionMark> reported_;
  bool real_ = false;       // the report is of a real run
  bool simulated_ = false;  // the report is of a simulation
};

enum class RerunVerdict : std::uint8_t {
  equal,
  truncated,       // equal up to the point where the journal is cut short
  diverged,        // a decision differs
  misfit,          // an input does not fit the engine
  corrupt,         // equal up to a damaged record of the journal
  report_differs,  // report.json has another count or digest of decisions
};
std::string_view name_of(RerunVerdict verdict);

// make_setup(), with an error that explains a missing model or hardware file. Errors: InputError, ModelError.
Setup setup_for_rerun(const Experiment& experiment);

// Decides a run again, with this program's policy and the settings of `experiment`.
class Rerun {
 public:
  // Decides the whole run. `observer` may be null. Requires: `run` outlives this object.
  // Errors: InputError for an experiment that this program cannot serve.
  Rerun(const PastRun& run, const Experiment& experiment, RerunObserver* observer);

  RerunVerdict verdict() const { return verdict_; }
  // Returns 0 for equal, 2 for truncated, else 3.
  int exit_code() const;
  // Returns one sentence about the verdict.
  std::string sentence() const;
  // For a run without a journal, only `now`, `expected`, `got`, `agreed` and `journal` are set.
  const ReplayResult& result() const { return result_; }
  // Returns the kind of the record at which the replay ended, from the bytes of the record.
  const std::string& record_kind() const { return record_kind_; }

 private:
  void replay_journal(const Experiment& experiment, RerunObserver* observer);
  void simulate(const Experiment& experiment, RerunObserver* observer);

  const PastRun& run_;
  ReplayResult result_;
  std::string record_kind_;
  RerunVerdict verdict_ = RerunVerdict::equal;
};

}  // namespace kvtwin

// A run read back from what it left, and decided again: from its journal where there is one (policy/replay.hpp),
// else by simulating its resolved experiment once more. Nothing that was recorded enters a decision; it is only
// compared with, so that whoever looks on sees the policy of this program at work.
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

// Who looks on while a run is decided again. `handle` is told each input before the engine is, so that what follows
// has its time.
class Onlooker : public InputHandler, public DecisionSink, public Observer {
 public:
  void handle(const Input&) override {}
  void decided(const Decision&) override {}
  void on_event(const Event&) override {}
};

class PastRun {
 public:
  // A run folder, or the path of a journal. InputError when it is neither, or can't be read.
  explicit PastRun(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  bool has_journal() const { return !journal_path_.empty(); }
  const std::filesystem::path& journal_path() const { return journal_path_; }
  // As it was run: the journal's text, else the folder's resolved experiment.
  const Experiment& experiment() const { return *experiment_; }
  // report.json, as text; empty if there is none, as in a killed run's folder.
  const std::string& report() const { return report_; }
  // Of the report.
  const std::optional<DecisionMark>& reported() const { return reported_; }

 private:
  friend class Again;
  void read_report();
  void read_experiment();

  std::filesystem::path path_, journal_path_;
  std::vector<std::byte> journal_;
  std::optional<Experiment> experiment_;
  std::string report_;
  std::optional<DecisionMark> reported_;
  bool real_ = false;  // by the report
};

enum class AgainVerdict : std::uint8_t {
  equal,
  truncated,  // equal up to where the journal is cut
  diverged,
  misfit,
  corrupt,         // the journal, after equal records
  report_differs,  // report.json tells other decisions
};
std::string_view name_of(AgainVerdict verdict);

// make_setup, with a sentence that tells whose file it is if one is missing.
Setup setup_again(const Experiment& experiment);

// A run decided again, by this program's policy with `experiment`'s settings.
class Again {
 public:
  // InputError for an experiment that this program can't serve. `onlooker` may be null.
  Again(const PastRun& run, const Experiment& experiment, Onlooker* onlooker);

  AgainVerdict verdict() const { return verdict_; }
  // 0 equal, 2 truncated, 3 all others
  int exit_code() const;
  // One sentence on a verdict that isn't equal.
  std::string sentence() const;
  // Of a run without a journal, only now, got and agreed are told.
  const ReplayResult& result() const { return result_; }
  // The kind of the record where it ended, as its bytes say.
  const std::string& record_kind() const { return record_kind_; }

 private:
  void replay_journal(const Experiment& experiment, Onlooker* onlooker);
  void simulate(const Experiment& experiment, Onlooker* onlooker);

  const PastRun& run_;
  ReplayResult result_;
  std::string record_kind_;
  AgainVerdict verdict_ = AgainVerdict::equal;
};

}  // namespace kvtwin

// Simulates the settings of a plan, several at the same time, and judges them by the goals.
//
// Each simulation has an identity (lab/sweep/row_file.hpp). One that was simulated before, in this plan or in an
// earlier one of the same folder, is not simulated again. While fewer simulations are wanted than may run, `likely`
// ones run ahead: their results wait until they are wanted. So results do not depend on the number of processes.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/child_processes.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"
#include "lab/plan/choices.hpp"
#include "lab/plan/plan.hpp"
#include "lab/sweep/row_file.hpp"
#include "models/json.hpp"

namespace kvtwin {

// A setting, with keys in addition to it.
struct PlanJob {
  Setting setting;
  std::vector<std::string> sets;
};

class Simulations {
 public:
  // `rows`: where results are kept; may be null. All references outlive this object.
  Simulations(const Experiment& base, const Choices& choices, const PlanArguments& arguments, RowFile* rows,
              const Listener& listener, PurchasePlan& plan);

  const Experiment& base() const { return base_; }
  const Choices& choices() const { return choices_; }
  const Listener& listener() const { return listener_; }
  // Errors: InputError.
  Experiment experiment(const PlanJob& job) const;

  // Returns the trials of the jobs in plan.trials, in this order; adds those that are new. `stage`: of new trials.
  // Errors: WorkError if a simulation fails for another reason than bad input; Stopped if the caller wants to end.
  std::vector<std::size_t> trials_of(const std::vector<PlanJob>& jobs, const std::string& stage,
                                     const std::vector<PlanJob>& likely = {});
  std::vector<std::size_t> trials_of(const std::vector<Setting>& settings);  // stage "full"
  // Returns judged trials that do not become trials of the plan.
  std::vector<Trial> simulate(const std::vector<PlanJob>& jobs, const std::vector<PlanJob>& likely = {});
  // Returns the trial of a setting in a stage, if it was simulated.
  std::optional<std::size_t> known(const PlanJob& job, const std::string& stage) const;

  // The number of simulations that are expected to follow, for the progress. 0: not known.
  void expect(std::size_t left) { left_ = left; }

 private:
  struct Answer {
    Json report;          // null if it failed
    std::string failure;  // of bad input
  };
  std::vector<Answer> answers_of(const std::vector<PlanJob>& jobs, const std::vector<PlanJob>& likely);
  void take_end(ChildEnd end);
  Trial judged(Answer answer, const Setting& setting) const;
  void tell(const Trial& trial);

  const Experiment& base_;
  const Choices& choices_;
  const Listener& listener_;
  RowFile* rows_;
  PurchasePlan& plan_;
  std::size_t at_once_, left_ = 0, shown_ = 0;
  double started_ = 0;
  ChildProcesses children_;
  std::map<std::size_t, std::pair<std::string, std::string>> running_;  // by number of the child: identity and name
  std::size_t next_child_ = 0;
  std::map<std::string, Answer> ready_;                           // by identity
  std::map<std::pair<Setting, std::string>, std::size_t> known_;  // by setting, and stage with keys
};

}  // namespace kvtwin

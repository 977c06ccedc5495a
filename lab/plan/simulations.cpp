#include "lab/plan/simulations.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/formatted.hpp"
#include "lab/names.hpp"
#include "lab/report/warnings.hpp"
#include "lab/simulate.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kRowVersion = "plan 1";
// A run that waits this many times as long as the goals on TTFT allow is not made longer to become steady.
constexpr double kHopelessTimes = 4;
constexpr WarningKind kStarving[] = {WarningKind::host_not_larger, WarningKind::backups_dropped,
                                     WarningKind::prefetches_declined, WarningKind::saturated,
                                     WarningKind::drives_worn_out};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string variant_of(const std::vector<std::string>& sets, const std::string& stage) {
  std::string variant = stage;
  for (const std::string& set : sets) variant += " " + set;
  return variant;
}

// Returns the longest mean wait for which a longer run may still meet the goals; nothing without a goal on TTFT.
std::optional<double> hopeless_wait_s(const std::vector<Goal>& goals) {
  std::optional<double> wait;
  for (const Goal& goal : goals) {
    if (!figures()[goal.figure].name.starts_with("ttft_")) continue;
    wait = std::max(wait.value_or(0), kHopelessTimes * goal.value);
  }
  return wait;
}

}  // namespace

Simulations::Simulations(const Experiment& base, const Choices& choices, const PlanArguments& arguments, RowFile* rows,
                         const Listener& listener, PurchasePlan& plan)
    : base_(base),
      choices_(choices),
      listener_(listener),
      rows_(rows),
      plan_(plan),
      at_once_(children_at_once(arguments.jobs)),
      started_(seconds_now()) {
  if (rows_ == nullptr) return;
  for (auto& [identity, row] : rows_->rows()) {
    ready_[identity] = {std::move(row["report"]), row.value("refused", std::string())};
  }
  if (!ready_.empty()) listener_.begin(std::to_string(ready_.size()) + " simulations are there already");
}

Experiment Simulations::experiment(const PlanJob& job) const {
  Experiment experiment = choices_.experiment(base_, job.setting);
  for (const std::string& set : job.sets) experiment.set(set, "plan");
  return experiment;
}

void Simulations::take_end(ChildEnd end) {
  const auto at = running_.find(end.number);
  const auto [identity, name] = at->second;
  running_.erase(at);
  Answer& answer = ready_[identity];
  if (end.failure.code == 0) {
    answer.report = Json::parse(end.text);
  } else if (end.failure.code == 2) {
    answer.failure = end.failure.sentence;
  } else {
    throw WorkError(name + ": " + end.failure.sentence);
  }
  if (rows_ != nullptr) {
    Json row{{"identity", identity}, {"settings", name}, {"report", answer.report}};
    if (!answer.failure.empty()) row["refused"] = answer.failure;
    rows_->keep(row);
  }
}

std::vector<Simulations::Answer> Simulations::answers_of(const std::vector<PlanJob>& jobs,
                                                         const std::vector<PlanJob>& likely) {
  const std::optional<double> hopeless = hopeless_wait_s(plan_.goals);
  std::vector<std::string> wanted;
  std::deque<std::pair<std::string, PlanJob>> queue;
  const auto add = [&](const PlanJob& job) {
    std::string identity =
        identity_of(experiment(job), std::string(kRowVersion) + formatted(" %.17g", hopeless.value_or(-1)));
    const bool runs = std::ranges::any_of(running_, [&](const auto& one) { return one.second.first == identity; });
    const bool waits = std::ranges::any_of(queue, [&](const auto& one) { return one.first == identity; });
    if (!runs && !waits && !ready_.contains(identity)) queue.emplace_back(identity, job);
    return identity;
  };
  for (const PlanJob& job : jobs) wanted.push_back(add(job));
  for (const PlanJob& job : likely) add(job);
  const auto missing = [&] {
    return std::ranges::any_of(wanted, [&](const std::string& identity) { return !ready_.contains(identity); });
  };
  while (missing()) {
    for (; !queue.empty() && children_.size() < at_once_; queue.pop_front()) {
      const auto& [identity, job] = queue.front();
      running_[next_child_] = {identity, variant_of(job.sets, choices_.text(job.setting))};
      Experiment one = experiment(job);
      children_.start(
          [&one, &hopeless] {
            Observers observers;
            observers.hopeless_wait_s = hopeless;
            return kvtwin::simulate(one, observers).report;
          },
          next_child_++);
    }
    take_end(children_.wait(listener_.stopped));
    if (listener_.cells) {
      const std::size_t ran = shown_ + 1 + running_.size();
      listener_.cells(
          {++shown_, std::max(ran + queue.size(), shown_ + left_), seconds_now() - started_, "simulations"});
    }
  }
  std::vector<Answer> answers;
  for (const std::string& identity : wanted) {
    answers.push_back(ready_.at(identity));
    ++plan_.simulations;
    if (left_ > 0) --left_;
  }
  return answers;
}

std::vector<std::size_t> Simulations::trials_of(const std::vector<PlanJob>& jobs, const std::string& stage,
                                                const std::vector<PlanJob>& likely) {
  std::vector<PlanJob> fresh_jobs;
  std::vector<std::size_t> numbers;
  for (const PlanJob& job : jobs) {
    const auto [at, fresh] =
        known_.try_emplace({job.setting, variant_of(job.sets, stage)}, plan_.trials.size() + fresh_jobs.size());
    numbers.push_back(at->second);
    if (fresh) fresh_jobs.push_back(job);
  }
  std::vector<Answer> answers = answers_of(fresh_jobs, likely);
  for (std::size_t i = 0; i < fresh_jobs.size(); ++i) {
    Trial trial = judged(std::move(answers[i]), fresh_jobs[i].setting);
    trial.stage = stage;
    trial.sets = fresh_jobs[i].sets;
    if (stage == kFullStage) tell(trial);
    plan_.trials.push_back(std::move(trial));
  }
  return numbers;
}

std::vector<std::size_t> Simulations::trials_of(const std::vector<Setting>& settings) {
  std::vector<PlanJob> jobs;
  for (const Setting& setting : settings) jobs.push_back({setting, {}});
  return trials_of(jobs, kFullStage);
}

std::vector<Trial> Simulations::simulate(const std::vector<PlanJob>& jobs, const std::vector<PlanJob>& likely) {
  std::vector<Trial> trials;
  std::vector<Answer> answers = answers_of(jobs, likely);
  for (std::size_t i = 0; i < jobs.size(); ++i) trials.push_back(judged(std::move(answers[i]), jobs[i].setting));
  return trials;
}

std::optional<std::size_t> Simulations::known(const PlanJob& job, const std::string& stage) const {
  const auto at = known_.find({job.setting, variant_of(job.sets, stage)});
  return at == known_.end() ? std::nullopt : std::optional(at->second);
}

void Simulations::tell(const Trial& trial) {
  std::string line = "simulated " + choices_.text(trial.setting) + ": ";
  if (!trial.meets) return listener_.begin(line + trial.why_not);
  line += "meets the goals";
  if (!plan_.cheapest || trial.per_month < *plan_.cheapest) {
    plan_.cheapest = trial.per_month;
    line += formatted(", %.0f s after the start; the cheapest so far: %.0f a month", seconds_now() - started_,
                      trial.per_month);
  }
  listener_.begin(line);
}

Trial Simulations::judged(Answer answer, const Setting& setting) const {
  Trial trial;
  trial.setting = setting;
  trial.worst = std::numeric_limits<double>::infinity();
  if (answer.report.is_null()) {
    trial.why_not = answer.failure;
    return trial;
  }
  trial.figures = report_figures(answer.report);
  trial.report = std::move(answer.report);
  if (const Json* const price = price_of(trial)) trial.per_month = price->at("per_month");
  trial.worst = 0;
  const auto miss = [&](const std::string& why) {
    if (trial.why_not.empty()) trial.why_not = why;
  };
  for (const char* what : {"rejected", "failed"}) {
    if (trial.figures.at(what) == 0) continue;
    trial.starves = true;
    miss(what + formatted(" %.0f requests", trial.figures.at(what).get<double>()));
  }
  if (const Json warm = trial.report.value("warm", Json()); !warm.is_null() && warm.at("overloaded")) {
    trial.starves = true;
    miss("is overloaded: " + warm.at("not_flat").get<std::string>());
  }
  const std::optional<ErrorFactors> errors = plan_.probability > 0 ? errors_of_report(trial.report) : std::nullopt;
  for (const Goal& goal : plan_.goals) {
    const RunFigure& figure = figures()[goal.figure];
    const Json& value = trial.figures.at(figure.name);
    if (value.is_null()) {
      if (figure.name == "drive_years") continue;  // no drives, or nothing written: they do not wear out
      miss(std::string(figure.name) + " has no value");
      trial.worst = std::numeric_limits<double>::infinity();
      continue;
    }
    const auto simulated = value.get<double>();
    const double number =
        errors ? value_with_probability(figure.name, simulated, trial.figures, *errors, plan_.probability) : simulated;
    const bool less = figure.better == RunFigure::Better::less;
    constexpr double kTiny = 1e-12;
    const double ratio = less ? number / std::max(goal.value, kTiny) : goal.value / std::max(number, kTiny);
    trial.worst = std::max(trial.worst, ratio);
    if (!goal.met_by(number)) {
      miss(std::string(figure.name) +
           formatted(" is %.4g, not at %s %.4g", simulated, less ? "most" : "least", goal.value) +
           (number == simulated ? "" : formatted(" (%.4g with %.0f %%)", number, 100 * plan_.probability)));
    }
  }
  const Json warnings = trial.report.value("warnings", Json::array());
  for (const WarningKind kind : kStarving) {
    if (std::ranges::find(warnings, name_of(kind)) == warnings.end()) continue;
    trial.starves = true;
    miss("warning " + std::string(name_of(kind)));
  }
  trial.meets = trial.why_not.empty();
  return trial;
}

}  // namespace kvtwin

#include "lab/plan/plan.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "lab/child_processes.hpp"
#include "lab/error.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/formatted.hpp"
#include "lab/out_files.hpp"
#include "lab/simulate.hpp"
#include "lab/sweep/row_file.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr double kGoodShare = 0.9;  // the goal if only slo.* is given

constexpr const char* kRate = "--requests-per-second";

// Sets the rate of generated requests.
void set_generated_rate(double rate, Experiment& base) {
  const std::string& kind = base.text("workload.generate.kind");
  const auto refuse = [&](const char* key, const std::string& why) {
    throw InputError(std::string(kRate) + ": " + base.where("workload.generate." + std::string(key)) +
                     " is given too, and " + why);
  };
  if (base.integer("workload.generate.users") != 0) {
    refuse("users", "the users set the rate, by their think times and the answers; leave one of them out");
  }
  if (kind == "groups" && base.integer("workload.generate.concurrency") != 0) {
    refuse("concurrency", "clients that wait for their answers set the rate; leave one of them out");
  }
  if (kind == "groups" && !base.text("workload.generate.stages").empty()) {
    refuse("stages", "the stages set the rates; leave one of them out");
  }
  if (kind != "sessions" && kind != "tools" && kind != "groups") {
    throw InputError(std::string(kRate) + ": " + base.where("workload.generate.kind") + " is " + kind +
                     ", which has a rate of its own; give --prompt-tokens and the other averages, or a trace");
  }
  base.set("workload.time_scale=1", kRate);
  base.set(formatted("workload.generate.requests_per_second=%.17g", rate), kRate);
}

// Scales the times of a trace to a rate.
void scale_to_rate(double rate, const TraceInfo& work, Experiment& base) {
  const std::string trace = base.where("workload.trace");
  if (base.text("workload.loop") == "closed") {
    throw InputError(
        std::string(kRate) + ": " + base.where("workload.loop") +
        " is closed, where the answers set the rate; scale the think times with workload.time_scale, or set "
        "workload.loop=open");
  }
  if (!(work.requests_per_second > 0)) {
    throw InputError(std::string(kRate) + ": the requests of " + trace +
                     " arrive all at once, so their times cannot be scaled to a rate");
  }
  const std::string scale = formatted("%.9f", work.requests_per_second / rate);
  if (std::stod(scale) == 0) {
    throw InputError(std::string(kRate) + ": is too large for " + trace +
                     formatted(", whose rate is %.3g per second", work.requests_per_second));
  }
  base.set("workload.time_scale=" + scale, kRate);
}

TraceInfo work_of(const Experiment& base) {
  const std::unique_ptr<TraceSource> source = open_workload(base);
  TraceInfo work = trace_info(*source, static_cast<std::uint64_t>(base.integer("workload.limit")));
  if (work.requests == 0) throw InputError("plan: the workload has no request");
  return work;
}

std::vector<Goal> goals_of(const PlanArguments& arguments, const Experiment& base, const Listener& listener) {
  std::vector<Goal> goals;
  for (const std::string& text : arguments.goals) goals.push_back(Goal::from_text(text));
  const bool level = base.number("slo.ttft_s") > 0 || base.number("slo.tpot_s") > 0 || base.number("slo.e2e_s") > 0;
  if (goals.empty() && level) {
    goals.push_back({figure_index("good_share"), kGoodShare});
    listener.tell(formatted("no --goal: good_share of at least %g, for the limits of slo.*", kGoodShare));
  }
  if (goals.empty()) {
    throw InputError(
        "plan needs a goal, e.g. --goal ttft_p90_s=2 --goal tpot_p90_s=0.05; kvtwin presets lists figures");
  }
  for (const Goal& goal : goals) {
    const std::string_view name = figures()[goal.figure].name;
    if (name.starts_with("good") && !level) {
      throw InputError("--goal " + std::string(name) + ": needs a limit of slo.*, e.g. --set slo.ttft_s=2");
    }
  }
  return goals;
}

// The folder of a plan. Checked at once. One without plan.json was interrupted, and its simulations are used.
class Folder {
 public:
  Folder(const std::string& path, bool force) : path_(path) {
    if (path.empty()) return;
    if (fs::exists(path_) && !fs::is_directory(path_)) throw InputError("--out " + path + ": is a file; name a folder");
    if (fs::is_directory(path_) && !fs::is_empty(path_)) {
      for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
        const std::string name = entry.path().filename().string();
        if (is_of_a_plan(name)) continue;
        if (force)
          throw InputError("--out " + path + ": has " + name + ", which no plan writes; --force replaces only plans");
        throw InputError("--out " + path + ": is not empty; name another folder");
      }
      if (!force && fs::exists(path_ / "plan.json")) {
        throw InputError("--out " + path + ": is not empty; name another folder, or --force to replace its plan");
      }
    }
    std::error_code error;
    make_out_folder(path_, error);
    if (error) throw cannot_write(path_, error.value());
    if (force) fs::remove(path_ / kRows, error);
    rows_.emplace(path_ / kRows);
  }
  // Deletes an earlier plan, but for its simulations.
  void begin() const {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      const std::string name = entry.path().filename().string();
      if (is_of_a_plan(name) && name != kRows) fs::remove_all(entry.path(), error);
    }
    if (error) throw cannot_write(path_, error.value());
  }
  void write(const char* name, const std::string& text) const { write_whole(path_ / name, text); }
  bool is_wanted() const { return !path_.empty(); }
  const fs::path& path() const { return path_; }
  RowFile* rows() { return rows_ ? &*rows_ : nullptr; }

 private:
  static constexpr std::string_view kRows = "simulations.jsonl";
  static constexpr std::string_view kFiles[] = {"plan.json", "recommended.toml", "report.html", "recommended", kRows};
  // Also true for what a plan that was killed leaves: .recommended.partial.PID, .plan.json.partial.
  static bool is_of_a_plan(std::string_view name) {
    return std::ranges::any_of(kFiles, [&](std::string_view file) {
      return name == file || name.starts_with("." + std::string(file) + ".partial");
    });
  }
  fs::path path_;
  std::optional<RowFile> rows_;
};

}  // namespace

PlanOutcome make_plan(const PlanArguments& arguments, const Listener& listener) {
  if (!arguments.what_if.empty()) return ask_what_if(arguments, listener);
  Folder folder(arguments.out, arguments.force);
  Experiment base =
      arguments.experiment.empty() ? Experiment::from_text("", "plan") : Experiment::from_file(arguments.experiment);
  apply_engine_arguments(arguments.server, arguments.sets, base);
  for (const std::string& set : arguments.sets) base.set(set);
  measure_warm(base);
  if (!arguments.prices.empty()) base.set("prices.file=" + arguments.prices, "--prices");
  const bool generated = base.text("workload.trace").empty();
  if (arguments.rate > 0 && generated) set_generated_rate(arguments.rate, base);
  const std::vector<Goal> goals = goals_of(arguments, base, listener);
  const PriceList prices =
      base.text("prices.file").empty() ? PriceList::built_in() : PriceList::from_file(base.path("prices.file"));
  const Choices choices(arguments.lists, base, prices);
  for (const std::string& note : base.notes()) listener.tell(note);
  // Keys without effect even in the setting that has most of everything.
  const Experiment largest = choices.experiment(base, choices.largest());
  for (const std::string& sentence : idle_sentences(idle_keys(largest))) listener.tell(sentence);
  if (const std::string assumed = assumed_traffic(largest); !assumed.empty()) listener.tell(assumed);
  const TraceInfo work = work_of(base);
  if (arguments.rate > 0 && !generated) scale_to_rate(arguments.rate, work, base);
  const PurchasePlan plan = find_plan(base, work, choices, prices, goals, arguments, folder.rows(), listener);
  const Json json = plan_json(plan, base, choices, arguments);
  PlanOutcome outcome;
  outcome.found = plan.winner.has_value();
  outcome.stopped = plan.stopped;
  if (folder.is_wanted() && !plan.stopped) {
    folder.begin();
    if (plan.winner) {
      Experiment chosen = choices.experiment(base, plan.trials[*plan.winner].setting);
      for (const std::string& set : plan.confirming_sets()) chosen.set(set, "plan");
      folder.write("recommended.toml", chosen.resolved());
      ChildProcesses child;
      Observers observers;
      observers.files.out = (folder.path() / "recommended").string();
      child.start([&] { return simulate(chosen, observers).summary; }, 0);
      const ChildEnd end = child.wait();
      if (end.failure.code != 0) throw WorkError(end.failure.sentence);
    }
    folder.write("plan.json", json.dump(1) + "\n");  // last: a folder with this file is complete
    outcome.folder = folder.path().string();
  }
  outcome.text = arguments.json ? json.dump() + "\n" : plan_text(plan, base, choices);
  return outcome;
}

}  // namespace kvtwin

#include "lab/past_run/past_run.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/run/cluster.hpp"
#include "lab/run/journal_file.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kResolved = "experiment.resolved.toml";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

}  // namespace

PastRun::PastRun(fs::path path, std::size_t journal) : engine_(journal), path_(std::move(path)) {
  std::error_code error;
  if (!fs::exists(path_, error)) {
    throw InputError(path_.string() +
                     ": is not there; give a run folder that `kvtwin simulate --out` or `kvtwin run` wrote");
  }
  const bool folder = fs::is_directory(path_, error);
  if (!folder) {
    journal_path_ = path_;
    unsigned number = 0;
    if (std::sscanf(path_.filename().c_str(), "journal.%u.kvj", &number) == 1) engine_ = number;
  } else if (fs::exists(path_ / journal_name(journal), error)) {
    journal_path_ = path_ / journal_name(journal);
  }
  if (has_journal()) {
    journal_ = read_journal(journal_path_);
    read_experiment();
    find_engine(folder ? path_ : path_.parent_path());
  }
  read_world(folder ? path_ : path_.parent_path());
  if (folder) read_report();
  if (!has_journal()) read_experiment();
}

// A killed run has no report, so the journals beside this one are counted.
void PastRun::find_engine(const fs::path& folder) {
  const auto engines = static_cast<std::size_t>(total_engines(*experiment_));
  std::size_t journals = 0;
  while (is_file(folder / journal_name(journals))) ++journals;
  if (engines > 1) journals_per_engine_ = std::max<std::size_t>(1, journals / engines);
  engine_ /= journals_per_engine_;
}

// A journal alone does not say which world wrote it. A folder without a report is of a real run that was killed.
void PastRun::read_world(const fs::path& folder) {
  simulated_ = !has_journal();
  const fs::path path = folder / "report.json";
  if (!is_file(path)) return;
  const auto report = Json::parse_or_discard(read_text_file(path, "give a run folder that kvtwin wrote"));
  if (report.is_object()) simulated_ = report.value("world", "") != "real";
}

void PastRun::read_report() {
  const fs::path path = path_ / "report.json";
  if (!is_file(path)) return;
  report_ = read_text_file(path, "give a run folder that kvtwin wrote");
  try {
    const auto report = Json::parse(report_);
    Json decisions = report.at("decisions");
    if (report.contains("engines") && has_journal()) decisions = report.at("engines").at(engine_).at("decisions");
    real_ = report.value("world", "") == "real";
    const auto digest = decisions.at("digest").get<std::string>();
    char* end = nullptr;
    reported_ = DecisionMark{decisions.at("count").get<std::uint64_t>(), std::strtoull(digest.c_str(), &end, 16)};
    if (digest.size() == 16 && *end == '\0') return;
  } catch (const Json::exception&) {
  }
  throw InputError(path.string() + ": is no report; its decisions must have a count and a digest of 16 hex digits");
}

void PastRun::read_experiment() {
  if (!has_journal()) {
    const fs::path resolved = path_ / kResolved;
    if (!is_file(resolved)) {
      throw InputError(path_.string() + ": holds neither " + kJournalName + " nor " + kResolved +
                       "; give a run folder that `kvtwin simulate --out` or `kvtwin run` wrote");
    }
    if (real_) {
      throw InputError(path_.string() + ": a real run without its " + kJournalName +
                       " can't be decided again; give a folder that has it, or a simulation's");
    }
    experiment_ = Experiment::from_file(resolved);
    return keep_old_rules();
  }
  JournalReader reader(journal_);
  const std::string name = journal_path_.string();
  switch (reader.header()) {
    case JournalStatus::truncated:
      throw InputError(name + ": is truncated within its header; the run was killed at its very start");
    case JournalStatus::wrong_version:
      throw InputError(name + ": is a journal of another version; this kvtwin reads version " +
                       std::to_string(kJournalVersion) + " and those from " + std::to_string(kOldestJournalVersion) +
                       " on");
    case JournalStatus::corrupt:
      throw InputError(name +
                       ": is no journal, or its header is damaged; give one that `kvtwin run` or `kvtwin "
                       "simulate --journal` wrote");
    case JournalStatus::record:
    case JournalStatus::end: break;
  }
  // Line numbers in errors count within this text, so the name says that the text is part of the journal.
  experiment_ = Experiment::from_text(reader.text(), name + " (its experiment)");
  keep_old_rules();
}

// A past run says every key that its kvtwin knew. A rule that came later did not decide it.
void PastRun::keep_old_rules() {
  const std::string key = "cache.rules.prefetch_recheck";
  if (experiment_->origin(key) == "default") experiment_->set(key + "=false", "run of a kvtwin without this key");
}

// The run refers to the files of the model and the hardware. The journal does not contain these files.
Setup setup_for_rerun(const Experiment& experiment) {
  for (const std::string key : {"model.config", "hardware.file", "hardware.operators_file"}) {
    if (experiment.text(key).empty() || is_file(experiment.path(key))) continue;
    throw InputError(experiment.where(key) + ": " + experiment.path(key).string() +
                     ": can't be read; the run was made with that file: put it back, or name another place with kvtwin "
                     "replay --set " +
                     key + "=...");
  }
  return make_setup(experiment);
}

// ---- the rerun ---------------------------------------------------------------------------------------

std::string_view name_of(RerunVerdict verdict) {
  switch (verdict) {
    case RerunVerdict::equal: return "equal";
    case RerunVerdict::truncated: return "truncated";
    case RerunVerdict::diverged: return "diverged";
    case RerunVerdict::misfit: return "misfit";
    case RerunVerdict::corrupt: return "corrupt";
    case RerunVerdict::report_differs: return "report_differs";
  }
  return "unknown";
}

Rerun::Rerun(const PastRun& run, const Experiment& experiment, RerunObserver* observer) : run_(run) {
  run.has_journal() ? replay_journal(experiment, observer) : simulate(experiment, observer);
  if (verdict_ == RerunVerdict::equal && run.reported() && *run.reported() != result_.got) {
    verdict_ = RerunVerdict::report_differs;
  }
}

void Rerun::replay_journal(const Experiment& experiment, RerunObserver* observer) {
  const Setup setup = setup_for_rerun(experiment);
  JournalReader reader(run_.journal_);
  const EngineConfig config = setup.world.engines > 1 ? setup.engine_of(run_.engine_) : setup.engine;
  result_ = replay(reader, config, {observer, observer, observer});
  record_kind_ = reader.kind_here();
  if (result_.verdict == ReplayVerdict::diverged) {
    verdict_ = RerunVerdict::diverged;
  } else if (result_.verdict == ReplayVerdict::misfit) {
    verdict_ = RerunVerdict::misfit;
  } else if (result_.journal == JournalStatus::truncated) {
    verdict_ = RerunVerdict::truncated;
  } else if (result_.journal != JournalStatus::end) {
    verdict_ = RerunVerdict::corrupt;
  }
}

void Rerun::simulate(const Experiment& experiment, RerunObserver* observer) {
  const Setup setup = setup_for_rerun(experiment);
  if (setup.world.engines > 1) {
    throw InputError(run_.path().string() + ": " + std::to_string(setup.world.engines) +
                     " engines served it; only one engine's run is decided again, so simulate it with "
                     "cluster.engines=1");
  }
  const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
  const std::unique_ptr<TraceSource> workload = open_workload(experiment);
  WorkloadInputs inputs(experiment, setup.engine.shape.page_tokens, *workload, setup.serving);
  // All ranks decide the same, so only one rank has the observer.
  Cluster cluster(setup, *world, {{inputs.observer(observer), observer, observer, nullptr}}, false, {});
  cluster.run(inputs.source());
  result_.journal = JournalStatus::end;
  result_.now = world->now();
  result_.expected = result_.got = result_.agreed = cluster.decisions();
}

int Rerun::exit_code() const {
  if (verdict_ == RerunVerdict::equal) return 0;
  return verdict_ == RerunVerdict::truncated ? 2 : 3;
}

std::string Rerun::sentence() const {
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  const bool vowel = record_kind_.starts_with('a') || record_kind_.starts_with('e');  // arrival, end
  const std::string where = "record " + number(result_.place.number) + ", " +
                            (record_kind_ == "unknown" ? "of unknown kind" : (vowel ? "an " : "a ") + record_kind_) +
                            " at byte " + number(result_.place.offset);
  const std::string before =
      number(result_.inputs) + " inputs and " + number(result_.agreed.count) + " decisions are equal; then ";
  switch (verdict_) {
    case RerunVerdict::equal: return "every decision is equal";
    case RerunVerdict::truncated:
      return run_.journal_path().string() + ": is truncated: equal up to record " + number(result_.inputs) + " (" +
             number(result_.agreed.count) + " decisions), then cut within or before record " +
             number(result_.place.number) + ", which begins at byte " + number(result_.place.offset) +
             "; the run was killed, or is still writing";
    case RerunVerdict::diverged:
      return before + where + " (" + seconds_text(result_.now) + " s), is decided differently";
    case RerunVerdict::misfit:
      return before + where + " (" + seconds_text(result_.now) +
             " s), is nothing that a world could have told this engine: " + result_.misfit;
    case RerunVerdict::corrupt:
      return before + where + ", is corrupt: it was altered, moved or put there by another hand";
    case RerunVerdict::report_differs:
      return (run_.path() / "report.json").string() + " tells of " + number(run_.reported()->count) +
             " decisions, digest " + digest_text(run_.reported()->digest) + ", but decided again they are " +
             number(result_.got.count) + ", digest " + digest_text(result_.got.digest);
  }
  return {};
}

}  // namespace kvtwin

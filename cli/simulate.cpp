// kvtwin simulate: an experiment in a simulated world.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "cli/error.hpp"
#include "cli/experiment.hpp"
#include "cli/metrics.hpp"
#include "cli/run_folder.hpp"
#include "cli/setup.hpp"
#include "policy/engine.hpp"

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string experiment, world = "simgrid", out, sglang;
  std::vector<std::string> sets;
  bool json = false, force = false, help_keys = false;
};

// A line on the terminal, rewritten in place, with an estimate of the time left.
class Progress {
 public:
  Progress(const TraceSource& source, const Metrics& metrics, std::uint64_t limit)
      : source_(source), metrics_(metrics), limit_(limit) {
    shown_ = isatty(STDERR_FILENO) != 0 && environment_progress();
  }
  ~Progress() {
    if (drawn_) std::fprintf(stderr, "\r\033[K");
  }
  static void tick(void* self, TimeNs now) { static_cast<Progress*>(self)->draw(now); }

 private:
  void draw(TimeNs now) {
    if (!shown_) return;
    const auto wall = Clock::now();
    if (wall - last_ < std::chrono::milliseconds(200)) return;
    last_ = wall;
    drawn_ = true;
    const double spent = std::chrono::duration<double>(wall - start_).count();
    std::fprintf(stderr, "\r\033[K%llu requests done, %.0f s simulated",
                 static_cast<unsigned long long>(metrics_.completed), static_cast<double>(now) / 1e9);
    double read = source_.fraction_read();
    if (limit_ != 0) read = std::max(read, static_cast<double>(metrics_.completed) / static_cast<double>(limit_));
    if (read > 0.01) std::fprintf(stderr, ", %.0f %% read, about %.0f s left", 100 * read, spent * (1 - read) / read);
    std::fflush(stderr);
  }
  const TraceSource& source_;
  const Metrics& metrics_;
  std::uint64_t limit_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
  bool shown_ = false, drawn_ = false;
};

void list_keys() {
  for (const Experiment::Key& key : Experiment::keys()) {
    std::printf("%-40s %s\n", std::string(key.name).c_str(), std::string(key.help).c_str());
  }
}

// A lane's windows end with its last activity; the rest of the run is idle windows.
void cover_run(std::vector<LaneUse>& lanes, TimeNs simulated) {
  for (LaneUse& lane : lanes) {
    const auto windows = static_cast<std::size_t>((simulated + lane.window_ns - 1) / lane.window_ns);
    if (windows <= lane.window_busy_ns.size()) continue;
    lane.window_busy_ns.resize(windows);
    lane.window_bytes.resize(windows);
  }
}

std::unique_ptr<World> make_world(const std::string& name, const WorldConfig& config) {
  std::unique_ptr<World> world = name == "events" ? make_event_world(config) : make_simgrid_world(config);
  if (world == nullptr) {
    throw InputError(
        "--world simgrid: this build is without SimGrid; build the preset release or sim, or take --world events");
  }
  return world;
}

void simulate(const Arguments& arguments) {
  if (arguments.help_keys) return list_keys();
  if (arguments.experiment.empty())
    throw InputError("simulate needs an experiment file, e.g. experiments/quickstart.toml");
  const auto start = Clock::now();
  Experiment experiment = Experiment::from_file(arguments.experiment);
  if (!arguments.sglang.empty()) experiment.set_from_sglang_flags(arguments.sglang);
  for (const std::string& assignment : arguments.sets) experiment.set(assignment);
  const Setup setup = make_setup(experiment);
  const std::unique_ptr<TraceSource> workload = open_workload(experiment);
  TraceInputSource source(*workload, input_options(experiment));

  std::optional<RunFolder> folder;
  if (!arguments.out.empty()) folder.emplace(arguments.out, arguments.force);
  Metrics metrics(folder ? &*folder : nullptr);
  DecisionLog decisions;
  const std::unique_ptr<World> world = make_world(arguments.world, setup.world);
  Engine engine(setup.engine, world->substrate(), decisions, &metrics);
  {
    Progress progress(*workload, metrics, static_cast<std::uint64_t>(experiment.integer("workload.limit")));
    world->set_progress(&Progress::tick, &progress);
    world->run(source, engine);
  }
  if (!engine.idle()) throw WorkError("the simulation ended with work left: " + engine.state_summary());

  RunFacts facts;
  facts.world = arguments.world;
  facts.device = "model";
  facts.seed = static_cast<std::uint64_t>(experiment.integer("seed"));
  facts.device_capacity = setup.engine.device_pages;
  facts.host_capacity = setup.engine.host_pages;
  facts.device_used_max = engine.device_pages_used_max();
  facts.host_used_max = engine.host_pages_used_max();
  facts.page_tokens = setup.engine.shape.page_tokens;
  facts.simulated_ns = world->now();
  facts.kv_formula = setup.model.kv_formula;
  facts.notes = setup.notes;
  facts.wall_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::vector<LaneUse> lanes = world->lanes();
  cover_run(lanes, facts.simulated_ns);
  const std::string report = report_json(facts, metrics, decisions, lanes);
  if (folder) {
    folder->write("report.json", report);
    folder->write("experiment.resolved.toml", experiment.resolved());
    folder->write("metrics.prom", prometheus_text(facts, metrics));
    folder->write_lanes(lanes);
    folder->commit();
  }
  const std::string text = arguments.json ? report : summary_text(facts, metrics, decisions, lanes);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (folder) std::fprintf(stderr, "run folder: %s\n", folder->path().c_str());
}

}  // namespace

void add_simulate(CLI::App& program) {
  static Arguments arguments;
  CLI::App* command = program.add_subcommand("simulate", "Serve an experiment's requests in a simulated world");
  command->footer(
      "Example: kvtwin simulate experiments/quickstart.toml --set tiers.host.gib=64 --out out/host64\n"
      "Keys:    kvtwin simulate --help-keys");
  command->add_option("experiment", arguments.experiment, "Experiment file (TOML)");
  command->add_option("--set", arguments.sets, "key=value, overrides the file; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--from-sglang-flags", arguments.sglang,
                      "SGLang server flags, e.g. \"--page-size 64 --hicache-size 100\"");
  command->add_option("--world", arguments.world, "simgrid (links are shared) or events (they are not)")
      ->check(CLI::IsMember({"simgrid", "events"}))
      ->capture_default_str();
  command->add_option("--out", arguments.out, "Run folder to write")->check([](const std::string& path) {
    return std::string(path.empty() ? "must name a folder" : "");
  });
  command->add_flag("--force", arguments.force, "Replace the run folder");
  command->add_flag("--json", arguments.json, "Print report.json on stdout");
  command->add_flag("--help-keys", arguments.help_keys, "List every experiment key");
  command->callback([] { simulate(arguments); });
}

}  // namespace kvtwin

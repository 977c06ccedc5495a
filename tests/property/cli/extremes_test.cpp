// Sets every key of an experiment and every number of a hardware file, one at a time, to the extreme values of its
// type. The result must be a report, or an error that names the key. Never a signal, never exit code 1, never more than
// some seconds.
//   KVTWIN_DEEP=1 build/tests/property_cli --gtest_filter='Extremes*'     also tests pairs of keys
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/simulate.hpp"
#include "models/presets.hpp"
#include "tests/program.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::size_t kMaxChildren = 4;  // child processes at the same time
// Limit of one simulation of a few requests. Sanitizers take 12 times as long: with a prompt of 10^9 tokens 18.6 s,
// not 1.5.
constexpr rlim_t kMaxCpuSeconds = KVTWIN_TEST_SANITIZED ? 240 : 20;
constexpr rlim_t kMaxFileBytes = 1 << 26;  // limit of a file that one simulation writes

// The result of one simulation.
struct Result {
  int code = -1;  // exit code; -1: a signal ended the process
  int signal = 0;
  std::string sentence;  // the error message
};

// Runs a simulation in a child process, because a failed KV_CHECK ends the process, and SimGrid allows one world per
// process.
class Child {
 public:
  explicit Child(const std::function<void()>& work) : said_(memfd_create("said", MFD_CLOEXEC)) {
    if (said_ < 0) throw std::runtime_error("no memory file");
    std::fflush(nullptr);
    id_ = fork();
    if (id_ < 0) throw std::runtime_error("no process");
    if (id_ == 0) simulate(work);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (id_ > 0) {
      kill(id_, SIGKILL);
      waitpid(id_, nullptr, 0);
    }
    close(said_);
  }

  Result wait() {
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    Result result;
    if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
    result.sentence.resize(static_cast<std::size_t>(lseek(said_, 0, SEEK_END)));
    if (pread(said_, result.sentence.data(), result.sentence.size(), 0) < 0) result.sentence = "lost";
    return result;
  }

 private:
  [[noreturn]] void simulate(const std::function<void()>& work) const {
    const rlimit cpu{kMaxCpuSeconds, kMaxCpuSeconds}, file{kMaxFileBytes, kMaxFileBytes}, no_core{0, 0};
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_FSIZE, &file);
    setrlimit(RLIMIT_CORE, &no_core);
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    Ending ending;
    try {
      work();
    } catch (...) {
      ending = ending_of(std::current_exception());
    }
    if (write(said_, ending.sentence.data(), ending.sentence.size()) < 0) ending.code = 99;
    _exit(ending.code);
  }

  int said_;
  pid_t id_ = -1;
};

struct Case {
  std::string shown;
  std::vector<std::string> names;  // an error must contain one of these names
  Experiment experiment;
};

std::string clipped(const std::string& text) { return text.size() < 300 ? text : text.substr(0, 300) + "..."; }

// Runs child processes, several at the same time, and checks their results.
class Cases {
 public:
  ~Cases() { EXPECT_TRUE(under_way_.empty()); }

  // Adds the case `settings` on `base`. If the declaration of the key rejects the value, no process is needed.
  void add(const Experiment& base, const std::vector<std::string>& settings, std::vector<std::string> names) {
    Case one{"", std::move(names), base};
    for (const std::string& setting : settings) one.shown += clipped(setting) + " ";
    one.shown += "on " + base.origin("workload.limit");
    try {
      for (const std::string& setting : settings) one.experiment.set(setting);
    } catch (const InputError& error) {
      return check(one, {2, 0, error.what()});
    }
    auto child = std::make_unique<Child>([&] { simulate(one.experiment); });
    under_way_.emplace_back(std::move(one), std::move(child));
    if (under_way_.size() == kMaxChildren) finish_one();
  }
  void finish() {
    while (!under_way_.empty()) finish_one();
  }
  std::size_t served() const { return served_; }
  std::size_t refused() const { return refused_; }

 private:
  void finish_one() {
    const Result result = under_way_.front().second->wait();
    check(under_way_.front().first, result);
    under_way_.pop_front();
  }
  void check(const Case& one, const Result& result) {
    served_ += result.code == 0 ? 1 : 0;
    refused_ += result.code == 2 ? 1 : 0;
    if (result.code == 0) return;
    const auto said = [&](const std::string& name) { return result.sentence.find(name) != std::string::npos; };
    if (result.code == 2 && std::ranges::any_of(one.names, said)) return;
    ADD_FAILURE() << one.shown << ": exit code " << result.code << ", signal " << result.signal << ", \""
                  << clipped(result.sentence) << "\"";
  }

  std::deque<std::pair<Case, std::unique_ptr<Child>>> under_way_;
  std::size_t served_ = 0, refused_ = 0;
};

// ---- experiments -----------------------------------------------------------------------------------------

// All tiers, with prefetches, and with evictions in every tier.
constexpr const char* kReturningBase = R"(engine = "none"
model.name = "tiny"
workload.limit = 6
workload.generate.kind = "returning"
workload.generate.prompt_tokens = 512
workload.generate.working_set_tokens = 2048
workload.generate.visits = 3
tiers.device.tokens = 1024
tiers.host.tokens = 1024
tiers.disk.tokens = 2048
tiers.remote.tokens = 4096
cache.prefetch_min_tokens = 64
sim.world = "events"
)";
// Rank instances, a draft model, write_back, and a closed loop.
constexpr const char* kGroupsBase = R"(engine = "none"
model.name = "tiny"
model.draft.kind = "side_pool"
model.draft.config = "tiny"
model.draft.accept_length = 2
workload.limit = 6
workload.loop = "closed"
workload.generate.kind = "groups"
workload.generate.groups = 2
workload.generate.prompts_per_group = 3
workload.generate.prefix_tokens = 256
workload.generate.concurrency = 2
parallel.tp = 2
parallel.rank_model = "instances"
cache.write_policy = "write_back"
cache.tiering = "exclusive"
cache.prefetch_policy = "cost_stop"
cache.prefetch_admission = "cost"
cache.load_back_admission = "cost"
cache.path = "auto"
cache.layout = "layer_first"
cache.split_kv = true
tiers.device.tokens = 512
tiers.host.tokens = 512
tiers.disk.tokens = 1024
tiers.disk.format = "hicache_files"
tiers.remote.tokens = 4096
report.bounds = true
sim.storage_stall_share = 0.5
sim.world = "events"
)";
// A device tier of the memory that the weights leave, and a hardware file with measured intervals.
constexpr const char* kChatBase = R"(engine = "none"
workload.limit = 4
workload.generate.requests = 4
tiers.host.ratio = 2
tiers.disk.gib = 100
cluster.engines = 2
hardware.spread_percent = 10
sim.world = "events"
)";
// Conversations from averages.
constexpr const char* kSessionsBase = R"(engine = "none"
model.name = "tiny"
workload.limit = 4
workload.generate.kind = "sessions"
workload.generate.requests_per_second = 5
workload.generate.prompt_tokens = 400
workload.generate.output_tokens = 20
workload.generate.turns = 3
workload.generate.think_s = 2
workload.generate.prefix_tokens = 64
tiers.device.tokens = 4096
sim.world = "events"
)";
constexpr const char* kOthers[] = {"workload.generate.kind=agentic", "workload.generate.kind=tools"};

// Keys whose largest values take minutes of real work: the tokens of a prompt.
struct Costly {
  std::string_view key;
  double most;  // largest value that the test tries
};
constexpr Costly kCostly[] = {{"workload.generate.prefix_tokens", 1e7}};

double most_of(const ExperimentKey& key) {
  const auto* costly = std::ranges::find(kCostly, key.name, &Costly::key);
  return costly == std::end(kCostly) ? key.max : costly->most;
}

std::vector<std::string> extremes_of(const ExperimentKey& key) {
  std::vector<std::string> values{"", "nan", std::string(100'000, '7'), "true"};
  if (std::holds_alternative<std::string>(key.fallback)) {
    values.insert(values.end(), {"/", "/dev/zero", "/nowhere/at/all", "\n", "memory_bandwidth:low"});
    return values;
  }
  values.insert(values.end(), {"0", "-0.0", "-1", "1", "64", "1023", "4294967296", "9223372036854775807",
                               "9223372036854775808", "-9223372036854775808"});
  if (std::holds_alternative<double>(key.fallback)) {
    values.insert(values.end(), {"5e-324", "1e-10", "1e-7", "0.123456789123", "1e9", "1e300", "inf"});
  }
  for (const double end : {key.min, key.min_nonzero, most_of(key)}) {
    char text[40];
    std::snprintf(text, sizeof text, std::holds_alternative<double>(key.fallback) ? "%.17g" : "%.0f", end);
    values.emplace_back(text);
  }
  return values;
}

const Experiment& base_of(std::size_t number) {
  static const std::vector<Experiment> bases = {
      Experiment::from_text(kReturningBase, "returning"), Experiment::from_text(kGroupsBase, "groups"),
      Experiment::from_text(kChatBase, "chat"), Experiment::from_text(kSessionsBase, "sessions")};
  return bases[number];
}

// If two keys do not fit together, the error may name the other key.
std::vector<std::string> names_of(const std::string& key) {
  if (key.starts_with("tiers.host.")) return {key, "tiers.host"};
  if (key == "workload.generate.groups") return {key, "as groups is"};
  // The averages of conversations must not contradict each other.
  constexpr std::string_view kGenerate = "workload.generate.";
  for (const char* figure : {"requests_per_second", "output_tokens", "turns", "prefix_tokens"}) {
    if (key == std::string(kGenerate) + figure) return {key, figure};
  }
  return {key};
}

TEST(Extremes, EveryKeyIsServedOrRefusedByName) {
  Cases cases;
  // Sanitizers are slow: with them, each value meets one of the experiments.
  const std::size_t bases = KVTWIN_TEST_SANITIZED && std::getenv("KVTWIN_DEEP") == nullptr ? 1 : 3;
  std::size_t first = 0;
  for (const ExperimentKey& key : experiment_keys()) {
    const std::string name(key.name);
    for (const std::string& value : extremes_of(key)) {
      const std::string setting = name + "=" + value;
      for (std::size_t base = 0; base < bases; ++base)
        cases.add(base_of((first + base) % 3), {setting}, names_of(name));
      ++first;
      if (!name.starts_with("workload.")) continue;
      cases.add(base_of(3), {setting}, names_of(name));
      for (const char* kind : kOthers) cases.add(base_of(2), {kind, setting}, names_of(name));
    }
  }
  cases.finish();
  EXPECT_GT(cases.served(), 1000U);
  EXPECT_GT(cases.refused(), 1000U);
}

// Random pairs of keys: values that are valid alone may be invalid together.
TEST(Extremes, PairsOfKeysAreServedOrRefusedByName) {
  const std::size_t pairs = std::getenv("KVTWIN_DEEP") != nullptr ? 5000 : 100;
  const std::span<const ExperimentKey> keys = experiment_keys();
  Splitmix random(7);
  Cases cases;
  for (std::size_t i = 0; i < pairs; ++i) {
    std::vector<std::string> settings, names;
    for (int k = 0; k < 2; ++k) {
      const ExperimentKey& key = keys[random.below(keys.size())];
      const std::vector<std::string> values = extremes_of(key);
      settings.push_back(std::string(key.name) + "=" + values[random.below(values.size())]);
      for (const std::string& name : names_of(std::string(key.name))) names.push_back(name);
    }
    cases.add(base_of(random.below(3)), settings, names);
  }
  cases.finish();
  EXPECT_EQ(cases.served() + cases.refused(), pairs);
}

TEST(Extremes, EveryFigureOfAMachineIsServedOrRefusedByName) {
  const Folder folder;
  const Json preset = Json::parse(hardware_preset_text("h100-sxm"));
  Cases cases;
  std::size_t files = 0;
  for (const auto& [key, number] : preset.at("numbers").items()) {
    for (const char* value : {"0", "-1", "5e-324", "1e-15", "1e-10", "1e-6", "0.001", "1", "1e6", "1e300"}) {
      Json machine = preset;
      machine["numbers"][key]["value"] = Json::parse(value);
      const std::string file = folder / (std::to_string(files++) + ".json");
      write_text(file, machine.dump());
      cases.add(base_of(0), {"hardware.file=" + file}, {key});
      // The largest possible deviations.
      cases.add(base_of(1), {"hardware.file=" + file, "hardware.spread_percent=1000", "hardware.draw=3"}, {key});
      cases.add(base_of(0), {"hardware.file=" + file, "hardware.spread_percent=1000", "hardware.end=" + key + ":low"},
                {key});
    }
  }
  cases.finish();
  EXPECT_GT(cases.served(), 100U);
  EXPECT_GT(cases.refused(), 100U);
}

}  // namespace
}  // namespace kvtwin::test

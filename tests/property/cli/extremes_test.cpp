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
constexpr std::size_t kCasesOfAChild = 32;
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

struct Case {
  std::string shown;
  std::vector<std::string> names;  // an error must contain one of these names
  Experiment experiment;
};

// Simulates cases in a child process, one after the other, because a failed KV_CHECK ends the process. One process for
// many cases: a fork costs more than a case.
class Child {
 public:
  explicit Child(std::span<const Case> cases) : results_(memfd_create("results", MFD_CLOEXEC)) {
    if (results_ < 0) throw std::runtime_error("no memory file");
    std::fflush(nullptr);
    id_ = fork();
    if (id_ < 0) throw std::runtime_error("no process");
    if (id_ == 0) simulate_all(cases);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (id_ > 0) {
      kill(id_, SIGKILL);
      waitpid(id_, nullptr, 0);
    }
    close(results_);
  }

  // Returns the results of the first cases, all of them if none ended the process. Otherwise the last result is that
  // of the case that did.
  std::vector<Result> wait() {
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    std::vector<Result> results;
    lseek(results_, 0, SEEK_SET);
    std::size_t bytes = 0;
    for (Result result; read(results_, &result.code, sizeof result.code) == sizeof result.code;) {
      if (read(results_, &bytes, sizeof bytes) != sizeof bytes) break;
      result.sentence.resize(bytes);
      if (read(results_, result.sentence.data(), bytes) != static_cast<ssize_t>(bytes)) break;
      results.push_back(result);
    }
    if (!WIFEXITED(status)) results.push_back({-1, WTERMSIG(status), ""});
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) results.push_back({WEXITSTATUS(status), 0, ""});
    return results;
  }

 private:
  [[noreturn]] void simulate_all(std::span<const Case> cases) const {
    const rlimit file{kMaxFileBytes, kMaxFileBytes}, no_core{0, 0};
    setrlimit(RLIMIT_FSIZE, &file);
    setrlimit(RLIMIT_CORE, &no_core);
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    for (const Case& one : cases) {
      rusage used{};
      getrusage(RUSAGE_SELF, &used);
      const auto seconds = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1;
      const rlimit cpu{seconds + kMaxCpuSeconds, RLIM_INFINITY};
      setrlimit(RLIMIT_CPU, &cpu);
      Ending ending;
      try {
        simulate(one.experiment);
      } catch (...) {
        ending = ending_of(std::current_exception());
      }
      const std::size_t bytes = ending.sentence.size();
      put(&ending.code, sizeof ending.code);
      put(&bytes, sizeof bytes);
      put(ending.sentence.data(), bytes);
    }
    _exit(0);
  }
  void put(const void* bytes, std::size_t size) const {
    if (write(results_, bytes, size) != static_cast<ssize_t>(size)) _exit(99);
  }

  int results_;
  pid_t id_ = -1;
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
    waiting_.push_back(std::move(one));
    if (waiting_.size() == kCasesOfAChild) start_waiting();
  }
  void finish() {
    start_waiting();
    while (!under_way_.empty()) finish_one();
  }
  std::size_t served() const { return served_; }
  std::size_t refused() const { return refused_; }

 private:
  struct Group {
    std::vector<Case> cases;
    std::unique_ptr<Child> child;
  };

  void start_waiting() {
    if (waiting_.empty()) return;
    if (under_way_.size() == kMaxChildren) finish_one();
    Group group{std::exchange(waiting_, {}), nullptr};
    group.child = std::make_unique<Child>(group.cases);
    under_way_.push_back(std::move(group));
  }
  void finish_one() {
    const Group group = std::move(under_way_.front());
    under_way_.pop_front();
    std::vector<Result> results = group.child->wait();
    for (std::span<const Case> left = group.cases;;) {
      ASSERT_TRUE(!results.empty() && results.size() <= left.size());
      for (std::size_t i = 0; i < results.size(); ++i) check(left[i], results[i]);
      left = left.subspan(results.size());
      if (left.empty()) return;
      results = Child(left).wait();  // the cases after the one that ended the process
    }
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

  std::vector<Case> waiting_;
  std::deque<Group> under_way_;
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
    if (std::ranges::find(values, text) == values.end()) values.emplace_back(text);
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

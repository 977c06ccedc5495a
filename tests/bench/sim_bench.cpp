// Inputs a second of each simulated world, under an engine-like load: every request loads 16 MB, prefills
// behind that load, writes 16 MB back and decodes in eight bursts, with one reduction before each pass.
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "policy/seam/substrate.hpp"
#include "sim/world.hpp"
#include "tests/adversary/adversarial_world.hpp"

namespace {

using namespace kvtwin;

class FlatCost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    return static_cast<TimeNs>(10'000 * shape.prefill_tokens / 1000 + 200'000 * steps);
  }
  TransferCost storage(const StorageWork&) const override { return {}; }
  TransferCost transfer(const Plan& plan) const override { return {2'000, plan.bytes, 45'000'000'000}; }
};

class Arrivals final : public InputSource {
 public:
  explicit Arrivals(std::uint64_t requests) : requests_(requests) {}
  bool next(Input& input) override {
    if (at_ == requests_) return false;
    input = Input{static_cast<TimeNs>(at_) * 5'000'000, Arrival{.request = at_, .keys = {}}};
    ++at_;
    return true;
  }

 private:
  std::uint64_t requests_, at_ = 0;
};

class Load final : public InputHandler {
 public:
  explicit Load(Substrate& substrate) : substrate_(substrate) {}

  void handle(const Input& input) override {
    ++inputs;
    if (std::holds_alternative<Arrival>(input.what)) {
      ++waiting_;
      decide();
    } else if (std::holds_alternative<Reduction>(input.what)) {
      run_pass();
    } else if (const auto* done = std::get_if<Completion>(&input.what); done != nullptr && done->id == pass_) {
      pass_ = OperationId::none;
      if (bursts_ == 8) substrate_.submit(move(Lane::d2h));
      if (bursts_ == 0) --waiting_;
      decide();
    }
  }
  std::uint64_t inputs = 0;

 private:
  static Operation move(Lane lane) {
    TransferOperation operation;
    operation.lane = lane;
    operation.plan.bytes = 16 << 20;
    operation.plan.pages = 64;
    operation.plan.layer_groups = 16;
    return operation;
  }

  void decide() {
    if (pass_ != OperationId::none || reducing_ || waiting_ == 0) return;
    reducing_ = true;
    substrate_.reduce_min(ReduceVector{});
  }

  void run_pass() {
    reducing_ = false;
    ForwardOperation operation;
    OperationId gate = OperationId::none;
    if (bursts_ == 0) {
      gate = substrate_.submit(move(Lane::h2d));
      operation.gates = std::span(&gate, 1);
      operation.shape.prefill_tokens = 1000;
      bursts_ = 9;
    } else {
      operation.steps = 2;
    }
    --bursts_;
    pass_ = substrate_.submit(operation);
  }

  Substrate& substrate_;
  std::uint64_t waiting_ = 0;
  OperationId pass_ = OperationId::none;
  bool reducing_ = false;
  int bursts_ = 0;
};

struct Measured {
  double seconds = 0;
  std::uint64_t inputs = 0;
};

// In a child, since SimGrid allows one world a process.
template <class Make>
Measured measure(Make make, std::uint64_t requests) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    const FlatCost cost;
    WorldConfig config;
    config.ranks = 8;
    config.h2d_bytes_per_second = config.d2h_bytes_per_second = 50'000'000'000;
    config.dram_bytes_per_second = 400'000'000'000;
    config.cost = &cost;
    const auto world = make(config);
    if (world == nullptr) _exit(1);
    Arrivals source(requests);
    Load load(world->substrate());
    const auto start = std::chrono::steady_clock::now();
    world->run(source, load);
    const Measured result{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), load.inputs};
    _exit(write(ends[1], &result, sizeof result) == sizeof result ? 0 : 1);
  }
  close(ends[1]);
  Measured result;
  if (read(ends[0], &result, sizeof result) != sizeof result) result = {};
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return result;
}

template <class Make>
void run(benchmark::State& state, Make make) {
  std::uint64_t inputs = 0;
  for (auto _ : state) {
    const Measured one = measure(make, 12'000);
    if (one.inputs == 0) {
      state.SkipWithError("built without this world");
      break;
    }
    state.SetIterationTime(one.seconds);
    inputs += one.inputs;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(inputs));
}

void BM_event_world(benchmark::State& state) { run(state, make_event_world); }
// Many small operations on real bytes: loads and backups of two pages, passes over four.
class SmallLoad final : public InputHandler {
 public:
  explicit SmallLoad(Substrate& substrate) : substrate_(substrate) {}
  void handle(const Input& input) override {
    ++inputs;
    if (inputs > 1'000'000 || std::holds_alternative<TimerFired>(input.what)) return;
    if (inputs % 4 == 0) substrate_.call_at(input.now + 10);
    if (std::holds_alternative<Reduction>(input.what)) {
      submit(inputs);
    } else {
      substrate_.reduce_min(ReduceVector{});
    }
  }
  std::uint64_t inputs = 0;

 private:
  void submit(std::uint64_t n) {
    const PageMove moves[] = {{{}, 0, 4}, {{}, 1, 5}};
    if (n % 3 == 0) {
      TransferOperation operation;
      operation.lane = n % 2 == 0 ? Lane::h2d : Lane::d2h;
      operation.plan.pages = 2;
      operation.plan.bytes = 128;
      operation.pages = moves;
      substrate_.submit(operation);
      return;
    }
    const SlotId slots[] = {8, 9, 10, 11};
    const PageKey keys[4] = {};
    const SequenceWork work{0, 0, 64, slots, keys};
    ForwardOperation operation;
    operation.sequences = std::span(&work, 1);
    substrate_.submit(operation);
  }
  Substrate& substrate_;
};

void BM_adversarial_world(benchmark::State& state) {
  std::uint64_t inputs = 0, seed = 0;
  for (auto _ : state) {
    AdversarialConfig config;
    config.seed = ++seed;
    config.page_tokens = 16;
    config.device_pages = config.host_pages = 16;
    config.tracks_slots = false;
    const auto world = make_adversarial_world(config);
    Arrivals source(64);
    SmallLoad load(world->substrate());
    world->run(source, load);
    inputs += load.inputs;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(inputs));
}

void BM_simgrid_world(benchmark::State& state) { run(state, make_simgrid_world); }
BENCHMARK(BM_event_world)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_adversarial_world)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_simgrid_world)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace

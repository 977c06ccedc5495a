// The real world's own costs. Copies: a host device's transfer of pages against one memcpy of as many bytes in the same
// process, both ways, for each layout of the host pool and each path of a plan; counters: GB_per_second, of_memcpy (the
// ratio; the memcpy is repeated beside each). Loop: what an input costs without a policy (loop_ns_median, wall).
//   build/tests/host_device_bench --benchmark_filter=copy
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "impl/device/host_device.hpp"
#include "impl/runtime/arena.hpp"
#include "impl/world.hpp"
#include "policy/transfer/plan.hpp"

namespace {

using namespace kvtwin;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class NoRequests final : public InputSource {
 public:
  explicit NoRequests(std::uint64_t arrivals) : left_(arrivals) {}
  bool next(Input& input) override {
    if (left_ == 0) return false;
    --left_;
    input = Input{0, Arrival{.request = next_++, .prompt_tokens = 1, .output_tokens = 1, .keys = {}}};
    return true;
  }

 private:
  std::uint64_t left_;
  RequestId next_ = 0;
};

// Submits one transfer after another until `left` are done.
class Copier final : public InputHandler {
 public:
  Copier(Substrate& substrate, const TransferOperation& operation, int left)
      : substrate_(substrate), operation_(operation), left_(left) {}
  void handle(const Input& input) override {
    if (const auto* done = std::get_if<Completion>(&input.what)) bytes += done->bytes;
    if (left_-- > 0) substrate_.submit(operation_);
  }
  Bytes bytes = 0;

 private:
  Substrate& substrate_;
  TransferOperation operation_;
  int left_;
};

struct Lanes final : LaneObserver {
  void on_lane(const LaneSpan& span) override { busy += span.end - span.begin; }
  TimeNs busy = 0;
};

// llama-3.1-8b's shape on one of eight ranks: rows of 256 bytes, a page of 64 tokens is 1 MiB.
constexpr KvShape kShape{.layers = 32, .planes = 2, .heads = 1, .head_bytes = 256, .page_tokens = 64};
constexpr Pages kPages = 128;

void copy(benchmark::State& state, Layout layout, IoBackend io, Direction direction) {
  HostDeviceConfig config;
  config.shape = kShape;
  config.host_layout = layout;
  config.device_pages = config.host_pages = kPages;
  std::vector<SlotId> slots(kPages);
  std::vector<PageMove> moves(kPages);
  for (SlotId i = 0; i < kPages; ++i) {
    slots[i] = i;
    moves[i] = {{{i, 0, 0, 0}}, i, i};
  }
  std::vector<PageRun> runs;
  // Runs of eight pages, as a cache in use has them.
  for (SlotId i = 0; i < kPages; i += 8) runs.push_back({i, (i + 64) % static_cast<SlotId>(kPages), 8});
  for (SlotId i = 0; i < kPages; ++i) moves[i].target = (i + 64) % static_cast<SlotId>(kPages);
  TransferOperation operation;
  operation.lane = direction == Direction::host_to_device ? Lane::h2d : Lane::d2h;
  operation.plan = plan_transfer(runs, direction, {kShape, layout}, io, {});
  operation.pages = moves;

  const Bytes bytes = kPages * kShape.page_bytes();
  Arena from(bytes), to(bytes);
  double rate = 0, ratio = 0;
  for (auto _ : state) {
    constexpr int kTimes = 4;
    const double plain = seconds_of([&] {
      for (int i = 0; i < kTimes; ++i) {
        std::memcpy(to.data(), from.data(), bytes);
        benchmark::DoNotOptimize(to.data());
        benchmark::ClobberMemory();
      }
    });
    auto world = make_real_world(make_host_device(config));
    Lanes lanes;
    world->watch_lanes(&lanes);
    Copier copier(world->substrate(), operation, kTimes);
    NoRequests start(1);
    world->run(start, copier);
    const double took = static_cast<double>(lanes.busy) / 1e9;
    rate = static_cast<double>(copier.bytes) / took / 1e9;
    ratio = plain / took;
    state.SetIterationTime(took);
  }
  state.counters["GB_per_second"] = rate;
  state.counters["of_memcpy"] = ratio;
}

void loop(benchmark::State& state) {
  class Nothing final : public InputHandler {
   public:
    void handle(const Input&) override {}
  } nothing;
  HostDeviceConfig config;
  config.shape = {.layers = 1, .planes = 1, .heads = 1, .head_bytes = 4, .page_tokens = 1};
  config.device_pages = 1;
  double median = 0, mean = 0;
  for (auto _ : state) {
    auto world = make_real_world(make_host_device(config));
    NoRequests arrivals(static_cast<std::uint64_t>(state.range(0)));
    world->run(arrivals, nothing);
    median = static_cast<double>(world->loop().loop_median_ns);
    mean = static_cast<double>(world->loop().run_ns) / static_cast<double>(world->loop().inputs);
  }
  state.counters["loop_ns_median"] = median;
  state.counters["wall_ns_per_input"] = mean;
}

// Each input is the completion of a transfer, which is answered by another one: through both threads and back.
void round_trip(benchmark::State& state) {
  HostDeviceConfig config;
  config.shape = {.layers = 1, .planes = 1, .heads = 1, .head_bytes = 64, .page_tokens = 1};
  config.device_pages = config.host_pages = 1;
  const PageRun run{0, 0, 1};
  const PageMove move{{{1, 2, 3, 4}}, 0, 0};
  TransferOperation operation;
  operation.lane = Lane::d2h;
  operation.plan = plan_transfer(std::span(&run, 1), Direction::device_to_host, {config.shape, Layout::page_first},
                                 IoBackend::kernel, {});
  operation.pages = std::span(&move, 1);
  LoopReport report;
  for (auto _ : state) {
    auto world = make_real_world(make_host_device(config));
    Copier copier(world->substrate(), operation, static_cast<int>(state.range(0)));
    NoRequests start(1);
    world->run(start, copier);
    report = world->loop();
  }
  const auto inputs = static_cast<double>(report.inputs);
  state.counters["loop_ns_median"] = static_cast<double>(report.loop_median_ns);
  state.counters["submit_ns"] = static_cast<double>(report.calls_ns) / inputs;
  state.counters["wall_ns_per_input"] = static_cast<double>(report.run_ns) / inputs;
}

BENCHMARK(loop)->Arg(1'000'000)->Unit(benchmark::kMillisecond)->Iterations(3);
BENCHMARK(round_trip)->Arg(50'000)->Unit(benchmark::kMillisecond)->Iterations(3);

const bool registered = [] {
  const std::pair<const char*, Layout> layouts[] = {{"layer_first", Layout::layer_first},
                                                    {"page_first", Layout::page_first},
                                                    {"page_first_direct", Layout::page_first_direct},
                                                    {"page_head", Layout::page_head}};
  const std::pair<const char*, IoBackend> paths[] = {
      {"direct", IoBackend::direct}, {"kernel", IoBackend::kernel}, {"auto", IoBackend::automatic}};
  for (const Direction direction : {Direction::host_to_device, Direction::device_to_host}) {
    for (const auto& [layout_name, layout] : layouts) {
      for (const auto& [path_name, path] : paths) {
        const std::string name = std::string("copy/") + (direction == Direction::host_to_device ? "h2d/" : "d2h/") +
                                 layout_name + "/" + path_name;
        benchmark::RegisterBenchmark(name.c_str(), copy, layout, path, direction)
            ->UseManualTime()
            ->Iterations(3)
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return true;
}();

}  // namespace

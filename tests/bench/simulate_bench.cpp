// How the time and memory of `kvtwin simulate` grow with the number of requests of generated chat. Each run is a
// separate process, because SimGrid's engine is global. The aim is constant time per request and bounded memory.
// Counters: us_per_request (wall time), peak_MiB.
//   build/tests/simulate_bench --benchmark_filter=10000/
#include <benchmark/benchmark.h>

#include <string>

#include "models/json.hpp"
#include "tests/bench/output_of.hpp"
#include "tests/paths.hpp"

namespace {

void simulate(benchmark::State& state, const char* world) {
  const std::string command =
      std::string(kvtwin::kBuiltProgram) + " simulate " + kvtwin::in_source("experiments/chat_hour.toml") +
      " --set workload.trace= --set workload.generate.requests=" + std::to_string(state.range(0)) + " --world " +
      world + " --json 2>/dev/null";
  double seconds = 0, bytes = 0;
  for (auto _ : state) {
    const auto report = kvtwin::Json::parse_or_discard(kvtwin::test::output_of(command));
    if (report.is_discarded() || report["requests"]["completed"] != state.range(0)) {
      state.SkipWithError("the simulation failed");
      return;
    }
    seconds = report["wall_seconds"];
    bytes = report["peak_rss_bytes"];
  }
  state.counters["us_per_request"] = 1e6 * seconds / static_cast<double>(state.range(0));
  state.counters["peak_MiB"] = bytes / 1048576;
}

BENCHMARK_CAPTURE(simulate, simgrid, "simgrid")
    ->RangeMultiplier(10)
    ->Range(10000, 1000000)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(simulate, events, "events")
    ->RangeMultiplier(10)
    ->Range(10000, 100000)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace

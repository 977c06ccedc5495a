// How the time and memory of `kvtwin simulate experiments/fleet.toml` grow with the number of engines, at equal load
// and 400 requests per engine. Each run is a separate process, because SimGrid's engine is global. The aim is constant
// time per request and constant memory per engine. Counters: us_per_request (wall time), peak_MiB, MiB_per_engine.
//   build/tests/fleet_bench --benchmark_filter=simgrid_score
#include <benchmark/benchmark.h>

#include <string>

#include "models/json.hpp"
#include "tests/bench/output_of.hpp"
#include "tests/paths.hpp"

namespace {

constexpr std::int64_t kRequestsPerEngine = 400;
constexpr std::int64_t kRequestsPerSecondPerEngine = 5;

void fleet(benchmark::State& state, const char* world, const char* route) {
  const std::int64_t engines = state.range(0), requests = engines * kRequestsPerEngine;
  const std::string command =
      std::string(kvtwin::kBuiltProgram) + " simulate " + kvtwin::in_source("experiments/fleet.toml") + " --world " +
      world + " --set cluster.route=" + route + " --set cluster.engines=" + std::to_string(engines) +
      " --set workload.generate.requests=" + std::to_string(requests) +
      " --set workload.generate.requests_per_second=" + std::to_string(kRequestsPerSecondPerEngine * engines) +
      " --json 2>/dev/null";
  double seconds = 0, bytes = 0;
  for (auto _ : state) {
    const auto report = kvtwin::Json::parse_or_discard(kvtwin::test::output_of(command));
    if (report.is_discarded() || report["requests"]["completed"] != requests) {
      state.SkipWithError("the simulation failed");
      return;
    }
    seconds = report["wall_seconds"];
    bytes = report["peak_rss_bytes"];
  }
  state.counters["us_per_request"] = 1e6 * seconds / static_cast<double>(requests);
  state.counters["peak_MiB"] = bytes / 1048576;
  state.counters["MiB_per_engine"] = bytes / 1048576 / static_cast<double>(engines);
}

void engines(benchmark::internal::Benchmark* bench) {
  bench->RangeMultiplier(2)->Range(16, 256)->Unit(benchmark::kMillisecond)->Iterations(1)->UseRealTime();
}
BENCHMARK_CAPTURE(fleet, simgrid_score, "simgrid", "score")->Apply(engines);
BENCHMARK_CAPTURE(fleet, simgrid_round_robin, "simgrid", "round_robin")->Apply(engines);
BENCHMARK_CAPTURE(fleet, events_score, "events", "score")->Apply(engines);

}  // namespace

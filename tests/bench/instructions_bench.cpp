// The cost of whole commands: a trace with a device and a host tier, a fleet, and the predictions of a table of
// published runs. Wall times on a busy machine are noise, so valgrind counts instructions (minutes); a command with
// child processes, whose counts valgrind would add up wrongly, has the processor time of all of them. Counters:
// instructions, or cpu_s.
//   build/tests/instructions_bench --benchmark_filter=trace
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/bench/output_of.hpp"
#include "tests/paths.hpp"

namespace {

// Returns the sum of the numbers behind each "Collected : "; 0 if there is none.
std::uint64_t collected_in(const std::string& text) {
  static const std::string before = "Collected : ";
  std::uint64_t sum = 0;
  for (std::size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
    sum += std::strtoull(text.c_str() + at + before.size(), nullptr, 10);
  }
  return sum;
}

void instructions(benchmark::State& state, const std::string& arguments) {
  const std::string command = "valgrind --tool=callgrind --callgrind-out-file=/dev/null " +
                              std::string(kvtwin::kBuiltProgram) + " " + arguments + " 2>&1 >/dev/null";
  std::uint64_t counted = 0;
  for (auto _ : state) {
    counted = collected_in(kvtwin::test::output_of(command));
    if (counted == 0) {
      state.SkipWithError("the command failed, or valgrind is not installed");
      return;
    }
  }
  state.counters["instructions"] = static_cast<double>(counted);
}

void trace(benchmark::State& state) {
  instructions(state, "simulate " + kvtwin::in_source("experiments/chat_hour.toml"));
}
void fleet(benchmark::State& state) {
  instructions(state, "simulate " + kvtwin::in_source("experiments/fleet.toml") +
                          " --set cluster.engines=16 --set workload.generate.requests=10000"
                          " --set workload.generate.requests_per_second=80");
}

// Returns the processor time of all processes that have ended so far.
double seconds_of_children() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void published(benchmark::State& state) {
  const std::string command = std::string(kvtwin::kBuiltProgram) + " validate --published " +
                              kvtwin::in_source("tests/fidelity/silicon.json") + " 2>/dev/null";
  double seconds = 0;
  for (auto _ : state) {
    const double before = seconds_of_children();
    if (kvtwin::test::output_of(command).empty()) {
      state.SkipWithError("the command failed");
      return;
    }
    seconds = seconds_of_children() - before;
  }
  state.counters["cpu_s"] = seconds;
}
BENCHMARK(trace)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(fleet)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(published)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace

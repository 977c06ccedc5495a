// simulation EXPERIMENT.toml: an experiment with two sizes of host memory, by the installed library.
#include <exception>
#include <iostream>
#include <string>

#include "all_lab_headers.hpp"
#include "lab/simulate.hpp"

namespace {

kvtwin::RunResult with_host_tokens(const char* file, const std::string& tokens) {
  kvtwin::Experiment experiment = kvtwin::Experiment::from_file(file);
  experiment.set("tiers.host.tokens=" + tokens);
  experiment.set("sim.world=events");  // SimGrid has one world a process, and this program simulates twice
  kvtwin::Observers observers;
  observers.listener.note = [](const std::string& sentence) { std::cerr << sentence << '\n'; };
  return kvtwin::simulate(experiment, observers);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const kvtwin::RunResult small = with_host_tokens(argv[1], "20000"), large = with_host_tokens(argv[1], "100000");
  std::cout << small.figures.hit_tokens << " and " << large.figures.hit_tokens << " of " << large.figures.prompt_tokens
            << " tokens hit; mean TTFT " << small.figures.ttft_mean_s.value_or(0) << " and "
            << large.figures.ttft_mean_s.value_or(0) << " s\n";
  const bool reported = large.report.find("\"schema_version\"") != std::string::npos;
  return reported && large.folder.empty() && small.figures.hit_tokens < large.figures.hit_tokens ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

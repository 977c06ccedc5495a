#include "lab/simulate.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lab/experiment/setup.hpp"
#include "lab/sweep/draws.hpp"
#include "models/calibration_ranges.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

// Returns the ranges of work in which the hardware file was measured; empty for a preset or a file without ranges.
WorkRanges ranges_of(const Experiment& experiment) {
  if (experiment.text("hardware.file").empty()) return {};
  const std::string path = experiment.path("hardware.file").string();
  return measured_ranges(read_text_file(path, "give a hardware description (JSON)"), path);
}

}  // namespace

RunResult simulate(const Experiment& experiment, const Observers& observers) {
  Setup setup = make_setup(experiment);
  const RunFiles& files = observers.files;
  std::optional<Draws> draws;
  // The draws come first, because their processes are forked from this one, which must not have a SimGrid world yet.
  if (observers.draws != 0) {
    if (!files.out.empty()) const RunFolder check(files.out, files.force);  // errors before the draws
    draws = simulate_draws(experiment, static_cast<std::size_t>(observers.draws), observers.jobs, observers.listener);
  }
  const WorkRanges measured = ranges_of(experiment);
  const RangedCost ranged(*setup.cost);
  if (!measured.empty()) setup.world.cost = &ranged;
  const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
  ServeTerms terms = simulated_terms(experiment, setup);
  terms.rows = observers.events;
  terms.hopeless_wait_s = observers.hopeless_wait_s;
  if (!measured.empty() || draws) {
    terms.add_facts = [&](RunFacts& facts) {
      facts.draws = draws;
      if (measured.empty()) return;
      for (std::string& note : extrapolations(measured, ranged.asked(), setup.hardware.name)) {
        facts.notes.push_back(std::move(note));
      }
    };
  }
  return serve(experiment, setup, *world, files, terms, observers.listener);
}

}  // namespace kvtwin

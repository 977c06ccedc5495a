// From an experiment to the parts of a run: geometry, machine, costs, engine and world configuration, and the
// stream of requests. Everything an experiment asks for that this program can't do is refused here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/draft_setup.hpp"
#include "lab/experiment/experiment.hpp"
#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/roofline.hpp"
#include "policy/engine.hpp"
#include "sim/world.hpp"
#include "traces/closed_loop.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct Setup {
  ModelGeometry model;
  HardwareSpec hardware;
  std::unique_ptr<RooflineCost> cost;
  KvShape target;                   // of one rank; without a packed draft's layers
  std::optional<DraftSetup> draft;  // a draft model beside the model
  EngineConfig engine;              // each engine's
  WorldConfig world;
  std::string route = "round_robin";  // of several engines; a name of route_names()
  std::vector<PageKey> rank_spaces;   // ranks that are instances: what each stores under
  // What a page takes once it has left the device, of one rank.
  Bytes page_bytes() const { return engine.shape.page_bytes() + engine.draft.page_bytes(); }
  std::size_t rank = 0;  // of the world's first seat: a real world is one rank's
  // Of the policy in that seat of the world.
  EngineConfig engine_of(std::size_t seat) const;
  bool has_storage() const { return !engine.storage.empty(); }
  std::vector<std::string> notes;  // approximations, for the report
};

// InputError, ModelError.
Setup make_setup(const Experiment& experiment);

// Why such a machine can't be drawn: no figure of it has an interval.
std::string without_intervals(const HardwareSpec& hardware);

// By sim.world; InputError if this build lacks it. `setup` outlives the world.
std::unique_ptr<World> make_simulated_world(const Experiment& experiment, const Setup& setup);

// The experiment's requests: its trace, or the generator.
std::unique_ptr<TraceSource> open_workload(const Experiment& experiment);
TraceInputOptions input_options(const Experiment& experiment);

// A workload as a world's inputs, by workload.loop. Engines' events go to observer(), which hands them on to `observer`
// (may be null); so a closed loop learns of answers.
class WorkloadInputs {
 public:
  WorkloadInputs(const Experiment& experiment, TraceSource& workload);

  InputSource& source() { return *source_; }
  Observer* observer(Observer* observer);
  bool is_closed_loop() const { return loop_ != nullptr; }

 private:
  std::unique_ptr<InputSource> source_;
  ClosedLoopSource* loop_ = nullptr;  // the same, if it is one
};

}  // namespace kvtwin

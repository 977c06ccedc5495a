// One serving engine: request scheduler and hierarchical cache as explicit state machines. Fed by one
// stream of inputs, it answers with operations on its Substrate. Owns all policy state; single-threaded,
// deterministic; fails only by KV_CHECK. Tables that grow with the pages come from std::pmr's default resource, which
// is the program's choice. A newcomer starts at Engine::handle in engine.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "policy/base/types.hpp"
#include "policy/config.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class Engine final : public InputHandler {
 public:
  // All references must outlive the engine. `observer` may be null.
  Engine(const EngineConfig& config, Substrate& substrate, DecisionLog& decisions, Observer* observer);
  ~Engine() override;

  void handle(const Input& input) override;

  // Nothing waits, runs or is in flight.
  bool idle() const;
  // Every invariant of scheduler, cache, tree and pools. O(state); for tests.
  void check_invariants() const;
  // One sentence on what still waits; for a run that ends with work left.
  std::string state_summary() const;

  // Of a storage tier: that it was known, or believed, to hold.
  Pages pages_used_max(Tier tier) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin

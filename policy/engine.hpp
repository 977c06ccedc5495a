// One serving engine: request scheduler and hierarchical cache, as explicit state machines. It receives one stream of
// inputs and answers with operations on its Substrate. It owns all policy state.
//
// Thread: one. Deterministic. Errors: only KV_CHECK. Memory: tables that grow with the pages come from the default
// resource of std::pmr, which the program sets. Newcomers start at Engine::handle in engine.cpp.
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
  // Requires: all references outlive the engine. `observer` may be null.
  Engine(const EngineConfig& config, Substrate& substrate, DecisionLog& decisions, Observer* observer);
  ~Engine() override;

  void handle(const Input& input) override;

  // Returns true if no request waits or runs, and nothing is in flight.
  bool idle() const;
  // Checks every invariant of scheduler, cache, tree and pools. O(state); for tests.
  void check_invariants() const;
  // Returns one sentence about what still waits, for a run that ends with work left.
  std::string state_summary() const;

  // The largest number of pages that the tier held; for a storage tier, of pages that it was known or believed to hold.
  Pages pages_used_max(Tier tier) const;
  // The same for pool `at` of EngineConfig::pools: slots.
  Pages pool_used_max(std::size_t at, Tier tier) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin

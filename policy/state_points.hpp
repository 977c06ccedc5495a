// Where a request leaves a copy of its recurrent state in the cache, for models that have states (Mamba, GDN, KDA). A
// later request can continue only from such a point. Each engine has one StatePoints.
//
// Points are lengths in tokens. A tracked state goes to a slot of its own, which the request gives to the cache at its
// next insert. A branch is a length up to which a match found the KV of full attention, but no state; a request that
// computes across it should leave a state there, because another request is likely to leave the path there again.
//
// A policy is one file, policy/state_points/NAME.cpp, that defines std::unique_ptr<StatePoints>
// make_NAME_state_points(const EngineConfig&, const Parameters&); the build finds the file by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "policy/base/parameters.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct EngineConfig;

class StatePoints {
 public:
  virtual ~StatePoints() = default;
  // Whether the policy is that of vLLM's groups of blocks, which have the rules; then only retention() says something.
  // Else it is that of a tree, and the functions below say something.
  virtual bool of_blocks() const { return false; }
  // Windows and states also stay at multiples of so many tokens; 0: nowhere else.
  virtual Tokens retention() const { return 0; }

  // Slots that a running request holds beside its own state. 0: no state is tracked; an insert copies the state of the
  // request's whole length, and the end of the request gives its own state to the cache.
  virtual std::uint32_t tracking_slots() const { return 0; }
  // A pass computes the tokens [from, to). Returns the length whose state it leaves; 0: none. `branch`: 0 if there is
  // none.
  virtual Tokens after_prefill(Tokens /*from*/, Tokens /*to*/, Tokens /*branch*/) const { return 0; }
  // Returns whether a decode step that brings the sequence to this length leaves its state.
  virtual bool after_decode(Tokens /*length*/) const { return false; }
  // Branches are multiples of it.
  virtual Tokens grid() const { return 1; }
  // A request is admitted. The KV of the first `present` tokens of its prompt is cached.
  virtual void learn(Tokens /*present*/) {}
  // Returns where passes end that compute the tokens [from, to) of a prompt, beside the ends that chunks have: rising
  // multiples of grid(), so that after_prefill() can leave a state there.
  virtual std::vector<Tokens> pass_ends(Tokens /*from*/, Tokens /*to*/, Tokens /*branch*/) const { return {}; }
};

// Known names.
std::span<const std::string_view> state_points_names();
// Returns the policy of config.state_points, a name with parameters or without; null for a text with a fault.
std::unique_ptr<StatePoints> make_state_points(const EngineConfig& config);

}  // namespace kvtwin

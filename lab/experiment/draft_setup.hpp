// The draft model of speculative decoding, from the keys model.draft.*.
#pragma once

#include <cstdint>
#include <optional>

#include "lab/experiment/experiment.hpp"
#include "models/geometry.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

struct DraftSetup {
  ModelGeometry model;
  KvShape shape;             // of one rank
  bool packed = false;       // true: the last layers of the target's pages; false: a pool of its own
  bool restored = true;      // the draft's KV moves to other tiers and back with the target's
  std::uint32_t tokens = 0;  // proposed per decode step
  // Mean tokens that a decode step yields, in units of 1/1024 token; `without`: if reused pages lack the draft's KV.
  std::uint32_t accept_x1024 = 1024, accept_without_x1024 = 1024;
};

// Returns nothing if the experiment has no draft model. `target`: the shape of the target, for one rank.
// Errors: InputError, ModelError.
std::optional<DraftSetup> read_draft(const Experiment& experiment, KvDtype dtype, const ModelGeometry& model,
                                     const KvShape& target, std::uint32_t tp);

}  // namespace kvtwin

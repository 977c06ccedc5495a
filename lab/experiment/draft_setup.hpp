// The draft model of speculative decoding, as an experiment gives it (model.draft.*).
#pragma once

#include <cstdint>
#include <optional>

#include "lab/experiment/experiment.hpp"
#include "models/geometry.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

struct DraftSetup {
  ModelGeometry model;
  KvShape shape;         // of one rank
  bool packed = false;   // its layers are the last of the target's pages; else it has a pool of its own
  bool restored = true;  // its KV leaves the device and comes back with the target's
  std::uint32_t tokens = 0;
  std::uint32_t accept_x1024 = 1024, accept_without_x1024 = 1024;
};

// Nothing if the experiment has no draft. InputError, ModelError.
std::optional<DraftSetup> read_draft(const Experiment& experiment, KvDtype dtype, const ModelGeometry& model,
                                     const KvShape& target, std::uint32_t tp);

}  // namespace kvtwin

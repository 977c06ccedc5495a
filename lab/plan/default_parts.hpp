// The GPU types and the formats of weights that a plan varies if the user gives none.
//
// GPU types: the hardware presets that have fp8 units (Hopper, CDNA 3 and later), are of a server instead of a rack,
// have a price in the list that is not assumed, and have measured operator times of the experiment's engine. Times of
// the roofline are not comparable with measured ones. With engine = none, all GPUs have the roofline's times.
//
// Formats: those of the preset's published checkpoints (ModelGeometry::checkpoints).
#pragma once

#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/prices/price_list.hpp"
#include "models/geometry.hpp"
#include "models/hardware.hpp"

namespace kvtwin {

struct DefaultValues {
  std::vector<std::string> values;  // of the key; empty: the key does not vary
  std::string sentence;             // what varies, what is left out, and why
};

// Returns the GPU types that a plan varies if neither the GPU nor its times are given.
std::vector<std::string> comparable_gpus(const Experiment& base, const PriceList& prices);
DefaultValues default_gpus(const Experiment& base, const PriceList& prices);
// Errors: ModelError for an unknown preset.
DefaultValues default_weights(const Experiment& base);

// A policy that a plan varies by default: how a model with several kinds of KV shares its memory, or where it keeps
// windows and states. The first value is the engine's own.
struct DefaultPolicy {
  std::string key, flag;  // and the flag of the server
  std::vector<std::string> values;
};
// Errors: InputError, ModelError.
std::vector<DefaultPolicy> default_pools(const Experiment& base);

// Returns whether the GPU has units for the format, or the engines convert its weights to bf16 on every GPU.
bool computes(const HardwareSpec& gpu, WeightChoice weights);

}  // namespace kvtwin

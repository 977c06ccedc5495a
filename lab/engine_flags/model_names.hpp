// The preset and the format of the weights that the name of a published checkpoint tells: ORG/NAME-SUFFIX.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "models/geometry.hpp"

namespace kvtwin {

struct NamedModel {
  std::string preset;                              // empty: no preset has this model's geometry
  WeightChoice weights = WeightChoice::automatic;  // automatic: the name tells no format
  std::string suffix;                              // the word of the name that tells it, as FP8
};

// Finds the preset whose repository or name begins `path` (the last part of it, in any case). The rest of the name may
// only have words of a closed list, which do not change the geometry: Instruct, a date, the format of the weights.
NamedModel model_named(std::string_view path);

// Returns pairs of preset and model repository.
std::span<const std::pair<std::string_view, std::string_view>> published_models();

// Returns the repository for a written flag line: the preset's checkpoint with weights in this format, otherwise the
// preset's first repository; empty without one.
struct NamedRepository {
  std::string name;
  bool has_format = false;  // its weights are in the format
};
NamedRepository repository_of(const ModelGeometry& preset, WeightChoice weights);

// Returns model.kv_dtype for a written flag line. With model.weights, auto becomes the type that was counted, because
// the checkpoint may state another one.
std::string written_cache_type(const std::string& kv_dtype, WeightChoice weights, const ModelGeometry& model);

// Returns the format of the weights that a server's --quantization sets; automatic for a method that only names the
// checkpoint's own format, or that is not known.
WeightChoice weights_of_quantization(std::string_view method);
bool is_known_quantization(std::string_view method);

}  // namespace kvtwin

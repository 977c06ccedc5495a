#include "lab/experiment/draft_setup.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "models/names.hpp"
#include "models/presets.hpp"

namespace kvtwin {
namespace {

// Refuses draft keys if model.draft.kind is not given. If the user gives kind = none, for example in a sweep, the other
// keys have no effect and are allowed.
void refuse_keys_without_a_draft(const Experiment& e) {
  if (e.is_given("model.draft.kind")) return;
  for (const ExperimentKey& key : experiment_keys()) {
    if (!key.name.starts_with("model.draft.") || !e.is_given(key.name)) continue;
    throw InputError(e.where(key.name) +
                     ": is given, and model.draft.kind isn't; set that to packed, side_pool or none");
  }
}

ModelGeometry draft_model(const Experiment& e, KvDtype dtype) {
  const std::string& name = e.text("model.draft.config");
  if (name.empty()) {
    throw InputError(e.where("model.draft.config") +
                     ": names no draft model; give the path of its config.json or a preset, or set model.draft.kind to "
                     "none");
  }
  const std::vector<std::string> presets = model_preset_names();
  if (std::ranges::find(presets, name) != presets.end()) return model_preset(name, dtype);
  try {
    return model_from_file(e.path("model.draft.config").string(), dtype);
  } catch (const ModelError& error) {
    throw InputError(e.where("model.draft.config") + ": " + error.what());
  }
}

void check_shape(const Experiment& e, const ModelGeometry& model, const KvShape& target, const DraftSetup& draft) {
  const KvShape& shape = draft.shape;
  if (shape.page_bytes() == 0) {
    throw InputError(e.where("model.draft.config") + ": has no KV cache of pages; take a draft with attention layers");
  }
  const auto rows = [](const KvShape& s, const std::string& dtype) {
    return std::to_string(s.planes) + " x " + std::to_string(s.heads) + " heads of " + std::to_string(s.head_bytes) +
           " bytes in " + dtype;
  };
  const std::string ours = rows(shape, draft.model.kv_dtype), theirs = rows(target, model.kv_dtype);
  if (draft.packed && ours != theirs) {
    throw InputError(e.where("model.draft.kind") +
                     ": packed takes a draft whose rows are the target's, and a token of "
                     "a layer is " +
                     ours + " instead of " + theirs + "; set it to side_pool");
  }
}

// Returns the mean tokens that a decode step yields, in units of 1/1024 token.
std::uint32_t accepted(const Experiment& e, const char* key, std::uint32_t tokens) {
  const double length = e.number(key);
  if (length < 1) {
    throw InputError(e.where(key) + ": must be given with a draft model, and be at least 1: the tokens that a decode " +
                     "step yields on average");
  }
  if (length > tokens + 1.0) {
    throw InputError(e.where(key) + ": is more than the " + std::to_string(tokens + 1) +
                     " tokens that a decode step verifies; make it smaller or model.draft.tokens larger");
  }
  return static_cast<std::uint32_t>(length * 1024 + 0.5);
}

}  // namespace

std::optional<DraftSetup> read_draft(const Experiment& e, KvDtype dtype, const ModelGeometry& model,
                                     const KvShape& target, std::uint32_t tp) {
  refuse_keys_without_a_draft(e);
  const std::string& kind = e.text("model.draft.kind");
  if (kind == "none") return std::nullopt;
  DraftSetup draft;
  draft.packed = kind == "packed";
  draft.model = draft_model(e, dtype);
  draft.shape = draft.model.shape(tp, target.page_tokens);
  check_shape(e, model, target, draft);
  draft.restored = e.flag("model.draft.restore");
  draft.tokens = static_cast<std::uint32_t>(e.integer("model.draft.tokens"));
  if (draft.tokens == 0) {
    draft.tokens = static_cast<std::uint32_t>(std::max(1.0, std::ceil(e.number("model.draft.accept_length"))));
  }
  draft.accept_x1024 = accepted(e, "model.draft.accept_length", draft.tokens);
  draft.accept_without_x1024 = accepted(e, "model.draft.accept_length_without_kv", draft.tokens);
  return draft;
}

}  // namespace kvtwin

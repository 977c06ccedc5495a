#include "lab/engine_flags/flag_reader.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "lab/engine_flags/flag_text.hpp"
#include "lab/engine_flags/model_names.hpp"
#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/units.hpp"
#include "models/geometry.hpp"
#include "models/names.hpp"
#include "models/presets.hpp"

namespace kvtwin {

using Is = EngineFlag::Is;

std::string other_memory_rule(const DeviceMemory& memory, const std::string& server, const std::string& flag) {
  char gib[32];
  std::snprintf(gib, sizeof gib, "%.1f", memory.kv / kGib);
  return "L1 has another size by the rule of " + server + ": engine = " + std::string(name_of(memory.engine)) +
         " leaves " + gib + " GiB of a GPU; " + flag + " sets it";
}

NamedFlag known_flag(const FlagTable& table, std::string_view option, const std::string& name) {
  const NamedFlag named = table.named(name);
  if (named.flag != nullptr) return named;
  const std::string where = std::string(option) + ": ";
  if (!name.starts_with("-")) throw InputError(where + "\"" + short_text(name) + "\" is no flag, and belongs to none");
  const std::string nearest = misspelt(name, table.names());
  if (nearest.empty()) return {};
  throw InputError(where + "unknown flag \"" + short_text(name) + "\"; did you mean \"" + nearest +
                   "\"? Known are the flags of " + std::string(table.engine()) + " " + std::string(table.version()));
}

bool FlagReader::is_set_later(std::string_view keys) const {
  return !keys.empty() &&
         std::ranges::any_of(set_later_, [&](const std::string& key) { return key.starts_with(keys); });
}

std::string FlagReader::where(std::string_view field) const {
  const auto found = given_.find(field);
  if (found != given_.end() && !found->second.is_preset) return source_ + " " + found->second.said;
  return engine() + "'s default of " + table_.find_field(field)->name;
}

std::string FlagReader::as_given(std::string_view field) const {
  const Given& given = given_.find(field)->second;
  const bool shown = !given.value.empty() && table_.find_field(field)->takes != EngineFlag::Takes::nothing;
  return given.said + (shown ? " " + given.value : "");
}

void FlagReader::refuse(const Given& given, const std::string& right) const {
  throw InputError(source_ + ": " + given.said + " is " + (given.value.empty() ? "empty" : short_text(given.value)) +
                   "; it must be " + right);
}

void FlagReader::check_integer(const Given& given, std::int64_t least) const {
  const auto number = number_of<std::int64_t>(given.value);
  if (!number || *number < least) refuse(given, "an integer of at least " + std::to_string(least));
}

void FlagReader::check_positive(const Given& given) const {
  const auto number = number_of<double>(given.value);
  if (!number || !std::isfinite(*number) || *number <= 0) refuse(given, "a number greater than 0");
}

void FlagReader::check_word(const EngineFlag& flag, Given& given) {
  const std::vector<std::string> known = split_words(flag.words);
  if (std::ranges::find(known, given.value) != known.end()) return;
  if (given.value.empty() || !misspelt(given.value, known).empty()) {
    throw InputError(source_ + ": " + given.said + ": " + unknown_name("value", short_text(given.value), known));
  }
  if (flag.preset.empty()) return;  // of SGLang's storage back ends, one model covers most known ones anyway
  note_on(flag.key, given.said + " " + short_text(given.value) + ": " + engine() + " " + std::string(table_.version()) +
                        " has no such value; " + flag.preset + ", its default, stands for it");
  given.value = flag.preset;
  given.is_preset = true;
}

void FlagReader::set_engine(const std::string& text, bool replaces) {
  const std::string before = experiment_.text(kEngineKey), origin = experiment_.origin(kEngineKey);
  const bool noted = replaces && experiment_.is_given(kEngineKey);
  experiment_.set(std::string(kEngineKey) + "=" + text, source_);
  if (noted) note("engine = " + text + ", not " + before + " (" + origin + "): the flags are of " + engine());
}

void FlagReader::set_model(std::string_view field, std::string_view cache_field) {
  if (!is_given(field)) return;
  const std::string& path = value(field);
  std::error_code error;
  const std::filesystem::path config = std::filesystem::path(path) / "config.json";
  if (std::filesystem::is_regular_file(config, error)) {
    experiment_.set("model.config=" + config.string(), where(field));
    return;
  }
  const NamedModel named = model_named(path);
  // Without a preset the name stays, and the error about an unknown model says the way out.
  experiment_.set("model.name=" + (named.preset.empty() ? path : named.preset), where(field));
  const auto same = [&](const auto& pair) { return pair.second == path; };
  if (!named.preset.empty() && named.preset != path && std::ranges::none_of(published_models(), same)) {
    note("the model " + short_text(path) + " is taken as the preset " + named.preset +
         (named.suffix.empty() ? "" : " with weights in " + named.suffix));
  }
  if (named.weights == WeightChoice::automatic) {
    // The line names a checkpoint, so the format is no choice of a plan.
    if (!experiment_.is_given("model.weights")) experiment_.set("model.weights=auto", where(field));
    return;
  }
  experiment_.set("model.weights=" + std::string(name_of(named.weights)), where(field));
  // The name does not say what the checkpoint states for its cache.
  const bool default_cache = !is_given(cache_field) || value(cache_field) == "auto";
  const bool by_nvidia = lower_case(path).starts_with("nvidia/");
  if (default_cache && by_nvidia && named.weights != WeightChoice::bf16) {
    note_on("model.kv_dtype", "NVIDIA's quantised checkpoints often state an fp8 KV cache, which " + engine() +
                                  " then takes by default; the name doesn't say so, and the cache is counted as "
                                  "model.kv_dtype = " +
                                  experiment_.text("model.kv_dtype") +
                                  "; set that to fp8, or give the checkpoint's folder");
  }
}

void FlagReader::set_quantization(std::string_view field, std::string_view model_field) {
  if (!is_given(field)) return;
  const std::string method = lower_case(value(field));
  if (!is_known_quantization(method)) {
    return note_on("model.weights",
                   "not modelled: " + as_given(field) +
                       "; the weights are counted as model.weights = " + experiment_.text("model.weights"));
  }
  const WeightChoice weights = weights_of_quantization(method);
  if (weights == WeightChoice::automatic || is_quantised(model_field)) return;
  experiment_.set("model.weights=" + std::string(name_of(weights)), where(field));
}

std::optional<ModelGeometry> FlagReader::geometry() const {
  try {
    const std::string& config = experiment_.text("model.config");
    return config.empty() ? model_preset(experiment_.text("model.name"))
                          : model_from_file(experiment_.path("model.config").string());
  } catch (const ModelError&) {
    return std::nullopt;  // the model is refused later, with its own sentence
  }
}

bool FlagReader::is_quantised(std::string_view model_field) const {
  if (experiment_.text("model.weights") != "auto") return experiment_.origin("model.weights") == where(model_field);
  const std::optional<ModelGeometry> model = geometry();
  if (!model) return false;
  const auto plain = [](const WeightFormat& format) {
    return format.name == "bf16" || format.name == "fp16" || format.name == "fp32";
  };
  return !plain(model->linear_format) || (model->experts != 0 && !plain(model->expert_format));
}

void FlagReader::set_own_draft(std::string_view field, std::int64_t proposed) {
  const std::string draft = experiment_.text("model.name") + "-mtp";
  if (!experiment_.text("model.config").empty()) return;
  const std::vector<std::string> presets = model_preset_names();
  if (std::ranges::find(presets, draft) == presets.end()) return;
  // Mean tokens that a decode step yields, by the number of proposed tokens. No figure is known for more than three.
  const std::string length = proposed == 1 ? "1.79" : proposed == 2 ? "2.27" : "2.49";
  for (const std::string& setting :
       {std::string("model.draft.kind=packed"), "model.draft.config=" + draft,
        "model.draft.tokens=" + std::to_string(proposed), "model.draft.accept_length=" + length}) {
    experiment_.set(setting, where(field));
  }
  note_on("model.draft.accept_length",
          as_given(field) + ": a decode step yields " + length + " tokens on average, as published for coding prompts" +
              (proposed > 3 ? " and 3 proposed tokens, the most with a figure" : "") +
              " (InferenceX, golden_al_distribution, MTP of DeepSeek-V4-Pro); no flag says it, and it depends on your "
              "traffic: set model.draft.accept_length to the accept len of the server's log");
}

void FlagReader::set_preset(const std::string& key, const std::string& text, const std::string& origin,
                            const std::string& said) {
  if (experiment_.is_given(key)) return;
  const std::string before = experiment_.as_toml(key);
  experiment_.set(key + "=" + text, origin);
  if (experiment_.as_toml(key) != before) assumed_.push_back(said);
}

void FlagReader::set_fixed(const std::string& key, const std::string& value, const std::string& why) {
  const std::string before = experiment_.as_toml(key), origin = experiment_.origin(key);
  const bool was_given = experiment_.is_given(key);
  experiment_.set(key + "=" + value, "as " + engine() + ", for which there is no flag");
  if (experiment_.as_toml(key) == before || is_set_later(key)) return;
  if (!was_given) {
    assumed_.push_back(key + " = " + value);
  } else {
    note(key + " = " + value + ", not " + before + " (" + origin + "): " + why + ", and no flag changes it");
  }
}

bool FlagReader::remove_tier(const std::string& tier, const std::string& origin) {
  const std::string prefix = "tiers." + tier + ".";
  if (experiment_.integer(prefix + "tokens") == 0 && experiment_.number(prefix + "gib") == 0 &&
      (tier != "host" || experiment_.number(prefix + "ratio") == 0)) {
    return false;
  }
  experiment_.set(prefix + "tokens=0", origin);
  return true;
}

bool FlagReader::is_preset(const EngineFlag& flag) const {
  const std::string& text = value(flag.field);
  const std::string preset = preset_of(flag);
  if (preset.empty()) return false;
  const auto a = number_of<double>(text), b = number_of<double>(preset);
  return text == preset || (a && b && *a == *b);
}

void FlagReader::note_unknown() {
  if (unknown_.empty()) return;
  note(engine() + " " + std::string(table_.version()) +
       " has no such flags, so without effect here: " + joined_words(unknown_));
}

void FlagReader::note_not_modelled() {
  std::map<std::string_view, std::vector<std::string>> not_modelled;
  for (const EngineFlag& flag : table_.flags()) {
    if (flag.is != Is::not_modelled || !is_given(flag.field) || is_preset(flag)) continue;
    const bool stands_in = !flag.key.empty() && (experiment_.is_given(flag.key) || is_set_later(flag.key));
    if (!stands_in) not_modelled[flag.why].push_back(as_given(flag.field));
  }
  for (const auto& [why, list] : not_modelled) {
    note("not modelled: " + joined_words(list) + " (" + std::string(why) + ")");
  }
}

void FlagReader::note_without_effect() {
  std::vector<std::string> list;
  for (const EngineFlag& flag : table_.flags()) {
    if (flag.is == Is::without_effect && is_given(flag.field)) list.push_back(given_.at(flag.field).said);
  }
  if (!list.empty()) note("without effect on the cache: " + joined_words(list));
}

}  // namespace kvtwin

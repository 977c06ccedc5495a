#include "lab/vllm/vllm_flags.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "lab/engine_flags/flag_text.hpp"
#include "lab/engine_flags/model_names.hpp"
#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/shell_word.hpp"
#include "lab/units.hpp"
#include "lab/vllm/vllm_table.hpp"
#include "models/engine_pools.hpp"
#include "models/json.hpp"
#include "models/serving_times.hpp"
#include "policy/base/names.hpp"
#include "policy/base/tiers.hpp"
#include "policy/state_points.hpp"

namespace kvtwin {
namespace {

using Takes = EngineFlag::Takes;
using Is = EngineFlag::Is;

constexpr std::string_view kOption = "--from-vllm-flags";
constexpr double kUnboundedGib = 1e9;  // the size of a storage tier that has no size flag

// vLLM's integers may have a unit: k, m, g, t are powers of 1,000; K, M, G, T are powers of 1,024, of whole numbers.
std::optional<std::int64_t> human_integer(std::string_view text) {
  if (const auto plain = number_of<std::int64_t>(text)) return plain;
  static constexpr std::string_view kDecimal = "kmgt", kBinary = "KMGT";
  if (text.empty()) return std::nullopt;
  const std::string_view number = text.substr(0, text.size() - 1);
  if (const std::size_t power = kBinary.find(text.back()); power != std::string_view::npos) {
    const auto whole = number_of<std::int64_t>(number);
    if (!whole || *whole < 0 || *whole > 1'000'000) return std::nullopt;
    return *whole << (10 * (power + 1));
  }
  if (const std::size_t power = kDecimal.find(text.back()); power != std::string_view::npos) {
    const auto part = number_of<double>(number);
    if (!part || !(*part >= 0 && *part < 1e6)) return std::nullopt;
    return static_cast<std::int64_t>(*part * std::pow(1000.0, static_cast<double>(power + 1)));
  }
  return std::nullopt;
}

class VllmReader : public FlagReader {
 public:
  VllmReader(Experiment& experiment, std::string source, const HardwareSpec& hardware, KeyList set_later)
      : FlagReader(vllm_table(), experiment, std::move(source), set_later), hardware_(hardware) {}

  void set_pool(std::int64_t tokens) { pool_tokens_ = tokens; }
  using FlagReader::note;

  void apply(bool notes_idle) {
    for (const EngineFlag& flag : table_.flags()) {
      if (is_given(flag.field)) check(flag, given_.at(flag.field));
    }
    const EngineWord word = engine_word(experiment_.text(kEngineKey), experiment_.where(kEngineKey));
    if (word.engine != ServingEngine::vllm) set_engine(std::string(name_of(ServingEngine::vllm)), true);
    set_model("model", "kv_cache_dtype");
    set_quantization("quantization", "model");
    apply_parallelism();
    for (const EngineFlag& flag : table_.flags()) {
      if (flag.is == Is::modelled && !flag.key.empty()) apply_key(flag);
    }
    if (is_on("disable_hybrid_kv_cache_manager")) {
      experiment_.set("cache.hybrid_allocator=false", where("disable_hybrid_kv_cache_manager"));
    }
    if (is_given("prefix_cache_retention_interval")) {
      experiment_.set(
          "cache.state_points=align(retention=" + std::to_string(integer("prefix_cache_retention_interval", 0)) + ")",
          where("prefix_cache_retention_interval"));
    }
    if (is_on("enforce_eager")) experiment_.set("serving.cuda_graphs=false", where("enforce_eager"));
    apply_batch_limits();
    apply_device_tier();
    set_fixed("scheduler.style", "vllm", "vLLM composes its own passes");
    set_fixed("cache.evict_unit", "page", "vLLM evicts blocks");
    set_fixed("cache.eviction", "lru", "vLLM evicts the blocks that are unused for the longest time");
    set_fixed("cache.load_back_min_tokens", "0", "vLLM's offloading loads each hit");
    apply_draft();
    apply_offloading();
    note_unknown();
    note_not_modelled();
    if (notes_idle) note_without_effect();
    if (!assumed_.empty()) {
      note("not given, so vLLM's default (" + std::string(kVllmVersion) + ", on " + hardware_.name +
           "): " + joined_words(assumed_));
    }
  }

 private:
  bool is_on(std::string_view field) const { return is_given(field) && value(field) == "true"; }
  std::int64_t integer(std::string_view field, std::int64_t otherwise) const {
    return is_given(field) ? number_of<std::int64_t>(value(field)).value_or(otherwise) : otherwise;
  }
  std::string preset_of(const EngineFlag& flag) const override {
    return flag.takes == Takes::nothing && flag.preset.empty() ? "false" : flag.preset;
  }

  void check(const EngineFlag& flag, Given& given) {
    if (flag.takes == Takes::word) check_word(flag, given);
    if (flag.takes == Takes::tokens) {
      const auto number = human_integer(given.value);
      if (!number) refuse(given, "an integer, such as 8192, 8k (8,000) or 8K (8,192)");
      given.value = std::to_string(*number);
    }
    if (flag.takes == Takes::integer || flag.takes == Takes::tokens) check_integer(given, flag.preset == "0" ? 0 : 1);
    if (flag.takes == Takes::number) check_positive(given);
    if (flag.field == "gpu_memory_utilization" && number_of<double>(given.value).value_or(0) > 1) {
      refuse(given, "at most 1");
    }
    if (flag.takes == Takes::text && flag.is == Is::modelled && given.value.empty()) refuse(given, "some text");
  }

  // Data parallelism: of a model with experts, all ranks share the experts, and attention has a group for each; of
  // another model, each is an engine.
  void apply_parallelism() {
    const std::int64_t tp = integer("tensor_parallel_size", 1), dp = integer("data_parallel_size", 1);
    const std::optional<ModelGeometry> model = geometry();
    const bool experts = model && model->experts != 0;
    if (experts && dp > 1) {
      groups_ = dp;
      experiment_.set(
          "parallel.tp=" + std::to_string(std::min<std::int64_t>(tp, 1 << 20) * std::min<std::int64_t>(dp, 1 << 20)),
          where("data_parallel_size"));
      experiment_.set("parallel.attention_dp=" + std::to_string(dp), where("data_parallel_size"));
    } else if (dp > 1) {
      experiment_.set("cluster.engines=" + std::to_string(dp), where("data_parallel_size"));
    }
    if (!is_on("enable_expert_parallel")) return;
    if (!experts) {
      return note_on("model.", as_given("enable_expert_parallel") + ": without effect, as the model has no experts");
    }
    experiment_.set("parallel.ep=" + experiment_.as_toml("parallel.tp"), where("enable_expert_parallel"));
  }

  void apply_key(const EngineFlag& flag) {
    if (flag.field == "gpu_memory_utilization" || flag.field == "max_num_batched_tokens" ||
        flag.field == "max_num_seqs" || (flag.field == "tensor_parallel_size" && groups_ > 1)) {
      return;  // see apply_device_tier(), apply_batch_limits() and apply_parallelism()
    }
    const std::string key(flag.key);
    if (is_given(flag.field)) {
      const FlagWord word = table_.word(flag.field, value(flag.field));
      if (!word.unlike.empty()) {
        note_on(key, "not modelled: " + as_given(flag.field) + "; " + key + " = " + std::string(word.ours) +
                         " stands for it (" + std::string(word.unlike) + ")");
      }
      return experiment_.set(key + "=" + std::string(word.ours), where(flag.field));
    }
    if (flag.preset.empty()) return;
    set_preset(key, std::string(table_.word(flag.field, flag.preset).ours), where(flag.field),
               flag.name + (flag.takes == Takes::nothing ? "" : " " + flag.preset));
  }

  // The flags count for one group of attention, and the keys for all.
  std::string of_all_groups(std::int64_t number) const {
    return std::to_string(std::min(number, std::int64_t{1} << 50) * groups_);
  }

  void apply_batch_limits() {
    const BatchDefaults preset = batch_defaults(ServingEngine::vllm, hardware_);
    const std::int64_t factor = is_given("performance_mode") && value("performance_mode") == "throughput" ? 2 : 1;
    std::int64_t tokens = integer("max_num_batched_tokens", 0);
    if (tokens != 0) {
      experiment_.set("scheduler.chunk_tokens=" + of_all_groups(tokens), where("max_num_batched_tokens"));
    } else {
      tokens = preset.tokens * factor;
      set_preset("scheduler.chunk_tokens", of_all_groups(tokens), where("max_num_batched_tokens"),
                 "--max-num-batched-tokens " + std::to_string(tokens));
    }
    const bool bounded = is_given("max_num_active_seqs");
    const char* const field = bounded ? "max_num_active_seqs" : "max_num_seqs";
    if (is_given(field)) {
      return experiment_.set("scheduler.max_running=" + of_all_groups(integer(field, 1)), where(field));
    }
    const std::int64_t sequences = std::min(preset.requests * factor, tokens);
    set_preset("scheduler.max_running", of_all_groups(sequences), where("max_num_seqs"),
               "--max-num-seqs " + std::to_string(sequences));
  }

  // With several kinds of KV, blocks have other tokens than --block-size, and groups of layers share them.
  void set_blocks(std::int64_t blocks) {
    const std::string from = where("num_gpu_blocks_override");
    const Tokens page = static_cast<Tokens>(experiment_.integer("cache.page_tokens"));
    const std::optional<ModelGeometry> model = geometry();
    if (!model || !has_block_pool(*model)) {
      return experiment_.set("tiers.device.tokens=" + of_all_groups(blocks * static_cast<std::int64_t>(page)), from);
    }
    const auto tp = static_cast<std::uint32_t>(experiment_.integer("parallel.tp"));
    const auto ranks = static_cast<std::uint32_t>(std::max<std::int64_t>(1, tp / groups_));
    const double bytes = static_cast<double>(vllm_block_pool(*model, 0, ranks, page).block_bytes);
    // Half a block more, because the number is rounded.
    experiment_.set("tiers.device.gib=" + number_text((static_cast<double>(blocks) + 0.5) * bytes * tp / kGib), from);
  }

  void apply_device_tier() {
    const auto set_tokens = [&](std::int64_t tokens, const std::string& origin) {
      experiment_.set("tiers.device.tokens=" + of_all_groups(tokens), origin);
    };
    const bool left_out = is_given("gpu_memory_utilization");
    std::string by;
    if (pool_tokens_ != 0) {
      set_tokens(pool_tokens_, source_ + " KV cache size");
      by = "the printed size of the KV cache";
    } else if (is_given("num_gpu_blocks_override")) {
      const std::int64_t blocks = std::min<std::int64_t>(integer("num_gpu_blocks_override", 1), 1 << 30);
      set_blocks(blocks);
      by = given_.at("num_gpu_blocks_override").said;
    } else if (is_given("kv_cache_memory_bytes")) {
      const double bytes = static_cast<double>(integer("kv_cache_memory_bytes", 1));
      experiment_.set(
          "tiers.device.gib=" + number_text(bytes / kGib * static_cast<double>(experiment_.integer("parallel.tp"))),
          where("kv_cache_memory_bytes"));
      by = given_.at("kv_cache_memory_bytes").said;
    } else if (left_out) {
      replace_tier("device", where("gpu_memory_utilization"));
      return experiment_.set("tiers.device.memory_fraction=" + value("gpu_memory_utilization"),
                             where("gpu_memory_utilization"));
    } else if (!experiment_.is_given("tiers.device.tokens") && !experiment_.is_given("tiers.device.gib")) {
      const std::string& preset = table_.find_field("gpu_memory_utilization")->preset;
      return set_preset("tiers.device.memory_fraction", preset, where("gpu_memory_utilization"),
                        "--gpu-memory-utilization " + preset);
    }
    if (left_out && !by.empty()) {
      note(given_.at("gpu_memory_utilization").said + " is left out, as " + by + " says the device tier's size");
    }
  }

  // ---- offloading

  struct Offloading {
    double gib = 0;
    std::string origin;
    Json extra = Json::object();
  };

  void apply_offloading() {
    Offloading found;
    if (is_given("kv_transfer_config")) {
      const std::string from = where("kv_transfer_config");
      read_connector(read_json_object(value("kv_transfer_config"), from), from, found);
    }
    if (is_given("kv_offloading_size")) {
      if (is_given("kv_offloading_backend") && value("kv_offloading_backend") == "lmcache") {
        note("not modelled: " + as_given("kv_offloading_backend") +
             " (LMCache's own server holds the pages; tiers.host.gib says how much it has)");
      } else {
        found.gib = number_of<double>(value("kv_offloading_size")).value_or(0);
        found.origin = where("kv_offloading_size");
      }
    } else if (is_given("kv_offloading_backend")) {
      note(as_given("kv_offloading_backend") + ": without effect, as --kv-offloading-size isn't given");
    }
    if (found.gib == 0) {
      replace_tier("host", source_ + " without --kv-offloading-size");
    } else {
      experiment_.set("tiers.host.gib=" + number_text(found.gib * static_cast<double>(groups_)), found.origin);
      read_spec(found);
    }
    apply_secondary_tiers(found);
  }

  void read_connector(const Json& config, const std::string& from, Offloading& found) {
    const std::string connector = text_of(config, "kv_connector", from);
    const Json extra = config.value("kv_connector_extra_config", Json::object());
    if (!extra.is_object()) throw InputError(from + ": kv_connector_extra_config must be an object, { ... }");
    if (connector == "MultiConnector") {
      for (const Json& part : extra.value("connectors", Json::array())) {
        if (part.is_object()) read_connector(part, from, found);
      }
      return;
    }
    if (connector != "OffloadingConnector" && connector != "SimpleCPUOffloadConnector") {
      const std::string role = text_of(config, "kv_role", from);
      if (role == "kv_producer" || role == "kv_consumer") {
        return note_on("cluster.",
                       "not modelled: the connector " + short_text(connector) + " with " + role +
                           " (a line says one role; cluster.prefill and cluster.decode give engines roles)");
      }
      return note_on("tiers.", "not modelled: the connector " +
                                   short_text(connector.empty() ? "without a name" : connector) +
                                   " (give the tiers that it has: tiers.host, tiers.disk, tiers.remote)");
    }
    found.extra = extra;
    found.origin = from;
    const auto bytes = extra.find("cpu_bytes_to_use");
    if (bytes == extra.end()) {
      if (!is_given("kv_offloading_size") && connector == "OffloadingConnector") {
        throw InputError(from + ": OffloadingConnector needs cpu_bytes_to_use, the bytes of host memory of all ranks");
      }
      return;
    }
    double number = bytes->is_number() ? bytes->get<double>() : 0;
    if (bytes->is_string()) number = static_cast<double>(human_integer(bytes->get<std::string>()).value_or(0));
    if (!std::isfinite(number) || number <= 0) throw InputError(from + ": cpu_bytes_to_use must be a number of bytes");
    found.gib = number / kGib;
    found.origin += " cpu_bytes_to_use";
  }

  static std::string text_of(const Json& object, const char* name, const std::string& from) {
    const auto at = object.find(name);
    if (at == object.end() || at->is_null()) return "";
    if (!at->is_string()) throw InputError(from + ": " + name + " must be a text");
    return at->get<std::string>();
  }

  // The settings of vLLM's offloading. Notes those that have no key.
  void read_spec(const Offloading& found) {
    static constexpr std::string_view kKnown[] = {"cpu_bytes_to_use", "secondary_tiers", "spec_name",
                                                  "eviction_policy",  "store_threshold", "offload_prompt_only",
                                                  "backpressure"};
    const std::string from = found.origin.substr(0, found.origin.find(" cpu_bytes_to_use"));
    const auto set = [&](const char* key, const char* name, const std::string& preset) {
      const auto at = found.extra.find(name);
      std::string value = preset;
      if (at != found.extra.end()) value = at->is_string() ? at->get<std::string>() : at->dump();
      experiment_.set(std::string(key) + "=" + value, from + " " + name);
    };
    set("cache.offload_eviction", "eviction_policy", "lru");
    set("cache.offload_threshold", "store_threshold", "0");
    set("cache.offload_prompt_only", "offload_prompt_only", "true");
    read_backpressure(found, from);
    std::vector<std::string> others;
    for (const auto& [name, setting] : found.extra.items()) {
      const bool preset = (name == "blocks_per_chunk" && setting == 1) ||
                          (name == "block_size" && setting == experiment_.integer("cache.page_tokens"));
      if (!preset && std::ranges::find(kKnown, name) == std::end(kKnown)) others.push_back(name + " " + setting.dump());
    }
    if (!others.empty()) note("of the offloading, not modelled: " + joined_words(others));
  }

  // Of all further tiers here; in vLLM, a tier may have other settings than the rest.
  void read_backpressure(const Offloading& found, const std::string& from) {
    std::vector<Json> given{found.extra.value("backpressure", Json())};
    const Json tiers = found.extra.value("secondary_tiers", Json::array());
    for (const Json& tier : tiers.is_array() ? tiers : Json::array()) {
      if (tier.is_object()) given.push_back(tier.value("backpressure", Json()));
    }
    std::string action = "none";
    for (const Json& one : given) {
      if (!one.is_object()) continue;
      const std::string policy = text_of(one, "policy_cls", from);
      if (action == "none" || !policy.empty()) action = policy == "DropStorePolicy" ? "drop" : "throttle";
      for (const auto& [name, setting] : one.items()) {
        if (name == "policy_cls" || name == "backpressure_cls") continue;
        note("of the offloading, not modelled: backpressure " + name + " " + setting.dump());
      }
    }
    experiment_.set("cache.offload_backpressure=" + action, from + " backpressure");
  }

  // The tiers behind the host: of the types of v1/kv_offload/tiering, `fs` is a folder.
  void apply_secondary_tiers(const Offloading& found) {
    const Json tiers = found.extra.value("secondary_tiers", Json::array());
    std::string kept;
    for (const Json& tier : tiers.is_array() ? tiers : Json::array()) {
      const std::string type = tier.is_object() ? text_of(tier, "type", found.origin) : "";
      if (type != "fs" && type != "obj") {
        note_on("tiers.", "not modelled: the secondary tier " + short_text(tier.dump()));
        continue;
      }
      const Tier kind = type == "fs" ? Tier::disk : Tier::remote;
      const std::string name(spec_of(kind).name), prefix = "tiers." + name + ".";
      kept += " " + name;
      if (experiment_.integer(prefix + "tokens") != 0 || experiment_.number(prefix + "gib") != 0) continue;
      experiment_.set(prefix + "gib=" + number_text(kUnboundedGib), found.origin + " secondary_tiers");
      note_on(prefix,
              "no setting says how much the secondary tier " + type + " holds: " + prefix + "gib is without bound");
    }
    for (const TierSpec& spec : kStorageSpecs) {
      if (kept.find(std::string(spec.name)) == std::string::npos) {
        replace_tier(std::string(spec.name), source_ + " without a secondary tier of this kind");
      }
    }
  }

  // ---- speculative decoding

  void apply_draft() {
    std::string method = is_given("spec_method") ? value("spec_method") : "", field = "spec_method";
    std::string model = is_given("spec_model") ? value("spec_model") : "";
    std::int64_t proposed = integer("spec_tokens", 0);
    if (is_given("speculative_config")) {
      field = "speculative_config";
      const std::string from = where(field);
      const Json config = read_json_object(value(field), from);
      method = text_of(config, "method", from);
      model = text_of(config, "model", from);
      const auto tokens = config.find("num_speculative_tokens");
      if (tokens != config.end() && tokens->is_number_integer()) proposed = tokens->get<std::int64_t>();
    } else if (method.empty() && model.empty()) {
      return;
    }
    if (!is_given(field)) field = "spec_model";
    if (experiment_.is_given("model.draft.kind") || is_set_later("model.draft.kind")) return;
    const bool own = method == "mtp" || method.ends_with("_mtp");
    if (own) set_own_draft(field, std::clamp<std::int64_t>(proposed == 0 ? 1 : proposed, 1, 64));
    if (experiment_.is_given("model.draft.kind")) return;
    note("not modelled: " + as_given(field) +
         " (speculative decoding and its draft model are left out of this plan; model.draft.kind, model.draft.config "
         "and "
         "model.draft.accept_length add them)");
  }

  const HardwareSpec& hardware_;
  std::int64_t groups_ = 1;
  std::int64_t pool_tokens_ = 0;
};

// ---- the line --------------------------------------------------------------------------------------------

bool is_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word[1] != '.' && std::isdigit(static_cast<unsigned char>(word[1])) == 0;
}

struct ServerCommand {
  std::vector<std::string> words;
  std::size_t first = 0;  // of the server's own arguments
  std::string image;      // of a container
};

// Finds the server's arguments behind variables, a shell, an interpreter or a container's command.
ServerCommand find_command(std::string_view line) {
  ServerCommand command{split_flag_line(line, kOption), 0, ""};
  const std::vector<std::string>& words = command.words;
  bool container = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    container = container || word == "docker" || word == "podman" || word == "nerdctl";
    const bool blank = word.find(' ') != std::string::npos;
    if (blank && (word.find("vllm serve ") != std::string::npos || word.find("-m vllm.") != std::string::npos)) {
      return find_command(word);  // of sh -c "..."
    }
    if (word.find("sglang.launch_server") != std::string::npos) {
      throw InputError(std::string(kOption) + ": this is a line of SGLang; give it as --from-sglang-flags");
    }
    if ((word == "vllm" || word.ends_with("/vllm")) && i + 1 < words.size() && words[i + 1] == "serve") {
      command.first = i + 2;
      break;
    }
    if (word.starts_with("vllm.entrypoints.") || word.find("vllm/entrypoints/") != std::string::npos) {
      command.first = i + 1;
      break;
    }
    if (container && !is_flag(word) && word.find("vllm") != std::string::npos && word.find(':') != std::string::npos &&
        word.find('=') == std::string::npos && word.find(":/") == std::string::npos) {
      command.image = word;
      command.first = i + 1;
    }
  }
  if (command.first < words.size() && words[command.first] == "serve") ++command.first;
  cut_at_operator(command.words, command.first);
  return command;
}

// Reads the words into the reader.
class LineReader {
 public:
  LineReader(const ServerCommand& command, VllmReader& reader)
      : words_(command.words), at_(command.first), reader_(reader) {}

  void read() {
    for (; at_ < words_.size(); ++at_) read_word();
    for (auto& [field, part] : parts_) {
      part.first.sort_keys();
      reader_.give(*vllm_table().find_field(field), part.first.dump(), part.second);
    }
  }

 private:
  void read_word() {
    const std::string& word = words_[at_];
    if (!is_flag(word)) {
      if (has_model_)
        throw InputError(std::string(kOption) + ": \"" + short_text(word) + "\" is no flag, and belongs to none");
      has_model_ = true;
      return reader_.give(*vllm_table().find_field("model"), word, "the model");
    }
    std::string name = word;
    std::optional<std::string> value;
    if (const std::size_t equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    if (name.size() == 3 && name.starts_with("-O")) {  // -O2
      value = name.substr(2);
      name = "-O";
    }
    if (name == "-O") name = "--optimization-level";
    std::string path;
    if (const std::size_t dot = name.find('.'); dot != std::string::npos) {
      path = name.substr(dot + 1);
      name.resize(dot);
    }
    std::replace(name.begin() + 2, name.end(), '_', '-');
    const NamedFlag named = known_flag(vllm_table(), kOption, name);
    if (named.flag == nullptr) return read_unknown(value.has_value());
    if (!path.empty()) return read_part(*named.flag, word, path, value);
    if (named.flag->takes == Takes::nothing) {
      if (value)
        throw InputError(std::string(kOption) + ": " + name + " takes no value, and is given " + short_text(*value));
      return reader_.give(*named.flag, named.off ? "false" : "true", name);
    }
    if (named.flag->takes == Takes::list) {
      std::string list = value.value_or("");
      while (!value && value_follows()) list += (list.empty() ? "" : " ") + words_[++at_];
      return reader_.give(*named.flag, list, name);
    }
    reader_.give(*named.flag, value ? *value : next_value(name), name);
  }

  bool value_follows() const { return at_ + 1 < words_.size() && !is_flag(words_[at_ + 1]); }
  const std::string& next_value(const std::string& name) {
    if (!value_follows()) throw InputError(std::string(kOption) + ": " + name + " needs a value");
    return words_[++at_];
  }

  // Takes all values behind an unknown flag, because their number is not known.
  void read_unknown(bool has_value) {
    std::string said = words_[at_];
    while (!has_value && value_follows()) said += " " + words_[++at_];
    reader_.give_unknown(std::move(said));
  }

  // A part of a JSON argument: --name.key.key value, and --name.key+ for an entry of a list.
  void read_part(const EngineFlag& flag, const std::string& word, std::string path, std::optional<std::string> value) {
    const std::string name = word.substr(0, word.find('='));
    if (!value) value = next_value(name);
    Json setting = Json::parse_or_discard(*value);
    if (setting.is_discarded()) {
      const auto number = human_integer(*value);
      setting = number ? Json(*number) : Json(*value);
    }
    if (path.ends_with('+')) {
      path.pop_back();
      setting = Json::array({setting});
    }
    auto& [object, said] = parts_.try_emplace(flag.field, Json::object(), flag.name).first->second;
    Json* place = &object;
    for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.')) {
      Json& inner = (*place)[path.substr(0, dot)];
      if (!inner.is_object()) inner = Json::object();
      place = &inner;
      path.erase(0, dot + 1);
    }
    Json& leaf = (*place)[path];
    if (leaf.is_array() && setting.is_array()) {
      for (Json& entry : setting) leaf.push_back(std::move(entry));
    } else {
      leaf = std::move(setting);
    }
  }

  const std::vector<std::string>& words_;
  std::size_t at_;
  VllmReader& reader_;
  bool has_model_ = false;
  std::map<std::string, std::pair<Json, std::string>> parts_;  // by field
};

// vLLM reads VLLM_* too.
void note_variables(const ServerCommand& command, VllmReader& reader) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < std::min(command.first, command.words.size()); ++i) {
    std::string_view word = command.words[i];
    if (word.starts_with("--env=")) word.remove_prefix(6);
    if (word.starts_with("VLLM_") && word.find('=') != std::string_view::npos) list.emplace_back(word);
  }
  if (!list.empty()) reader.note("not modelled: " + joined_words(list) + " (variables of vLLM aren't read)");
}

}  // namespace

void apply_vllm_line(Experiment& experiment, std::string_view line, const HardwareSpec& hardware, KeyList set_later) {
  const ServerCommand command = find_command(line);
  VllmReader reader(experiment, std::string(kOption), hardware, set_later);
  LineReader(command, reader).read();
  reader.apply(true);
  note_variables(command, reader);
  if (!command.image.empty() && command.image.find(kVllmVersion) == std::string::npos) {
    reader.note("the image is " + short_text(command.image) + "; flags and defaults are those of vLLM " +
                std::string(kVllmVersion));
  }
}

void apply_vllm_arguments(Experiment& experiment, Json arguments, std::int64_t pool_tokens, const std::string& source,
                          const HardwareSpec& hardware, KeyList set_later) {
  arguments.sort_keys();
  VllmReader reader(experiment, source, hardware, set_later);
  reader.set_pool(pool_tokens);
  std::vector<std::string> unknown;
  for (const auto& [field, setting] : arguments.items()) {
    const EngineFlag* const flag = vllm_table().find_field(field == "model_tag" ? "model" : field);
    if (flag == nullptr) {
      unknown.push_back(field);
    } else if (!setting.is_null()) {
      reader.give(*flag, setting.is_string() ? setting.get<std::string>() : setting.dump(), field);
    }
  }
  reader.apply(false);
  if (!unknown.empty()) reader.note("unknown arguments: " + joined_words(unknown));
}

// ---- writing ---------------------------------------------------------------------------------------------

namespace {

class VllmWriter {
 public:
  VllmWriter(const Experiment& experiment, const Setup& setup) : e_(experiment), setup_(setup) {}

  ServerLine line() {
    result_.line = "vllm serve";
    write_model();
    const std::int64_t groups = setup_.attention_dp;
    const std::int64_t ranks = e_.integer("parallel.tp") / groups, engines = e_.integer("cluster.engines");
    say("--tensor-parallel-size", std::to_string(ranks));
    const std::int64_t parallel = groups > 1 ? groups : engines;
    if (groups > 1 && engines > 1) {
      note("cluster.engines = " + e_.as_toml("cluster.engines") +
           ": --data-parallel-size counts the groups of attention");
    }
    if (groups == 1 && engines > 1 && setup_.model.experts != 0) {
      note("cluster.engines = " + e_.as_toml("cluster.engines") +
           ": of a model with experts, --data-parallel-size shares them; start a server for each engine");
    } else if (parallel > 1) {
      say("--data-parallel-size", std::to_string(parallel));
    }
    if (e_.integer("parallel.ep") > 1) result_.line += " --enable-expert-parallel";
    write_cache_type();
    say("--block-size", e_.as_toml("cache.page_tokens"));
    write_device_tier(groups);
    if (!e_.flag("cache.hybrid_allocator")) result_.line += " --disable-hybrid-kv-cache-manager";
    if (setup_.has_block_groups()) {
      const Tokens page = setup_.engine.shape.page_tokens, kept = make_state_points(setup_.engine)->retention();
      if (kept != 0) say("--prefix-cache-retention-interval", std::to_string((kept + page - 1) / page * page));
      said_.insert("cache.state_points");
    }
    say("--max-num-batched-tokens",
        std::to_string(std::max<std::int64_t>(1, e_.integer("scheduler.chunk_tokens") / groups)));
    say("--max-num-seqs", std::to_string(std::max<std::int64_t>(1, e_.integer("scheduler.max_running") / groups)));
    if (!e_.flag("scheduler.admit_whole_prompt")) result_.line += " --no-scheduler-reserve-full-isl";
    if (!e_.flag("serving.overlap")) result_.line += " --no-async-scheduling";
    if (!e_.flag("serving.cuda_graphs")) result_.line += " --enforce-eager";
    if (setup_.engine.host_pages != 0) write_host_tier(groups);
    note_what_differs();
    return std::move(result_);
  }

 private:
  void say(std::string_view flag, const std::string& value) {
    result_.line += " " + std::string(flag) + " " + shell_word(value);
  }
  void note(std::string sentence) { result_.notes.push_back(std::move(sentence)); }

  void write_model() {
    said_.insert({"model.name", "model.config", "model.weights"});
    const std::string& weights = e_.text("model.weights");
    if (!e_.text("model.config").empty()) {
      if (weights != "auto") note_weights(weights);
      const std::filesystem::path path = std::filesystem::absolute(e_.path("model.config")).lexically_normal();
      if (path.filename() == "config.json") {
        result_.line += " " + shell_word(path.parent_path().string());
        return;
      }
      return note("model.config = " + e_.text("model.config") + ": the model is a folder that holds a config.json");
    }
    const NamedRepository repository = repository_of(setup_.model, this->weights());
    if (!repository.has_format && weights != "auto") note_weights(weights);
    if (!repository.name.empty()) {
      result_.line += " " + repository.name;
      return;
    }
    note("model.name = " + e_.text("model.name") + ": no repository is known for it; put it behind vllm serve");
  }
  WeightChoice weights() const { return *value_named<WeightChoice>(e_.text("model.weights")); }
  void note_weights(const std::string& weights) {
    note("model.weights = " + weights + ": the model names the checkpoint with weights in that format");
  }

  void write_cache_type() {
    const std::string type = written_cache_type(e_.text("model.kv_dtype"), weights(), setup_.model);
    if (type == "auto") return;
    const EngineFlag& flag = *vllm_table().find_field("kv_cache_dtype");
    std::string theirs = type;
    for (const FlagWord& word : vllm_table().words()) {
      if (word.field == flag.field && word.ours == type && word.unlike.empty()) {
        theirs = word.theirs;
        break;
      }
    }
    const std::vector<std::string> known = split_words(flag.words);
    if (std::ranges::find(known, type) != known.end()) theirs = type;
    if (std::ranges::find(known, theirs) != known.end()) say("--kv-cache-dtype", theirs);
  }

  void write_device_tier(std::int64_t groups) {
    if (const std::int64_t tokens = e_.integer("tiers.device.tokens"); tokens != 0) {
      say("--num-gpu-blocks-override", std::to_string(tokens / groups / e_.integer("cache.page_tokens")));
      return;
    }
    if (const double gib = e_.number("tiers.device.gib"); gib != 0) {
      say("--kv-cache-memory-bytes", std::to_string(static_cast<std::int64_t>(gib * kGib / setup_.engine_gpus())));
      return;
    }
    const DeviceMemory& memory = setup_.memory.value();  // L1 has no size
    const bool by_vllm = memory.engine == ServingEngine::vllm;
    const std::string& preset = vllm_table().find_field("gpu_memory_utilization")->preset;
    say("--gpu-memory-utilization", memory.is_given || by_vllm ? number_text(memory.fraction) : preset);
    if (!memory.is_given) said_.insert("tiers.device.memory_fraction");
    if (!by_vllm) note(other_memory_rule(memory, "vLLM", "--num-gpu-blocks-override"));
    if (by_vllm && memory.graphs == 0 && e_.flag("serving.cuda_graphs")) {
      note("engine = " + e_.text(kEngineKey) + " counts no graphs in the GPU's memory, and vLLM " +
           std::string(kVllmVersion) + " does, so L1 has another size");
    }
  }

  void write_host_tier(std::int64_t groups) {
    said_.insert({"tiers.host.gib", "tiers.host.tokens", "tiers.host.ratio"});
    double gib = e_.number("tiers.host.gib") / static_cast<double>(groups);
    if (gib == 0) {
      gib = static_cast<double>(setup_.engine.host_pages) * static_cast<double>(setup_.page_bytes()) *
            static_cast<double>(setup_.engine.ranks) / kGib;
      note(std::string(e_.number("tiers.host.ratio") != 0 ? "tiers.host.ratio" : "tiers.host.tokens") +
           " is said in GiB");
    }
    said_.insert({"cache.offload_eviction", "cache.offload_threshold", "cache.offload_prompt_only",
                  "cache.offload_backpressure"});
    Json extra = Json::object();
    if (const std::string& eviction = e_.text("cache.offload_eviction"); eviction != "lru") {
      extra["eviction_policy"] = eviction;
    }
    if (const std::int64_t threshold = e_.integer("cache.offload_threshold"); threshold > 1) {
      extra["store_threshold"] = threshold;
    }
    if (!e_.flag("cache.offload_prompt_only")) extra["offload_prompt_only"] = false;
    if (e_.integer("tiers.disk.tokens") != 0 || e_.number("tiers.disk.gib") != 0) {
      const std::string folder = e_.text("tiers.disk.path");
      extra["spec_name"] = "TieringOffloadingSpec";
      extra["secondary_tiers"] = Json::array({{{"type", "fs"}, {"root_dir", folder.empty() ? "/tmp/kv" : folder}}});
    }
    if (const std::string& action = e_.text("cache.offload_backpressure"); action != "none") {
      extra["backpressure"] = {{"backpressure_cls", "EMABackpressureDetector"},
                               {"policy_cls", action == "drop" ? "DropStorePolicy" : "ThrottledDropPolicy"}};
    }
    if (extra.empty() || !setup_.has_blocks()) return say("--kv-offloading-size", number_text(gib));
    extra["cpu_bytes_to_use"] = static_cast<std::int64_t>(gib * kGib);
    const Json config = {
        {"kv_connector", "OffloadingConnector"}, {"kv_role", "kv_both"}, {"kv_connector_extra_config", extra}};
    say("--kv-transfer-config", config.dump());
  }

  // The keys that the line does not give, among those that the experiment sets and that have an effect.
  void note_what_differs() {
    Experiment again = Experiment::from_text("", "line");
    apply_vllm_line(again, result_.line, setup_.hardware);
    std::vector<IdleKey> idle = idle_keys(e_);
    for (const ExperimentKey& key : experiment_keys()) {
      const std::string name(key.name);
      static constexpr std::string_view kServerKeys[] = {"cache.",    "cluster.",   "model.",
                                                         "parallel.", "scheduler.", "tiers."};
      const bool of_server =
          std::ranges::any_of(kServerKeys, [&](std::string_view section) { return name.starts_with(section); });
      if (!of_server || !e_.is_given(name) || said_.contains(name)) continue;
      if (e_.as_toml(name) == again.as_toml(name)) continue;
      if (std::ranges::any_of(idle, [&](const IdleKey& one) { return one.sentence.starts_with(name + " "); })) continue;
      note(name + " = " + e_.as_toml(name) + ": there is no flag for it");
    }
    const EngineWord word = engine_word(e_.text(kEngineKey), e_.where(kEngineKey));
    if (word.engine != ServingEngine::vllm) note("engine = " + e_.text(kEngineKey) + ": the flags are of vLLM");
  }

  const Experiment& e_;
  const Setup& setup_;
  ServerLine result_;
  std::set<std::string, std::less<>> said_;
};

}  // namespace

ServerLine to_vllm_line(const Experiment& experiment, const Setup& setup) {
  return VllmWriter(experiment, setup).line();
}

}  // namespace kvtwin

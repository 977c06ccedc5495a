#include "lab/sglang/sglang_flags.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "lab/engine_flags/flag_reader.hpp"
#include "lab/engine_flags/flag_text.hpp"
#include "lab/engine_flags/model_names.hpp"
#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/sglang/sglang_table.hpp"
#include "lab/shell_word.hpp"
#include "models/geometry.hpp"
#include "models/json.hpp"
#include "models/names.hpp"
#include "models/presets.hpp"
#include "policy/base/names.hpp"
#include "policy/base/tiers.hpp"

namespace kvtwin {
namespace {

using Takes = EngineFlag::Takes;
using Is = EngineFlag::Is;

constexpr std::string_view kFlagsOption = "--from-sglang-flags";
constexpr std::string_view kInfoOption = "--from-sglang-server-info";

// The size of a storage tier that has no size flag.
constexpr double kUnboundedGib = 1e9;

// Of --radix-eviction-policy-config. The presets are SGLang's.
struct EvictionParameter {
  std::string_view policy, field, parameter;
  std::int64_t preset;
};
constexpr EvictionParameter kEvictionParameters[] = {{"slru", "protected_threshold", "protected", 2},
                                                     {"tlru", "threshold", "threshold", 0},
                                                     {"tlru", "next_prompt_estimate", "next_prompt", 0}};
constexpr const char* kPrefetchPolicy = "cache.prefetch_policy";

// Converts SGLang's size (10^9 bytes per rank) to kvtwin's (2^30 bytes, all ranks together).
double gib_of(double gigabytes, double ranks) { return gigabytes * 1e9 / 1073741824.0 * ranks; }

const SglangRelease& latest_release() { return sglang_releases().back(); }

// Returns the release that the key `engine` names; null if it names none.
const SglangRelease* named_release(const Experiment& experiment) {
  const EngineWord word = engine_word(experiment.text(kEngineKey), experiment.where(kEngineKey));
  return word.version.empty() ? nullptr : word.release;
}

class SglangReader : public FlagReader {
 public:
  SglangReader(Experiment& experiment, std::string source, KeyList set_later, const SglangRelease& release)
      : FlagReader(sglang_table(), experiment, std::move(source), set_later), release_(release) {}

  // prefill, decode, or null for an engine without a role.
  std::string role() const { return is_given("disaggregation_mode") ? value("disaggregation_mode") : "null"; }

  void apply() {
    for (const EngineFlag& flag : sglang_table().flags()) {
      if (is_given(flag.field)) check(flag, given_.at(flag.field));
    }
    hierarchical_ = is_given("enable_hierarchical_cache");
    links_ = !hierarchical_ && is_given("enable_unified_cache_external_linker");
    const EngineWord word = engine_word(experiment_.text(kEngineKey), experiment_.where(kEngineKey));
    const bool latest = &release_ == &latest_release();
    if (word.release != &release_) set_engine("sglang" + (latest ? "" : " " + version()), word.release == nullptr);
    set_model("model_path", "kv_cache_dtype");
    set_quantization("quantization", "model_path");
    for (const EngineFlag& flag : sglang_table().flags()) {
      if (flag.is == Is::modelled && !flag.key.empty()) apply_key(flag);
    }
    apply_eviction_config();
    apply_track_interval();
    if (is_given("disable_cuda_graph")) {
      experiment_.set("serving.cuda_graphs=false", where("disable_cuda_graph"));
    }
    if (is_given("disable_hybrid_swa_memory")) {
      experiment_.set("cache.hybrid_allocator=false", where("disable_hybrid_swa_memory"));
    }
    rewrite_buffer();
    set_fixed("scheduler.style", "sglang", "SGLang composes its own passes");
    for (const CacheRule& rule :
         sglang_cache_rules(release_, experiment_.policy("cache.write_policy").name == "write_back")) {
      set_fixed(rule.key, rule.value, rule.why);
    }
    apply_roles();
    apply_draft();
    apply_host_tier();
    apply_storage();
    apply_time_limit();
    rewrite_layout();
    add_notes();
  }

 private:
  // Checks that SGLang takes the value. Replaces counts such as 20k by digits. Errors: InputError.
  void check(const EngineFlag& flag, Given& given) {
    if (flag.takes == Takes::word) check_word(flag, given);
    if (flag.takes == Takes::tokens) given.value = written_out(given);
    if (flag.takes == Takes::integer || flag.takes == Takes::tokens) {
      const bool unchunked = flag.field == "chunked_prefill_size" && given.value == "-1";
      const bool zero = flag.field == "hicache_size" || flag.field.starts_with("hicache_storage_prefetch_retry_");
      const bool unlimited = flag.field == "mamba_max_states_per_path" && given.value == "-1";
      if (!unchunked && !unlimited) check_integer(given, zero ? 0 : 1);
    }
    if (flag.takes == Takes::number) check_positive(given);
    if (flag.takes == Takes::text && flag.is == Is::modelled && given.value.empty()) refuse(given, "some text");
  }

  // k, M, G are powers of 1,000; Ki, Mi, Gi are powers of 1,024. The meaning of K differs between servers, so K is
  // refused.
  static std::string written_out(const Given& given) {
    static constexpr std::pair<std::string_view, std::int64_t> kUnits[] = {
        {"k", 1'000},         {"m", 1'000'000}, {"M", 1'000'000}, {"g", 1'000'000'000},
        {"G", 1'000'000'000}, {"Ki", 1 << 10},  {"Mi", 1 << 20},  {"Gi", 1 << 30}};
    for (const auto& [unit, factor] : kUnits) {
      if (!given.value.ends_with(unit)) continue;
      const auto number = number_of<double>(std::string_view(given.value).substr(0, given.value.size() - unit.size()));
      if (number && *number >= 0 && *number < 1e9) {
        return std::to_string(static_cast<std::int64_t>(*number * static_cast<double>(factor)));
      }
    }
    return given.value;
  }

  static std::string ours(std::string_view field, std::string_view theirs) {
    return std::string(sglang_table().word(field, theirs).ours);
  }

  void apply_key(const EngineFlag& flag) {
    if (flag.hierarchical && !hierarchical_) return;
    if (flag.field == "mem_fraction_static" && is_given("max_total_tokens")) return;
    if (flag.field == "disaggregation_decode_enable_radix_cache") return;  // see apply_roles()
    const std::string key(key_of(flag));
    if (key.empty()) return;
    if (is_given(flag.field) && flag.takes == Takes::nothing) return experiment_.set(key + "=true", where(flag.field));
    if (is_given(flag.field)) {
      const FlagWord word = table_.word(flag.field, value(flag.field));
      std::string text(word.ours);
      if (!word.unlike.empty()) {
        note_on(key, "not modelled: " + as_given(flag.field) + "; " + key + " = " + text + " stands for it (" +
                         std::string(word.unlike) + ")");
      }
      if (flag.field == "chunked_prefill_size" && text == "-1") text = unchunked_pass();
      // A running server says what each group has.
      const bool is_part = flag.field == "chunked_prefill_size" && !from_flags();
      if (flag.field == "max_total_tokens" || is_part) text = of_all_groups(text);
      if (key == "cache.prefetch_attempts") text = with_first_attempt(text);
      if (key == "cache.states_per_path" && text == "-1") text = "0";
      experiment_.set(key + "=" + text, where(flag.field));
      return;
    }
    const std::string preset = preset_of(flag);
    if (preset.empty() || key == "cache.states_per_path") return;
    const std::string text = key == "cache.prefetch_attempts" ? with_first_attempt(preset) : ours(flag.field, preset);
    set_preset(key, text, where(flag.field), flag.name + " " + preset);
  }

  // The flag does not count the first attempt.
  static std::string with_first_attempt(const std::string& attempts) {
    return std::to_string(number_of<std::int64_t>(attempts).value_or(0) + 1);
  }

  // The number of groups of attention: of --attention-data-parallel-size, or of --dp-size with --enable-dp-attention.
  std::int64_t groups() const {
    const bool by_dp = is_given("enable_dp_attention") && is_given("dp_size");
    const char* const field = by_dp ? "dp_size" : "attn_dp_size";
    return is_given(field) ? number_of<std::int64_t>(value(field)).value_or(1) : 1;
  }

  // The number counts for one group of attention.
  std::string of_all_groups(const std::string& tokens) const {
    const auto number = number_of<std::int64_t>(tokens);
    constexpr std::int64_t kMostGroups = 1024, kMostTokens = std::int64_t{1} << 50;
    if (!number || groups() < 1 || groups() > kMostGroups || *number > kMostTokens || *number < 0) return tokens;
    return std::to_string(*number * groups());
  }

  // The key that the flag sets here; empty for none.
  std::string_view key_of(const EngineFlag& flag) const {
    const bool by_dp = is_given("enable_dp_attention") && is_given("dp_size");
    if (flag.field == "dp_size") return by_dp ? "parallel.attention_dp" : flag.key;
    if (flag.field == "attn_dp_size" && (by_dp || !is_given("attn_dp_size"))) return "";
    if (flag.field != "load_balance_method") return flag.key;
    if (groups() > 1) return flag.key;
    return is_given("dp_size") && value("dp_size") != "1" ? "cluster.route" : "";
  }

  // Returns the flag's default in the release.
  std::string preset_of(const EngineFlag& flag) const override {
    const std::string_view preset = preset_in(release_, flag.field);
    return preset.empty() ? flag.preset : std::string(preset);
  }

  // The time limit of the extra configuration. Its defaults differ between releases.
  void apply_time_limit() {
    if (!hierarchical_) return;
    const PolicyFacts now = experiment_.policy(kPrefetchPolicy);
    std::string list, origin = "SGLang " + version() + "'s default";
    for (const auto& [parameter, preset] :
         {std::pair{"base", release_.timeout_base_s}, std::pair{"per_ki_token", release_.timeout_per_ki_token_s},
          std::pair{"most", release_.timeout_most_s}}) {
      const Parameter* const known = now.find(parameter);
      if (known == nullptr) {
        if (!time_limit_.empty()) {
          note("of the extra configuration, without effect under " + std::string(kPrefetchPolicy) + " = " + now.name +
               ": the time limit of prefetches");
        }
        return;
      }
      const std::string before = std::string(parameter) + "=" + known->value;
      std::string after = before;
      if (const auto given = time_limit_.find(parameter); given != time_limit_.end()) {
        after = std::string(parameter) + "=" + given->second + "s";
        origin = where("hicache_storage_backend_extra_config");
      } else if (!experiment_.gives_parameter(kPrefetchPolicy, parameter)) {
        after = std::string(parameter) + "=" + std::string(preset) + "s";
        const PolicyFacts alone = facts_of_policy(PolicyKind::termination, now.name + "(" + after + ")");
        if (alone.find(parameter)->value != known->value) assumed_.push_back(kPrefetchPolicy + (": " + after));
      }
      list += (list.empty() ? "" : ", ") + after;
    }
    const std::string text = now.name + "(" + list + ")";
    const PolicyFacts then = facts_of_policy(PolicyKind::termination, text);
    if (then.error.empty() && then.text(ParameterTexts::different) == now.text(ParameterTexts::different)) return;
    experiment_.set(std::string(kPrefetchPolicy) + "=" + text, origin);
  }

  // Parameters of slru and tlru.
  void apply_eviction_config() {
    if (!is_given("radix_eviction_policy_config")) return;
    const std::string policy = is_given("radix_eviction_policy") ? value("radix_eviction_policy") : "lru";
    const std::string from = where("radix_eviction_policy_config");
    std::string parameters;
    const Json config = read_json_object(value("radix_eviction_policy_config"), from);
    std::vector<std::string> others;
    for (const auto& [field, setting] : config.items()) {
      const auto known = std::ranges::find_if(kEvictionParameters, [&, name = field](const EvictionParameter& one) {
        return one.policy == policy && one.field == name;
      });
      if (known == std::end(kEvictionParameters)) {
        others.push_back(field);
      } else if (setting.is_number_integer()) {
        parameters += (parameters.empty() ? "" : ", ") + std::string(known->parameter) + "=" + setting.dump();
      } else {
        throw InputError(from + ": " + field + " must be an integer");
      }
    }
    if (!parameters.empty()) experiment_.set("cache.eviction=" + policy + "(" + parameters + ")", from);
    if (!others.empty())
      note("not modelled: of " + as_given("radix_eviction_policy_config") + ", " + joined_words(others));
  }

  // Without tracked states, the flag says nothing.
  void apply_track_interval() {
    constexpr const char* kField = "mamba_track_interval";
    if (!is_given(kField)) return;
    if (is_given("mamba_radix_cache_strategy") && value("mamba_radix_cache_strategy") == "no_buffer") {
      return note("without effect under --mamba-radix-cache-strategy no_buffer: " + as_given(kField));
    }
    experiment_.set("cache.state_points=extra_buffer(interval=" + value(kField) + ")", where(kField));
  }

  // Without chunked prefill, SGLang fills a pass with requests up to --max-prefill-tokens. A longer request is a pass
  // of its own.
  std::string unchunked_pass() {
    std::string tokens = is_given("max_prefill_tokens") ? value("max_prefill_tokens")
                                                        : sglang_table().find_field("max_prefill_tokens")->preset;
    note(given_.at("chunked_prefill_size").said + " -1: longer prompts are still cut, into passes of " + tokens +
         " tokens (--max-prefill-tokens)");
    return tokens;
  }

  void apply_roles() {
    if (!is_given("disaggregation_mode") || value("disaggregation_mode") == "null") return;
    const bool decodes = value("disaggregation_mode") == "decode";
    const std::string from = where("disaggregation_mode");
    if (experiment_.integer("cluster.prefill") == 0) {
      for (const char* key : {"cluster.engines=1", "cluster.prefill=1", "cluster.decode=1"}) experiment_.set(key, from);
      assumed_.push_back("cluster.prefill = 1 and cluster.decode = 1 engines");
    }
    // Without the flag, a decode engine of SGLang has no prefix cache.
    if (decodes) {
      const bool caches = is_given("disaggregation_decode_enable_radix_cache");
      for (const char* key : {"cluster.decode_cache=", "cluster.decode_reuse="}) {
        experiment_.set(key + std::string(caches ? "true" : "false"),
                        caches ? where("disaggregation_decode_enable_radix_cache") : from);
      }
      if (!caches) assumed_.push_back("no prefix cache on decode engines (--disaggregation-decode-enable-radix-cache)");
    }
    if (is_set_later("cluster.decode_set") || experiment_.is_given("cluster.decode_set")) return;
    note(as_given("disaggregation_mode") + ": the " + (decodes ? "prefill" : "decode") +
         " engines have the same flags; where theirs differ, give their line in a second --from-sglang-flags");
  }

  // The draft model of a target whose own prediction layer (MTP) is a preset. Any other draft model stays a note.
  void apply_draft() {
    if (!is_given("speculative_algorithm") || experiment_.is_given("model.draft.kind")) return;
    const std::string& algorithm = value("speculative_algorithm");
    if (is_set_later("model.draft.kind") || (algorithm != "EAGLE" && algorithm != "NEXTN")) return;
    set_own_draft("speculative_algorithm", draft_tokens());
  }

  // Without the flags, SGLang proposes 3 tokens, one after another (_auto_choose_speculative_params).
  std::int64_t draft_tokens() const {
    const auto number = [&](const char* field) {
      return is_given(field) ? number_of<std::int64_t>(value(field)) : std::optional<std::int64_t>();
    };
    const auto verified = number("speculative_num_draft_tokens"), steps = number("speculative_num_steps");
    return verified ? std::clamp<std::int64_t>(*verified, 2, 65) - 1
                    : std::clamp<std::int64_t>(steps.value_or(3), 1, 64);
  }

  void apply_host_tier() {
    if (!hierarchical_) {
      replaces_host_ = remove_tier("host", source_ + " without --enable-hierarchical-cache");
      return;
    }
    const double gigabytes = is_given("hicache_size") ? number_of<double>(value("hicache_size")).value_or(0) : 0;
    if (gigabytes > 0) {
      const auto ranks = static_cast<double>(experiment_.integer("parallel.tp"));
      experiment_.set("tiers.host.gib=" + number_text(gib_of(gigabytes, ranks)), where("hicache_size"));
      set_host_share("0", where("hicache_size"));
      return;
    }
    const bool buffers = experiment_.text("cache.host_mode") == "buffer";
    const std::string preset = buffers ? "1.2" : sglang_table().find_field("hicache_ratio")->preset;
    if (!is_given("hicache_ratio")) assumed_.push_back("--hicache-ratio " + preset);
    experiment_.set("tiers.host.ratio=" + (is_given("hicache_ratio") ? value("hicache_ratio") : preset),
                    where("hicache_ratio"));
    // /server_info always has the ratio, and has the fraction if the fraction is the limit.
    const bool is_sized = is_given("hicache_ratio") && !is_given("hicache_host_memory_fraction");
    if (is_sized || !release_.cuts_host) return set_host_share("0", where("hicache_ratio"));
    const std::string share = is_given("hicache_host_memory_fraction")
                                  ? value("hicache_host_memory_fraction")
                                  : sglang_table().find_field("hicache_host_memory_fraction")->preset;
    set_host_share(share, where("hicache_host_memory_fraction"));
    if (experiment_.number("tiers.host.memory_gib") != 0) return;
    note_on(
        "tiers.host.",
        "SGLang cuts a host tier that neither --hicache-ratio nor --hicache-size sizes to " + share +
            " of the host's free memory less 10 GiB (--hicache-host-memory-fraction); tiers.host.memory_gib says how "
            "much is free, and is not set");
  }

  void set_host_share(const std::string& share, const std::string& origin) {
    if (experiment_.number("tiers.host.memory_share") == number_of<double>(share).value_or(0)) return;
    experiment_.set("tiers.host.memory_share=" + share, origin);
  }

  // The linker: pages go between the device and a store, and the look-up is part of the admission.
  void apply_linker() {
    const std::string from = where("enable_unified_cache_external_linker");
    const std::string backend =
        is_given("unified_cache_external_linker_backend") ? value("unified_cache_external_linker_backend") : "mooncake";
    for (const TierSpec& spec : kStorageSpecs) {
      if (spec.tier != Tier::remote) replace_tier(std::string(spec.name), from);
    }
    experiment_.set("tiers.remote.store=" + store_of(backend), from);
    if (experiment_.integer("tiers.remote.tokens") == 0 && experiment_.number("tiers.remote.gib") == 0) {
      experiment_.set("tiers.remote.gib=" + number_text(kUnboundedGib), from);
      note_on("tiers.remote.", "no flag says how much the linker's store holds: tiers.remote.gib is without bound");
    }
    experiment_.set("cache.path=direct", from);
    experiment_.set("cache.prefetch_min_tokens=1", from);
    experiment_.set("cache.prefetch_policy=wait_complete", from);
    note_on("cache.path",
            as_given("enable_unified_cache_external_linker") +
                ": SGLang looks up the store in the step that admits a request, which all requests wait for; here the "
                "request alone waits, from its arrival on");
  }

  void apply_storage() {
    if (links_) return apply_linker();
    if (hierarchical_ && is_given("enable_unified_cache_external_linker")) {
      note(as_given("enable_unified_cache_external_linker") +
           ": SGLang refuses it beside --enable-hierarchical-cache, which stands");
    }
    if (!hierarchical_ || !is_given("hicache_storage_backend")) {
      for (const TierSpec& spec : kStorageSpecs) {
        replace_tier(std::string(spec.name), source_ + " without --hicache-storage-backend");
      }
      return;
    }
    // SGLang has one storage back end: `file` is a disk of the engine, and `hf3fs` is a file system that engines share;
    // all others are remote stores, which evict by themselves.
    const std::string& backend = value("hicache_storage_backend");
    const Tier tier = backend == "file" ? Tier::disk : backend == "hf3fs" ? Tier::shared_fs : Tier::remote;
    for (const TierSpec& spec : kStorageSpecs) {
      if (spec.tier == tier) continue;
      replace_tier(std::string(spec.name), where("hicache_storage_backend"));
    }
    if (is_given("hicache_storage_backend_extra_config")) apply_extra_config();
    if (tier == Tier::remote) apply_store(mooncake_by_tcp_ ? "mooncake_tcp" : store_of(backend));
    const std::string prefix = "tiers." + std::string(spec_of(tier).name) + ".";
    if (experiment_.integer(prefix + "tokens") == 0 && experiment_.number(prefix + "gib") == 0) {
      experiment_.set(prefix + "gib=" + number_text(kUnboundedGib), where("hicache_storage_backend"));
      note_on(prefix, "no flag says how much " + short_text(backend) + " holds: " + prefix + "gib is without bound");
    }
  }

  // Returns the store preset that stands for SGLang's back end. dynamic is a class of the user's, and of the others no
  // figures are known.
  static std::string store_of(const std::string& backend) {
    if (backend == "nixl") return "nixl_posix";
    for (const char* known : {"mooncake", "aibrix", "eic", "simm", "seaweedfs"}) {
      if (backend == known) return known;
    }
    return "pool";
  }

  void apply_store(const std::string& store) {
    experiment_.set("tiers.remote.store=" + store, where("hicache_storage_backend"));
    const std::string given = as_given("hicache_storage_backend");
    if (store == "pool") {
      note_on("tiers.remote.store",
              given +
                  ": no figures of this store are known, so it costs what the hardware's own pool "
                  "costs; kvtwin calibrate --remote measures a store (tiers.remote.store_file)");
    } else {
      note_on("tiers.remote.store", given + ": costs as the store preset " + store +
                                        " (kvtwin presets); tiers.remote.store names another one");
    }
  }

  // Mooncake's segment size: the memory that each rank gives to the pool, in bytes or as "4gb".
  void apply_segment(const Json& setting, const std::string& from) {
    std::string text = setting.is_string() ? setting.get<std::string>() : setting.dump();
    std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
    double unit = 1;
    for (const auto& [name, bytes] : {std::pair{"tb", 1099511627776.0}, {"gb", 1073741824.0}, {"mb", 1048576.0}}) {
      if (!text.ends_with(name)) continue;
      text.resize(text.size() - 2);
      unit = bytes;
    }
    const auto number = number_of<double>(text);
    if (!number || !std::isfinite(*number) || *number <= 0)
      throw InputError(from + ": global_segment_size must be a number of bytes, or as 4gb");
    const auto ranks = static_cast<double>(experiment_.integer("parallel.tp"));
    experiment_.set("tiers.remote.gib=" + number_text(*number * unit / 1073741824.0 * ranks),
                    from + " global_segment_size");
  }

  void apply_extra_config() {
    static constexpr std::pair<std::string_view, std::string_view> kTimes[] = {
        {"prefetch_timeout_base", "base"},
        {"prefetch_timeout_per_ki_token", "per_ki_token"},
        {"prefetch_timeout_max", "most"}};
    const std::string from = where("hicache_storage_backend_extra_config");
    std::string text = value("hicache_storage_backend_extra_config");
    std::string name = from;
    if (text.starts_with('@')) {
      name += " " + text;
      text = read_argument_file(text.substr(1), from, "give the path of a JSON file");
    }
    const Json config = read_json_object(text, name + " (YAML and TOML aren't read here)");
    std::vector<std::string> others;
    for (const auto& [field, setting] : config.items()) {
      if (field == "global_segment_size" && value("hicache_storage_backend") == "mooncake") {
        apply_segment(setting, from);
        continue;
      }
      if (field == "protocol" && value("hicache_storage_backend") == "mooncake" &&
          (setting == "tcp" || setting == "rdma")) {
        mooncake_by_tcp_ = setting == "tcp";
        continue;
      }
      const auto* known =
          std::ranges::find(kTimes, std::string_view(field), &std::pair<std::string_view, std::string_view>::first);
      const bool has_no_bound = field == "prefetch_timeout_max" && release_.timeout_most_s == "0";
      const bool is_least = field == "prefetch_threshold";
      if ((known == std::end(kTimes) && !is_least) || has_no_bound) {
        others.push_back(field);
        continue;
      }
      if (!setting.is_number()) throw InputError(name + ": " + field + " must be a number");
      if (is_least) {
        experiment_.set("cache.prefetch_min_tokens=" + setting.dump(), from + " " + field);
      } else {
        time_limit_[std::string(known->second)] = setting.dump();
      }
    }
    if (!others.empty()) note("of the extra configuration, not modelled: " + joined_words(others));
  }

  // Applies HiCache's rules for pairs of layout and back end, as SGLang does at its start with a warning.
  void rewrite_layout() {
    if (!hierarchical_ || (!is_given("hicache_io_backend") && !is_given("hicache_mem_layout"))) return;
    const auto rewrite = [&](const std::string& key, const std::string& text, const char* why) {
      note_on(key, key + " becomes " + text + ", as SGLang rewrites it: " + why);
      experiment_.set(key + "=" + text, source_ + ", rewritten as by SGLang");
    };
    if (experiment_.text("cache.layout") == "page_first_direct" && experiment_.text("cache.io") == "kernel")
      rewrite("cache.io", "direct", "the copy kernel doesn't read page_first_direct");
    if (experiment_.text("cache.layout") == "page_first" && experiment_.text("cache.io") == "direct")
      rewrite("cache.layout", "page_first_direct", "direct copies don't read page_first");
    if (!is_given("hicache_storage_backend") || experiment_.text("cache.layout") != "layer_first") return;
    const std::string& backend = value("hicache_storage_backend");
    if (backend != "mooncake" && backend != "npu_memcache") return;
    rewrite("cache.layout", experiment_.text("cache.io") == "direct" ? "page_first_direct" : "page_first",
            "the storage back end needs whole pages");
  }

  // As SGLang does at its start.
  void rewrite_buffer() {
    if (!hierarchical_ || experiment_.text("cache.host_mode") != "buffer") return;
    if (!is_given("hicache_storage_backend")) {
      note_on("cache.host_mode", as_given("hicache_host_memory_mode") +
                                     ": SGLang refuses it without --hicache-storage-backend; the host is a cache here");
      experiment_.set("cache.host_mode=cache", source_ + ", without --hicache-storage-backend");
      return;
    }
    if (experiment_.policy("cache.write_policy").name != "write_back") return;
    note_on("cache.write_policy",
            "cache.write_policy becomes write_through, as SGLang rewrites it: there is no host "
            "tier to write back to");
    experiment_.set("cache.write_policy=write_through", source_ + ", rewritten as by SGLang");
  }

  void add_notes() {
    std::vector<std::string> idle;
    for (const EngineFlag& flag : table_.flags()) {
      if (flag.hierarchical && !hierarchical_ && is_given(flag.field) && !is_preset(flag)) {
        idle.push_back(as_given(flag.field));
      }
    }
    note_unknown();
    if (!hierarchical_) note_no_host(idle);
    note_not_modelled();
    if (is_given("mem_fraction_static") && is_given("max_total_tokens") && from_flags()) {
      note(given_.at("mem_fraction_static").said + " is left out, as " + given_.at("max_total_tokens").said +
           " says the device tier's size");
    }
    if (from_flags()) note_without_effect();
    std::vector<std::string> by_gpu;
    const bool sized = is_given("mem_fraction_static") || is_given("max_total_tokens");
    if (!sized) by_gpu.push_back("--mem-fraction-static");
    if (!is_given("chunked_prefill_size") && !experiment_.is_given("scheduler.chunk_tokens")) {
      by_gpu.push_back("--chunked-prefill-size");
    }
    if (!by_gpu.empty()) note("not given, so by SGLang's rule for the GPU: " + joined_words(by_gpu));
    if (!is_given("max_running_requests")) {
      note("not given, and found out from the GPU by SGLang, so as in the experiment: --max-running-requests");
    }
    if (!assumed_.empty()) note("not given, so SGLang's default (" + version() + "): " + joined_words(assumed_));
    if (!release_.counts_once && uses_counts()) {
      note("not modelled: SGLang " + version() +
           " counts a use of a prefix at each insert of a request, at the end of its prefill and of its answer; here a "
           "request counts once, as from 0.5.22 on");
    }
  }

  // `idle`: flags of the host tier.
  void note_no_host(const std::vector<std::string>& idle) {
    const bool is_later = is_set_later("tiers.host.");
    std::string sentence = std::string("--enable-hierarchical-cache isn't given, so ") +
                           (is_later ? "" : "there is no host tier") +
                           (!is_later && replaces_host_ ? ", the experiment's host tier is left out" : "");
    if (!idle.empty()) sentence += std::string(is_later ? "" : ", and ") + joined_words(idle) + " have no effect";
    if (!is_later || !idle.empty()) note(sentence);
  }

  bool uses_counts() const {
    const std::string eviction = experiment_.policy("cache.eviction").name;
    return eviction == "lfu" || eviction == "slru" ||
           (hierarchical_ && experiment_.policy("cache.write_policy").name == "write_through_selective");
  }
  std::string version() const { return std::string(release_.version); }

  bool from_flags() const { return source_ == kFlagsOption; }

  const SglangRelease& release_;
  bool hierarchical_ = false, replaces_host_ = false;
  bool links_ = false;  // storage without a host tier
  bool mooncake_by_tcp_ = false;
  std::map<std::string, std::string, std::less<>> time_limit_;  // of the extra configuration, in seconds, by parameter
};

// Skips variables and a command such as `python3 -m sglang.launch_server` before the flags.
std::size_t first_flag(const std::vector<std::string>& words) {
  std::size_t first = 0;
  bool sglang = false;
  const auto serve = std::ranges::adjacent_find(
      words, [](const std::string& a, const std::string& b) { return a.ends_with("vllm") && b == "serve"; });
  const bool of_vllm = serve != words.end() || std::ranges::any_of(words, [](const std::string& word) {
                         return word.starts_with("vllm.entrypoints");
                       });
  if (of_vllm) {
    throw InputError(std::string(kFlagsOption) + ": this is a line of vLLM; give it as --from-vllm-flags");
  }
  for (; first < words.size() && !words[first].starts_with("--"); ++first) {
    sglang = sglang || words[first].find("sglang") != std::string::npos;
  }
  return sglang ? first : 0;
}

// Returns the release that the server reports. A note if it has no known version.
const SglangRelease* reported_release(Experiment& experiment, const Json& info, const std::string& source) {
  const auto version = info.find("version");
  if (version == info.end() || !version->is_string()) return &latest_release();
  const std::string text = version->get<std::string>();
  if (const SglangRelease* release = find_sglang_release(text)) return release;
  experiment.note(source + ": version " + short_text(text) + " is none of the known releases (" +
                  sglang_release_names() + "); the rules of " + std::string(kSglangVersion) +
                  " are taken; --sglang-version names another one");
  return &latest_release();
}

// Gives the reader the flags of a line.
void read_line(std::string_view flags, SglangReader& reader) {
  std::vector<std::string> words = split_flag_line(flags, kFlagsOption);
  cut_at_operator(words, first_flag(words));
  for (std::size_t i = first_flag(words); i < words.size(); ++i) {
    std::string name = words[i];
    std::optional<std::string> value;
    if (const std::size_t equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const EngineFlag* flag = known_flag(sglang_table(), kFlagsOption, name).flag;
    const auto value_follows = [&] { return i + 1 < words.size() && !words[i + 1].starts_with("--"); };
    if (flag == nullptr) {
      // Takes all values behind an unknown flag, because their number is not known.
      std::string said = words[i];
      while (!value && value_follows()) said += " " + words[++i];
      reader.give_unknown(std::move(said));
      continue;
    }
    if (flag->takes == Takes::nothing) {
      if (value)
        throw InputError(std::string(kFlagsOption) + ": " + name + " takes no value, and is given " +
                         short_text(*value));
    } else if (flag->takes == Takes::list) {
      while (!value && value_follows()) ++i;
    } else if (!value) {
      if (!value_follows()) throw InputError(std::string(kFlagsOption) + ": " + name + " needs a value");
      value = words[++i];
    }
    reader.give(*flag, value.value_or(""), name);
  }
}

// The keys that the decode engines' line gives other values become cluster.decode_set.
void set_decode_engines(const Experiment& decode, Experiment& experiment) {
  std::string set;
  std::vector<std::string> common;
  for (const ExperimentKey& key : experiment_keys()) {
    const std::string name(key.name);
    if (decode.as_toml(name) == experiment.as_toml(name)) continue;
    const std::string text =
        std::holds_alternative<std::string>(key.fallback) ? decode.text(name) : decode.as_toml(name);
    if (name == "cluster.decode_cache" || name == "cluster.decode_reuse") {
      experiment.set(name + "=" + text, decode.origin(name));
    } else if (is_key_of_all_engines(name)) {
      common.push_back(name);
    } else if (split_list(text).size() > 1) {
      throw InputError(std::string(kFlagsOption) + ": " + name + " = " + short_text(text) +
                       " of the decode engines has a comma, which cluster.decode_set can't hold");
    } else {
      set += (set.empty() ? "" : ", ") + name + "=" + text;
    }
  }
  experiment.set("cluster.decode_set=" + set, std::string(kFlagsOption));
  const std::vector<std::string> known = experiment.notes();
  for (const std::string& note : decode.notes()) {
    if (std::ranges::find(known, note) == known.end()) experiment.note("decode engines: " + note);
  }
  if (!common.empty()) {
    experiment.note("decode engines: as on the prefill engines, because all engines share them: " +
                    joined_words(common));
  }
}

}  // namespace

void apply_sglang_cache_rules(Experiment& experiment, const std::string& origin) {
  const bool write_back = experiment.policy("cache.write_policy").name == "write_back";
  for (const CacheRule& rule : sglang_cache_rules(latest_release(), write_back)) {
    experiment.set(rule.key + "=" + rule.value, origin);
  }
}

void apply_sglang_flags(Experiment& experiment, std::string_view flags, KeyList set_later,
                        const SglangRelease* release) {
  if (release == nullptr) release = named_release(experiment);
  SglangReader reader(experiment, std::string(kFlagsOption), set_later, release ? *release : latest_release());
  read_line(flags, reader);
  reader.apply();
}

void apply_sglang_lines(Experiment& experiment, std::span<const std::string> lines, KeyList set_later,
                        const SglangRelease* release) {
  if (lines.size() == 1) return apply_sglang_flags(experiment, lines.front(), set_later, release);
  std::vector<std::string> later(set_later.begin(), set_later.end());
  later.emplace_back("cluster.decode_set");  // it comes from the second line
  const std::string source(kFlagsOption);
  if (release == nullptr) release = named_release(experiment);
  const SglangRelease& rules = release ? *release : latest_release();
  Experiment decode = experiment;
  std::vector<SglangReader> readers;
  for (const std::string& line : lines) {
    const bool decodes = readers.size() == 1;
    read_line(line, readers.emplace_back(decodes ? decode : experiment, source, later, rules));
  }
  if (readers.size() == 2 && readers[0].role() == "decode" && readers[1].role() == "prefill") {
    const std::string swapped[] = {lines[1], lines[0]};
    return apply_sglang_lines(experiment, swapped, set_later, release);
  }
  if (readers.size() != 2 || readers[0].role() != "prefill" || readers[1].role() != "decode") {
    throw InputError(source + ": is given " + std::to_string(lines.size()) +
                     " times; more than once it must be one line with --disaggregation-mode prefill and one with "
                     "--disaggregation-mode decode");
  }
  for (SglangReader& reader : readers) reader.apply();
  set_decode_engines(decode, experiment);
}

void apply_sglang_server_info_text(Experiment& experiment, std::string_view text, const std::string& name,
                                   KeyList set_later, const SglangRelease* release) {
  std::string source = std::string(kInfoOption) + ": " + name;
  if (text.find("server_args=ServerArgs(") != std::string_view::npos) {
    throw InputError(source + " is the log of a server; give it as --from-server-log");
  }
  const Json info = read_json_object(text, source);
  // The text becomes part of an origin, which is written as a TOML comment.
  std::ranges::replace_if(
      source, [](char c) { return c < 0x20 || c == 0x7F; }, '?');
  apply_sglang_fields(experiment, info, source, set_later, release);
}

void apply_sglang_fields(Experiment& experiment, Json info, const std::string& source, KeyList set_later,
                         const SglangRelease* release) {
  info.sort_keys();
  if (release == nullptr) release = named_release(experiment);
  if (release == nullptr) release = reported_release(experiment, info, source);
  SglangReader reader(experiment, source, set_later, *release);
  std::vector<std::string> unknown;
  const auto give = [&](const EngineFlag& flag, const std::string& field, const Json& setting) {
    const bool nothing = setting.is_null() || (setting.is_boolean() && !setting.get<bool>()) ||
                         (setting.is_structured() && setting.empty());
    if (nothing) return;  // same as an absent field
    const bool is_switch = flag.takes == Takes::nothing;
    const bool fits = is_switch ? setting.is_boolean()
                                : setting.is_string() || setting.is_number() ||
                                      (setting.is_object() && flag.field == "hicache_storage_backend_extra_config");
    if (!fits && flag.is == Is::modelled) {
      throw InputError(source + ": " + field + " must be " + (is_switch ? "true or false" : "a number or a string"));
    }
    std::string value = setting.is_string() ? setting.get<std::string>() : setting.dump();
    if (setting.is_string() && value.empty() && flag.is != Is::modelled) return;
    reader.give(flag, is_switch ? "" : std::move(value), field);
  };
  for (const auto& [field, setting] : info.items()) {
    if (const EngineFlag* flag = sglang_table().find_field(field)) {
      give(*flag, field, setting);
    } else if (!is_server_info_field(field)) {
      unknown.push_back(field);
    }
  }
  // The real size of the pool has priority over the requested size.
  if (const auto tokens = info.find("max_total_num_tokens"); tokens != info.end()) {
    give(*sglang_table().find_field("max_total_tokens"), "max_total_num_tokens", *tokens);
  }
  reader.apply();
  if (!unknown.empty()) experiment.note(source + ": unknown fields: " + joined_words(unknown));
}

void apply_sglang_server_info(Experiment& experiment, const std::filesystem::path& file, KeyList set_later,
                              const SglangRelease* release) {
  apply_sglang_server_info_text(
      experiment, read_argument_file(file.string(), std::string(kInfoOption), "give the path of a JSON file"),
      file.string(), set_later, release);
}

// ---- writing -----------------------------------------------------------------------------------------

namespace {

class SglangWriter {
 public:
  SglangWriter(const Experiment& experiment, const Setup& setup) : e_(experiment), setup_(setup) {}

  ServerLine line() {
    hierarchical_ = setup_.engine.host_pages != 0;
    for (const EngineFlag& flag : sglang_table().flags()) {
      if (flag.is != Is::modelled || (flag.hierarchical && !hierarchical_)) continue;
      if (flag.field == "model_path") {
        write_model();
      } else if (flag.field == "enable_hierarchical_cache") {
        if (hierarchical_) line_.line += " " + flag.name;
      } else if (flag.field == "dp_size" && setup_.attention_dp > 1) {
        write_groups();
      } else if (flag.field == "attn_dp_size" || flag.field == "disaggregation_decode_enable_radix_cache" ||
                 flag.field.find("external_linker") != std::string::npos) {
        continue;  // as --dp-size; of roles; note_what_is_left() notes cache.path
      } else if (flag.field == "load_balance_method") {
        if (setup_.attention_dp > 1 && e_.text("parallel.attention_route") != "round_robin") write_key(flag);
      } else if (flag.field == "hicache_ratio") {
        write_host_tier();
      } else if (flag.field == "hicache_host_memory_mode") {
        if (e_.text("cache.host_mode") != "cache") write_key(flag);
      } else if (flag.field == "mem_fraction_static") {
        write_fraction(flag);
      } else if (flag.field == "max_total_tokens") {
        write_device_tier();
      } else if (flag.field == "mamba_radix_cache_strategy") {
        write_states_per_request(flag);
      } else if (flag.field == "mamba_track_interval") {
        write_track_interval(flag);
      } else if (flag.field == "disable_hybrid_swa_memory") {
        if (!e_.flag("cache.hybrid_allocator")) line_.line += " " + flag.name;
      } else if (flag.field == "disable_cuda_graph") {
        if (!e_.flag("serving.cuda_graphs")) line_.line += " " + flag.name;
      } else if (flag.field == "hicache_storage_backend") {
        write_storage();
      } else if (flag.field == "hicache_storage_backend_extra_config") {
        write_extra_config();
      } else if (flag.field == "radix_eviction_policy_config") {
        write_eviction_config();
      } else if (!flag.key.empty()) {
        write_key(flag);
      }
    }
    note_what_is_left();
    line_.line.erase(0, 1);
    return std::move(line_);
  }

 private:
  void say(std::string_view flag, const std::string& value) {
    line_.line += " " + std::string(flag) + " " + shell_word(value);
  }
  void note(std::string sentence) { line_.notes.push_back(std::move(sentence)); }

  void write_model() {
    const std::string& weights = e_.text("model.weights");
    if (const std::string& config = e_.text("model.config"); !config.empty()) {
      if (weights != "auto") note_weights(weights);
      const std::filesystem::path path = std::filesystem::absolute(e_.path("model.config")).lexically_normal();
      if (path.filename() == "config.json") return say("--model-path", path.parent_path().string());
      return note("model.config = " + config + ": --model-path takes a folder that holds a config.json");
    }
    const NamedRepository repository = repository_of(setup_.model, this->weights());
    if (!repository.has_format && weights != "auto") note_weights(weights);
    if (!repository.name.empty()) return say("--model-path", repository.name);
    note("model.name = " + e_.text("model.name") + ": no repository is known for it; add --model-path");
  }
  WeightChoice weights() const { return *value_named<WeightChoice>(e_.text("model.weights")); }
  void note_weights(const std::string& weights) {
    note("model.weights = " + weights + ": --model-path names the checkpoint with weights in that format");
  }

  void write_groups() {
    say("--dp-size", std::to_string(setup_.attention_dp));
    line_.line += " --enable-dp-attention";
    if (e_.integer("cluster.engines") > 1) {
      note("cluster.engines = " + e_.as_toml("cluster.engines") + ": --dp-size counts the groups of attention");
    }
  }

  // Without --mem-fraction-static, SGLang's rule would take the --max-running-requests of this line into account.
  void write_fraction(const EngineFlag& flag) {
    if (!setup_.memory) return write_key(flag);
    const DeviceMemory& memory = *setup_.memory;
    const bool by_sglang = memory.engine == ServingEngine::sglang;
    const bool is_limited = e_.is_given("scheduler.max_running");
    if (memory.is_given || (by_sglang && !is_limited)) say(flag.name, number_text(memory.fraction));
    if (!by_sglang) note(other_memory_rule(memory, "SGLang", "--max-total-tokens"));
  }

  void write_device_tier() {
    if (const std::int64_t tokens = e_.integer("tiers.device.tokens"); tokens != 0) {
      say("--max-total-tokens", std::to_string(tokens / setup_.attention_dp));
    } else if (e_.number("tiers.device.gib") != 0) {
      const Tokens tokens_held = setup_.engine.device_pages * setup_.engine.shape.page_tokens;
      say("--max-total-tokens", std::to_string(tokens_held));
      const PoolSize* states = setup_.device_pools.find(PoolKind::state);
      if (states != nullptr && e_.integer("tiers.device.states") == 0) {
        say("--max-mamba-cache-size", std::to_string(states->slots * setup_.attention_dp));
      }
      note("tiers.device.gib = " + e_.as_toml("tiers.device.gib") + " is said in tokens");
    }
  }

  void write_states_per_request(const EngineFlag& flag) {
    const std::string states = e_.as_toml(flag.key);
    if (states == "0") return;
    for (const FlagWord& word : sglang_table().words()) {
      if (word.field == flag.field && word.ours == states) return say(flag.name, std::string(word.theirs));
    }
    note(std::string(flag.key) + " = " + states + ": no --mamba-radix-cache-strategy takes so many states");
  }

  void write_track_interval(const EngineFlag& flag) {
    const PolicyFacts points = e_.policy("cache.state_points");
    if (points.name != "extra_buffer") return;
    const Parameter* const interval = points.find("interval");
    if (interval->value != flag.preset) say(flag.name, interval->value);
  }

  void write_host_tier() {
    const bool is_bounded = e_.number("tiers.host.memory_gib") != 0 && e_.number("tiers.host.memory_share") != 0;
    if (const double ratio = e_.number("tiers.host.ratio"); ratio != 0)
      return say("--hicache-ratio", is_bounded ? ratio_text() : number_text(ratio));
    const auto ranks = static_cast<double>(e_.integer("parallel.tp"));
    const double gib = e_.number("tiers.host.gib");
    const double gigabytes = std::round(gib / gib_of(1, ranks));
    if (gib != 0 && gib_of(gigabytes, ranks) == gib) return say("--hicache-size", number_text(gigabytes));
    say("--hicache-ratio", ratio_text());
    note(std::string(gib != 0 ? "tiers.host.gib" : "tiers.host.tokens") +
         " is said as a ratio: --hicache-size takes whole GB a rank");
  }

  // Returns the ratio with the fewest digits that give the same number of pages.
  std::string ratio_text() const {
    const auto device = static_cast<double>(setup_.engine.device_pages),
               host = static_cast<double>(setup_.engine.host_pages);
    for (int digits = 1; digits < 17; ++digits) {
      char text[40];
      std::snprintf(text, sizeof text, "%.*g", digits, host / device);
      if (std::floor(device * number_of<double>(text).value_or(0)) == host) return text;
    }
    return number_text(std::nextafter(host / device, 2 * host));
  }

  bool has_tier(const std::string& tier) const {
    return e_.integer("tiers." + tier + ".tokens") != 0 || e_.number("tiers." + tier + ".gib") != 0;
  }

  void write_storage() {
    std::vector<std::string> tiers;
    for (const TierSpec& spec : kStorageSpecs) {
      if (has_tier(std::string(spec.name))) tiers.emplace_back(spec.name);
    }
    if (tiers.empty()) return;
    const std::string& tier = tiers.back();
    if (tiers.size() > 1) {
      note("storage tiers " + joined_words(tiers) + ": --hicache-storage-backend names one back end");
    } else if (tier == "disk" || tier == "shared_fs") {
      say("--hicache-storage-backend", tier == "disk" ? "file" : "hf3fs");
      if (e_.number("tiers." + tier + ".gib") != kUnboundedGib) {
        note("the " + tier + " tier's size: there is no flag for it");
      }
    } else {
      say("--hicache-storage-backend", backend_of_store());
      if (e_.integer("tiers.remote.tokens") != 0) note("tiers.remote.tokens: a back end's size is said in bytes");
    }
  }

  // Returns SGLang's back end for the remote store.
  std::string backend_of_store() {
    const std::string& store = e_.text("tiers.remote.store");
    if (!e_.text("tiers.remote.store_file").empty()) note("tiers.remote.store_file: there is no flag for figures");
    if (store == "mooncake" || store == "mooncake_tcp") return "mooncake";
    if (store == "nixl_posix") return "nixl";
    for (const char* known : {"aibrix", "eic", "simm", "seaweedfs"}) {
      if (store == known) return known;
    }
    note("tiers.remote.store = " + store + ": SGLang has no such back end; mooncake is the nearest one");
    return "mooncake";
  }

  void write_extra_config() {
    Json config = Json::object();
    if (has_tier("remote") && e_.text("tiers.remote.store") == "mooncake_tcp") config["protocol"] = "tcp";
    const double remote = e_.number("tiers.remote.gib");
    if (remote != 0 && remote != kUnboundedGib && !has_tier("disk") && !has_tier("shared_fs")) {
      const auto ranks = static_cast<double>(e_.integer("parallel.tp"));
      config["global_segment_size"] = number_text(remote / ranks) + "gb";
    }
    const auto add = [&](const char* field, const char* key) {
      for (const ExperimentKey& known : experiment_keys()) {
        if (known.name != key) continue;
        if (const auto* fallback = std::get_if<double>(&known.fallback)) {
          if (e_.number(key) != *fallback) config[field] = e_.number(key);
        } else if (e_.integer(key) != std::get<std::int64_t>(known.fallback)) {
          config[field] = e_.integer(key);
        }
      }
    };
    add("prefetch_threshold", "cache.prefetch_min_tokens");
    const PolicyFacts prefetch = e_.policy(kPrefetchPolicy);
    for (const auto& [field, name] :
         {std::pair{"prefetch_timeout_base", "base"}, std::pair{"prefetch_timeout_per_ki_token", "per_ki_token"}}) {
      const Parameter* const time = prefetch.find(name);
      if (time != nullptr && time->value != time->fallback) config[field] = static_cast<double>(time->number) / 1e9;
    }
    if (!config.empty()) say("--hicache-storage-backend-extra-config", config.dump());
  }

  void write_eviction_config() {
    Json config = Json::object();
    const PolicyFacts eviction = e_.policy("cache.eviction");
    for (const EvictionParameter& one : kEvictionParameters) {
      if (one.policy != eviction.name) continue;
      const std::int64_t number = eviction.find(one.parameter)->number;
      if (number != one.preset) config[one.field] = number;
    }
    if (!config.empty()) say("--radix-eviction-policy-config", config.dump());
  }

  void write_key(const EngineFlag& flag) {
    const std::string key(flag.key);
    if (flag.takes == Takes::nothing) {
      if (e_.flag(key)) line_.line += " " + flag.name;
      return;
    }
    if (flag.takes == Takes::number) {
      if (e_.number(key) != 0) say(flag.name, number_text(e_.number(key)));
      return;
    }
    if (flag.takes != Takes::word) {
      const bool counts_first = key == "cache.prefetch_attempts";
      const std::int64_t number = e_.integer(key) - (counts_first ? 1 : 0);
      const bool is_one = number == 1 && (flag.field == "dp_size" || flag.field == "ep_size" ||
                                          flag.field == "scheduler_recv_interval");
      const bool retries = flag.field.starts_with("hicache_storage_");
      const bool differs = retries ? std::to_string(number) != flag.preset : number != 0;
      if (differs && !is_one) say(flag.name, std::to_string(number));
      return;
    }
    // The policy without its parameters, which other flags give.
    const auto known_key = std::ranges::find(experiment_keys(), key, &ExperimentKey::name);
    const bool is_policy = known_key != experiment_keys().end() && known_key->policy.has_value();
    std::string word = is_policy                 ? e_.policy(key).name
                       : key == "model.kv_dtype" ? written_cache_type(e_.text(key), weights(), setup_.model)
                                                 : e_.text(key);
    for (const FlagWord& pair : sglang_table().words()) {
      if (pair.field == flag.field && pair.ours == word && pair.unlike.empty()) {
        word = pair.theirs;
        break;
      }
    }
    const std::vector<std::string> known = split_words(flag.words);
    if (std::ranges::find(known, word) != known.end()) return say(flag.name, word);
    note(key + " = " + word + ": " + flag.name + " knows " + joined_words(known));
  }

  void note_what_is_left() {
    // Fixed behaviour of the server without a flag.
    static constexpr std::pair<std::string_view, std::string_view> kFixed[] = {
        {"cache.evict_unit", "node"},
        {"cache.rules.split_refreshes", "true"},
        {"cache.rules.look_ups_refresh", "true"},
        {"cache.rules.count_touches", "insert"},
        {"cache.rules.raise_prompt_priority", "true"},
        {"cache.write_threshold", "0"},
        {"cache.tiering", "inclusive"},
        {"cache.backup_retries", "0"},
        {"cache.host_clean_reserve", "0.0"},
        {"cache.path", "via_host"},
        {"cache.prefetch_admission", "threshold"},
        {"cache.load_back_admission", "threshold"},
        {"cache.load_back_min_tokens", "10"},
        {"cache.load_back_quota_tokens", "0"},
        {"cache.output", "true"},
        {"cache.pool_eviction", "lru"},
        {"cache.rules.prefetch_timeout_from", "wait"},
        {"cache.rules.prefetch_recheck", "true"},
        {"cache.rules.prefetch_style", "sglang"},
        {"cache.rules.private_loads", "true"},
        {"cache.rules.prefetch_host_share", "0.5"},
        {"cache.rules.prefetch_share_of", "host"},
        {"cache.storage_batch_pages", "128"},
        {"cache.storage_retries", "0"},
        {"cache.split_kv", "false"},
        {"cache.namespace", ""},
        {"scheduler.style", "sglang"},
        {"cluster.route", "round_robin"},
        {"cluster.prefill", "0"},
        {"cluster.decode", "0"}};
    const bool reclaims = e_.policy("cache.write_policy").name == "write_back";
    if (reclaims && e_.number("cache.clean_reserve") != 0) {
      note("cache.clean_reserve = " + e_.as_toml("cache.clean_reserve") + ": there is no flag for it");
    }
    if (e_.flag("cache.rules.reclaim_shadowed") != reclaims) {
      note("cache.rules.reclaim_shadowed = " + e_.as_toml("cache.rules.reclaim_shadowed") +
           ": there is no flag for it");
    }
    if (reclaims && !e_.flag("cache.rules.host_evicts_leaving")) {
      note("cache.rules.host_evicts_leaving = false: there is no flag for it");
    }
    if (reclaims && e_.text("cache.rules.reclaim_order") != "shadowed") {
      note("cache.rules.reclaim_order = " + e_.text("cache.rules.reclaim_order") + ": there is no flag for it");
    }
    if (e_.policy("cache.state_points").name == "overlap") {
      note("cache.state_points = " + e_.text("cache.state_points") + ": there is no flag for it");
    }
    const PolicyFacts prefetch = e_.policy(kPrefetchPolicy);
    if (const Parameter* const most = prefetch.find("most"); most != nullptr && most->number != 0) {
      note(kPrefetchPolicy + (" = " + e_.text(kPrefetchPolicy)) + ": there is no flag for most");
    }
    if (e_.text("cache.hints") == "obey") note("cache.hints = obey: there is no flag for it");
    for (const auto& [key, fixed] : kFixed) {
      std::string text = e_.as_toml(key);
      if (text.starts_with('\'') || text.starts_with('"')) text = e_.text(key);
      if (text != fixed) note(std::string(key) + " = " + text + ": there is no flag for it");
    }
    if (e_.text(kEngineKey) != name_of(ServingEngine::sglang)) {
      const SglangRelease* release = named_release(e_);
      note("engine = " + e_.text(kEngineKey) + ": the flags are of SGLang" +
           (release == nullptr ? std::string()
                               : ", and --sglang-version " + std::string(release->version) + " says the release"));
    }
    if (setup_.draft) note("model.draft: the server's flags name a draft model, and it measures what is accepted");
    if (!hierarchical_ && setup_.has_storage()) note("storage tiers without a host tier: HiCache has none");
    if (hierarchical_ && e_.text("cache.layout") == "page_first" && e_.text("cache.io") == "direct")
      note("SGLang rewrites page_first to page_first_direct for direct copies");
    if (hierarchical_ && e_.text("cache.layout") == "page_first_direct" && e_.text("cache.io") != "direct")
      note("SGLang rewrites its io back end to direct for page_first_direct");
  }

  const Experiment& e_;
  const Setup& setup_;
  ServerLine line_;
  bool hierarchical_ = false;
};

}  // namespace

ServerLine to_sglang_flags(const Experiment& experiment, const Setup& setup) {
  return SglangWriter(experiment, setup).line();
}

}  // namespace kvtwin

#include "lab/experiment/idle_keys.hpp"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <variant>

#include "lab/experiment/setup.hpp"
#include "policy/base/tiers.hpp"
#include "policy/order.hpp"
#include "policy/write.hpp"

namespace kvtwin {
namespace {

using Keys = std::initializer_list<std::string_view>;

struct Facts {
  explicit Facts(const Experiment& experiment)
      : e(experiment),
        host(has(Tier::host)),
        trace(!e.text("workload.trace").empty()),
        kind(e.text("workload.generate.kind")) {}
  // Also false for an unknown name.
  bool writes_when_evicted() const {
    const std::unique_ptr<WritePolicy> policy = make_write_policy(e.text("cache.write_policy"));
    return policy != nullptr && policy->writes_when_evicted();
  }
  bool reorders() const {
    const std::unique_ptr<RequestOrder> order = make_request_order(e.text("scheduler.order"));
    return order != nullptr && order->reorders();
  }
  bool has(Tier tier) const { return has_tier(e, tier); }
  bool stores() const {
    return std::ranges::any_of(kStorageSpecs, [this](const TierSpec& spec) { return has(spec.tier); });
  }
  bool prefetches_to_host() const { return host && stores() && !is("cache.path", "direct"); }
  bool scores_engines() const {
    return several_engines() &&
           routes_not_only_by({"round_robin", "least_loaded", "power_of_two", "session_affinity", "prefix_affinity"});
  }
  bool is(const char* key, const char* value) const { return e.text(key) == value; }
  bool chooses(const char* key, const char* policy) const { return policy_text(e.text(key)).name == policy; }
  bool chooses_one_of(const char* key, Keys policies) const {
    return std::ranges::find(policies, policy_text(e.text(key)).name) != policies.end();
  }
  bool is_one_of(const char* key, Keys values) const { return std::ranges::find(values, e.text(key)) != values.end(); }

  // True also if only the decode engines may have groups.
  bool has_groups() const {
    return e.integer("parallel.attention_dp") > 1 ||
           e.text("cluster.decode_set").find("attention_dp") != std::string::npos;
  }
  bool has_roles() const { return e.integer("cluster.prefill") > 0; }
  bool several_engines() const { return e.integer("cluster.engines") > 1 || has_roles(); }
  // False if every router in use is one of these.
  bool routes_not_only_by(Keys routers) const {
    return !chooses_one_of("cluster.route", routers) ||
           (has_roles() && !chooses_one_of("cluster.decode_route", routers));
  }

  const Experiment& e;
  bool host, trace;
  const std::string& kind;
};

// Some keys, the condition of their effect, and the sentence if there is no effect. Policies and formats that a build
// adds are assumed to read the same keys as the known ones.
struct Rule {
  std::span<const std::string_view> keys;
  bool (*has_effect)(const Facts&);
  const char* otherwise;
};

constexpr std::string_view kOfSlru[] = {"cache.slru_protected_touches"};
constexpr std::string_view kOfCountedTouches[] = {"cache.rules.count_touches"};
constexpr std::string_view kOfHints[] = {"cache.hint_share"};
constexpr std::string_view kOfTlru[] = {"cache.tlru_threshold_tokens", "cache.tlru_next_prompt_tokens"};
constexpr std::string_view kOfDraft[] = {"model.draft.config", "model.draft.accept_length",
                                         "model.draft.accept_length_without_kv", "model.draft.restore",
                                         "model.draft.tokens"};
constexpr std::string_view kOfServing[] = {"serving.request_us",     "serving.token_ns",    "serving.host_link_share",
                                           "serving.schedule_us",    "serving.step_us",     "serving.sequence_us",
                                           "serving.kernel_us",      "serving.launch_us",   "serving.prefix_factor",
                                           "serving.prefill_factor", "serving.cuda_graphs", "serving.overlap"};
constexpr std::string_view kOfOperators[] = {"parallel.ep", "parallel.expert_mode"};
constexpr std::string_view kOfDisk[] = {"real.cufile"};
constexpr std::string_view kOfTrace[] = {"workload.format", "workload.block_tokens"};
constexpr std::string_view kOfSharedTokens[] = {"workload.shared_tokens"};
constexpr std::string_view kOfSessions[] = {"workload.session_gap_s"};
constexpr std::string_view kOfService[] = {"workload.service_s"};
constexpr std::string_view kOfRoute[] = {"cluster.route"};
constexpr std::string_view kOfGroups[] = {"parallel.attention_route"};
constexpr std::string_view kOfBursts[] = {"scheduler.burst_steps"};
constexpr std::string_view kOfAffinity[] = {"cluster.route_min_prefix"};
constexpr std::string_view kOfEvenLoads[] = {"cluster.route_uneven_requests", "cluster.route_uneven_factor"};
constexpr std::string_view kOfPool[] = {"tiers.remote.drives_gib",
                                        "hardware.set.pool_nodes",
                                        "hardware.set.pool_peers",
                                        "hardware.set.rails",
                                        "hardware.set.switch_oversubscription",
                                        "hardware.set.network_share",
                                        "hardware.set.pool_node_gbps"};
constexpr std::string_view kOfNodes[] = {"hardware.set.pool_node_gbps"};
constexpr std::string_view kOfRoles[] = {
    "cluster.decode_set",   "cluster.hand_over",    "cluster.hand_over_staged", "cluster.hand_over_min_tokens",
    "cluster.decode_reuse", "cluster.decode_cache", "cluster.decode_route",     "sim.notice_us"};
constexpr std::string_view kOfScore[] = {"cluster.route_queue_weight", "cluster.route_kv_weight",
                                         "cluster.route_prefix_weight", "cluster.route_host_share",
                                         "cluster.route_prefix_from"};
constexpr std::string_view kOfSharedScore[] = {"cluster.route_storage_share"};
constexpr std::string_view kOfView[] = {"cluster.route_view_delay_s"};
constexpr std::string_view kOfBelowDevice[] = {"cache.layout", "cache.write_policy", "hardware.set.host_link_gbps"};
constexpr std::string_view kOfHost[] = {"tiers.host.memory_gib",
                                        "cache.tiering",
                                        "cache.host_mode",
                                        "cache.host_copies",
                                        "cache.rules.reclaim_shadowed",
                                        "cache.backup_retries",
                                        "cache.io",
                                        "cache.load_back_admission",
                                        "cache.load_back_min_tokens",
                                        "cache.load_back_quota_tokens",
                                        "cache.offload_eviction",
                                        "cache.offload_threshold",
                                        "cache.offload_prompt_only"};
constexpr std::string_view kOfHostRatio[] = {"tiers.host.memory_share"};
constexpr std::string_view kOfReclaim[] = {"cache.rules.reclaim_order"};
constexpr std::string_view kOfWriteBack[] = {"cache.clean_reserve", "cache.rules.host_evicts_leaving"};
constexpr std::string_view kOfThreshold[] = {"cache.write_threshold"};
constexpr std::string_view kOfStorage[] = {"model.revision",
                                           "cache.prefetch_policy",
                                           "cache.prefetch_admission",
                                           "cache.prefetch_min_tokens",
                                           "cache.prefetch_retry_steps",
                                           "cache.rules.prefetch_recheck",
                                           "cache.storage_batch_pages",
                                           "cache.storage_retries",
                                           "cache.storage_write_share",
                                           "cache.storage_backlog",
                                           "cache.offload_backpressure",
                                           "cache.namespace",
                                           "cache.path"};
constexpr std::string_view kOfBacklog[] = {"cache.storage_backlog"}, kOfWriteShare[] = {"cache.storage_write_share"};
constexpr std::string_view kOfTimeout[] = {"cache.prefetch_timeout_base_s", "cache.prefetch_timeout_per_ki_token_s",
                                           "cache.prefetch_timeout_most_s", "cache.rules.prefetch_timeout_from"};
constexpr std::string_view kOfPrefetches[] = {"cache.rules.prefetch_style"};
constexpr std::string_view kOfHostWrites[] = {"cache.host_clean_reserve"};
constexpr std::string_view kOfDirectLoads[] = {"cache.rules.private_loads"};
constexpr std::string_view kOfHostShare[] = {"cache.rules.prefetch_host_share", "cache.rules.prefetch_share_of"};
constexpr std::string_view kOfAttempts[] = {"cache.prefetch_attempts"};
constexpr std::string_view kOfSplit[] = {"cache.split_kv"};
constexpr std::string_view kOfOvertaking[] = {"scheduler.overtake_limit"};
constexpr std::string_view kOfSglang[] = {"scheduler.mixed_chunks"};
constexpr std::string_view kOfVllm[] = {"scheduler.admit_whole_prompt"};
constexpr std::string_view kOfInstances[] = {"sim.reduce_us"};

constexpr const char* kNoStorage = "there is no storage tier; give tiers.disk, tiers.shared_fs or tiers.remote";

const Rule kRules[] = {
    {kOfDraft, [](const Facts& f) { return !f.is("model.draft.kind", "none"); },
     "model.draft.kind is none; set that to packed or side_pool"},
    {kOfServing, [](const Facts& f) { return !f.is("serving.engine", "none"); },
     "serving.engine is none; set that to sglang, vllm or trtllm"},
    {kOfOperators,
     [](const Facts& f) {
       return !f.is("hardware.operators_file", "") || !f.is_one_of("hardware.operators", {"", "none"});
     },
     "the roofline does not know how experts are split; give hardware.operators"},
    {kOfDisk, [](const Facts& f) { return f.has(Tier::disk); }, "there is no disk tier; give tiers.disk"},
    {kOfTrace, [](const Facts& f) { return f.trace; }, "there is no trace; give workload.trace"},
    {kOfSharedTokens,
     [](const Facts& f) {
       return f.trace && !f.is_one_of("workload.format", {"mooncake", "qwen", "agentic", "token_ids", "sglang",
                                                          "lmcache", "vllm", "kv_events", "vllm_bench"});
     },
     "it is read for traces in the formats azure and burstgpt only; set that"},
    {kOfSessions,
     [](const Facts& f) {
       return f.trace && !f.is_one_of("workload.format", {"mooncake", "qwen", "azure", "burstgpt", "token_ids",
                                                          "sglang", "lmcache", "vllm", "kv_events", "vllm_bench"});
     },
     "it is read for traces in the format agentic only; set that"},
    {kOfService,
     [](const Facts& f) {
       if (!f.trace && f.kind == "sessions") {
         return f.e.number("workload.generate.turns") > 1 || f.e.integer("workload.generate.turns_most") > 1;
       }
       return f.is("workload.loop", "closed");
     },
     "it is read for workload.loop = closed, and for generated sessions of several turns, only; set one of them"},
    {kOfRoles, [](const Facts& f) { return f.has_roles(); },
     "no engine has a role; set cluster.prefill and cluster.decode"},
    {kOfRoute, [](const Facts& f) { return f.several_engines(); }, "there is one engine; set cluster.engines to more"},
    {kOfGroups, [](const Facts& f) { return f.has_groups(); },
     "attention has one group; set parallel.attention_dp to more"},
    {kOfBursts, [](const Facts& f) { return f.e.integer("parallel.attention_dp") == 1; },
     "groups of attention (parallel.attention_dp) run one step at a time"},
    {kOfPool, [](const Facts& f) { return f.has(Tier::remote); }, "there is no remote tier; give tiers.remote"},
    {kOfNodes, [](const Facts& f) { return !f.e.flag("hardware.set.pool_peers"); },
     "with hardware.set.pool_peers a node has the bandwidth of its host's NICs; leave that out"},
    {kOfAffinity,
     [](const Facts& f) {
       return f.several_engines() &&
              f.routes_not_only_by({"round_robin", "least_loaded", "power_of_two", "session_affinity", "score"});
     },
     "it is read for several engines with cluster.route = prefix_affinity only; set that"},
    {kOfEvenLoads,
     [](const Facts& f) {
       return f.several_engines() && f.routes_not_only_by({"round_robin", "least_loaded", "power_of_two", "score"});
     },
     "it is read for several engines with cluster.route = prefix_affinity or session_affinity only; set one of them"},
    {kOfScore, [](const Facts& f) { return f.scores_engines(); },
     "it is read for several engines with cluster.route = score only; set that"},
    {kOfSharedScore,
     [](const Facts& f) { return f.scores_engines() && (f.has(Tier::shared_fs) || f.has(Tier::remote)); },
     "it is read for several engines with cluster.route = score and a shared tier only; give tiers.remote or "
     "tiers.shared_fs"},
    {kOfView, [](const Facts& f) { return f.several_engines() && f.routes_not_only_by({"round_robin"}); },
     "it is read for several engines with a cluster.route that knows the engines only; set another than round_robin"},
    {kOfBelowDevice, [](const Facts& f) { return f.host || f.stores(); },
     "the device tier is the only one; give tiers.host, tiers.disk, tiers.shared_fs or tiers.remote"},
    {kOfHost, [](const Facts& f) { return f.host; }, "there is no host tier; give tiers.host"},
    {kOfHostRatio, [](const Facts& f) { return f.e.number("tiers.host.ratio") != 0; },
     "it bounds tiers.host.ratio only; set that"},
    {kOfReclaim, [](const Facts& f) { return f.host && f.e.flag("cache.rules.reclaim_shadowed"); },
     "it is read for a host tier with cache.rules.reclaim_shadowed = true only; set that"},
    {kOfWriteBack, [](const Facts& f) { return f.host && f.writes_when_evicted(); },
     "it is read for a host tier under cache.write_policy = write_back only; set that"},
    {kOfThreshold, [](const Facts& f) { return f.host ? !f.writes_when_evicted() : f.stores(); },
     "it is read for cache.write_policy = write_through or write_through_selective, with a tier to write to only; set "
     "that"},
    {kOfSlru, [](const Facts& f) { return f.chooses("cache.eviction", "slru"); },
     "it is read for cache.eviction = slru only; set that"},
    {kOfCountedTouches,
     [](const Facts& f) {
       return f.chooses_one_of("cache.eviction", {"lfu", "slru"});
     },
     "it is read for cache.eviction = lfu or slru only; set that"},
    {kOfHints, [](const Facts& f) { return f.is("cache.hints", "obey"); },
     "it is read for cache.hints = obey only; set that"},
    {kOfTlru, [](const Facts& f) { return f.chooses("cache.eviction", "tlru"); },
     "it is read for cache.eviction = tlru only; set that"},
    {kOfStorage, [](const Facts& f) { return f.stores(); }, kNoStorage},
    {kOfBacklog,
     [](const Facts& f) {
       return !f.stores() || !f.is("cache.host_mode", "buffer") || f.is("cache.storage_backlog", "block");
     },
     "a host that is a buffer limits its writes itself; with cache.host_mode = buffer only block has an effect"},
    {kOfWriteShare,
     [](const Facts& f) {
       const bool limits = !f.is("cache.storage_backlog", "wait") && !f.is("cache.host_mode", "buffer");
       return !f.stores() || limits || f.is("cache.storage_backlog", "block");
     },
     "it limits nothing with cache.storage_backlog = wait, and with cache.host_mode = buffer unless that is block; set "
     "cache.storage_backlog to another"},
    {kOfTimeout,
     [](const Facts& f) {
       return f.stores() && !f.chooses_one_of("cache.prefetch_policy", {"best_effort", "wait_complete", "cost_stop"});
     },
     "it is read for storage tiers with cache.prefetch_policy = timeout only; set that"},
    {kOfPrefetches, [](const Facts& f) { return f.prefetches_to_host(); },
     "it is read for prefetches from a storage tier to a host tier only; set that"},
    {kOfHostWrites, [](const Facts& f) { return f.host && f.stores(); },
     "it is read for a host tier above a storage tier only; give tiers.host, and tiers.disk, tiers.shared_fs or "
     "tiers.remote"},
    {kOfDirectLoads, [](const Facts& f) { return f.stores() && !f.host; },
     "it is read for a storage tier without a host tier only; leave out tiers.host"},
    {kOfHostShare, [](const Facts& f) { return f.prefetches_to_host() && !f.is("cache.host_mode", "buffer"); },
     "it is read for prefetches from a storage tier to a host tier that is no buffer only; set that"},
    {kOfAttempts,
     [](const Facts& f) {
       return f.stores() &&
              (f.e.integer("cache.prefetch_retry_steps") != 0 || f.e.flag("cache.rules.prefetch_recheck"));
     },
     "it is read for storage tiers with cache.rules.prefetch_recheck or cache.prefetch_retry_steps above 0 only; set "
     "one"},
    {kOfSplit, [](const Facts& f) { return f.stores() && !f.is("cache.layout", "layer_first"); },
     "it is read for storage tiers and layouts other than layer_first only; set that"},
    {kOfOvertaking, [](const Facts& f) { return f.reorders(); }, "scheduler.order is fcfs; set that to another"},
    {kOfSglang, [](const Facts& f) { return !f.chooses("scheduler.style", "vllm"); },
     "it is read for scheduler.style = sglang only; set that"},
    {kOfVllm, [](const Facts& f) { return !f.chooses("scheduler.style", "sglang"); },
     "it is read for scheduler.style = vllm only; set that"},
    {kOfInstances, [](const Facts& f) { return f.is("parallel.rank_model", "instances"); },
     "parallel.rank_model is lockstep; set that to instances"},
};

// The kinds of generated traffic that read a key.
struct Generated {
  std::string_view key;  // without the prefix workload.generate.
  std::string_view kinds[6];
};
constexpr Generated kGenerated[] = {
    {"requests", {"chat", "agentic", "tools", "returning", "groups", "sessions"}},
    {"duration_s", {"chat", "agentic", "tools", "sessions"}},
    {"sessions_per_second", {"chat", "agentic"}},
    {"requests_per_second", {"tools", "groups", "sessions"}},
    {"users", {"sessions"}},
    {"new_tokens", {"sessions"}},
    {"context_max_tokens", {"sessions"}},
    {"turns_least", {"sessions"}},
    {"turns_most", {"sessions"}},
    {"prompt_tokens", {"returning", "sessions"}},
    {"question_tokens", {"returning", "groups"}},
    {"output_tokens", {"returning", "groups", "sessions"}},
    {"working_set_tokens", {"returning"}},
    {"visits", {"returning"}},
    {"prompt_tokens_per_second", {"returning"}},
    {"groups", {"groups"}},
    {"prompts_per_group", {"groups"}},
    {"prefix_tokens", {"groups", "sessions"}},
    {"range_ratio", {"groups"}},
    {"concurrency", {"groups"}},
    {"start_spread_s", {"groups", "sessions"}},
    {"think_s", {"groups", "sessions"}},
    {"turns", {"sessions"}},
    {"length_spread", {"sessions"}},
    {"think_spread", {"sessions"}},
    {"stages", {"groups"}},
    {"at_once", {"returning"}},
};

// Returns the reason why the generator does not read the key; empty if the generator reads it.
std::string why_not_generated(const Facts& facts, std::string_view key) {
  if (facts.trace) return "the requests come from workload.trace; set that to \"\" to generate them";
  const auto known = std::ranges::find(kGenerated, key, &Generated::key);
  if (known == std::end(kGenerated)) return "";  // kind
  std::string kinds;
  bool reads = false;
  for (const std::string_view kind : known->kinds) {
    if (kind.empty()) continue;
    reads |= kind == facts.kind;
    kinds += (kinds.empty() ? "" : " or ") + std::string(kind);
  }
  if (!reads) {
    const bool lengths = key.find("tokens") != std::string_view::npos &&
                         facts.is_one_of("workload.generate.kind", {"chat", "agentic", "tools"});
    return "workload.generate.kind is " + facts.kind + (lengths ? ", which draws lengths of its own" : "") +
           "; set that to " + kinds;
  }
  const bool counted = facts.e.integer("workload.generate.requests") != 0;
  if (counted && (key == "duration_s" || key == "visits")) {
    return "workload.generate.requests says how many requests are generated; set that to 0";
  }
  if (facts.kind == "sessions") {
    const bool users = facts.e.integer("workload.generate.users") != 0;
    const bool follow_ups =
        users || facts.e.number("workload.generate.turns") > 1 || facts.e.integer("workload.generate.turns_most") > 1;
    if (key == "start_spread_s" && !users) return "there are no users; set workload.generate.users";
    if (key == "turns" && facts.e.integer("workload.generate.turns_most") != 0) {
      return "workload.generate.turns_most gives the range of turns; set that to 0";
    }
    if ((key == "think_s" || key == "think_spread") && !follow_ups) {
      return "conversations have one turn; set workload.generate.turns higher";
    }
    if (key == "think_spread" && facts.e.number("workload.generate.think_s") == 0) {
      return "workload.generate.think_s is 0; set that higher";
    }
    return "";
  }
  const bool clients = facts.e.integer("workload.generate.concurrency") != 0;
  const bool staged = !facts.is("workload.generate.stages", "");
  if (key == "requests_per_second" && clients) {
    return "clients ask one question after the other; set workload.generate.concurrency to 0";
  }
  if (key == "requests_per_second" && staged && facts.kind == "groups") {
    return "workload.generate.stages sets the rates; set that to \"\"";
  }
  if ((key == "start_spread_s" || key == "think_s") && !clients && !(staged && facts.is("workload.loop", "closed"))) {
    return "there are no clients; set workload.generate.concurrency and workload.loop = closed";
  }
  return "";
}

// Returns the reason for a key of an absent storage tier (tiers.NAME.*, and the figures of its devices); empty for all
// other keys. A tier is present if it has a capacity.
std::string why_no_tier(const Facts& facts, std::string_view key) {
  static constexpr std::pair<std::string_view, std::string_view> kDevices[] = {{"disk", "disk_"},
                                                                               {"disk", "drive_"},
                                                                               {"disk", "file_"},
                                                                               {"shared_fs", "shared_fs_"},
                                                                               {"remote", "remote_"},
                                                                               {"remote", "nic_"},
                                                                               {"remote", "pool_bandwidth"},
                                                                               {"remote", "pool_latency"},
                                                                               {"remote", "pool_look_up"}};
  for (const TierSpec& spec : kStorageSpecs) {
    const std::string name(spec.name);
    const bool is_figure = std::ranges::any_of(kDevices, [&](const auto& device) {
      return device.first == name && key.starts_with("hardware.set." + std::string(device.second));
    });
    if (!key.starts_with("tiers." + name + ".") && !is_figure) continue;
    if (!facts.has(spec.tier)) return "there is no " + name + " tier; give tiers." + name;
  }
  return "";
}

std::string why_idle(const Facts& facts, std::string_view key) {
  constexpr std::string_view kGenerator = "workload.generate.";
  if (key.starts_with(kGenerator)) return why_not_generated(facts, key.substr(kGenerator.size()));
  if (std::string why = why_no_tier(facts, key); !why.empty()) return why;
  if (const EarlierKey* earlier = find_earlier_key(key); earlier != nullptr && !earlier->switched_by.empty()) {
    const std::string switched(earlier->switched_by);
    const bool is_off = facts.e.value(switched) == find_earlier_key(switched)->key.fallback;
    return is_off ? switched + " is not given; set that" : "";
  }
  for (const Rule& rule : kRules) {
    if (std::ranges::find(rule.keys, key) != rule.keys.end() && !rule.has_effect(facts)) return rule.otherwise;
  }
  return "";
}

bool is_off(const KeyValue& value) {
  return std::visit([](const auto& v) { return v == std::decay_t<decltype(v)>{}; }, value);
}

// Returns whether the user set the value. Defaults of kvtwin and of the engines, and the many fields of a server's
// answer, are not set by the user.
bool is_users(const std::string& origin) {
  for (const char* other :
       {"SGLang", "vLLM", "as SGLang", "as vLLM", "kvtwin ", "--from-sglang-server-info", "--from-server-log"}) {
    if (origin.starts_with(other)) return false;
  }
  return true;
}

}  // namespace

std::vector<IdleKey> idle_keys(const Experiment& experiment) {
  const Facts facts(experiment);
  const auto given =
      std::ranges::count_if(experiment_keys(), [&](const ExperimentKey& key) { return experiment.is_given(key.name); });
  const bool lists_all = static_cast<std::size_t>(given) > experiment_keys().size() / 2;
  std::vector<IdleKey> idle;
  const auto check = [&](const ExperimentKey& key) {
    if (!experiment.is_given(key.name) || !is_users(experiment.origin(key.name))) return;
    const KeyValue& value = experiment.value(key.name);
    if (value == key.fallback) {
      const bool for_readers = facts.trace && key.name.starts_with("workload.generate.");
      if (is_off(value) || (experiment.is_from_file(key.name) && (lists_all || for_readers))) return;
    }
    const std::string why = why_idle(facts, key.name);
    if (why.empty()) return;
    const std::string where = experiment.where(key.name);
    idle.push_back({key.name, where, why, where + ": has no effect: " + why + ", or leave this out"});
  };
  for (const ExperimentKey& key : experiment_keys()) check(key);
  for (const KeyTable& table : key_tables()) std::ranges::for_each(table.keys, check);
  for (const EarlierKey& earlier : earlier_keys()) {
    if (!earlier.policies.empty()) check(earlier.key);  // the key of today stands for a renamed one
  }
  return idle;
}

std::vector<std::string> idle_sentences(const std::vector<IdleKey>& keys) {
  std::vector<std::string> sentences;
  for (auto first = keys.begin(); first != keys.end(); ++first) {
    const auto same = [&](const IdleKey& key) { return key.why == first->why; };
    if (std::any_of(keys.begin(), first, same)) continue;
    std::string where;
    for (auto key = first; key != keys.end(); ++key) {
      if (same(*key)) where += (where.empty() ? "" : ", ") + key->where;
    }
    const bool one = where == first->where;
    sentences.push_back(one ? first->sentence : where + ": have no effect: " + first->why + ", or leave these out");
  }
  return sentences;
}

}  // namespace kvtwin

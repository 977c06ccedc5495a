#include "lab/experiment/sglang_releases.hpp"

namespace kvtwin {
namespace {

// Sources, in sglang/srt: mem_cache/hiradix_cache.py (HiRadixCache) to 0.5.18, mem_cache/unified_radix_cache.py and
// mem_cache/unified_cache/unified_tree_core.py (UnifiedRadixCache) from 0.5.19;
// - the time limit: PrefetchTimeoutConfig in mem_cache/hicache_storage.py to 0.5.18, parse_storage_backend_extra_config
//   in mem_cache/hybrid_cache/hybrid_cache_controller.py from 0.5.19; it begins in _prefetch_timeout_check_linear_func
//   to 0.5.22, in _start_storage_prefetch_wait from 0.5.23;
// - the defaults: server_args.py, and arg_groups/fields/memory.py from 0.5.20;
// - prompt_priority: checkpoint_into_tree; counts_once: inserted_len;
// - reclaims: _reclaim_full_host_duplicates. The same releases evict node after node (_evict_components). Earlier ones
//   evict all nodes of a call together, at the end of evict;
// - cuts_host: mem_cache/hicache_auto_size.py;
// - rechecks: _prefetch_after_device_hit_loss in managers/scheduler.py;
// - beyond_device: prefetch_capacity_limit in managers/cache_controller.py, and the assertion on the sizes in
//   mem_cache/pool_host/base.py (memory_pool_host.py to 0.5.13), which is a warning from 0.5.15 on.
constexpr SglangRelease kReleases[] = {
    {"0.5.10", "1", "0.25", "0", "issue", "best_effort", "layer_first", "0", "0", false, false, false, false, false,
     true},
    {"0.5.11", "1", "0.25", "0", "issue", "best_effort", "layer_first", "0", "0", false, false, false, false, false,
     true},
    {"0.5.12", "2", "0.1", "30", "issue", "timeout", "layer_first", "0", "0", false, false, false, false, false, true},
    {"0.5.13", "2", "0.1", "30", "issue", "timeout", "layer_first", "0", "0", false, false, false, false, false, true},
    {"0.5.14", "2", "0.1", "30", "issue", "timeout", "page_first", "0", "0", false, false, false, false, false, true},
    {"0.5.15", "2", "0.1", "30", "issue", "timeout", "page_first", "0", "0", false, false, false, false, false, false},
    {"0.5.16", "2", "0.1", "30", "issue", "timeout", "page_first", "0", "0", false, false, false, false, false, false},
    {"0.5.17", "2", "0.1", "30", "issue", "timeout", "page_first", "0", "0", false, false, false, false, false, false},
    {"0.5.18", "2", "0.1", "30", "issue", "timeout", "page_first", "0", "0", false, false, false, false, false, false},
    {"0.5.19", "1", "0.25", "0", "issue", "timeout", "page_first", "0", "4", false, true, false, false, false, false},
    {"0.5.20", "1", "0.25", "0", "issue", "timeout", "page_first", "8", "8", true, true, false, false, true, false},
    {"0.5.21", "1", "0.25", "0", "issue", "timeout", "page_first", "8", "8", true, true, false, true, true, false},
    {"0.5.22", "1", "0.25", "0", "issue", "timeout", "page_first", "8", "8", true, true, true, true, true, false},
    {"0.5.23", "1", "0.25", "0", "wait", "timeout", "page_first", "8", "8", true, true, true, true, true, false}};

}  // namespace

std::span<const SglangRelease> sglang_releases() { return kReleases; }

const SglangRelease* find_sglang_release(std::string_view version) {
  if (version.starts_with('v')) version.remove_prefix(1);
  for (const SglangRelease& release : kReleases) {
    if (!version.starts_with(release.version)) continue;
    const std::string_view rest = version.substr(release.version.size());
    if (rest.empty() || rest.starts_with(".post")) return &release;
  }
  return nullptr;
}

std::string sglang_release_names() {
  std::string names;
  for (const SglangRelease& release : kReleases) names += (names.empty() ? "" : ", ") + std::string(release.version);
  return names;
}

std::string_view preset_in(const SglangRelease& release, std::string_view field) {
  if (field == "hicache_storage_prefetch_policy") return release.prefetch_policy;
  if (field == "hicache_mem_layout") return release.mem_layout;
  if (field == "hicache_storage_prefetch_retry_poll_interval") return release.retry_steps;
  if (field == "hicache_storage_prefetch_retry_max_attempts") return release.retry_attempts;
  return "";
}

std::vector<CacheRule> sglang_cache_rules(const SglangRelease& release, bool write_back) {
  const std::string version = "SGLang " + std::string(release.version);
  std::vector<CacheRule> rules{
      {"cache.evict_unit", "node", "SGLang evicts whole nodes"},
      {"cache.rules.split_refreshes", "true", "SGLang makes the rest of a split node recently used"},
      {"cache.rules.look_ups_refresh", "true", "SGLang makes what a look-up finds recently used"},
      {"cache.rules.count_touches", "insert", "SGLang counts a touch at an insert"},
      {"cache.clean_reserve", "0", "SGLang keeps no clean reserve"},
      {"cache.storage_backlog", "wait", "SGLang's queue of writes to storage has no limit"},
      {"cache.rules.prefetch_timeout_from", std::string(release.timeout_from),
       "the time limit of a prefetch begins there in " + version},
  };
  if (release.prompt_priority) {
    rules.push_back(
        {"cache.rules.raise_prompt_priority", "true", "SGLang gives a prompt a higher priority than its answer"});
  } else {
    rules.push_back(
        {"cache.rules.raise_prompt_priority", "false", version + " gives a prompt and its answer one priority"});
  }
  if (release.rechecks) {
    rules.push_back({"cache.rules.prefetch_recheck", "true", "SGLang looks up again what a waiting request has lost"});
  } else {
    rules.push_back({"cache.rules.prefetch_recheck", "false", version + " looks up once"});
  }
  rules.push_back({"cache.rules.prefetch_style", "sglang", "SGLang reads and ends prefetches so"});
  rules.push_back({"cache.rules.private_loads", "true", "SGLang's linker loads pages for one request"});
  const std::string limit = version + " limits prefetches in flight so";
  rules.push_back({"cache.rules.prefetch_share_of", release.beyond_device ? "host_less_device" : "host", limit});
  rules.push_back({"cache.rules.prefetch_host_share", release.beyond_device ? "0.8" : "0.5", limit});
  if (!write_back) return rules;
  if (release.reclaims) {
    rules.push_back({"cache.rules.reclaim_shadowed", "true", "under write_back SGLang does"});
    rules.push_back({"cache.rules.reclaim_order", "shadowed", "SGLang first drops what was on both tiers first"});
    rules.push_back({"cache.rules.host_evicts_leaving", "true", "SGLang evicts one node after another"});
  } else {
    rules.push_back({"cache.rules.reclaim_shadowed", "false", version + " does not"});
    rules.push_back({"cache.rules.host_evicts_leaving", "false", version + " evicts the nodes of a step together"});
  }
  return rules;
}

}  // namespace kvtwin

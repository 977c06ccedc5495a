// Releases of SGLang whose prefix cache has other rules or other defaults. tests/fixtures/sglang/release_rules.tsv has
// the same table, read from the source of each release; a test compares them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

struct SglangRelease {
  std::string_view version;  // 0.5.20; the table has the rules of 0.5.20.post1 too
  // Values of cache.prefetch_timeout_*.
  std::string_view timeout_base_s, timeout_per_ki_token_s, timeout_most_s, timeout_from;
  // Defaults of flags. A release without retries has 0 steps.
  std::string_view prefetch_policy, mem_layout, retry_steps, retry_attempts;
  bool prompt_priority;  // cache.rules.raise_prompt_priority
  bool reclaims;         // under write_back: cache.rules.reclaim_shadowed, cache.rules.reclaim_order,
                         // cache.rules.host_evicts_leaving
  bool counts_once;      // an insert counts a use of a prefix once for a request
  bool cuts_host;        // a host tier that no flag sizes is cut to a share of the host's free memory
  bool rechecks;         // cache.rules.prefetch_recheck
  // Prefetches may fill 0.8 of what the host tier has more than the device tier; it must be larger, or the server does
  // not start. Otherwise half of the host tier.
  bool beyond_device;
};

// From the earliest to the latest. The latest is kSglangVersion, and applies if no release is named.
std::span<const SglangRelease> sglang_releases();
// Finds 0.5.20, v0.5.20 and 0.5.20.post1. Returns null for an unknown release.
const SglangRelease* find_sglang_release(std::string_view version);
// Returns the known versions: "0.5.10, ..., 0.5.23".
std::string sglang_release_names();

// Returns the default of the flag of this field in the release; empty if the release has the default of
// SglangFlag::preset.
std::string_view preset_in(const SglangRelease& release, std::string_view field);

struct CacheRule {
  std::string key, value, why;
};
// Returns the rules of SGLang's prefix cache that kvtwin has as keys and SGLang does not have as flags.
std::vector<CacheRule> sglang_cache_rules(const SglangRelease& release, bool write_back);

}  // namespace kvtwin

// What an engine is made of and how it decides: every module of policy/ takes its settings from here. Plain values,
// checked by whoever reads them from a user (lab/experiment); Engine checks them again by KV_CHECK.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/index/page_key.hpp"
#include "policy/transfer/layout.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

// Exclusive (with write_back): what has been loaded back leaves L2, so that L2 holds what L1 doesn't; but for the
// clean reserve, which is on both.
enum class Tiering : std::uint8_t { inclusive, exclusive };
constexpr std::string_view name_of(Tiering tiering) {
  switch (tiering) {
    case Tiering::inclusive: return "inclusive";
    case Tiering::exclusive: return "exclusive";
  }
  return "";
}
// How a page of a storage tier comes to L1: by L2, straight (GPUDirect), or as is better for the request at hand:
// by L2 while it has to queue, straight once nobody is before it.
enum class CachePath : std::uint8_t { via_host, direct, automatic };
constexpr std::string_view name_of(CachePath path) {
  switch (path) {
    case CachePath::via_host: return "via_host";
    case CachePath::direct: return "direct";
    case CachePath::automatic: return "auto";
  }
  return "";
}
enum class EvictUnit : std::uint8_t { page, node };
constexpr std::string_view name_of(EvictUnit unit) {
  switch (unit) {
    case EvictUnit::page: return "page";
    case EvictUnit::node: return "node";
  }
  return "";
}

struct StorageTierConfig {
  Tier tier = Tier::disk;  // a storage tier
  Pages pages = 0;         // its capacity; what we own we keep within it
  // Ours alone, so that its contents are known and what leaves it is decided here. Else the store decides, and what
  // is believed to be there is a guess that a look-up corrects.
  bool owned = true;
  // Reading a token from it when nothing else does, of all ranks together; what is believed until reads tell.
  std::uint64_t read_token_ps = 0;
};

struct EngineConfig {
  KvShape shape;  // of one rank, as it leaves the device; shape.page_tokens is the page size of every tier
  // A draft model's pool beside the target's, with the same pages in the same slots, as it leaves the device; no
  // layers = there is none (a packed draft's layers are the last of `shape`), or it never leaves the device.
  KvShape draft;
  std::uint32_t ranks = 1;

  // cache
  Pages device_pages = 0;
  Pages host_pages = 0;  // 0 = no host tier
  Layout host_layout = Layout::page_first;
  IoBackend io = IoBackend::automatic;
  PlannerLimits planner;
  std::string eviction = "lru";  // a name of eviction_names()
  EvictUnit evict_unit = EvictUnit::page;
  // Depth at which computing a token costs twice what the first one does, for evictions that weigh that.
  Tokens cost_doubling_tokens = 53'000;
  std::uint64_t cost_token_ps = 0;             // of the first one
  std::uint64_t load_token_ps = 0;             // loading one from L2 when nothing else is loaded
  std::string write_policy = "write_through";  // a name of write_policy_names()
  // If pages are written when evicted: the share of L1, in 1/1024, that is kept free or ready to be evicted, by writing
  // ahead of need.
  std::uint32_t clean_reserve = 102;
  Tiering tiering = Tiering::inclusive;
  bool reclaim_shadowed = false;                  // L2 short of room first drops copies of what L1 holds too
  std::uint32_t backup_retries = 0;               // of a copy that failed, before it is given up
  std::uint32_t write_threshold = 0;              // complete inserts before a node is backed up; 0 = the policy's own
  std::string load_back_admission = "threshold";  // a name of load_back_admission_names()
  Tokens load_back_min_tokens = 10;               // shorter host hits are computed again
  Pages load_back_quota_pages = 0;                // most pages that one request loads back; 0 = no quota
  bool cache_output = true;                       // generated pages enter the index

  // storage tiers (L3)
  std::vector<StorageTierConfig> storage;  // in the order in which they are asked; none = no L3
  PageKey storage_space;                   // see page_key.hpp
  CachePath path = CachePath::via_host;    // without L2: direct
  std::uint32_t storage_objects = 1;       // that a rank's part of a page is stored as
  std::uint32_t storage_writers = 1;       // ranks that write; an MLA latent is the same on all, and one does
  Pages storage_batch_pages = 128;         // most of one operation
  // Of L2 (of L1 without one), in 1/1024, a page counted once a tier: what would be written beyond it is dropped.
  std::uint32_t storage_write_share = 512;
  std::uint32_t storage_retries = 0;        // of pages that weren't stored, before they are given up
  std::string prefetch_policy = "timeout";  // a name of termination_names()
  TimeNs prefetch_timeout_base_ns = kNsPerSecond;
  TimeNs prefetch_timeout_per_ki_token_ns = kNsPerSecond / 4;
  TimeNs prefetch_timeout_most_ns = 0;           // 0 = no limit
  std::string prefetch_admission = "threshold";  // a name of prefetch_admission_names()
  Tokens prefetch_min_tokens = 256;              // shorter ones aren't worth it
  std::uint32_t prefetch_host_share = 512;       // of L2, in 1/1024: more in flight, and further ones are declined
  std::uint32_t prefetch_retry_steps = 0;        // a request that was declined for lack of room is tried again after
  std::uint32_t prefetch_attempts = 4;           // so many steps, so often in all; 0 steps = it isn't

  // speculative decoding
  std::uint32_t draft_tokens = 0;             // that a decode step verifies beside its own; 0 = there is no draft
  std::uint32_t accept_x1024 = 1024;          // tokens that a decode step yields on average, in 1/1024; >= 1024
  std::uint32_t accept_without_x1024 = 1024;  // of a request that reuses pages that lack the draft's KV
  bool draft_restored = true;                 // else pages that left the device have come back without that KV

  // Computing a prompt's tokens [from, to), as policies believe; 100,000 s at most.
  TimeNs prefill_ns(Tokens from, Tokens to) const;

  // scheduler
  std::string order = "fcfs";          // a name of request_order_names()
  std::uint32_t order_window = 128;    // a step looks at that many waiting, in order of arrival
  std::uint32_t overtake_limit = 128;  // then a waiting request goes first: no starvation
  std::uint32_t max_running = 256;     // requests
  std::uint64_t max_waiting = 0;       // further arrivals are rejected; 0 = no limit
  Tokens chunk_tokens = 8192;          // prefill tokens of one pass
  std::uint32_t burst_steps = 64;      // decode steps submitted at once; an input that matters ends a burst early
  // Share of the running requests' outstanding output that admission keeps free, in 1/1024: SGLang's
  // new-token ratio. Falls by `decay` per decode step to `min`, rises to `initial` on retraction.
  std::uint32_t reserve_initial = 717, reserve_min = 100, reserve_decay_steps = 600;
};

}  // namespace kvtwin

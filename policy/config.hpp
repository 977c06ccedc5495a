// The composition and the settings of an engine, for every module of policy/. Plain values. Code that reads them from a
// user checks them (lab/experiment). Engine checks them again by KV_CHECK.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/index/block_groups.hpp"
#include "policy/index/further_pool.hpp"
#include "policy/index/page_key.hpp"
#include "policy/offload/host_chunks.hpp"
#include "policy/offload/store_pressure.hpp"
#include "policy/transfer/hand_over.hpp"
#include "policy/transfer/layout.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

// Exclusive (with write_back): pages that have been loaded back leave L2. So L2 holds the pages that L1 lacks, except
// for the clean reserve, which is on both.
enum class Tiering : std::uint8_t { inclusive, exclusive };
constexpr std::string_view name_of(Tiering tiering) {
  switch (tiering) {
    case Tiering::inclusive: return "inclusive";
    case Tiering::exclusive: return "exclusive";
  }
  return "";
}
// How long L2 keeps a page. Cache: until it is evicted. Until_stored: until every storage tier has it. Buffer: while a
// transfer between L1 and a storage tier needs it; no request hits it (SGLang's buffer_only).
enum class HostMode : std::uint8_t { cache, until_stored, buffer };
constexpr std::string_view name_of(HostMode mode) {
  switch (mode) {
    case HostMode::cache: return "cache";
    case HostMode::until_stored: return "until_stored";
    case HostMode::buffer: return "buffer";
  }
  return "";
}
// How a page of a storage tier comes to L1. Automatic: through L2 while the request queues, direct (GPUDirect) once no
// request is ahead of it.
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
// What happens to pages that a storage tier lacks while the writes in flight hold storage_write_share.
enum class StorageBacklog : std::uint8_t {
  drop,      // they are not written
  throttle,  // a share of the writes is left out, which grows from none at half of the limit to all at the limit
  wait,      // they stay where they are until they have been written (SGLang)
  block      // they wait too, and the engine admits no request until the writes hold less
};
constexpr std::string_view name_of(StorageBacklog backlog) {
  switch (backlog) {
    case StorageBacklog::drop: return "drop";
    case StorageBacklog::throttle: return "throttle";
    case StorageBacklog::wait: return "wait";
    case StorageBacklog::block: return "block";
  }
  return "";
}
// What prefetch_host_share is a share of: all pages of L2, or those that L2 has more than L1.
enum class PrefetchShareOf : std::uint8_t { host, host_less_device };
constexpr std::string_view name_of(PrefetchShareOf of) {
  switch (of) {
    case PrefetchShareOf::host: return "host";
    case PrefetchShareOf::host_less_device: return "host_less_device";
  }
  return "";
}

// How a prefetch into L2 reads, takes room and ends; see prefetch.hpp.
enum class PrefetchStyle : std::uint8_t { kvtwin, sglang };
constexpr std::string_view name_of(PrefetchStyle style) {
  switch (style) {
    case PrefetchStyle::kvtwin: return "kvtwin";
    case PrefetchStyle::sglang: return "sglang";
  }
  return "";
}

// Where the time limit of a prefetch begins, and the tokens that it grows with.
enum class TimeoutFrom : std::uint8_t {
  wait,  // the first step that could admit the request; the tokens asked for (SGLang 0.5.23)
  issue  // the issue of the prefetch; the tokens that are read, none before the look-up's answer (SGLang before 0.5.23)
};
constexpr std::string_view name_of(TimeoutFrom from) {
  switch (from) {
    case TimeoutFrom::wait: return "wait";
    case TimeoutFrom::issue: return "issue";
  }
  return "";
}
// Which copy a full L2 drops first, of pages that L1 has too (reclaim_shadowed). Inserted: the oldest insertion.
// Shadowed: the node that was on both tiers first; leaves that L1 may evict go last (SGLang, see shadowed_copies.hpp).
enum class ReclaimOrder : std::uint8_t { inserted, shadowed };
constexpr std::string_view name_of(ReclaimOrder order) {
  switch (order) {
    case ReclaimOrder::inserted: return "inserted";
    case ReclaimOrder::shadowed: return "shadowed";
  }
  return "";
}
// What hints about sessions do. Policy: the eviction policies that take hints receive them. Obey: also, the cache does
// what they say (policy/cache/holds.hpp). Ignore: nothing.
enum class HintRule : std::uint8_t { policy, obey, ignore };
constexpr std::string_view name_of(HintRule rule) {
  switch (rule) {
    case HintRule::policy: return "policy";
    case HintRule::obey: return "obey";
    case HintRule::ignore: return "ignore";
  }
  return "";
}
// When a request counts as a touch of a node (lfu, slru). Admission: of each node that it matches. Insert: of each node
// on its path, when it first inserts the node; under write_back never (SGLang's hit_count).
enum class TouchCount : std::uint8_t { admission, insert };
constexpr std::string_view name_of(TouchCount count) {
  switch (count) {
    case TouchCount::admission: return "admission";
    case TouchCount::insert: return "insert";
  }
  return "";
}

struct HandOverConfig {
  EngineRole role = EngineRole::both;
  HandOverUnit unit = HandOverUnit::layers;
  HandOverSide from, to;  // the prefill engines and the decode engines
  bool staged = false;    // through host memory
  // Decode engine: a prompt's pages that it has on L1 are not written again; received pages enter its index, and are
  // written to lower tiers like computed pages.
  bool reuse = true;
  bool cache = true;
};

struct StorageTierConfig {
  Tier tier = Tier::disk;  // a storage tier
  Pages pages = 0;         // capacity; an owned tier is kept within it
  // True: the tier belongs to this engine, so its content is known, and this engine evicts. False: the store evicts,
  // and the known content is a guess that look-ups correct.
  bool owned = true;
  // Time to read one token if nothing else reads, of all ranks together. Used until reads have been measured.
  std::uint64_t read_token_ps = 0;
};

// A pool beside pool 0, which has the pages of full attention.
struct PoolConfig {
  Closure closure = Closure::tail;
  Tokens window = 0;  // of a tail
  // Slots: of a page of a tail, of one state.
  Pages device_slots = 0, host_slots = 0;
  KvShape shape;  // bytes of a slot, of one rank, as it leaves the device
};

// vLLM's host tier below groups of blocks. A chunk is a block of a group. No chunks: there is no such tier. With one
// group, whose blocks are pages, chunks are copied to the storage tiers too.
struct BlockOffloadConfig {
  HostChunksConfig host;
  std::optional<PressureAction> pressure;  // none: every chunk is copied
  bool prompt_only = true;                 // only blocks of prompts are stored
  KvShape shape;                           // bytes of a block, of one rank
};

struct EngineConfig {
  KvShape shape;  // of one rank, as it leaves the device; every tier has pages of shape.page_tokens
  // Further shapes in the same slots, as they leave the device: the KV of a draft model. Empty: there is none (a packed
  // draft's layers are the last ones of `shape`), or it never leaves the device.
  std::vector<KvShape> beside;
  std::uint32_t ranks = 1;
  // For models that keep windows or states beside the pages of full attention. With them, whole nodes are evicted.
  std::vector<PoolConfig> pools;
  std::string state_points = "extra_buffer";  // of state_points_names()
  std::string pool_eviction = "lru";          // of pool_eviction_names()
  std::uint32_t states_per_path = 0;          // more are dropped, from the top; 0 = no limit
  // In place of pool 0 and `pools`: vLLM's form of L1. `device_pages` are then those that one request can have, and the
  // slot of a page is its first block of the first group. `host_pages` then only says that there is a host tier.
  BlockGroupsConfig block_groups;
  BlockOffloadConfig block_offload;
  Tokens window_release_tokens = 128;  // a decode gives so many tokens that have left the window back at once
  // Slots that a window pool has at least, so that one request can always go on: its own windows, and as many that its
  // lease holds.
  Pages least_slots(const PoolConfig& pool) const {
    const Tokens page = shape.page_tokens;
    return 2 * ((pool.window + page - 1) / page + (window_release_tokens + page - 1) / page + 2);
  }

  // cache
  Pages device_pages = 0;
  Pages host_pages = 0;  // 0 = no host tier
  Layout host_layout = Layout::page_first;
  IoBackend io = IoBackend::automatic;
  PlannerLimits planner;
  // Policies are texts: a name, and parameters in brackets (policy/choices.hpp).
  std::string eviction = "lru";  // of eviction_names()
  EvictUnit evict_unit = EvictUnit::page;
  bool split_refreshes = false;  // a match that ends inside a node makes the rest of the node recently used (SGLang)
  // Each look-up for a waiting request makes the prefix that it finds recently used, and the end of a prefetch the node
  // that it extends (SGLang).
  bool look_ups_refresh = false;
  TouchCount count_touches = TouchCount::admission;
  bool raise_prompt_priority = false;  // a prompt has a priority one higher than its answer (SGLang 0.5.23)
  // Depth at which computing a token costs twice as much as the first token; for eviction policies that weigh costs.
  Tokens cost_doubling_tokens = 53'000;
  std::uint64_t cost_token_ps = 0;             // time to compute the first token
  std::uint64_t load_token_ps = 0;             // time to load one token from L2 if nothing else is loaded
  std::string write_policy = "write_through";  // of write_policy_names()
  // With write_back: the share of L1, in 1/1024, that is kept free or clean by writing ahead of need.
  std::uint32_t clean_reserve = 102;
  Tiering tiering = Tiering::inclusive;
  HostMode host_mode = HostMode::cache;
  // Share of L2, in 1/1024, that is kept free, or such that L2 can evict it without a write: pages are written to the
  // storage tiers when less is, those that arrived on L2 first, and before L2 evicts them. Doubles when a page finds no
  // room because others wait. 0: pages are written when they arrive.
  std::uint32_t host_clean_reserve = 0;
  bool reclaim_shadowed = false;  // if L2 is short of room, it first drops copies of pages that L1 has too
  ReclaimOrder reclaim_order = ReclaimOrder::inserted;
  bool host_evicts_leaving = false;   // L2 may evict pages that are chosen to leave L1, as if they had left (SGLang)
  std::uint32_t backup_retries = 0;   // of a failed copy, before it is given up
  std::uint32_t write_threshold = 0;  // complete inserts before a node is backed up; 0 = as the write policy says
  std::string load_back_admission = "threshold";  // of load_back_admission_names()
  Tokens load_back_min_tokens = 10;               // shorter hits on L2 are computed again
  Pages load_back_quota_pages = 0;                // limit of the pages that one request loads back; 0 = no limit
  bool cache_output = true;                       // generated pages enter the index
  // What no open session refers to is evicted first (policy/cache/session_radix.hpp). Only with the tree, and with an
  // eviction policy that is OrdersReferences.
  bool session_radix = false;
  HintRule hints = HintRule::policy;  // obey: only with the tree
  std::uint32_t hint_share = 256;     // obey: share of each pool of L1, and of L2, in 1/1024, that may be held

  // storage tiers (L3)
  std::vector<StorageTierConfig> storage;  // in the order of look-ups; empty = no L3
  PageKey storage_space;                   // see page_key.hpp
  CachePath path = CachePath::via_host;    // without L2: direct
  // Pages that are loaded straight to L1 belong to the request until it inserts them (SGLang's linker). False: the
  // index has them from the begin of the load.
  bool private_loads = false;
  std::uint32_t storage_objects = 1;  // objects that a rank's part of a page is stored as
  std::uint32_t storage_writers = 1;  // ranks that write; 1 for an MLA latent, which is the same on all ranks
  Pages storage_batch_pages = 128;    // limit of one operation
  // Share of L2 (without L2: of L1), in 1/1024, that writes in flight may hold; a page counts once per tier.
  std::uint32_t storage_write_share = 512;
  StorageBacklog storage_backlog = StorageBacklog::drop;  // further writes
  std::uint32_t storage_retries = 0;                      // of pages that failed to be stored, before they are given up
  std::string prefetch_policy = "timeout";                // of termination_names()
  TimeoutFrom prefetch_timeout_from = TimeoutFrom::wait;
  std::string prefetch_admission = "threshold";  // of prefetch_admission_names()
  Tokens prefetch_min_tokens = 256;              // shorter prefetches are declined
  // Share of L2, in 1/1024: while prefetches in flight hold more, further prefetches are declined.
  std::uint32_t prefetch_host_share = 512;
  PrefetchShareOf prefetch_share_of = PrefetchShareOf::host;
  PrefetchStyle prefetch_style = PrefetchStyle::kvtwin;
  // Steps after which a prefetch that was declined or found too little is issued again; 0 = never.
  std::uint32_t prefetch_retry_steps = 8;
  // Issue again at the admission, if the prefix on L1 and L2 is shorter than at the last issue (SGLang since 0.5.20).
  bool prefetch_recheck = true;
  std::uint32_t prefetch_attempts = 9;  // issues in one wait

  HandOverConfig hand_over;

  // speculative decoding
  std::uint32_t draft_tokens = 0;             // tokens that a decode step verifies beside its own; 0 = no draft model
  std::uint32_t accept_x1024 = 1024;          // tokens that a decode step yields on average, in 1/1024; >= 1024
  std::uint32_t accept_without_x1024 = 1024;  // the same, for a request that reuses pages without the draft's KV
  bool draft_restored = true;                 // false: pages that come back to the device lack the draft's KV

  // Slots of pool 0 on L1: its numbers are smaller.
  Pages device_slots() const {
    return block_groups.groups.empty() ? device_pages : Pages{block_groups.blocks} + BlockGroups::kFirstBlock;
  }
  bool buffers() const { return host_mode == HostMode::buffer && host_pages != 0; }
  // The window of each of `pools`; 0 of states.
  std::vector<Tokens> windows() const;
  // Bytes of a slot's page below the device, of one rank: all shapes together.
  Bytes page_bytes() const;
  // Time to compute the prompt tokens [from, to), as policies assume; at most 100,000 s.
  TimeNs prefill_ns(Tokens from, Tokens to) const;

  // scheduler
  std::string style = "sglang";        // of style_names()
  bool mixed_chunks = false;           // sglang: running requests decode in prefill passes
  std::uint32_t poll_steps = 1;        // decode steps between two looks at new requests; after a prefill at once
  bool admit_whole_prompt = true;      // vllm: a request is admitted only if its whole prompt fits
  std::string order = "fcfs";          // of request_order_names()
  std::uint32_t order_window = 128;    // waiting requests that a step looks at, in order of arrival
  std::uint32_t overtake_limit = 128;  // a request overtaken so often goes first, so that none starves
  std::uint32_t max_running = 256;     // requests
  std::uint64_t max_waiting = 0;       // further arrivals are rejected; 0 = no limit
  Tokens chunk_tokens = 8192;          // prefill tokens of one pass; decode tokens too, if the style counts these
  std::uint32_t burst_steps = 64;      // decode steps submitted at once; an input that matters ends a burst early
  // Share of the running requests' outstanding output that admission keeps free, in 1/1024: SGLang's new-token ratio.
  // It falls to `min` over `decay_steps` decode steps, and returns to `initial` at each retraction.
  std::uint32_t reserve_initial = 717, reserve_min = 100, reserve_decay_steps = 600;
};

}  // namespace kvtwin

// The pools that SGLang divides the memory for KV into, for models that keep more than one kind of KV: rows of all
// tokens, rows of the last tokens (sliding windows), and states (Mamba, gated delta nets, KDA).
//
// Source: SGLang 0.5.23: pool_configurator.py, kv_cache_configurator.py (_handle_max_mamba_cache,
// _calculate_mamba_ratio), pool_host/base.py, hybrid_cache/hybrid_pool_assembler.py, and the model overrides in
// srt/arg_groups. tests/fixtures/sglang/pools.tsv has the sizes that these files compute.
// Units: all figures are of one rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "models/geometry.hpp"
#include "policy/index/block_groups.hpp"

namespace kvtwin {

// full: rows of all tokens; a prefix of n tokens needs n slots. window: rows of the last tokens. state: one slot is the
// state of all state layers after one token.
enum class PoolKind : std::uint8_t { full, window, state };
std::string_view name_of(PoolKind kind);

struct PoolSize {
  PoolKind kind = PoolKind::full;
  std::uint64_t slots = 0;  // tokens; of states: states
  double slot_bytes = 0;
  Bytes bytes() const { return static_cast<Bytes>(static_cast<double>(slots) * slot_bytes); }
};

struct DevicePools {
  std::vector<PoolSize> pools;           // the full pool first; at most one of each kind
  std::uint64_t max_running = 0;         // requests that the states allow to run at the same time; 0 = no such limit
  std::uint32_t states_per_request = 0;  // 0 = no pool for states
  Bytes reserved = 0;                    // for states of draft tokens, and for the open groups of running requests
  const PoolSize* find(PoolKind kind) const;
  Bytes bytes() const;  // of all pools
};

// A ratio or count of 0 is SGLang's own choice for the model.
struct SglangPoolOptions {
  std::uint32_t tp = 1;  // ranks of a group of attention
  std::uint32_t page_tokens = 1;
  double window_ratio = 0;               // --swa-full-tokens-ratio: window tokens / full tokens
  double state_ratio = 0;                // --mamba-full-memory-ratio: bytes of states / bytes of the full pool
  std::uint64_t states = 0;              // --max-mamba-cache-size
  std::uint32_t states_per_request = 0;  // of a running request: 5, lazy 4, without extra buffers 3
  std::uint32_t max_running = 0;         // --max-running-requests, of a group of attention
  Tokens full_tokens = 0;                // --max-total-tokens: size of the full pool; 0 = what the room holds
  std::uint32_t draft_tokens = 0;        // that a decode step verifies: the proposed ones and one more
  double draft_token_bytes = 0;          // KV of the draft model
};

// SGLang keeps the KV of all tokens in window layers of most models: only some architectures have a window pool.
// `with_host`: there is a host tier. Requires: the model has window layers.
bool sglang_keeps_whole_windows(const ModelGeometry& model, bool with_host);

// Returns whether SGLang divides the memory of the model into several pools. Window layers that page_windows() has
// changed, and the figures of given.kv_bytes_per_token, have no window pool.
bool has_several_pools(const ModelGeometry& model);

// Returns SGLang's pools of `room` bytes; of a model with one kind of KV, one pool. With full_tokens, the room gives
// the size of the pool for states only. Errors: ModelError if the room is too small for a pool, as SGLang then does not
// start.
DevicePools sglang_pools(const ModelGeometry& model, Bytes room, const SglangPoolOptions& options);

// Returns the pools of the host tier beside these pools of the device: each `ratio` times as large (--hicache-ratio),
// or `room` bytes, divided by the bytes of the device's pools (--hicache-size). Slots are not rounded to pages.
std::vector<PoolSize> sglang_host_pools(const DevicePools& device, double ratio);
std::vector<PoolSize> sglang_host_pools(const DevicePools& device, Bytes room);

// vLLM's pool: blocks of equal bytes for all kinds of KV. Layers of a kind form groups of equal size; each group has a
// block for the same tokens. Blocks of states and of smaller rows are padded, and so are groups with fewer layers.
//
// Source: vLLM 0.33.0: v1/core/kv_cache_planning.py (unify_kv_cache_spec_page_size,
// _get_kv_cache_groups_uniform_page_size) and platforms/interface.py (_align_hybrid_block_size). The sizes that they
// compute are in tests/fixtures/vllm/pools.tsv.
struct BlockPool {
  std::uint64_t blocks = 0;
  Bytes block_bytes = 0;
  Tokens block_tokens = 0;  // of a group with full attention
  // Common to the blocks of all groups: hits are multiples of it.
  Tokens page_tokens = 0;
  std::vector<BlockGroup> groups;  // of pages of page_tokens; full attention first
  std::uint64_t full_groups = 0, window_groups = 0, state_groups = 0;
  std::uint64_t window_blocks = 0;  // that a window group keeps for a prefix
  double padding = 0;               // share of the bytes of one block of each group that hold no KV
  Bytes bytes() const { return blocks * block_bytes; }
  // Returns the tokens of full attention that the pool holds if it holds nothing else.
  Tokens tokens() const { return full_groups == 0 ? 0 : blocks / full_groups * block_tokens; }
  // Returns the blocks that windows and the state of one prefix take up.
  std::uint64_t blocks_of_prefix() const { return window_groups * window_blocks + state_groups; }
};

// Returns whether vllm_block_pool() knows the model: several kinds of KV, none of them compressed or given by the user.
bool has_block_pool(const ModelGeometry& model);

// `block_tokens`: --block-size. Requires: has_block_pool(model).
BlockPool vllm_block_pool(const ModelGeometry& model, Bytes room, std::uint32_t tp, Tokens block_tokens);

}  // namespace kvtwin

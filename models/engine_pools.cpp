#include "models/engine_pools.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace kvtwin {

namespace {

// Defaults of SGLang.
constexpr double kWindowRatio = 0.8, kCompressedWindowRatio = 0.1, kStateRatio = 0.9;
constexpr std::uint32_t kStatesPerRequest = 5, kDraftRunning = 48, kCompressedRunning = 256;
// Of DeepSeek-V4: the page that SGLang sets, and the unit of its bytes.
constexpr std::uint64_t kCompressedPage = 256, kCompressedUnit = 576, kOpenGroup = 128;

bool is_compressed(const ModelGeometry& model) {
  return std::ranges::any_of(model.layers,
                             [](const LayerGeometry& layer) { return layer.attention == AttentionKind::compressed; });
}

// Bytes of one token in the rows of all tokens and in those of windows, and of one state, on one rank.
struct SlotBytes {
  double full = 0, window = 0, state = 0;
};

// SGLang's pools have rows for layers that read the rows of an earlier layer, too.
SlotBytes slot_bytes(const ModelGeometry& model, std::uint32_t tp) {
  SlotBytes sum;
  sum.state = std::floor(static_cast<double>(model.state_bytes) / tp);
  if (model.given.kv_bytes_per_token != 0) {
    sum.full = static_cast<double>(model.shape(tp, 1).token_bytes());
    return sum;
  }
  for (const LayerGeometry& layer : model.layers) {
    for (const KvRow& row : layer.rows) {
      const bool in_window = row.window != 0 && !model.windows_paged;
      (in_window ? sum.window : sum.full) += model.rank_token_bytes(layer, row, tp);
    }
  }
  return sum;
}

std::uint64_t whole_pages(double tokens, std::uint64_t page) {
  return tokens < 1 ? 0 : static_cast<std::uint64_t>(tokens) / page * page;
}

// DeepSeek-V4 pads the rows of a page.
double padded_row(const KvRow& row) {
  const std::uint64_t bytes = kCompressedPage / row.tokens * row.bytes;
  return static_cast<double>((bytes + kCompressedUnit - 1) / kCompressedUnit * kCompressedUnit) / kCompressedPage;
}

// Bytes of DeepSeek-V4, whose rows each rank has as a whole. A window token has its part of the open groups of layers
// with groups of 4 tokens; the open groups of 128 tokens belong to running requests.
struct CompressedBytes {
  double full = 0, window = 0, request = 0;
};

CompressedBytes compressed_bytes(const ModelGeometry& model, bool drafts) {
  CompressedBytes sum;
  const double ring = drafts ? 2 : 1;  // open groups beside draft tokens
  for (const LayerGeometry& layer : model.layers) {
    bool short_groups = false;
    for (const KvRow& row : layer.rows) {
      if (row.window != 0) {
        sum.window += padded_row(row);
      } else {
        sum.full += row.indexer ? static_cast<double>(row.bytes) / row.tokens : padded_row(row);
        short_groups = short_groups || row.tokens < kOpenGroup;
      }
    }
    const double open = ring * static_cast<double>(layer.state_bytes);
    if (short_groups) {
      sum.window += open / kCompressedPage;
    } else {
      sum.request += open;
    }
  }
  if (drafts) {
    const auto layers = static_cast<double>(model.layers.size());
    sum.full *= (layers + 1) / layers;
    sum.window *= (layers + 1) / layers;
  }
  return sum;
}

void check_window(const ModelGeometry& model, std::uint64_t tokens, std::uint64_t page) {
  if (tokens > model.window + page) return;
  throw ModelError(model.name + ": the pool for sliding windows has " + std::to_string(tokens) +
                   " tokens, and one request needs more than a window of " + std::to_string(model.window) +
                   " tokens and a page of " + std::to_string(page) + "; SGLang doesn't start with that.");
}

DevicePools compressed_pools(const ModelGeometry& model, double room, const SglangPoolOptions& options) {
  const CompressedBytes bytes = compressed_bytes(model, options.draft_tokens > 0);
  const double ratio = options.window_ratio == 0 ? kCompressedWindowRatio : options.window_ratio;
  const double slots = options.max_running == 0 ? kCompressedRunning : options.max_running;
  const double reserved = (slots + 3) * bytes.request;  // a slot more, the ring beyond the last, and rounding
  const double fit = options.full_tokens != 0 ? static_cast<double>(options.full_tokens)
                                              : std::max(0.0, room - reserved) / (bytes.full + ratio * bytes.window);
  DevicePools pools;
  pools.reserved = static_cast<Bytes>(reserved);
  const std::uint64_t full = whole_pages(fit, kCompressedPage);
  const std::uint64_t window = whole_pages(static_cast<double>(full) * ratio, kCompressedPage);
  pools.pools = {{PoolKind::full, full, bytes.full}, {PoolKind::window, window, bytes.window}};
  return pools;
}

struct StatePool {
  std::uint64_t slots = 0;
  double left = 0;  // bytes for the other pools
  double reserved = 0;
};

// kv_cache_configurator.py, _handle_max_mamba_cache: one slot more is padding.
StatePool state_pool(double room, double state, std::uint32_t per_request, const SglangPoolOptions& options) {
  const double drafts = options.draft_tokens;
  const double requests = options.max_running == 0 ? kDraftRunning : options.max_running;
  StatePool pool;
  if (options.states != 0) {
    pool.slots = options.states;
  } else {
    const double ratio = options.state_ratio == 0 ? kStateRatio : options.state_ratio;
    const double budget = room * ratio / (1 + ratio);
    const double slots = std::floor((budget - state * (1 + drafts)) / (state * (1 + drafts / per_request)));
    pool.slots = slots < 1 ? 0 : static_cast<std::uint64_t>(slots);
  }
  const double running = std::min(requests, std::floor(static_cast<double>(pool.slots) / per_request));
  pool.reserved = drafts == 0 ? 0 : state * (running + 1) * drafts;
  pool.left = room - pool.reserved - static_cast<double>(pool.slots + 1) * state;
  return pool;
}

DevicePools divided(const ModelGeometry& model, double room, const SglangPoolOptions& options) {
  SlotBytes bytes = slot_bytes(model, options.tp);
  bytes.full += options.draft_token_bytes;
  const double ratio = options.window_ratio == 0 ? kWindowRatio : options.window_ratio;
  const std::uint32_t per_request = options.states_per_request == 0 ? kStatesPerRequest : options.states_per_request;
  const std::uint64_t page = options.page_tokens;
  const double token = bytes.full + ratio * bytes.window;
  DevicePools pools;
  StatePool states{0, room, 0};
  if (bytes.state != 0) {
    states = state_pool(room, bytes.state, per_request, options);
    pools.reserved = static_cast<Bytes>(states.reserved);
    pools.states_per_request = per_request;
    pools.max_running = states.slots / per_request;
    if (pools.max_running == 0) {
      throw ModelError(model.name + ": the pool for states has " + std::to_string(states.slots) + " states of " +
                       std::to_string(static_cast<Bytes>(bytes.state)) + " bytes a GPU, and a running request needs " +
                       std::to_string(per_request) + "; it must have more memory, or a larger share of it.");
    }
  }
  const std::uint64_t full =
      whole_pages(options.full_tokens != 0 ? static_cast<double>(options.full_tokens) : states.left / token, page);
  pools.pools.push_back({PoolKind::full, full, bytes.full});
  if (bytes.window != 0) {
    pools.pools.push_back({PoolKind::window, whole_pages(static_cast<double>(full) * ratio, page), bytes.window});
  }
  if (bytes.state != 0) pools.pools.push_back({PoolKind::state, states.slots, bytes.state});
  return pools;
}

}  // namespace

std::string_view name_of(PoolKind kind) {
  switch (kind) {
    case PoolKind::full: return "full";
    case PoolKind::window: return "window";
    case PoolKind::state: return "state";
  }
  return "";
}

const PoolSize* DevicePools::find(PoolKind kind) const {
  const auto found = std::ranges::find(pools, kind, &PoolSize::kind);
  return found == pools.end() ? nullptr : &*found;
}

Bytes DevicePools::bytes() const {
  Bytes sum = 0;
  for (const PoolSize& pool : pools) sum += pool.bytes();
  return sum;
}

bool sglang_keeps_whole_windows(const ModelGeometry& model, bool with_host) {
  // model_config.py, is_hybrid_swa_model: the architectures with a window pool.
  static constexpr std::array<std::string_view, 8> kWithPool{"gpt_oss", "llama4", "mimo_v2", "step3p",
                                                             "gemma4",  "laguna", "mellum",  "deepseek_v4"};
  const auto is = [&](std::string_view name) { return model.model_type.starts_with(name); };
  if (std::ranges::none_of(kWithPool, is)) return true;
  return with_host && is("step3p");  // overrides.py, _step3p_overrides
}

bool has_several_pools(const ModelGeometry& model) {
  if (model.given.kv_bytes_per_token != 0) return model.state_bytes != 0;
  bool full = false, window = false;
  for (const LayerGeometry& layer : model.layers) {
    for (const KvRow& row : layer.rows) (row.window != 0 && !model.windows_paged ? window : full) = true;
  }
  return full && (window || model.state_bytes != 0);
}

DevicePools sglang_pools(const ModelGeometry& model, Bytes room, const SglangPoolOptions& options) {
  const bool compressed = is_compressed(model) && model.given.kv_bytes_per_token == 0;
  const auto bytes = static_cast<double>(room);
  DevicePools pools = compressed ? compressed_pools(model, bytes, options) : divided(model, bytes, options);
  if (pools.pools.front().slots == 0) {
    throw ModelError(model.name + ": the memory that is left for the KV cache holds less than a page beside " +
                     (compressed ? "the groups that running requests build" : "the states") +
                     "; it must have more memory, or fewer of these.");
  }
  if (const PoolSize* window = pools.find(PoolKind::window); window != nullptr) {
    check_window(model, window->slots, compressed ? kCompressedPage : options.page_tokens);
  }
  return pools;
}

std::vector<PoolSize> sglang_host_pools(const DevicePools& device, double ratio) {
  std::vector<PoolSize> host = device.pools;
  for (PoolSize& pool : host) pool.slots = static_cast<std::uint64_t>(static_cast<double>(pool.slots) * ratio);
  return host;
}

std::vector<PoolSize> sglang_host_pools(const DevicePools& device, Bytes room) {
  return sglang_host_pools(device, static_cast<double>(room) / static_cast<double>(device.bytes()));
}

namespace {

// The layers of a model whose blocks are alike.
struct LayerBucket {
  PoolKind kind = PoolKind::full;
  double bytes = 0;  // of a token; of states: of a sequence
  Tokens window = 0;
  std::uint64_t layers = 0;
  Tokens block_tokens = 0;
};

void add_layer(std::vector<LayerBucket>& buckets, PoolKind kind, double bytes, Tokens window) {
  if (bytes == 0) return;
  const auto same = std::ranges::find_if(buckets, [&](const LayerBucket& bucket) {
    return bucket.kind == kind && bucket.bytes == bytes && bucket.window == window;
  });
  if (same != buckets.end()) {
    ++same->layers;
  } else {
    buckets.push_back({kind, bytes, window, 1, 0});
  }
}

std::vector<LayerBucket> layer_buckets(const ModelGeometry& model, std::uint32_t tp) {
  std::vector<LayerBucket> buckets;
  for (const LayerGeometry& layer : model.layers) {
    add_layer(buckets, PoolKind::state, std::floor(static_cast<double>(layer.state_bytes) / tp), 0);
    if (layer.shares_rows) continue;
    double row = 0;
    for (const KvRow& kept : layer.rows) row += model.rank_token_bytes(layer, kept, tp);
    const bool in_window = layer.window != 0 && !model.windows_paged;
    add_layer(buckets, in_window ? PoolKind::window : PoolKind::full, row, in_window ? layer.window : 0);
  }
  return buckets;
}

std::uint64_t quotient_up(double a, double b) { return static_cast<std::uint64_t>(std::ceil(a / b)); }

// The tokens of a block, so that a block of attention is at least as large as a state.
Tokens aligned_block(const ModelGeometry& model, const std::vector<LayerBucket>& buckets, Tokens block_tokens) {
  constexpr Tokens kKernelBlock = 16, kLatentBlock = 128;
  double state = 0, row = 0;
  for (const LayerBucket& bucket : buckets) {
    (bucket.kind == PoolKind::state ? state : row) = bucket.bytes;
  }
  if (state == 0) return block_tokens;
  const Tokens unit = std::max(block_tokens, model.latent_rank != 0 ? kLatentBlock : kKernelBlock);
  return std::max(block_tokens, unit * quotient_up(state, static_cast<double>(unit) * row));
}

}  // namespace

bool has_block_pool(const ModelGeometry& model) {
  return has_several_pools(model) && !is_compressed(model) && model.given.kv_bytes_per_token == 0 &&
         model.given.state_bytes == 0;
}

BlockPool vllm_block_pool(const ModelGeometry& model, Bytes room, std::uint32_t tp, Tokens block_tokens) {
  std::vector<LayerBucket> buckets = layer_buckets(model, tp);
  const Tokens base = aligned_block(model, buckets, block_tokens);
  double page = 0;
  for (const LayerBucket& bucket : buckets) {
    if (bucket.kind != PoolKind::state) page = std::max(page, bucket.bytes * static_cast<double>(base));
  }
  std::uint64_t fewest = ~std::uint64_t{0}, most = 0;
  for (LayerBucket& bucket : buckets) {
    // A block of smaller rows has more tokens, if they fill it exactly.
    const double own = bucket.bytes * static_cast<double>(base), times = page / own;
    bucket.block_tokens =
        bucket.kind != PoolKind::state && times == std::floor(times) ? base * static_cast<Tokens>(times) : base;
    fewest = std::min(fewest, bucket.layers);
    most = std::max(most, bucket.layers);
  }
  const std::uint64_t group = 2 * most < 3 * fewest ? most : fewest;
  BlockPool pool;
  pool.page_tokens = base;
  for (const LayerBucket& bucket : buckets) pool.page_tokens = std::lcm(pool.page_tokens, bucket.block_tokens);
  std::ranges::stable_sort(buckets, {}, [](const LayerBucket& bucket) { return bucket.kind; });
  pool.block_bytes = static_cast<Bytes>(page) * group;
  pool.blocks = room / pool.block_bytes;
  double held = 0;  // bytes of KV in one block of each group
  for (const LayerBucket& bucket : buckets) {
    const std::uint64_t groups = (bucket.layers + group - 1) / group;
    constexpr Closure kClosures[] = {Closure::path, Closure::tail, Closure::point};
    pool.groups.insert(pool.groups.end(), groups,
                       {kClosures[static_cast<std::size_t>(bucket.kind)], bucket.window,
                        static_cast<std::uint32_t>(pool.page_tokens / bucket.block_tokens)});
    const double units = bucket.kind == PoolKind::state ? 1 : static_cast<double>(bucket.block_tokens);
    held += static_cast<double>(bucket.layers) * bucket.bytes * units;
    if (bucket.kind == PoolKind::full) {
      pool.full_groups += groups;
      pool.block_tokens = bucket.block_tokens;
    } else if (bucket.kind == PoolKind::window) {
      pool.window_groups += groups;
      pool.window_blocks = (bucket.window - 1 + bucket.block_tokens - 1) / bucket.block_tokens;
    } else {
      pool.state_groups += groups;
    }
  }
  const std::uint64_t groups = pool.full_groups + pool.window_groups + pool.state_groups;
  pool.padding = 1 - held / static_cast<double>(groups * pool.block_bytes);
  return pool;
}

}  // namespace kvtwin

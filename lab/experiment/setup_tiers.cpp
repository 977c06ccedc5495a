#include "lab/experiment/setup_parts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/names.hpp"
#include "policy/base/names.hpp"
#include "policy/state_points.hpp"
#include "policy/style.hpp"
#include "policy/write.hpp"
#include "traces/groups.hpp"

namespace kvtwin {
namespace {

// SGLang's bound of a host tier that no flag sizes: a share of the free memory less a reserve, less the part of its
// pools that its estimate leaves out (sglang/srt/mem_cache/hicache_auto_size.py).
double bounded_host_ratio(const Experiment& e, Setup& setup) {
  constexpr double kReserveGib = 10, kPartOfPools = 0.95;
  const double ratio = e.number("tiers.host.ratio");
  const double memory = e.number("tiers.host.memory_gib"), share = e.number("tiers.host.memory_share");
  if (ratio == 0 || memory == 0 || share == 0) return ratio;
  if (memory <= kReserveGib) {
    throw InputError(e.where("tiers.host.memory_gib") +
                     ": no memory is left for a host tier after the reserve of 10 GiB");
  }
  double rank_bytes = static_cast<double>(setup.engine.device_pages) * static_cast<double>(setup.page_bytes());
  if (!setup.device_pools.pools.empty()) rank_bytes = static_cast<double>(setup.device_pools.bytes());
  const double device = rank_bytes * setup.copies_on_host / kGib;  // on the host
  const double bound = share * (memory - kReserveGib) * kPartOfPools / device;
  if (bound >= ratio) return ratio;
  char text[160];
  std::snprintf(text, sizeof text,
                "the host tier is %.3g times the device tier, not %.3g: tiers.host.memory_gib = %g bounds it", bound,
                ratio, memory);
  setup.notes.emplace_back(text);
  return bound;
}

// Returns the part of a tier that each group of attention has.
Pages group_part(const Experiment& e, const std::string& tier, Pages pages, const Setup& setup) {
  if (pages == 0 || pages >= setup.attention_dp) return pages / setup.attention_dp;
  const std::string key = "tiers." + tier;
  throw InputError(e.where(key + (e.integer(key + ".tokens") != 0 ? ".tokens" : ".gib")) + ": the tier has " +
                   std::to_string(pages) + " pages, fewer than the " + std::to_string(setup.attention_dp) +
                   " groups of " + e.where("parallel.attention_dp") + "; make it larger");
}

MemoryTerms memory_terms(const Experiment& e, const Setup& setup) {
  MemoryTerms terms;
  const EngineWord word = engine_word(e.text(kEngineKey), e.where(kEngineKey));
  terms.engine = word.engine;
  terms.release = word.version;
  terms.fraction = e.number("tiers.device.memory_fraction");
  terms.holds_activations = e.policy("scheduler.style").name == "vllm";
  terms.tp = setup.engine_gpus();
  terms.attention_dp = setup.attention_dp;
  terms.chunk_tokens = setup.engine.chunk_tokens;
  terms.max_running = setup.engine.max_running;
  if (e.is_given("scheduler.max_running")) terms.limit = static_cast<std::uint32_t>(e.integer("scheduler.max_running"));
  terms.graphs = e.flag("serving.cuda_graphs");
  const bool only_prefills = setup.roles.prefill > 0;
  terms.prefills = !setup.has_role || only_prefills;
  terms.decodes = !only_prefills;
  if (setup.draft) terms.draft_weights = setup.draft->model.weight_bytes;
  return terms;
}

// Returns the bytes for KV that the weights leave on each GPU. Errors: InputError.
Bytes room_of_device(const Experiment& e, Setup& setup) {
  const MemoryTerms terms = memory_terms(e, setup);
  setup.memory = divide_device_memory(setup.hardware, setup.model, terms);
  try {
    return device_kv_bytes(setup.hardware, setup.model, terms);
  } catch (const ModelError& error) {
    std::string keys = e.where(terms.fraction == 0 ? "scheduler.chunk_tokens" : "tiers.device.memory_fraction");
    if (e.number("hardware.set.memory_bytes") != 0) keys += " and " + e.where("hardware.set.memory_bytes");
    throw InputError(std::string(error.what()) + " It depends on " + keys + " too.");
  }
}

// Returns the KV bytes of a token on a rank's device: the draft's too, even if it is not restored.
Bytes device_token_bytes(const Setup& setup) {
  return setup.target.token_bytes() + (setup.draft ? setup.draft->shape.token_bytes() : 0);
}

SglangPoolOptions pool_options(const Experiment& e, const Setup& setup) {
  SglangPoolOptions options;
  options.tp = setup.engine.ranks;
  options.page_tokens = static_cast<std::uint32_t>(setup.engine.shape.page_tokens);
  options.window_ratio = e.number("tiers.device.window_ratio");
  options.state_ratio = e.number("tiers.device.state_ratio");
  const auto states = static_cast<std::uint64_t>(e.integer("tiers.device.states"));
  options.states = states == 0 ? 0 : std::max<std::uint64_t>(1, states / setup.attention_dp);
  options.states_per_request = static_cast<std::uint32_t>(e.integer("tiers.device.states_per_request"));
  if (e.is_given("scheduler.max_running")) options.max_running = setup.engine.max_running;
  options.full_tokens = static_cast<Tokens>(e.integer("tiers.device.tokens")) / setup.attention_dp;
  if (setup.draft) {
    options.draft_tokens = setup.draft->tokens + 1;
    options.draft_token_bytes = static_cast<double>(setup.draft->shape.token_bytes());
  }
  return options;
}

// The pool for states limits the requests that run.
void limit_running(const Experiment& e, Setup& setup) {
  const std::uint64_t limit = setup.device_pools.max_running;
  if (limit == 0 || setup.engine.max_running <= limit) return;
  const std::uint64_t states = setup.device_pools.find(PoolKind::state)->slots;
  setup.notes.push_back(
      "scheduler.max_running is " + std::to_string(limit) + ", not " + std::to_string(setup.engine.max_running) + " (" +
      e.origin("scheduler.max_running") + "): SGLang's pool for states holds " + std::to_string(states) +
      ", and a running request takes " + std::to_string(setup.device_pools.states_per_request) + " of them");
  setup.engine.max_running = static_cast<decltype(setup.engine.max_running)>(limit);
}

// In which direction the hits err while every cached prefix counts as usable.
std::string hits_of_pools(const Setup& setup) {
  const bool window = setup.device_pools.find(PoolKind::window) != nullptr;
  const bool state = setup.device_pools.find(PoolKind::state) != nullptr;
  const std::string needs =
      std::string(window ? "the last " + std::to_string(setup.model.window) + " tokens' rows in the pool for windows"
                         : "") +
      (window && state ? " and " : "") + (state ? "a state at its last token in the pool for states" : "");
  return setup.model.name + ": hits are too high: SGLang reuses a prefix only with " + needs +
         ", and here every prefix counts whose rows of all tokens are cached";
}

// With windows or states, write-back is SGLang's, which copies when it evicts.
void refuse_own_write_back(const Experiment& e, EngineConfig& engine) {
  if (engine.host_pages == 0 || !make_write_policy(engine.write_policy)->writes_when_evicted()) return;
  const auto refuse = [&](const char* key, const char* value) {
    throw InputError(e.where(key) +
                     ": is not built for models with windows or states, which write_back copies when "
                     "they are evicted, as SGLang does; set " +
                     key + "=" + value);
  };
  if (engine.tiering == Tiering::exclusive) refuse("cache.tiering", "inclusive");
  if (engine.clean_reserve != 0 && e.is_given("cache.clean_reserve")) refuse("cache.clean_reserve", "0");
  engine.clean_reserve = 0;
}

// Returns a sentence with the given keys that size SGLang's pools; empty if there are none.
std::string given_pool_keys(const Experiment& e) {
  std::string given;
  for (const char* key : {"model.state_bytes", "tiers.device.window_ratio", "tiers.device.state_ratio",
                          "tiers.device.states", "tiers.device.states_per_request"}) {
    if (e.is_given(key)) given += (given.empty() ? " It depends on " : ", ") + e.where(key);
  }
  return given.empty() ? given : given + " too.";
}

bool divides_memory(const Experiment& e, const Setup& setup) {
  return e.policy("scheduler.style").name == "sglang" && has_several_pools(setup.model);
}

// Divides the memory of each GPU as SGLang does for a model with several kinds of KV.
void divide_memory(const Experiment& e, Setup& setup) {
  const SglangPoolOptions options = pool_options(e, setup);
  const double gib = e.number("tiers.device.gib");
  const bool needs_room = options.full_tokens == 0 || (setup.model.state_bytes != 0 && options.states == 0);
  const Bytes room = gib != 0     ? static_cast<Bytes>(gib * kGib / setup.engine_gpus())
                     : needs_room ? room_of_device(e, setup)
                                  : 0;
  const char* const key = gib != 0                   ? "tiers.device.gib"
                          : options.full_tokens != 0 ? "tiers.device.tokens"
                                                     : "tiers.device.memory_fraction";
  try {
    setup.device_pools = sglang_pools(setup.model, room, options);
  } catch (const ModelError& error) {
    throw InputError(e.where(key) + ": " + error.what() + given_pool_keys(e));
  }
  setup.engine.device_pages = setup.device_pools.pools.front().slots / setup.engine.shape.page_tokens;
  if (setup.engine.device_pages == 0) {
    throw InputError(e.where("cache.page_tokens") + ": a page of " + std::to_string(setup.engine.shape.page_tokens) +
                     " tokens is larger than the " + std::to_string(setup.device_pools.pools.front().slots) +
                     " tokens of L1; make it smaller");
  }
  if (options.full_tokens != 0) setup.memory.reset();  // the room bounds the states only
  limit_running(e, setup);
}

std::uint32_t layers_of(const ModelGeometry& model, PoolKind kind) {
  const auto has = [kind](const LayerGeometry& layer) {
    return kind == PoolKind::window ? layer.window != 0 : layer.state_bytes != 0;
  };
  return static_cast<std::uint32_t>(std::max<std::ptrdiff_t>(std::ranges::count_if(model.layers, has), 1));
}

// Requires: the model has windows or states. `blocks`: the engine has vLLM's groups of blocks; else SGLang's pools.
void check_state_points(const Experiment& e, const EngineConfig& engine, bool blocks) {
  if (make_state_points(engine)->of_blocks() == blocks) return;
  throw InputError(e.where("cache.state_points") + ": is " + e.text("cache.state_points") + ", and " +
                   e.where("scheduler.style") + " = " + engine.style +
                   (blocks ? " keeps windows and states by align(retention=...)"
                           : " keeps states by extra_buffer, no_buffer or overlap"));
}

// The keys of SGLang's pools have no effect on a model with one pool.
void note_idle_pool_keys(const Experiment& e, Setup& setup) {
  const bool window = setup.device_pools.find(PoolKind::window) != nullptr;
  const bool state = setup.device_pools.find(PoolKind::state) != nullptr;
  const auto note = [&](const char* key, bool is_set, bool has_pool, const char* pool) {
    if (!is_set || has_pool) return;
    setup.notes.push_back(e.where(key) + " has no effect: " + setup.model.name + " has no pool for " + pool +
                          " of its own with scheduler.style = " + e.text("scheduler.style"));
  };
  note("tiers.device.window_ratio", e.number("tiers.device.window_ratio") != 0, window, "windows");
  note("tiers.device.state_ratio", e.number("tiers.device.state_ratio") != 0, state, "states");
  for (const char* key : {"tiers.device.states", "tiers.device.states_per_request", "cache.states_per_path"}) {
    note(key, e.integer(key) != 0, state, "states");
  }
  note("cache.pool_eviction", e.text("cache.pool_eviction") != EngineConfig{}.pool_eviction, window || state,
       "windows or states");
  if (!setup.block_pool) {
    note("cache.state_points", e.text("cache.state_points") != EngineConfig{}.state_points, state, "states");
  }
}

// Sizes L1 by vLLM's pool of equal blocks.
void fill_blocks(const Experiment& e, Setup& setup) {
  const Tokens page = setup.engine.shape.page_tokens;
  const auto given = static_cast<Tokens>(e.integer("cache.page_tokens"));
  const auto tokens = static_cast<Tokens>(e.integer("tiers.device.tokens"));
  BlockPool pool;
  Bytes room = 0;
  if (tokens == 0) {
    const double gib = e.number("tiers.device.gib");
    room = gib != 0 ? static_cast<Bytes>(gib * kGib / setup.engine_gpus()) : room_of_device(e, setup);
    pool = vllm_block_pool(setup.model, room, setup.engine.ranks, given);
  } else {
    pool = vllm_block_pool(setup.model, 0, setup.engine.ranks, given);
    if (pool.full_groups == 0) {
      throw InputError(e.where("tiers.device.tokens") + ": " + setup.model.name +
                       " has no layer with full attention; give tiers.device.gib");
    }
    const auto pages = static_cast<std::uint64_t>(tokens) / setup.attention_dp / pool.block_tokens;
    pool.blocks = pages * pool.full_groups;
    room = pool.bytes();
  }
  const bool by_blocks = decides_by_blocks(e, setup);
  setup.engine.device_pages = pool.tokens() / page;
  if (by_blocks) {
    const std::uint64_t blocks = pool.blocks > 0 ? pool.blocks - 1 : 0;  // without the null block
    setup.engine.device_pages =
        BlockGroups({2, pool.groups, 0}, page).longest_request(blocks, setup.engine.chunk_tokens);
  }
  if (setup.engine.device_pages == 0) {
    throw InputError(
        e.where("cache.page_tokens") + ": vLLM's pool holds " + std::to_string(pool.blocks) + " blocks of " +
        std::to_string(pool.block_bytes) + " bytes in the " + std::to_string(room) + " bytes for KV, less than a page" +
        (by_blocks ? " with the windows and states of a request" : "") + "; make it smaller, or the memory larger");
  }
  setup.block_pool = pool;
  if (by_blocks) {
    constexpr std::uint64_t kMostBlocks = 4'000'000'000;
    if (pool.blocks > kMostBlocks) {
      throw InputError(e.where(tokens != 0 ? "tiers.device.tokens" : "tiers.device.gib") + ": the pool has " +
                       std::to_string(pool.blocks) + " blocks; at most 4 billion are simulated");
    }
    BlockGroupsConfig& groups = setup.engine.block_groups;
    groups.blocks = static_cast<std::uint32_t>(pool.blocks);
    groups.groups = pool.groups;
    if (!e.is_given("cache.state_points")) setup.engine.state_points = "align";
    check_state_points(e, setup.engine, true);
    return;
  }
  setup.notes.push_back(
      setup.model.name + ": hits are too high: a prefix that vLLM can reuse takes up " +
      std::to_string(pool.blocks_of_prefix()) +
      " more blocks for windows and states, and here every prefix counts whose rows of all tokens are "
      "cached");
}

void size_device(const Experiment& e, Setup& setup) {
  EngineConfig& engine = setup.engine;
  const Tokens page = engine.shape.page_tokens;
  // All ranks together, so copies count: an MLA latent, and fewer KV heads than ranks.
  const Bytes rank_bytes = device_token_bytes(setup);
  const double bytes_per_token = static_cast<double>(rank_bytes) * engine.ranks;
  engine.device_pages = group_part(e, "device", tier_pages(e, "device", page, bytes_per_token), setup);
  if (divides_memory(e, setup)) return divide_memory(e, setup);
  const bool by_tokens = e.integer("tiers.device.tokens") != 0;
  if (decides_by_blocks(e, setup) || (has_blocks(e, setup) && !by_tokens)) return fill_blocks(e, setup);
  if (engine.device_pages != 0) return;
  const Bytes room = room_of_device(e, setup);
  engine.device_pages = room / (rank_bytes * page);
  if (engine.device_pages == 0) {
    throw InputError(e.where("cache.page_tokens") + ": a page of " + std::to_string(page) +
                     " tokens is larger than the " + std::to_string(room) + " bytes that the device leaves for KV" +
                     (setup.draft ? " beside the draft model's weights" : "") + "; make it smaller");
  }
}

// Divides the host tier into SGLang's pools. `ratio`: of tiers.host.ratio, within its bound; 0 = the tier has another
// size. With tiers.host.gib, the pool for the rows of all tokens has its part of the bytes.
void divide_host(const Experiment& e, double ratio, Setup& setup) {
  const Tokens page = setup.engine.shape.page_tokens;
  const double gib = e.number("tiers.host.gib");
  if (gib == 0) {
    const auto device = static_cast<double>(setup.device_pools.pools.front().slots);
    const Tokens tokens = setup.engine.host_pages * page;
    setup.host_pools = sglang_host_pools(setup.device_pools, ratio != 0 ? ratio : static_cast<double>(tokens) / device);
    setup.host_pools.front().slots = tokens;
    return;
  }
  setup.host_pools = sglang_host_pools(setup.device_pools, static_cast<Bytes>(gib * kGib / setup.engine_gpus()));
  const std::uint64_t tokens = setup.host_pools.front().slots;
  setup.engine.host_pages = tokens / page;
  if (setup.engine.host_pages == 0) {
    throw InputError(e.where("tiers.host.gib") + ": the host's pool for the rows of all tokens holds " +
                     std::to_string(tokens) + " tokens, less than one page of " + std::to_string(page) + " (" +
                     e.where("cache.page_tokens") + "); make the tier larger or the page smaller");
  }
  if (setup.model.model_type.starts_with("deepseek_v4")) {
    setup.notes.push_back(e.where("tiers.host.gib") +
                          ": SGLang refuses --hicache-size for DeepSeek-V4; it takes --hicache-ratio");
  }
}

std::uint32_t copies_on_host(const Experiment& e, const Setup& setup) {
  if (e.text("cache.host_copies") == "rank") return setup.engine_gpus();
  const EngineConfig& engine = setup.engine;
  const bool pages_only = setup.device_pools.pools.size() <= 1 && !setup.block_pool;
  const bool alike = is_latent(engine.shape) && std::ranges::all_of(engine.beside, is_latent) && pages_only;
  if (!alike) {
    throw InputError(e.where("cache.host_copies") + ": is node, and the ranks of " + setup.model.name +
                     " have different rows; only a model with MLA alone has the same on all; set it to rank");
  }
  return setup.attention_dp;  // groups of attention have requests of their own
}

}  // namespace

KvShape shape_of_slot(const PoolSize& pool, std::uint32_t layers, std::uint32_t page_tokens) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(pool.slot_bytes + 0.5);
  const std::uint32_t pieces = bytes % (2 * std::uint64_t{layers}) == 0 ? layers : 1;
  const std::uint32_t planes = bytes % (2 * std::uint64_t{pieces}) == 0 ? 2 : 1;
  return {pieces, planes, 1, static_cast<std::uint32_t>(bytes / pieces / planes), page_tokens};
}

Pages tier_pages(const Experiment& e, const std::string& tier, Tokens page_tokens, double bytes_per_token) {
  const auto tokens = static_cast<Tokens>(e.integer("tiers." + tier + ".tokens"));
  const double gib = e.number("tiers." + tier + ".gib");
  const std::string key = "tiers." + tier + (tokens != 0 ? ".tokens" : ".gib");
  const double wanted = tokens != 0 ? static_cast<double>(tokens) : std::floor(gib * kGib / bytes_per_token);
  if (tokens == 0 && gib == 0) return 0;
  const double pages = std::floor(wanted / static_cast<double>(page_tokens));
  if (pages < 1) {
    throw InputError(e.where(key) + ": holds " + std::to_string(static_cast<Tokens>(wanted)) +
                     " tokens, less than one page of " + std::to_string(page_tokens) + " (" +
                     e.where("cache.page_tokens") + "); make the tier larger or the page smaller");
  }
  // A very large size stands for a store without a limit.
  if (pages > 4e9 && is_storage(tier_named(tier)->tier)) return 4'000'000'000;
  if (pages > 4e9)
    throw InputError(e.where(key) + ": holds more than 4 billion pages; make it smaller or the page larger");
  return static_cast<Pages>(pages);
}

void keep_pools(const Experiment& e, Setup& setup) {
  if (!divides_memory(e, setup)) return;
  EngineConfig& engine = setup.engine;
  const auto page = static_cast<std::uint32_t>(engine.shape.page_tokens);
  const bool through_host =
      engine.host_pages != 0 && engine.path == CachePath::via_host && !engine.write_policy.starts_with("write_back");
  if (!engine.storage.empty() && !through_host) {
    setup.notes.push_back(hits_of_pools(setup));
    return;
  }
  refuse_own_write_back(e, engine);
  const auto host_slots = [&](PoolKind kind) -> std::uint64_t {
    if (engine.host_pages == 0) return 0;
    const auto pool = std::ranges::find(setup.host_pools, kind, &PoolSize::kind);
    return pool == setup.host_pools.end() ? 0 : pool->slots;
  };
  for (const PoolSize& pool : setup.device_pools.pools) {
    if (pool.kind == PoolKind::window) {
      engine.pools.push_back({Closure::tail, setup.model.window, pool.slots / page, host_slots(pool.kind) / page,
                              shape_of_slot(pool, layers_of(setup.model, pool.kind), page)});
    } else if (pool.kind == PoolKind::state) {
      engine.pools.push_back({Closure::point, 0, pool.slots, host_slots(pool.kind),
                              shape_of_slot(pool, layers_of(setup.model, pool.kind), 1)});
    }
  }
  for (const PoolConfig& pool : engine.pools) {
    const bool window = pool.closure == Closure::tail;
    const Pages least = window ? engine.least_slots(pool) : setup.device_pools.states_per_request;
    constexpr Pages kMostSlots = 1'000'000'000;
    if (std::max(pool.device_slots, pool.host_slots) > kMostSlots) {
      throw InputError(e.where(window ? "cache.page_tokens" : "model.state_bytes") + ": the pool for " +
                       (window ? "windows" : "states") + " holds more than a billion of them; make them larger");
    }
    if (pool.device_slots >= least) continue;
    throw InputError(e.where(window ? "tiers.device.window_ratio" : "tiers.device.states") + ": the pool for " +
                     (window ? "windows has " : "states has ") + std::to_string(pool.device_slots) +
                     (window ? " pages" : " states") + ", and one request needs " + std::to_string(least) +
                     "; make it or the tier larger");
  }
  constexpr std::uint32_t kWithoutBuffers = 3;  // states of a running request
  if (setup.device_pools.states_per_request == kWithoutBuffers && page == 1 &&
      engine.state_points == EngineConfig{}.state_points) {
    engine.state_points = "no_buffer";
  }
  if (setup.device_pools.find(PoolKind::state) != nullptr) check_state_points(e, engine, false);
  if (e.policy("cache.state_points").name == "no_buffer" && page != 1) {
    throw InputError(e.where("cache.state_points") + ": no_buffer leaves states between pages of " +
                     std::to_string(page) + " tokens; set cache.page_tokens=1, as SGLang does");
  }
  engine.evict_unit = EvictUnit::node;
  for (StorageTier& tier : setup.world.storage) tier.page_bytes = engine.page_bytes() * engine.storage_writers;
}

std::uint32_t page_of(const Experiment& e, std::uint32_t ranks, Setup& setup) {
  const auto given = static_cast<std::uint32_t>(e.integer("cache.page_tokens"));
  if (!decides_by_blocks(e, setup)) return given;
  const auto page = static_cast<std::uint32_t>(vllm_block_pool(setup.model, 0, ranks, given).page_tokens);
  if (page != given) {
    setup.notes.push_back(e.where("cache.page_tokens") + ": is " + std::to_string(given) + "; a page has " +
                          std::to_string(page) + " tokens, as vLLM makes the blocks of all groups of layers equal");
  }
  return page;
}

void size_tiers(const Experiment& e, Setup& setup) {
  EngineConfig& engine = setup.engine;
  const Tokens page = engine.shape.page_tokens;
  if (setup.target.token_bytes() == 0)
    throw InputError(e.where("model.name") + ": has no KV cache of pages; nothing to simulate");
  size_device(e, setup);
  note_idle_pool_keys(e, setup);
  if (e.policy("scheduler.style").name == "vllm" && engine.block_groups.groups.empty()) {
    // vLLM's BlockPool takes the first of its blocks as null_block, which never holds KV. Groups of blocks count it.
    if (engine.device_pages <= 1) {
      throw InputError(e.where("scheduler.style") +
                       ": vllm keeps 1 of the pages of L1 as a placeholder, and there is no other; make tiers.device "
                       "larger or cache.page_tokens smaller");
    }
    --engine.device_pages;
  }
  if (offloads_pages(e, setup)) fill_pages_as_blocks(setup);
  setup.copies_on_host = copies_on_host(e, setup);
  const double host_bytes =
      static_cast<double>(setup.page_bytes()) / static_cast<double>(page) * setup.copies_on_host / setup.attention_dp;
  engine.host_pages = group_part(e, "host", tier_pages(e, "host", page, host_bytes), setup);
  const double ratio = bounded_host_ratio(e, setup);
  if (ratio != 0) {
    const double pages = std::floor(static_cast<double>(engine.device_pages) * ratio);
    if (pages < 1 || pages > 4e9) {
      throw InputError(e.where("tiers.host.ratio") + ": of the " + std::to_string(engine.device_pages) +
                       " pages of L1 that is " + (pages < 1 ? "less than a page" : "more than 4 billion pages") +
                       "; make it " + (pages < 1 ? "larger" : "smaller"));
    }
    engine.host_pages = static_cast<Pages>(pages);
  }
  if (divides_memory(e, setup) && has_tier(e, Tier::host)) divide_host(e, ratio, setup);
  if (setup.has_blocks() && has_tier(e, Tier::host)) fill_host_chunks(e, ratio, setup);
  const bool beyond_device = engine.prefetch_share_of == PrefetchShareOf::host_less_device;
  if (beyond_device && engine.host_pages != 0 && engine.host_pages <= engine.device_pages) {
    throw InputError(
        e.where("cache.rules.prefetch_share_of") + ": is host_less_device, and the host tier of " +
        std::to_string(engine.host_pages) + " pages is no larger than the device tier of " +
        std::to_string(engine.device_pages) +
        "; SGLang before 0.5.15 doesn't start with that: make the host tier larger, or take a later release");
  }
}

bool has_tier(const Experiment& e, Tier tier) {
  const std::string prefix = "tiers." + std::string(name_of(tier));
  return e.integer(prefix + ".tokens") != 0 || e.number(prefix + ".gib") != 0 ||
         (tier == Tier::host && e.number("tiers.host.ratio") != 0);
}

}  // namespace kvtwin

#include "lab/experiment/setup.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/experiment/generated.hpp"
#include "lab/experiment/stages.hpp"
#include "lab/formatted.hpp"
#include "lab/names.hpp"
#include "lab/units.hpp"
#include "models/hardware_draws.hpp"
#include "models/names.hpp"
#include "models/operator_cost.hpp"
#include "models/operator_table.hpp"
#include "models/presets.hpp"
#include "models/serving_times.hpp"
#include "models/text_file.hpp"
#include "models/tier_media.hpp"
#include "models/weights.hpp"
#include "policy/base/names.hpp"
#include "policy/base/wide.hpp"
#include "policy/eviction.hpp"
#include "policy/index/page_key.hpp"
#include "policy/state_points.hpp"
#include "policy/style.hpp"
#include "policy/write.hpp"
#include "sim/bounds/hitrate.hpp"
#include "traces/clients.hpp"
#include "traces/closed_loop.hpp"
#include "traces/figure_error.hpp"
#include "traces/groups.hpp"
#include "traces/returning.hpp"
#include "traces/shrink.hpp"

namespace kvtwin {
namespace {

// Returns the result of `read`. Turns its ModelErrors into InputErrors with the key.
template <typename Read>
auto with_key(const Experiment& e, std::string_view key, const Read& read) {
  try {
    return read();
  } catch (const ModelError& error) {
    throw InputError(e.where(key) + ": " + error.what());
  }
}

// Returns the number of decode engines: cluster.decode, or all of cluster.engines that do not prefill.
std::int64_t decode_engines(const Experiment& e) {
  const std::int64_t prefill = e.integer("cluster.prefill"), decode = e.integer("cluster.decode");
  if (prefill == 0 || decode != 0) return decode;
  return std::max<std::int64_t>(0, e.integer("cluster.engines") - prefill);
}

// Returns whether engines have roles. Errors: InputError if only one role has engines, or if other keys do not fit.
bool has_roles(const Experiment& e) {
  const std::int64_t prefill = e.integer("cluster.prefill"), decode = decode_engines(e);
  if (prefill == 0 && decode == 0) return false;
  if (prefill == 0 || decode == 0) {
    const char* const none = prefill == 0 ? "cluster.prefill" : "cluster.decode";
    const char* const some = prefill == 0 ? "cluster.decode" : "cluster.prefill";
    throw InputError(
        e.where(some) + ": is " + std::to_string(prefill + decode) + ", and " + none +
        " is 0; give each role at least one engine (or let cluster.engines be more than cluster.prefill: the rest "
        "decodes), or set both to 0");
  }
  const std::int64_t engines = e.integer("cluster.engines");
  if (engines != 1 && engines != prefill + decode) {
    throw InputError(e.where("cluster.engines") + ": is " + std::to_string(engines) +
                     ", and cluster.prefill and cluster.decode give " + std::to_string(prefill + decode) +
                     " engines; leave it out");
  }
  if (e.text("model.draft.kind") == "side_pool" ||
      (e.text("model.draft.kind") == "packed" && !e.flag("model.draft.restore"))) {
    throw InputError(
        e.where("model.draft.kind") +
        ": engines with roles (cluster.prefill) hand the draft model's KV over in the target's pages; set it "
        "to packed with model.draft.restore, or to none and give the decode engines a draft model in "
        "cluster.decode_set");
  }
  return true;
}

// Returns the experiment of decode engines only. `engines`: of both roles.
Experiment decode_experiment(const Experiment& e, std::uint32_t engines) {
  Experiment own = e;
  const std::string where = e.where("cluster.decode_set");
  for (std::string_view one : split_list(e.text("cluster.decode_set"))) {
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (is_key_of_all_engines(one)) {
      throw InputError(where + ": has " + std::string(one) +
                       ", which is the same for all engines; give keys of one engine, say parallel.tp=8");
    }
    own.set(one, where);
  }
  for (const char* key : {"cluster.prefill=0", "cluster.decode=0", "cluster.decode_set=", "faults="}) {
    own.set(key, where);
  }
  own.set("cluster.engines=" + std::to_string(engines), where);  // all share the pool and its network
  return own;
}

std::uint32_t attention_groups(const Experiment& e) {
  const auto tp = static_cast<std::uint32_t>(e.integer("parallel.tp"));
  const auto groups = static_cast<std::uint32_t>(e.integer("parallel.attention_dp"));
  if (tp % groups == 0) return groups;
  throw InputError(e.where("parallel.attention_dp") + ": is " + std::to_string(groups) + ", and must divide " +
                   e.where("parallel.tp") + " (" + std::to_string(tp) + ")");
}

// Sets the number of engines that all other parts use. Groups of attention count as engines.
void count_engines(const Experiment& e, Setup& setup) {
  setup.attention_dp = setup.world.groups = attention_groups(e);
  if (!has_roles(e)) {
    setup.world.engines = static_cast<std::uint32_t>(e.integer("cluster.engines")) * setup.attention_dp;
    return;
  }
  const std::uint32_t decode_groups =
      attention_groups(decode_experiment(e, static_cast<std::uint32_t>(total_engines(e))));
  setup.roles.prefill = static_cast<std::size_t>(e.integer("cluster.prefill")) * setup.attention_dp;
  setup.roles.decode.engines = static_cast<std::size_t>(decode_engines(e)) * decode_groups;
  setup.world.engines = static_cast<std::uint32_t>(setup.roles.prefill + setup.roles.decode.engines);
}

void configure_deaths(const Experiment& e, Setup& setup) {
  const std::vector<Fault> faults = faults_of(e, "engine");
  if (faults.empty()) return;
  const Fault& fault = faults.front();
  const std::int64_t dead = fault.number("index");
  const std::int64_t engines = total_engines(e), prefill = has_roles(e) ? e.integer("cluster.prefill") : 0;
  const std::int64_t alike = prefill == 0 ? engines : dead < prefill ? prefill : engines - prefill;
  if (dead >= engines || alike == 1) {
    throw InputError(where_of(e, fault) +
                     (dead >= engines ? ": the engines are 0 to " + std::to_string(engines - 1)
                                      : ": is the only engine that could serve its requests") +
                     "; choose another, or leave this out");
  }
  const bool decodes = prefill != 0 && dead >= prefill;
  const std::uint32_t groups = decodes ? setup.decode->attention_dp : setup.attention_dp;
  const std::size_t first = decodes ? setup.roles.prefill + static_cast<std::size_t>(dead - prefill) * groups
                                    : static_cast<std::size_t>(dead) * groups;
  for (std::size_t group = 0; group < groups; ++group) {
    setup.world.deaths.push_back({static_cast<std::uint32_t>(first + group), static_cast<TimeNs>(fault.number("at"))});
  }
  setup.world.detect_ns = static_cast<TimeNs>(fault.number("detect"));
  setup.roles.engines_die = true;
}

// Returns the pages of a tier, for the whole engine; 0 if the experiment does not set the tier.
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
  const double device = rank_bytes * setup.engine_gpus() / kGib;
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

// Returns the bytes for KV that the weights leave on each GPU. Errors: InputError.
Bytes room_of_device(const Experiment& e, const Setup& setup) {
  // With SGLang's fraction, the activations are in the rest of the memory; with vLLM's, in the fraction.
  const double fraction = e.number("tiers.device.memory_fraction");
  const bool has_activations = fraction == 0 || e.policy("scheduler.style").name == "vllm";
  Bytes room = 0;
  try {
    room = device_kv_bytes(setup.hardware, setup.model, setup.engine_gpus(), fraction == 0 ? kMemFraction : fraction,
                           has_activations ? setup.engine.chunk_tokens : 0, setup.attention_dp);
  } catch (const ModelError& error) {
    const char* key = fraction == 0 ? "scheduler.chunk_tokens" : "tiers.device.memory_fraction";
    throw InputError(std::string(error.what()) + " It depends on " + e.where(key) + " too.");
  }
  const Bytes draft_weights = setup.draft ? setup.draft->model.weight_bytes / setup.engine_gpus() : 0;
  return room - std::min(room, draft_weights);
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
  limit_running(e, setup);
}

std::uint32_t layers_of(const ModelGeometry& model, PoolKind kind) {
  const auto has = [kind](const LayerGeometry& layer) {
    return kind == PoolKind::window ? layer.window != 0 : layer.state_bytes != 0;
  };
  return static_cast<std::uint32_t>(std::max<std::ptrdiff_t>(std::ranges::count_if(model.layers, has), 1));
}

// The KV of a slot, in pieces of one layer each.
KvShape shape_of_slot(const PoolSize& pool, std::uint32_t layers, std::uint32_t page_tokens) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(pool.slot_bytes + 0.5);
  const std::uint32_t pieces = bytes % (2 * std::uint64_t{layers}) == 0 ? layers : 1;
  const std::uint32_t planes = bytes % (2 * std::uint64_t{pieces}) == 0 ? 2 : 1;
  return {pieces, planes, 1, static_cast<std::uint32_t>(bytes / pieces / planes), page_tokens};
}

// Requires: the model has windows or states. `blocks`: the engine has vLLM's groups of blocks; else SGLang's pools.
void check_state_points(const Experiment& e, const EngineConfig& engine, bool blocks) {
  if (make_state_points(engine)->of_blocks() == blocks) return;
  throw InputError(
      e.where("cache.state_points") + ": is " + e.text("cache.state_points") + ", and " + e.where("scheduler.style") +
      " = " + engine.style +
      (blocks ? " keeps windows and states by align(retention=...)" : " keeps states by extra_buffer or no_buffer"));
}

// Gives the engine its pools for windows and states, or says why every cached prefix counts as usable.
void keep_pools(const Experiment& e, Setup& setup) {
  if (!divides_memory(e, setup)) return;
  EngineConfig& engine = setup.engine;
  const auto page = static_cast<std::uint32_t>(engine.shape.page_tokens);
  if (!engine.storage.empty() || setup.roles.prefill > 0 ||
      (engine.host_pages != 0 && engine.write_policy.starts_with("write_back"))) {
    setup.notes.push_back(hits_of_pools(setup));
    return;
  }
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
  if (!setup.block_pool) {
    note("cache.state_points", e.text("cache.state_points") != EngineConfig{}.state_points, state, "states");
  }
}

// Returns whether L1 has the size of vLLM's pool of equal blocks. A draft model's layers are not in its groups here.
bool has_blocks(const Experiment& e, const Setup& setup) {
  return e.policy("scheduler.style").name == "vllm" && has_block_pool(setup.model) &&
         e.text("model.draft.kind") == "none";
}

// Returns whether the engine decides by vLLM's groups of blocks: their offloading has not been built.
bool decides_by_blocks(const Experiment& e, const Setup& setup) {
  if (!has_blocks(e, setup) || setup.roles.prefill > 0) return false;
  return std::ranges::none_of(
      kTierSpecs, [&](const TierSpec& spec) { return spec.tier != Tier::device && has_tier(e, spec.tier); });
}

// Returns the tokens of a page: those of cache.page_tokens, or what vLLM's groups of blocks make of them.
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
  const Tokens chunk = setup.engine.chunk_tokens;
  setup.engine.device_pages = pool.tokens() / page;
  if (decides_by_blocks(e, setup) && pool.blocks > 1) {
    setup.engine.device_pages = BlockGroups({2, pool.groups, 0}, page).longest_request(pool.blocks - 1, chunk);
  }
  if (setup.engine.device_pages == 0) {
    throw InputError(e.where("cache.page_tokens") + ": vLLM's pool holds " + std::to_string(pool.blocks) +
                     " blocks of " + std::to_string(pool.block_bytes) + " bytes in the " + std::to_string(room) +
                     " bytes for KV, less than a page; make it smaller, or the memory larger");
  }
  setup.block_pool = pool;
  if (decides_by_blocks(e, setup)) {
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

void size_tiers(const Experiment& e, Setup& setup) {
  EngineConfig& engine = setup.engine;
  const Tokens page = engine.shape.page_tokens;
  if (setup.target.token_bytes() == 0)
    throw InputError(e.where("model.name") + ": has no KV cache of pages; nothing to simulate");
  size_device(e, setup);
  note_idle_pool_keys(e, setup);
  if (e.policy("scheduler.style").name == "vllm") {
    // vLLM's BlockPool takes the first of its blocks as null_block, a placeholder without KV.
    if (engine.device_pages <= 1) {
      throw InputError(e.where("scheduler.style") +
                       ": vllm keeps 1 of the pages of L1 as a placeholder, and there is no other; make tiers.device "
                       "larger or cache.page_tokens smaller");
    }
    if (engine.block_groups.groups.empty()) --engine.device_pages;
  }
  const double host_bytes = static_cast<double>(setup.page_bytes()) / static_cast<double>(page) * engine.ranks;
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
  const bool beyond_device = engine.prefetch_share_of == PrefetchShareOf::host_less_device;
  if (beyond_device && engine.host_pages != 0 && engine.host_pages <= engine.device_pages) {
    throw InputError(
        e.where("cache.rules.prefetch_share_of") + ": is host_less_device, and the host tier of " +
        std::to_string(engine.host_pages) + " pages is no larger than the device tier of " +
        std::to_string(engine.device_pages) +
        "; SGLang before 0.5.15 doesn't start with that: make the host tier larger, or take a later release");
  }
}

TimeNs nanoseconds(const Experiment& e, std::string_view key) { return static_cast<TimeNs>(e.number(key) * 1e9 + 0.5); }

std::string place_of_tier(const Experiment& e, const std::string& tier) {
  const std::string key = "tiers." + tier;
  return e.where(key + (e.integer(key + ".tokens") != 0 ? ".tokens" : ".gib"));
}

void check_storage(const Experiment& e, const Setup& setup) {
  const std::string machine = setup.hardware.name;
  for (const StorageTierConfig& tier : setup.engine.storage) {
    const TierMedium& medium = medium_of(tier.tier);
    if (medium.is_there(setup.hardware)) continue;
    throw InputError(place_of_tier(e, std::string(spec_of(tier.tier).name)) + ": " + machine + " has " +
                     std::string(medium.missing) + ", or leave the tier out");
  }
  if (!setup.has_storage()) return;
  if (setup.engine.path == CachePath::via_host && setup.engine.host_pages == 0) {
    throw InputError(e.where("cache.path") +
                     ": is via_host, and there is no host tier; set cache.path=direct or give tiers.host");
  }
  if (setup.engine.path != CachePath::via_host && !setup.hardware.has_gpudirect()) {
    throw InputError(e.where("cache.path") + ": " + machine +
                     " has no GPUDirect; give its gpudirect_bandwidth and gpudirect_object, or set it to via_host");
  }
}

// Returns the text that identifies the weights: the name of a preset, or the content of a config file, and the
// fingerprint of the weights beside that file. The path of the file does not matter.
std::string name_of_weights(const Experiment& e, const Setup& setup) {
  if (e.text("model.config").empty()) return setup.model.name;
  const std::filesystem::path config = e.path("model.config");
  const std::filesystem::path folder = config.has_parent_path() ? config.parent_path() : ".";
  const std::string text = read_text_file(config, "give a config.json (JSON)");
  if (setup.engine.storage.empty()) return text;
  return text + with_key(e, "model.config", [&] { return weights_fingerprint(folder); }).value_or("");
}

// Sets the storage tiers and their spaces.
void configure_storage(const Experiment& e, Setup& setup) {
  EngineConfig& engine = setup.engine;
  const KvShape& shape = engine.shape;
  // An object has a rank's part of all shapes of a slot. If these are the same on all ranks, one writer is enough.
  const bool same = is_latent(shape) && std::ranges::all_of(engine.beside, is_latent);
  engine.storage_writers = same ? 1 : engine.ranks;
  double bytes_per_token = static_cast<double>(shape.token_bytes());
  for (const KvShape& other : engine.beside) bytes_per_token += static_cast<double>(other.token_bytes());
  bytes_per_token *= engine.storage_writers;
  for (const TierSpec& spec : kStorageSpecs) {
    const Pages pages = tier_pages(e, std::string(spec.name), shape.page_tokens, bytes_per_token);
    if (pages == 0) continue;
    // The disk tier of groups of attention is common to them, so none of them knows its content.
    const bool owned = spec.owned && setup.attention_dp == 1;
    engine.storage.push_back({spec.tier, pages, owned});
    setup.world.storage.push_back({spec.tier, pages, !owned});
    if (spec.shared) setup.router.shared_pages += pages;
    if (spec.tier == Tier::remote && setup.store) {
      setup.world.storage.back().evicts_itself = setup.store->evicts;
      setup.world.storage.back().lease_ns = static_cast<TimeNs>(setup.store->figures.lease * 1e9 + 0.5);
    }
  }
  check_storage(e, setup);
  engine.storage_objects = objects_of(e, shape);
  for (const KvShape& other : engine.beside) engine.storage_objects += objects_of(e, other);
  StorageIdentity identity;
  // Pages with and without the draft's part are different pages.
  std::string pages_of = name_of_weights(e, setup);
  if (setup.draft && setup.draft->restored) {
    pages_of += (setup.draft->packed ? "+packed:" : "+") + setup.draft->model.name;
  }
  identity.model = pages_of;
  identity.revision = e.text("model.revision");
  identity.kv_dtype = setup.model.kv_dtype;
  identity.page_tokens = shape.page_tokens;
  identity.layout = e.text("cache.layout");
  identity.tp = engine.ranks;
  identity.name_space = e.text("cache.namespace");
  engine.storage_space = storage_space(identity);
  for (; setup.world.instances && identity.rank < engine.ranks; ++identity.rank) {
    setup.rank_spaces.push_back(storage_space(identity));
  }
}

// Rounds to whole picoseconds. Times are at most 9e18 ps, to fit into the type.
std::uint64_t picoseconds(double ps) { return static_cast<std::uint64_t>(std::min(ps, 9.0e18) + 0.5); }

// Returns the time to load one token from the host, for one rank (all ranks load in parallel), in a load of up to 128
// neighbouring pages.
std::uint64_t load_token_ps(const Setup& setup) {
  const EngineConfig& engine = setup.engine;
  if (engine.host_pages == 0) return 0;
  const PageRun run{0, 0,
                    static_cast<std::uint32_t>(std::min<Pages>(128, std::min(engine.device_pages, engine.host_pages)))};
  const PoolPair pools{engine.shape, engine.host_layout, engine.device_pages, engine.host_pages};
  const Plan plan = plan_transfer(std::span(&run, 1), Direction::host_to_device, pools, engine.io, engine.planner);
  const TransferCost cost = setup.cost->transfer(plan);
  double rate = setup.hardware.host_to_device;
  if (cost.bytes_per_second != 0) rate = std::min(rate, static_cast<double>(cost.bytes_per_second));
  const double bytes = static_cast<double>(engine.page_bytes());
  return picoseconds(bytes * 1e12 / rate / engine.shape.page_tokens);
}

// Sets the costs of computing and reading that policies use. The cost of a token grows linearly with its depth. Two
// points of the cost model give the line, at lengths where the overhead of a pass does not matter.
void price(Setup& setup) {
  EngineConfig& engine = setup.engine;
  constexpr Tokens kStepTokens = 4096, kNearTokens = 4096, kFarTokens = 65'536;
  const auto slope_ps = [&](Tokens from) {
    const auto prefill = [&](Tokens tokens) {
      ForwardShape shape;
      shape.prefill_tokens = tokens;
      shape.prefill_pairs = tokens * (tokens + 1) / 2;
      shape.prefill_sequences = 1;
      return setup.cost->forward_ns(shape, 1);
    };
    return Wide{prefill(from + kStepTokens) - prefill(from)} * 1000 / Wide{kStepTokens};
  };
  const Wide near = slope_ps(kNearTokens), far = slope_ps(kFarTokens);
  const Wide first =
      std::max<Wide>(1, near - (far - near) * Wide{kNearTokens + kStepTokens / 2} / Wide{kFarTokens - kNearTokens});
  constexpr Tokens kNeverDoubles = Tokens{1} << 40;  // the cost does not depend on the depth
  engine.cost_token_ps = static_cast<std::uint64_t>(first);
  engine.cost_doubling_tokens =
      far <= near ? kNeverDoubles
                  : static_cast<Tokens>(std::max<Wide>(1, first * Wide{kFarTokens - kNearTokens} / (far - near)));
  engine.load_token_ps = load_token_ps(setup);
  for (StorageTierConfig& tier : engine.storage) {
    StorageWork work;
    work.verb = StorageVerb::get;
    work.tier = tier.tier;
    work.pages = engine.storage_batch_pages;
    work.page_bytes = setup.page_bytes();
    work.objects = engine.storage_objects;
    work.ranks = engine.ranks;
    const TransferCost cost = setup.cost->storage(work);
    const double ps = static_cast<double>(cost.latency_ns) * 1e3 +
                      (cost.bytes_per_second == 0
                           ? 0.0
                           : static_cast<double>(cost.bytes) * 1e12 / static_cast<double>(cost.bytes_per_second));
    tier.read_token_ps = picoseconds(ps / static_cast<double>(work.pages * engine.shape.page_tokens));
  }
}

std::string gigabytes_a_second(double bytes_per_second) {
  char text[40];
  std::snprintf(text, sizeof text, "%g GB/s", bytes_per_second / 1e9);
  return text;
}

// Moves figures within their intervals: hardware.draw, hardware.end.
void draw_hardware(const Experiment& e, Setup& setup) {
  HardwareSpec& hw = setup.hardware;
  const double spread = e.number("hardware.spread_percent") / 100;
  const auto draw = static_cast<std::uint64_t>(e.integer("hardware.draw"));
  const std::string& end = e.text("hardware.end");
  if (draw != 0) {
    const std::size_t count = uncertain_numbers(hw, spread).size();
    if (count == 0) {
      throw InputError(e.where("hardware.draw") + ": " + without_intervals(hw));
    }
    move_to_draw(hw, draw, spread);
    setup.notes.push_back("hardware.draw: variant " + std::to_string(draw) + " of " + hw.name + ", " +
                          std::to_string(count) + " figures drawn");
  }
  if (end.empty()) return;
  const std::size_t colon = end.find(':');
  const std::string key = end.substr(0, colon), which = colon == std::string::npos ? "" : end.substr(colon + 1);
  if (which != "low" && which != "high") {
    throw InputError(e.where("hardware.end") + ": is \"" + end + "\"; it must be NUMBER:low or NUMBER:high");
  }
  const std::vector<UncertainNumber> numbers = uncertain_numbers(hw, spread);
  if (numbers.empty()) throw InputError(e.where("hardware.end") + ": " + without_intervals(hw));
  if (!move_to_end(hw, key, which == "high", spread)) {
    std::vector<std::string> known;
    for (const UncertainNumber& number : numbers) known.push_back(number.key);
    throw InputError(e.where("hardware.end") + ": " + unknown_name("figure with an interval", key, known));
  }
  setup.notes.push_back("hardware.end: " + key + " of " + hw.name + " at its interval's " + which + " end");
}

// Rounds to whole bytes/s. Only an absent device has the rate 0; a slow one has at least 1.
std::uint64_t rate(double bytes_per_second) {
  if (bytes_per_second == 0) return 0;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(bytes_per_second + 0.5));
}

// Reads the store of the remote tier.
std::optional<StoreSpec> store_of(const Experiment& e) {
  if (!e.text("tiers.remote.store_file").empty()) {
    return with_key(e, "tiers.remote.store_file",
                    [&] { return store_from_file(e.path("tiers.remote.store_file").string()); });
  }
  const std::string& name = e.text("tiers.remote.store");
  if (name == "pool") return std::nullopt;
  std::vector<std::string> known = store_preset_names();
  known.insert(known.begin(), "pool");
  if (std::ranges::find(known, name) == known.end()) {
    throw InputError(e.where("tiers.remote.store") + ": " + unknown_name("store", name, known));
  }
  return store_preset(name);
}

void configure_store(const Experiment& e, Setup& setup) {
  if (!has_tier(e, Tier::remote)) return;
  const std::optional<StoreSpec> store = store_of(e);
  if (!store) return;
  setup.hardware.store = store->figures;
  setup.store = *store;
  std::size_t assumed = 0;
  for (const HardwareNumber& number : store->numbers) assumed += number.source.starts_with("assumed") ? 1 : 0;
  setup.notes.push_back("tiers.remote.store: " + store->name + " (" + store->description + "); " +
                        std::to_string(assumed) + " of its " + std::to_string(store->numbers.size()) +
                        " figures are assumed");
}

// Sets the network to the remote pool, and the pool's bandwidth that follows from it and from the store.
void configure_network(const Experiment& e, Setup& setup) {
  HardwareSpec& hw = setup.hardware;
  if (!has_tier(e, Tier::remote) || !hw.has_pool()) return;
  PoolNetwork& network = setup.world.network;
  const auto engines = static_cast<std::uint32_t>(total_engines(e));
  network.nodes = static_cast<std::uint32_t>(e.integer("hardware.set.pool_nodes"));
  network.peers = e.flag("hardware.set.pool_peers");
  network.rails = static_cast<std::uint32_t>(e.integer("hardware.set.rails"));
  const double nics = hw.nic_bandwidth * hw.nic_count;
  if (network.peers) {
    if (engines == 1) {
      throw InputError(e.where("hardware.set.pool_peers") +
                       ": needs other engines, and there is one; set cluster.engines to more, or this to false");
    }
    if (network.nodes != 0 && network.nodes != engines) {
      throw InputError(e.where("hardware.set.pool_nodes") + ": is " + std::to_string(network.nodes) +
                       ", and with hardware.set.pool_peers the nodes are the " + std::to_string(engines) +
                       " engines; leave it out");
    }
    network.nodes = engines;
  }
  if (network.rails > 0 && network.rails > hw.nic_count) {
    throw InputError(e.where("hardware.set.rails") + ": is " + std::to_string(network.rails) + ", and " + hw.name +
                     " has " + std::to_string(static_cast<int>(hw.nic_count)) + " NICs per engine; make it smaller");
  }
  const double free = 1 - e.number("hardware.set.network_share");
  const double node_gbps = e.number("hardware.set.pool_node_gbps");
  const double nodes = std::max(1U, network.nodes);
  double node = network.peers ? nics : hw.pool_bandwidth / nodes;
  const bool pool_is_given = e.number("hardware.set.remote_gbps") != 0 || e.number("hardware.set.pool_bandwidth") != 0;
  if (node_gbps != 0 && e.number("hardware.set.pool_bandwidth") != 0) {
    throw InputError(e.where("hardware.set.pool_node_gbps") +
                     ": gives the bandwidth of each node, and hardware.set.pool_bandwidth that of all; leave one out");
  }
  if (!network.peers && !pool_is_given && hw.store.node_bandwidth > 0) node = hw.store.node_bandwidth;
  if (!network.peers && node_gbps != 0) node = node_gbps * 1e9;
  hw.store.node_bandwidth = 0;  // from here on, it is in pool_bandwidth
  hw.pool_nodes = network.nodes;
  hw.pool_bandwidth = node * nodes * (network.peers ? 1 : free);
  const double over = e.number("hardware.set.switch_oversubscription");
  if (over > 1 || free < 1) network.switch_bytes_per_second = rate(nics * engines / over * free);
}

// Sets the figures of a hardware file that hardware.set has, with a note for each.
void set_figures(const Experiment& e, bool (*chosen)(std::string_view), Setup& setup) {
  HardwareSpec& hw = setup.hardware;
  for (const HardwareField& field : hardware_fields()) {
    const std::string key = "hardware.set." + std::string(field.key);
    const double base = unit_of_figure(field).base;
    const double wanted = field.whole ? static_cast<double>(e.integer(key)) : e.number(key) * base;
    if (wanted == 0 || !chosen(field.key)) continue;
    const double before = hw.*field.member;
    hw.*field.member = wanted;
    const std::string_view device = incomplete_device(hw, field.key);
    if (!device.empty() && device != "shared file system") {  // check_storage() refuses an incomplete one
      throw InputError(e.where(key) + ": " + hw.name + " has no " + std::string(device) +
                       "; leave it out, or set it to 0");
    }
    const std::string unit(unit_of_figure(field).name);
    const auto shown = [&](double value) { return formatted("%g", value / base) + (unit.empty() ? "" : " " + unit); };
    setup.notes.push_back(key + ": " + shown(wanted) + " instead of " + shown(before) + " as of " + hw.name);
  }
}

// Applies hardware.set, with a note for each figure.
void override_hardware(const Experiment& e, Setup& setup) {
  HardwareSpec& hw = setup.hardware;
  const auto change = [&](const char* key, bool has_one, const char* what, double before, auto apply) {
    const double wanted = e.number(key) * 1e9;
    if (wanted == 0) return;
    if (!has_one)
      throw InputError(e.where(key) + ": " + hw.name + " has no " + what + "; leave it out, or set it to 0");
    apply(wanted);
    setup.notes.push_back(std::string(key) + ": " + what + " at " + gigabytes_a_second(wanted) + " instead of " +
                          gigabytes_a_second(before) + " as of " + hw.name);
  };
  set_figures(
      e, [](std::string_view figure) { return figure != "pool_bandwidth"; }, setup);
  change("hardware.set.disk_read_gbps", hw.has_drives(), "drives", hw.drive_read_bandwidth * hw.drive_count,
         [&](double rate) { hw.drive_read_bandwidth = rate / hw.drive_count; });
  change("hardware.set.disk_write_gbps", hw.has_drives(), "drives", hw.drive_write_bandwidth * hw.drive_count,
         [&](double rate) { hw.drive_write_bandwidth = rate / hw.drive_count; });
  configure_store(e, setup);
  change("hardware.set.remote_gbps", hw.has_pool(), "remote pool",
         std::min(hw.nic_bandwidth * hw.nic_count, hw.pool_bandwidth), [&](double rate) {
           hw.nic_bandwidth = rate / hw.nic_count;
           hw.pool_bandwidth = rate;
         });
  set_figures(
      e, [](std::string_view figure) { return figure == "pool_bandwidth"; }, setup);
  configure_network(e, setup);
  change("hardware.set.host_link_gbps", true, "GPU's host link", hw.host_to_device, [&](double rate) {
    hw.kernel_read *= rate / hw.host_to_device;
    hw.kernel_write *= rate / hw.device_to_host;
    hw.kernel_block_rate *= rate / hw.host_to_device;
    hw.host_to_device = hw.device_to_host = rate;
  });
}

void configure_cache(const Experiment& e, EngineConfig& engine) {
  if ((is_latent(engine.shape) || std::ranges::any_of(engine.beside, is_latent)) &&
      engine.host_layout == Layout::page_head) {
    throw InputError(e.where("cache.layout") +
                     ": page_head splits a page by heads, and an MLA model's latent has none; "
                     "take page_first or page_first_direct");
  }
  const std::string eviction(policy_text(e.text("cache.eviction")).name);
  if (std::ranges::find(hit_rate_bounds(), eviction) != hit_rate_bounds().end()) {
    throw InputError(e.where("cache.eviction") + ": " + eviction +
                     " knows the future, as only `kvtwin hitrate` does; take a policy here, see kvtwin presets");
  }
  checked_name("eviction", eviction, eviction_names(), e.where("cache.eviction"));
  if (engine.tiering == Tiering::exclusive && !make_write_policy(engine.write_policy)->writes_when_evicted()) {
    throw InputError(e.where("cache.tiering") +
                     ": exclusive is for pages that are written when they leave the device; " +
                     "set cache.write_policy to write_back, not " + e.text("cache.write_policy"));
  }
  const auto quota = static_cast<Tokens>(e.integer("cache.load_back_quota_tokens"));
  engine.load_back_quota_pages = quota == 0 ? 0 : std::max<Pages>(1, quota / engine.shape.page_tokens);
}

ModelGeometry model_of(const Experiment& e, KvDtype dtype) {
  const WeightChoice weights = *value_named<WeightChoice>(e.text("model.weights"));
  const GivenFigures given{static_cast<Bytes>(e.integer("model.kv_bytes_per_token")),
                           static_cast<Bytes>(e.integer("model.state_bytes"))};
  constexpr Bytes kMinTokenBytes = 256;  // with fewer, a GPU's memory would be a billion pages
  if (given.kv_bytes_per_token != 0 && given.kv_bytes_per_token < kMinTokenBytes) {
    throw InputError(e.where("model.kv_bytes_per_token") + ": is " + std::to_string(given.kv_bytes_per_token) +
                     ", and must be 0 or at least " + std::to_string(kMinTokenBytes));
  }
  if (e.text("model.config").empty()) {
    return with_key(e, "model.name", [&] { return model_preset(e.text("model.name"), dtype, weights, given); });
  }
  return with_key(e, "model.config",
                  [&] { return model_from_file(e.path("model.config").string(), dtype, weights, given); });
}

// Sets the cache type of DSA, which follows from the GPU: SGLang 0.5.23 takes fp8 on Blackwell and bf16 on Hopper by
// default (srt/arg_groups/overrides.py, _dsa_kv_cache_dtype_default), and fp8 on Blackwell has raw latents in SGLang
// and in vLLM 0.33.0 (v1/attention/backends/mla/flashinfer_mla_sparse.py). Returns the type, which a draft model's
// cache has too: both engines have one cache type for target and draft.
KvDtype set_sparse_cache(const Experiment& e, const HardwareSpec* hardware, KvDtype dtype, Setup& setup) {
  const bool blackwell = (hardware == nullptr ? hardware_of(e) : *hardware).peak_fp4 > 0;
  const bool by_engine = dtype == KvDtype::automatic && e.policy("scheduler.style").name == "sglang";
  KvDtype wanted = by_engine ? (blackwell ? KvDtype::fp8 : KvDtype::bf16) : dtype;
  const bool is_fp8 = wanted == KvDtype::fp8 || (wanted == KvDtype::automatic && setup.model.kv_dtype == "fp8");
  if (is_fp8 && blackwell) wanted = KvDtype::fp8_raw;
  if (wanted == dtype) return dtype;
  const std::string before = setup.model.kv_dtype;
  setup.model = model_of(e, wanted);
  if (!by_engine || setup.model.kv_dtype == before) return wanted;
  setup.notes.push_back("the KV cache is in " + setup.model.kv_dtype +
                        ", SGLang's default for sparse latent attention (DSA) on " +
                        (blackwell ? "Blackwell" : "GPUs before Blackwell") + "; model.kv_dtype sets another type");
  return wanted;
}

// Refuses a table of another GPU. A hardware file without a GPU's name takes any table, and a note says so.
void check_gpu(const Experiment& e, const char* key, const OperatorTable& table, Setup& setup) {
  if (e.flag("hardware.operators_of_another_gpu")) return;
  const std::string of_table = gpu_name(table.gpu), gpu = hardware_of(e).gpu;
  if (of_table == gpu) return;
  if (gpu.empty()) {
    setup.notes.push_back(e.where("hardware.file") + " names no GPU, so nothing says whether the times of " +
                          table.name + " are its own; if they are, add \"gpu\": \"" + of_table + "\" to it");
    return;
  }
  const std::string hardware = e.where(e.text("hardware.file").empty() ? "hardware.name" : "hardware.file");
  std::string own;
  for (const std::string& name : operators_preset_names()) {
    if (name.starts_with(gpu + "/")) own += (own.empty() ? "" : ", ") + name;
  }
  throw InputError(
      e.where(key) + ": the times of " + table.name + " were measured on " + of_table + ", and " + hardware + " is " +
      gpu + "; " +
      (own.empty() ? "there is no table of " + gpu + ": set hardware.operators to none" : "take " + own + " or none") +
      ", or set hardware.operators_of_another_gpu to true");
}

// Returns null if the experiment has no table. `read`: takes the table of a file.
const OperatorTable* operators_of(const Experiment& e, Setup& setup, OperatorTable& read) {
  const bool is_file = !e.text("hardware.operators_file").empty();
  const std::string& name = e.text("hardware.operators");
  if (!is_file && (name.empty() || name == "none")) return nullptr;
  const char* const key = is_file ? "hardware.operators_file" : "hardware.operators";
  const OperatorTable* const table = with_key(e, key, [&] {
    if (!is_file) return &operators_preset(name);
    read = operators_from_file(e.path(key).string());
    return static_cast<const OperatorTable*>(&read);
  });
  check_gpu(e, key, *table, setup);
  return table;
}

std::string percent(std::uint64_t share_x2_32) { return std::to_string((share_x2_32 * 100) >> 32) + " %"; }

constexpr const char* kWarmOrigin = "the warm part of generated traffic";
constexpr Tokens kTypicalChunk = 2048, kTypicalContext = 4096;
constexpr std::uint32_t kTypicalSequences = 32;

ForwardShape typical_decode() {
  ForwardShape decode;
  decode.decode_sequences = kTypicalSequences;
  decode.decode_context_tokens = kTypicalSequences * kTypicalContext;
  return decode;
}

// Says which share of two typical passes is measured.
std::string operators_note(const OperatorTable& table, const RooflineCost& cost) {
  ForwardShape prefill;
  prefill.prefill_tokens = kTypicalChunk;
  prefill.prefill_pairs = kTypicalChunk * (kTypicalChunk + 1) / 2;
  prefill.prefill_sequences = 1;
  std::string note = "hardware.operators: times of " + table.name + " (" + table.gpu + ", " + table.engine + ", " +
                     table.source + ", " + table.date + "); measured are " + percent(cost.measured_x2_32(prefill)) +
                     " of a prefill of " + std::to_string(kTypicalChunk) + " tokens and " +
                     percent(cost.measured_x2_32(typical_decode())) + " of a decode step of " +
                     std::to_string(kTypicalSequences) + " sequences with " + std::to_string(kTypicalContext) +
                     " tokens each; the rest is the roofline";
  const std::vector<std::string>& missing = cost.operators()->missing();
  for (std::size_t i = 0; i < missing.size(); ++i) note += (i == 0 ? "; the table lacks " : ", ") + missing[i];
  return note;
}

void configure_serving(const Experiment& e, Setup& setup) {
  const ServingEngine engine = *value_named<ServingEngine>(e.text("serving.engine"));
  if (engine == ServingEngine::none) return;
  ServingTimes& times = setup.serving;
  times = serving_times(engine);
  const auto take = [&](const char* key, std::uint64_t& value, double unit) {
    const double given = e.number(key);
    if (given >= 0) value = static_cast<std::uint64_t>(given * unit + 0.5);
  };
  take("serving.request_us", times.request_ns, 1e3);
  take("serving.token_ns", times.token_ps, 1e3);
  take("serving.schedule_us", times.schedule_ns, 1e3);
  take("serving.step_us", times.step_ns, 1e3);
  take("serving.sequence_us", times.sequence_ns, 1e3);
  take("serving.kernel_us", times.kernel_ns, 1e3);
  take("serving.launch_us", times.launch_ns, 1e3);
  times.graphs = e.flag("serving.cuda_graphs");
  times.overlap = e.flag("serving.overlap");
  setup.cost->serve_with(times, setup.model, setup.hardware);
}

void configure_draft(const Experiment& e, KvDtype dtype, Setup& setup) {
  setup.draft = read_draft(e, dtype, setup.model, setup.target, setup.engine.ranks);
  if (!setup.draft) return;
  const DraftSetup& draft = *setup.draft;
  EngineConfig& engine = setup.engine;
  engine.draft_tokens = draft.tokens;
  engine.accept_x1024 = draft.accept_x1024;
  engine.accept_without_x1024 = draft.accept_without_x1024;
  engine.draft_restored = draft.restored;
  if (draft.restored && draft.packed) engine.shape.layers += draft.shape.layers;
  if (draft.restored && !draft.packed) engine.beside.push_back(draft.shape);
  setup.cost->set_draft(draft.model, setup.hardware, setup.engine_gpus());
  setup.notes.push_back("model.draft: how many tokens a decode step yields is given, the same for every request");
  for (const std::string& sentence : draft.model.inexact) setup.notes.push_back("model.draft: " + sentence);
}

void configure_world(const Experiment& e, Setup& setup) {
  const HardwareSpec& hw = setup.hardware;
  WorldConfig& world = setup.world;
  world.ranks = setup.engine.ranks;
  world.h2d_bytes_per_second = rate(hw.host_to_device);
  world.d2h_bytes_per_second = rate(hw.device_to_host);
  if (e.flag("sim.both_ways_shared"))
    world.both_ways_bytes_per_second = rate(hw.bidirectional_factor * (hw.host_to_device + hw.device_to_host));
  if (e.flag("sim.dram_shared")) world.dram_bytes_per_second = rate(hw.dram_bandwidth);
  // If one socket has fewer accelerators than there are ranks, more sockets are used, each with a PCIe root of its own.
  const double sockets = std::ceil(setup.engine_gpus() / hw.accelerators_per_socket);
  world.root_bytes_per_second = rate(hw.pcie_root_bandwidth * sockets);
  world.disk_read_bytes_per_second = rate(hw.drive_read_bandwidth * hw.drive_count);
  world.disk_write_bytes_per_second = rate(hw.drive_write_bandwidth * hw.drive_count);
  world.nic_bytes_per_second = rate(hw.nic_bandwidth * hw.nic_count);
  if (world.network.nodes == 0) {
    world.fabric_bytes_per_second = rate(hw.pool_bandwidth);
  } else {
    world.network.node_bytes_per_second = rate(hw.pool_bandwidth / world.network.nodes);
  }
  world.shared_fs_read_bytes_per_second = rate(hw.shared_fs_read_bandwidth);
  world.shared_fs_write_bytes_per_second = rate(hw.shared_fs_write_bandwidth);
  world.cost = setup.cost.get();
}

// A style that loads before admission loads through the host, and a step must pay at least one decode.
void check_style(const Experiment& e, const Setup& setup) {
  const EngineConfig& engine = setup.engine;
  if (!make_style(engine.style, engine)->loads_before_admission()) return;
  if (setup.has_storage() && engine.path != CachePath::via_host) {
    throw InputError(e.where("cache.path") + ": is " + e.text("cache.path") + ", and " + e.where("scheduler.style") +
                     " = " + engine.style + " loads pages from the host only; set cache.path to via_host");
  }
  const Tokens least = Tokens{engine.draft_tokens} + 1;
  if (engine.chunk_tokens < least) {
    throw InputError(e.where("scheduler.chunk_tokens") + ": is " + std::to_string(engine.chunk_tokens) +
                     ", and one decode step of one request takes " + std::to_string(least) +
                     " tokens with the draft model's; make it larger");
  }
}

// Sets the number of seats, the route, and the slow rank.
void configure_seats(const Experiment& e, Setup& setup) {
  WorldConfig& world = setup.world;
  setup.route = e.text("cluster.route");
  RouterSetup& router = setup.router;
  router.engines = world.engines;
  router.groups = setup.attention_dp;
  router.group_policy = e.text("parallel.attention_route");
  router.device_pages = setup.engine.device_pages;
  router.host_pages = setup.engine.host_pages;
  router.seed = static_cast<std::uint64_t>(e.integer("seed"));
  router.page_tokens = setup.engine.shape.page_tokens;
  setup.route_view_delay = static_cast<TimeNs>(e.number("cluster.route_view_delay_s") * 1e9 + 0.5);
  world.instances = e.text("parallel.rank_model") == "instances";
  if (world.instances && setup.attention_dp > 1) {
    throw InputError(e.where("parallel.rank_model") + ": instances is of ranks that decide alike, and " +
                     e.where("parallel.attention_dp") + " is " + std::to_string(setup.attention_dp) +
                     "; set one of them back");
  }
  for (const Fault& fault : faults_of(e, "rank")) {
    const auto rank = static_cast<std::size_t>(fault.number("index"));
    if (rank >= setup.engine.ranks) {
      throw InputError(where_of(e, fault) + ": the ranks are 0 to " + std::to_string(setup.engine.ranks - 1) + " (" +
                       e.where("parallel.tp") + "); give one of them");
    }
    if (!world.instances) continue;  // make_simulated_world() refuses this; in a real run, the device is slow
    world.slower.resize(setup.engine.ranks, 1.0);
    world.slower[rank] = fault.decimal("factor");
  }
}

}  // namespace

HardwareSpec hardware_of(const Experiment& e) {
  if (e.text("hardware.file").empty()) {
    return with_key(e, "hardware.name", [&] { return hardware_preset(e.text("hardware.name")); });
  }
  return with_key(e, "hardware.file", [&] { return hardware_from_file(e.path("hardware.file").string()); });
}

std::string without_intervals(const HardwareSpec& hardware) {
  return "no figure of " + hardware.name +
         " has an interval; take a file of kvtwin calibrate (hardware.file), or set hardware.spread_percent to what "
         "they "
         "may be off";
}

EngineConfig Setup::engine_of(std::size_t seat) const {
  EngineConfig own = is_decode_engine(seat) ? decode->engine : engine;
  if (!rank_spaces.empty()) own.storage_space = rank_spaces[rank + seat];
  return own;
}

namespace {

// Errors: InputError that names the key.
PriceList own_prices(const Experiment& e) {
  try {
    return PriceList::from_file(e.path("prices.file"));
  } catch (const std::exception& error) {
    throw InputError(e.where("prices.file") + ": " + error.what());
  }
}

// The built-in list may lack a part without an error, because nobody asked for prices.
std::optional<Bill> bill_for(const Experiment& e, const Setup& setup) {
  if (e.text("prices.file").empty()) {
    try {
      return bill_of(setup, PriceList::built_in());
    } catch (const InputError&) {
      return std::nullopt;
    }
  }
  std::optional<Bill> bill = bill_of(setup, own_prices(e));
  if (!bill) {
    throw InputError(e.where("prices.file") + ": has no price for " + setup.hardware.name +
                     "; add hour or price to [gpu." + std::filesystem::path(setup.hardware.name).stem().string() + "]");
  }
  return bill;
}

}  // namespace

std::uint32_t objects_of(const Experiment& experiment, const KvShape& part) {
  if (part.layers == 0) return 0;
  if (experiment.text("cache.layout") == name_of(Layout::layer_first)) return part.layers * part.planes;
  return experiment.flag("cache.split_kv") ? part.planes : 1;
}

namespace {

// The decode engines, and what both roles know of each other.
void configure_roles(const Experiment& e, const HardwareSpec* hardware, Setup& setup) {
  setup.decode =
      std::make_unique<Setup>(make_setup(decode_experiment(e, static_cast<std::uint32_t>(total_engines(e))), hardware));
  Setup& decode = *setup.decode;
  const KvShape& from = setup.engine.shape;
  const KvShape& to = decode.engine.shape;
  const std::string where = e.where("cluster.decode_set");
  if (from.page_tokens != to.page_tokens || from.layers != to.layers || from.planes != to.planes ||
      from.head_bytes != to.head_bytes) {
    throw InputError(where + ": the decode engines' pages are not the prefill engines'; " +
                     "cache.page_tokens, model.* and model.kv_dtype must be the same");
  }
  if (setup.world.nic_bytes_per_second == 0 || decode.world.nic_bytes_per_second == 0) {
    throw InputError(e.where("cluster.prefill") + ": a hand-over crosses a network, and " + setup.hardware.name +
                     " has no NIC; take other hardware (hardware.name), or set it to 0");
  }
  HandOverConfig terms;
  const std::string& unit = e.text("cluster.hand_over");
  for (const HandOverUnit each : {HandOverUnit::whole, HandOverUnit::chunks, HandOverUnit::layers}) {
    if (unit == name_of(each)) terms.unit = each;
  }
  terms.staged = e.flag("cluster.hand_over_staged");
  const auto layout = [&](const EngineConfig& of) { return terms.staged ? of.host_layout : Layout::layer_first; };
  terms.from = {from, setup.engine.ranks, layout(setup.engine)};
  terms.to = {to, decode.engine.ranks, layout(decode.engine)};
  terms.reuse = e.flag("cluster.decode_reuse");
  terms.cache = e.flag("cluster.decode_cache");
  setup.engine.hand_over = decode.engine.hand_over = terms;
  setup.engine.hand_over.role = EngineRole::prefill;
  decode.engine.hand_over.role = EngineRole::decode;

  setup.world.notice_ns = static_cast<TimeNs>(e.number("sim.notice_us") * 1e3 + 0.5);
  setup.world.prefill_engines = static_cast<std::uint32_t>(setup.roles.prefill);
  decode.world.notice_ns = setup.world.notice_ns;
  decode.world.prefill_engines = setup.world.prefill_engines;
  decode.world.seed = setup.world.seed;
  setup.world.decode = &decode.world;

  const std::size_t engines = setup.roles.decode.engines;
  setup.roles.decode = setup.router;
  setup.roles.decode.engines = engines;
  setup.roles.decode.groups = decode.attention_dp;
  setup.roles.decode.group_policy = decode.router.group_policy;
  setup.roles.decode.device_pages = decode.engine.device_pages;
  setup.router.engines = setup.roles.prefill;
  setup.roles.decode_policy = e.text("cluster.decode_route");
  setup.roles.min_tokens = static_cast<Tokens>(e.integer("cluster.hand_over_min_tokens"));
}

}  // namespace

std::int64_t total_engines(const Experiment& e) {
  const std::int64_t with_roles = e.integer("cluster.prefill") + decode_engines(e);
  return with_roles == 0 ? e.integer("cluster.engines") : with_roles;
}

Setup make_setup(const Experiment& e, const HardwareSpec* hardware) {
  Setup setup;
  e.apply_keys({setup.engine, setup.world});
  setup.host_memory_bytes = e.number("tiers.host.memory_gib") * 1073741824.0;
  count_engines(e, setup);
  KvDtype dtype = with_key(e, "model.kv_dtype", [&] { return kv_dtype_from_name(e.text("model.kv_dtype")); });
  setup.model = model_of(e, dtype);
  if (setup.model.latent_rank != 0 && setup.model.index_topk != 0) dtype = set_sparse_cache(e, hardware, dtype, setup);
  if (!e.flag("cache.hybrid_allocator") && !setup.model.page_windows()) {
    setup.notes.push_back("cache.hybrid_allocator = false has no effect: " + setup.model.name +
                          " has not both full layers and layers with a sliding window");
  }
  const bool by_sglang = e.policy("scheduler.style").name == "sglang";
  if (by_sglang && sglang_keeps_whole_windows(setup.model, has_tier(e, Tier::host)) && setup.model.page_windows()) {
    setup.notes.push_back("SGLang has no pool for windows for " + setup.model.name +
                          ", so that its layers with a sliding window keep the KV of all tokens");
  }
  setup.hardware = hardware == nullptr ? hardware_of(e) : *hardware;
  if (hardware == nullptr && e.text("hardware.file").empty() && setup.hardware.name != e.text("hardware.name")) {
    setup.notes.push_back(e.where("hardware.name") + ": " + e.text("hardware.name") +
                          " is an alias; the preset is named " + setup.hardware.name);
  }
  override_hardware(e, setup);
  draw_hardware(e, setup);  // after the overrides: a figure that a key sets is as uncertain as the original
  setup.hardware.file_a_page = e.text("tiers.disk.format") == "hicache_files";
  const auto tp = static_cast<std::uint32_t>(e.integer("parallel.tp"));
  const auto ep = static_cast<std::uint32_t>(e.integer("parallel.ep"));
  if (tp % ep != 0) {
    throw InputError(e.where("parallel.ep") + ": is " + std::to_string(ep) + ", and must divide " +
                     e.where("parallel.tp") + " (" + std::to_string(tp) + ")");
  }
  const std::uint32_t group = tp / setup.attention_dp;
  const std::uint32_t page = page_of(e, group, setup);
  setup.cost = std::make_unique<RooflineCost>(setup.model, setup.hardware, tp, setup.attention_dp);
  OperatorTable read;
  if (const OperatorTable* const operators = operators_of(e, setup, read)) {
    const std::string& mode = e.text("parallel.expert_mode");
    setup.cost->measure_with(*operators, setup.model, setup.hardware, tp, ep, mode == "fused" ? "moe" : "moe_" + mode);
    setup.notes.push_back(operators_note(*operators, *setup.cost));
  }
  if (const EngineWord word = engine_word(e.text(kEngineKey), e.where(kEngineKey));
      word.release == nullptr && !word.version.empty()) {
    setup.notes.push_back(e.where(kEngineKey) + ": the rules of " + std::string(name_of(word.engine)) +
                          " are the same for all its releases here");
  }
  if (setup.attention_dp > 1) {
    const auto part = [&](const char* key, std::uint64_t whole) {
      if (whole >= setup.attention_dp) return whole / setup.attention_dp;
      throw InputError(e.where(key) + ": is " + std::to_string(whole) + ", fewer than the " +
                       std::to_string(setup.attention_dp) + " groups of " + e.where("parallel.attention_dp") +
                       " that share it; make it larger");
    };
    setup.engine.chunk_tokens = part("scheduler.chunk_tokens", setup.engine.chunk_tokens);
    setup.engine.max_running =
        static_cast<decltype(setup.engine.max_running)>(part("scheduler.max_running", setup.engine.max_running));
    setup.engine.burst_steps = 1;  // the groups step together
    setup.notes.push_back("parallel.attention_dp: each of the " + std::to_string(setup.attention_dp) +
                          " groups has a prefix cache of its own, and counts as an engine in the report; requests are "
                          "dealt out by parallel.attention_route = " +
                          e.text("parallel.attention_route"));
  }
  configure_serving(e, setup);
  setup.engine.shape = setup.target = setup.model.shape(group, page);
  setup.engine.ranks = group;
  configure_draft(e, dtype, setup);
  configure_cache(e, setup.engine);
  setup.engine.planner = planner_limits(setup.hardware);
  size_tiers(e, setup);
  configure_seats(e, setup);
  configure_storage(e, setup);
  keep_pools(e, setup);
  read_faults(e, setup.world);
  check_style(e, setup);
  price(setup);
  configure_world(e, setup);
  if (setup.roles.prefill > 0) configure_roles(e, hardware, setup);
  configure_deaths(e, setup);
  setup.bill = bill_for(e, setup);
  for (const ExperimentKey& key : experiment_keys()) {
    if (!key.policy) continue;
    for (const std::string& note : e.policy(key.name).notes) {
      setup.notes.push_back(std::string(key.name) + " = " + e.text(key.name) + " " + note);
    }
  }
  setup.notes.insert(setup.notes.begin(), setup.model.notes.begin(), setup.model.notes.end());
  setup.notes.insert(setup.notes.begin(), setup.model.inexact.begin(), setup.model.inexact.end());
  if (setup.engine.pools.empty() && setup.engine.block_groups.groups.empty()) {
    setup.notes.insert(setup.notes.begin(), setup.model.without_pages.begin(), setup.model.without_pages.end());
  }
  setup.notes.insert(setup.notes.end(), e.notes().begin(), e.notes().end());
  if (setup.decode != nullptr) {
    const std::vector<std::string> ours = setup.notes;
    for (const std::string& note : setup.decode->notes) {
      if (std::ranges::find(ours, note) == ours.end()) setup.notes.push_back("decode engines: " + note);
    }
  }
  return setup;
}

std::unique_ptr<World> make_simulated_world(const Experiment& e, const Setup& setup) {
  refuse_faults_of_runs(e);
  if (const std::vector<Fault> slow = faults_of(e, "rank"); !slow.empty() && !setup.world.instances) {
    throw InputError(where_of(e, slow.front()) +
                     ": in lockstep all ranks move alike; set parallel.rank_model to instances, or leave this out");
  }
  if (setup.world.instances && setup.decode != nullptr) {
    throw InputError(e.where("parallel.rank_model") +
                     ": simulated engines with roles (cluster.prefill) move their ranks in lockstep; set it to "
                     "lockstep");
  }
  if (setup.world.instances && setup.world.engines > 1) {
    throw InputError(e.where("parallel.rank_model") + ": instances is of one engine's ranks, and " +
                     e.where("cluster.engines") + " is " + std::to_string(setup.world.engines) +
                     "; set one of them back");
  }
  std::unique_ptr<World> world =
      e.text("sim.world") == "events" ? make_event_world(setup.world) : make_simgrid_world(setup.world);
  if (world == nullptr) {
    throw InputError(e.where("sim.world") +
                     ": this build is without SimGrid; build the preset release or sim, or take --world events");
  }
  return world;
}

namespace {

// Returns the content of workload.salt_file without trailing line ends; empty if the key is empty. Errors: InputError.
std::string page_salt(const Experiment& e) {
  constexpr std::size_t kMinBytes = 16, kMaxBytes = 4096;
  if (e.text("workload.salt_file").empty()) return {};
  const std::filesystem::path path = e.path("workload.salt_file");
  const std::string where = e.where("workload.salt_file") + ": " + path.string();
  std::error_code error;
  std::ifstream in;
  if (std::filesystem::is_regular_file(path, error)) in.open(path, std::ios::binary);
  if (!in.is_open()) throw InputError(where + ": is no file that can be read; give one with a secret of your own");
  std::string salt(kMaxBytes + 2, '\0');
  in.read(salt.data(), static_cast<std::streamsize>(salt.size()));
  salt.resize(static_cast<std::size_t>(in.gcount()));
  while (salt.ends_with('\n') || salt.ends_with('\r')) salt.pop_back();
  if (salt.size() < kMinBytes || salt.size() > kMaxBytes) {
    throw InputError(where + ": holds " + (salt.size() > kMaxBytes ? "more than 4096" : std::to_string(salt.size())) +
                     " bytes; a salt has from 16 to 4096, say what head -c 32 /dev/urandom | base64 prints");
  }
  return salt;
}

// The keys give rate and working set in tokens, so both stay the same for prompts of another length.
std::unique_ptr<TraceSource> returning_workload(const Experiment& e) {
  ReturningConfig config;
  config.seed = static_cast<std::uint64_t>(e.integer("seed"));
  config.prompt_tokens = static_cast<Tokens>(e.integer("workload.generate.prompt_tokens"));
  config.question_tokens = static_cast<Tokens>(e.integer("workload.generate.question_tokens"));
  config.output_tokens = static_cast<Tokens>(e.integer("workload.generate.output_tokens"));
  if (config.question_tokens >= config.prompt_tokens) {
    throw InputError(e.where("workload.generate.question_tokens") + ": is " + std::to_string(config.question_tokens) +
                     ", and a prompt has " + std::to_string(config.prompt_tokens) + " tokens (" +
                     e.where("workload.generate.prompt_tokens") + "); make it smaller than that");
  }
  const auto working_set = static_cast<std::uint64_t>(e.integer("workload.generate.working_set_tokens"));
  config.contexts = std::max<std::uint64_t>(1, working_set / config.prompt_tokens);
  if (config.contexts > ReturningGenerator::kMaxContexts) {
    throw InputError(e.where("workload.generate.working_set_tokens") + ": is " + std::to_string(working_set) +
                     ", which is " + std::to_string(config.contexts) + " contexts of " +
                     std::to_string(config.prompt_tokens) + " tokens (" + e.where("workload.generate.prompt_tokens") +
                     "); it must be at most " + std::to_string(ReturningGenerator::kMaxContexts) + " of them");
  }
  const double prompt = static_cast<double>(config.prompt_tokens);
  config.requests_per_second = e.number("workload.generate.prompt_tokens_per_second") / prompt;
  if (!(config.requests_per_second >= 1e-6 && config.requests_per_second <= 1e6)) {
    throw InputError(e.where("workload.generate.prompt_tokens_per_second") + ": prompts of " +
                     std::to_string(config.prompt_tokens) + " tokens (" + e.where("workload.generate.prompt_tokens") +
                     ") must arrive at 0.000001 to 1000000 a second");
  }
  config.at_once = static_cast<std::uint64_t>(e.integer("workload.generate.at_once"));
  config.requests = static_cast<std::uint64_t>(e.integer("workload.generate.requests"));
  if (config.requests == 0) {
    const double visits = static_cast<double>(config.contexts) * e.number("workload.generate.visits");
    config.requests = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(visits + 0.5));
  }
  return std::make_unique<ReturningGenerator>(config);
}

std::unique_ptr<TraceSource> groups_workload(const Experiment& e) {
  const auto figure = [&](const char* key) {
    return static_cast<std::uint64_t>(e.integer(std::string("workload.generate.") + key));
  };
  GroupsConfig config;
  config.seed = static_cast<std::uint64_t>(e.integer("seed"));
  config.groups = figure("groups");
  config.prompts_per_group = figure("prompts_per_group");
  config.prefix_tokens = figure("prefix_tokens");
  config.question_tokens = figure("question_tokens");
  config.output_tokens = figure("output_tokens");
  config.requests = figure("requests");
  config.range_ratio = e.number("workload.generate.range_ratio");
  config.requests_per_second = e.number("workload.generate.requests_per_second");
  config.clients = figure("concurrency");
  if (config.clients != 0 && e.text("workload.loop") != "closed") {
    throw InputError(e.where("workload.generate.concurrency") +
                     ": clients wait for their answers in a closed loop only, and " + e.where("workload.loop") +
                     " is " + e.text("workload.loop") + "; set that to closed, or this to 0");
  }
  return std::make_unique<GroupsGenerator>(config);
}

TimeNs generated_duration(const Experiment& e) {
  const bool counted = e.integer("workload.generate.requests") != 0;
  const TimeNs duration = counted ? 0 : static_cast<TimeNs>(e.number("workload.generate.duration_s") * 1e9 + 0.5);
  if (!counted && duration == 0 && e.integer("workload.limit") == 0) {
    throw InputError(e.where("workload.generate.duration_s") +
                     ": is 0, as workload.generate.requests is: that is traffic without an end; set one of them");
  }
  return duration;
}

std::unique_ptr<TraceSource> trace_workload(const Experiment& e, Tokens block) {
  TraceOptions options;
  options.format = e.text("workload.format");
  options.block_tokens = block;
  options.shared_tokens = static_cast<Tokens>(e.integer("workload.shared_tokens"));
  options.session_gap_seconds = e.number("workload.session_gap_s");
  options.seed = static_cast<std::uint64_t>(e.integer("seed"));
  options.salt = page_salt(e);
  try {
    return std::make_unique<TraceReader>(e.path("workload.trace").string(), options);
  } catch (const TraceError& error) {
    throw InputError(e.where("workload.trace") + ": " + error.what());
  }
}

std::unique_ptr<TraceSource> generated_workload(const Experiment& e, Tokens block, const TrafficLength& length) {
  if (block != 0 && block != 512)
    throw InputError(e.where("workload.block_tokens") + ": generated traces have blocks of their own; leave it out");
  const std::string& kind = e.text("workload.generate.kind");
  if (kind == "returning") return returning_workload(e);
  if (kind == "groups") return groups_workload(e);
  if (kind == "sessions") {
    SessionsConfig config = sessions_config(e);
    config.requests = length.requests;
    config.duration = length.duration;
    return std::make_unique<SessionsGenerator>(config);
  }
  const auto seed = static_cast<std::uint64_t>(e.integer("seed"));
  return generated_traffic(kind, seed, length.requests, length.duration,
                           e.number("workload.generate.sessions_per_second"),
                           e.number("workload.generate.requests_per_second"));
}

// `length`: of chat, agentic, tools and sessions; 0 and 0: without an end.
std::unique_ptr<TraceSource> full_size_workload(const Experiment& e, const TrafficLength& length) {
  const auto block = static_cast<Tokens>(e.integer("workload.block_tokens"));
  if (!e.text("workload.trace").empty()) return trace_workload(e, block);
  try {
    return generated_workload(e, block, length);
  } catch (const FigureError& error) {
    throw InputError(e.where("workload.generate." + error.figure()) + ": " + error.range());
  }
}

}  // namespace

Tokens context_max_of(const Experiment& e) {
  const auto given = static_cast<Tokens>(e.integer("workload.generate.context_max_tokens"));
  return given != 0 ? given : model_of(e, KvDtype::automatic).context_tokens;
}

std::string assumed_traffic(const Experiment& e) {
  if (!e.text("workload.trace").empty() || e.text("workload.generate.kind") != "sessions") return "";
  std::string text;
  const auto add = [&](const std::string& words) { text += (text.empty() ? "" : ", ") + words; };
  const std::string generate = "workload.generate.";
  if (e.integer(generate + "context_max_tokens") == 0) {
    const Tokens longest = context_max_of(e);
    const std::string model = e.text("model.config").empty() ? e.text("model.name") : e.text("model.config");
    add("context_max_tokens = " + (longest == 0 ? "none, as the longest context of " + model + " is not known"
                                                : std::to_string(longest) + " (the longest context of " + model + ")"));
  }
  const bool follow_ups =
      e.integer(generate + "users") != 0 || e.integer(generate + "turns_most") > 1 || e.number(generate + "turns") > 1;
  for (const char* key : {"length_spread", "think_spread"}) {
    if (key == std::string_view("think_spread") && !follow_ups) continue;
    if (!e.is_given(generate + key)) add(std::string(key) + " = " + e.as_toml(generate + key));
  }
  const bool ends = e.integer(generate + "requests") != 0 || e.integer("workload.limit") != 0;
  if (!ends && !e.is_given(generate + "duration_s")) add("duration_s = " + e.as_toml(generate + "duration_s"));
  return text.empty() ? "" : "not given for the conversations, so workload.generate." + text;
}

SessionsConfig sessions_config(const Experiment& e) {
  const std::string generate = "workload.generate.";
  const bool users = e.integer(generate + "users") != 0, ranged = e.integer(generate + "turns_most") != 0;
  for (const std::string_view key :
       {"requests_per_second", "prompt_tokens", "output_tokens", "turns", "prefix_tokens", "think_s"}) {
    bool needed = true;
    if (key == "think_s") needed = users || ranged || e.number(generate + "turns") > 1;
    if (key == "requests_per_second") needed = !users;
    if (key == "turns") needed = !ranged;
    if (key == "prompt_tokens") needed = e.integer(generate + "new_tokens") == 0;
    if (needed && !e.is_given(generate + std::string(key))) {
      throw InputError(e.where(generate + "kind") + ": sessions need averages of your traffic, and " + generate +
                       std::string(key) + " is not given; set that");
    }
  }
  const std::int64_t least = e.integer(generate + "turns_least"), most = e.integer(generate + "turns_most");
  if (least > most && e.is_given(generate + "turns_least")) {
    throw InputError(e.where(generate + "turns_least") + ": is " + std::to_string(least) + ", and " +
                     e.where(generate + "turns_most") + " is " + std::to_string(most) + "; set that to " +
                     std::to_string(least) + " or more");
  }
  if (users && e.text("workload.loop") != "closed") {
    throw InputError(e.where(generate + "users") + ": users wait for their answers in a closed loop only, and " +
                     e.where("workload.loop") + " is " + e.text("workload.loop") +
                     "; set that to closed, or this to 0");
  }
  const auto refuse_both = [&](const std::string& one, const std::string& other, const char* why) {
    if (!e.is_given(generate + other)) return;
    // experiment.resolved.toml of a run lists every key, also at its default.
    const auto key = std::ranges::find(experiment_keys(), generate + other, &ExperimentKey::name);
    if (e.is_from_file(key->name) && e.value(key->name) == key->fallback) return;
    throw InputError(e.where(generate + other) + ": " + e.where(generate + one) + " is given too, and " + why +
                     "; leave one of them out");
  };
  if (users)
    refuse_both("users", "requests_per_second", "the users set the rate, by their think times and the answers");
  if (ranged) refuse_both("turns_most", "turns", "a range of turns has its own mean");
  if (e.integer(generate + "new_tokens") != 0) {
    refuse_both("new_tokens", "prompt_tokens", "the mean prompt follows from the new tokens");
  }
  const auto tokens = [&](const char* key) { return static_cast<Tokens>(e.integer(generate + key)); };
  SessionsConfig config;
  config.seed = static_cast<std::uint64_t>(e.integer("seed"));
  config.users = static_cast<std::uint64_t>(e.integer(generate + "users"));
  config.start_spread_s = e.number(generate + "start_spread_s");
  config.requests_per_second = e.number(generate + "requests_per_second");
  config.new_tokens = tokens("new_tokens");
  config.turns_least = static_cast<std::uint64_t>(e.integer(generate + "turns_least"));
  config.turns_most = static_cast<std::uint64_t>(e.integer(generate + "turns_most"));
  if (const Tokens longest = context_max_of(e); longest != 0) config.context_max = longest;
  config.prompt_tokens = tokens("prompt_tokens");
  config.output_tokens = tokens("output_tokens");
  config.turns = e.number(generate + "turns");
  config.think_s = e.number(generate + "think_s");
  config.service_s = e.number("workload.service_s");
  config.prefix_tokens = tokens("prefix_tokens");
  config.length_spread = e.number(generate + "length_spread");
  config.think_spread = e.number(generate + "think_spread");
  if (config.context_max < config.prefix_tokens + 2) {
    throw InputError(e.where(generate + "prefix_tokens") + ": is " + std::to_string(config.prefix_tokens) +
                     ", and a conversation may have " + std::to_string(config.context_max) + " tokens (" +
                     e.where(generate + "context_max_tokens") + "); must be at least 2 less");
  }
  try {
    config.check();
  } catch (const FigureError& error) {
    throw InputError(e.where(generate + error.figure()) + ": " + error.range());
  }
  return config;
}

namespace {

std::unique_ptr<TraceSource> workload_of(const Experiment& e, const TrafficLength& length) {
  std::unique_ptr<TraceSource> full_size = full_size_workload(e, length);
  const auto factor = static_cast<Tokens>(e.integer("workload.shrink"));
  if (factor == 1) return full_size;
  if (full_size->block_tokens() % factor != 0) {
    throw InputError(e.where("workload.shrink") + ": is " + std::to_string(factor) + ", which doesn't divide " +
                     std::to_string(full_size->block_tokens()) + ", the tokens of a block; take a divisor");
  }
  return std::make_unique<ShrunkTrace>(std::move(full_size), factor);
}

TrafficLength given_length(const Experiment& e) {
  return {static_cast<std::uint64_t>(e.integer("workload.generate.requests")), generated_duration(e)};
}

}  // namespace

std::unique_ptr<TraceSource> open_workload(const Experiment& e) {
  const bool generated = e.text("workload.trace").empty();
  return workload_of(e, generated ? given_length(e) : TrafficLength{});
}

std::optional<TrafficLength> steady_traffic(const Experiment& e) {
  if (!e.text("workload.trace").empty() || e.integer("workload.limit") != 0) return std::nullopt;
  const std::string& kind = e.text("workload.generate.kind");
  if (kind == "returning" || kind == "groups") return std::nullopt;
  return given_length(e);
}

std::optional<double> measured_decode_share(const Setup& setup) {
  if (setup.cost->operators() == nullptr) return std::nullopt;
  return static_cast<double>(setup.cost->measured_x2_32(typical_decode())) / 4294967296.0;
}

std::optional<double> confirming_duration_s(const Experiment& e) {
  if (!e.where("workload.generate.duration_s").ends_with(std::string("(") + kWarmOrigin + ")")) return std::nullopt;
  constexpr double kConversations = 3, kSecondsPerToken = 0.03;
  const double turn = e.number("workload.generate.think_s") +
                      kSecondsPerToken * static_cast<double>(e.integer("workload.generate.output_tokens"));
  const double seconds = std::ceil(kConversations * sessions_config(e).mean_turns() * turn);
  return seconds > e.number("workload.generate.duration_s") ? std::optional(seconds) : std::nullopt;
}

std::unique_ptr<TraceSource> open_endless_workload(const Experiment& e) { return workload_of(e, {}); }

void measure_warm(Experiment& e) {
  if (e.is_given("report.warm") || e.integer("workload.warmup_requests") != 0 || !steady_traffic(e)) return;
  e.set("report.warm=true", kWarmOrigin);
  // Traffic that is not steady after this grows up to GrowingSource::kMostTimes of it.
  const std::string& kind = e.text("workload.generate.kind");
  const bool has_length = e.is_given("workload.generate.duration_s") || e.integer("workload.generate.requests") != 0;
  if (has_length || kind != "sessions") return;
  constexpr double kThinkTimes = 30, kLeastSeconds = 600;
  const double seconds = std::max(kLeastSeconds, kThinkTimes * e.number("workload.generate.think_s"));
  if (seconds >= e.number("workload.generate.duration_s")) return;
  e.set(formatted("workload.generate.duration_s=%.0f", seconds), kWarmOrigin);
}

bool seed_changes_work(const Experiment& e) {
  if (!faults_of(e, "stall").empty() || e.text("workload.trace").empty()) return true;
  TraceOptions options;
  options.format = checked_name("format", e.text("workload.format"), trace_format_names(), e.where("workload.format"));
  return TraceReader(e.path("workload.trace").string(), options).format() == "agentic";
}

bool has_tier(const Experiment& e, Tier tier) {
  const std::string prefix = "tiers." + std::string(name_of(tier));
  return e.integer(prefix + ".tokens") != 0 || e.number(prefix + ".gib") != 0 ||
         (tier == Tier::host && e.number("tiers.host.ratio") != 0);
}

TraceInputOptions input_options(const Experiment& e) {
  return input_options(e, static_cast<Tokens>(e.integer("cache.page_tokens")));
}

TraceInputOptions input_options(const Experiment& e, Tokens page_tokens) {
  TraceInputOptions options;
  options.page_tokens = page_tokens;
  try {  // for example more digits than it keeps
    options.time_scale = time_scale_of(e.number("workload.time_scale"));
  } catch (const TraceError& error) {
    throw InputError(e.where("workload.time_scale") + ": " + error.what());
  }
  options.limit = static_cast<std::uint64_t>(e.integer("workload.limit"));
  options.salt = page_salt(e);
  return options;
}

namespace {

// Returns the stages in which clients send the requests; none if no client does.
std::vector<ClientStage> client_stages(const Experiment& e) {
  std::vector<ClientStage> stages;
  for (const WorkloadStage& stage : stages_of(e)) stages.push_back({stage.clients, stage.requests});
  const auto clients = static_cast<std::uint64_t>(e.integer("workload.generate.concurrency"));
  const bool generated = e.text("workload.trace").empty() && e.text("workload.generate.kind") == "groups";
  if (stages.empty() && generated && clients != 0) stages.push_back({clients, 0});
  return stages;
}

}  // namespace

WorkloadInputs::WorkloadInputs(const Experiment& e, Tokens page_tokens, TraceSource& workload,
                               const ServingTimes& serving) {
  const auto set = [&](std::unique_ptr<AnsweredSource> source) {
    source->add_front_end([serving](Tokens prompt) { return front_end_ns(serving, prompt); });
    answered_ = source.get();
    source_ = std::move(source);
  };
  ClientsConfig clients;
  clients.stages = client_stages(e);
  if (!clients.stages.empty()) {
    clients.seed = static_cast<std::uint64_t>(e.integer("seed"));
    clients.start_spread_ns = nanoseconds(e, "workload.generate.start_spread_s");
    clients.think_ns = nanoseconds(e, "workload.generate.think_s");
    set(std::make_unique<ClientSource>(workload, input_options(e, page_tokens), std::move(clients)));
  } else if (e.text("workload.loop") == "closed") {
    set(std::make_unique<ClosedLoopSource>(workload, input_options(e, page_tokens),
                                           nanoseconds(e, "workload.service_s")));
  } else {
    source_ = std::make_unique<TraceInputSource>(workload, input_options(e, page_tokens));
  }
}

Observer* WorkloadInputs::observer(Observer* observer) {
  if (answered_ == nullptr) return observer;
  answered_->pass_events_to(observer);
  return answered_;
}

}  // namespace kvtwin

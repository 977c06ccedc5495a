// Whether the rules of vLLM's offloading decide what moves between the device and the tiers below (cache.offload), and
// the size of its host tier in chunks.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>

#include "lab/error.hpp"
#include "lab/experiment/keys.hpp"
#include "lab/experiment/setup_parts.hpp"
#include "lab/names.hpp"
#include "models/engine_pools.hpp"
#include "policy/base/names.hpp"
#include "policy/base/tiers.hpp"

namespace kvtwin {
namespace {

bool has_storage_tier(const Experiment& e) {
  return std::ranges::any_of(kStorageSpecs, [&](const TierSpec& spec) { return has_tier(e, spec.tier); });
}

// Returns what vLLM's offloading is not built for; empty if it can decide. Requires: there is a host tier.
std::string not_built_for(const Experiment& e, const Setup& setup) {
  const auto key = [&](const char* name) { return e.where(name) + " = " + e.text(name); };
  if (e.policy("scheduler.style").name != "vllm") return key("scheduler.style");
  if (e.policy("cache.eviction").name != "lru") return key("cache.eviction");
  if (e.text("model.draft.kind") != "none") return key("model.draft.kind");
  if (setup.has_role || e.integer("cluster.prefill") > 0) return "engines with roles (cluster.prefill)";
  if (!has_several_pools(setup.model)) return "";
  if (has_storage_tier(e)) return "storage tiers below the windows or states of " + setup.model.name;
  if (!has_block_pool(setup.model)) return "the kinds of KV of " + setup.model.name;
  return "";
}

constexpr const char* kDecidedByVllm = "vLLM's offloading decides what moves between the tiers";

// Notes the keys that have another value than their default, which a recorded experiment gives too.
void note_idle(std::initializer_list<const char*> keys, const char* why, const Experiment& e, Setup& setup) {
  for (const char* key : keys) {
    const auto known = std::ranges::find(experiment_keys(), key, &ExperimentKey::name);
    if (!e.is_given(key) || e.value(key) == known->fallback || e.origin(key).starts_with("as vLLM")) continue;
    setup.notes.push_back(e.where(key) + " has no effect: " + why);
  }
}

void configure_further_tiers(const Experiment& e, Setup& setup) {
  EngineConfig& engine = setup.engine;
  if (engine.block_offload.host.store_threshold > 1) {
    throw InputError(e.where("cache.offload_threshold") + ": is " +
                     std::to_string(engine.block_offload.host.store_threshold) +
                     ", which vLLM refuses with tiers below the host; set it to 0, or leave the storage tiers out");
  }
  engine.block_offload.pressure = value_named<PressureAction>(e.text("cache.offload_backpressure"));
  engine.storage_write_share = 1024 * static_cast<std::uint32_t>(kStorageTiers);  // what is copied has its slot
  engine.storage_backlog = StorageBacklog::drop;
  note_idle(
      {"cache.prefetch_policy", "cache.prefetch_admission", "cache.prefetch_min_tokens", "cache.prefetch_retry_steps",
       "cache.prefetch_attempts", "cache.storage_write_share", "cache.storage_backlog", "cache.host_clean_reserve"},
      kDecidedByVllm, e, setup);
}

}  // namespace

bool has_blocks(const Experiment& e, const Setup& setup) {
  return e.policy("scheduler.style").name == "vllm" && has_block_pool(setup.model) &&
         e.text("model.draft.kind") == "none";
}

bool decides_by_blocks(const Experiment& e, const Setup& setup) {
  return has_blocks(e, setup) && !setup.has_role && !has_storage_tier(e);
}

bool offloads_pages(const Experiment& e, Setup& setup) {
  if (!has_tier(e, Tier::host) || setup.has_blocks()) return false;
  if (e.text("cache.offload") != "vllm") {
    note_idle({"cache.offload_eviction", "cache.offload_threshold", "cache.offload_prompt_only",
               "cache.offload_backpressure"},
              "it is read for cache.offload = vllm", e, setup);
    return false;
  }
  const std::string other = not_built_for(e, setup);
  if (other.empty()) return true;
  const std::string sentence = e.where("cache.offload") + ": the rules of vLLM's offloading are not built for " + other;
  if (e.is_given("cache.offload")) throw InputError(sentence + "; set cache.offload to hicache, or leave that out");
  setup.notes.push_back(sentence + "; pages move by SGLang's (cache.offload = hicache)");
  return false;
}

void fill_pages_as_blocks(Setup& setup) {
  EngineConfig& engine = setup.engine;
  engine.block_groups.blocks = static_cast<std::uint32_t>(engine.device_pages + 1);  // with the null block
  engine.block_groups.groups = {{Closure::path, 0, 1}};
  engine.state_points = "align";
}

// As vLLM's CPUOffloadingSpec. Each chunk is one block of all ranks.
void fill_host_chunks(const Experiment& e, double ratio, Setup& setup) {
  constexpr Bytes kAlignment = 4096;  // SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT
  constexpr double kMostChunks = 4e9;
  EngineConfig& engine = setup.engine;
  BlockPool pool;
  if (setup.block_pool) {
    pool = *setup.block_pool;
  } else {
    pool.blocks = engine.block_groups.blocks;
    pool.block_bytes = engine.page_bytes();
    pool.block_tokens = pool.page_tokens = engine.shape.page_tokens;
    pool.full_groups = 1;
  }
  const double gib = e.number("tiers.host.gib") / setup.attention_dp;
  const auto tokens = static_cast<double>(e.integer("tiers.host.tokens")) / setup.attention_dp;
  const Bytes chunk_bytes = (pool.block_bytes * engine.ranks + kAlignment - 1) / kAlignment * kAlignment;
  const double groups = static_cast<double>(std::max<std::uint64_t>(pool.full_groups, 1));
  const double chunks = std::floor(
      ratio != 0 ? static_cast<double>(pool.blocks) * ratio
      : gib != 0 ? gib * kGib / static_cast<double>(chunk_bytes)
                 : std::floor(tokens / static_cast<double>(std::max<Tokens>(pool.block_tokens, 1))) * groups);
  if (chunks < 1 || chunks > kMostChunks) {
    throw InputError(e.where(ratio != 0 ? "tiers.host.ratio"
                             : gib != 0 ? "tiers.host.gib"
                                        : "tiers.host.tokens") +
                     ": the host tier holds " + (chunks < 1 ? "less than a chunk" : "more than 4 billion chunks") +
                     " of " + std::to_string(chunk_bytes) + " bytes; make it " + (chunks < 1 ? "larger" : "smaller"));
  }
  BlockOffloadConfig& config = engine.block_offload;
  config.host.chunks = static_cast<std::uint32_t>(chunks);
  config.host.eviction = e.text("cache.offload_eviction") == "arc" ? ChunkEviction::arc : ChunkEviction::lru;
  config.host.store_threshold = static_cast<std::uint32_t>(e.integer("cache.offload_threshold"));
  config.prompt_only = e.flag("cache.offload_prompt_only");
  if (has_storage_tier(e)) configure_further_tiers(e, setup);
  config.shape = engine.shape;
  if (setup.block_pool) {
    const auto layers = std::max<std::uint64_t>(1, setup.model.layers.size() / pool.groups.size());
    PoolSize block;
    block.slot_bytes = static_cast<double>(pool.block_bytes);
    config.shape = shape_of_slot(block, static_cast<std::uint32_t>(layers), 1);
  }
  const double pages = chunks / groups * static_cast<double>(pool.block_tokens) / static_cast<double>(pool.page_tokens);
  engine.host_pages = std::max<Pages>(1, static_cast<Pages>(pages));  // if it holds full attention alone
  note_idle({"cache.write_policy", "cache.write_threshold", "cache.tiering", "cache.load_back_admission",
             "cache.load_back_min_tokens", "cache.load_back_quota_tokens", "cache.backup_retries"},
            kDecidedByVllm, e, setup);
  engine.write_policy = EngineConfig{}.write_policy;
  engine.tiering = Tiering::inclusive;
}

}  // namespace kvtwin

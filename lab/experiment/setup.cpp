#include "lab/experiment/setup.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/experiment/setup_parts.hpp"
#include "lab/names.hpp"
#include "models/operator_table.hpp"
#include "models/presets.hpp"
#include "policy/base/names.hpp"
#include "policy/choices.hpp"
#include "policy/eviction.hpp"
#include "policy/index/page_key.hpp"
#include "policy/style.hpp"
#include "policy/write.hpp"
#include "sim/bounds/hitrate.hpp"

namespace kvtwin {
namespace {

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
  if (!is_policy_name(PolicyKind::eviction, eviction)) {
    checked_name("eviction", eviction, eviction_names(), e.where("cache.eviction"));
  }
  if (engine.tiering == Tiering::exclusive && !make_write_policy(engine.write_policy)->writes_when_evicted()) {
    throw InputError(e.where("cache.tiering") +
                     ": exclusive is for pages that are written when they leave the device; " +
                     "set cache.write_policy to write_back, not " + e.text("cache.write_policy"));
  }
  const auto quota = static_cast<Tokens>(e.integer("cache.load_back_quota_tokens"));
  engine.load_back_quota_pages = quota == 0 ? 0 : std::max<Pages>(1, quota / engine.shape.page_tokens);
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

// A style that loads before admission loads through the host, and a step must pay at least one decode.
// Holds are on the pages of a tree.
void check_hints(const Experiment& e, const Setup& setup) {
  if (setup.engine.hints != HintRule::obey || !setup.has_blocks()) return;
  throw InputError(e.where("cache.hints") +
                   ": obey holds what SGLang's tree has, not vLLM's blocks; set it to policy or ignore");
}

void check_session_radix(const Experiment& e, Setup& setup) {
  if (!setup.engine.session_radix) return;
  const std::string key = e.where("cache.session_radix") + ": true ";
  if (setup.has_blocks()) {
    throw InputError(key + "counts references to what SGLang's tree has, not to vLLM's blocks; set it to false");
  }
  const std::unique_ptr<EvictionPolicy> eviction = make_eviction(setup.engine.eviction);
  if (dynamic_cast<const OrdersReferences*>(eviction.get()) != nullptr) {
    if (setup.engine.hints == HintRule::ignore) {
      setup.notes.push_back("cache.session_radix: sessions never close, because cache.hints = ignore");
    }
    return;
  }
  throw InputError(key + "orders the leaves of eviction policies with one rank, and " + e.where("cache.eviction") +
                   " = " + setup.engine.eviction + " has none; set that to one of SGLang's, for example lru");
}

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

EngineConfig Setup::engine_of(std::size_t seat) const {
  EngineConfig own = is_decode_engine(seat) ? decode->engine : engine;
  if (!rank_spaces.empty()) own.storage_space = rank_spaces[rank + seat];
  return own;
}

Setup make_setup(const Experiment& e, const HardwareSpec* hardware) { return make_setup_of(e, hardware, false); }

Setup make_setup_of(const Experiment& e, const HardwareSpec* hardware, bool decodes) {
  Setup setup;
  setup.has_role = decodes;
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
  configure_host_link(e, setup);
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
                          " are the same for all its releases here" +
                          (word.engine == ServingEngine::vllm ? ", but for the GPU's memory before 0.21" : ""));
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
  check_host_mode(e, setup);
  read_faults(e, setup.world);
  check_style(e, setup);
  check_hints(e, setup);
  check_session_radix(e, setup);
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
  if (setup.engine.pools.empty() && !setup.has_block_groups()) {
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

}  // namespace kvtwin

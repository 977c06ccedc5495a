#include "lab/experiment/setup_parts.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "lab/error.hpp"
#include "lab/names.hpp"
#include "models/names.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"
#include "models/tier_media.hpp"
#include "models/weights.hpp"
#include "policy/base/names.hpp"
#include "policy/index/page_key.hpp"
#include "policy/write.hpp"

namespace kvtwin {
namespace {

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
  std::string text = read_text_file(config, "give a config.json (JSON)");
  if (setup.engine.storage.empty()) return text;
  return text + with_key(e, "model.config", [&] { return weights_fingerprint(folder); }).value_or("");
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

// Drives behind the memory of the remote store.
void add_store_drives(const Experiment& e, double page_bytes, Setup& setup, StorageTier& tier) {
  constexpr const char* kKey = "tiers.remote.drives_gib";
  const double gib = e.number(kKey);
  if (gib == 0) return;
  const bool known = setup.store && setup.store->figures.drive_read_bandwidth > 0 &&
                     setup.store->figures.drive_write_bandwidth > 0 && setup.store->evicts;
  if (!known) {
    throw InputError(
        e.where(kKey) + ": the store " + (setup.store ? setup.store->name : "pool") +
        " has no drives behind its memory; set tiers.remote.store=mooncake, or give drive_read_bandwidth and "
        "drive_write_bandwidth in tiers.remote.store_file");
  }
  tier.drive_pages = static_cast<Pages>(std::min(4e9, std::floor(gib * 1024 * 1024 * 1024 / page_bytes)));
  setup.world.store_drive_bytes_per_second = static_cast<std::uint64_t>(setup.store->figures.drive_read_bandwidth);
  tier.drive_write_ps = static_cast<std::uint64_t>(1e12 * page_bytes / setup.store->figures.drive_write_bandwidth);
}

// Writes that wait on the host until its reserve is short.
void check_host_reserve(const Experiment& e, Setup& setup) {
  EngineConfig& engine = setup.engine;
  const bool has_tree = engine.block_groups.groups.empty();
  if (engine.host_pages == 0 || !setup.has_storage() || !has_tree) engine.host_clean_reserve = 0;
  if (engine.host_clean_reserve == 0) return;
  const auto refuse = [&](const std::string& why) {
    throw InputError(e.where("cache.host_clean_reserve") + ": is above 0, " + why + "; set it to 0");
  };
  if (engine.buffers()) refuse("and a host that is a buffer (cache.host_mode) writes what it has at once");
  if (!engine.pools.empty()) refuse("which is not built for models with windows or states");
}

}  // namespace

void check_host_mode(const Experiment& e, Setup& setup) {
  EngineConfig& engine = setup.engine;
  check_host_reserve(e, setup);
  if (engine.host_pages == 0) engine.host_mode = HostMode::cache;
  if (engine.host_mode == HostMode::cache) return;
  const std::string mode = e.where("cache.host_mode") + ": is " + e.text("cache.host_mode") + ", ";
  const auto refuse = [&](const std::string& why) { throw InputError(mode + why); };
  if (!setup.has_storage()) {
    refuse("and there is no storage tier that keeps the pages; give tiers.disk, tiers.shared_fs or tiers.remote");
  }
  if (engine.path != CachePath::via_host) {
    refuse("which is for pages that pass through the host, and " + e.where("cache.path") + " is " +
           e.text("cache.path") + "; set that to via_host");
  }
  if (make_write_policy(engine.write_policy)->writes_when_evicted()) {
    refuse(
        "and write_back writes what leaves the device to a host that keeps it; set cache.write_policy to "
        "write_through or write_through_selective");
  }
  if (!engine.pools.empty() || !engine.block_groups.groups.empty()) {
    refuse("which is not built for models with windows or states, nor for vLLM's offloading; set it to cache");
  }
  if (e.integer("cluster.prefill") > 0) refuse("which is not built for engines with roles; set it to cache");
}

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
    if (spec.tier == Tier::remote) {
      StorageTier& tier = setup.world.storage.back();
      if (setup.store) {
        tier.evicts_itself = setup.store->evicts;
        tier.lease_ns = static_cast<TimeNs>(setup.store->figures.lease * 1e9 + 0.5);
      }
      add_store_drives(e, bytes_per_token * static_cast<double>(shape.page_tokens), setup, tier);
      engine.storage.back().pages += tier.drive_pages;
    }
    if (spec.shared) setup.router.shared_pages += engine.storage.back().pages;
  }
  engine.private_loads &= engine.host_pages == 0 && setup.has_storage();
  if (engine.private_loads && !engine.draft_restored) {
    engine.private_loads = false;
    setup.notes.push_back(e.where("cache.rules.private_loads") +
                          " has no effect: storage does not keep the draft model's KV, and the index has to know which "
                          "pages lack it");
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

std::uint32_t objects_of(const Experiment& experiment, const KvShape& part) {
  if (part.layers == 0) return 0;
  if (experiment.text("cache.layout") == name_of(Layout::layer_first)) return part.layers * part.planes;
  return experiment.flag("cache.split_kv") ? part.planes : 1;
}

}  // namespace kvtwin

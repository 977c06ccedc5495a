#include "lab/experiment/setup_parts.hpp"

#include <algorithm>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/names.hpp"
#include "policy/base/names.hpp"

namespace kvtwin {
namespace {

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
  if (e.text("model.draft.kind") != "none" && !e.flag("model.draft.restore")) {
    throw InputError(
        e.where("model.draft.restore") +
        ": is false, and prefill engines (cluster.prefill) hand the draft model's KV of all pages over, also of those "
        "that came back from other tiers; set it to true, or set model.draft.kind to none and give the decode engines "
        "a draft model in cluster.decode_set");
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

}  // namespace

void count_engines(const Experiment& e, Setup& setup) {
  setup.attention_dp = setup.world.groups = attention_groups(e);
  if (!has_roles(e)) {
    setup.world.engines = static_cast<std::uint32_t>(e.integer("cluster.engines")) * setup.attention_dp;
    return;
  }
  setup.has_role = true;
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

void configure_roles(const Experiment& e, const HardwareSpec* hardware, Setup& setup) {
  setup.decode = std::make_unique<Setup>(
      make_setup_of(decode_experiment(e, static_cast<std::uint32_t>(total_engines(e))), hardware, true));
  Setup& decode = *setup.decode;
  const KvShape& from = setup.engine.shape;
  const KvShape& to = decode.engine.shape;
  const std::string where = e.where("cluster.decode_set");
  if (from.page_tokens != to.page_tokens || from.layers != to.layers || from.planes != to.planes ||
      from.head_bytes != to.head_bytes) {
    throw InputError(where + ": the decode engines' pages are not the prefill engines'; " +
                     "cache.page_tokens, model.* and model.kv_dtype must be the same");
  }
  const bool drafts = !setup.engine.beside.empty();  // in a pool of its own
  const auto has_draft = [&decode](const KvShape& shape) {
    if (!decode.draft || (decode.draft->packed && decode.draft->restored)) return false;
    const KvShape& own = decode.draft->shape;
    return own.layers == shape.layers && own.planes == shape.planes && own.head_bytes == shape.head_bytes;
  };
  if (drafts && !has_draft(setup.draft->shape)) {
    throw InputError(
        where + ": the decode engines do not have the draft model of the prefill engines; model.draft.kind " +
        "and model.draft.config must be the same, or set model.draft.kind to none and give only the decode " +
        "engines one here");
  }
  if (setup.engine.windows() != decode.engine.windows()) {
    throw InputError(where + ": the decode engines do not keep the windows and states that the prefill engines do; " +
                     "scheduler.style, cache.hybrid_allocator and tiers must allow both to keep them");
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
  const auto side = [&](const Setup& of) {
    HandOverSide one{of.engine.shape, of.engine.ranks, layout(of.engine)};
    for (const PoolConfig& pool : of.engine.pools) one.beside.push_back(pool.shape);
    if (drafts) one.draft = of.draft->shape;
    return one;
  };
  terms.from = side(setup);
  terms.to = side(decode);
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

std::int64_t total_engines(const Experiment& e) {
  const std::int64_t with_roles = e.integer("cluster.prefill") + decode_engines(e);
  return with_roles == 0 ? e.integer("cluster.engines") : with_roles;
}

}  // namespace kvtwin

#include "lab/run/run_folder.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <sstream>
#include <utility>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/names.hpp"
#include "lab/or_null.hpp"
#include "lab/out_files.hpp"
#include "lab/report/lane_meter.hpp"
#include "lab/report/request_json.hpp"
#include "lab/units.hpp"
#include "lab/version.hpp"
#include "models/json.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

double seconds(TimeNs ns) { return static_cast<double>(ns) / 1e9; }

// Returns the shortest text of the number, with a point.
std::string decimal_text(double value) {
  std::array<char, 32> buffer;
  std::string text(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

double busy_fraction(const LaneUse& lane, TimeNs total) {
  return total == 0 ? 0 : static_cast<double>(lane.busy_ns) / static_cast<double>(total);
}

// Returns the busy share in the 99th-percentile window.
double busy_p99(const LaneUse& lane) {
  std::vector<TimeNs> windows = lane.window_busy_ns;
  if (windows.empty() || lane.window_ns == 0) return 0;
  const std::size_t index = (windows.size() * 99 + 99) / 100 - 1;
  std::ranges::nth_element(windows, windows.begin() + static_cast<std::ptrdiff_t>(index));
  return static_cast<double>(windows[index]) / static_cast<double>(lane.window_ns);
}

// Returns the share of the difference between LRU and optimal that `hits` close; null if there is no difference.
Json gap_closed(const HitBounds::Found& bounds, Tokens hits) {
  if (bounds.opt == bounds.lru) return nullptr;
  const auto beyond_lru = [&](Tokens tokens) {
    return static_cast<double>(static_cast<std::int64_t>(tokens - bounds.lru));
  };
  return beyond_lru(hits) / beyond_lru(bounds.opt);
}

// Means over the requests with a prefetch through the host; null if there is none.
Json stops_json(const PrefetchBounds::Found& stops) {
  const auto mean = [&](TimeNs sum) -> Json {
    if (stops.requests == 0) return nullptr;
    return seconds(sum) / static_cast<double>(stops.requests);
  };
  return {{"requests", stops.requests},
          {"wait_seconds", mean(stops.wait)},
          {"wait_seconds_best_stop", mean(stops.wait_best)},
          {"ttft_seconds", mean(stops.ttft)},
          {"ttft_seconds_best_stop", mean(stops.ttft_best)}};
}

Json draws_json(const Draws& draws) {
  Json json{{"count", draws.count}, {"spread_percent", draws.spread_percent}, {"numbers", draws.numbers}};
  for (const Draws::Figure& it : draws.figures) {
    json["figures"][it.name] = {{"value", or_null(it.value)},
                                {"low", or_null(it.low)},
                                {"median", or_null(it.median)},
                                {"high", or_null(it.high)}};
  }
  json["hangs_on"] = Json::array();
  for (const Draws::Cause& it : draws.hangs_on) {
    json["hangs_on"].push_back({{"number", it.number},
                                {"low", it.low},
                                {"high", it.high},
                                {"ttft_mean_s", {{"at_low", it.at_low}, {"at_high", it.at_high}}}});
  }
  return json;
}

const ErrorFeatures* errors_of(const RunFacts& facts) { return facts.errors ? &*facts.errors : nullptr; }

Json warm_json(const WarmFigures& warm, const Metrics& m, const RunFacts& facts) {
  Json json = {{"from_s", seconds(warm.window.from)},
               {"to_s", seconds(warm.window.to)},
               {"flat", warm.window.not_flat.empty()},
               {"not_flat", warm.window.not_flat.empty() ? Json() : Json(warm.window.not_flat)},
               {"overloaded", warm.window.overloaded},
               {"times_as_long", warm.times}};
  put_request_figures(json, warm.figures,
                      {warm.rates, std::nullopt, m.weighs_hits(), m.counter().terms().level, facts.roles.has_value(),
                       errors_of(facts)});
  return json;
}

Json bounds_json(const RunFacts& facts, const Metrics& m) {
  const HitBounds::Found& hits = facts.bounds->hits;
  Json json = {{"eviction_opt_hit_tokens", hits.opt},
               {"lru_hit_tokens", hits.lru},
               {"gap_closed", gap_closed(hits, facts.warm ? facts.warm->figures.hit.sum() : m.hit.sum())},
               {"eviction_opt_saved_seconds", seconds(hits.opt_saved)},
               {"lru_saved_seconds", seconds(hits.lru_saved)},
               {"net_saved_seconds", seconds(hits.saved)},
               {"net_saved_seconds_max", hits.saved_most ? Json(seconds(*hits.saved_most)) : Json()}};
  if (hits.with_states) json["states_opt_hit_tokens"] = *hits.with_states;
  if (facts.stores()) json["prefetch"] = stops_json(facts.bounds->stops);
  return json;
}

Json drawn_json(const DrawnTraffic& drawn) {
  Json json{{"ended", drawn.ended}, {"ended_at_longest_context", drawn.cut}};
  for (const DrawnTraffic::Mean& mean : drawn.means) {
    json[mean.figure] = {{"mean", mean.count == 0 ? Json() : Json(mean.mean())}, {"asked", mean.asked}};
  }
  json["context_tokens"] = {{"max", drawn.longest_context},
                            {"limit", drawn.context_limit == 0 ? Json() : Json(drawn.context_limit)}};
  return json;
}

Json lanes_json(const std::vector<LaneUse>& lanes, TimeNs total) {
  Json list = Json::array();
  for (const LaneUse& lane : lanes) {
    list.push_back({{"name", lane.name},
                    {"bytes", lane.bytes},
                    {"transfers", lane.transfers},
                    {"busy_fraction", busy_fraction(lane, total)},
                    {"busy_fraction_p99", busy_p99(lane)}});
  }
  return list;
}

Json tier_json(std::string_view name, Pages capacity, Pages used_max, const Metrics::TierUse& use, Bytes written) {
  Json dropped = Json::object();
  for (const auto& [reason, pages] : use.dropped) dropped[std::string(reason)] = pages;
  return {{"name", name},
          {"capacity_pages", capacity},
          {"used_pages_max", used_max},
          {"evicted_pages", use.evicted},
          {"written_bytes", written},
          {"dropped", dropped}};
}

// Returns the bytes per day that a storage tier is written in the measured window; nothing for an empty window.
std::optional<double> bytes_per_day(const RunFacts& facts, Tier tier) {
  if (facts.measured.span == 0) return std::nullopt;
  const Bytes written = facts.measured.written[tier] * facts.stored_page_bytes;
  return static_cast<double>(written) / (seconds(facts.measured.span) / 86'400);
}

// L1 and L2 always; storage tiers only if the experiment has them.
Json tiers_json(const RunFacts& facts, const Metrics& m, Bytes to_host) {
  Json list = Json::array();
  for (const auto& spec : kTierSpecs) {
    const RunFacts::TierFacts& tier = facts.tier(spec.tier);
    const Metrics::TierUse& use = m.tier(spec.tier);
    const bool storage = spec.kind == TierKind::storage;
    if (storage && tier.capacity == 0) continue;
    const Bytes written = storage ? use.written * facts.stored_page_bytes : spec.tier == Tier::host ? to_host : 0;
    Json& json = list.emplace_back(tier_json(spec.name, tier.capacity, tier.used_max, use, written));
    if (!storage) continue;
    const std::optional<double> a_day = bytes_per_day(facts, spec.tier);
    const double capacity = static_cast<double>(tier.capacity * facts.stored_page_bytes);
    json["written_bytes_per_day"] = or_null(a_day);
    json["writes_per_day"] = a_day && capacity > 0 ? Json(*a_day / capacity) : Json();
  }
  return list;
}

Json per_million_tokens(double per_month, const Rates& rates) {
  const double per_s = rates.per_second(rates.prompt + rates.output).value_or(0);
  return per_s > 0 ? Json(per_month / (per_s * 3600 * kHoursPerMonth / 1e6)) : Json();
}

Json price_json(const Bill& bill, const RunFacts& facts) {
  double per_month = bill.per_month;
  Json parts = Json::array(), drives;
  for (const BillPart& part : bill.parts) {
    parts.push_back({{"name", part.name}, {"count", part.count}, {"per_month", part.per_month}, {"watts", part.watts}});
  }
  if (bill.drives != 0 && facts.measured.span != 0) {
    const Bytes written = facts.measured.written[Tier::disk] * facts.stored_page_bytes;
    const DriveWear wear = drive_wear(bill, written, seconds(facts.measured.span));
    drives = {{"count", bill.drives},
              {"written_bytes_per_day", wear.bytes_per_day},
              {"writes_per_day", wear.writes_per_day},
              {"years", or_null(wear.years)}};
    if (wear.replacements_month > 0) {
      per_month += wear.replacements_month;
      parts.push_back({{"name", "replacement of worn drives"},
                       {"count", static_cast<double>(bill.drives) * (bill.life_years / *wear.years - 1)},
                       {"per_month", wear.replacements_month},
                       {"watts", 0.0}});
    }
  }
  Json json{{"currency", bill.currency}, {"list", bill.origin}, {"per_month", per_month}};
  json["per_million_tokens"] = per_million_tokens(per_month, facts.measured);
  json["power_kw"] = bill.watts / 1000;
  json["parts"] = parts;
  json["assumed"] = bill.assumed();
  if (!drives.is_null()) json["drives"] = drives;
  return json;
}

template <typename Counts>
Json counts_json(const Counts& counts) {
  Json json = Json::object();
  for (const auto& [name, count] : counts) json[std::string(name)] = count;
  return json;
}

Json missed_json(const PerMissCause& missed) {
  Json json = Json::object();
  for (std::size_t i = 0; i < kMissCauses; ++i) {
    const auto cause = static_cast<MissCause>(i);
    if (missed[cause] != 0) json[std::string(name_of(cause))] = missed[cause];
  }
  return json;
}

// Returns e.g. "900 pages of prompts: 800 new, 100 evicted from the host".
std::string missed_text(const PerMissCause& missed) {
  std::string text = std::to_string(missed.sum()) + " pages of prompts:";
  for (std::size_t i = 0; i < kMissCauses; ++i) {
    const auto cause = static_cast<MissCause>(i);
    if (missed[cause] == 0) continue;
    text += (text.ends_with(':') ? " " : ", ") + std::to_string(missed[cause]) + " " + std::string(meaning_of(cause));
  }
  return text;
}

Json prefetch_json(const Metrics& m) {
  const Metrics::Prefetches& p = m.prefetches;
  KV_CHECK(p.add_up(), "every prefetch that was issued has ended in one way, or is open");
  return {{"issued", p.issued},
          {"completed", p.completed},
          {"failed", p.failed},
          {"stopped", p.stopped},
          {"revoked", p.revoked},
          {"aborted", p.aborted},
          {"engine_lost", p.engine_lost},
          {"open", p.open.size()},
          {"declined", counts_json(p.declined)},
          {"revoked_reasons", counts_json(p.revoked_reasons)},
          {"pages_arrived", p.arrived},
          {"pages_used", p.used},
          {"pages_wasted", p.arrived > p.used ? p.arrived - p.used : 0},
          {"pages_not_kept", counts_json(p.wasted)},
          {"pages_shortened", p.shortened}};
}

// Bytes: of the pages that the lanes moved. Dropped: reused pages without the draft's part.
Json components_json(const RunFacts& facts, const Metrics& m, const std::vector<LaneUse>& lanes) {
  Bytes page = 0, moved = 0;
  for (const RunFacts::Component& part : facts.components) page += part.page_bytes;
  for (const LaneUse& lane : lanes) {
    if (!lane.name.ends_with(kDramLane)) moved += lane.bytes;
  }
  const Tokens hits = m.hit.sum();
  Json list = Json::array();
  for (const RunFacts::Component& part : facts.components) {
    const bool draft = &part != &facts.components.front();
    const Pages lost = draft ? m.reused_without_draft / facts.page_tokens : 0;
    Json dropped = Json::object();
    if (lost != 0) dropped["not_restored"] = lost;
    list.push_back({{"name", part.name},
                    {"bytes", moved / page * part.page_bytes},
                    {"hit_pages", hits / facts.page_tokens - lost},
                    {"dropped", dropped}});
  }
  return list;
}

// Returns the largest resident set of this process. The kernel's ru_maxrss is not that: a new program inherits the
// largest one of the process that started it.
std::uint64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

double microseconds(TimeNs ns) { return static_cast<double>(ns) / 1e3; }

// Adds the figures of an event loop.
void put_loop(Json& json, const LoopReport& loop) {
  const auto ratio = [](double sum, std::uint64_t count) -> Json {
    if (count == 0) return nullptr;
    return sum / static_cast<double>(count);
  };
  const auto share = [&](TimeNs ns) { return ratio(static_cast<double>(ns), static_cast<std::uint64_t>(loop.run_ns)); };
  json["loop_us_per_input"] = {{"p50", microseconds(loop.loop_median_ns)}, {"p99", microseconds(loop.loop_p99_ns)}};
  json["submit_us_mean"] = ratio(microseconds(loop.calls_ns), loop.calls);
  json["loop_share"] = share(loop.loop_ns);
  json["policy_share"] = share(loop.policy_ns);
  json["arrivals_late_us"] = {{"mean", ratio(microseconds(loop.arrival_late_sum_ns), loop.arrivals)},
                              {"max", microseconds(loop.arrival_late_max_ns)}};
}

Json real_json(const RealFacts& real) {
  const Verification& v = real.verification;
  Json wrong = Json::array();
  for (const WrongPage& page : v.wrong) wrong.push_back(wrong_page_sentence(page));
  Json storage = Json::object();
  for (const StorageCounters& tier : real.storage) {
    Json& counters = storage[std::string(name_of(tier.tier))];
    for (const auto& [name, count] : tier.counters) counters[name] = count;
  }
  const MeasuredMachine& machine = real.machine;
  Json verified = {{"pages_read", v.pages_read},
                   {"bytes_read", v.bytes_read},
                   {"bytes_checked", v.bytes_checked},
                   {"pages_audited", v.pages_audited},
                   {"bytes_audited", v.bytes_audited},
                   {"wrong_reads", v.wrong_reads},
                   {"wrong", wrong}};
  if (v.draft_pages_read + v.draft_pages_audited + v.draft_pages_left_out != 0) {
    verified["draft"] = {{"pages_read", v.draft_pages_read},       {"bytes_read", v.draft_bytes_read},
                         {"bytes_checked", v.draft_bytes_checked}, {"pages_audited", v.draft_pages_audited},
                         {"bytes_audited", v.draft_bytes_audited}, {"pages_left_out", v.draft_pages_left_out}};
  }
  const auto add_part = [&](const char* name, const Verification::Part& part) {
    if (part.read + part.audited == 0) return;
    verified[name] = {{"read", part.read},
                      {"bytes_read", part.bytes_read},
                      {"bytes_checked", part.bytes_checked},
                      {"audited", part.audited},
                      {"bytes_audited", part.bytes_audited}};
  };
  add_part("windows", v.windows);
  add_part("states", v.states);
  if (v.states.read != 0) verified["states"]["copied"] = v.states_copied;
  Json json = {
      {"machine",
       {{"cpu", machine.cpu}, {"cores", machine.cores}, {"kernel", machine.kernel}, {"device", machine.device}}},
      {"inputs", real.loop.inputs},
      {"storage", storage}};
  put_loop(json, real.loop);
  json["verified"] = verified;
  return json;
}

Json engine_json(const RunFacts::EngineFacts& engine) {
  Json json = {{"decisions", mark_json(engine.decisions)}};
  for (const RunFacts::RankFacts& rank : engine.ranks) {
    json["ranks"].push_back({{"digest", digest_text(rank.digest)}, {"reductions", rank.reductions}});
  }
  if (!engine.loop) return json;
  json["real"] = {{"inputs", engine.loop->inputs}};
  put_loop(json["real"], *engine.loop);
  return json;
}

}  // namespace

std::string wrong_page_sentence(const WrongPage& page) {
  char text[320];
  std::snprintf(text, sizeof text,
                "page %016" PRIx64 "%016" PRIx64
                " in the %s tier (slot %u): layer %u, plane %u, token %u, byte %u is "
                "0x%02x, not 0x%02x; ",
                page.key.words[0], page.key.words[1], name_of(page.tier).data(), page.slot, page.layer, page.plane,
                page.token, page.byte, page.got, page.expected);
  return text + page.found;
}

namespace {

std::string closure_of(const RunFacts::PoolFacts& pool) {
  switch (pool.size.kind) {
    case PoolKind::full: return "path";
    case PoolKind::window: return "tail(" + std::to_string(pool.window) + ")";
    case PoolKind::state: return "point";
  }
  return "";
}

// Slots that the run has evicted from the pool, in the pool's unit.
std::uint64_t evicted_of(const RunFacts& facts, const RunFacts::PoolFacts& pool, const Metrics& m) {
  const Tokens unit = pool.size.kind == PoolKind::state ? 1 : facts.page_tokens;
  return m.evicted_slots(pool.tier, pool.number, pool.engines) * unit;
}

// Blocks with KV that the run has evicted, of groups with this closure.
std::uint64_t evicted_blocks(const BlockPool& pool, Closure closure, const Metrics& m) {
  std::uint64_t blocks = 0;
  for (std::size_t group = 0; group < pool.groups.size(); ++group) {
    if (pool.groups[group].closure != closure) continue;
    const Pages evicted = m.evicted_slots(Tier::device, static_cast<std::uint8_t>(group));
    blocks += group == 0 ? evicted * pool.groups[group].blocks_per_page : evicted;
  }
  return blocks;
}

// What the run has written of windows and states to a storage tier, whose capacity all kinds share.
struct StoredKind {
  PoolKind kind = PoolKind::window;
  Tier tier = Tier::disk;
  std::uint64_t written = 0, evicted = 0;  // tokens of windows, or states
};

std::vector<StoredKind> stored_kinds(const RunFacts& facts, const Metrics& m) {
  std::vector<StoredKind> kinds;
  for (const auto& [key, objects] : m.stored_of_pools) {
    const auto& [tier, number] = key;
    const auto pool = std::ranges::find(facts.pools, number, &RunFacts::PoolFacts::number);
    const Tokens unit = pool->size.kind == PoolKind::state ? 1 : facts.page_tokens;
    kinds.push_back({pool->size.kind, tier, objects * unit, m.evicted_slots(tier, number) * unit});
  }
  return kinds;
}

std::string_view pool_unit(PoolKind kind) { return kind == PoolKind::state ? "states" : "tokens"; }

Json pools_json(const RunFacts& facts, const Metrics& m) {
  Json rows = Json::array();
  for (const RunFacts::PoolFacts& pool : facts.pools) {
    Json row{{"name", name_of(pool.size.kind)}, {"closure", closure_of(pool)}, {"tier", name_of(pool.tier)}};
    if (!pool.role.empty()) row["role"] = pool.role;
    row["capacity"] = pool.size.slots;
    row["unit"] = pool_unit(pool.size.kind);
    row["bytes_per_rank"] = pool.size.bytes();
    if (pool.used_max != 0) {
      row["used_max"] = pool.used_max;
      row["evicted"] = evicted_of(facts, pool, m);
    }
    rows.push_back(std::move(row));
  }
  for (const StoredKind& stored : stored_kinds(facts, m)) {
    rows.push_back({{"name", name_of(stored.kind)},
                    {"tier", name_of(stored.tier)},
                    {"unit", pool_unit(stored.kind)},
                    {"written", stored.written},
                    {"evicted", stored.evicted}});
  }
  for (const auto& [role, pool, used_max] : facts.block_pools) {
    Json row{{"name", "blocks"}, {"tier", name_of(Tier::device)}};
    if (!role.empty()) row["role"] = role;
    row["capacity"] = pool.blocks;
    row["unit"] = "blocks";
    row["bytes_per_rank"] = pool.bytes();
    row["block_bytes"] = pool.block_bytes;
    row["block_tokens"] = pool.block_tokens;
    row["groups"] = {{"full", pool.full_groups}, {"window", pool.window_groups}, {"state", pool.state_groups}};
    row["padding"] = pool.padding;
    if (used_max != 0) {
      row["used_max"] = used_max;
      row["evicted"] = {{"full", evicted_blocks(pool, Closure::path, m)},
                        {"window", evicted_blocks(pool, Closure::tail, m)},
                        {"state", evicted_blocks(pool, Closure::point, m)}};
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json memory_json(const RunFacts& facts) {
  Json rows = Json::array();
  const auto whole = [](double bytes) { return static_cast<std::int64_t>(std::llround(bytes)); };
  for (const auto& [role, memory] : facts.memory) {
    Json row = {{"total_bytes", whole(memory.total)},    {"kv_bytes", whole(memory.kv)},
                {"weight_bytes", whole(memory.weights)}, {"activation_bytes", whole(memory.activations)},
                {"graph_bytes", whole(memory.graphs)},   {"engine_bytes", whole(memory.taken)},
                {"fraction", memory.fraction},           {"fraction_factor", memory.factor}};
    if (!role.empty()) row["role"] = role;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string pools_text(const RunFacts& facts, const Metrics& m) {
  std::string text;
  char line[256];
  for (const RunFacts::PoolFacts& pool : facts.pools) {
    std::snprintf(line, sizeof line, "pool       %s, %s%s%s: %" PRIu64 " %s, %.2f GiB a GPU\n",
                  std::string(name_of(pool.size.kind)).c_str(), std::string(name_of(pool.tier)).c_str(),
                  pool.role.empty() ? "" : " of an engine for ", pool.role.c_str(), pool.size.slots,
                  pool_unit(pool.size.kind).data(), static_cast<double>(pool.size.bytes()) / kGib);
    text += line;
    if (pool.used_max == 0) continue;
    text.back() = ';';
    std::snprintf(line, sizeof line, " %" PRIu64 " used at most, %" PRIu64 " evicted\n", pool.used_max,
                  evicted_of(facts, pool, m));
    text += line;
  }
  for (const StoredKind& stored : stored_kinds(facts, m)) {
    std::snprintf(line, sizeof line, "pool       %s, %s: %" PRIu64 " %s written, %" PRIu64 " evicted\n",
                  name_of(stored.kind).data(), name_of(stored.tier).data(), stored.written,
                  pool_unit(stored.kind).data(), stored.evicted);
    text += line;
  }
  for (const auto& [role, pool, used_max] : facts.block_pools) {
    std::snprintf(line, sizeof line,
                  "pool       blocks, device%s%s: %" PRIu64 " blocks of %" PRIu64 " bytes (%" PRIu64
                  " tokens of full attention), %.2f GiB a GPU; groups of layers: %" PRIu64 " full, %" PRIu64
                  " window, %" PRIu64 " state; %.1f %% padding\n",
                  role.empty() ? "" : " of an engine for ", role.c_str(), pool.blocks, pool.block_bytes,
                  pool.block_tokens, static_cast<double>(pool.bytes()) / kGib, pool.full_groups, pool.window_groups,
                  pool.state_groups, 100 * pool.padding);
    text += line;
    if (used_max == 0) continue;
    text.back() = ';';
    std::snprintf(line, sizeof line,
                  " %" PRIu64 " blocks used at most; evicted: %" PRIu64 " of full attention, %" PRIu64
                  " of windows, %" PRIu64 " of states\n",
                  used_max, evicted_blocks(pool, Closure::path, m), evicted_blocks(pool, Closure::tail, m),
                  evicted_blocks(pool, Closure::point, m));
    text += line;
  }
  return text;
}

}  // namespace

std::string report_json(const RunFacts& facts, const Metrics& m, const DecisionMark& decisions,
                        const std::vector<LaneUse>& lanes) {
  Json report;
  report["schema_version"] = 1;
  report["kvtwin_version"] = kVersion;
  report["git_commit"] = kGitCommit;
  report["world"] = facts.world;
  report["device"] = facts.device;
  report["seed"] = facts.seed;
  report["model_kv"] = facts.kv_formula;
  report["model_layers"] = layer_table_json(facts.layers);
  if (Json memory = memory_json(facts); !memory.empty()) report["device_memory"] = std::move(memory);
  if (Json pools = pools_json(facts, m); !pools.empty()) report["pools"] = std::move(pools);
  report["notes"] = facts.notes;
  if (facts.continued != 0) {
    report["answers_computed_again"] = {{"requests", facts.continued}, {"tokens_at_most", facts.answers_again}};
  }
  if (facts.drawn) report["conversations"] = drawn_json(*facts.drawn);
  for (const RunFacts::WarningFacts& warning : facts.warnings) {
    report["notes"].push_back(warning.sentence);
    Json& names = report["warnings"];
    if (std::ranges::find(names, Json(warning.name)) == names.end()) names.push_back(warning.name);
  }
  report["gpus"] = facts.gpus;
  put_request_figures(report, m,
                      {facts.measured, m.retractions, m.weighs_hits(), m.counter().terms().level,
                       facts.roles.has_value(), errors_of(facts)});
  if (const RequestCounter& counter = m.counter(); !counter.terms().counts_all()) {
    report["requests"]["left_out"] = {{"warmup", counter.left_out_as_warmup()}, {"drain", counter.left_out_as_drain()}};
    report["window_seconds"] = seconds(counter.window_ns());
    if (!facts.stages.empty())
      report["stages"] = stages_json(facts.stages, counter, facts.roles.has_value(), errors_of(facts));
  }
  report["passes"] = {{"prefill", m.prefill_passes},
                      {"prefill_tokens", m.prefill_tokens},
                      {"decode_bursts", m.decode_passes},
                      {"decode_steps", m.decode_steps}};
  report["lanes"] = lanes_json(lanes, facts.simulated_ns);
  Bytes to_host = 0;
  for (const LaneUse& lane : lanes) {
    if (lane.name.ends_with(".d2h")) to_host += lane.bytes;
  }
  report["backups"] = {{"awaited", m.backups_awaited}, {"retried_pages", m.backups_retried}};
  report["loads"] = {
      {"pages", m.loads.done}, {"failed_pages", m.loads.failed}, {"declined_pages", counts_json(m.loads.declined)}};
  report["tiers"] = tiers_json(facts, m, to_host);
  if (!facts.components.empty()) report["components"] = components_json(facts, m, lanes);
  if (facts.missed_pages) report["missed_pages"] = missed_json(*facts.missed_pages);
  report["prefetch"] = prefetch_json(m);
  if (const Metrics::Holds& holds = m.holds; holds.begun + holds.refused != 0) {
    report["holds"] = {{"begun", holds.begun},
                       {"refused", holds.refused},
                       {"ended", counts_json(holds.ended)},
                       {"pages_max", {{"device", holds.most(Tier::device)}, {"host", holds.most(Tier::host)}}}};
  }
  report["storage"] = {{"retried_pages", m.stores_retried}, {"fell_short", counts_json(m.fell_short_of_all())}};
  if (m.stores_awaited_ns != 0) report["storage"]["awaited_s"] = seconds(m.stores_awaited_ns);
  if (facts.objects_per_page != 0) report["storage"]["objects_per_page"] = facts.objects_per_page;
  if (facts.bill) report["price"] = price_json(*facts.bill, facts);
  if (facts.warm) {
    report["warm"] = warm_json(*facts.warm, m, facts);
    if (facts.bill) report["warm"]["price"] = report["price"];
  }
  if (facts.bounds) report["bounds"] = bounds_json(facts, m);
  if (facts.draws) report["draws"] = draws_json(*facts.draws);
  if (facts.real) report["real"] = real_json(*facts.real);
  report["decisions"] = mark_json(decisions);
  for (const RunFacts::RankFacts& rank : facts.ranks) {
    report["ranks"].push_back({{"digest", digest_text(rank.digest)}, {"reductions", rank.reductions}});
  }
  for (const RunFacts::EngineFacts& engine : facts.engines) report["engines"].push_back(engine_json(engine));
  if (facts.roles) {
    const HandOverFigures& of = facts.roles->hand_overs;
    report["hand_overs"] = {{"prefill_engines", facts.roles->prefill},
                            {"decode_engines", facts.roles->decode},
                            {"requests", of.hand_overs},
                            {"pages", of.pages},
                            {"bytes", facts.roles->bytes},
                            {"writes", of.writes},
                            {"failed_writes", of.failed_writes},
                            {"fell_back", of.fell_back},
                            {"sent_again", of.sent_again}};
  }
  report["simulated_seconds"] = seconds(facts.simulated_ns);
  report["wall_seconds"] = facts.wall_seconds;
  report["requests_per_wall_second"] =
      facts.wall_seconds > 0 ? static_cast<double>(m.completed) / facts.wall_seconds : 0.0;
  report["peak_rss_bytes"] = peak_rss_bytes();
  return report.dump(2) + "\n";
}

namespace {

// Returns e.g. "TTFT 2 s, TPOT 0.05 s".
std::string limits_text(const ServiceLevel& level) {
  std::string text;
  const auto limit = [&](const char* name, TimeNs ns) {
    if (ns == 0) return;
    char part[64];
    std::snprintf(part, sizeof part, "%s%s %.6g s", text.empty() ? "" : ", ", name, seconds(ns));
    text += part;
  };
  limit("TTFT", level.ttft);
  limit("TPOT", level.tpot);
  limit("end to end", level.e2e);
  return text;
}

constexpr std::size_t kMaxLaneLines = 16;  // more lanes: one line for each kind of lane

// Returns the kind of a lane: its name without engine and GPU.
std::string lane_kind(const LaneUse& lane) { return lane.name.substr(lane.name.rfind('.') + 1); }

// Returns one line per lane; of many lanes, one line per kind, in order of appearance.
std::string lanes_text(const std::vector<LaneUse>& lanes, TimeNs total) {
  std::string out;
  char line[256];
  if (lanes.size() <= kMaxLaneLines) {
    for (const LaneUse& lane : lanes) {
      std::snprintf(line, sizeof line,
                    "lane       %-10s %5.1f %% busy (p99 %5.1f %%), %.1f GB in %" PRIu64 " transfers\n",
                    lane.name.c_str(), 100 * busy_fraction(lane, total), 100 * busy_p99(lane),
                    static_cast<double>(lane.bytes) / 1e9, lane.transfers);
      out += line;
    }
    return out;
  }
  std::vector<std::string> kinds;
  for (const LaneUse& lane : lanes) {
    if (std::ranges::find(kinds, lane_kind(lane)) == kinds.end()) kinds.push_back(lane_kind(lane));
  }
  out = "lanes      kind           number  busy mean %  busiest %  p99 of the busiest %         GB   transfers\n";
  for (const std::string& kind : kinds) {
    double sum = 0, most = 0, p99 = 0, bytes = 0;
    std::uint64_t number = 0, transfers = 0;
    for (const LaneUse& lane : lanes) {
      if (lane_kind(lane) != kind) continue;
      const double busy = busy_fraction(lane, total);
      if (number == 0 || busy > most) {
        most = busy;
        p99 = busy_p99(lane);
      }
      ++number;
      sum += busy;
      bytes += static_cast<double>(lane.bytes);
      transfers += lane.transfers;
    }
    std::snprintf(line, sizeof line, "           %-12s %8" PRIu64 " %12.1f %10.1f %21.1f %10.1f %11" PRIu64 "\n",
                  kind.c_str(), number, 100 * sum / static_cast<double>(number), 100 * most, 100 * p99, bytes / 1e9,
                  transfers);
    out += line;
  }
  return out;
}

// Returns e.g. "90.0 s", or "60.0 of 90.0 s" if the measured window is a part of the run.
std::string measured_text(const RunFacts& facts) {
  char text[96];
  if (facts.measured.span == facts.simulated_ns) {
    std::snprintf(text, sizeof text, "%.1f s", seconds(facts.simulated_ns));
  } else {
    std::snprintf(text, sizeof text, "%.1f of %.1f s", seconds(facts.measured.span), seconds(facts.simulated_ns));
  }
  return text;
}

}  // namespace

std::string summary_text(const RunFacts& facts, const Metrics& m, const DecisionMark& decisions,
                         const std::vector<LaneUse>& lanes) {
  std::string out;
  char line[256];
  const auto add = [&](const char* format, auto... values) {
    std::snprintf(line, sizeof line, format, values...);
    out += line;
    out += '\n';
  };
  // Share of the prompt tokens of completed requests, in %.
  const auto share_of = [](Tokens tokens, Tokens prompt) {
    if (prompt == 0) return std::string("-");
    return decimal(100.0 * static_cast<double>(tokens) / static_cast<double>(prompt), 1);
  };
  const auto share = [&](Tokens tokens) { return share_of(tokens, m.prompt); };
  // Of the same requests as the hits.
  const auto infinite = [&](const RequestFigures& of) {
    return of.infinite_hit && of.prompt != 0
               ? "; an infinite cache hits " + share_of(*of.infinite_hit, of.prompt) + " %"
               : "";
  };
  const auto of_arrived = [&](std::uint64_t requests) {
    const auto part = m.share_of_arrived(requests);
    return part ? decimal(100 * *part, 2) : std::string("-");
  };
  if (!facts.engine.empty()) out += "engine     " + facts.engine + "\n";
  for (const auto& [role, memory] : facts.memory) {
    out += "memory     " + (role.empty() ? "" : role + " engines: ") + device_memory_text(memory) + "\n";
  }
  if (facts.drawn) out += "drawn      " + drawn_text(*facts.drawn) + "\n";
  add("requests   %" PRIu64 " completed, %" PRIu64 " rejected (%s %%), %" PRIu64 " failed (%s %%), %" PRIu64
      " retractions; %s/s over %s%s",
      m.completed, m.rejected_total, of_arrived(m.rejected_total).c_str(), m.failed(), of_arrived(m.failed()).c_str(),
      m.retractions, decimal(facts.measured.per_second(facts.measured.completed), 2).c_str(),
      measured_text(facts).c_str(), facts.real ? "" : " simulated");
  if (facts.stores()) {
    add("prompt     %" PRIu64 " tokens: %s %% hit on the device, %s %% on the host, %s %% in storage, %s %% computed%s",
        m.prompt, share(m.hit[Tier::device]).c_str(), share(m.hit[Tier::host]).c_str(),
        share(m.hit.sum() - m.hit[Tier::device] - m.hit[Tier::host]).c_str(),
        share(m.miss + m.recomputed_after_stop).c_str(), infinite(m).c_str());
  } else {
    add("prompt     %" PRIu64 " tokens: %s %% hit on the device, %s %% on the host, %s %% computed%s", m.prompt,
        share(m.hit[Tier::device]).c_str(), share(m.hit[Tier::host]).c_str(), share(m.miss).c_str(),
        infinite(m).c_str());
  }
  if (m.unusable != 0) {
    add("unusable   %" PRIu64
        " of the computed tokens (%s %% of the prompts) were in memory, and lacked a window or a state",
        m.unusable, share(m.unusable).c_str());
  }
  if (facts.missed_pages && facts.missed_pages->sum() != 0) {
    out += "missed     " + missed_text(*facts.missed_pages) + "\n";
  }
  add("output     %" PRIu64 " tokens in %" PRIu64 " decode steps", m.output, m.decode_steps);
  if (has_several_kinds(facts.layers)) out += "layers\n" + layer_table_text(facts.layers, "  ");
  out += pools_text(facts, m);
  const auto times = [&](const char* name, const DurationHistogram& h) {
    const auto quantile = [&](std::uint64_t per_mille) { return decimal(h.quantile_seconds(per_mille), 4); };
    add("%-10s mean %s s   p50 %s   p90 %s   p99 %s   max %s", name, decimal(h.mean_seconds(), 4).c_str(),
        quantile(500).c_str(), quantile(900).c_str(), quantile(990).c_str(), decimal(h.max_seconds(), 4).c_str());
  };
  times("TTFT", m.ttft);
  times("TPOT", m.tpot);
  times("end to end", m.e2e);
  const auto intervals = [&](const char* name, const RequestFigures& of, const Rates& rates) {
    if (!facts.errors) return;
    const std::string text = intervals_line(of, rates, *facts.errors);
    if (!text.empty()) out += name + text + "\n";
  };
  if (!facts.warm) intervals("80 %       ", m, facts.measured);
  if (const ServiceLevel& level = m.counter().terms().level; level.set()) {
    add("good       %s %% of all requests are within the limits (%s), %s/s", of_arrived(m.good).c_str(),
        limits_text(level).c_str(), decimal(facts.measured.per_second(facts.measured.good), 2).c_str());
  }
  const std::string hand_over = facts.roles ? " + hand-over " + decimal(m.hand_over.mean_seconds(), 4) : "";
  add("mean TTFT  = queue %s + prefetch wait %s + load wait %s + compute %s%s s",
      decimal(m.queue.mean_seconds(), 4).c_str(), decimal(m.prefetch_wait.mean_seconds(), 4).c_str(),
      decimal(m.load_wait.mean_seconds(), 4).c_str(), decimal(m.compute.mean_seconds(), 4).c_str(), hand_over.c_str());
  if (m.hinted.ttft.count() != 0) {
    add("hints      %" PRIu64 " requests of sessions with hints: TTFT mean %s   p90 %s s, %s %% hit",
        m.hinted.ttft.count(), decimal(m.hinted.ttft.mean_seconds(), 4).c_str(),
        decimal(m.hinted.ttft.quantile_seconds(900), 4).c_str(), share_of(m.hinted.hit, m.hinted.prompt).c_str());
    add("           %" PRIu64 " other requests: TTFT mean %s   p90 %s s, %s %% hit", m.not_hinted.ttft.count(),
        decimal(m.not_hinted.ttft.mean_seconds(), 4).c_str(),
        decimal(m.not_hinted.ttft.quantile_seconds(900), 4).c_str(),
        share_of(m.not_hinted.hit, m.not_hinted.prompt).c_str());
  }
  if (const Metrics::Holds& holds = m.holds; holds.begun + holds.refused != 0) {
    std::string ends;
    for (const auto& [reason, count] : holds.ended) {
      ends += ", " + std::to_string(count) + " ended by " + std::string(reason);
    }
    add("holds      %" PRIu64 " begun, %" PRIu64 " refused%s; %" PRIu64 " pages of the device and %" PRIu64
        " of the host held at most",
        holds.begun, holds.refused, ends.c_str(), holds.most(Tier::device), holds.most(Tier::host));
  }
  if (facts.roles) {
    const HandOverFigures& of = facts.roles->hand_overs;
    add("roles      %" PRIu64 " prefill and %" PRIu64 " decode engines: %" PRIu64 " hand-overs, %" PRIu64
        " pages, %.3f GB; %" PRIu64 " computed by their decode engine, %" PRIu64 " sent again",
        facts.roles->prefill, facts.roles->decode, of.hand_overs, of.pages,
        static_cast<double>(facts.roles->bytes) / 1e9, of.fell_back, of.sent_again);
  }
  if (facts.warm) {
    const RequestFigures& warm = facts.warm->figures;
    const auto quantile = [&](const DurationHistogram& of, std::uint64_t per_mille) {
      return decimal(of.quantile_seconds(per_mille), 4);
    };
    add("warm       from %.1f to %.1f s%s: %" PRIu64 " requests, %s %% hit%s", seconds(facts.warm->window.from),
        seconds(facts.warm->window.to), facts.warm->window.not_flat.empty() ? "" : ", not flat", warm.arrived,
        share_of(warm.hit.sum(), warm.prompt).c_str(), infinite(warm).c_str());
    add("           TTFT p50 %s   p90 %s   p99 %s   TPOT p50 %s   p90 %s   p99 %s s", quantile(warm.ttft, 500).c_str(),
        quantile(warm.ttft, 900).c_str(), quantile(warm.ttft, 990).c_str(), quantile(warm.tpot, 500).c_str(),
        quantile(warm.tpot, 900).c_str(), quantile(warm.tpot, 990).c_str());
    intervals("           80 %: ", warm, facts.warm->rates);
    if (!facts.warm->window.not_flat.empty()) add("           %s", facts.warm->window.not_flat.c_str());
  }
  if (const RequestCounter& counter = m.counter(); !counter.terms().counts_all()) {
    add("left out   %" PRIu64 " requests as warm-up, %" PRIu64 " as drain; the figures are of %.1f s",
        counter.left_out_as_warmup(), counter.left_out_as_drain(), seconds(counter.window_ns()));
    if (!facts.stages.empty()) out += stages_text(facts.stages, counter);
  }
  add("device     %" PRIu64 " of %" PRIu64 " pages used at most, %" PRIu64 " evicted",
      facts.tier(Tier::device).used_max, facts.tier(Tier::device).capacity, m.tier(Tier::device).evicted);
  if (facts.tier(Tier::host).capacity != 0) {
    add("host       %" PRIu64 " of %" PRIu64 " pages used at most, %" PRIu64 " evicted, %" PRIu64 " written, %" PRIu64
        " loaded back",
        facts.tier(Tier::host).used_max, facts.tier(Tier::host).capacity, m.tier(Tier::host).evicted,
        m.tier(Tier::host).written, m.loads.done);
  }
  for (const auto& spec : kStorageSpecs) {
    const Tier tier = spec.tier;
    if (facts.tier(tier).capacity == 0) continue;
    add("%-10s %" PRIu64 " of %" PRIu64 " pages used at most, %" PRIu64 " evicted, %" PRIu64 " written; %s %% hit",
        spec.name.data(), facts.tier(tier).used_max, facts.tier(tier).capacity, m.tier(tier).evicted,
        m.tier(tier).written, share(m.hit[tier]).c_str());
  }
  if (facts.stores() && facts.prefetches) {
    const Metrics::Prefetches& p = m.prefetches;
    add("prefetch   %" PRIu64 " issued: %" PRIu64 " completed, %" PRIu64 " failed, %" PRIu64 " stopped, %" PRIu64
        " revoked, %" PRIu64 " aborted, %zu open; %" PRIu64 " pages used of %" PRIu64
        ", %s %% of the prompt computed after a stop",
        p.issued, p.completed, p.failed, p.stopped, p.revoked, p.aborted, p.open.size(), p.used, p.arrived,
        share(m.recomputed_after_stop).c_str());
  }
  if (const auto fell_short = m.fell_short_of_all(); !fell_short.empty()) {
    std::string causes;
    for (const auto& [cause, pages] : fell_short) {
      causes += (causes.empty() ? "" : ", ") + std::to_string(pages) + " " + std::string(cause);
    }
    add("fell short %s (pages that storage didn't keep or bring)", causes.c_str());
  }
  out += lanes_text(lanes, facts.simulated_ns);
  if (facts.real) {
    const LoopReport& loop = facts.real->loop;
    const Verification& v = facts.real->verification;
    add("verified   %" PRIu64 " page reads (%.2f of %.2f GB checked) and %" PRIu64
        " pages at the end (%.2f GB): %" PRIu64 " wrong",
        v.pages_read, static_cast<double>(v.bytes_checked) / 1e9, static_cast<double>(v.bytes_read) / 1e9,
        v.pages_audited, static_cast<double>(v.bytes_audited) / 1e9, v.wrong_reads);
    if (v.draft_pages_read + v.draft_pages_left_out != 0) {
      add("draft      %" PRIu64 " of the page reads (%.2f GB) are the draft model's; %" PRIu64 " pages lacked its KV",
          v.draft_pages_read, static_cast<double>(v.draft_bytes_read) / 1e9, v.draft_pages_left_out);
    }
    if (v.windows.read + v.states.read != 0) {
      add("pools      %" PRIu64 " of the page reads are of windows (%.2f GB), %" PRIu64 " of states (%.2f GB); %" PRIu64
          " cached states were copied",
          v.windows.read, static_cast<double>(v.windows.bytes_read) / 1e9, v.states.read,
          static_cast<double>(v.states.bytes_read) / 1e9, v.states_copied);
    }
    add("loop       %" PRIu64
        " inputs, %.2f us each (median), policy %.2f %% of the time, arrivals late by %.0f us at "
        "most",
        loop.inputs, microseconds(loop.loop_median_ns),
        loop.run_ns == 0 ? 0.0 : 100.0 * static_cast<double>(loop.policy_ns) / static_cast<double>(loop.run_ns),
        microseconds(loop.arrival_late_max_ns));
  }
  if (facts.draws) out += draws_text(*facts.draws);
  for (const std::string& note : facts.notes) out += "note       " + note + "\n";
  add("decisions  %" PRIu64 ", digest %s", decisions.count, digest_text(decisions.digest).c_str());
  add("took       %.2f s, %.0f MiB", facts.wall_seconds, static_cast<double>(peak_rss_bytes()) / 1048576.0);
  for (const RunFacts::WarningFacts& warning : facts.warnings) out += "warning    " + warning.sentence + "\n";
  return out;
}

// Writes the families one after another: HELP, TYPE, samples. Names that begin with sglang: have SGLang's meaning.
// SGLang's labels pool and model_name are absent; a dashboard that sums over these labels works unchanged.
std::string prometheus_text(const RunFacts& facts, const Metrics& m, const std::vector<LaneUse>& lanes) {
  std::ostringstream out;
  std::string name;
  const auto family = [&](const char* family_name, const char* type, const char* help, const char* of = "sglang") {
    name = std::string(of) + ":" + family_name;
    out << "# HELP " << name << " " << help << "\n# TYPE " << name << " " << type << "\n";
  };
  const auto sample = [&](std::uint64_t value, const std::string& label = {}, std::string_view label_value = {}) {
    out << name;
    if (!label.empty()) out << "{" << label << "=\"" << label_value << "\"}";
    out << " " << value << "\n";
  };
  const auto counter = [&](const char* family_name, const char* help, std::uint64_t value) {
    family(family_name, "counter", help);
    sample(value);
  };
  const auto moved = [&](std::string_view direction) {
    Bytes bytes = 0;
    for (const LaneUse& lane : lanes) bytes += lane.name.ends_with(direction) ? lane.bytes : 0;
    return bytes;
  };
  // A histogram, if it has a sample; SGLang writes none before the first sample either. Only counts up to `bounds` are
  // written, which are some of the histogram's own.
  const auto histogram_of = [&](const char* family_name, const char* help, const Histogram& values,
                                std::span<const double> own, std::span<const double> bounds) {
    if (values.counts.empty()) return;
    family(family_name, "histogram", help);
    const std::string base = name;
    name = base + "_bucket";
    std::uint64_t up_to = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      up_to += values.counts[i];
      if (std::ranges::find(bounds, own[i]) != bounds.end()) sample(up_to, "le", decimal_text(own[i]));
    }
    up_to += values.counts.back();
    sample(up_to, "le", "+Inf");
    out << base << "_sum " << decimal_text(values.sum) << "\n" << base << "_count " << up_to << "\n";
  };
  // Of the lanes with one of these ends of a name.
  const auto histogram = [&](const char* family_name, const char* help, Histogram LaneUse::*which,
                             std::span<const double> own, std::span<const double> bounds,
                             const std::vector<std::string>& ends) {
    Histogram all;
    for (const LaneUse& lane : lanes) {
      if (std::ranges::none_of(ends, [&lane](const std::string& end) { return lane.name.ends_with(end); })) continue;
      const Histogram& one = lane.*which;
      all.counts.resize(std::max(all.counts.size(), one.counts.size()));
      for (std::size_t i = 0; i < one.counts.size(); ++i) all.counts[i] += one.counts[i];
      all.sum += one.sum;
    }
    histogram_of(family_name, help, all, own, bounds);
  };
  // The draft model's pages move with the target's, and the counters of bytes below are of both. SGLang has no names
  // for the parts.
  const auto put_components = [&] {
    const Json parts = components_json(facts, m, lanes);
    if (parts.empty()) return;
    const auto of_parts = [&](const char* family_name, const char* help, const auto& value) {
      family(family_name, "counter", help, "kvtwin");
      for (const Json& part : parts) sample(value(part), "component", part.at("name").get<std::string>());
    };
    of_parts("component_bytes_total", "Bytes moved, by the model that they belong to.",
             [](const Json& part) { return part.at("bytes").get<std::uint64_t>(); });
    of_parts("component_cached_tokens_total", "Prompt tokens found in the cache, by the model whose KV they had.",
             [&](const Json& part) { return part.at("hit_pages").get<std::uint64_t>() * facts.page_tokens; });
  };
  constexpr std::span<const double> kUpToASecond = std::span(kSecondsBounds).first(18);  // as SGLang's
  const Tokens page = facts.page_tokens;
  const bool host = facts.tier(Tier::host).capacity != 0;
  // SGLang has gauges of the pools' use now; here are the sizes, the most that was used, and what left.
  const auto put_pools = [&] {
    std::vector<std::string> of;
    for (const RunFacts::PoolFacts& pool : facts.pools) {
      of.push_back(std::string(name_of(pool.size.kind)) + "\",tier=\"" + std::string(name_of(pool.tier)) +
                   (pool.role.empty() ? "" : "\",role=\"" + pool.role));
    }
    if (of.empty()) return;
    const auto of_pools = [&](const char* family_name, const char* type, const char* help, const auto& value) {
      family(family_name, type, help, "kvtwin");
      for (std::size_t i = 0; i < of.size(); ++i) sample(value(facts.pools[i]), "pool", of[i]);
    };
    of_pools("pool_slots", "gauge", "Tokens that the pool has room for; of pool state, states.",
             [](const RunFacts::PoolFacts& pool) { return pool.size.slots; });
    of_pools("pool_used_slots_max", "gauge", "The most that was in use.",
             [](const RunFacts::PoolFacts& pool) { return pool.used_max; });
    of_pools("pool_evicted_slots_total", "counter", "What was evicted.",
             [&](const RunFacts::PoolFacts& pool) { return evicted_of(facts, pool, m); });
    family("unusable_tokens_total", "counter",
           "Computed prompt tokens that were in memory, and lacked a window or a state.", "kvtwin");
    sample(m.unusable);
  };
  counter("num_requests_total", "Requests that arrived.", m.arrived);
  counter("num_retractions_total", "Retractions of running requests by a full device.", m.retractions);
  counter("prompt_tokens_total", "Prompt tokens of completed requests.", m.prompt);
  counter("generation_tokens_total", "Output tokens of completed requests.", m.output);
  family("cached_tokens_total", "counter", "Prompt tokens found in the cache, by the tier that had them.");
  sample(m.hit[Tier::device], "cache_source", "device");
  if (host) sample(m.hit[Tier::host], "cache_source", "host");
  Pages stored = 0;
  for (const TierSpec& spec : kStorageSpecs) {
    if (facts.tier(spec.tier).capacity == 0) continue;
    sample(m.hit[spec.tier], "cache_source", "storage_" + std::string(spec.name));
    stored += m.tier(spec.tier).written;
  }
  if (facts.stores()) {
    counter("prefetched_tokens_total", "Tokens fetched from storage tiers ahead of need.",
            m.prefetches.arrived_in_time() * page);
    counter("backuped_tokens_total", "Tokens written to storage tiers.", stored * page);
    counter("storage_prefetch_hit_tokens_total", "Tokens that the look-ups of prefetches found.",
            m.server.storage_hit * page);
    family("storage_prefetch_unfulfilled_tokens_total", "counter", "Such tokens that no request could use, by reason.");
    for (const auto& [reason, pages] : m.server.unfulfilled) sample(pages * page, "reason", reason);
    family("storage_prefetch_deferred_tokens_total", "counter", "Tokens whose prefetch is tried again, by reason.");
    for (const auto& [reason, pages] : m.server.deferred) sample(pages * page, "reason", reason);
    std::vector<std::string> reads, writes;
    for (const LaneSpec& lane : kLaneSpecs) {
      if (lane.kind == LaneKind::storage || lane.kind == LaneKind::direct) {
        (lane.reads ? reads : writes).emplace_back(lane.name);
      }
    }
    histogram("prefetch_pgs", "Pages of a transfer from a storage tier.", &LaneUse::pages, kPagesBounds, kPagesBounds,
              reads);
    histogram("backup_pgs", "Pages of a transfer to a storage tier.", &LaneUse::pages, kPagesBounds, kPagesBounds,
              writes);
    histogram("prefetch_bandwidth", "GB/s of a transfer from a storage tier.", &LaneUse::gigabytes_per_second,
              kGigabytesPerSecondBounds, kGigabytesPerSecondBounds, reads);
    histogram("backup_bandwidth", "GB/s of a transfer to a storage tier.", &LaneUse::gigabytes_per_second,
              kGigabytesPerSecondBounds, kGigabytesPerSecondBounds, writes);
  }
  counter("evicted_tokens_total", "Tokens evicted from the device.", m.tier(Tier::device).evicted * page);
  histogram_of("eviction_duration_seconds", "Seconds of a device eviction pass, with its wait for write-backs.",
               m.server.evictions, kSecondsBounds, kUpToASecond);
  put_components();
  put_pools();
  if (!host) return out.str();
  counter("load_back_tokens_total", "Tokens loaded from the host to the device.", m.loads.done * page);
  counter("load_back_bytes_total", "Bytes moved from the host to the device, of all ranks.", moved(".h2d"));
  counter("hicache_backup_tokens_total", "Tokens written from the device to the host.",
          m.tier(Tier::host).written * page);
  counter("hicache_backup_bytes_total", "Bytes moved from the device to the host, of all ranks.", moved(".d2h"));
  // All ranks copy at the same time; rank 0 stands for all.
  histogram("load_back_duration_seconds", "Seconds of a copy from the host to the device.", &LaneUse::seconds,
            kSecondsBounds, kUpToASecond, {"gpu0.h2d"});
  constexpr std::array kBackupBounds{0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0};
  histogram("hicache_backup_duration_seconds", "Seconds of a copy from the device to the host.", &LaneUse::seconds,
            kSecondsBounds, kBackupBounds, {"gpu0.d2h"});
  if (!m.tier(Tier::device).dropped.empty()) {
    family("hicache_dropped_tokens_total", "counter", "Tokens lost that were to be written back to the host.");
    for (const auto& [reason, pages] : m.tier(Tier::device).dropped) sample(pages * page, "reason", reason);
  }
  if (!m.tier(Tier::host).dropped.empty()) {
    family("hicache_backup_dropped_tokens_total", "counter", "Tokens that were to be written to the host and weren't.");
    for (const auto& [reason, pages] : m.tier(Tier::host).dropped) sample(pages * page, "reason", reason);
  }
  family("hicache_host_used_tokens", "gauge", "Tokens that the host held at most at once.");
  sample(facts.tier(Tier::host).used_max * page);
  family("hicache_host_total_tokens", "gauge", "Tokens that the host can hold.");
  sample(facts.tier(Tier::host).capacity * page);
  return out.str();
}

// ---- files -------------------------------------------------------------------------------------------

namespace {

// Returns the canonical path, without links, dots or a slash at the end. A folder can only be renamed under its real
// parent.
fs::path whole_path(const fs::path& path) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) throw WorkError("--out " + path.string() + ": can't be written: " + error.message());
  return whole.has_filename() ? whole : whole.parent_path();
}

}  // namespace

RunFolder::RunFolder(fs::path path, bool force, Appears appears, RequestColumns columns)
    : path_(std::move(path)), target_(whole_path(path_)), appears_(appears), columns_(columns) {
  std::error_code error;
  if (fs::exists(target_, error) && !fs::is_directory(target_, error)) {
    throw InputError("--out " + path_.string() + ": is a file; give a folder");
  }
  const bool full = fs::exists(target_, error) && !fs::is_empty(target_, error);
  if (full && !force) {
    throw InputError("--out " + path_.string() + ": is not empty; give another folder, or --force to replace it");
  }
  // The folder of a run that was cut short is a run folder too.
  const bool ours = std::ranges::any_of(std::array{"report.json", "experiment.resolved.toml"},
                                        [&](const char* name) { return fs::exists(target_ / name, error); });
  if (full && !ours) {
    throw InputError("--out " + path_.string() +
                     ": is not empty and holds no report.json; --force replaces run folders only");
  }
  // An existing empty folder may be a mount point, so it is filled and not replaced.
  fill_ = fs::exists(target_, error) && !full;
  staging_ = !fill_ ? beside("partial") : appears_ == Appears::at_once ? target_ : target_ / ".partial";
  make_out_folder(staging_, error);
  if (error) throw WorkError("--out " + path_.string() + ": can't be written: " + error.message());
  try {
    if (appears_ == Appears::at_once && !fill_) {
      move_into_place();
      staging_ = target_;
    }
    errno = 0;
    requests_.open(staging_ / "requests.csv");
    if (!requests_) throw cannot_write("--out " + path_.string(), errno);
  } catch (...) {
    undo();
    throw;
  }
  requests_ << "request,arrival_s,prompt_tokens,output_tokens,";
  for (const TierSpec& spec : kTierSpecs) requests_ << spec.hit_column << ',';
  requests_ << "miss,recomputed_after_stop,retracted_recompute,queue_s,prefetch_wait_s,load_wait_s,compute_s,"
            << (columns_.hand_over ? "hand_over_s," : "") << "ttft_s,tpot_s,e2e_s,retractions,outcome"
            << (columns_.pools ? ",unusable,without_window,without_state" : "")
            << (columns_.engine ? ",engine\n" : "\n");
}

RunFolder::~RunFolder() {
  if (!committed_ && !recorded_) undo();
}

// Removes everything that this object has written, and restores the replaced folder.
void RunFolder::undo() {
  std::error_code ignored;
  requests_.close();
  if (staging_ == target_ && fill_) {
    for (const fs::directory_entry& entry : fs::directory_iterator(target_, ignored)) {
      fs::remove_all(entry.path(), ignored);
    }
    return;
  }
  fs::remove_all(staging_, ignored);
  if (!replaced_.empty()) fs::rename(replaced_, target_, ignored);
}

void RunFolder::forget_replaced() {
  std::error_code ignored;
  if (!replaced_.empty()) fs::remove_all(std::exchange(replaced_, {}), ignored);
}

// Returns a hidden path next to the folder, unique to this process.
fs::path RunFolder::beside(const char* what) const {
  return target_.parent_path() / ("." + target_.filename().string() + "." + what + "." + std::to_string(getpid()));
}

void RunFolder::on_event(const Event& event) {
  if (event.kind != EventKind::finished && event.kind != EventKind::rejected) return;
  if (appears_ == Appears::at_once && !std::exchange(recorded_, true)) forget_replaced();
  const RequestRecord& r = *event.record;
  char line[640];
  int length = 0;
  if (event.kind == EventKind::rejected) {
    const std::string no_hits(kTiers, ',');
    length = std::snprintf(line, sizeof line, "%" PRIu64 ",%.9f,%" PRIu64 ",%" PRIu64 ",%s,,,,,,,,,,,%srejected:%s",
                           r.request, seconds(r.arrival), r.prompt_tokens, r.output_tokens, no_hits.c_str(),
                           columns_.hand_over ? "," : "", std::string(name_of(r.rejected)).c_str());
  } else {
    char hits[21 * kTiers + 1];
    char* end = hits;
    for (const Tokens tokens : r.hit) {
      end = std::to_chars(end, std::end(hits), tokens).ptr;
      *end++ = ',';
    }
    *end = '\0';
    // A request with one output token has no TPOT, so the cell is empty.
    char tpot[32] = "";
    if (r.output_tokens > 1) {
      std::snprintf(tpot, sizeof tpot, "%.9f",
                    seconds(r.finished - r.first_token) / static_cast<double>(r.output_tokens - 1));
    }
    char hand_over[32] = "";
    if (columns_.hand_over) std::snprintf(hand_over, sizeof hand_over, ",%.9f", seconds(r.hand_over_ns));
    length = std::snprintf(line, sizeof line,
                           "%" PRIu64 ",%.9f,%" PRIu64 ",%" PRIu64 ",%s%" PRIu64 ",%" PRIu64 ",%" PRIu64
                           ",%.9f,%.9f,%.9f,%.9f%s,%.9f,%s,%.9f,%u,completed",
                           r.request, seconds(r.arrival), r.prompt_tokens, r.output_tokens, hits, r.miss,
                           r.recomputed_after_stop, r.retracted_recompute, seconds(r.queue_ns),
                           seconds(r.prefetch_wait_ns), seconds(r.load_wait_ns), seconds(r.compute_ns), hand_over,
                           seconds(r.first_token - r.arrival), tpot, seconds(r.finished - r.arrival), r.retractions);
  }
  requests_.write(line, length);
  if (columns_.pools && event.kind == EventKind::rejected) {
    requests_ << ",,,";
  } else if (columns_.pools) {
    requests_ << ',' << r.unusable << ',' << r.without_window << ',' << r.without_state;
  }
  if (columns_.engine) requests_ << ',' << event.engine;
  requests_ << '\n';
}

void RunFolder::write(const std::string& name, const std::string& content) {
  errno = 0;
  std::ofstream out(staging_ / name, std::ios::binary);
  out << content;
  out.close();
  if (!out) throw cannot_write(path_ / name, errno);
}

void RunFolder::write_lanes(const std::vector<LaneUse>& lanes) {
  std::ostringstream out;
  out << "lane,window_start_s,window_s,busy_fraction,bytes\n";
  for (const LaneUse& lane : lanes) {
    const std::size_t windows = lane.window_busy_ns.size();
    const auto is_idle = [&lane](std::size_t i) { return lane.window_busy_ns[i] == 0 && lane.window_bytes[i] == 0; };
    for (std::size_t first = 0, next = 0; first < windows; first = next) {
      // An idle stretch is one row, so the size of the file grows with the work and not with the time of the trace.
      next = first + 1;
      while (is_idle(first) && next < windows && is_idle(next)) ++next;
      char line[160];
      std::snprintf(line, sizeof line, "%s,%.3f,%.3f,%.6f,%" PRIu64 "\n", lane.name.c_str(),
                    seconds(lane.window_ns) * static_cast<double>(first),
                    seconds(lane.window_ns) * static_cast<double>(next - first),
                    static_cast<double>(lane.window_busy_ns[first]) / static_cast<double>(lane.window_ns),
                    lane.window_bytes[first]);
      out << line;
    }
  }
  write("lanes.csv", out.str());
}

void RunFolder::move_into_place() {
  std::error_code error, ignored;
  if (fill_) {
    for (const fs::directory_entry& entry : fs::directory_iterator(staging_, error)) {
      if (!error) fs::rename(entry.path(), target_ / entry.path().filename(), error);
    }
    if (!error) fs::remove(staging_, ignored);
  } else {
    // The old folder gets a temporary name first, so the path never has files of two runs.
    const fs::path aside = beside("replaced");
    if (fs::exists(target_, error)) {
      fs::rename(target_, aside, error);
      if (!error) replaced_ = aside;
    }
    if (!error) fs::rename(staging_, target_, error);
    if (error && !replaced_.empty()) fs::rename(std::exchange(replaced_, {}), target_, ignored);
  }
  if (error) throw WorkError("--out " + path_.string() + ": can't be moved into place: " + error.message());
}

void RunFolder::commit() {
  errno = 0;
  requests_.close();
  if (!requests_) throw cannot_write(path_ / "requests.csv", errno);
  if (appears_ == Appears::whole) move_into_place();
  committed_ = true;
  forget_replaced();
}

}  // namespace kvtwin

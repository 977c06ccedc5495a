#include "lab/report/figures.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lab/error.hpp"
#include "lab/names.hpp"
#include "lab/units.hpp"
#include "models/json.hpp"
#include "models/names.hpp"
#include "policy/base/check.hpp"
#include "policy/base/tiers.hpp"

namespace kvtwin {
namespace {

using Better = RunFigure::Better;
using Column = RunFigure::Column;
using RunUnit = RunFigure::Unit;

constexpr RunFigure kFigures[] = {
    {"hit_ratio", "prompt tokens hit", "hit %", 100, RunUnit::share, Better::more, Column::always,
     "share of the prompt tokens that were hit in any tier"},
    {"saved_s", "prefill time saved by hits", "saved s", 1, RunUnit::seconds, Better::more, Column::always,
     "prefill time that the hits saved"},
    {"gap_closed", "gap to optimal closed", "gap closed", 1, RunUnit::share, Better::neither, Column::always,
     "(hits - hits of LRU) / (optimal hits - hits of LRU)"},
    {"infinite_hit_ratio", "hit by an infinite cache", "infinite %", 100, RunUnit::share, Better::neither,
     Column::if_present, "share of the prompt tokens that an infinite cache hits, of the same requests as hit_ratio"},
    {"states_opt_hit_ratio", "hit at most, with so many states", "states' bound %", 100, RunUnit::share,
     Better::neither, Column::if_present,
     "share of the prompt tokens that no cache with the run's states and pages hits more than"},
    {"ttft_mean_s", "TTFT mean", "TTFT mean s", 1, RunUnit::seconds, Better::less, Column::always,
     "time to first token, mean"},
    {"ttft_p50_s", "TTFT p50", "TTFT p50 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "time to first token, median"},
    {"ttft_p90_s", "TTFT p90", "TTFT p90 s", 1, RunUnit::seconds, Better::less, Column::always,
     "time to first token, 90th percentile"},
    {"ttft_p95_s", "TTFT p95", "TTFT p95 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "time to first token, 95th percentile"},
    {"ttft_p99_s", "TTFT p99", "TTFT p99 s", 1, RunUnit::seconds, Better::less, Column::always,
     "time to first token, 99th percentile"},
    {"tpot_mean_s", "TPOT mean", "TPOT mean s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "time per output token of a request, mean"},
    {"tpot_p50_s", "TPOT p50", "TPOT p50 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "time per output token of a request, median"},
    {"tpot_p90_s", "TPOT p90", "TPOT p90 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "time per output token of a request, 90th percentile"},
    {"tpot_p95_s", "TPOT p95", "TPOT p95 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "time per output token of a request, 95th percentile"},
    {"tpot_p99_s", "TPOT p99", "TPOT p99 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "time per output token of a request, 99th percentile"},
    {"e2e_mean_s", "end to end mean", "end to end mean s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "from arrival to last token, mean"},
    {"e2e_p50_s", "end to end p50", "end to end p50 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "from arrival to last token, median"},
    {"e2e_p90_s", "end to end p90", "end to end p90 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "from arrival to last token, 90th percentile"},
    {"e2e_p95_s", "end to end p95", "end to end p95 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "from arrival to last token, 95th percentile"},
    {"e2e_p99_s", "end to end p99", "end to end p99 s", 1, RunUnit::seconds, Better::less, Column::on_demand,
     "from arrival to last token, 99th percentile"},
    {"hand_over_mean_s", "hand-over mean", "hand-over mean s", 1, RunUnit::seconds, Better::less, Column::if_present,
     "from the end of the prompt to its last page on the decode engine, mean"},
    {"hand_over_p99_s", "hand-over p99", "hand-over p99 s", 1, RunUnit::seconds, Better::less, Column::if_present,
     "from the end of the prompt to its last page on the decode engine, 99th percentile"},
    {"hand_over_bytes", "bytes handed over", "hand-over GB", 1e-9, RunUnit::bytes, Better::less, Column::on_demand,
     "bytes that prefill engines wrote into decode engines"},
    {"hinted_ttft_mean_s", "TTFT mean with hints", "hinted TTFT mean s", 1, RunUnit::seconds, Better::less,
     Column::if_present, "time to first token of requests whose session has given hints, mean"},
    {"hinted_ttft_p90_s", "TTFT p90 with hints", "hinted TTFT p90 s", 1, RunUnit::seconds, Better::less,
     Column::if_present, "time to first token of requests whose session has given hints, 90th percentile"},
    {"not_hinted_ttft_mean_s", "TTFT mean without hints", "others' TTFT mean s", 1, RunUnit::seconds, Better::less,
     Column::if_present, "time to first token of the other requests, mean"},
    {"not_hinted_ttft_p90_s", "TTFT p90 without hints", "others' TTFT p90 s", 1, RunUnit::seconds, Better::less,
     Column::if_present, "time to first token of the other requests, 90th percentile"},
    {"hinted_hit_ratio", "hit with hints", "hinted hit %", 100, RunUnit::share, Better::more, Column::if_present,
     "share of the prompt tokens hit, of requests whose session has given hints"},
    {"not_hinted_hit_ratio", "hit without hints", "others' hit %", 100, RunUnit::share, Better::more,
     Column::if_present, "share of the prompt tokens hit, of the other requests"},
    {"good_share", "good requests", "good %", 100, RunUnit::share, Better::more, Column::if_present,
     "share of all requests that complete within all limits of slo.*"},
    {"goodput_per_second", "good requests per second", "goodput/s", 1, RunUnit::plain, Better::more, Column::if_present,
     "requests per second that complete within all limits of slo.*"},
    {"requests_per_second", "requests per second", "requests/s", 1, RunUnit::plain, Better::more, Column::on_demand,
     "completed requests per second"},
    {"prompt_tokens_per_second", "prompt tokens per second", "prompt tokens/s", 1, RunUnit::plain, Better::more,
     Column::on_demand, "prompt tokens per second"},
    {"output_tokens_per_second", "output tokens per second", "output tokens/s", 1, RunUnit::plain, Better::more,
     Column::on_demand, "output tokens per second"},
    {"hit_device_share", "hit in device", "device hit %", 100, RunUnit::share, Better::more, Column::on_demand,
     "share of the prompt tokens hit on the device"},
    {"hit_host_share", "hit in host", "host hit %", 100, RunUnit::share, Better::more, Column::on_demand,
     "share of the prompt tokens hit on the host"},
    {"hit_disk_share", "hit in disk", "disk hit %", 100, RunUnit::share, Better::more, Column::on_demand,
     "share of the prompt tokens hit on the disk"},
    {"hit_shared_fs_share", "hit in shared file system", "shared_fs hit %", 100, RunUnit::share, Better::more,
     Column::on_demand, "share of the prompt tokens hit on the shared file system"},
    {"hit_remote_share", "hit in remote pool", "remote hit %", 100, RunUnit::share, Better::more, Column::on_demand,
     "share of the prompt tokens hit in the remote pool"},
    {"rejected_share", "rejected", "rejected %", 100, RunUnit::share, Better::less, Column::never,
     "rejected requests of all requests"},
    {"failed_share", "failed", "failed %", 100, RunUnit::share, Better::less, Column::never,
     "failed requests of all requests"},
    {"gpus", "GPUs", "GPUs", 1, RunUnit::plain, Better::less, Column::on_demand, "GPUs of all engines"},
    {"written_host_bytes", "written to host", "host written GB", 1e-9, RunUnit::bytes, Better::less, Column::on_demand,
     "bytes written into the host tier"},
    {"written_disk_bytes", "written to disk", "disk written GB", 1e-9, RunUnit::bytes, Better::less, Column::on_demand,
     "bytes written into the disk tiers of all engines"},
    {"written_shared_fs_bytes", "written to shared file system", "shared_fs written GB", 1e-9, RunUnit::bytes,
     Better::less, Column::on_demand, "bytes written into the shared file system"},
    {"written_remote_bytes", "written to remote pool", "remote written GB", 1e-9, RunUnit::bytes, Better::less,
     Column::on_demand, "bytes written into the remote pool"},
    {"disk_writes_per_day", "disk writes per day", "disk writes/day", 1, RunUnit::plain, Better::less,
     Column::on_demand, "bytes that the disk tier would take per day at this rate / its capacity, as a drive's DWPD"},
    {"drive_years", "life of the drives", "drive years", 1, RunUnit::years, Better::more, Column::on_demand,
     "life of the drives at this rate of writes, by the price list's endurance"},
    {"price_per_month", "price per month", "price/month", 1, RunUnit::plain, Better::less, Column::on_demand,
     "price of all parts per month, in the currency of the price list"},
    {"price_per_million_tokens", "price per million tokens", "price/M tokens", 1, RunUnit::plain, Better::less,
     Column::on_demand, "price of all parts per million prompt and output tokens at the rate of the run"},
    {"power_kw", "power", "kW", 1, RunUnit::kilowatts, Better::less, Column::on_demand,
     "power of all parts with the site's overhead"},
    {"opt_hit_ratio", "hit by optimal", "", 1, RunUnit::share, Better::neither, Column::never,
     "hit ratio of an optimal cache as large as all tiers"},
    {"opt_saved_s", "prefill time saved by optimal", "", 1, RunUnit::seconds, Better::neither, Column::never,
     "prefill time that the hits of the optimal cache save"},
    {"lru_hit_ratio", "hit by LRU, single cache", "", 1, RunUnit::share, Better::neither, Column::never,
     "hit ratio of LRU in a cache as large as all tiers"},
    {"lru_saved_s", "prefill time saved by LRU, single cache", "", 1, RunUnit::seconds, Better::neither, Column::never,
     "prefill time that the hits of this LRU save"},
};

// Columns of rows of simulations that sweep.show names too.
constexpr RunFigure kRowFigures[] = {
    {"hit_device", "tokens hit on the device", "", 1, RunUnit::count, Better::neither, Column::never,
     "prompt tokens hit on the device"},
    {"hit_host", "tokens hit on the host", "", 1, RunUnit::count, Better::neither, Column::never,
     "prompt tokens hit on the host"},
    {"hit_disk", "tokens hit on the disk", "", 1, RunUnit::count, Better::neither, Column::never,
     "prompt tokens hit on the disk"},
    {"hit_shared_fs", "tokens hit on the shared file system", "", 1, RunUnit::count, Better::neither, Column::never,
     "prompt tokens hit on the shared file system"},
    {"hit_remote", "tokens hit in the remote pool", "", 1, RunUnit::count, Better::neither, Column::never,
     "prompt tokens hit in the remote pool"},
    {"ttft_queue_s", "mean wait in the queue", "", 1, RunUnit::seconds, Better::neither, Column::never,
     "part of the mean TTFT: wait for the first batch"},
    {"ttft_prefetch_wait_s", "mean wait for the prefetch", "", 1, RunUnit::seconds, Better::neither, Column::never,
     "part of the mean TTFT: wait for the prefetch from L3"},
    {"ttft_load_wait_s", "mean wait for loads", "", 1, RunUnit::seconds, Better::neither, Column::never,
     "part of the mean TTFT: wait for loads into the device"},
    {"ttft_compute_s", "mean prefill compute", "", 1, RunUnit::seconds, Better::neither, Column::never,
     "part of the mean TTFT: compute of the prompt"},
    {"ttft_hand_over_s", "mean wait for the hand-over", "", 1, RunUnit::seconds, Better::neither, Column::never,
     "part of the mean TTFT: hand-over to the decode engine"},
    {"l3_read_bytes", "bytes read from L3", "", 1, RunUnit::bytes, Better::neither, Column::never,
     "bytes that all engines read from the disk and the remote pool"},
    {"l3_read_gbps", "rate of reads from L3", "", 1, RunUnit::gigabytes_per_second, Better::neither, Column::never,
     "rate of the reads from L3 while a lane is busy"},
    {"objects_read", "objects read", "", 1, RunUnit::count, Better::neither, Column::never,
     "storage objects of the pages read from L3"},
};

// Adds the mean and the quantiles of `from` (e.g. tpot_seconds) as PREFIX_mean_s, PREFIX_p50_s ...
void put_times(Json& row, const Json& from, const std::string& prefix) {
  for (const char* which : {"mean", "p50", "p90", "p95", "p99"}) row[prefix + "_" + which + "_s"] = from.at(which);
}

// The 80 % interval of each TTFT and TPOT is from the figure times `_factor_low` to the figure times `_factor_high`.
void put_errors(Json& row, const Json& report) {
  const Json* const intervals = report.find_path("/intervals");
  for (const char* prefix : {"ttft", "tpot"}) {
    const std::string name = std::string(prefix) + "_mean_s", factor = std::string(prefix) + "_factor_";
    const bool known = intervals != nullptr && intervals->contains(name) && row.at(name) != 0;
    for (const std::size_t end : {0U, 1U}) {
      row[factor + (end == 0 ? "low" : "high")] =
          known ? Json(std::round(1e3 * intervals->at(name).at(end).get<double>() / row.at(name).get<double>()) / 1e3)
                : Json();
    }
  }
  std::string of;
  if (intervals != nullptr) {
    const Json& runs = report.at("intervals_of");
    of = runs.at("runs");
    for (const Json& sentence : runs.at("widened")) of += "; " + sentence.get<std::string>();
  }
  row["factors_of"] = of;
}

Json ratio(const Json& part, double whole) {
  if (!part.is_number() || whole <= 0) return nullptr;
  return part.get<double>() / whole;
}

}  // namespace

std::span<const RunFigure> figures() { return kFigures; }

std::span<const RunFigure> row_figures() { return kRowFigures; }

Json figures_json() {
  static constexpr const char* kUnits[] = {"plain", "count",    "seconds", "share", "bytes", "gigabytes_per_second",
                                           "years", "kilowatts"};
  static constexpr const char* kBetter[] = {"", "more", "less"};
  Json json = Json::object();
  for (const auto& list : {figures(), row_figures()}) {
    for (const RunFigure& figure : list) {
      Json& one = json[std::string(figure.name)];
      one = {{"words", figure.words}, {"unit", kUnits[static_cast<std::size_t>(figure.unit)]}};
      if (figure.better != Better::neither) one["better"] = kBetter[static_cast<std::size_t>(figure.better)];
      one["help"] = figure.help;
    }
  }
  return json;
}

std::size_t figure_index(std::string_view name) {
  const auto at = std::ranges::find(kFigures, name, &RunFigure::name);
  KV_CHECK(at != std::end(kFigures), "the name is a figure's");
  return static_cast<std::size_t>(at - std::begin(kFigures));
}

Json better_json() {
  Json json = Json::object();
  for (const RunFigure& figure : kFigures) {
    if (figure.better == Better::neither) continue;
    json[std::string(figure.name)] = figure.better == Better::less ? "less" : "more";
  }
  return json;
}

Goal Goal::from_text(const std::string& text) {
  const std::size_t equals = text.find('=');
  std::vector<std::string> known;
  for (const RunFigure& figure : kFigures) {
    if (figure.better != Better::neither) known.emplace_back(figure.name);
  }
  if (equals == std::string::npos) throw InputError("--goal " + text + ": must be FIGURE=VALUE, e.g. ttft_p90_s=2");
  const std::string name = text.substr(0, equals);
  if (std::ranges::find(known, name) == known.end()) {
    throw InputError("--goal: " + unknown_name("figure", name, known));
  }
  Goal goal{figure_index(name), 0};
  const std::string value = text.substr(equals + 1);
  const bool share = name.ends_with("_share") || name.ends_with("_ratio");
  const bool is_above_0 = kFigures[goal.figure].better == Better::less && !share && !name.ends_with("_bytes");
  if (begins_as_number(value)) goal.value = number_in(unit_named(name), value, "--goal " + text + ": " + name);
  if (begins_as_number(value) && goal.value == 0 && is_above_0) {
    throw InputError("--goal " + text + ": no system has a " + name + " of 0; give a number above 0");
  }
  if (!begins_as_number(value) || !(goal.value >= 0) || !(goal.value <= (share ? 1 : 1e18))) {
    throw InputError("--goal " + text + ": '" + value + "' must be a number from 0 to " + (share ? "1" : "1e18"));
  }
  return goal;
}

bool Goal::met_by(double figure_value) const {
  return kFigures[figure].better == Better::less ? figure_value <= value : figure_value >= value;
}

Json report_figures(const Json& whole) {
  // The figures of requests are those of the warm part, where the report has it.
  Json report = whole;
  if (whole.contains("warm")) report.update(whole.at("warm"));
  Json row;
  const Json& requests = report.at("requests");
  row["requests"] = requests.at("total");
  for (const char* name : {"completed", "rejected", "failed", "rejected_share", "failed_share"}) {
    row[name] = requests.at(name);
  }
  put_times(row, report.at("ttft_seconds"), "ttft");
  const Json& parts = report.at("ttft_parts_seconds");
  for (const char* part : {"queue", "prefetch_wait", "load_wait", "compute"}) {
    row[std::string("ttft_") + part + "_s"] = parts.at(part);
  }
  row["ttft_hand_over_s"] = parts.value("hand_over", Json());  // only with cluster.prefill; the columns exist anyway
  const Json hand_over = report.value("hand_over_seconds", Json::object());
  row["hand_over_mean_s"] = hand_over.value("mean", Json());
  row["hand_over_p99_s"] = hand_over.value("p99", Json());
  row["hand_over_bytes"] = report.value("hand_overs", Json::object()).value("bytes", Json());
  for (const std::string name : {"hinted", "not_hinted"}) {
    const Json of = report.value(name, Json::object());  // only with hints; the columns exist anyway
    const Json times = of.value("ttft_seconds", Json::object());
    row[name + "_ttft_mean_s"] = times.value("mean", Json());
    row[name + "_ttft_p90_s"] = times.value("p90", Json());
    row[name + "_hit_ratio"] = ratio(of.value("hit_tokens", Json()), of.value("prompt_tokens", 0.0));
  }
  put_times(row, report.at("tpot_seconds"), "tpot");
  put_times(row, report.at("e2e_seconds"), "e2e");
  const Json slo = report.value("slo", Json::object());
  row["good_share"] = slo.value("good_share", Json());
  row["goodput_per_second"] = slo.value("goodput_per_second", Json());
  const Json& tokens = report.at("tokens");
  const double prompt = tokens.at("prompt");
  row["prompt_tokens"] = tokens.at("prompt");
  double hits = 0;
  for (const TierSpec& spec : kTierSpecs) {
    const std::string column(spec.hit_column);
    row[column] = tokens.at(column);
    row[column + "_share"] = ratio(tokens.at(column), prompt);
    hits += tokens.at(column).get<double>();
  }
  for (const char* name : {"recomputed_after_stop", "miss"}) row[name] = tokens.at(name);
  row["hit_ratio"] = ratio(hits, prompt);
  row["infinite_hit_ratio"] = ratio(tokens.value("infinite_cache_hit", Json()), prompt);
  const Json bounds = whole.value("bounds", Json::object());  // only with report.bounds; the columns exist anyway
  row["hit_opt"] = bounds.value("eviction_opt_hit_tokens", Json());
  row["hit_lru"] = bounds.value("lru_hit_tokens", Json());
  row["opt_hit_ratio"] = ratio(row["hit_opt"], prompt);
  row["states_opt_hit_ratio"] = ratio(bounds.value("states_opt_hit_tokens", Json()), prompt);
  row["lru_hit_ratio"] = ratio(row["hit_lru"], prompt);
  row["gap_closed"] = bounds.value("gap_closed", Json());
  row["saved_s"] = report.at("saved_seconds");
  row["opt_saved_s"] = bounds.value("eviction_opt_saved_seconds", Json());
  row["lru_saved_s"] = bounds.value("lru_saved_seconds", Json());
  row["gpus"] = report.at("gpus");
  for (const TierSpec& spec : kTierSpecs) {
    if (spec.tier != Tier::device) row["written_" + std::string(spec.name) + "_bytes"] = nullptr;
  }
  row["disk_writes_per_day"] = nullptr;
  for (const Json& tier : report.at("tiers")) {
    const std::string name = tier.at("name");
    if (name != name_of(Tier::device)) row["written_" + name + "_bytes"] = tier.at("written_bytes");
    if (name == name_of(Tier::disk)) row["disk_writes_per_day"] = tier.at("writes_per_day");
  }
  const Json price = report.value("price", Json::object());  // only if the price list has the GPU
  row["drive_years"] = price.value("drives", Json::object()).value("years", Json());
  for (const char* name : {"per_month", "per_million_tokens"}) {
    row[std::string("price_") + name] = price.value(name, Json());
  }
  row["power_kw"] = price.value("power_kw", Json());
  const Json& prefetch = report.at("prefetch");
  for (const char* name : {"issued", "completed", "stopped", "revoked"}) {
    row[std::string("prefetch_") + name] = prefetch.at(name);
  }
  std::uint64_t declined = 0;
  for (const auto& [reason, count] : prefetch.at("declined").items()) declined += count.get<std::uint64_t>();
  row["prefetch_declined"] = declined;
  double bytes = 0, busy = 0;
  const double simulated = report.at("simulated_seconds");
  for (const Json& lane : report.at("lanes")) {
    std::string name = lane.at("name");
    name.erase(0, name.rfind('.') + 1);  // removes the number of the engine
    if (name != "disk_read" && name != "remote_read" && name != "direct_read") continue;
    bytes += lane.at("bytes").get<double>();
    busy += lane.at("busy_fraction").get<double>() * simulated;
  }
  row["l3_read_bytes"] = static_cast<std::uint64_t>(bytes);
  row["l3_read_busy_s"] = busy;
  row["l3_read_gbps"] = busy > 0 ? Json(bytes / busy / 1e9) : Json();  // rate while the lane is busy
  for (const char* name : {"requests_per_second", "prompt_tokens_per_second", "output_tokens_per_second"}) {
    row[name] = report.at("throughput").at(name);
  }
  row["simulated_s"] = simulated;
  put_errors(row, report);
  std::string warnings;
  for (const Json& name : report.value("warnings", Json::array())) {
    warnings += (warnings.empty() ? "" : " ") + name.get<std::string>();
  }
  row["warnings"] = warnings;
  row["decisions_digest"] = report.at("decisions").at("digest");
  return row;
}

}  // namespace kvtwin

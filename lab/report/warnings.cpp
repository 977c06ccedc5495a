#include "lab/report/warnings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "lab/decision_text.hpp"
#include "lab/formatted.hpp"
#include "lab/names.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kMinPrefetches = 10;  // fewer prefetches are no evidence
constexpr double kMinDroppedShare = 0.01;     // dropped pages / pages to back up
constexpr double kMinBusyShare = 0.95;        // busy time / time of a lane
constexpr std::uint64_t kMinWaits = 30;       // fewer requests show no trend
constexpr double kMinGrowth = 1.25;           // mean wait of the last third / of the first third
constexpr double kMinGrowthOfSpan = 0.01;     // difference of these mean waits / time of all arrivals
constexpr double kMinRejectedShare = 0.05;    // requests rejected because the queue was full / arrivals

std::string percent(double share) { return formatted("%.0f %%", 100 * share); }
std::string percent(std::uint64_t part, std::uint64_t all) {
  return percent(static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(1, all)));
}

// Returns the size in GiB, rounded up.
std::string gib(double bytes) {
  const double value = bytes / 1073741824.0;
  const double unit = value >= 100 ? 1 : value >= 1 ? 0.1 : 0.0001;
  return formatted("%.*f GiB", value >= 100 ? 0 : value >= 1 ? 1 : 4, std::ceil(value / unit - 1e-9) * unit);
}

double host_bytes(const Setup& setup, double pages) {
  return pages * static_cast<double>(setup.page_bytes()) * setup.engine.ranks;
}

// Returns the size of `pages` on the host tier of one engine, all ranks together, e.g. "478 GiB".
std::string host_gib(const Setup& setup, double pages) { return gib(host_bytes(setup, pages)); }

bool fetches_by_host(const Setup& setup) {
  return setup.has_storage() && setup.engine.host_pages != 0 && setup.engine.path != CachePath::direct;
}

// Returns the size with room for copies of all pages of the device, beside the share of prefetches in flight.
double enough_host_pages(const Setup& setup) {
  const double share =
      fetches_by_host(setup) ? std::min(0.9, static_cast<double>(setup.engine.prefetch_host_share) / 1024) : 0;
  return std::ceil((static_cast<double>(setup.engine.device_pages) + 1) / (1 - share));
}

std::string host_cure(const Setup& setup) {
  const double enough = enough_host_pages(setup);
  const std::string of = " an engine, all ranks together (tiers.host)";
  if (static_cast<double>(setup.engine.host_pages) >= enough) {
    return "more than its " + host_gib(setup, static_cast<double>(setup.engine.host_pages)) + of + " cures that";
  }
  std::string text = host_gib(setup, enough) + of + " cures that: room for a copy of the device tier's pages";
  if (fetches_by_host(setup)) {
    text += formatted(" beside the share of %.2f that prefetches may take (cache.prefetch_host_share)",
                      static_cast<double>(setup.engine.prefetch_host_share) / 1024);
  }
  return text;
}

// Returns a sentence part if ranks hold copies of a token's KV: with an MLA latent, or with fewer KV heads than ranks.
std::string copies_of_ranks(const Setup& setup) {
  const Bytes rank = setup.target.token_bytes(), all = rank * setup.engine.ranks;
  if (all <= setup.model.kv_bytes_per_token) return "";
  return "; each of the " + std::to_string(setup.engine.ranks) + " ranks keeps its own copy of KV that " +
         (setup.target.planes == 1 ? "an MLA model has once" : "has fewer heads than there are ranks") +
         ", so a token takes " + std::to_string(setup.engine.ranks) + " x " + grouped(rank) + " = " + grouped(all) +
         " bytes";
}

std::optional<Warning> host_not_larger(const Setup& setup) {
  const EngineConfig& engine = setup.engine;
  if (engine.host_pages == 0 || engine.host_pages > engine.device_pages) return std::nullopt;
  if (engine.write_policy != "write_through" || engine.reclaim_shadowed) return std::nullopt;
  const auto device = static_cast<double>(engine.device_pages), host = static_cast<double>(engine.host_pages);
  return Warning{WarningKind::host_not_larger,
                 "The host tier's " + grouped(engine.host_pages) + " pages (" + host_gib(setup, host) +
                     " an engine, all ranks together) are no more than the device tier's " +
                     grouped(engine.device_pages) +
                     ", and write_through keeps a copy of the device's pages there, so the host adds next to "
                     "nothing" +
                     (setup.has_storage() ? " and little reaches storage" : "") + ": give tiers.host more than " +
                     host_gib(setup, device + 1) + ", or " + host_gib(setup, 2 * device) +
                     " for as much again as the device holds" + copies_of_ranks(setup)};
}

struct Dropped {
  Pages pages = 0, all = 0;
  bool notable() const {
    return pages != 0 && static_cast<double>(pages) >= kMinDroppedShare * static_cast<double>(all);
  }
};

template <typename Counts>
std::uint64_t count_of(const Counts& counts, std::string_view name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

// Counts backups without room on the host, and with write_back the evicted pages that were lost for this reason.
Dropped dropped_backups(const Metrics& m) {
  const Pages pages = count_of(m.tier(Tier::host).dropped, name_of(Reason::capacity)) +
                      count_of(m.tier(Tier::device).dropped, name_of(Reason::host_pressure));
  return {pages, pages + m.tier(Tier::host).written};
}

std::optional<Warning> backups_dropped(const Setup& setup, const Metrics& m) {
  const Dropped dropped = dropped_backups(m);
  if (setup.engine.host_pages == 0 || !dropped.notable()) return std::nullopt;
  return Warning{WarningKind::backups_dropped,
                 grouped(dropped.pages) + " of " + grouped(dropped.all) + " page copies to the host (" +
                     percent(dropped.pages, dropped.all) +
                     ") were dropped, because the host's pages were copies of the device's or in transfers" +
                     (setup.has_storage() ? ", and what is not on the host is not stored either" : "") + ": " +
                     host_cure(setup)};
}

std::pair<std::string_view, std::uint64_t> main_reason(const std::map<std::string_view, std::uint64_t>& reasons) {
  std::pair<std::string_view, std::uint64_t> most{"", 0};
  for (const auto& [name, count] : reasons) {
    if (count > most.second) most = {name, count};
  }
  return most;
}

// Names the storage tier that evicted the most pages, and the size that would have held all its pages.
std::string storage_cure(const Setup& setup, const Metrics& m) {
  const StorageTierConfig* worst = nullptr;
  for (const StorageTierConfig& tier : setup.engine.storage) {
    const Pages evicted = m.tier(tier.tier).evicted;
    if (evicted != 0 && (worst == nullptr || evicted > m.tier(worst->tier).evicted)) worst = &tier;
  }
  if (worst == nullptr) return "";
  const bool shared = spec_of(worst->tier).shared;
  const double bytes = static_cast<double>(setup.page_bytes()) * setup.engine.storage_writers;
  const double engines = shared ? 1 : setup.world.engines;
  const Metrics::TierUse& use = m.tier(worst->tier);
  const std::string name(name_of(worst->tier));
  return "the " + name + " tier evicted " + grouped(use.evicted) + " of " + grouped(use.written) +
         " pages written to it: " + gib(static_cast<double>(use.written) / engines * bytes) +
         (shared ? " in all" : " an engine") + " (tiers." + name + ") would have held all of them";
}

// Returns the reason for misses in storage, and the remedy.
std::string miss_cure(const Setup& setup, const Metrics& m) {
  if (const Dropped dropped = dropped_backups(m); setup.engine.host_pages != 0 && dropped.notable()) {
    const double enough = std::max(enough_host_pages(setup), static_cast<double>(setup.engine.host_pages) + 1);
    return grouped(dropped.pages) +
           " page copies that the host had no room for were never stored: " + host_gib(setup, enough) +
           " an engine or more (tiers.host) cures that";
  }
  const std::string storage = storage_cure(setup, m);
  if (!storage.empty()) return storage;
  return "nothing was dropped or evicted on the way, so those prompts were new to the cache, and no size of a tier "
         "cures that";
}

std::string min_tokens(const Setup& setup) {
  return "cache.prefetch_min_tokens = " + std::to_string(setup.engine.prefetch_min_tokens);
}

std::optional<Warning> prefetches_revoked(const Setup& setup, const Metrics& m) {
  const Metrics::Prefetches& p = m.prefetches;
  if (p.issued < kMinPrefetches || 2 * p.revoked <= p.issued) return std::nullopt;
  const auto [reason, count] = main_reason(p.revoked_reasons);
  std::string why;
  if (reason == name_of(Reason::miss)) {
    why = "found nothing in storage: " + miss_cure(setup, m);
  } else if (reason == name_of(Reason::capacity)) {
    why = "found no room on the host: " + host_cure(setup);
  } else if (reason == name_of(Reason::too_short)) {
    why = "found fewer tokens than " + min_tokens(setup) + ": a lower value fetches them";
  } else if (reason == name_of(Reason::too_slow)) {
    why =
        "would have taken longer than computing the tokens again: faster storage, or "
        "cache.prefetch_admission = threshold, fetches them";
  } else if (reason == name_of(Reason::stopped)) {
    why = "had no answer from storage when " + setup.engine.prefetch_policy +
          " let the request go on: cache.prefetch_policy = wait_complete waits, faster look-ups need not";
  } else {
    why = "ended with the reason " + std::string(reason);
  }
  return Warning{WarningKind::prefetches_revoked, grouped(p.revoked) + " of " + grouped(p.issued) + " prefetches (" +
                                                      percent(p.revoked, p.issued) + ") were revoked, and " +
                                                      grouped(count) + " of those " + why};
}

std::optional<Warning> prefetches_declined(const Setup& setup, const Metrics& m) {
  std::map<std::string_view, std::uint64_t> reasons = m.prefetches.declined;
  reasons.erase(name_of(Reason::too_short));  // the host or the device had almost all pages
  std::uint64_t declined = 0;
  for (const auto& [name, count] : reasons) declined += count;
  const std::uint64_t all = declined + m.prefetches.issued;
  if (all < kMinPrefetches || 2 * declined <= all) return std::nullopt;
  const auto [reason, count] = main_reason(reasons);
  std::string why;
  if (reason == name_of(Reason::rate_limited)) {
    why = formatted("because others in flight took the share of %.2f of the host already",
                    static_cast<double>(setup.engine.prefetch_host_share) / 1024) +
          ": a larger host tier (tiers.host, now " + host_gib(setup, static_cast<double>(setup.engine.host_pages)) +
          " an engine) or cache.prefetch_host_share lets more of them fly";
  } else if (reason == name_of(Reason::not_backed_up)) {
    why = "because what lies above on the device is not on the host: " + host_cure(setup);
  } else if (reason == name_of(Reason::too_slow)) {
    why =
        "because reading would take longer than computing: faster storage, or cache.prefetch_admission = "
        "threshold, fetches them";
  } else {
    why = "with the reason " + std::string(reason);
  }
  return Warning{WarningKind::prefetches_declined, grouped(declined) + " of " + grouped(all) + " prefetches (" +
                                                       percent(declined, all) + ") were declined, " + grouped(count) +
                                                       " of them " + why};
}

// ---- saturation ----------------------------------------------------------------------------------------

// Returns the busy share of the lane during [from, to). If no window lies within this time: of the whole run.
double busy_between(const LaneUse& lane, TimeNs from, TimeNs to, TimeNs end) {
  TimeNs busy = 0, time = 0;
  for (std::size_t i = 0; i < lane.window_busy_ns.size(); ++i) {
    const TimeNs begin = static_cast<TimeNs>(i) * lane.window_ns;
    if (begin < from || begin + lane.window_ns > to) continue;
    busy += lane.window_busy_ns[i];
    time += lane.window_ns;
  }
  if (time == 0) {
    busy = lane.busy_ns;
    time = std::max<TimeNs>(1, end);
  }
  return static_cast<double>(busy) / static_cast<double>(time);
}

// Describes the busiest kind of lane: "compute was busy 96 to 99 % of the time (10 of 10 lanes)". Empty if no lane
// reaches kMinBusyShare.
std::string busy_lanes(const RunOutcome& outcome, TimeNs from, TimeNs to) {
  struct Kind {
    std::size_t all = 0, busy = 0;
    double min = 1, max = 0;
  };
  std::map<std::string, Kind> kinds;
  for (const LaneUse& lane : outcome.lanes) {
    Kind& kind = kinds[lane.name.substr(lane.name.rfind('.') + 1)];
    ++kind.all;
    const double busy = std::min(1.0, busy_between(lane, from, to, outcome.end));
    if (busy < kMinBusyShare) continue;
    ++kind.busy;
    kind.min = std::min(kind.min, busy);
    kind.max = std::max(kind.max, busy);
  }
  const auto busiest = std::ranges::max_element(kinds, {}, [](const auto& entry) { return entry.second.max; });
  if (busiest == kinds.end() || busiest->second.busy == 0) return "";
  const Kind& kind = busiest->second;
  const std::string least = formatted("%.0f", 100 * kind.min), most = formatted("%.0f", 100 * kind.max);
  return busiest->first + " was busy " + (least == most ? "" : least + " to ") + most + " % of the time" +
         (kind.all == 1 ? "" : " (" + std::to_string(kind.busy) + " of " + std::to_string(kind.all) + " lanes)");
}

// Two conditions, in an open loop only. The queue grows: the mean wait of the last third of the requests is at least
// kMinGrowth times that of the first third, and the difference is at least 1 % of the time of all arrivals. Random
// variations of a queue that does not grow are smaller. Or the queue is full: more than 5 % of the requests are
// rejected.
std::optional<Warning> saturated(const Setup& setup, const RunOutcome& outcome) {
  const Metrics& m = outcome.metrics;
  const TimeNs span = m.last_arrival - m.first_arrival;
  const auto thirds = m.waits.thirds();
  if (!outcome.open_loop || span <= 0 || !thirds || m.waits.count() < kMinWaits) return std::nullopt;
  const double span_s = static_cast<double>(span) / 1e9;
  const bool grows =
      thirds->last_s >= kMinGrowth * thirds->first_s && thirds->last_s - thirds->first_s >= kMinGrowthOfSpan * span_s;
  const std::uint64_t full = count_of(m.rejected, name_of(Reason::queue_full));
  const bool turns_away = static_cast<double>(full) > kMinRejectedShare * static_cast<double>(m.sent);
  if (!grows && !turns_away) return std::nullopt;
  const std::string busy = busy_lanes(outcome, m.first_arrival + span / 3, m.last_arrival);
  if (busy.empty()) return std::nullopt;
  const double arrive = static_cast<double>(m.sent) / span_s;
  const double serve = static_cast<double>(m.served) / (static_cast<double>(outcome.end - m.first_arrival) / 1e9);
  const double factor = serve > 0 ? arrive / serve : 0;
  std::string sentence =
      turns_away ? percent(full, m.sent) + " of the requests were rejected, as the queue was full"
                 : formatted(
                       "The queue grows: a request waited %.1f s on average in the first third of the run and "
                       "%.1f s in the last",
                       thirds->first_s, thirds->last_s);
  sentence += ", while " + busy +
              formatted("; %.3g requests/s arrive and %.3g are served, so the latencies hang on how long the run is",
                        arrive, serve);
  if (factor > 1) {
    const double engines = std::max(std::ceil(setup.world.engines * factor), setup.world.engines + 1.0);
    sentence += formatted(
        ": about %.0f engines (cluster.engines), or arrivals %.2g times as far apart "
        "(workload.time_scale), would keep up",
        engines, std::ceil(factor * 10) / 10);
  }
  return Warning{WarningKind::saturated, sentence};
}

// ---- drives --------------------------------------------------------------------------------------------

std::optional<Warning> drives_worn_out(const Setup& setup, const RunOutcome& outcome) {
  if (!setup.bill || setup.bill->drives == 0) return std::nullopt;
  const Bytes written = outcome.metrics.tier(Tier::disk).written * setup.page_bytes() * setup.engine.storage_writers;
  const DriveWear wear = drive_wear(*setup.bill, written, static_cast<double>(outcome.end) / 1e9);
  if (!wear.years || *wear.years >= 1) return std::nullopt;
  return Warning{
      WarningKind::drives_worn_out,
      formatted(
          "At the rate of this run, %.0f drives of %.3g TB take %.3g TB a day, %.3g times what they hold, and wear "
          "out in %.0f days; %.0f of them would last a year",
          static_cast<double>(setup.bill->drives), setup.bill->drive_bytes / 1e12, wear.bytes_per_day / 1e12,
          wear.writes_per_day, *wear.years * 365, std::ceil(static_cast<double>(setup.bill->drives) / *wear.years))};
}

}  // namespace

std::string_view name_of(WarningKind kind) {
  switch (kind) {
    case WarningKind::host_not_larger: return "host_not_larger";
    case WarningKind::backups_dropped: return "backups_dropped";
    case WarningKind::prefetches_revoked: return "prefetches_revoked";
    case WarningKind::prefetches_declined: return "prefetches_declined";
    case WarningKind::saturated: return "saturated";
    case WarningKind::drives_worn_out: return "drives_worn_out";
  }
  return "unknown";
}

std::string_view meaning_of(WarningKind kind) {
  switch (kind) {
    case WarningKind::host_not_larger: return "the host tier is no larger than the device tier that it copies";
    case WarningKind::backups_dropped: return "pages found no room on the host";
    case WarningKind::prefetches_revoked: return "more than half of the prefetches brought nothing";
    case WarningKind::prefetches_declined: return "more than half of the prefetches were not made";
    case WarningKind::saturated: return "requests come faster than they are served";
    case WarningKind::drives_worn_out: return "the drives wear out within a year";
  }
  return "unknown";
}

std::vector<Warning> warnings_of(const Setup& setup, const RunOutcome& outcome) {
  std::vector<Warning> warnings;
  std::array found{host_not_larger(setup),
                   backups_dropped(setup, outcome.metrics),
                   prefetches_revoked(setup, outcome.metrics),
                   prefetches_declined(setup, outcome.metrics),
                   saturated(setup, outcome),
                   drives_worn_out(setup, outcome)};
  for (std::optional<Warning>& warning : found) {
    if (warning) warnings.push_back(std::move(*warning));
  }
  return warnings;
}

std::string warnings_text(const std::vector<std::string>& rows) {
  std::string text;
  for (const WarningKind kind : kWarningKinds) {
    const std::string name = " " + std::string(name_of(kind)) + " ";
    const auto count = std::ranges::count_if(
        rows, [&](const std::string& row) { return (" " + row + " ").find(name) != std::string::npos; });
    if (count == 0) continue;
    text += "warning    " + std::string(name_of(kind)) + " in " + std::to_string(count) + " of " +
            std::to_string(rows.size()) + ": " + std::string(meaning_of(kind)) +
            "; kvtwin simulate with those settings says which size cures it\n";
  }
  return text;
}

}  // namespace kvtwin

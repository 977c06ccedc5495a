#include "lab/report/warnings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "lab/decision_text.hpp"
#include "lab/formatted.hpp"
#include "lab/names.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kMinPrefetches = 10;  // fewer prefetches are no evidence
constexpr double kMinFailedShare = 0.05;      // failed prefetches / issued prefetches
constexpr double kMinLostShare = 0.05;        // pages lost while requests waited / pages that were not hit
constexpr double kMinBelowPageShare = 0.01;   // shared tokens below a page / tokens of all prompts
constexpr double kMinTooLongShare = 0.01;     // requests rejected because of their length / arrivals
constexpr double kMinFallenShort = 0.01;      // pages that storage did not move / pages that it moved
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

template <typename Counts>
std::uint64_t count_of(const Counts& counts, std::string_view name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

// Returns the size in GiB, rounded down.
std::string floor_gib(double bytes) { return formatted("%.6g", std::floor(bytes / 1073741824.0 * 1e4) / 1e4); }

// `pages`: of one group of attention, which has an equal part of the tier.
double host_bytes(const Setup& setup, double pages) {
  return pages * static_cast<double>(setup.page_bytes()) * setup.engine_gpus();
}

// Returns the size of `pages` on the host tier of one engine, all ranks together, e.g. "478 GiB".
std::string host_gib(const Setup& setup, double pages) { return gib(host_bytes(setup, pages)); }

double prefetch_share(const Setup& setup) { return static_cast<double>(setup.engine.prefetch_host_share) / 1024; }

// Returns the size of `pages` of a storage tier: of one engine, or of a shared tier in all.
std::string storage_gib(const Setup& setup, Tier tier, double pages) {
  return gib(pages * static_cast<double>(setup.page_bytes()) * setup.engine.storage_writers) +
         (spec_of(tier).shared ? " in all" : " an engine");
}

bool fetches_by_host(const Setup& setup) {
  return setup.has_storage() && setup.engine.host_pages != 0 && setup.engine.path != CachePath::direct;
}

// Returns the size with room for copies of all pages of the device, beside the share of prefetches in flight.
double enough_host_pages(const Setup& setup) {
  const double share = fetches_by_host(setup) ? std::min(0.9, prefetch_share(setup)) : 0;
  return std::ceil((static_cast<double>(setup.engine.device_pages) + 1) / (1 - share));
}

// The sizes at which a run loses no page. Of a run with more room, the distinct pages are the same or fewer.
struct EnoughForAll {
  const Setup& setup;
  const PageHistory& history;

  // Pages of all prefetches in flight: with more room, more of them fly at the same time.
  double in_flight() const {
    return fetches_by_host(setup) ? static_cast<double>(std::min(history.asked(), 2 * history.asked_at_once())) : 0;
  }
  // Requires: of fetches_by_host() the share is not 0.
  double host_pages() const {
    const double pages = static_cast<double>(history.pages_of_an_engine()) + in_flight() + 1;
    const double share = prefetch_share(setup);
    return in_flight() == 0 || share <= 0 ? pages : std::max(pages, std::ceil((in_flight() + 1) / share));
  }
  std::string host() const {
    return "tiers.host of " + host_gib(setup, host_pages()) + " an engine, all ranks together, holds all " +
           grouped(history.pages_of_an_engine()) + " pages of this run" +
           (in_flight() == 0 ? "" : " and its prefetches in flight");
  }
  std::string storage(Tier tier) const {
    const Pages pages = spec_of(tier).shared ? history.pages_of_all() : history.pages_of_an_engine();
    return "tiers." + std::string(name_of(tier)) + " of " + storage_gib(setup, tier, static_cast<double>(pages) + 1) +
           " holds all " + grouped(pages) + " pages of this run";
  }
};

using History = const PageHistory*;

// Returns the host size that ends losses on the host: room for copies of the device's pages if that is more than the
// host has, else room for all pages of the run.
std::string host_cure(const Setup& setup, History history) {
  const double enough = enough_host_pages(setup);
  // A host that has the size almost would not gain by it.
  if (1.05 * static_cast<double>(setup.engine.host_pages) >= enough) {
    return history == nullptr ? "the host needs more room (tiers.host)" : EnoughForAll{setup, *history}.host();
  }
  std::string text = host_gib(setup, enough) +
                     " an engine, all ranks together (tiers.host) cures that: room for a copy of the device tier's "
                     "pages";
  if (fetches_by_host(setup)) {
    text += formatted(" beside the share of %.2f that prefetches may take (cache.prefetch_host_share)",
                      prefetch_share(setup));
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

std::optional<Finding> host_not_larger(const Setup& setup) {
  const EngineConfig& engine = setup.engine;
  if (engine.host_pages == 0 || engine.host_pages > engine.device_pages) return std::nullopt;
  if (engine.write_policy != "write_through" || engine.reclaim_shadowed) return std::nullopt;
  const auto device = static_cast<double>(engine.device_pages), host = static_cast<double>(engine.host_pages);
  return Finding{WarningKind::host_not_larger,
                 "The host tier's " + grouped(engine.host_pages) + " pages (" + host_gib(setup, host) +
                     " an engine, all ranks together) are no more than the device tier's " +
                     grouped(engine.device_pages) +
                     ", and write_through keeps a copy of the device's pages there, so the host adds next to "
                     "nothing" +
                     (setup.has_storage() ? " and little reaches storage" : "") + ": give tiers.host more than " +
                     host_gib(setup, device + 1) + ", or " + host_gib(setup, 2 * device) +
                     " for as much again as the device holds" + copies_of_ranks(setup),
                 true};
}

// ---- memory of the host ------------------------------------------------------------------------------

// `limit`: memory of the host for one engine, in bytes; 0 = not known.
std::optional<Finding> host_memory(const Setup& setup, double limit) {
  if (setup.engine.host_pages == 0) return std::nullopt;
  const auto pages = static_cast<double>(setup.engine.host_pages);
  const unsigned gpus = setup.engine_gpus();
  // A host has two sockets.
  const double host_gpus = 2 * setup.hardware.accelerators_per_socket;
  const double engines = std::clamp(std::floor(host_gpus / gpus), 1.0, static_cast<double>(setup.machines()));
  const double of_host = host_bytes(setup, pages) * (gpus > host_gpus ? host_gpus / gpus : engines);
  std::string text = "The host tier takes " + host_gib(setup, pages) + " of DRAM an engine";
  if (gpus > 1) text += formatted(" (%u ranks of ", gpus) + gib(host_bytes(setup, pages) / gpus) + ")";
  text += ", " + gib(of_host) + formatted(" on a host of %.0f GPUs", host_gpus);
  const bool over = limit != 0 && host_bytes(setup, pages) > limit;
  if (over) {
    text += ", more than the host has for it: tiers.host.gib may be " + floor_gib(limit) +
            " at most (tiers.host.memory_gib)";
  }
  return Finding{WarningKind::host_over_memory, text, over};
}

// ---- requests ----------------------------------------------------------------------------------------

std::optional<Finding> too_long(const Setup& setup, const Metrics& m) {
  const std::uint64_t count = count_of(m.rejected, name_of(Reason::too_long));
  if (count == 0) return std::nullopt;
  const Tokens page = setup.engine.shape.page_tokens;
  const Pages pages = setup.decode == nullptr ? setup.engine.device_pages
                                              : std::min(setup.engine.device_pages, setup.decode->engine.device_pages);
  const Tokens needed = (m.rejected_prompts.most_kv + page - 1) / page * page;
  const bool equal = m.rejected_prompts.shortest == m.rejected_prompts.longest;
  return Finding{WarningKind::requests_rejected,
                 grouped(count) + (count == 1 ? " prompt of " : " prompts of ") + (equal ? "" : "up to ") +
                     grouped(m.rejected_prompts.longest) + " tokens (and " +
                     (count == 1 ? "its answer" : "their answers") + ") " + (count == 1 ? "does" : "do") +
                     " not fit into the device tier's " + grouped(pages * page) +
                     " tokens: tiers.device must hold at least " + grouped(needed) + " tokens",
                 static_cast<double>(count) >= kMinTooLongShare * static_cast<double>(m.arrived)};
}

std::optional<Finding> queue_full(const Setup& setup, const Metrics& m) {
  const std::uint64_t count = count_of(m.rejected, name_of(Reason::queue_full));
  if (count == 0) return std::nullopt;
  return Finding{WarningKind::requests_rejected,
                 grouped(count) + " requests were rejected, as scheduler.max_waiting = " +
                     grouped(setup.engine.max_waiting) + " requests waited already: 0 lets all of them wait",
                 static_cast<double>(count) > kMinRejectedShare * static_cast<double>(m.arrived)};
}

std::optional<Finding> requests_failed(const Metrics& m) {
  if (m.failed() == 0) return std::nullopt;
  std::string why = m.aborted == 0 ? "" : grouped(m.aborted) + " were aborted by their clients";
  if (const std::uint64_t open = m.failed() - std::min(m.failed(), m.aborted); open != 0) {
    why += (why.empty() ? "" : ", ") + grouped(open) + " had no end when the run was over";
  }
  return Finding{WarningKind::requests_failed, grouped(m.failed()) + " requests failed: " + why,
                 static_cast<double>(m.failed()) >= kMinTooLongShare * static_cast<double>(m.arrived)};
}

// ---- pages of prompts --------------------------------------------------------------------------------

std::optional<Finding> prompts_below_page(const Setup& setup, const SharedPrefixes* prefixes) {
  if (prefixes == nullptr || prefixes->below_a_page().requests == 0) return std::nullopt;
  const SharedPrefixes::Below& below = prefixes->below_a_page();
  const bool equal = below.shortest == below.longest;
  return Finding{
      WarningKind::prompts_below_page,
      grouped(below.tokens) + " tokens are shared by " + grouped(below.requests) +
          " prompts with earlier ones, but lie below one page of " + grouped(setup.engine.shape.page_tokens) +
          " tokens: the largest page that hits is " + grouped(below.longest) +
          (equal ? "" : ", and that hits for all of them " + grouped(below.shortest)) + " tokens (cache.page_tokens)",
      static_cast<double>(below.tokens) >= kMinBelowPageShare * static_cast<double>(below.prompt)};
}

// Returns the part of a sentence that ends losses from memory.
std::string memory_cure(const Setup& setup, const PageHistory& history) {
  const bool selective = setup.engine.write_policy == "write_through_selective";
  return EnoughForAll{setup, history}.host() +
         (selective && setup.engine.host_pages != 0
              ? "; cache.write_policy = write_through copies pages at their first visit"
              : "");
}

// Names the storage tier that evicted the most pages, and the size that holds all pages.
std::string storage_cure(const Setup& setup, const Metrics& m, const PageHistory& history) {
  const StorageTierConfig* worst = &setup.engine.storage.front();
  for (const StorageTierConfig& tier : setup.engine.storage) {
    const bool more = m.tier(tier.tier).evicted > m.tier(worst->tier).evicted;
    // A shared store does not report its evictions.
    if (more || (m.tier(worst->tier).evicted == 0 && !tier.owned)) worst = &tier;
  }
  return EnoughForAll{setup, history}.storage(worst->tier);
}

std::optional<Finding> lost_while_waiting(const Setup& setup, const PageHistory& history) {
  const std::uint64_t lost = history.missed_pages()[MissCause::lost_while_waiting];
  if (lost == 0) return std::nullopt;
  return Finding{WarningKind::pages_lost,
                 grouped(lost) +
                     " pages were in memory when their requests arrived, and were evicted while the "
                     "requests waited: " +
                     memory_cure(setup, history),
                 static_cast<double>(lost) >= kMinLostShare * static_cast<double>(history.missed_pages().sum())};
}

std::optional<Finding> evicted_from_memory(const Setup& setup, const PageHistory& history) {
  const std::uint64_t device = history.missed_pages()[MissCause::evicted_device];
  const std::uint64_t host = history.missed_pages()[MissCause::evicted_host];
  if (device + host == 0) return std::nullopt;
  std::string which = device == 0 ? "the host" : "the device";
  if (device != 0 && host != 0) which = "the device (" + grouped(device) + ") and the host (" + grouped(host) + ")";
  return Finding{WarningKind::pages_lost, grouped(device + host) + " pages were computed again after " + which +
                                              " evicted them without a copy below: " + memory_cure(setup, history)};
}

std::optional<Finding> evicted_from_storage(const Setup& setup, const Metrics& m, const PageHistory& history) {
  const std::uint64_t lost = history.missed_pages()[MissCause::evicted_storage];
  if (lost == 0) return std::nullopt;
  return Finding{WarningKind::pages_lost, grouped(lost) + " pages were computed again after storage evicted them: " +
                                              storage_cure(setup, m, history)};
}

// ---- writes ------------------------------------------------------------------------------------------

struct Dropped {
  Pages pages = 0, all = 0;
  bool notable() const {
    return pages != 0 && static_cast<double>(pages) >= kMinDroppedShare * static_cast<double>(all);
  }
};

// Counts backups without room on the host, and with write_back the evicted pages that were lost for this reason.
Dropped dropped_backups(const Metrics& m) {
  const Pages pages = count_of(m.tier(Tier::host).dropped, name_of(Reason::capacity)) +
                      count_of(m.tier(Tier::device).dropped, name_of(Reason::host_pressure));
  return {pages, pages + m.tier(Tier::host).written};
}

std::optional<Finding> backups_dropped(const Setup& setup, const Metrics& m, History history) {
  const Dropped dropped = dropped_backups(m);
  if (setup.engine.host_pages == 0 || dropped.pages == 0) return std::nullopt;
  return Finding{WarningKind::backups_dropped,
                 grouped(dropped.pages) + " of " + grouped(dropped.all) + " page copies to the host (" +
                     percent(dropped.pages, dropped.all) +
                     ") were dropped, because the host's pages were copies of the device's or in transfers" +
                     (setup.has_storage() ? ", and what is not on the host is not stored either" : "") + ": " +
                     host_cure(setup, history),
                 dropped.notable()};
}

std::optional<Finding> backups_failed(const Metrics& m) {
  const Pages failed = count_of(m.tier(Tier::host).dropped, name_of(Reason::transfer_failed)) +
                       count_of(m.tier(Tier::device).dropped, name_of(Reason::transfer_failed));
  if (failed == 0) return std::nullopt;
  return Finding{WarningKind::backups_dropped, grouped(failed) +
                                                   " page copies to the host were dropped, because their "
                                                   "transfers failed: cache.backup_retries tries again"};
}

// Pages that a storage tier did not take, by reason.
void stores_dropped(const Setup& setup, const Metrics& m, History history, std::vector<Finding>& found) {
  for (const StorageTierConfig& tier : setup.engine.storage) {
    const Metrics::TierUse& use = m.tier(tier.tier);
    const std::string name(name_of(tier.tier));
    const auto add = [&](Reason reason, const std::string& why) {
      const Pages pages = count_of(use.dropped, name_of(reason));
      if (pages == 0) return;
      const Dropped dropped{pages, pages + use.written};
      found.push_back({WarningKind::backups_dropped,
                       grouped(pages) + " pages were not written to the " + name + " tier, " + why, dropped.notable()});
    };
    const double share = static_cast<double>(setup.engine.storage_write_share) / 1024;
    const bool by_host = setup.engine.host_pages != 0;
    std::string room =
        "faster writes, or a larger " + std::string(by_host ? "tiers.host" : "tiers.device") + ", drop fewer";
    if (by_host && history != nullptr && share > 0) {
      const double pages = static_cast<double>(history->pages_of_an_engine() * setup.engine.storage.size());
      room = "tiers.host of " + host_gib(setup, std::ceil((pages + 1) / share)) + " an engine has room for all writes";
    }
    add(Reason::backlog, formatted("as writes in flight held the share of %.2f of the ", share) +
                             (by_host ? "host" : "device") + " already: " + room);
    add(Reason::capacity, "as all its pages were in use" +
                              (history == nullptr ? "" : ": " + EnoughForAll{setup, *history}.storage(tier.tier)));
    std::string causes;
    for (const auto& [cause, of] : m.fell_short[tier.tier]) causes += (causes.empty() ? "" : ", ") + std::string(cause);
    add(Reason::transfer_failed, "as the writes failed" + (causes.empty() ? "" : " (" + causes + ")"));
  }
}

// ---- prefetches --------------------------------------------------------------------------------------

std::string min_tokens(const Setup& setup) {
  return "cache.prefetch_min_tokens = " + std::to_string(setup.engine.prefetch_min_tokens);
}

std::string lower_min_tokens(const Setup& setup) {
  return min_tokens(setup) + ": " + std::to_string(setup.engine.shape.page_tokens) + ", one page, asks for all";
}

// Returns the reasons of look-ups that found nothing, by the history of their pages.
std::string why_nothing_found(const Setup& setup, const Metrics& m, History history) {
  if (history == nullptr) return "";
  const PerMissCause& of = history->empty_look_ups();
  std::string text;
  const auto add = [&](std::uint64_t count, const std::string& words) {
    if (count != 0) text += (text.empty() ? ": " : "; ") + grouped(count) + " asked for pages that " + words;
  };
  add(of[MissCause::fresh], "no earlier request had");
  add(of[MissCause::in_computation], "another request was computing");
  if (of[MissCause::evicted_storage] != 0) {
    add(of[MissCause::evicted_storage], "storage had evicted (" + storage_cure(setup, m, *history) + ")");
  }
  add(of[MissCause::not_stored], "storage had not taken");
  if (const std::uint64_t lost = of[MissCause::evicted_device] + of[MissCause::evicted_host]; lost != 0) {
    add(lost, "were evicted from memory before they were stored (" + memory_cure(setup, *history) + ")");
  }
  add(of[MissCause::in_storage], "were stored after the look-up");
  add(of[MissCause::other_engine], "only another engine had");
  return text;
}

std::string why_revoked(const Setup& setup, const Metrics& m, History history, std::string_view reason) {
  if (reason == name_of(Reason::miss)) return "found nothing in storage" + why_nothing_found(setup, m, history);
  if (reason == name_of(Reason::capacity)) return "found no room on the host: " + host_cure(setup, history);
  if (reason == name_of(Reason::too_short)) return "found fewer tokens than " + lower_min_tokens(setup);
  if (reason == name_of(Reason::too_slow)) {
    return "would have taken longer than computing the tokens again: faster storage, or cache.prefetch_admission = "
           "threshold, fetches them";
  }
  if (reason == name_of(Reason::stopped)) {
    return "had no answer from storage when " + setup.engine.prefetch_policy +
           " let the request go on: cache.prefetch_policy = wait_complete waits, faster look-ups need not";
  }
  if (reason == name_of(Reason::duplicate)) return "found that other requests had brought the same pages";
  if (reason == name_of(Reason::transfer_failed)) return "had a look-up that failed";
  return "ended with the reason " + std::string(reason);
}

// Returns "N WHY; N WHY", most first.
template <typename Why>
std::string listed(const std::map<std::string_view, std::uint64_t>& reasons, const Why& why) {
  std::vector<std::pair<std::string_view, std::uint64_t>> sorted(reasons.begin(), reasons.end());
  std::ranges::stable_sort(sorted, std::greater(), [](const auto& entry) { return entry.second; });
  std::string text;
  for (const auto& [reason, count] : sorted) text += (text.empty() ? "" : "; ") + grouped(count) + " " + why(reason);
  return text;
}

std::optional<Finding> prefetches_revoked(const Setup& setup, const Metrics& m, History history) {
  const Metrics::Prefetches& p = m.prefetches;
  if (p.revoked == 0) return std::nullopt;
  return Finding{
      WarningKind::prefetches_revoked,
      grouped(p.revoked) + " of " + grouped(p.issued) + " prefetches (" + percent(p.revoked, p.issued) +
          ") were revoked: " +
          listed(p.revoked_reasons, [&](std::string_view reason) { return why_revoked(setup, m, history, reason); }),
      p.issued >= kMinPrefetches && 2 * p.revoked > p.issued};
}

std::string why_declined(const Setup& setup, const Metrics& m, History history, std::string_view reason) {
  if (reason == name_of(Reason::too_short)) return "for fewer tokens than " + lower_min_tokens(setup);
  if (reason == name_of(Reason::rate_limited)) {
    const std::string room = history == nullptr
                                 ? "more room (tiers.host) lets more of them fly"
                                 : "tiers.host of " + host_gib(setup, EnoughForAll{setup, *history}.host_pages()) +
                                       " an engine has room for all of them";
    return formatted("because others in flight took the share of %.2f of the host already", prefetch_share(setup)) +
           (setup.engine.prefetch_retry_steps == 0
                ? ", and cache.prefetch_retry_steps = 0 does not try again"
                : formatted(", after at most %u attempts (cache.prefetch_attempts)", setup.engine.prefetch_attempts)) +
           ": " + room;
  }
  if (reason == name_of(Reason::not_backed_up)) {
    std::string cure;
    if (setup.engine.write_policy != "write_through") {
      cure = ": cache.write_policy = write_through copies pages at their first visit";
    } else if (dropped_backups(m).pages != 0) {
      cure = ": " + host_cure(setup, history);
    }
    return "because what lies above on the device was not on the host" + cure;
  }
  if (reason == name_of(Reason::too_slow)) {
    return "because reading would take longer than computing: faster storage, or cache.prefetch_admission = "
           "threshold, fetches them";
  }
  return "with the reason " + std::string(reason);
}

std::optional<Finding> prefetches_declined(const Setup& setup, const Metrics& m, History history) {
  std::uint64_t declined = 0;
  for (const auto& [name, count] : m.prefetches.declined) declined += count;
  if (declined == 0) return std::nullopt;
  const std::uint64_t all = declined + m.prefetches.issued;
  // Of those that are too short, the host or the device had almost all pages.
  const std::uint64_t unwanted = declined - count_of(m.prefetches.declined, name_of(Reason::too_short));
  return Finding{WarningKind::prefetches_declined,
                 grouped(declined) + " of " + grouped(all) + " prefetches (" + percent(declined, all) +
                     ") were declined: " +
                     listed(m.prefetches.declined,
                            [&](std::string_view reason) { return why_declined(setup, m, history, reason); }),
                 unwanted + m.prefetches.issued >= kMinPrefetches && unwanted > m.prefetches.issued};
}

std::optional<Finding> prefetches_failed(const Metrics& m) {
  const Metrics::Prefetches& p = m.prefetches;
  if (p.failed == 0) return std::nullopt;
  std::string causes;
  for (const auto& [cause, pages] : m.fell_short_of_all()) {
    if (cause != name_of(Cause::full)) causes += (causes.empty() ? "" : ", ") + std::string(cause);
  }
  return Finding{WarningKind::prefetches_failed,
                 grouped(p.failed) + " of " + grouped(p.issued) + " prefetches (" + percent(p.failed, p.issued) +
                     ") failed, because storage did not bring all pages" + (causes.empty() ? "" : " (" + causes + ")") +
                     "; their requests waited and computed the rest",
                 static_cast<double>(p.failed) >= kMinFailedShare * static_cast<double>(p.issued)};
}

std::optional<Finding> loads_declined(const Setup& setup, const Metrics& m) {
  if (m.loads.declined.empty()) return std::nullopt;
  const auto why = [&](std::string_view reason) -> std::string {
    if (reason == name_of(Reason::below_threshold)) {
      return "in hits shorter than cache.load_back_min_tokens = " + std::to_string(setup.engine.load_back_min_tokens) +
             ": 0 loads all";
    }
    if (reason == name_of(Reason::quota)) return "above cache.load_back_quota_tokens: 0 loads all";
    if (reason == name_of(Reason::too_slow)) {
      return "because computing them takes less time: cache.load_back_admission = threshold loads them";
    }
    if (reason == name_of(Reason::capacity)) return "because the device had no room (tiers.device)";
    return "with the reason " + std::string(reason);
  };
  return Finding{WarningKind::loads_declined,
                 "Pages found and not loaded to the device, but computed: " + listed(m.loads.declined, why)};
}

// ---- storage -----------------------------------------------------------------------------------------

std::string full_sentence(const Setup& setup, const Metrics& m, History history, const StorageTierConfig& tier,
                          Pages pages) {
  const Metrics::TierUse& use = m.tier(tier.tier);
  const double engines = setup.stores_of(tier.tier);
  const double kept = static_cast<double>(use.written - std::min(use.written, use.evicted)) / engines;
  const std::string name(name_of(tier.tier));
  const auto capacity = static_cast<double>(tier.pages);
  if (kept >= 0.95 * capacity) {
    return "The " + name + " tier was full, and did not take " + grouped(pages) + " pages" +
           (history == nullptr ? "" : ": " + EnoughForAll{setup, *history}.storage(tier.tier));
  }
  return "The medium of the " + name + " tier is full: it took " + storage_gib(setup, tier.tier, kept) + " of the " +
         storage_gib(setup, tier.tier, capacity) + " that tiers." + name + " asks for, and not " + grouped(pages) +
         " pages: free the rest (tiers." + name + ".path), or ask for what it takes";
}

void storage_fell_short(const Setup& setup, const Metrics& m, History history, std::vector<Finding>& found) {
  for (const StorageTierConfig& tier : setup.engine.storage) {
    const std::string name(name_of(tier.tier));
    const double moved = static_cast<double>(m.tier(tier.tier).written + m.prefetches.arrived);
    for (const auto& [cause, of] : m.fell_short[tier.tier]) {
      const std::string pages = grouped(of.pages) + " pages";
      const std::string longest = formatted("%.3g s", static_cast<double>(of.longest_ns) / 1e9);
      std::string text;
      bool warns = static_cast<double>(of.pages) >= kMinFallenShort * (moved + static_cast<double>(of.pages));
      if (cause == name_of(Cause::full)) {
        text = full_sentence(setup, m, history, tier, of.pages);
        warns = true;
      } else if (cause == name_of(Cause::lease)) {
        text = pages + " were not read from the " + name + " tier, because the gets outlasted the store's lease";
        const double lease = setup.store ? setup.store->figures.lease : 0;
        if (lease > 0) {
          text += formatted(" of %g s: the longest took ", lease) + longest +
                  formatted(
                      "; a network and a pool %.0f times as fast (hardware.remote_gbps, hardware.remote_pool_gbps) "
                      "end them in time",
                      std::ceil(static_cast<double>(of.longest_ns) / 1e9 / lease));
        }
      } else if (cause == name_of(Cause::missing)) {
        text = pages + " that a look-up had found in the " + name + " tier were gone when they were read" +
               (history == nullptr ? "" : ": " + EnoughForAll{setup, *history}.storage(tier.tier));
      } else if (cause == name_of(Cause::unreachable)) {
        text = "The " + name + " tier did not answer for " + pages + ": its store or its network was down or too slow";
      } else if (cause == name_of(Cause::corrupt)) {
        text = pages + " of the " + name +
               " tier had other bytes than were stored: the medium is damaged, or another "
               "program writes there";
      } else {
        text = "The medium of the " + name + " tier reported errors for " + pages + ": see the system's log";
      }
      found.push_back({WarningKind::storage_fell_short, text, warns});
    }
  }
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
std::optional<Finding> saturated(const Setup& setup, const RunOutcome& outcome) {
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
  return Finding{WarningKind::saturated, sentence, true};
}

// ---- drives --------------------------------------------------------------------------------------------

std::optional<Finding> drives_worn_out(const Setup& setup, const RunOutcome& outcome) {
  if (!setup.bill || setup.bill->drives == 0) return std::nullopt;
  const Bytes written = outcome.metrics.tier(Tier::disk).written * setup.page_bytes() * setup.engine.storage_writers;
  const DriveWear wear = drive_wear(*setup.bill, written, static_cast<double>(outcome.end) / 1e9);
  if (!wear.years || *wear.years >= 1) return std::nullopt;
  return Finding{
      WarningKind::drives_worn_out,
      formatted(
          "At the rate of this run, %.0f drives of %.3g TB take %.3g TB a day, %.3g times what they hold, and wear "
          "out in %.0f days; %.0f of them would last a year",
          static_cast<double>(setup.bill->drives), setup.bill->drive_bytes / 1e12, wear.bytes_per_day / 1e12,
          wear.writes_per_day, *wear.years * 365, std::ceil(static_cast<double>(setup.bill->drives) / *wear.years)),
      true};
}

}  // namespace

std::string_view name_of(WarningKind kind) {
  switch (kind) {
    case WarningKind::host_not_larger: return "host_not_larger";
    case WarningKind::host_over_memory: return "host_over_memory";
    case WarningKind::requests_rejected: return "requests_rejected";
    case WarningKind::requests_failed: return "requests_failed";
    case WarningKind::prompts_below_page: return "prompts_below_page";
    case WarningKind::pages_lost: return "pages_lost";
    case WarningKind::backups_dropped: return "backups_dropped";
    case WarningKind::prefetches_revoked: return "prefetches_revoked";
    case WarningKind::prefetches_declined: return "prefetches_declined";
    case WarningKind::prefetches_failed: return "prefetches_failed";
    case WarningKind::loads_declined: return "loads_declined";
    case WarningKind::storage_fell_short: return "storage_fell_short";
    case WarningKind::saturated: return "saturated";
    case WarningKind::drives_worn_out: return "drives_worn_out";
  }
  return "unknown";
}

std::string_view meaning_of(WarningKind kind) {
  switch (kind) {
    case WarningKind::host_not_larger: return "the host tier is no larger than the device tier that it copies";
    case WarningKind::host_over_memory: return "the host tier is larger than the host's memory";
    case WarningKind::requests_rejected: return "requests were rejected";
    case WarningKind::requests_failed: return "requests failed";
    case WarningKind::prompts_below_page: return "prompts share fewer tokens than a page";
    case WarningKind::pages_lost: return "pages were evicted while their requests waited";
    case WarningKind::backups_dropped: return "pages found no room on the host or in storage";
    case WarningKind::prefetches_revoked: return "more than half of the prefetches brought nothing";
    case WarningKind::prefetches_declined: return "more than half of the prefetches were not made";
    case WarningKind::prefetches_failed: return "storage did not bring all pages of prefetches";
    case WarningKind::loads_declined: return "pages on the host were computed again";
    case WarningKind::storage_fell_short: return "storage did not keep or bring pages";
    case WarningKind::saturated: return "requests come faster than they are served";
    case WarningKind::drives_worn_out: return "the drives wear out within a year";
  }
  return "unknown";
}

std::vector<Finding> findings_of(const Setup& setup, const RunOutcome& outcome) {
  const Metrics& m = outcome.metrics;
  const History history = outcome.history;
  std::vector<Finding> found;
  const auto add = [&](std::optional<Finding> finding) {
    if (finding) found.push_back(std::move(*finding));
  };
  add(host_not_larger(setup));
  add(host_memory(setup, outcome.host_memory_bytes));
  add(too_long(setup, m));
  add(queue_full(setup, m));
  add(requests_failed(m));
  add(prompts_below_page(setup, outcome.prefixes));
  if (history != nullptr) {
    add(lost_while_waiting(setup, *history));
    add(evicted_from_memory(setup, *history));
    add(evicted_from_storage(setup, m, *history));
  }
  add(backups_dropped(setup, m, history));
  add(backups_failed(m));
  stores_dropped(setup, m, history, found);
  add(prefetches_revoked(setup, m, history));
  add(prefetches_declined(setup, m, history));
  add(prefetches_failed(m));
  add(loads_declined(setup, m));
  storage_fell_short(setup, m, history, found);
  add(saturated(setup, outcome));
  add(drives_worn_out(setup, outcome));
  return found;
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

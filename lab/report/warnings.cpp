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

// `pages`: of one group of attention, which has an equal part of the tier. The pools beside the full one have their
// part.
double host_bytes(const Setup& setup, double pages) {
  const double full = pages * static_cast<double>(setup.page_bytes()) * setup.copies_on_host;
  if (setup.device_pools.pools.empty()) return full;
  return full * static_cast<double>(setup.device_pools.bytes()) /
         static_cast<double>(setup.device_pools.pools.front().bytes());
}

// Returns the size of `pages` on the host tier of one engine, all ranks together, e.g. "478 GiB".
std::string host_gib(const Setup& setup, double pages) { return gib(host_bytes(setup, pages)); }

// Returns the size of tiers.device, in tokens, that gives each group of attention so many pages (see size_tiers()).
Tokens device_tokens(const Setup& setup, Pages pages) {
  const Pages placeholder = setup.engine.style == "vllm" ? 1 : 0;
  return (pages + placeholder) * setup.attention_dp * setup.engine.shape.page_tokens;
}

double prefetch_share(const Setup& setup) {
  return setup.engine.buffers() ? 0.9 : static_cast<double>(setup.engine.prefetch_host_share) / 1024;
}

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
    if (in_flight() == 0 || share <= 0) return pages;
    const bool beyond_device = setup.engine.prefetch_share_of == PrefetchShareOf::host_less_device;
    const double no_share_of = beyond_device ? static_cast<double>(setup.engine.device_pages) : 0;
    return std::max(pages, no_share_of + std::ceil((in_flight() + 1) / share));
  }
  std::string host() const {
    return "tiers.host of " + host_gib(setup, host_pages()) + " an engine, all ranks together, holds all " +
           grouped(history.pages_of_an_engine()) + " pages of this run" +
           (in_flight() == 0 ? "" : " and its prefetches in flight");
  }
  std::string storage(Tier tier) const {
    // Groups of attention have the disk tier in common.
    const Pages groups =
        setup.decode == nullptr ? setup.attention_dp : std::max(setup.attention_dp, setup.decode->attention_dp);
    const Pages pages = spec_of(tier).shared ? history.pages_of_all()
                                             : std::min(history.pages_of_all(), groups * history.pages_of_an_engine());
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
    text += formatted(" beside the share of %.2f that prefetches may take (cache.rules.prefetch_host_share)",
                      prefetch_share(setup));
  }
  return text;
}

// Returns a sentence part if ranks hold copies of a token's KV: with an MLA latent, or with fewer KV heads than ranks.
std::string copies_of_ranks(const Setup& setup) {
  const Bytes rank = setup.target.token_bytes(), all = rank * setup.engine.ranks;
  if (all <= setup.model.kv_bytes_per_token || setup.copies_on_host < setup.engine_gpus()) return "";
  return "; each of the " + std::to_string(setup.engine.ranks) + " ranks keeps its own copy of KV that " +
         (setup.target.planes == 1 ? "an MLA model has once" : "has fewer heads than there are ranks") +
         ", so a token takes " + std::to_string(setup.engine.ranks) + " x " + grouped(rank) + " = " + grouped(all) +
         " bytes";
}

std::optional<Finding> host_not_larger(const Setup& setup) {
  const EngineConfig& engine = setup.engine;
  if (engine.host_pages == 0 || engine.host_pages > engine.device_pages) return std::nullopt;
  if (engine.write_policy != "write_through" || engine.reclaim_shadowed) return std::nullopt;
  if (engine.host_mode != HostMode::cache) return std::nullopt;  // what storage has is not kept there
  const auto device = static_cast<double>(engine.device_pages), host = static_cast<double>(engine.host_pages);
  return Finding{WarningKind::host_not_larger,
                 "The host tier's " + grouped(engine.host_pages * setup.attention_dp) + " pages (" +
                     host_gib(setup, host) + " an engine, all ranks together) are no more than the device tier's " +
                     grouped(engine.device_pages * setup.attention_dp) + ", and " +
                     (setup.has_blocks() ? "vLLM's offloading" : "write_through") +
                     " keeps a copy of the device's pages there, so the host adds next to nothing" +
                     (setup.has_storage() ? " and little reaches storage" : "") + ": give tiers.host more than " +
                     host_gib(setup, device + 1) + ", or " + host_gib(setup, 2 * device) +
                     " for as much again as the device holds" + copies_of_ranks(setup),
                 true};
}

// Adds `judge(role, machines)` for each role of the engines. The sentence names the role if the other role has another
// sentence.
template <typename Judge>
void add_of_each_role(const Setup& setup, const Judge& judge, std::vector<Finding>& found) {
  std::optional<Finding> own = judge(setup, setup.machines()), decode;
  if (setup.decode != nullptr) {
    decode = judge(*setup.decode, setup.all_machines() - setup.machines());
    if (own && decode && own->sentence == decode->sentence)
      decode.reset();
    else if (own)
      own->sentence = "prefill engines: " + own->sentence;
    if (decode) decode->sentence = "decode engines: " + decode->sentence;
  }
  for (std::optional<Finding>* one : {&own, &decode}) {
    if (*one) found.push_back(std::move(**one));
  }
}

// ---- memory of the host ------------------------------------------------------------------------------

// Without the key tiers.host.memory_gib, the engines of a host share the memory that the hardware file has. `machines`:
// of the engines that `setup` is of.
std::optional<Finding> host_memory(const Setup& setup, std::uint32_t machines) {
  if (setup.engine.host_pages == 0) return std::nullopt;
  const double given = setup.host_memory_bytes;
  const auto pages = static_cast<double>(setup.engine.host_pages);
  const unsigned gpus = setup.engine_gpus();
  // A host has two sockets.
  const double host_gpus = 2 * setup.hardware.accelerators_per_socket, installed = 2 * setup.hardware.dram_bytes;
  const double whole = std::clamp(std::floor(host_gpus / gpus), 1.0, static_cast<double>(machines));
  const double engines = gpus > host_gpus ? host_gpus / gpus : whole;  // on one host
  std::string text = "The host tier takes " + host_gib(setup, pages) + " of DRAM an engine";
  if (gpus > 1) text += formatted(" (%u ranks of ", gpus) + gib(host_bytes(setup, pages) / gpus) + ")";
  text += ", " + gib(host_bytes(setup, pages) * engines) + formatted(" on a host of %.0f GPUs", host_gpus);
  const double limit = given != 0 ? given : installed / engines;
  const bool over = limit != 0 && host_bytes(setup, pages) > limit;
  if (over) {
    text +=
        (given != 0 ? ", more than the host has for it: " : ", more than the " + gib(installed) + " of the host: ") +
        "tiers.host.gib may be " + floor_gib(limit) + " at most" +
        (given != 0 ? " (tiers.host.memory_gib)" : "; tiers.host.memory_gib is for another host");
  } else if (limit == 0) {
    text += "; the memory of this host is not known (tiers.host.memory_gib)";
  }
  return Finding{WarningKind::host_over_memory, text, over};
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

// Returns the part of a sentence that ends losses from memory. A page that is never copied to the host is lost whatever
// the size of the host.
std::string memory_cure(const Setup& setup, const PageHistory& history) {
  const bool selective = setup.engine.write_policy == "write_through_selective";
  if (setup.engine.host_mode != HostMode::cache && setup.engine.host_pages != 0) {
    return "cache.host_mode = " + std::string(name_of(setup.engine.host_mode)) +
           " leaves pages to storage, which gets more of them in time with a larger tiers.host";
  }
  return std::string(selective && setup.engine.host_pages != 0
                         ? "cache.write_policy = write_through copies pages at their first visit, and "
                         : "") +
         EnoughForAll{setup, history}.host();
}

// Names the storage tier that evicted the most pages, and the size that holds all pages.
std::string storage_cure(const Setup& setup, const Metrics& m, const PageHistory& history) {
  const StorageTierConfig* worst = &setup.engine.storage.front();
  for (const StorageTierConfig& tier : setup.engine.storage) {
    const bool more = m.tier(tier.tier).evicted > m.tier(worst->tier).evicted;
    // In a real run, a shared store does not report its evictions.
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

// ---- work that was refused, lost or failed --------------------------------------------------------------
//
// One table has a row for each reason that a counter of the report may have: the words for the reason, with the size or
// the setting that ends it. The texts of the counters are in the functions below.

enum class Refusal : std::uint8_t {
  rejected,    // requests
  backup,      // pages without a copy on the host; of the device and the host
  store,       // pages without a copy in storage; of one storage tier
  revoked,     // prefetches
  declined,    // prefetches
  not_loaded,  // pages of the host or of storage
  fell_short,  // pages of one storage tier
};

struct RefusedWork {
  const Setup& setup;
  const RunOutcome& outcome;
  std::string_view reason{};
  std::uint64_t count = 0;
  std::uint64_t all = 0;  // the work of which `count` is a part
  Tier tier = Tier::device;
  TimeNs longest_ns = 0;

  const Metrics& m() const { return outcome.metrics; }
  History history() const { return outcome.history; }
  std::string of_all() const { return " of " + grouped(all); }
  std::string share() const { return " (" + percent(count, all) + ")"; }
  std::string tier_name() const { return std::string(name_of(tier)); }
  std::string pages() const { return grouped(count) + (count == 1 ? " page" : " pages"); }
  const StorageTierConfig& storage_tier() const {
    return *std::ranges::find(setup.engine.storage, tier, &StorageTierConfig::tier);
  }
};

std::string too_long(const RefusedWork& of) {
  const Metrics::RejectedPrompts& prompts = of.m().rejected_prompts;
  const Setup& setup = of.setup;
  const Tokens page = setup.engine.shape.page_tokens;
  const Pages pages = setup.decode == nullptr ? setup.engine.device_pages
                                              : std::min(setup.engine.device_pages, setup.decode->engine.device_pages);
  const Pages needed = (prompts.most_kv + page - 1) / page;
  const Tokens enough = std::max(device_tokens(setup, needed),
                                 setup.decode == nullptr ? Tokens{0} : device_tokens(*setup.decode, needed));
  const bool equal = prompts.shortest == prompts.longest, one = of.count == 1;
  return grouped(of.count) + (one ? " prompt of " : " prompts of ") + (equal ? "" : "up to ") +
         grouped(prompts.longest) + " tokens (and " + (one ? "its answer" : "their answers") + ") " +
         (one ? "does" : "do") + " not fit into the device tier's " + grouped(pages * page) + " tokens" +
         (setup.attention_dp > 1 ? " of a group of attention" : "") + ": tiers.device must hold at least " +
         grouped(enough) + " tokens";
}

std::string queue_full(const RefusedWork& of) {
  return grouped(of.count) +
         " requests were rejected, as scheduler.max_waiting = " + grouped(of.setup.engine.max_waiting) +
         " requests waited already: 0 lets all of them wait";
}

// ---- writes

bool keeps_until_written(const EngineConfig& engine) {
  return !engine.storage.empty() &&
         (engine.storage_backlog == StorageBacklog::wait || engine.storage_backlog == StorageBacklog::block);
}

std::string no_room_for_backup(const RefusedWork& of) {
  if (of.setup.engine.buffers()) {
    return grouped(of.count) + of.of_all() + " page copies to storage" + of.share() +
           " were not made, because their documents are larger than the host buffer: a larger tiers.host has room";
  }
  return grouped(of.count) + of.of_all() + " page copies to the host" + of.share() +
         " were dropped, because the host's pages were copies of the device's" +
         (keeps_until_written(of.setup.engine) ? ", in transfers or on their way to storage" : " or in transfers") +
         (of.setup.has_storage() ? ", and a page that is not on the host is not stored either" : "") + ": " +
         host_cure(of.setup, of.history());
}

std::string gone_before_copy(const RefusedWork& of) {
  return grouped(of.count) + of.of_all() + " page copies to storage" + of.share() +
         " were not made, because the pages left the device while they waited for room in the host buffer: a larger "
         "tiers.host holds more writes at a time";
}

std::string no_room_for_write_back(const RefusedWork& of) {
  return grouped(of.count) + of.of_all() + " pages" + of.share() + " left the " + of.tier_name() +
         " without the copy that write_back owes them, because the host had no room for " +
         (of.tier == Tier::host ? "the pages above them" : "it") +
         (of.history() == nullptr ? "" : ": " + EnoughForAll{of.setup, *of.history()}.host());
}

std::string backup_failed(const RefusedWork& of) {
  return grouped(of.count) + of.of_all() + " page copies to the host" + of.share() +
         " were dropped, because their transfers failed: cache.backup_retries = " +
         std::to_string(of.setup.engine.backup_retries) + " tries no more often";
}

std::string not_written(const RefusedWork& of) {
  return of.pages() + of.share() + (of.count == 1 ? " was" : " were") + " not written to the " + of.tier_name() +
         " tier, ";
}

// The tier whose pages are written to storage, as a key.
std::string write_memory(const EngineConfig& engine) { return engine.host_pages != 0 ? "tiers.host" : "tiers.device"; }

// What writes in flight may hold.
std::string write_share(const EngineConfig& engine) {
  return formatted("the share of %.2f of the ", static_cast<double>(engine.storage_write_share) / 1024) +
         (engine.host_pages != 0 ? "host" : "device");
}

std::string writes_in_flight(const RefusedWork& of) {
  const EngineConfig& engine = of.setup.engine;
  const double share = static_cast<double>(engine.storage_write_share) / 1024;
  const bool by_host = engine.host_pages != 0;
  std::string room = "faster writes, or a larger " + write_memory(engine) + ", drop fewer";
  if (by_host && of.history() != nullptr && share > 0) {
    const double pages = static_cast<double>(of.history()->pages_of_an_engine() * engine.storage.size());
    room = "tiers.host of " + host_gib(of.setup, std::ceil((pages + 1) / share)) + " an engine has room for all writes";
  }
  const bool throttled = engine.storage_backlog == StorageBacklog::throttle;
  return not_written(of) + "as writes in flight held " + (throttled ? "more than half of " : "") + write_share(engine) +
         (throttled ? "" : " already") + " (cache.storage_write_share): " + room;
}

std::string no_room_in_storage(const RefusedWork& of) {
  return not_written(of) + "as all its pages were in use" +
         (of.history() == nullptr ? "" : ": " + EnoughForAll{of.setup, *of.history()}.storage(of.tier));
}

std::string store_failed(const RefusedWork& of) {
  std::string causes;
  for (const auto& [cause, pages] : of.m().fell_short[of.tier]) {
    causes += (causes.empty() ? "" : ", ") + std::string(cause);
  }
  return not_written(of) + "as the writes failed" + (causes.empty() ? "" : " (" + causes + ")");
}

// ---- prefetches

std::string min_tokens(const Setup& setup) {
  return "cache.prefetch_min_tokens = " + std::to_string(setup.engine.prefetch_min_tokens) + ": " +
         std::to_string(setup.engine.shape.page_tokens) + ", one page, asks for all";
}

// Of a prefetch without a fault of a tier: no earlier request had the pages, or another one was computing them.
std::uint64_t new_to_storage(const RunOutcome& outcome) {
  if (outcome.history == nullptr) return 0;
  const PerMissCause& of = outcome.history->empty_look_ups();
  return of[MissCause::fresh] + of[MissCause::in_computation];
}

// Returns the reasons of look-ups that found nothing, by the history of their pages.
std::string found_nothing(const RefusedWork& work) {
  const Setup& setup = work.setup;
  if (work.history() == nullptr) return "found nothing in storage";
  const PageHistory& history = *work.history();
  const PerMissCause& of = history.empty_look_ups();
  std::string text;
  const auto add = [&](std::uint64_t count, const std::string& words) {
    if (count != 0) text += (text.empty() ? ": " : "; ") + grouped(count) + " asked for pages that " + words;
  };
  if (of[MissCause::evicted_storage] != 0) {
    add(of[MissCause::evicted_storage], "storage had evicted (" + storage_cure(setup, work.m(), history) + ")");
  }
  add(of[MissCause::not_stored], "storage had not taken");
  if (const std::uint64_t lost = of[MissCause::evicted_device] + of[MissCause::evicted_host]; lost != 0) {
    add(lost, "were evicted from memory before they were stored (" + memory_cure(setup, history) + ")");
  }
  add(of[MissCause::lost_while_waiting],
      "were in memory when the request arrived, and had been evicted since (" + memory_cure(setup, history) + ")");
  add(of[MissCause::in_storage],
      setup.engine.pools.empty()
          ? "were stored after the look-up"
          : "are stored now: no length of the prefix was usable with its windows and state, or they came later");
  add(of[MissCause::other_engine], "only another engine had");
  return "found nothing in storage" + text;
}

std::string no_room_for_prefetch(const RefusedWork& of) {
  return "found no room on the host: " + (of.history() == nullptr ? "the host needs more room (tiers.host)"
                                                                  : EnoughForAll{of.setup, *of.history()}.host());
}

std::string found_too_little(const RefusedWork& of) { return "found fewer tokens than " + min_tokens(of.setup); }

std::string reads_too_slow(const RefusedWork&) {
  return "would have taken longer than computing the tokens again: faster storage, or cache.prefetch_admission = "
         "threshold, fetches them";
}

std::string answered_too_late(const RefusedWork& of) {
  return "had no answer from storage when " + of.setup.engine.prefetch_policy +
         " let the request go on: cache.prefetch_policy = wait_complete waits, faster look-ups need not";
}

std::string brought_by_others(const RefusedWork&) { return "found that other requests had brought the same pages"; }

std::string look_up_failed(const RefusedWork&) { return "had a look-up that failed"; }

std::string prefix_gone(const RefusedWork& of) {
  return "lost the pages above theirs before the load" +
         (of.history() == nullptr ? "" : ": " + memory_cure(of.setup, *of.history()));
}

std::string asked_for_too_little(const RefusedWork& of) { return "for fewer tokens than " + min_tokens(of.setup); }

std::string prefetches_in_flight(const RefusedWork& of) {
  const EngineConfig& engine = of.setup.engine;
  const std::string room = of.history() == nullptr
                               ? "more room (tiers.host) allows more prefetches at the same time"
                               : "tiers.host of " +
                                     host_gib(of.setup, EnoughForAll{of.setup, *of.history()}.host_pages()) +
                                     " an engine has room for all of them";
  const bool whole_host = engine.buffers() || engine.prefetch_share_of == PrefetchShareOf::host;
  return formatted("because others in flight took the share of %.2f of ", prefetch_share(of.setup)) +
         (whole_host ? "the host already" : "the room that the host has beyond the device") +
         (engine.prefetch_retry_steps == 0
              ? ", and cache.prefetch_retry_steps = 0 does not try again"
              : formatted(", after at most %u attempts (cache.prefetch_attempts)", engine.prefetch_attempts)) +
         ": " + room;
}

std::string not_on_host(const RefusedWork& of) {
  const std::uint64_t later = of.history() == nullptr ? 0 : std::min(of.count, of.history()->backed_up_later());
  std::string text = "because pages above them, on the device, were not on the host";
  if (later != 0) text += " (" + grouped(later) + ": its copy came later)";
  if (later == of.count) return text;
  if (of.setup.engine.write_policy != "write_through") {
    return text + ": cache.write_policy = write_through copies pages at their first visit";
  }
  const bool full = of.m().tier(Tier::host).dropped.contains(name_of(Reason::capacity));
  return text + (full ? ", as copies were dropped: " + host_cure(of.setup, of.history()) : "");
}

std::string reading_is_slower(const RefusedWork&) {
  return "because reading would take longer than computing: faster storage, or cache.prefetch_admission = threshold, "
         "fetches them";
}

// ---- loads

std::string below_load_minimum(const RefusedWork& of) {
  return "in hits shorter than cache.load_back_min_tokens = " + std::to_string(of.setup.engine.load_back_min_tokens) +
         ": 0 loads all";
}

std::string above_load_quota(const RefusedWork&) { return "above cache.load_back_quota_tokens: 0 loads all"; }

std::string loading_is_slower(const RefusedWork&) {
  return "because computing them takes less time: cache.load_back_admission = threshold loads them";
}

std::string load_failed(const RefusedWork&) { return "because their loads failed"; }

// ---- storage

std::string storage_full(const RefusedWork& of) {
  const StorageTierConfig& tier = of.storage_tier();
  const Metrics::TierUse& use = of.m().tier(of.tier);
  const double engines = of.setup.stores_of(of.tier);
  const double kept = static_cast<double>(use.written - std::min(use.written, use.evicted)) / engines;
  const auto capacity = static_cast<double>(tier.pages);
  if (kept >= 0.95 * capacity) {
    return "The " + of.tier_name() + " tier was full, and did not take " + of.pages() +
           (of.history() == nullptr ? "" : ": " + EnoughForAll{of.setup, *of.history()}.storage(of.tier));
  }
  const auto world = std::ranges::find(of.setup.world.storage, of.tier, &StorageTier::tier);
  if (world != of.setup.world.storage.end() && world->drive_pages != 0) {
    return "The memory of the " + of.tier_name() +
           " store was full of pages that its drives still had to write, and did "
           "not take " +
           of.pages() +
           ": faster drives (drive_write_bandwidth in tiers.remote.store_file), or a larger "
           "tiers.remote.gib, take more";
  }
  const double page = static_cast<double>(of.setup.page_bytes()) * of.setup.engine.storage_writers;
  return "The medium of the " + of.tier_name() + " tier is full: it holds " + floor_gib(kept * page) + " GiB of the " +
         storage_gib(of.setup, of.tier, capacity) + " that tiers." + of.tier_name() + " asks for, and did not take " +
         of.pages() + ": free the rest (tiers." + of.tier_name() + ".path), or set tiers." + of.tier_name() +
         ".gib to " + floor_gib(kept * page) + " at most";
}

std::string outlasted_lease(const RefusedWork& of) {
  std::string text =
      of.pages() + " were not read from the " + of.tier_name() + " tier, because the gets outlasted the store's lease";
  const double lease = of.setup.store ? of.setup.store->figures.lease : 0,
               longest = static_cast<double>(of.longest_ns) / 1e9;
  if (lease <= 0) return text;
  return text + formatted(
                    " of %g s: the longest took %.3g s; a network and a pool %.0f times as fast "
                    "(hardware.set.remote_gbps, hardware.set.pool_bandwidth) end them in time",
                    lease, longest, std::ceil(longest / lease));
}

std::string gone_when_read(const RefusedWork& of) {
  return of.pages() + " that a look-up had found in the " + of.tier_name() + " tier were gone when they were read" +
         (of.history() == nullptr ? "" : ": " + EnoughForAll{of.setup, *of.history()}.storage(of.tier));
}

std::string no_answer(const RefusedWork& of) {
  return "The " + of.tier_name() + " tier did not answer for " + of.pages() +
         ": its store or its network was down or too slow";
}

std::string other_bytes(const RefusedWork& of) {
  return of.pages() + " of the " + of.tier_name() +
         " tier had other bytes than were stored: the medium is damaged, or another program writes there";
}

std::string medium_error(const RefusedWork& of) {
  return "The medium of the " + of.tier_name() + " tier reported errors for " + of.pages() + ": see the system's log";
}

struct RefusalRow {
  Refusal counter;
  std::string_view reason;  // as in the report
  double min_share;         // of the counter's work: from here on, a finding of its own is a warning
  std::string (*words)(const RefusedWork& of);
};

// The order is that of the findings.
const RefusalRow kRefusals[] = {
    {Refusal::rejected, name_of(Reason::too_long), kMinTooLongShare, too_long},
    {Refusal::rejected, name_of(Reason::queue_full), kMinRejectedShare, queue_full},
    {Refusal::backup, name_of(Reason::capacity), kMinDroppedShare, no_room_for_backup},
    {Refusal::backup, name_of(Reason::lost), kMinDroppedShare, gone_before_copy},
    {Refusal::backup, name_of(Reason::host_pressure), kMinDroppedShare, no_room_for_write_back},
    {Refusal::backup, name_of(Reason::transfer_failed), kMinDroppedShare, backup_failed},
    {Refusal::store, name_of(Reason::backlog), kMinDroppedShare, writes_in_flight},
    {Refusal::store, name_of(Reason::capacity), kMinDroppedShare, no_room_in_storage},
    {Refusal::store, name_of(Reason::transfer_failed), kMinDroppedShare, store_failed},
    {Refusal::revoked, name_of(Reason::miss), 0, found_nothing},
    {Refusal::revoked, name_of(Reason::capacity), 0, no_room_for_prefetch},
    {Refusal::revoked, name_of(Reason::rate_limited), 0, prefetches_in_flight},
    {Refusal::revoked, name_of(Reason::too_short), 0, found_too_little},
    {Refusal::revoked, name_of(Reason::too_slow), 0, reads_too_slow},
    {Refusal::revoked, name_of(Reason::stopped), 0, answered_too_late},
    {Refusal::revoked, name_of(Reason::duplicate), 0, brought_by_others},
    {Refusal::revoked, name_of(Reason::transfer_failed), 0, look_up_failed},
    {Refusal::revoked, name_of(Reason::anchor_lost), 0, prefix_gone},
    {Refusal::declined, name_of(Reason::too_short), 0, asked_for_too_little},
    {Refusal::declined, name_of(Reason::rate_limited), 0, prefetches_in_flight},
    {Refusal::declined, name_of(Reason::not_backed_up), 0, not_on_host},
    {Refusal::declined, name_of(Reason::too_slow), 0, reading_is_slower},
    {Refusal::not_loaded, name_of(Reason::below_threshold), 0, below_load_minimum},
    {Refusal::not_loaded, name_of(Reason::quota), 0, above_load_quota},
    {Refusal::not_loaded, name_of(Reason::too_slow), 0, loading_is_slower},
    {Refusal::not_loaded, name_of(Reason::transfer_failed), 0, load_failed},
    {Refusal::fell_short, name_of(Cause::full), 0, storage_full},
    {Refusal::fell_short, name_of(Cause::lease), kMinFallenShort, outlasted_lease},
    {Refusal::fell_short, name_of(Cause::missing), kMinFallenShort, gone_when_read},
    {Refusal::fell_short, name_of(Cause::unreachable), kMinFallenShort, no_answer},
    {Refusal::fell_short, name_of(Cause::corrupt), kMinFallenShort, other_bytes},
    {Refusal::fell_short, name_of(Cause::io_error), kMinFallenShort, medium_error},
};

std::string words_of(Refusal counter, const RefusedWork& of) {
  for (const RefusalRow& row : kRefusals) {
    if (row.counter == counter && row.reason == of.reason) return row.words(of);
  }
  return grouped(of.count) + " ended with the reason " + std::string(of.reason);
}

using ReasonCounts = std::map<std::string_view, std::uint64_t>;

// Adds a finding for each reason of the counter. `of`: without reason and count; `done`: work that was not refused.
void add_each(Refusal counter, WarningKind kind, const ReasonCounts& counts, RefusedWork of, std::uint64_t done,
              std::vector<Finding>& found) {
  for (const auto& [reason, count] : counts) {
    if (count == 0) continue;
    of.reason = reason;
    of.count = count;
    of.all = done + count;
    const auto row = std::ranges::find_if(
        kRefusals, [&](const RefusalRow& one) { return one.counter == counter && one.reason == of.reason; });
    const double least = row == std::end(kRefusals) ? 0 : row->min_share * static_cast<double>(of.all);
    found.push_back({kind, words_of(counter, of), static_cast<double>(count) >= least});
  }
}

// Returns "N WORDS; N WORDS", most first.
std::string listed(Refusal counter, const ReasonCounts& counts, RefusedWork of) {
  std::vector<std::pair<std::string_view, std::uint64_t>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, std::greater(), [](const auto& entry) { return entry.second; });
  std::string text;
  for (const auto& [reason, count] : sorted) {
    if (count == 0) continue;
    of.reason = reason;
    of.count = count;
    text += (text.empty() ? "" : "; ") + grouped(count) + " " + words_of(counter, of);
  }
  return text;
}

// A rejection leaves the machine to other requests, so the share is of all arrivals.
void requests_refused(const RefusedWork& of, std::vector<Finding>& found) {
  const Metrics& m = of.m();
  for (const auto& [reason, count] : m.rejected) {
    add_each(Refusal::rejected, WarningKind::requests_rejected, {{reason, count}}, of, m.arrived - count, found);
  }
  if (m.failed() == 0) return;
  std::string why = m.aborted == 0 ? "" : grouped(m.aborted) + " were aborted by their clients";
  if (const std::uint64_t open = m.failed() - std::min(m.failed(), m.aborted); open != 0) {
    why += (why.empty() ? "" : ", ") + grouped(open) + " had no end when the run was over";
  }
  found.push_back({WarningKind::requests_failed, grouped(m.failed()) + " requests failed: " + why,
                   static_cast<double>(m.failed()) >= kMinTooLongShare * static_cast<double>(m.arrived)});
}

void pages_dropped(RefusedWork of, std::vector<Finding>& found) {
  const Metrics& m = of.m();
  for (const TierSpec& spec : kTierSpecs) {
    of.tier = spec.tier;
    const bool stored = spec.kind == TierKind::storage;
    add_each(stored ? Refusal::store : Refusal::backup, WarningKind::backups_dropped, m.tier(spec.tier).dropped, of,
             m.tier(stored ? spec.tier : Tier::host).written, found);
  }
  if (m.reused_without_draft != 0) {
    found.push_back({WarningKind::backups_dropped,
                     grouped(m.reused_without_draft) +
                         " reused tokens lacked the draft model's KV, as model.draft.restore = false does not bring it "
                         "back: true does"});
  }
}

// Prefetches of pages that no tier ever had are no sign of a fault.
void prefetches_revoked(const RefusedWork& of, std::vector<Finding>& found) {
  const Metrics::Prefetches& p = of.m().prefetches;
  ReasonCounts reasons = p.revoked_reasons;
  std::uint64_t& misses = reasons[name_of(Reason::miss)];
  const std::uint64_t fresh = std::min(misses, new_to_storage(of.outcome));
  misses -= fresh;
  if (fresh != 0) {
    found.push_back({WarningKind::prefetches_revoked,
                     grouped(fresh) + " of " + grouped(p.issued) +
                         " prefetches were for pages that no earlier request had, or that another request was "
                         "computing"});
  }
  const std::uint64_t revoked = p.revoked - fresh, issued = p.issued - fresh;
  if (revoked == 0) return;
  // Without the history of the pages, a miss shows no fault either.
  const std::uint64_t unknown = of.history() == nullptr ? misses : 0;
  found.push_back({WarningKind::prefetches_revoked,
                   grouped(revoked) + " of " + grouped(issued) + (fresh == 0 ? "" : " other") + " prefetches (" +
                       percent(revoked, issued) + ") were revoked: " + listed(Refusal::revoked, reasons, of),
                   issued - unknown >= kMinPrefetches && 2 * (revoked - unknown) > issued - unknown});
}

void prefetches_declined(const RefusedWork& of, std::vector<Finding>& found) {
  const Metrics::Prefetches& p = of.m().prefetches;
  std::uint64_t declined = 0;
  for (const auto& [name, count] : p.declined) declined += count;
  if (declined == 0) return;
  const std::uint64_t all = declined + p.issued;
  // Of those that are too short, the host or the device had almost all pages.
  const std::uint64_t unwanted = declined - count_of(p.declined, name_of(Reason::too_short));
  found.push_back({WarningKind::prefetches_declined,
                   grouped(declined) + " of " + grouped(all) + " prefetches (" + percent(declined, all) +
                       ") were declined: " + listed(Refusal::declined, p.declined, of),
                   unwanted + p.issued >= kMinPrefetches && unwanted > p.issued});
}

void prefetches_failed(const RefusedWork& of, std::vector<Finding>& found) {
  const Metrics::Prefetches& p = of.m().prefetches;
  if (p.failed == 0) return;
  std::string causes;
  for (const auto& [cause, pages] : of.m().fell_short_of_all()) {
    if (cause != name_of(Cause::full)) causes += (causes.empty() ? "" : ", ") + std::string(cause);
  }
  found.push_back({WarningKind::prefetches_failed,
                   grouped(p.failed) + " of " + grouped(p.issued) + " prefetches (" + percent(p.failed, p.issued) +
                       ") failed, because storage did not bring all pages" +
                       (causes.empty() ? "" : " (" + causes + ")") + "; their requests waited and computed the rest",
                   static_cast<double>(p.failed) >= kMinFailedShare * static_cast<double>(p.issued)});
}

void loads_declined(const RefusedWork& of, std::vector<Finding>& found) {
  ReasonCounts reasons = of.m().loads.declined;
  if (of.m().loads.failed != 0) reasons[name_of(Reason::transfer_failed)] += of.m().loads.failed;
  if (reasons.empty()) return;
  found.push_back({WarningKind::loads_declined, "Pages found and not loaded to the device, but computed: " +
                                                    listed(Refusal::not_loaded, reasons, of)});
}

void storage_fell_short(RefusedWork of, std::vector<Finding>& found) {
  const Metrics& m = of.m();
  for (const StorageTierConfig& tier : of.setup.engine.storage) {
    of.tier = tier.tier;
    const Pages moved = m.tier(tier.tier).written + m.prefetches.arrived;
    for (const auto& [cause, shortfall] : m.fell_short[tier.tier]) {
      of.longest_ns = shortfall.longest_ns;
      add_each(Refusal::fell_short, WarningKind::storage_fell_short, {{cause, shortfall.pages}}, of, moved, found);
    }
  }
}

void hand_overs_failed(const RefusedWork& of, std::vector<Finding>& found) {
  const HandOverFigures* const figures = of.outcome.hand_overs;
  if (figures == nullptr || figures->failed_writes == 0) return;
  found.push_back(
      {WarningKind::hand_overs_failed,
       grouped(figures->failed_writes) + " of " + grouped(figures->writes) +
           " writes of pages from a prefill to a decode engine failed; " + grouped(figures->fell_back) +
           " requests were computed by their decode engine, and " + grouped(figures->sent_again) + " were sent again",
       static_cast<double>(figures->failed_writes) >= kMinDroppedShare * static_cast<double>(figures->writes)});
}

std::optional<Finding> stores_awaited(const Setup& setup, const RunOutcome& outcome) {
  const TimeNs awaited = outcome.metrics.stores_awaited_ns;
  if (awaited == 0) return std::nullopt;
  const auto engines = static_cast<double>(std::max<std::size_t>(1, setup.world.engines));
  const double share = static_cast<double>(awaited) / engines / static_cast<double>(std::max<TimeNs>(1, outcome.end));
  return Finding{WarningKind::stores_awaited,
                 formatted("No request was admitted for %.1f s", static_cast<double>(awaited) / 1e9) +
                     (setup.world.engines > 1 ? " of all engines together" : "") +
                     formatted(" (%.0f %% of the time)", 100 * share) + ", while writes to storage held more than " +
                     write_share(setup.engine) + " (cache.storage_backlog = block): faster writes, or a larger " +
                     write_memory(setup.engine) + ", let them in; drop writes fewer pages and never waits",
                 share >= kMinDroppedShare};
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
    const double engines = std::max(std::ceil(setup.all_machines() * factor), setup.all_machines() + 1.0);
    sentence += formatted(
        ": about %.0f engines (%s), or arrivals %.2g times as far apart "
        "(workload.time_scale), would keep up",
        engines, setup.decode == nullptr ? "cluster.engines" : "cluster.prefill, cluster.decode",
        std::ceil(factor * 10) / 10);
  }
  return Finding{WarningKind::saturated, sentence, true};
}

// ---- drives --------------------------------------------------------------------------------------------

std::optional<Finding> drives_worn_out(const Setup& setup, const RunOutcome& outcome) {
  if (!setup.bill || setup.bill->drives == 0) return std::nullopt;
  const Bytes written = outcome.measured.written[Tier::disk] * setup.page_bytes() * setup.engine.storage_writers;
  const DriveWear wear = drive_wear(*setup.bill, written, static_cast<double>(outcome.measured.span) / 1e9);
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
    case WarningKind::hand_overs_failed: return "hand_overs_failed";
    case WarningKind::stores_awaited: return "stores_awaited";
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
    case WarningKind::hand_overs_failed: return "pages did not reach their decode engines";
    case WarningKind::stores_awaited: return "requests waited for writes to storage";
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
  add_of_each_role(
      setup, [](const Setup& role, std::uint32_t) { return host_not_larger(role); }, found);
  add_of_each_role(setup, host_memory, found);
  const RefusedWork work{setup, outcome};
  requests_refused(work, found);
  add(prompts_below_page(setup, outcome.prefixes));
  if (history != nullptr) {
    add(lost_while_waiting(setup, *history));
    add(evicted_from_memory(setup, *history));
    add(evicted_from_storage(setup, m, *history));
  }
  pages_dropped(work, found);
  prefetches_revoked(work, found);
  prefetches_declined(work, found);
  prefetches_failed(work, found);
  loads_declined(work, found);
  storage_fell_short(work, found);
  hand_overs_failed(work, found);
  add(stores_awaited(setup, outcome));
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

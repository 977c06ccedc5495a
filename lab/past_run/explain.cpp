#include "lab/past_run/explain.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/names.hpp"
#include "lab/past_run/call_replay.hpp"
#include "lab/past_run/past_run.hpp"
#include "lab/past_run/request_life.hpp"
#include "lab/report/joined_requests.hpp"
#include "lab/run/front_end.hpp"
#include "models/json.hpp"
#include "policy/style.hpp"

namespace kvtwin {
namespace {

double seconds(TimeNs time) { return static_cast<double>(time) / 1e9; }

std::string count(std::uint64_t number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

std::string outcome_of(const RequestRecord& r) {
  if (r.rejected != Reason::none) return "rejected:" + std::string(name_of(r.rejected));
  return r.finished >= 0 ? "completed" : "unfinished";
}

const char* status_text(Status status) {
  switch (status) {
    case Status::done: return "done";
    case Status::cancelled: return "cancelled";
    case Status::failed: return "failed";
    case Status::gate_failed: return "a load failed under it";
  }
  return "unknown";
}

// ---- was L3 worth the wait? ----------------------------------------------------------------------------

struct StorageVerdict {
  Tokens tokens = 0;                    // tokens that came from L3
  TimeNs took_ns = 0;                   // from the beginning of the fetch until the tokens were on the device
  TimeNs waited_ns = 0, loaded_ns = 0;  // delay of the first token by the prefetch and by the load
  TimeNs compute_ns = 0;                // estimate: computing the tokens in passes of their own
};

TimeNs computing_ns(const EngineConfig& engine, const CostModel& cost, Tokens context, Tokens tokens) {
  TimeNs sum = 0;
  while (tokens > 0) {
    ForwardShape shape;
    shape.prefill_tokens = std::min(tokens, engine.chunk_tokens);
    shape.prefill_pairs = shape.prefill_tokens * context + shape.prefill_tokens * (shape.prefill_tokens + 1) / 2;
    shape.prefill_context_tokens = context;
    shape.prefill_sequences = 1;
    sum += cost.forward_ns(shape, 1);
    context += shape.prefill_tokens;
    tokens -= shape.prefill_tokens;
  }
  return sum;
}

// Returns nothing if the request neither used nor waited for L3.
std::optional<StorageVerdict> storage_verdict(const RequestLife& life, const EngineConfig& engine,
                                              const CostModel& cost) {
  const RequestRecord& r = life.record;
  StorageVerdict v;
  const Tokens near = r.hit[Tier::device] + r.hit[Tier::host];
  v.tokens = r.hit.sum() - near;
  v.waited_ns = r.prefetch_wait_ns;
  if (v.tokens == 0 && v.waited_ns == 0 && r.recomputed_after_stop == 0) return std::nullopt;
  v.loaded_ns = v.tokens == 0 ? 0 : r.load_wait_ns;
  v.took_ns = v.loaded_ns;
  for (const RequestLife::Prefetch& prefetch : life.prefetches) {
    const TimeNs end = prefetch.stopped >= 0 ? prefetch.stopped : prefetch.end;
    if (prefetch.begin >= 0) v.took_ns += std::max<TimeNs>(0, end - prefetch.begin);
  }
  v.took_ns = std::max(v.took_ns, v.waited_ns + v.loaded_ns);
  v.compute_ns = computing_ns(engine, cost, near, v.tokens);
  return v;
}

// ---- text --------------------------------------------------------------------------------------------

std::string ttft_text(const RequestRecord& r) {
  return seconds_text(r.first_token - r.arrival) + " s = queue " + seconds_text(r.queue_ns) + " + prefetch wait " +
         seconds_text(r.prefetch_wait_ns) + " + load wait " + seconds_text(r.load_wait_ns) + " + compute " +
         seconds_text(r.compute_ns) + (r.hand_over_ns > 0 ? " + hand-over " + seconds_text(r.hand_over_ns) : "");
}

class Story {
 public:
  Story(const RequestLife& life, const Setup& setup)
      : life_(life), r_(life.record), engine_(setup.engine), cost_(*setup.cost) {}

  std::string text() {
    arrival();
    if (r_.rejected != Reason::none) {
      rejection();
      return text_;
    }
    storage();
    admission();
    loads();
    prefills();
    if (r_.part == RequestPart::prefill) {
      writes();
      retractions();
    } else {
      if (r_.part == RequestPart::decode) receipt();
      first_token();
      l3_verdict();
      retractions();
      end();
    }
    pages();
    return text_;
  }

 private:
  void add(const char* label, const std::string& words) {
    std::string padded(label);
    padded.resize(12, ' ');
    text_ += padded + words + "\n";
  }

  void arrival() {
    std::string words = "at " + seconds_text(r_.arrival) + " s: " + count(r_.prompt_tokens, "prompt token");
    if (r_.part != RequestPart::prefill) words += ", " + count(r_.output_tokens, "output token");
    if (life_.session != 0) words += ", session " + std::to_string(life_.session);
    add("arrived", words);
    words = count(life_.found_running, "request") + " running, " + std::to_string(life_.found_waiting) + " waiting";
    for (std::size_t i = 0; i < life_.ahead.size(); ++i) {
      words += (i == 0 ? ": " : ", ") + std::to_string(life_.ahead[i]);
    }
    if (life_.found_waiting > life_.ahead.size()) words += ", ...";
    add("found", words);
  }

  void rejection() {
    if (r_.rejected == Reason::too_long) {
      add("rejected", "too long: with its output it needs the KV of " +
                          count(r_.prompt_tokens + r_.output_tokens - 1, "token") + ", and the device holds " +
                          count(engine_.device_pages * engine_.shape.page_tokens, "token") +
                          "; a larger tiers.device takes it");
    } else {
      add("rejected", "the queue was full: " + count(engine_.max_waiting, "request") +
                          " waited, as many as scheduler.max_waiting lets");
    }
  }

  void admission() {
    if (r_.admitted < 0) return add("waits", "it was not admitted before the end of what is known");
    std::string words =
        "at " + seconds_text(r_.admitted) + " s, after " + seconds_text(r_.admitted - r_.arrival) + " s";
    if (life_.admitted_meanwhile > 0) {
      words += ", in which " + count(life_.admitted_meanwhile, "other") +
               (life_.admitted_meanwhile == 1 ? " was" : " were") + " admitted";
    }
    add("admitted", words);
    if (receives()) {
      return add("prefix", count(r_.hit.sum(), "token") + " hit on the device, " +
                               std::to_string(r_.miss + r_.recomputed_after_stop) + " to receive");
    }
    words = count(r_.hit[Tier::device], "token") + " hit on the device, " + std::to_string(r_.hit[Tier::host]) +
            " on the host, ";
    for (const TierSpec& spec : kStorageSpecs) {
      if (r_.hit[spec.tier] != 0) words += std::to_string(r_.hit[spec.tier]) + " " + std::string(spec.where) + ", ";
    }
    words += std::to_string(r_.miss + r_.recomputed_after_stop) + " to compute";
    if (r_.recomputed_after_stop != 0) {
      words += ", of which " + std::to_string(r_.recomputed_after_stop) + " are in L3 and the fetch was stopped";
    }
    add("prefix", words);
    if (r_.unusable == 0) return;
    const Tokens present = r_.hit.sum() + r_.unusable;
    const auto lacks = [&](Tokens without, const char* what) {
      return without == 0 ? std::string()
                          : std::string("; the last ") + what + " is at token " + std::to_string(present - without);
    };
    add("", count(r_.unusable, "token") + " of these were in memory, and could not be continued from" +
                lacks(r_.without_window, "window") + lacks(r_.without_state, "state"));
  }

  // The prefetches and direct loads from L3.
  void storage() {
    for (const RequestLife::Prefetch& prefetch : life_.prefetches) {
      const std::string asked = tokens(prefetch.asked) + " at " + seconds_text(prefetch.issued) + " s";
      if (prefetch.declined != Reason::none) {
        add("L3", "not asked for " + asked + ": " + why_declined(prefetch.declined));
        continue;
      }
      add("L3", "asked for " + asked + ", which neither the device nor the host had");
      if (prefetch.revoked >= 0) {
        add("", found_nothing(prefetch));
      } else {
        fetch(prefetch);
      }
      stop(prefetch);
    }
    for (const RequestLife::DirectLoad& load : life_.direct_loads) {
      add("", "found " + tokens(load.pages) + "; loaded straight to the device from " + seconds_text(load.queued) +
                  " s on");
    }
  }

  std::string why_declined(Reason reason) const {
    switch (reason) {
      case Reason::too_short:
        return "fewer than cache.prefetch_min_tokens (" + std::to_string(engine_.prefetch_min_tokens) + ")";
      case Reason::rate_limited:
        return engine_.prefetch_admission == "cost"
                   ? "other prefetches took cache.rules.prefetch_host_share of the host, or two seconds of reading, "
                     "already"
                   : "other prefetches took cache.rules.prefetch_host_share of the host already";
      case Reason::too_slow: return "reading it would take longer than computing it (cache.prefetch_admission)";
      case Reason::not_backed_up: return "a page above it on the device is not on the host";
      default: return std::string(kvtwin::name_of(reason));
    }
  }

  std::string found_nothing(const RequestLife::Prefetch& prefetch) const {
    const std::string at = " at " + seconds_text(prefetch.revoked) + " s";
    switch (prefetch.revoke_reason) {
      case Reason::miss: return "found none of it" + at;
      case Reason::too_short:
        return "found " + tokens(prefetch.hit) + at + ", fewer than cache.prefetch_min_tokens: not fetched";
      case Reason::too_slow:
        return "found " + tokens(prefetch.hit) + at + "; reading it would take longer than computing it: not fetched";
      case Reason::capacity: return "found " + tokens(prefetch.hit) + at + "; the host had no room: not fetched";
      case Reason::stopped: return "no answer until" + at.substr(3) + ", when " + policy() + " let the request go on";
      default: return "ended" + at + ": " + std::string(kvtwin::name_of(prefetch.revoke_reason));
    }
  }

  static std::string why(Cause cause) {
    switch (cause) {
      case Cause::missing: return "the next page was gone when it was read";
      case Cause::corrupt: return "the next page had other bytes than were stored";
      case Cause::io_error: return "the medium reported an error";
      case Cause::unreachable: return "the store did not answer";
      case Cause::lease: return "the read outlasted the store's lease";
      default: return std::string(kvtwin::name_of(cause));
    }
  }

  // The pages behind the first missing one were not waited for, so the causes need not account for all that is missing.
  std::string why_short(const RequestLife::Prefetch& prefetch) const {
    std::string words;
    for (const auto& [cause, pages] : prefetch.fell_short) {
      words += (words.empty() ? ": " : ", ") + why(cause) + " (" + tokens(pages) + ")";
    }
    return words;
  }

  void fetch(const RequestLife::Prefetch& prefetch) {
    std::string words;
    Pages pages = 0;
    for (const auto& [tier, part] : prefetch.found) {
      words += (words.empty() ? "found " : " and ") + tokens(part) + " " + std::string(spec_of(tier).where);
      pages += part;
    }
    if (words.empty()) return;
    if (prefetch.no_room != 0) words += ", and " + tokens(prefetch.no_room) + " more that the host had no room for";
    add("", words + " at " + seconds_text(prefetch.begin) + " s");
    if (prefetch.end < 0) return add("", "still being fetched at the end of what is known");
    const double took = seconds(prefetch.end - prefetch.begin);
    words = "fetched " + tokens(prefetch.arrived) + " to the host in " + short_seconds(took);
    const double bytes = static_cast<double>(prefetch.arrived * engine_.page_bytes() * engine_.ranks);
    char rate[40];
    std::snprintf(rate, sizeof rate, ", %.3g GB/s", took > 0 ? bytes / took / 1e9 : 0);
    if (prefetch.arrived != 0 && took > 0) words += rate;
    const bool early = prefetch.stopped < 0 && prefetch.arrived < pages;
    if (early) words += "; no more came" + why_short(prefetch);
    add("", words);
  }

  void stop(const RequestLife::Prefetch& prefetch) {
    if (prefetch.stopped < 0) return;
    const std::string at =
        "stopped at " + seconds_text(prefetch.stopped) + " s, with " + tokens(prefetch.arrived_at_stop) + " there, ";
    if (prefetch.stop_reason == Reason::aborted) return add("", at + "as its client had gone");
    add("", at + "by " + policy() + why_stopped(prefetch));
    if (r_.admitted >= 0)
      add("", tokens_text(r_.recomputed_after_stop) + " of what L3 had were computed after the stop");
  }

  // One sentence: the time that the request waited for L3, and the time that computing would have taken.
  void l3_verdict() {
    if (r_.first_token < 0 || (life_.prefetches.empty() && life_.direct_loads.empty())) return;
    const std::optional<StorageVerdict> verdict = storage_verdict(life_, engine_, cost_);
    if (!verdict) return;
    const StorageVerdict& v = *verdict;
    const std::string waited = short_seconds(seconds(v.waited_ns + v.loaded_ns));
    if (v.tokens == 0) {
      if (v.waited_ns == 0) return add("worth it?", "nothing was fetched in time, and the request didn't wait for it");
      return add("worth it?", "the request waited " + waited + " for L3, and nothing came of it");
    }
    std::string words = "fetching " + tokens_text(v.tokens) + " took " + short_seconds(seconds(v.took_ns));
    if (v.waited_ns + v.loaded_ns != v.took_ns) words += ", of which the request waited " + waited;
    words += "; computing them would have taken about " + short_seconds(seconds(v.compute_ns)) + ": ";
    if (v.waited_ns + v.loaded_ns > v.compute_ns) {
      words += "this L3 is too slow for this model (see sglang issues 26305 and 12809)";
    } else if (v.took_ns > v.compute_ns) {
      words += "it paid, because the request queued meanwhile anyway";
    } else {
      words += "it paid";
    }
    add("worth it?", words);
  }

  std::string why_stopped(const RequestLife::Prefetch& prefetch) const {
    if (policy() == "timeout") return timeout_text(prefetch);
    if (policy() == "cost_stop") return ": what was still to come would have taken longer than computing it";
    return ": the request could be admitted";
  }
  // The limit of policy/termination/timeout.cpp and its terms.
  std::string timeout_text(const RequestLife::Prefetch& prefetch) const {
    const bool from_issue = engine_.prefetch_timeout_from == TimeoutFrom::issue;
    Pages pages = prefetch.asked;
    if (from_issue) {
      pages = 0;
      for (const auto& [tier, part] : prefetch.found) pages += part;
    }
    const Tokens number = pages * engine_.shape.page_tokens;
    const PolicyFacts facts = facts_of_policy(PolicyKind::termination, engine_.prefetch_policy);
    const auto value = [&](const char* name) {
      const Parameter* parameter = facts.find(name);
      return parameter == nullptr ? 0.0 : seconds(parameter->number);
    };
    const double base = value("base"), slope = value("per_ki_token"), most = value("most");
    const double sum = base + slope * static_cast<double>(number) / 1024;
    char text[240];
    std::snprintf(text, sizeof text, ": its limit was %.6g s + %.6g s per 1,024 tokens x %s %s = %.6g s", base, slope,
                  tokens_text(number).c_str(), from_issue ? "to read" : "asked for", sum);
    std::string words = text;
    if (most > 0 && sum > most) {
      std::snprintf(text, sizeof text, ", but %.6g s at most (cache.prefetch_policy, most)", most);
      words += text;
    }
    return words + (from_issue ? ", from its issue" : ", from the moment the request waited for it");
  }
  std::string policy() const { return std::string(policy_text(engine_.prefetch_policy).name); }
  std::string tokens(Pages pages) const { return tokens_text(pages * engine_.shape.page_tokens); }
  // 8192 -> "8,192 tokens"
  static std::string tokens_text(Tokens number) { return grouped(number) + (number == 1 ? " token" : " tokens"); }
  static std::string short_seconds(double time) {
    char text[40];
    std::snprintf(text, sizeof text, time >= 1 ? "%.2f s" : "%.3g s", time);
    return text;
  }

  void loads() {
    for (const RequestLife::Load& load : life_.loads) {
      std::string words = count(load.pages, "page");
      if (load.refused == Reason::below_threshold) {
        words += " on the host not loaded: fewer than cache.load_back_min_tokens tokens, computed instead";
      } else if (load.refused == Reason::quota) {
        words += " on the host not loaded: more than cache.load_back_quota_tokens, computed instead";
      } else if (load.refused != Reason::none) {
        words += " on the host not loaded: computing them takes less time (cache.load_back_admission)";
      } else {
        words += " queued at " + seconds_text(load.queued) + " s, ";
        words += load.landed < 0 ? "not landed before the end of what is known"
                                 : "landed at " + seconds_text(load.landed) + " s";
        if (load.landed >= 0 && load.status != Status::done) words += std::string(": ") + status_text(load.status);
      }
      add("load-back", words);
    }
  }

  void prefills() {
    for (const RequestLife::Prefill& prefill : life_.prefills) {
      std::string words = count(prefill.tokens, "token") + " in a pass from " + seconds_text(prefill.begin) + " s";
      if (prefill.end < 0) {
        words += ", under way at the end of what is known";
      } else {
        words += " to " + seconds_text(prefill.end) + " s, " + seconds_text(prefill.end - prefill.begin) + " s";
        words += prefill.stalled == 0 ? "" : ", of which it stalled " + seconds_text(prefill.stalled) + " s for loads";
        if (prefill.status != Status::done) words += std::string("; for nothing: ") + status_text(prefill.status);
      }
      add("prefill", words);
    }
  }

  void writes() {
    const RequestLife::HandOver& of = life_.hand_over;
    if (r_.first_token >= 0) add("prompt", "computed at " + seconds_text(r_.first_token) + " s");
    add("room",
        of.room < 0 ? "the decode engine gave none" : "on the decode engine, known at " + seconds_text(of.room) + " s");
    if (of.writes > 0) {
      std::string words =
          count(of.writes, "write") + " of " + count(of.pages, "page") + " from " + seconds_text(of.first_write) + " s";
      if (of.last_write >= 0) words += " to " + seconds_text(of.last_write) + " s";
      if (of.failed_writes > 0) words += "; " + std::to_string(of.failed_writes) + " failed";
      add("hand-over", words);
    }
    if (of.ended < 0) return add("unfinished", "at the end of what is known");
    add(of.reason == Reason::none ? "handed over" : "withdrawn",
        "at " + seconds_text(of.ended) + " s" +
            (of.reason == Reason::none ? "" : ": " + std::string(name_of(of.reason))));
  }

  void receipt() {
    const RequestLife::HandOver& of = life_.hand_over;
    if (of.room >= 0) add("leased", count(of.leased, "page") + " at " + seconds_text(of.room) + " s");
    if (of.fell_back >= 0) {
      add("falls back", "at " + seconds_text(of.fell_back) + " s: computes the prompt itself (" +
                            std::string(name_of(of.reason)) + ")");
    } else if (of.ended >= 0) {
      add("received", "all pages at " + seconds_text(of.ended) + " s");
    }
  }

  // Returns whether the prompt comes from a prefill engine.
  bool receives() const { return r_.part == RequestPart::decode && life_.hand_over.fell_back < 0; }

  void first_token() {
    if (r_.first_token < 0) return;
    add("first token", "at " + seconds_text(r_.first_token) + " s");
    if (!receives()) add("TTFT", ttft_text(r_));
  }

  // vLLM calls a retraction a preemption.
  void retractions() {
    const bool last_admitted = make_style(engine_.style, engine_)->victim() == Victim::last_admitted;
    for (const RequestLife::Retraction& release : life_.releases) {
      add("released",
          "at " + seconds_text(release.at) + " s: " +
              (release.reason == Reason::transfer_failed ? "the load of its prefix failed"
                                                         : "its loaded prefix, because other requests had no room"));
    }
    for (std::size_t i = 0; i < life_.retractions.size(); ++i) {
      const RequestLife::Retraction& retraction = life_.retractions[i];
      std::string words = "at " + seconds_text(retraction.at) + " s: ";
      words += retraction.reason == Reason::transfer_failed ? "a load failed that its pass built on"
               : last_admitted                              ? "the device was full and it was admitted last"
                                                            : "the device was full and it the youngest";
      if (i + 1 < life_.admissions.size()) {
        const RequestLife::Admission& next = life_.admissions[i + 1];
        words += "; admitted again at " + seconds_text(next.at) + " s with " + count(next.reused, "page") + " reused";
      }
      add(last_admitted ? "preempted" : "retracted", words);
    }
    if (r_.retracted_recompute > 0) {
      add("", count(r_.retracted_recompute, "token") + " computed again for it");
    }
  }

  void end() {
    if (r_.finished < 0) return add("unfinished", "at the end of what is known");
    if (r_.output_tokens > 1) {
      char each[40];
      std::snprintf(each, sizeof each, "%.9f",
                    seconds(r_.finished - r_.first_token) / static_cast<double>(r_.output_tokens - 1));
      add("decode", count(r_.output_tokens - 1, "token") + " in " + seconds_text(r_.finished - r_.first_token) +
                        " s, " + each + " s each");
    }
    add("finished", "at " + seconds_text(r_.finished) + " s, " + seconds_text(r_.finished - r_.arrival) +
                        " s after its arrival, leaving " + count(life_.pages_left.value_or(0), "page") +
                        " in the cache");
  }

  void pages() {
    constexpr std::size_t kShown = 20;
    for (std::size_t i = 0; i < life_.moments.size() && i < kShown; ++i) {
      const RequestLife::PageMoment& moment = life_.moments[i];
      const std::string which = moment.pages == 1 ? "page " + std::to_string(moment.first)
                                                  : "pages " + std::to_string(moment.first) + " to " +
                                                        std::to_string(moment.first + moment.pages - 1);
      const std::string at = " at " + seconds_text(moment.at) + " s";
      add("cache", which + part_of(moment) + " " + what_of(moment, at));
    }
    const std::uint64_t more = life_.moments_left_out + life_.moments.size() - std::min(kShown, life_.moments.size());
    if (more > 0) add("", "and " + std::to_string(more) + " more such changes to its pages");
  }

  // Of a further pool or group: what of the pages it has.
  std::string part_of(const RequestLife::PageMoment& moment) const {
    Closure closure = Closure::path;
    if (moment.pool < engine_.block_groups.groups.size()) closure = engine_.block_groups.groups[moment.pool].closure;
    if (moment.pool > 0 && moment.pool <= engine_.pools.size()) closure = engine_.pools[moment.pool - 1U].closure;
    return closure == Closure::tail ? ": windows" : closure == Closure::point ? ": the state" : "";
  }

  std::string what_of(const RequestLife::PageMoment& moment, const std::string& at) const {
    if (moment.kind == DecisionKind::evict_host) {
      return "evicted from the host" + at + (moment.reason == Reason::shadowed ? "; the device keeps its copy" : "");
    }
    if (moment.kind == DecisionKind::evict_device) {
      if (moment.reason == Reason::demoted) return "evicted from the device" + at + "; the host keeps a copy";
      const bool offloaded = engine_.block_offload.host.chunks != 0;  // and may have a copy
      return "evicted from the device" + at + (offloaded ? "" : "; no copy is left");
    }
    if (moment.reason == Reason::capacity) return "not backed up" + at + ": the host had no room";
    std::string queued = (moment.reason == Reason::retry ? "queued for backup again" : "queued for backup") + at;
    if (moment.done < 0) return queued;
    if (moment.status != Status::done) return queued + "; " + status_text(moment.status);
    return queued + ", on the host at " + seconds_text(moment.done) + " s";
  }

  const RequestLife& life_;
  const RequestRecord& r_;
  const EngineConfig& engine_;
  const CostModel& cost_;
  std::string text_;
};

// ---- JSON --------------------------------------------------------------------------------------------

Json time_or_null(TimeNs time) { return time < 0 ? Json() : Json(seconds(time)); }

Json moments_json(const RequestLife& life) {
  Json list = Json::array();
  for (const RequestLife::PageMoment& moment : life.moments) {
    Json json{{"what", name_of(moment.kind)},
              {"reason", name_of(moment.reason)},
              {"first_page", moment.first},
              {"pages", moment.pages},
              {"at_s", seconds(moment.at)}};
    if (moment.pool != 0) json["pool"] = moment.pool;
    if (moment.kind == DecisionKind::backup) json["done_s"] = time_or_null(moment.done);
    list.push_back(json);
  }
  return list;
}

Json prefetch_json(const RequestLife::Prefetch& prefetch) {
  Json found = Json::array();
  for (const auto& [tier, pages] : prefetch.found) {
    found.push_back({{"tier", name_of(tier)}, {"pages", pages}});
  }
  Json fell_short = Json::object();
  for (const auto& [cause, pages] : prefetch.fell_short) fell_short[std::string(name_of(cause))] = pages;
  return {{"issued_s", seconds(prefetch.issued)},
          {"asked_pages", prefetch.asked},
          {"declined", name_of(prefetch.declined)},
          {"found", found},
          {"begin_s", time_or_null(prefetch.begin)},
          {"end_s", time_or_null(prefetch.end)},
          {"arrived_pages", prefetch.arrived},
          {"fell_short", fell_short},
          {"revoked_s", time_or_null(prefetch.revoked)},
          {"revoke_reason", name_of(prefetch.revoke_reason)},
          {"stopped_s", time_or_null(prefetch.stopped)},
          {"stop_reason", name_of(prefetch.stop_reason)},
          {"arrived_pages_at_stop", prefetch.arrived_at_stop}};
}

// The columns of requests.csv as keys.
Json row_json(const RequestRecord& r) {
  Json json{{"request", r.request},
            {"outcome", outcome_of(r)},
            {"arrival_s", seconds(r.arrival)},
            {"prompt_tokens", r.prompt_tokens},
            {"output_tokens", r.output_tokens}};
  if (r.admitted >= 0) {
    for (const TierSpec& spec : kTierSpecs) json[std::string(spec.hit_column)] = r.hit[spec.tier];
    json["miss"] = r.miss;
    if (r.unusable != 0) {
      json["unusable"] = r.unusable;
      json["without_window"] = r.without_window;
      json["without_state"] = r.without_state;
    }
    json["recomputed_after_stop"] = r.recomputed_after_stop;
    json["retracted_recompute"] = r.retracted_recompute;
    json["retractions"] = r.retractions;
  }
  if (r.first_token >= 0) {
    json["first_token_s"] = seconds(r.first_token);
    json["queue_s"] = seconds(r.queue_ns);
    json["prefetch_wait_s"] = seconds(r.prefetch_wait_ns);
    json["load_wait_s"] = seconds(r.load_wait_ns);
    json["compute_s"] = seconds(r.compute_ns);
    if (r.part != RequestPart::whole) json["hand_over_s"] = seconds(r.hand_over_ns);
    json["ttft_s"] = seconds(r.first_token - r.arrival);
  }
  if (r.finished >= 0) {
    json["finished_s"] = seconds(r.finished);
    if (r.output_tokens > 1) {
      json["tpot_s"] = seconds(r.finished - r.first_token) / static_cast<double>(r.output_tokens - 1);
    }
    json["e2e_s"] = seconds(r.finished - r.arrival);
  }
  return json;
}

// The columns of requests.csv as keys, and further facts.
Json life_json(const RequestLife& life, const Setup& setup) {
  const RequestRecord& r = life.record;
  Json json = row_json(r);
  json["session"] = life.session;
  json["priority"] = life.priority;
  json["found"] = {{"running", life.found_running}, {"waiting", life.found_waiting}, {"ahead", life.ahead}};
  if (r.admitted >= 0) {
    json["admitted_s"] = seconds(r.admitted);
    json["admitted_meanwhile"] = life.admitted_meanwhile;
  }
  if (r.finished >= 0) json["pages_left"] = life.pages_left.value_or(0);
  json["admissions"] = json["loads"] = json["prefills"] = json["retracted"] = Json::array();
  for (const RequestLife::Admission& admission : life.admissions) {
    json["admissions"].push_back({{"at_s", seconds(admission.at)}, {"reused_pages", admission.reused}});
  }
  for (const RequestLife::Load& load : life.loads) {
    json["loads"].push_back({{"queued_s", seconds(load.queued)},
                             {"pages", load.pages},
                             {"refused", name_of(load.refused)},
                             {"landed_s", time_or_null(load.landed)},
                             {"status", status_text(load.status)}});
  }
  for (const RequestLife::Prefill& prefill : life.prefills) {
    json["prefills"].push_back({{"begin_s", seconds(prefill.begin)},
                                {"end_s", time_or_null(prefill.end)},
                                {"tokens", prefill.tokens},
                                {"stalled_s", seconds(prefill.stalled)},
                                {"status", status_text(prefill.status)}});
  }
  for (const RequestLife::Retraction& retraction : life.retractions) {
    json["retracted"].push_back({{"at_s", seconds(retraction.at)}, {"reason", name_of(retraction.reason)}});
  }
  json["released"] = Json::array();
  for (const RequestLife::Retraction& release : life.releases) {
    json["released"].push_back({{"at_s", seconds(release.at)}, {"reason", name_of(release.reason)}});
  }
  json["prefetches"] = json["direct_loads"] = Json::array();
  for (const RequestLife::Prefetch& prefetch : life.prefetches) json["prefetches"].push_back(prefetch_json(prefetch));
  for (const RequestLife::DirectLoad& load : life.direct_loads) {
    json["direct_loads"].push_back({{"queued_s", seconds(load.queued)}, {"pages", load.pages}});
  }
  if (const auto verdict = storage_verdict(life, setup.engine, *setup.cost); verdict && r.first_token >= 0) {
    json["storage_verdict"] = {{"tokens", verdict->tokens},
                               {"took_s", seconds(verdict->took_ns)},
                               {"waited_s", seconds(verdict->waited_ns)},
                               {"loaded_s", seconds(verdict->loaded_ns)},
                               {"compute_s", seconds(verdict->compute_ns)},
                               {"paid", verdict->waited_ns + verdict->loaded_ns <= verdict->compute_ns}};
  }
  json["cache"] = moments_json(life);
  return json;
}

std::string role_of(const Setup& setup, std::size_t engine) {
  return setup.decode == nullptr ? "" : setup.is_decode_engine(engine) ? ", decode" : ", prefill";
}

// Gives the record the times of requests.csv. Only a simulated engine has a front end of its own.
void add_front_end(const PastRun& run, const Setup& setup, RequestLife& life) {
  if (run.is_simulation()) life.record = with_front_end(setup.serving, life.record);
}

// The request on every engine that it came to.
Explanation explain_engines(const PastRun& first, const std::string& path, std::int64_t request, bool as_json,
                            const Setup& setup) {
  Explanation explanation;
  Json json{{"request", request}, {"engines", Json::array()}};
  std::string text = "request     " + std::to_string(request) + ", by the journals\n";
  std::uint64_t arrivals = 0;
  bool arrived = false;
  // The last attempts: of the part that computed the prompt, and of the part that answers, or of the whole request.
  std::optional<RequestRecord> prefilled, answered;
  bool in_parts = false;
  TimeNs first_arrival = std::numeric_limits<TimeNs>::max();
  for (std::size_t engine = 0; engine < setup.world.engines; ++engine) {
    const PastRun run(path, engine * first.journals_per_engine());
    const EngineConfig config = setup.engine_of(engine);
    RequestLife life(static_cast<RequestId>(request), config.shape.page_tokens);
    const Rerun rerun(run, run.experiment(), &life);
    const bool equal = rerun.verdict() == RerunVerdict::equal;
    arrivals += life.arrivals;
    if (!equal && rerun.verdict() != RerunVerdict::truncated) explanation.exit_code = rerun.exit_code();
    if (!life.arrived) continue;
    arrived = true;
    const RequestRecord& record = life.record;
    first_arrival = std::min(first_arrival, life.first_arrival);
    const bool prefills = record.part == RequestPart::prefill;
    in_parts = in_parts || record.part != RequestPart::whole;
    std::optional<RequestRecord>& part = prefills ? prefilled : answered;
    const bool newer = !part || part->attempt < record.attempt;
    if (newer && (!prefills || record.first_token >= 0)) part = record;
    if (record.part == RequestPart::whole) add_front_end(run, setup, life);
    const Setup& own = setup.is_decode_engine(engine) ? *setup.decode : setup;
    Json one = life_json(life, own);
    one["engine"] = engine;
    one["part"] = name_of(life.record.part);
    one["from"] = "journal";
    one["verdict"] = name_of(rerun.verdict());
    if (!equal) one["sentence"] = rerun.sentence();
    json["engines"].push_back(std::move(one));
    text += "engine      " + std::to_string(engine) + role_of(setup, engine) +
            (life.record.attempt > 0 ? ", sent again\n" : "\n") + Story(life, own).text();
    if (!equal) text += "note        " + rerun.sentence() + "\n";
  }
  // The row of requests.csv: the request as its client saw it.
  if (answered && (in_parts || answered->attempt > 0)) {
    answered->arrival = first_arrival;
    RequestRecord whole = joined_parts(*answered, prefilled ? &*prefilled : nullptr);
    if (first.is_simulation()) whole = with_front_end(setup.serving, whole);
    json["together"] = row_json(whole);
    if (whole.first_token >= 0) text += "engines     together\nTTFT        " + ttft_text(whole) + "\n";
  }
  if (!arrived) {
    throw InputError(path + ": request " + std::to_string(request) + " is unknown; the engines' journals have " +
                     std::to_string(arrivals) + " arrivals");
  }
  explanation.text = as_json ? json.dump(2) + "\n" : text;
  return explanation;
}

}  // namespace

Explanation explain(const std::string& path, std::int64_t request, bool as_json) {
  if (is_call_journal(path)) return explain_calls(path, request, as_json);
  const PastRun run(path);
  const Setup setup = setup_for_rerun(run.experiment());
  if (setup.world.engines > 1 && run.has_journal() && run.journal_path() != run.path()) {
    return explain_engines(run, path, request, as_json, setup);
  }
  const EngineConfig& engine = setup.engine;
  RequestLife life(static_cast<RequestId>(request), engine.shape.page_tokens);
  const Rerun rerun(run, run.experiment(), &life);
  const bool equal = rerun.verdict() == RerunVerdict::equal;
  if (!life.arrived) {
    std::string sentence = path + ": request " + std::to_string(request) + " is unknown; there " +
                           (life.arrivals == 1 ? "is one, 0" : "are " + std::to_string(life.arrivals));
    if (life.arrivals > 1) sentence += ", 0 to " + std::to_string(life.arrivals - 1);
    if (!equal) sentence += ", as far as the run is decided again";
    throw InputError(sentence);
  }
  add_front_end(run, setup, life);
  Explanation explanation;
  if (as_json) {
    Json json = life_json(life, setup);
    json["from"] = run.has_journal() ? "journal" : "simulation";
    json["verdict"] = name_of(rerun.verdict());
    if (!equal) json["sentence"] = rerun.sentence();
    explanation.text = json.dump(2) + "\n";
  } else {
    explanation.text = "request     " + std::to_string(request) +
                       (run.has_journal() ? ", by the journal\n" : ", simulated again\n") + Story(life, setup).text();
    if (!equal) explanation.text += "note        " + rerun.sentence() + "\n";
  }
  // A journal that is cut short is an error only for requests behind the cut.
  if (!equal && rerun.verdict() != RerunVerdict::truncated) explanation.exit_code = rerun.exit_code();
  return explanation;
}

}  // namespace kvtwin

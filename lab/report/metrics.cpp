#include "lab/report/metrics.hpp"

#include <algorithm>

namespace kvtwin {

void Metrics::evicted(const Event& event) {
  evicted_of_pools[{event.tier, event.pool, event.engine}] += event.pages;
  if (event.pool != 0) return;
  TierUse& use = tier(event.tier);
  use.evicted += event.pages;
  if (event.reason == Reason::host_pressure || event.reason == Reason::transfer_failed) {
    use.dropped[name_of(event.reason)] += event.pages;
  }
}

Pages Metrics::evicted_slots(Tier tier, std::uint8_t pool, EngineRange engines) const {
  Pages sum = 0;
  for (const auto& [key, slots] : evicted_of_pools) {
    const auto& [of_tier, of_pool, engine] = key;
    if (of_tier == tier && of_pool == pool && engines.contains(engine)) sum += slots;
  }
  return sum;
}

void Metrics::count_storage(const Event& event) {
  if (event.pool != 0) {
    if (event.kind == EventKind::store_done) stored_of_pools[{event.tier, event.pool}] += event.pages;
    return;
  }
  switch (event.kind) {
    case EventKind::store_done:
      tier(event.tier).written += event.pages;
      counter_.stored(event);
      break;
    case EventKind::store_dropped: tier(event.tier).dropped[name_of(event.reason)] += event.pages; break;
    case EventKind::store_retried: stores_retried += event.pages; break;
    case EventKind::storage_fell_short: {
      Shortfall& of = fell_short[event.tier][name_of(event.cause)];
      of.pages += event.pages;
      of.longest_ns = std::max(of.longest_ns, event.duration_ns);
      break;
    }
    default: count_prefetch(event); break;
  }
}

std::map<std::string_view, Pages> Metrics::fell_short_of_all() const {
  std::map<std::string_view, Pages> all;
  for (const auto& tier : fell_short) {
    for (const auto& [cause, of] : tier) all[cause] += of.pages;
  }
  return all;
}

void Metrics::count_prefetch(const Event& event) {
  const bool aborted_one = event.reason == Reason::aborted;
  switch (event.kind) {
    case EventKind::prefetch_issued:
      ++prefetches.issued;
      prefetches.open.insert({event.engine, event.request});
      break;
    case EventKind::prefetch_declined: ++prefetches.declined[name_of(event.reason)]; break;
    case EventKind::prefetch_revoked:
      end_prefetch(event, aborted_one ? prefetches.aborted : prefetches.revoked);
      if (!aborted_one) ++prefetches.revoked_reasons[name_of(event.reason)];
      break;
    case EventKind::prefetch_shortened:
      if (event.reason == Reason::capacity) prefetches.shortened += event.pages;
      break;
    case EventKind::prefetch_stopped: end_prefetch(event, aborted_one ? prefetches.aborted : prefetches.stopped); break;
    case EventKind::prefetch_done:
      if (event.reason == Reason::none) end_prefetch(event, prefetches.completed);
      if (event.reason == Reason::transfer_failed) end_prefetch(event, prefetches.failed);
      prefetches.arrived += event.pages;
      break;
    case EventKind::prefetch_used: prefetches.used += event.pages; break;
    case EventKind::prefetch_wasted: prefetches.wasted[name_of(event.reason)] += event.pages; break;
    default: break;  // not in the report
  }
}

void Metrics::end_prefetch(const Event& event, std::uint64_t& way) {
  ++way;
  prefetches.open.erase({event.engine, event.request});
}

Rates Metrics::rates(TimeNs run) const {
  Rates rates = counter_.rates();
  if (counter_.terms().rates_whole_run()) rates.span = run;
  return rates;
}

void Metrics::engine_lost(std::size_t engine) {
  prefetches.engine_lost += std::erase_if(prefetches.open, [&](const auto& open) { return open.first == engine; });
}

Pages Metrics::Holds::most(Tier tier) const {
  Pages pages = 0;
  for (const auto& [place, most] : pages_max) pages += place.second == tier ? most : 0;
  return pages;
}

void Metrics::on_event(const Event& event) {
  server.on_event(event);
  switch (event.kind) {
    case EventKind::arrived:
      if (sent++ == 0) first_arrival = event.time;
      last_arrival = std::max(last_arrival, event.time);
      counter_.arrived(event);
      break;
    case EventKind::finished: {
      const RequestRecord& r = *event.record;
      ++served;
      hits_of_run += r.hit.sum();
      waits.add(r.request, r.first_token - r.arrival - r.compute_ns);
      counter_.ended(event);
      break;
    }
    case EventKind::rejected:
      if (event.reason == Reason::too_long) {
        const RequestRecord& r = *event.record;
        RejectedPrompts& of = rejected_prompts;
        of.shortest = of.longest == 0 ? r.prompt_tokens : std::min(of.shortest, r.prompt_tokens);
        of.longest = std::max(of.longest, r.prompt_tokens);
        of.most_kv = std::max(of.most_kv, r.prompt_tokens + r.output_tokens - 1);
      }
      [[fallthrough]];
    case EventKind::aborted: counter_.ended(event); break;
    case EventKind::retracted: ++retractions; break;
    case EventKind::backup_done: tier(Tier::host).written += event.pages; break;
    case EventKind::backup_dropped: tier(Tier::host).dropped[name_of(event.reason)] += event.pages; break;
    case EventKind::load_done: loads.done += event.pages; break;
    case EventKind::load_failed: loads.failed += event.pages; break;
    case EventKind::load_declined: loads.declined[name_of(event.reason)] += event.pages; break;
    case EventKind::backup_retried: backups_retried += event.pages; break;
    case EventKind::backup_awaited: ++backups_awaited; break;
    case EventKind::store_awaited:
      if (event.pages > 0) {
        awaits_since_.emplace(event.engine, event.time);
      } else if (const auto since = awaits_since_.extract(event.engine)) {
        stores_awaited_ns += event.time - since.mapped();
      }
      break;
    case EventKind::held: ++(event.reason == Reason::none ? holds.begun : holds.refused); break;
    case EventKind::unheld: ++holds.ended[event.reason == Reason::none ? "hint" : name_of(event.reason)]; break;
    case EventKind::held_pages: {
      Pages& most = holds.pages_max[{event.engine, event.tier}];
      most = std::max(most, event.pages);
      break;
    }
    case EventKind::evicted: evicted(event); break;
    case EventKind::pass_done:
      // A pass that was cancelled or failed before its first step counts as neither; a mixed pass counts as both.
      if (event.pages != 0) {
        ++decode_passes;
        decode_steps += event.pages;
      }
      if (event.tokens != 0) {
        ++prefill_passes;
        prefill_tokens += event.tokens;
      }
      break;
    default: count_storage(event); break;
  }
  if (next_ != nullptr) next_->on_event(event);
}

}  // namespace kvtwin

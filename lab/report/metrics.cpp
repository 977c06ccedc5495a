#include "lab/report/metrics.hpp"

#include <algorithm>
#include <bit>

#include "lab/report/saved_time.hpp"

namespace kvtwin {
namespace {

constexpr unsigned kMantissaBits = 10;

std::size_t bucket_of(std::uint64_t value) {
  if (value < (1U << (kMantissaBits + 1))) return value;
  const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - 1 - kMantissaBits;
  return (static_cast<std::size_t>(shift) << kMantissaBits) + static_cast<std::size_t>(value >> shift);
}

std::uint64_t low_end(std::size_t bucket) {
  if (bucket < (1U << (kMantissaBits + 1))) return bucket;
  const std::size_t shift = (bucket >> kMantissaBits) - 1;
  return static_cast<std::uint64_t>(bucket - (shift << kMantissaBits)) << shift;
}

double seconds(double nanoseconds) { return nanoseconds / 1e9; }

}  // namespace

void DurationHistogram::add(TimeNs duration) {
  const auto value = static_cast<std::uint64_t>(std::max<TimeNs>(duration, 0));
  const std::size_t bucket = bucket_of(value);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  ++buckets_[bucket];
  ++count_;
  max_ = std::max(max_, duration);
  const std::uint64_t before = sum_[0];
  sum_[0] += value;
  if (sum_[0] < before) ++sum_[1];
}

std::optional<double> DurationHistogram::mean_seconds() const {
  if (count_ == 0) return std::nullopt;
  const double sum = static_cast<double>(sum_[1]) * 18446744073709551616.0 + static_cast<double>(sum_[0]);
  return seconds(sum / static_cast<double>(count_));
}

std::optional<double> DurationHistogram::quantile_seconds(std::uint64_t per_mille) const {
  const std::uint64_t wanted = std::max<std::uint64_t>(1, (count_ * per_mille + 999) / 1000);
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    seen += buckets_[bucket];
    if (seen >= wanted) return seconds(static_cast<double>(low_end(bucket)));
  }
  return std::nullopt;
}

std::optional<double> DurationHistogram::max_seconds() const {
  if (count_ == 0) return std::nullopt;
  return seconds(static_cast<double>(max_));
}

std::optional<double> Metrics::share_of_arrived(std::uint64_t requests) const {
  if (arrived == 0) return std::nullopt;
  return static_cast<double>(requests) / static_cast<double>(arrived);
}

void WaitTrend::add(RequestId request, TimeNs wait) {
  while (request / width_ >= kMaxGroups) {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      Group& half = groups_[i / 2];
      const Group whole = groups_[i];
      if (i % 2 == 0) {
        half = whole;
      } else {
        half.count += whole.count;
        half.wait_s += whole.wait_s;
      }
    }
    groups_.resize((groups_.size() + 1) / 2);
    width_ *= 2;
  }
  const auto at = static_cast<std::size_t>(request / width_);
  if (at >= groups_.size()) groups_.resize(at + 1);
  ++groups_[at].count;
  groups_[at].wait_s += seconds(static_cast<double>(wait));
  ++count_;
}

std::optional<WaitTrend::Thirds> WaitTrend::thirds() const {
  const auto mean = [&](std::size_t from, std::size_t to) -> std::optional<double> {
    Group sum;
    for (std::size_t i = from; i < to; ++i) {
      sum.count += groups_[i].count;
      sum.wait_s += groups_[i].wait_s;
    }
    if (sum.count == 0) return std::nullopt;
    return sum.wait_s / static_cast<double>(sum.count);
  };
  const std::size_t third = groups_.size() / 3;
  const std::optional<double> first = mean(0, third), last = mean(groups_.size() - third, groups_.size());
  if (!first || !last) return std::nullopt;
  return Thirds{*first, *last};
}

void Metrics::finished(const RequestRecord& r) {
  ++completed;
  prompt += r.prompt_tokens;
  for (const TierSpec& spec : kTierSpecs) hit[spec.tier] += r.hit[spec.tier];
  recomputed_after_stop += r.recomputed_after_stop;
  miss += r.miss;
  reused_without_draft += r.reused_without_draft;
  if (cost_ != nullptr) {
    saved_ns += prefill_saved_ns(*cost_, r.prompt_tokens, r.hit.sum());
  }
  output += r.output_tokens;
  retracted_recompute += r.retracted_recompute;
  ttft.add(r.first_token - r.arrival);
  queue.add(r.queue_ns);
  prefetch_wait.add(r.prefetch_wait_ns);
  load_wait.add(r.load_wait_ns);
  compute.add(r.compute_ns);
  e2e.add(r.finished - r.arrival);
  if (r.output_tokens > 1) tpot.add((r.finished - r.first_token) / static_cast<TimeNs>(r.output_tokens - 1));
  waits.add(r.request, r.first_token - r.arrival - r.compute_ns);
  last_finish = std::max(last_finish, r.finished);
}

void Metrics::evicted(const Event& event) {
  TierUse& use = tier(event.tier);
  use.evicted += event.pages;
  if (event.reason == Reason::host_pressure || event.reason == Reason::transfer_failed) {
    use.dropped[name_of(event.reason)] += event.pages;
  }
}

void Metrics::count_storage(const Event& event) {
  switch (event.kind) {
    case EventKind::store_done: tier(event.tier).written += event.pages; break;
    case EventKind::store_dropped: tier(event.tier).dropped[name_of(event.reason)] += event.pages; break;
    case EventKind::store_retried: stores_retried += event.pages; break;
    case EventKind::storage_fell_short: fell_short[name_of(event.cause)] += event.pages; break;
    default: count_prefetch(event); break;
  }
}

void Metrics::count_prefetch(const Event& event) {
  const bool aborted_one = event.reason == Reason::aborted;
  switch (event.kind) {
    case EventKind::prefetch_issued:
      ++prefetches.issued;
      prefetches.open.insert(event.request);
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
  prefetches.open.erase(event.request);
}

void Metrics::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::arrived:
      if (arrived++ == 0) first_arrival = event.time;
      last_arrival = std::max(last_arrival, event.time);
      break;
    case EventKind::finished: finished(*event.record); break;
    case EventKind::rejected:
      ++rejected[name_of(event.reason)];
      ++rejected_total;
      break;
    case EventKind::retracted: ++retractions; break;
    case EventKind::aborted: ++aborted; break;
    case EventKind::backup_done: tier(Tier::host).written += event.pages; break;
    case EventKind::backup_dropped: tier(Tier::host).dropped[name_of(event.reason)] += event.pages; break;
    case EventKind::load_done: loads.done += event.pages; break;
    case EventKind::load_failed: loads.failed += event.pages; break;
    case EventKind::load_declined: loads.declined[name_of(event.reason)] += event.pages; break;
    case EventKind::backup_retried: backups_retried += event.pages; break;
    case EventKind::backup_awaited: ++backups_awaited; break;
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

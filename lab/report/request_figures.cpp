#include "lab/report/request_figures.hpp"

#include <algorithm>
#include <bit>
#include <utility>

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

std::optional<double> RequestFigures::share_of_arrived(std::uint64_t requests) const {
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

namespace {

// Returns nothing for a request of one output token.
std::optional<TimeNs> tpot_ns(const RequestRecord& r) {
  if (r.output_tokens <= 1) return std::nullopt;
  return (r.finished - r.first_token) / static_cast<TimeNs>(r.output_tokens - 1);
}

}  // namespace

bool ServiceLevel::met_by(const RequestRecord& r) const {
  const auto within = [](TimeNs time, TimeNs limit) { return limit == 0 || time <= limit; };
  return within(r.first_token - r.arrival, ttft) && within(tpot_ns(r).value_or(0), tpot) &&
         within(r.finished - r.arrival, e2e);
}

void RequestFigures::finished(const RequestRecord& r, const CostModel* cost, const ServiceLevel& level) {
  ++completed;
  if (level.met_by(r)) ++good;
  prompt += r.prompt_tokens;
  for (const TierSpec& spec : kTierSpecs) hit[spec.tier] += r.hit[spec.tier];
  recomputed_after_stop += r.recomputed_after_stop;
  miss += r.miss;
  reused_without_draft += r.reused_without_draft;
  unusable += r.unusable;
  if (cost != nullptr) saved_ns += prefill_saved_ns(*cost, r.prompt_tokens, r.hit.sum());
  output += r.output_tokens;
  retracted_recompute += r.retracted_recompute;
  ttft.add(r.first_token - r.arrival);
  ByHint& by_hint = r.hinted ? hinted : not_hinted;
  by_hint.prompt += r.prompt_tokens;
  by_hint.hit += r.hit.sum();
  by_hint.ttft.add(r.first_token - r.arrival);
  queue.add(r.queue_ns);
  prefetch_wait.add(r.prefetch_wait_ns);
  load_wait.add(r.load_wait_ns);
  compute.add(r.compute_ns);
  hand_over.add(r.hand_over_ns);
  e2e.add(r.finished - r.arrival);
  if (const std::optional<TimeNs> time = tpot_ns(r)) tpot.add(*time);
}

void RequestFigures::rejected_for(Reason reason) {
  ++rejected[name_of(reason)];
  ++rejected_total;
}

void Rates::add(const RequestRecord& finished, const ServiceLevel& level) {
  ++completed;
  if (level.met_by(finished)) ++good;
  prompt += finished.prompt_tokens;
  output += finished.output_tokens;
}

void Rates::add(const Rates& other) {
  span += other.span;
  completed += other.completed;
  good += other.good;
  prompt += other.prompt;
  output += other.output;
  for (const TierSpec& spec : kTierSpecs) written[spec.tier] += other.written[spec.tier];
}

std::optional<double> Rates::per_second(std::uint64_t count) const {
  if (completed == 0 || span <= 0) return std::nullopt;
  return static_cast<double>(count) / seconds(static_cast<double>(span));
}

// ---- the requests that count -------------------------------------------------------------------------

RequestCounter::RequestCounter(CountingTerms terms, RequestFigures& all, const CostModel* cost,
                               std::function<void(const RequestRecord&)> finished)
    : terms_(std::move(terms)), all_(all), cost_(cost), finished_(std::move(finished)) {
  if (!terms_.stages.empty()) first_of_next_stage_ = terms_.stages.front();
}

void RequestCounter::arrived(const Event& event) {
  while (first_of_next_stage_ != 0 && event.record->request >= first_of_next_stage_) {
    finish();
    const std::size_t next = stages_.size();
    stages_.emplace_back();
    first_of_next_stage_ = next + 1 < terms_.stages.size() ? first_of_next_stage_ + terms_.stages[next] : 0;
    has_arrival_ = false;
    ended_ = 0;
  }
  StageFigures& stage = stages_.back();
  ++stage.sent;
  // The scheduler takes a request at a step, later than it arrives.
  const TimeNs arrival = event.record->arrival;
  if (!std::exchange(has_arrival_, true)) stage.begin = stage.end = stage.loaded_until = arrival;
  if (terms_.counts_all()) ++all_.arrived;  // a request counts before its end
  if (!terms_.counts_drain) {
    stage.end = std::max(stage.end, arrival);
    std::erase_if(held_, [&](const End& end) {
      if (end.time > stage.end) return false;
      count(end);
      return true;
    });
  }
  if (!terms_.closed) return;
  const TimeNs loaded = terms_.cut_at ? std::min(arrival, terms_.cut_at()) : arrival;
  stage.loaded_until = std::max(stage.loaded_until, loaded);
  std::erase_if(held_work_, [&](const Work& work) {
    if (work.time > stage.loaded_until) return false;
    stage.rates.add(work.done);
    return true;
  });
}

void RequestCounter::ended(const Event& event) {
  StageFigures& stage = stages_.back();
  if (ended_++ < terms_.warmup_requests) {
    ++stage.warmup;
    stage.begin = event.time;
    stage.rates = {};  // pages written during the warm-up
    held_work_.clear();
    return;
  }
  if (event.kind == EventKind::finished) {
    Rates done;
    done.add(*event.record, terms_.level);
    rate(event.time, done);
  }
  const End end{event.kind, event.reason, event.time, *event.record};
  if (!terms_.counts_drain) {
    held_.push_back(end);
    return;
  }
  count(end);
  stage.end = event.time;
}

void RequestCounter::stored(const Event& event) {
  Rates done;
  done.written[event.tier] = event.pages;
  rate(event.time, done);
}

void RequestCounter::rate(TimeNs time, const Rates& done) {
  if (!terms_.closed) return stages_.back().rates.add(done);
  const bool is_cut = terms_.cut_at && time > terms_.cut_at();
  if (!is_cut) held_work_.push_back({time, done});
}

void RequestCounter::count(const End& end) {
  const auto add = [&](RequestFigures& figures) {
    if (end.kind == EventKind::finished) figures.finished(end.record, cost_, terms_.level);
    if (end.kind == EventKind::rejected) figures.rejected_for(end.reason);
    if (end.kind == EventKind::aborted) ++figures.aborted;
  };
  add(all_);
  if (finished_ && end.kind == EventKind::finished) finished_(end.record);
  if (terms_.counts_all()) return;
  ++all_.arrived;
  ++stages_.back().figures.arrived;
  add(stages_.back().figures);
}

void RequestCounter::finish() {
  StageFigures& stage = stages_.back();
  stage.drain += held_.size();
  stage.rates.span = std::max<TimeNs>(0, (terms_.closed ? stage.loaded_until : stage.end) - stage.begin);
  held_.clear();
  held_work_.clear();
}

TimeNs RequestCounter::window_ns() const {
  TimeNs sum = 0;
  for (const StageFigures& stage : stages_) sum += stage.window_ns();
  return sum;
}

Rates RequestCounter::rates() const {
  Rates sum;
  for (const StageFigures& stage : stages_) sum.add(stage.rates);
  return sum;
}

std::uint64_t RequestCounter::left_out_as_warmup() const {
  std::uint64_t sum = 0;
  for (const StageFigures& stage : stages_) sum += stage.warmup;
  return sum;
}

std::uint64_t RequestCounter::left_out_as_drain() const {
  std::uint64_t sum = 0;
  for (const StageFigures& stage : stages_) sum += stage.drain;
  return sum;
}

}  // namespace kvtwin

#include "lab/watch/watch_intervals.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "lab/watch/hit_curve.hpp"

namespace kvtwin {

double WatchInterval::hit_blocks(std::uint64_t size) const {
  if (sampled == 0) return 0;
  const std::size_t last = size_step(size);
  double sum = last < hits.size() ? share_of_step(size) * static_cast<double>(hits[last]) : 0;
  for (std::size_t step = 0; step < std::min(last, hits.size()); ++step) sum += static_cast<double>(hits[step]);
  const auto weight = static_cast<double>(one_in), all = static_cast<double>(lookup_blocks);
  // As HitCurve::hits(): what the sample has too much or too little of hits.
  if (one_in > 1) sum += all / weight - static_cast<double>(sampled);
  return std::clamp(sum * weight, 0.0, all);
}

WatchIntervals::WatchIntervals(TimeNs length, std::uint64_t one_in)
    : one_in_(one_in), length_(std::max<TimeNs>(1, length)) {}

void WatchIntervals::reach(TimeNs time) {
  if (!first_) first_ = earliest_ = now_ = time;
  earliest_ = std::min(earliest_, time);
  now_ = std::max(now_, time);
  at(now_);
}

// A request is known when it has ended, and counts where it began. Requests of a log may have begun before the watch.
WatchInterval& WatchIntervals::at(TimeNs time) {
  if (time < *first_) *first_ -= (*first_ - time + length_ - 1) / length_ * length_;
  const auto begin_of = [&] { return *first_ + (time - *first_) / length_ * length_; };
  const auto place = [&] {
    auto here = all_.end();
    while (here != all_.begin() && std::prev(here)->begin > begin_of()) --here;
    return here;
  };
  auto here = place();
  const auto is_there = [&] { return here != all_.begin() && std::prev(here)->begin == begin_of(); };
  if (is_there()) return *std::prev(here);
  // Requests that began in the last interval may end in this one.
  if (here == all_.end()) tell(1);
  while (all_.size() >= kMaxIntervals) join();
  here = place();
  if (is_there()) return *std::prev(here);
  if (static_cast<std::size_t>(here - all_.begin()) < told_) ++told_;
  here = all_.emplace(here);
  here->begin = begin_of();
  here->length = length_;
  here->one_in = one_in_;
  here->hits.resize(kSizeSteps);
  return *here;
}

// Reports the intervals that were not reported yet, but for the last `open` ones.
void WatchIntervals::tell(std::size_t open) {
  for (; told_ + open < all_.size(); ++told_) {
    if (on_end_) on_end_(all_[told_]);
  }
}

void WatchIntervals::join() {
  length_ *= 2;
  std::deque<WatchInterval> joined;
  for (WatchInterval& one : all_) {
    const TimeNs begin = *first_ + (one.begin - *first_) / length_ * length_;
    if (joined.empty() || joined.back().begin != begin) {
      joined.push_back(std::move(one));
      joined.back().begin = begin;
      joined.back().length = length_;
      continue;
    }
    WatchInterval& into = joined.back();
    for (std::size_t i = 0; i < into.hits.size(); ++i) into.hits[i] += one.hits[i];
    for (const auto member : {&WatchInterval::requests, &WatchInterval::lookup_blocks, &WatchInterval::sampled,
                              &WatchInterval::lookup_tokens, &WatchInterval::twin_looked_up, &WatchInterval::twin_hits,
                              &WatchInterval::measured_looked_up, &WatchInterval::measured_hits,
                              &WatchInterval::stored_blocks, &WatchInterval::removed_blocks}) {
      into.*member += one.*member;
    }
  }
  told_ = told_ * joined.size() / all_.size();
  all_ = std::move(joined);
}

std::size_t WatchIntervals::memory_bytes() const {
  return all_.size() * (sizeof(WatchInterval) + kSizeSteps * sizeof(std::uint32_t));
}

}  // namespace kvtwin

#include "lab/watch/hit_curve.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lab/watch/stack_distances.hpp"

namespace kvtwin {

std::size_t size_step(std::uint64_t size) {
  if (size < 16) return static_cast<std::size_t>(size);
  const int power = static_cast<int>(std::bit_width(size)) - 1;
  return 16 + static_cast<std::size_t>(power - 4) * 16 + static_cast<std::size_t>(size >> (power - 4) & 15);
}

double share_of_step(std::uint64_t size) {
  if (size < 16) return 1;
  const int power = static_cast<int>(std::bit_width(size)) - 1;
  const std::uint64_t sizes = std::uint64_t{1} << (power - 4);
  return static_cast<double>((size & (sizes - 1)) + 1) / static_cast<double>(sizes);
}

HitCurve::HitCurve(Tokens block_tokens, std::uint64_t one_in, PrefillTime prefill)
    : block_tokens_(block_tokens), one_in_(one_in), prefill_(std::move(prefill)) {
  if (prefill_) saved_ns_.resize(kSizeSteps);
  if (one_in_ > 1) {
    for (ClassCount& one : classes_) one.hits.resize(kSizeSteps);
  }
}

// The time of a pass over the first blocks of a prompt, of at most 4 M.
TimeNs HitCurve::prefill_ns(std::size_t blocks) {
  blocks = std::min(blocks, std::size_t{1} << 22);
  while (prefill_ns_.size() <= blocks) {
    prefill_ns_.push_back(prefill_ns_.empty() ? 0 : prefill_(prefill_ns_.size() * block_tokens_));
  }
  return prefill_ns_[blocks];
}

void HitCurve::add(const CountedLookUp& request) {
  ++requests_;
  lookup_blocks_ += request.distances.size();
  lookup_tokens_ += request.input;
  if (prefill_) {
    total_ns_ += static_cast<std::uint64_t>(prefill_ns(static_cast<std::size_t>(request.input / block_tokens_)));
  }
  for (std::size_t i = 0; i < request.distances.size(); ++i) {
    const std::uint64_t distance = request.distances[i];
    if (distance == StackDistances::kNotSampled) continue;
    ++sampled_;
    ClassCount* of = nullptr;
    if (one_in_ > 1) {
      of = &classes_[StackDistances::sample_of(request.keys[i]) / one_in_ % kClasses];
      ++of->sampled;
    }
    if (distance == StackDistances::kNew) continue;
    const auto bin = static_cast<std::size_t>(distance / one_in_);
    if (bin >= bins_.size()) bins_.resize(bin + 1);
    ++bins_[bin].blocks;
    const Tokens end = (i + 1) * block_tokens_;
    if (end > request.input) bins_[bin].short_tokens += end - request.input;
    if (of != nullptr) ++of->hits[size_step(distance)];
    if (prefill_) {
      const TimeNs before = prefill_ns(i), with = prefill_ns(i + 1);
      saved_ns_[size_step(distance)] += static_cast<std::uint64_t>(std::max<TimeNs>(0, with - before)) * one_in_;
    }
  }
}

// The spread of the parts of the sample (jackknife of means).
double HitCurve::error_of(std::uint64_t size) const {
  if (one_in_ == 1 || lookup_blocks_ == 0) return 0;
  const double expected =
      static_cast<double>(lookup_blocks_) / static_cast<double>(one_in_) / static_cast<double>(kClasses);
  const std::size_t end = std::min(size_step(size) + 1, kSizeSteps);
  double sum = 0, squares = 0;
  for (const ClassCount& one : classes_) {
    double hits = expected - static_cast<double>(one.sampled);
    for (std::size_t step = 0; step < end; ++step) hits += static_cast<double>(one.hits[step]);
    const double ratio = hits / expected;
    sum += ratio;
    squares += ratio * ratio;
  }
  const auto count = static_cast<double>(kClasses);
  const double variance = std::max(0.0, (squares - sum * sum / count) / (count - 1));
  return std::sqrt(variance / count);
}

std::vector<HitCurve::Hits> HitCurve::hits(std::span<const std::uint64_t> sizes) const {
  std::vector<Hits> all;
  std::uint64_t blocks = 0, short_tokens = 0, saved = 0;
  std::size_t bin = 0, step = 0;
  const auto weight = static_cast<double>(one_in_);
  // Look-ups that the sample has too many or too few of are mostly of blocks that all requests begin with, which hit.
  const double beyond = static_cast<double>(lookup_blocks_) / weight - static_cast<double>(sampled_);
  for (const std::uint64_t size : sizes) {
    for (; bin < bins_.size() && bin * one_in_ <= size; ++bin) {
      blocks += bins_[bin].blocks;
      short_tokens += bins_[bin].short_tokens;
    }
    double saved_part = 0;
    if (prefill_) {
      for (; step < size_step(size); ++step) saved += saved_ns_[step];
      saved_part = static_cast<double>(saved_ns_[step]) * share_of_step(size);
    }
    Hits hits;
    hits.blocks = std::clamp((static_cast<double>(blocks) + (one_in_ == 1 ? 0.0 : beyond)) * weight, 0.0,
                             static_cast<double>(lookup_blocks_));
    hits.tokens =
        std::max(0.0, hits.blocks * static_cast<double>(block_tokens_) - static_cast<double>(short_tokens) * weight);
    if (lookup_blocks_ > 0) {
      hits.block_ratio = hits.blocks / static_cast<double>(lookup_blocks_);
      hits.token_ratio = std::min(1.0, hits.tokens / static_cast<double>(lookup_tokens_));
    }
    hits.error = error_of(size);
    hits.saved_seconds = (static_cast<double>(saved) + saved_part) * 1e-9;
    all.push_back(hits);
  }
  return all;
}

std::uint64_t HitCurve::enough() const { return bins_.empty() ? 0 : (bins_.size() - 1) * one_in_; }

std::size_t HitCurve::memory_bytes() const {
  std::size_t bytes = bins_.capacity() * sizeof(Bin) + saved_ns_.capacity() * 8 + prefill_ns_.capacity() * 8;
  for (const ClassCount& one : classes_) bytes += one.hits.capacity() * 8;
  return bytes;
}

}  // namespace kvtwin

// Hits by size of cache, for all sizes at once, summed over requests.
//
// Blocks and tokens are exact for each size up to the largest distance. The prefill time that hits save, and the error
// of a sample, are kept in steps of 1/16 of a power of two.
// Memory: kBytesPerBlock per block of the largest distance that was hit, and 100 KiB.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

// Sizes in steps: exact below 16, then 16 per power of two. Returns the step of a size; sizes of a step are neighbours.
std::size_t size_step(std::uint64_t size);
inline constexpr std::size_t kSizeSteps = 16 + 60 * 16;
// Returns the share of the sizes of step size_step(size) that are at most `size`.
double share_of_step(std::uint64_t size);

// A request, with its stack distances (stack_distances.hpp).
struct CountedLookUp {
  std::span<const std::uint64_t> keys, distances;
  Tokens input = 0;
};

// Returns the time of a pass over a prompt of so many tokens.
using PrefillTime = std::function<TimeNs(Tokens)>;

class HitCurve {
 public:
  static constexpr std::size_t kBytesPerBlock = 16;

  // `one_in`: of the sample. `prefill`: empty: no times.
  explicit HitCurve(Tokens block_tokens, std::uint64_t one_in = 1, PrefillTime prefill = {});

  void add(const CountedLookUp& request);

  std::uint64_t requests() const { return requests_; }
  std::uint64_t lookup_blocks() const { return lookup_blocks_; }
  Tokens lookup_tokens() const { return lookup_tokens_; }
  double total_seconds() const { return static_cast<double>(total_ns_) * 1e-9; }  // of prefill without a hit

  struct Hits {
    double blocks = 0, tokens = 0;  // whole numbers without a sample
    double block_ratio = 0, token_ratio = 0;
    double error = 0;          // of the ratios: one standard error of the sample; 0 without one
    double saved_seconds = 0;  // of prefill
  };
  // Requires: sizes rise. A size above the largest known distance has the hits of that distance.
  std::vector<Hits> hits(std::span<const std::uint64_t> sizes) const;
  // The smallest size that has all hits.
  std::uint64_t enough() const;
  std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kClasses = 8;  // parts of the sample, whose spread is its error
  struct Bin {
    std::uint64_t blocks = 0, short_tokens = 0;  // short: that the last blocks of prompts lack
  };
  struct ClassCount {
    std::uint64_t sampled = 0;
    std::vector<std::uint64_t> hits;  // by step
  };
  double error_of(std::uint64_t size) const;
  TimeNs prefill_ns(std::size_t blocks);

  const Tokens block_tokens_;
  const std::uint64_t one_in_;
  const PrefillTime prefill_;
  std::uint64_t requests_ = 0, lookup_blocks_ = 0, sampled_ = 0;
  Tokens lookup_tokens_ = 0;
  std::vector<Bin> bins_;  // by distance / one_in, from 1
  std::array<ClassCount, kClasses> classes_;
  std::vector<std::uint64_t> saved_ns_;  // by step
  std::uint64_t total_ns_ = 0;
  std::vector<TimeNs> prefill_ns_;  // of so many blocks
};

}  // namespace kvtwin

// What a watch counts per interval of time: at most kMaxIntervals of one length, which doubles when more are needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

struct WatchInterval {
  TimeNs begin = 0, length = 0;
  std::uint64_t requests = 0, lookup_blocks = 0, sampled = 0;
  std::uint64_t one_in = 1;  // of the sample
  Tokens lookup_tokens = 0;
  std::vector<std::uint32_t> hits;  // sampled look-ups by size_step() of their distance
  Tokens twin_looked_up = 0, twin_hits = 0;
  Tokens measured_looked_up = 0, measured_hits = 0;
  std::uint64_t stored_blocks = 0, removed_blocks = 0;

  // Blocks that a cache of this size hits, of lookup_blocks.
  double hit_blocks(std::uint64_t size) const;
};

class WatchIntervals {
 public:
  static constexpr std::size_t kMaxIntervals = 512;

  // `one_in`: of the sample.
  WatchIntervals(TimeNs length, std::uint64_t one_in);

  // Called with each interval when requests can no longer begin in it.
  void on_end(std::function<void(const WatchInterval&)> call) { on_end_ = std::move(call); }
  // Time passes. The first call begins the first interval.
  void reach(TimeNs time);
  bool has_begun() const { return first_.has_value(); }
  TimeNs earliest() const { return earliest_; }  // time that was reached; 0 before
  TimeNs now() const { return now_; }            // the latest
  // The interval of a time; valid until the next call. Requires: has_begun().
  WatchInterval& at(TimeNs time);
  // Calls on_end() for those that are left.
  void end() { tell(0); }
  // In the order of time.
  const std::deque<WatchInterval>& all() const { return all_; }
  std::size_t memory_bytes() const;

 private:
  void tell(std::size_t open);
  void join();

  const std::uint64_t one_in_;
  TimeNs length_;
  std::optional<TimeNs> first_;  // begin of the first interval
  TimeNs earliest_ = 0, now_ = 0;
  std::deque<WatchInterval> all_;
  std::size_t told_ = 0;
  std::function<void(const WatchInterval&)> on_end_;
};

}  // namespace kvtwin

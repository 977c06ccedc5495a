// A layer-pipelined pass in closed form. A pass of n equal layer groups, c ns each, waits per group for its
// bytes: group i (1 .. n) starts at max(end of group i - 1, arrival of its bytes). So it ends at
//     max(start + n c,  max over i of arrival_i + (n - i + 1) c).
// While bytes flow at a constant rate the arrivals are equally spaced, and the inner maximum is at the first
// or the last group that arrives within that piece: one fold a change of rate, and no event a layer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "policy/base/types.hpp"

namespace kvtwin {

// An instant finer than a nanosecond: base + fraction. Keeps its precision however long the run.
struct Instant {
  TimeNs base = 0;
  double fraction = 0.0;
};

// The nearest nanosecond. What is half, but for the noise of floating point, goes up.
inline TimeNs nearest_ns(double ns) { return static_cast<TimeNs>(std::floor(ns + 0.5 + 1e-6)); }
inline TimeNs nearest_ns(const Instant& t) { return t.base + nearest_ns(t.fraction); }

// A stretch of a flow's life at one rate.
struct FlowPiece {
  Instant start;
  double left = 0.0;  // bytes at its start
  double rate = 0.0;  // bytes a nanosecond; 0 = doesn't flow yet

  double left_at(const Instant& t) const {
    const double elapsed = static_cast<double>(t.base - start.base) + (t.fraction - start.fraction);
    return std::max(0.0, left - rate * std::max(0.0, elapsed));
  }
  Instant end() const { return Instant{start.base, start.fraction + (left > 0.0 ? left / rate : 0.0)}; }
};

// One pass's view of one gate.
struct GateFold {
  double total = 0.0;         // bytes of the gate
  double group_ns = 0.0;      // c
  std::uint32_t groups = 1;   // n
  std::uint32_t arrived = 0;  // groups whose bytes have come
  TimeNs origin = 0;          // finish_ns counts from here
  double finish_ns = 0.0;     // max of arrival_i + (n - i + 1) c so far

  // Groups that have come before anyone watched can't hold up a pass that starts later.
  void skip_to(double left) { arrived = std::max(arrived, come(left)); }

  // `piece` has ended with `left` bytes to come; `landed`: with none, whatever the floating point says.
  void fold(const FlowPiece& piece, double left, bool landed) {
    const std::uint32_t last = landed ? groups : come(left);
    if (last <= arrived) return;
    finish_ns = std::max({finish_ns, finish_if_last(piece, arrived + 1), finish_if_last(piece, last)});
    arrived = last;
  }

 private:
  std::uint32_t come(double left) const {
    if (total <= 0.0) return left <= 0.0 ? 0 : groups;
    const double share = static_cast<double>(groups) * (1.0 - left / total) + 1e-9;
    return std::min(groups, static_cast<std::uint32_t>(std::max(0.0, std::floor(share))));
  }

  double finish_if_last(const FlowPiece& piece, std::uint32_t group) const {
    const double behind = total * static_cast<double>(groups - group) / static_cast<double>(groups);
    const double wait = piece.left > behind ? (piece.left - behind) / piece.rate : 0.0;
    const double arrival = static_cast<double>(piece.start.base - origin) + piece.start.fraction + wait;
    return arrival + static_cast<double>(groups - group + 1) * group_ns;
  }
};

}  // namespace kvtwin

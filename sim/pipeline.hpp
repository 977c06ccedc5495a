// The end of a layer-pipelined pass, in closed form.
//
// A pass has n equal layer groups of c ns each. Group i (1 .. n) starts at max(end of group i - 1, arrival of its
// bytes). So the pass ends at
//     max(start + n c,  max over i of arrival_i + (n - i + 1) c).
// While bytes flow at a constant rate, the arrivals are equally spaced, and the inner maximum is at the first or the
// last group of this piece. So one fold per change of the rate is enough, and no event per layer is needed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "policy/base/types.hpp"

namespace kvtwin {

// A point in time, finer than a nanosecond: base + fraction. The precision does not fall with the length of the run.
struct Instant {
  TimeNs base = 0;
  double fraction = 0.0;
};

// Rounds to the nearest nanosecond; halves round up. The tolerance 1e-6 covers floating-point noise.
inline TimeNs nearest_ns(double ns) { return static_cast<TimeNs>(std::floor(ns + 0.5 + 1e-6)); }
inline TimeNs nearest_ns(const Instant& t) { return t.base + nearest_ns(t.fraction); }

// A part of a flow with a constant rate.
struct FlowPiece {
  Instant start;
  double left = 0.0;  // bytes to move at the start of the piece
  double rate = 0.0;  // bytes per nanosecond; 0 = the flow has not started

  double left_at(const Instant& t) const {
    const double elapsed = static_cast<double>(t.base - start.base) + (t.fraction - start.fraction);
    return std::max(0.0, left - rate * std::max(0.0, elapsed));
  }
  Instant end() const { return Instant{start.base, start.fraction + (left > 0.0 ? left / rate : 0.0)}; }
};

// The progress of one gate, as one pass sees it.
struct GateFold {
  double total = 0.0;         // bytes of the gate
  double group_ns = 0.0;      // c, the duration of a layer group
  std::uint32_t groups = 1;   // n
  std::uint32_t arrived = 0;  // groups whose bytes have arrived
  TimeNs origin = 0;          // start of finish_ns
  double finish_ns = 0.0;     // max of arrival_i + (n - i + 1) c so far

  // Marks the groups that arrived before the pass was submitted. They cannot delay the pass.
  void skip_to(double left) { arrived = std::max(arrived, arrived_groups(left)); }

  // Ends `piece` with `left` bytes still to move. `landed`: all groups have arrived, whatever the rounding gives.
  void fold(const FlowPiece& piece, double left, bool landed) {
    const std::uint32_t last = landed ? groups : arrived_groups(left);
    if (last <= arrived) return;
    finish_ns = std::max({finish_ns, finish_if_last(piece, arrived + 1), finish_if_last(piece, last)});
    arrived = last;
  }

 private:
  std::uint32_t arrived_groups(double left) const {
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

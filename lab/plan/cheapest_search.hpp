// Finds the cheapest point of a lattice that passes a test, with few tests.
//
// A point has a place on each axis (the index of its value), a size (the value of the first axis) and a price.
// Assumption: if a point passes, each point that has at least as much on every axis passes too. So a point that fails
// rules out all points that have at most as much, and a point that passes rules out all points that cost more. On an
// axis with `none_first`, place 0 (for example no host tier) is another kind of machine. Place 0 is not comparable with
// the other places. Other kinds of failures rule out less, because the assumption does not hold for their reason: see
// TestResult. Of points with equal prices, the search prefers the one that has less.
//
// next() proposes the point whose test rules out the most points in the worse of two outcomes: the point passes, or
// fails clearly. A lattice of N points with one axis needs about log2(N) tests. Cost: O(N^2) per proposal, so at most
// kMaxPoints points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace kvtwin {

struct LatticePoint {
  std::vector<std::uint32_t> place;  // by axis
  double price = 0;
  double size = 0;  // grows with place[0]
};

enum class TestResult : std::uint8_t {
  passes,
  fails,
  fails_clearly,    // rules out also other kinds of machines that have at most as much
  fails_by_little,  // rules out only points of a smaller size: noise may decide between points of the same size
  fails_near,       // rules out only points of more than half its size
  fails_alone,      // rules out no other point
};

inline constexpr std::size_t kMaxPoints = 4096;

class CheapestSearch {
 public:
  // Requires: at most kMaxPoints points, all with as many axes as `none_first`.
  CheapestSearch(std::vector<LatticePoint> points, std::vector<bool> none_first);

  // Returns the point to test next among those that cost less than `below`; nothing if no test is needed.
  std::optional<std::size_t> next(double below = std::numeric_limits<double>::infinity()) const;
  // Records the result of a test. A later result of the same point replaces the earlier one. `price`: the price that
  // the test found, if it differs from that of the point.
  void put(std::size_t point, TestResult result, std::optional<double> price = {});

  // Returns the cheapest point that passed; nothing if none did.
  std::optional<std::size_t> best() const;
  // Returns the number of points that cost less than `below` and are neither tested nor ruled out.
  std::size_t open(double below) const;
  const std::vector<LatticePoint>& points() const { return points_; }
  // Returns whether `a` has at most as much as `b` on every axis. Machines of different kinds are not comparable.
  bool at_most(std::size_t a, std::size_t b) const;
  // Returns pairs of tested points (a, b) that contradict the assumption: b has at least as much, a passed, b failed.
  std::vector<std::pair<std::size_t, std::size_t>> contradictions() const;

 private:
  bool at_most_of_any_kind(std::size_t a, std::size_t b) const;

  std::vector<LatticePoint> points_;
  std::vector<bool> none_first_;
  bool ruled_out(std::size_t point) const;
  std::vector<std::size_t> open_points(double below) const;
  std::vector<std::optional<TestResult>> results_;  // by point
};

}  // namespace kvtwin

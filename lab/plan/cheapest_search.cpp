#include "lab/plan/cheapest_search.hpp"

#include <algorithm>
#include <functional>

#include "policy/base/check.hpp"

namespace kvtwin {

CheapestSearch::CheapestSearch(std::vector<LatticePoint> points, std::vector<bool> none_first)
    : points_(std::move(points)), none_first_(std::move(none_first)), results_(points_.size()) {
  KV_CHECK(points_.size() <= kMaxPoints, "the lattice is small enough");
}

bool CheapestSearch::at_most(std::size_t a, std::size_t b) const {
  for (std::size_t axis = 0; axis < none_first_.size(); ++axis) {
    const std::uint32_t of_a = points_[a].place[axis], of_b = points_[b].place[axis];
    if (of_a > of_b || (none_first_[axis] && (of_a == 0) != (of_b == 0))) return false;
  }
  return true;
}

bool CheapestSearch::at_most_of_any_kind(std::size_t a, std::size_t b) const {
  return std::ranges::equal(points_[a].place, points_[b].place, std::ranges::less_equal());
}

std::optional<std::size_t> CheapestSearch::best() const {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (results_[i] != TestResult::passes) continue;
    if (!best || points_[i].price < points_[*best].price ||
        (points_[i].price == points_[*best].price && at_most(i, *best))) {
      best = i;
    }
  }
  return best;
}

bool CheapestSearch::ruled_out(std::size_t point) const {
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (results_[i] == TestResult::fails_clearly && at_most_of_any_kind(point, i)) return true;
    if (!results_[i] || !at_most(point, i)) continue;
    switch (*results_[i]) {
      case TestResult::fails: return true;
      case TestResult::fails_by_little:
        if (points_[point].size < points_[i].size) return true;
        break;
      case TestResult::fails_near:
        if (2 * points_[point].size > points_[i].size) return true;
        break;
      case TestResult::fails_clearly:
      case TestResult::passes:
      case TestResult::fails_alone: break;
    }
  }
  return false;
}

std::vector<std::size_t> CheapestSearch::open_points(double below) const {
  const std::optional<std::size_t> found = best();
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (results_[i] || points_[i].price >= below) continue;
    if (found && points_[i].price > points_[*found].price) continue;
    if (found && points_[i].price == points_[*found].price && !at_most(i, *found)) continue;
    if (!ruled_out(i)) open.push_back(i);
  }
  return open;
}

std::size_t CheapestSearch::open(double below) const { return open_points(below).size(); }

std::optional<std::size_t> CheapestSearch::next(double below) const {
  std::vector<std::size_t> open = open_points(below);
  std::ranges::stable_sort(open, {}, [&](std::size_t i) { return points_[i].price; });
  std::optional<std::size_t> chosen;
  std::size_t most = 0;
  for (const std::size_t i : open) {
    std::size_t if_passes = 0, if_fails = 0;
    for (const std::size_t j : open) {
      if (i == j || points_[j].price > points_[i].price || (points_[j].price == points_[i].price && !at_most(j, i))) {
        ++if_passes;
      }
      if (at_most_of_any_kind(j, i)) ++if_fails;
    }
    const std::size_t worse = std::min(if_passes, if_fails);
    if (worse > most) {
      most = worse;
      chosen = i;
    }
  }
  return chosen;
}

void CheapestSearch::put(std::size_t point, TestResult result, std::optional<double> price) {
  results_[point] = result;
  if (price) points_[point].price = *price;
}

std::vector<std::pair<std::size_t, std::size_t>> CheapestSearch::contradictions() const {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t a = 0; a < points_.size(); ++a) {
    for (std::size_t b = 0; b < points_.size(); ++b) {
      const bool passed = results_[a] == TestResult::passes, failed = results_[b] && results_[b] != TestResult::passes;
      if (a != b && passed && failed && at_most(a, b)) found.emplace_back(a, b);
    }
  }
  return found;
}

}  // namespace kvtwin

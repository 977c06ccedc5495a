// The open requests of each engine, for routers that choose by load. A request is open from sent() to ended(). A dead
// engine is never the least loaded one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"
#include "policy/route.hpp"

namespace kvtwin {

// Parameters of the routers that send some requests to an engine whatever its load is: loads are uneven if the largest
// exceeds the least by more than `requests` and by more than `factor_x1024` / 1024.
struct UnevenLoads {
  explicit UnevenLoads(const Parameters& parameters)
      : requests(parameters.whole(
            "uneven_requests",
            {.fallback = 32,
             .most = 1'000'000'000,
             .help =
                 "the least loaded engine is taken if the engines' open requests differ by more than this number and "
                 "by more than uneven_factor"})),
        factor_x1024(parameters.per_1024(
            "uneven_factor",
            {.fallback = "1.5",
             .least = "1",
             .most = "1000000",
             .help = "factor between the largest and the least number of open requests, from which the "
                     "loads are uneven; see uneven_requests"})) {}

  std::uint64_t requests;
  std::uint32_t factor_x1024;
};

class OpenRequests {
 public:
  explicit OpenRequests(const RouterSetup& setup) : open_(setup.engines, 0) {}

  std::size_t engines() const { return open_.size(); }
  std::uint64_t of(std::size_t engine) const { return open_[engine]; }
  // The engine with the fewest open requests; ties go to the first.
  std::size_t least() const { return static_cast<std::size_t>(std::ranges::min_element(open_) - open_.begin()); }
  bool uneven(const UnevenLoads& from) const {
    std::uint64_t least = kGone, most = 0;
    for (const std::uint64_t open : open_) {
      if (open >= kGone) continue;
      least = std::min(least, open);
      most = std::max(most, open);
    }
    return most > least && most - least > from.requests &&
           UnsignedWide{most} * 1024 > UnsignedWide{least} * from.factor_x1024;
  }
  bool is_gone(std::size_t engine) const { return open_[engine] >= kGone; }

  void gone(std::size_t engine) { open_[engine] += kGone; }
  void sent(std::size_t engine) { ++open_[engine]; }
  void ended(std::size_t engine) {
    KV_CHECK(open_[engine] % kGone > 0, "a request ends once");
    --open_[engine];
  }

 private:
  static constexpr std::uint64_t kGone = std::uint64_t{1} << 40;  // added for a dead engine: more than any load

  std::vector<std::uint64_t> open_;
};

}  // namespace kvtwin

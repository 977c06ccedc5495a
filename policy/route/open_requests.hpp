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

class OpenRequests {
 public:
  explicit OpenRequests(const RouterSetup& setup)
      : uneven_requests_(setup.uneven_requests),
        uneven_factor_x1024_(setup.uneven_factor_x1024),
        open_(setup.engines, 0) {}

  std::size_t engines() const { return open_.size(); }
  std::uint64_t of(std::size_t engine) const { return open_[engine]; }
  // The engine with the fewest open requests; ties go to the first.
  std::size_t least() const { return static_cast<std::size_t>(std::ranges::min_element(open_) - open_.begin()); }
  // Whether the largest number exceeds the least by more than RouterSetup::uneven_requests and uneven_factor_x1024.
  bool uneven() const {
    std::uint64_t least = kGone, most = 0;
    for (const std::uint64_t open : open_) {
      if (open >= kGone) continue;
      least = std::min(least, open);
      most = std::max(most, open);
    }
    return most > least && most - least > uneven_requests_ &&
           UnsignedWide{most} * 1024 > UnsignedWide{least} * uneven_factor_x1024_;
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

  std::uint64_t uneven_requests_;
  std::uint32_t uneven_factor_x1024_;
  std::vector<std::uint64_t> open_;
};

}  // namespace kvtwin

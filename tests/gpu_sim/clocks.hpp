// Vector clocks of the threads of a CTA: which events come before which. An event of a thread is named by the thread
// and its clock then. The clock of a thread advances when the thread publishes its past (a barrier, an arrival, a
// fence).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvtwin::gpu_sim {

// The past of a thread. An absent component is 0.
struct Past {
  std::vector<std::uint32_t> threads;  // events of each thread with a clock up to this value
  std::vector<std::uint32_t> phases;   // number of phases of each mbarrier that have ended
  std::vector<std::uint32_t> groups;   // number of bulk groups of each thread that have read their sources

  void join(const Past& other) {
    join(threads, other.threads);
    join(phases, other.phases);
    join(groups, other.groups);
  }
  static std::uint32_t at(const std::vector<std::uint32_t>& of, std::uint32_t i) { return i < of.size() ? of[i] : 0; }
  static void raise(std::vector<std::uint32_t>& of, std::uint32_t i, std::uint32_t value) {
    if (of.size() <= i) of.resize(i + 1);
    of[i] = std::max(of[i], value);
  }

 private:
  static void join(std::vector<std::uint32_t>& to, const std::vector<std::uint32_t>& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
  }
};

}  // namespace kvtwin::gpu_sim

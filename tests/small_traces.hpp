// Traces of a few short requests, to compare replays and bounds with slow models. A block has one token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/bounds/hitrate.hpp"
#include "traces/paging.hpp"
#include "traces/random.hpp"

namespace kvtwin::test {

using Path = std::vector<std::uint64_t>;  // a request: the ids of its blocks. A block: the ids from the root to it
using Trace = std::vector<Path>;

inline std::int32_t priority_of(std::size_t request) { return static_cast<std::int32_t>(mix64(request) % 5) - 2; }

class TraceListSource final : public InputSource {
 public:
  explicit TraceListSource(const Trace& trace) : trace_(trace) {}

  bool next(Input& input) override {
    if (at_ == trace_.size()) return false;
    Arrival arrival;
    arrival.request = at_;
    arrival.prompt_tokens = trace_[at_].size();
    arrival.output_tokens = 1;
    arrival.priority = priority_of(at_);
    arrival.keys = pager_.keys(trace_[at_], arrival.prompt_tokens, nullptr);
    input.what = arrival;
    ++at_;
    return true;
  }

 private:
  const Trace& trace_;
  Pager pager_{1, 1, LastPage::partial};
  std::size_t at_ = 0;
};

inline std::vector<HitRate> replay(const Trace& trace, std::vector<std::string> evictions,
                                   std::vector<Pages> capacities, Pages host = 0, bool exclusive = false,
                                   const CostModel* cost = nullptr, std::uint64_t warm_up = 0) {
  TraceListSource source(trace);
  HitRateConfig config;
  config.evictions = std::move(evictions);
  config.capacities = std::move(capacities);
  config.host_capacity = host;
  config.exclusive = exclusive;
  config.block_tokens = 1;
  config.cost = cost;
  config.warm_up = warm_up;
  return replay_hit_rates(source, config);
}

inline Trace random_trace(std::uint64_t seed, std::size_t requests, std::size_t depth, std::uint64_t ids) {
  Random random(seed);
  Trace trace(static_cast<std::size_t>(random.integer(1, requests)));
  for (Path& path : trace) {
    path.resize(static_cast<std::size_t>(random.integer(1, depth)));
    for (std::uint64_t& id : path) id = random.chance(0.5) ? 0 : random.integer(0, ids - 1);
  }
  return trace;
}

inline Path head(const Path& path, std::size_t length) {
  return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(length)};
}

inline bool starts_with(const Path& path, const Path& prefix) {
  return prefix.size() <= path.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

inline std::set<Path> distinct_blocks(const Trace& trace) {
  std::set<Path> blocks;
  for (const Path& path : trace) {
    for (std::size_t n = 1; n <= path.size(); ++n) blocks.insert(head(path, n));
  }
  return blocks;
}

}  // namespace kvtwin::test

// What a Watch has counted. Internal: watch.cpp takes the inputs, watch_figures.cpp makes the figures.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lab/watch/engine_twins.hpp"
#include "lab/watch/stack_distances.hpp"
#include "lab/watch/watch.hpp"
#include "lab/watch/window_optimum.hpp"
#include "traces/shown_requests.hpp"

namespace kvtwin {

struct Watch::State {
  static constexpr std::size_t kOpenPerBlock = 4;  // blocks of requests that have not ended

  struct Source {
    Source(std::string called, const WatchSettings& settings, std::size_t blocks)
        : name(std::move(called)),
          shown({.known_blocks = blocks, .open_blocks = kOpenPerBlock * blocks}),
          stack(blocks, settings.one_in),
          counts(blocks),
          pool_curves(std::max<std::size_t>(1, blocks / PoolCurves::kMaxPools)),
          optimum(settings.window_blocks) {}

    void add_counted(const ServerCounters& before, const ServerCounters& after);

    std::string name;
    ShownRequests shown;
    StackDistances stack;
    BlockCounts counts;
    PoolCurves pool_curves;
    WindowOptimum optimum;
    std::unique_ptr<EngineTwins> twins;
    EngineCanary canary;
    std::optional<ServerCounters> counters;
    bool has_counters_alone = false;
    std::optional<TimeNs> counted_from;
    WatchFigures::Measured measured;
    bool is_exact = false;
    std::optional<TimeNs> far;  // of the last event, if it was far from all others
  };

  State(const WatchSettings& how, std::vector<std::string> names, const WatchedServer* described)
      : settings(how), server(described), intervals(how.interval, how.one_in) {
    const std::size_t blocks = std::max<std::size_t>(1, settings.max_blocks / std::max<std::size_t>(1, names.size()));
    for (std::string& name : names) sources.emplace_back(std::move(name), settings, blocks);
    if (sources.size() > 1) pool_stack = std::make_unique<StackDistances>(settings.max_blocks, settings.one_in);
  }

  bool begin(Source& source, Tokens tokens);
  void check_block_size(const Source& source) const;
  void count_bad(const Source& source, const std::string& why);
  bool is_near(Source& source, TimeNs time) const;
  void make_twins();
  std::uint64_t device_blocks() const;
  std::uint64_t host_blocks() const;
  std::string device_from() const;
  std::vector<std::uint64_t> row_sizes() const;
  void drain(Source& source, TimeNs until);
  void serve(Source& source, const TraceRequest& request);
  void serve_pools(Source& source, const TraceRequest& request);
  std::uint64_t present_blocks() const { return std::max(device_blocks(), host_blocks()); }
  std::uint64_t known_blocks() const;
  void name_blocks(const TraceRequest& of);
  void serve_twin(Source& source, const TraceRequest& request, std::span<const std::uint64_t> seen,
                  WatchInterval& interval);
  void close_window(Source& source) { source.optimum.close(row_sizes()); }
  void add_canary(WatchFigures& figures) const;
  void add_measured(WatchFigures& figures) const;
  void add_rows(WatchFigures& figures) const;
  std::size_t memory_bytes() const;

  const WatchSettings settings;
  const WatchedServer* server;
  std::deque<Source> sources;
  std::unique_ptr<HitCurve> curve, pool_curve;
  std::unique_ptr<StackDistances> pool_stack;
  Tokens block_tokens = 0;
  WatchIntervals intervals;
  PrefixTable prefixes;
  std::optional<TimeNs> first_store;
  std::uint64_t requests = 0, events = 0, lost = 0, bad = 0, restarts = 0;
  std::string first_problem;
  std::uint64_t bad_lines = 0;
  std::string first_bad_line;
  std::uint64_t unreachable = 0;
  std::string first_unreachable, log_zone;
  std::function<void(std::size_t, const TraceRequest&, Tokens)> on_request;
  // Members to reuse the memory.
  TraceRequest request;
  std::vector<std::uint64_t> keys, distances;
  std::vector<PageKey> pages;
};

}  // namespace kvtwin

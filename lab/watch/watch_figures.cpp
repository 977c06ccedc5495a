// The figures of a Watch, made from what it has counted.
#include <algorithm>
#include <deque>
#include <utility>

#include "lab/watch/watch_state.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kWindowBytes = 80;  // of a block

}  // namespace

std::uint64_t Watch::State::device_blocks() const {
  if (settings.device_blocks > 0) return settings.device_blocks;
  if (server != nullptr) return server->device_blocks();
  std::uint64_t most = 0;
  for (const Source& source : sources) {
    if (source.counters && source.counters->device_tokens && block_tokens > 0) {
      most = std::max(most, *source.counters->device_tokens / block_tokens);
    }
  }
  if (most > 0) return most;
  for (const Source& source : sources) most = std::max(most, source.counts.full_device());
  return most;
}

std::string Watch::State::device_from() const {
  if (settings.device_blocks > 0) return "--device-blocks";
  if (server != nullptr) return "the description of the server";
  const bool counted =
      std::ranges::any_of(sources, [](const Source& one) { return one.counters && one.counters->device_tokens; });
  if (counted) return "its /metrics page";
  return device_blocks() > 0 ? "the most blocks that its events show at once" : "";
}

std::uint64_t Watch::State::host_blocks() const {
  if (settings.host_blocks > 0) return settings.host_blocks;
  return server == nullptr ? 0 : server->host_blocks();
}

std::vector<std::uint64_t> Watch::State::row_sizes() const {
  std::uint64_t device = device_blocks();
  if (device == 0) {
    for (const Source& source : sources) device = std::max(device, source.counts.device_peak());
  }
  if (device == 0) device = curve == nullptr ? 0 : std::max<std::uint64_t>(1, curve->enough() / 4);
  const std::uint64_t present = std::max(device, host_blocks());
  std::vector<std::uint64_t> sizes{device / 4, device / 2, device, present};
  for (const std::uint64_t multiple : kLargerSizes) {
    if (multiple * device < present) sizes.push_back(multiple * device);
    sizes.push_back(multiple * present);
  }
  std::erase(sizes, 0);
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

void Watch::State::add_canary(WatchFigures& figures) const {
  std::vector<NamedCanary> since_measured, all;
  for (const Source& source : sources) {
    for (auto* const list : {&since_measured, &all}) {
      list->push_back({source.name, list == &all ? source.canary.all() : source.canary.since_measured()});
      Canary& canary = list->back().canary;
      canary.by_engine_rules = source.twins != nullptr;
      canary.is_least = source.twins == nullptr && present_blocks() > known_blocks();
    }
    Canary& canary = since_measured.back().canary;
    if (!source.is_exact && canary.measured_looked_up > canary.twin_looked_up) {
      canary.untold = canary.measured_looked_up - canary.twin_looked_up;
    }
  }
  const Canary served = sum_of(all, intervals.all(), intervals.earliest());
  if (served.twin_looked_up > 0 && served.by_engine_rules) figures.twin = served;
  const Canary sum = sum_of(since_measured, intervals.all(), intervals.earliest());
  if (sum.measured_looked_up > 0 && sum.twin_looked_up > 0) figures.canary = sum;
}

// Sizes above are those beyond which an engine's blocks were forgotten.
std::uint64_t Watch::State::known_blocks() const {
  std::uint64_t known = WatchFigures::kEverySize;
  for (const Source& source : sources) {
    if (source.stack.forgotten() > 0) known = std::min(known, source.stack.largest());
  }
  return known;
}

void Watch::State::add_measured(WatchFigures& figures) const {
  figures.counters_alone =
      !sources.empty() && std::ranges::all_of(sources, [](const Source& one) { return one.has_counters_alone; });
  figures.has_counters =
      std::ranges::any_of(sources, [](const Source& one) { return one.counters && one.counters->looked_up; });
  WatchFigures::Measured sum;
  for (const Source& source : sources) {
    const WatchFigures::Measured& own = source.measured;
    for (const auto member : {&WatchFigures::Measured::looked_up, &WatchFigures::Measured::device_hits,
                              &WatchFigures::Measured::host_hits, &WatchFigures::Measured::storage_hits,
                              &WatchFigures::Measured::requests, &WatchFigures::Measured::answer_tokens}) {
      sum.*member += own.*member;
    }
    sum.seconds = std::max(sum.seconds, own.seconds);
  }
  if (sum.seconds > 0) figures.measured = sum;
}

void Watch::State::add_rows(WatchFigures& figures) const {
  const std::vector<std::uint64_t> sizes = row_sizes();
  const auto rows_of = [](const HitCurve& of, const std::vector<std::uint64_t>& at, std::uint64_t known) {
    std::vector<WatchFigures::Row> rows;
    const std::vector<HitCurve::Hits> hits = of.hits(at);
    for (std::size_t i = 0; i < at.size(); ++i) {
      rows.emplace_back();
      rows.back().blocks = at[i];
      rows.back().lru = hits[i];
      rows.back().is_least = at[i] > known;
    }
    return rows;
  };
  figures.rows = rows_of(*curve, sizes, figures.known_blocks);
  std::vector<std::uint64_t> fine;
  for (std::uint64_t power = 1; power <= std::max<std::uint64_t>(1, 2 * curve->enough()); power *= 2) {
    for (std::uint64_t part = 4; part < 8; ++part) {
      const std::uint64_t size = power * part / 4;
      if (fine.empty() || size > fine.back()) fine.push_back(size);
    }
  }
  figures.curve = rows_of(*curve, fine, figures.known_blocks);
  if (pool_curve != nullptr) {
    std::vector<std::uint64_t> pools = sizes;
    for (std::uint64_t& size : pools) size *= sources.size();
    figures.pool =
        rows_of(*pool_curve, pools, pool_stack->forgotten() > 0 ? pool_stack->largest() : WatchFigures::kEverySize);
  }
  for (WatchFigures::Row& row : figures.rows) {
    std::uint64_t lookups = 0, best = 0, lru = 0;
    EngineTwins::Sum own;
    for (const Source& source : sources) {
      if (source.twins != nullptr) {
        const EngineTwins::Sum of_one = source.twins->of_size(row.blocks);
        own.looked_up += of_one.looked_up;
        own.hits += of_one.hits;
        own.without_window += of_one.without_window;
        own.without_state += of_one.without_state;
      }
      for (const WindowOptimum::Hits& hits : source.optimum.sums()) {
        if (hits.size != row.blocks) continue;
        lookups += hits.lookups;
        best += hits.best;
        lru += hits.lru;
      }
    }
    if (own.looked_up > 0) row.own = Canary::ratio(own.hits, own.looked_up);
    row.without_window = Canary::ratio(own.without_window, own.looked_up);
    row.without_state = Canary::ratio(own.without_state, own.looked_up);
    if (row.blocks == figures.device_blocks) row.name = "device";
    if (row.blocks == figures.host_blocks) row.name = "host";
    if (lookups == 0) continue;
    row.best = static_cast<double>(best) / static_cast<double>(lookups);
    row.lru_in_windows = static_cast<double>(lru) / static_cast<double>(lookups);
  }
  figures.enough_blocks = curve->enough();
  figures.prefill_seconds = server == nullptr ? 0 : curve->total_seconds();
}

std::size_t Watch::State::memory_bytes() const {
  std::size_t bytes = intervals.memory_bytes();
  for (const Source& source : sources) {
    bytes += source.stack.memory_bytes() + source.counts.memory_bytes() + source.shown.memory_bytes() +
             source.pool_curves.memory_bytes() + (source.twins == nullptr ? 0 : source.twins->memory_bytes());
    bytes += static_cast<std::size_t>(settings.window_blocks) * kWindowBytes;
  }
  for (const HitCurve* of : {curve.get(), pool_curve.get()}) bytes += of == nullptr ? 0 : of->memory_bytes();
  return bytes + (pool_stack == nullptr ? 0 : pool_stack->memory_bytes());
}

WatchFigures Watch::figures() const {
  const State& s = *state_;
  WatchFigures figures;
  figures.begin = s.intervals.earliest();
  figures.now = s.intervals.now();
  figures.sources = s.sources.size();
  figures.exact_requests = std::ranges::all_of(s.sources, [](const State::Source& one) { return one.is_exact; });
  figures.requests = s.requests;
  figures.block_tokens = s.block_tokens;
  figures.one_in = s.settings.one_in;
  figures.device_blocks = s.device_blocks();
  figures.device_from = s.device_from();
  figures.host_blocks = s.host_blocks();
  figures.known_blocks = s.known_blocks();
  if (s.curve != nullptr) {
    figures.lookup_blocks = s.curve->lookup_blocks();
    figures.lookup_tokens = s.curve->lookup_tokens();
    s.add_rows(figures);
  }
  s.add_canary(figures);
  s.add_measured(figures);
  if (figures.canary && figures.canary->untold > 0 && figures.device_blocks > 0) {
    const auto untold = static_cast<double>(figures.canary->untold);
    for (std::vector<WatchFigures::Row>* rows : {&figures.rows, &figures.curve}) {
      for (WatchFigures::Row& row : *rows) {
        if (row.blocks < figures.device_blocks) continue;
        row.with_untold = (row.lru.tokens + untold) / (static_cast<double>(figures.lookup_tokens) + untold);
      }
    }
  }
  figures.intervals.assign(s.intervals.all().begin(), s.intervals.all().end());
  figures.events = s.events;
  for (const State::Source& source : s.sources) figures.stored_blocks += source.shown.stored_blocks();
  if (s.server != nullptr && s.first_store && figures.now > *s.first_store) {
    const double days = static_cast<double>(figures.now - *s.first_store) * 1e-9 / 86'400;
    figures.written_per_day = static_cast<double>(figures.stored_blocks) * s.server->block_bytes() / days;
    figures.drive_years = s.server->drive_endurance() / *figures.written_per_day / 365;
  }
  figures.lost_messages = s.lost;
  figures.bad = s.bad;
  figures.restarts = s.restarts;
  figures.first_problem = s.first_problem;
  figures.bad_lines = s.bad_lines;
  figures.first_bad_line = s.first_bad_line;
  figures.unreachable = s.unreachable;
  figures.first_unreachable = s.first_unreachable;
  figures.log_zone = s.log_zone;
  figures.prefixes = s.prefixes.worst();
  figures.memory_bytes = s.memory_bytes();
  for (const State::Source& source : s.sources) {
    figures.tracked_blocks += source.stack.blocks();
    figures.windows += source.optimum.windows();
    figures.forgotten += source.shown.forgotten();
    figures.below_unknown += source.shown.below_unknown();
    figures.reports += source.shown.reports();
    std::vector<BlockCounts::Pool> pools = source.counts.pools();
    const auto present_of = [&pools](std::uint64_t group) -> std::uint64_t {
      const auto is_it = [&](const BlockCounts::Pool& pool) { return pool.is_device && pool.group == group; };
      const auto found = std::ranges::find_if(pools, is_it);
      return found == pools.end() ? 0 : found->peak;
    };
    std::vector<PoolCurves::Curve> curves = source.pool_curves.curves(present_of);
    if (!curves.empty() && !source.is_exact) figures.pool_curves.push_back({source.name, std::move(curves)});
    if (source.counts.memory_bytes() > 0) figures.pools.push_back({source.name, std::move(pools)});
  }
  return figures;
}

}  // namespace kvtwin

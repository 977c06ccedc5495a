#include "lab/watch/watch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "lab/watch/stack_distances.hpp"
#include "policy/base/mix.hpp"
#include "traces/shown_requests.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxIntervals = 512;  // more are joined in pairs
constexpr std::size_t kMaxPrefixes = 256, kShownPrefixes = 5;
constexpr std::uint64_t kMinPrefixRequests = 3;
constexpr double kParted = 0.03;          // of the prompt tokens, between measured hits and the twin's
constexpr std::size_t kWindowBytes = 80;  // of a block
constexpr std::size_t kOpenPerBlock = 4;
constexpr std::uint64_t kMostOwnSizes = 8;  // times the present size: of the engine's own rules
constexpr TimeNs kEndOfTime = std::numeric_limits<TimeNs>::max();
constexpr TimeNs kMaxJump = TimeNs{7} * 24 * 3600 * kNsPerSecond;

// A prefix by its first block (space saving: A. Metwally and others, "Efficient computation of frequent and top-k
// elements in data streams", 2005).
class PrefixTable {
 public:
  void take(std::span<const std::uint64_t> keys, std::span<const std::uint64_t> distances, std::uint64_t size) {
    if (keys.empty()) return;
    std::uint64_t seen = 0;
    while (seen < distances.size() && distances[seen] != StackDistances::kNew) ++seen;
    auto at = all_.find(keys[0]);
    if (at == all_.end()) {
      std::uint64_t requests = 0;
      if (all_.size() == kMaxPrefixes) {
        const auto least = std::ranges::min_element(
            all_, {}, [](const auto& one) { return std::pair(one.second.prefix.requests, one.first); });
        requests = least->second.prefix.requests;
        all_.erase(least);
      }
      at = all_.emplace(keys[0], Counted{WatchFigures::Prefix{keys[0], requests, keys.size(), 0}, requests}).first;
    }
    WatchFigures::Prefix& prefix = at->second.prefix;
    if (prefix.requests++ == at->second.error || seen == 0) return;
    prefix.blocks = std::min(prefix.blocks, seen);
    for (std::uint64_t i = 0; i < prefix.blocks; ++i) prefix.lost_blocks += size > 0 && distances[i] > size ? 1 : 0;
  }

  std::vector<WatchFigures::Prefix> worst() const {
    std::vector<WatchFigures::Prefix> list;
    for (const auto& [key, counted] : all_) {
      WatchFigures::Prefix prefix = counted.prefix;
      prefix.requests -= counted.error;
      if (prefix.requests >= kMinPrefixRequests && prefix.lost_blocks > 0) list.push_back(prefix);
    }
    std::ranges::sort(list, [](const auto& a, const auto& b) {
      return std::pair(b.lost_blocks, a.key) < std::pair(a.lost_blocks, b.key);
    });
    if (list.size() > kShownPrefixes) list.resize(kShownPrefixes);
    return list;
  }

 private:
  struct Counted {
    WatchFigures::Prefix prefix;
    std::uint64_t error = 0;  // of its requests, that the prefix which it replaced had
  };
  std::map<std::uint64_t, Counted> all_;
};

// The increase of a counter; a smaller number means that the server was started again.
Tokens increase(Tokens before, Tokens now) { return now >= before ? now - before : now; }

}  // namespace

double WatchInterval::hit_blocks(std::uint64_t size) const {
  if (sampled == 0) return 0;
  const std::size_t last = size_step(size);
  double sum = last < hits.size() ? share_of_step(size) * static_cast<double>(hits[last]) : 0;
  for (std::size_t step = 0; step < std::min(last, hits.size()); ++step) sum += static_cast<double>(hits[step]);
  const auto weight = static_cast<double>(one_in), all = static_cast<double>(lookup_blocks);
  // As HitCurve::hits(): what the sample has too much or too little of hits.
  if (one_in > 1) sum += all / weight - static_cast<double>(sampled);
  return std::clamp(sum * weight, 0.0, all);
}

struct Watch::State {
  // The engine's own rules at another size.
  struct SizedTwin {
    SizedTwin(std::uint64_t size, const EngineConfig& engine, Tokens block_tokens)
        : blocks(size), twin(engine, block_tokens) {}

    std::uint64_t blocks;
    EngineTwin twin;
    Tokens looked_up = 0, hits = 0, without_window = 0, without_state = 0;
  };
  struct Source {
    Source(std::string called, const WatchSettings& settings, std::size_t blocks)
        : name(std::move(called)),
          shown({.known_blocks = blocks, .open_blocks = kOpenPerBlock * blocks}),
          stack(blocks, settings.one_in),
          counts(blocks),
          optimum(settings.window_blocks) {}

    void add_counted(const ServerCounters& before, const ServerCounters& after);

    std::string name;
    ShownRequests shown;
    StackDistances stack;
    BlockCounts counts;
    WindowOptimum optimum;
    std::unique_ptr<EngineTwin> twin;
    std::deque<SizedTwin> sized_twins;
    std::optional<ServerCounters> counters;
    bool has_counters_alone = false;
    std::optional<TimeNs> counted_from;
    WatchFigures::Measured measured;
    bool is_exact = false;
    std::optional<TimeNs> far;            // of the last event, if it was far from all others
    bool has_logged_hits = false;         // counters then count the same again
    WatchFigures::Canary canary, served;  // sums: since hits are measured, and of all requests
  };

  State(const WatchSettings& how, std::vector<std::string> names, const WatchedServer* described)
      : settings(how), server(described) {
    const std::size_t blocks = std::max<std::size_t>(1, settings.max_blocks / std::max<std::size_t>(1, names.size()));
    for (std::string& name : names) sources.emplace_back(std::move(name), settings, blocks);
    if (sources.size() > 1) pool_stack = std::make_unique<StackDistances>(settings.max_blocks, settings.one_in);
  }

  bool begin(Source& source, Tokens tokens);
  void check_block_size(const Source& source) const;
  void count_bad(const Source& source, const std::string& why);
  bool is_near(Source& source, TimeNs time) const;
  void reach(TimeNs time);
  void make_sized_twins();
  WatchInterval& interval_at(TimeNs time);
  void join_intervals();
  void tell_intervals(std::size_t open);
  std::uint64_t device_blocks() const;
  std::uint64_t host_blocks() const;
  std::string device_from() const;
  std::vector<std::uint64_t> row_sizes() const;
  void drain(Source& source, TimeNs until);
  void serve(Source& source, const TraceRequest& request);
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
  std::optional<TimeNs> first;  // begin of the first interval
  TimeNs earliest = 0, now = 0, interval_length = 0;
  std::deque<WatchInterval> intervals;
  std::size_t told = 0;  // intervals
  PrefixTable prefixes;
  std::optional<TimeNs> first_store;
  std::uint64_t requests = 0, events = 0, lost = 0, bad = 0, restarts = 0;
  std::string first_problem;
  std::function<void(std::size_t, const TraceRequest&, Tokens)> on_request;
  std::function<void(const WatchInterval&)> on_interval;
  // Members to reuse the memory.
  TraceRequest request;
  std::vector<std::uint64_t> keys, distances;
  std::vector<PageKey> pages;
};

void Watch::State::Source::add_counted(const ServerCounters& before, const ServerCounters& after) {
  if (!before.looked_up || !after.looked_up) return;
  if (!counted_from) counted_from = before.time;
  // A page that counts more hits than look-ups is taken at its look-ups.
  const Tokens looked_up = increase(*before.looked_up, *after.looked_up);
  Tokens left = looked_up;
  const auto part = [&left](Tokens hits) {
    const Tokens taken = std::min(left, hits);
    left -= taken;
    return taken;
  };
  measured.looked_up += looked_up;
  measured.device_hits += part(increase(before.device_hits, after.device_hits));
  measured.host_hits += part(increase(before.host_hits, after.host_hits));
  measured.storage_hits += part(increase(before.storage_hits, after.storage_hits));
  measured.requests += increase(before.requests, after.requests);
  measured.answer_tokens += increase(before.answer_tokens, after.answer_tokens);
  measured.seconds = static_cast<double>(std::max<TimeNs>(0, after.time - *counted_from)) * 1e-9;
}

// The first request tells the block size of all. Returns whether requests of this block size count.
bool Watch::State::begin(Source& source, Tokens tokens) {
  if (tokens == block_tokens) return true;
  if (block_tokens != 0) {
    const std::string why = "a request has blocks of " + std::to_string(tokens) + " tokens, and those before it have " +
                            std::to_string(block_tokens) + "; watch engines of one block size together";
    if (settings.one_block_size) throw OtherBlockSize(why);
    count_bad(source, why);
    return false;
  }
  if (server != nullptr && server->block_tokens() != tokens) {
    throw InputError("watch: the engine's blocks have " + std::to_string(tokens) +
                     " tokens, and cache.page_tokens is " + std::to_string(server->block_tokens()) +
                     "; give --set cache.page_tokens=" + std::to_string(tokens));
  }
  block_tokens = tokens;
  const PrefillTime prefill = server == nullptr ? PrefillTime() : server->prefill_time();
  curve = std::make_unique<HitCurve>(tokens, settings.one_in, prefill);
  if (pool_stack != nullptr) pool_curve = std::make_unique<HitCurve>(tokens, settings.one_in, prefill);
  if (server == nullptr) return true;
  for (Source& one : sources) one.twin = std::make_unique<EngineTwin>(*server);
  make_sized_twins();
  return true;
}

// Requests of this source are known when they have ended, and its block size before.
void Watch::State::check_block_size(const Source& source) const {
  const auto tokens_of = [](const Source& one) {
    return one.is_exact || one.shown.group_is_open() ? Tokens{0} : one.shown.block_tokens();
  };
  const Tokens tokens = tokens_of(source);
  if (!settings.one_block_size || tokens == 0) return;
  const auto differs = [&](Tokens other) {
    if (other == 0 || other == tokens) return;
    throw OtherBlockSize("an event has blocks of " + std::to_string(tokens) + " tokens, and those before it have " +
                         std::to_string(other) + "; watch engines of one block size together");
  };
  differs(block_tokens);
  for (const Source& one : sources) differs(tokens_of(one));
}

// Twins of the sizes around the present one, as many as --max-blocks allows.
void Watch::State::make_sized_twins() {
  const std::uint64_t present = std::max(device_blocks(), host_blocks());
  const std::uint64_t described = std::max<std::uint64_t>(server->device_blocks(), server->host_blocks());
  std::uint64_t left = settings.max_blocks / sources.size();
  for (const std::uint64_t size : row_sizes()) {
    if (2 * size < device_blocks() || size > kMostOwnSizes * present || size > left || size == described) continue;
    const auto engine = server->engine_of(size);
    if (!engine) continue;
    left -= size;
    for (Source& one : sources) one.sized_twins.emplace_back(size, *engine, block_tokens);
  }
}

void Watch::State::count_bad(const Source& source, const std::string& why) {
  if (bad++ == 0) first_problem = source.name + ": " + why;
}

// Returns false if the time is more than kMaxJump from the present one, unless another message of this source had about
// this time just before: one wrong clock would set the time for good.
bool Watch::State::is_near(Source& source, TimeNs time) const {
  const auto is_within = [&](TimeNs of) { return time >= of ? time - of <= kMaxJump : of - time <= kMaxJump; };
  const std::optional<TimeNs> before = std::exchange(source.far, std::nullopt);
  if (!first || is_within(now) || (before && *before != time && is_within(*before))) return true;
  source.far = time;
  return false;
}

void Watch::State::reach(TimeNs time) {
  if (!first) {
    first = earliest = now = time;
    interval_length = std::max<TimeNs>(1, settings.interval);
  }
  earliest = std::min(earliest, time);
  now = std::max(now, time);
  interval_at(now);
}

// A request is known when it has ended, and counts where it began. Requests of a log may have begun before the watch.
WatchInterval& Watch::State::interval_at(TimeNs time) {
  if (time < *first) *first -= (*first - time + interval_length - 1) / interval_length * interval_length;
  const auto begin_of = [&] { return *first + (time - *first) / interval_length * interval_length; };
  const auto place = [&] {
    auto at = intervals.end();
    while (at != intervals.begin() && std::prev(at)->begin > begin_of()) --at;
    return at;
  };
  auto at = place();
  const auto is_there = [&] { return at != intervals.begin() && std::prev(at)->begin == begin_of(); };
  if (is_there()) return *std::prev(at);
  // Requests that began in the last interval may end in this one.
  if (at == intervals.end()) tell_intervals(1);
  while (intervals.size() >= kMaxIntervals) join_intervals();
  at = place();
  if (is_there()) return *std::prev(at);
  if (static_cast<std::size_t>(at - intervals.begin()) < told) ++told;
  at = intervals.emplace(at);
  at->begin = begin_of();
  at->length = interval_length;
  at->one_in = settings.one_in;
  at->hits.resize(kSizeSteps);
  return *at;
}

// Reports the intervals that were not reported yet, but for the last `open` ones.
void Watch::State::tell_intervals(std::size_t open) {
  for (; told + open < intervals.size(); ++told) {
    if (on_interval) on_interval(intervals[told]);
  }
}

void Watch::State::join_intervals() {
  interval_length *= 2;
  std::deque<WatchInterval> joined;
  for (WatchInterval& one : intervals) {
    const TimeNs begin = *first + (one.begin - *first) / interval_length * interval_length;
    if (joined.empty() || joined.back().begin != begin) {
      joined.push_back(std::move(one));
      joined.back().begin = begin;
      joined.back().length = interval_length;
      continue;
    }
    WatchInterval& into = joined.back();
    for (std::size_t i = 0; i < into.hits.size(); ++i) into.hits[i] += one.hits[i];
    for (const auto member : {&WatchInterval::requests, &WatchInterval::lookup_blocks, &WatchInterval::sampled,
                              &WatchInterval::lookup_tokens, &WatchInterval::twin_looked_up, &WatchInterval::twin_hits,
                              &WatchInterval::measured_looked_up, &WatchInterval::measured_hits,
                              &WatchInterval::stored_blocks, &WatchInterval::removed_blocks}) {
      into.*member += one.*member;
    }
  }
  told = told * joined.size() / intervals.size();
  intervals = std::move(joined);
}

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

// Serves the requests that have ended if no event came before `until`; all at kEndOfTime.
void Watch::State::drain(Source& source, TimeNs until) {
  while (until == kEndOfTime || source.shown.has_next(until)) {
    if (!source.shown.next(request)) return;
    if (!source.is_exact && begin(source, source.shown.block_tokens())) serve(source, request);
  }
}

void Watch::State::serve(Source& source, const TraceRequest& of) {
  if (of.is_hint) return;
  name_blocks(of);
  ++requests;
  if (on_request) {
    const auto at = static_cast<std::size_t>(
        std::ranges::find_if(sources, [&](const Source& one) { return &one == &source; }) - sources.begin());
    on_request(at, of, block_tokens);
  }
  if (pool_stack != nullptr) {
    pool_stack->visit(keys, distances);
    pool_curve->add({keys, distances, of.input});
  }
  source.stack.visit(keys, distances);
  curve->add({keys, distances, of.input});
  WatchInterval& interval = interval_at(of.arrival);
  ++interval.requests;
  interval.lookup_blocks += keys.size();
  interval.lookup_tokens += of.input;
  for (const std::uint64_t distance : distances) {
    if (distance == StackDistances::kNotSampled) continue;
    ++interval.sampled;
    if (distance != StackDistances::kNew) ++interval.hits[size_step(distance)];
  }
  if (settings.one_in == 1) prefixes.take(keys, distances, device_blocks());
  serve_twin(source, of, distances, interval);
  if (source.optimum.add(pages)) close_window(source);
}

// Names each block of a prompt by all blocks up to it, in the namespace of its tenant. hitrate's names are longer.
void Watch::State::name_blocks(const TraceRequest& of) {
  keys.clear();
  pages.clear();
  const std::size_t blocks = std::min(of.blocks.size(), static_cast<std::size_t>(of.held_blocks(block_tokens)));
  std::uint64_t key = mixed_bits(of.tenant + kGoldenRatio64);
  for (std::size_t i = 0; i < blocks; ++i) {
    key = mixed_bits(key + kGoldenRatio64 + mixed_bits(of.blocks[i]));
    keys.push_back(key);
    pages.emplace_back();
    pages.back().words[0] = key;
  }
}

void Watch::State::serve_twin(Source& source, const TraceRequest& of, std::span<const std::uint64_t> seen,
                              WatchInterval& interval) {
  if (of.measured_hits && !std::exchange(source.has_logged_hits, true)) source.canary = {};
  Tokens hits = 0;
  if (source.twin != nullptr) {
    const EngineTwin::Hits twin = source.twin->serve(of);
    hits = twin.device + twin.host;
    for (SizedTwin& sized : source.sized_twins) {
      const EngineTwin::Hits of_size = sized.twin.serve(of);
      sized.looked_up += of.input;
      sized.hits += of_size.device + of_size.host;
      sized.without_window += of_size.without_window;
      sized.without_state += of_size.without_state;
    }
    for (WatchFigures::Canary* const of_sum : {&source.canary, &source.served}) {
      of_sum->device_hits += twin.device;
      of_sum->host_hits += twin.host;
      of_sum->without_window += twin.without_window;
      of_sum->without_state += twin.without_state;
    }
  } else {
    const std::uint64_t size = std::max(device_blocks(), host_blocks());
    if (size == 0) return;
    std::uint64_t blocks = 0, sampled = 0;
    for (const std::uint64_t distance : seen) {
      if (distance == StackDistances::kNotSampled) continue;
      ++sampled;
      blocks += distance != StackDistances::kNew && distance <= size ? 1 : 0;
    }
    if (sampled == 0) return;
    hits = std::min<Tokens>(of.input, blocks * block_tokens * seen.size() / sampled);
  }
  interval.twin_looked_up += of.input;
  interval.twin_hits += hits;
  for (WatchFigures::Canary* const of_sum : {&source.canary, &source.served}) {
    of_sum->twin_looked_up += of.input;
    of_sum->twin_hits += hits;
  }
  if (!of.measured_hits) return;
  interval.measured_looked_up += of.input;
  interval.measured_hits += of.measured_hits->total;
  source.canary.measured_looked_up += of.input;
  source.canary.measured_hits += of.measured_hits->total;
}

void Watch::State::add_canary(WatchFigures& figures) const {
  WatchFigures::Canary sum, served;
  const Source* worst = nullptr;
  double worst_gap = 0;
  const auto gap_of = [](const auto& of) { return std::abs(of.measured() - of.twin_with_untold()); };
  std::vector<WatchFigures::Canary> each;
  for (const Source& source : sources) {
    each.push_back(source.canary);
    if (!source.is_exact && each.back().measured_looked_up > each.back().twin_looked_up) {
      each.back().untold = each.back().measured_looked_up - each.back().twin_looked_up;
    }
    const WatchFigures::Canary& own = each.back();
    for (const auto member :
         {&WatchFigures::Canary::measured_looked_up, &WatchFigures::Canary::measured_hits,
          &WatchFigures::Canary::device_hits, &WatchFigures::Canary::host_hits, &WatchFigures::Canary::twin_looked_up,
          &WatchFigures::Canary::twin_hits, &WatchFigures::Canary::untold}) {
      sum.*member += own.*member;
      served.*member += source.served.*member;
    }
    served.by_engine_rules = sum.by_engine_rules |= source.twin != nullptr;
    if (own.measured_looked_up > 0 && gap_of(own) > worst_gap) {
      worst_gap = gap_of(own);
      worst = &source;
    }
  }
  if (served.twin_looked_up > 0 && served.by_engine_rules) figures.twin = served;
  if (sum.measured_looked_up == 0 || sum.twin_looked_up == 0) return;
  if (gap_of(sum) > kParted || (sources.size() > 1 && worst_gap > 2 * kParted)) {
    const auto has_parted = [](const WatchInterval& one) {
      return one.measured_looked_up > 0 && one.twin_looked_up > 0 &&
             std::abs(WatchFigures::Canary::ratio(one.measured_hits, one.measured_looked_up) -
                      WatchFigures::Canary::ratio(one.twin_hits, one.twin_looked_up)) > kParted;
    };
    const auto at = std::ranges::find_if(intervals, has_parted);
    sum.parted = formatted("%.1f points", 100 * gap_of(sum)) +
                 (sum.measured() < sum.twin_with_untold() ? " fewer" : " more") + " hits than the twin";
    if (sum.untold == 0 && at != intervals.end()) {
      sum.parted +=
          formatted(", from %.0f s on", static_cast<double>(std::max<TimeNs>(0, at->begin - earliest)) * 1e-9);
    }
    if (sources.size() > 1 && worst != nullptr) sum.parted += ", most at " + worst->name;
  }
  figures.canary = sum;
}

void Watch::State::add_measured(WatchFigures& figures) const {
  figures.counters_alone =
      !sources.empty() && std::ranges::all_of(sources, [](const Source& one) { return one.has_counters_alone; });
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
  const auto rows_of = [](const HitCurve& of, const std::vector<std::uint64_t>& at) {
    std::vector<WatchFigures::Row> rows;
    const std::vector<HitCurve::Hits> hits = of.hits(at);
    for (std::size_t i = 0; i < at.size(); ++i) {
      rows.emplace_back();
      rows.back().blocks = at[i];
      rows.back().lru = hits[i];
    }
    return rows;
  };
  figures.rows = rows_of(*curve, sizes);
  std::vector<std::uint64_t> fine;
  for (std::uint64_t power = 1; power <= std::max<std::uint64_t>(1, 2 * curve->enough()); power *= 2) {
    for (std::uint64_t part = 4; part < 8; ++part) {
      const std::uint64_t size = power * part / 4;
      if (fine.empty() || size > fine.back()) fine.push_back(size);
    }
  }
  figures.curve = rows_of(*curve, fine);
  if (pool_curve != nullptr) {
    std::vector<std::uint64_t> pools = sizes;
    for (std::uint64_t& size : pools) size *= sources.size();
    figures.pool = rows_of(*pool_curve, pools);
  }
  // The twin has the sizes of the description, from which --device-blocks may differ.
  const std::uint64_t described =
      server == nullptr ? 0 : std::max<std::uint64_t>(server->device_blocks(), server->host_blocks());
  for (WatchFigures::Row& row : figures.rows) {
    std::uint64_t lookups = 0, best = 0, lru = 0;
    Tokens own = 0, own_hits = 0, without_window = 0, without_state = 0;
    for (const Source& source : sources) {
      if (source.twin != nullptr && row.blocks == described) {
        own += source.served.twin_looked_up;
        own_hits += source.served.twin_hits;
        without_window += source.served.without_window;
        without_state += source.served.without_state;
      }
      for (const SizedTwin& sized : source.sized_twins) {
        if (sized.blocks != row.blocks) continue;
        own += sized.looked_up;
        own_hits += sized.hits;
        without_window += sized.without_window;
        without_state += sized.without_state;
      }
      for (const WindowOptimum::Hits& hits : source.optimum.sums()) {
        if (hits.size != row.blocks) continue;
        lookups += hits.lookups;
        best += hits.best;
        lru += hits.lru;
      }
    }
    if (own > 0) row.own = WatchFigures::Canary::ratio(own_hits, own);
    row.without_window = WatchFigures::Canary::ratio(without_window, own);
    row.without_state = WatchFigures::Canary::ratio(without_state, own);
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
  std::size_t bytes = intervals.size() * (sizeof(WatchInterval) + kSizeSteps * sizeof(std::uint32_t));
  for (const Source& source : sources) {
    bytes += source.stack.memory_bytes() + source.counts.memory_bytes() + source.shown.memory_bytes();
    bytes += static_cast<std::size_t>(settings.window_blocks) * kWindowBytes;
  }
  for (const HitCurve* of : {curve.get(), pool_curve.get()}) bytes += of == nullptr ? 0 : of->memory_bytes();
  return bytes + (pool_stack == nullptr ? 0 : pool_stack->memory_bytes());
}

Watch::Watch(const WatchSettings& settings, std::vector<std::string> sources, const WatchedServer* server)
    : state_(std::make_unique<State>(settings, std::move(sources), server)) {}
Watch::~Watch() = default;

void Watch::take(std::size_t source, const BlockEvent& event) {
  State& s = *state_;
  State::Source& of = s.sources[source];
  using enum BlockEvent::Kind;
  if (event.kind == other) return;
  if (event.kind == missing) {
    s.lost += event.count;
    return;
  }
  if (event.kind == bad) {
    ++s.bad;
    return;
  }
  if ((event.kind == stored || event.kind == removed) && !s.is_near(of, event.time)) {
    s.count_bad(of, "an event is more than a week from those before it");
    return;
  }
  ++s.events;
  s.restarts += event.kind == restart ? 1 : 0;
  if (event.kind == stored || event.kind == removed) s.reach(event.time);
  // One store would fill all that is tracked, and more.
  if (event.blocks.size() > s.settings.max_blocks) {
    s.count_bad(of, "an event has " + std::to_string(event.blocks.size()) + " blocks, more than --max-blocks " +
                        std::to_string(s.settings.max_blocks));
    return;
  }
  const std::uint64_t stored_before = of.shown.stored_blocks();
  if (const auto fault = of.shown.take(event)) {
    s.count_bad(of, std::string(fault->key) + " " + fault->what);
    return;
  }
  s.check_block_size(of);
  of.counts.take(event);
  if (of.shown.stored_blocks() > stored_before) {
    if (!s.first_store) s.first_store = event.time;
    s.interval_at(event.time).stored_blocks += of.shown.stored_blocks() - stored_before;
  }
  if (event.kind == removed && event.is_of_device()) s.interval_at(event.time).removed_blocks += event.blocks.size();
  s.drain(of, 0);
}

void Watch::take(std::size_t source, const TraceRequest& request, Tokens block_tokens) {
  State& s = *state_;
  State::Source& of = s.sources[source];
  if (request.is_hint) return;
  of.is_exact = true;
  if (!s.begin(of, block_tokens)) return;
  s.reach(request.arrival);
  s.serve(of, request);
}

void Watch::expect_requests(std::size_t source) { state_->sources[source].is_exact = true; }

void Watch::take_kept(std::size_t source, const TraceRequest& request, Tokens block_tokens) {
  State& s = *state_;
  if (request.is_hint || !s.begin(s.sources[source], block_tokens)) return;
  s.reach(request.arrival);
  s.serve(s.sources[source], request);
  s.sources[source].shown.remember(request);
}

void Watch::take(std::size_t source, const ServerCounters& counters) {
  State& s = *state_;
  State::Source& of = s.sources[source];
  const std::optional<ServerCounters> before = std::exchange(of.counters, counters);
  if (before) of.add_counted(*before, counters);
  // What was counted before the first event or request has no twin, and begins no rate.
  if (!s.first && !of.has_counters_alone) return;
  s.reach(counters.time);
  if (of.has_logged_hits || !counters.looked_up) return;
  if (!before || !before->looked_up) {
    of.canary = {};  // both sides begin here
    return;
  }
  const Tokens looked_up = increase(*before->looked_up, *counters.looked_up);
  const Tokens hits = std::min(looked_up, increase(before->hits(), counters.hits()));
  WatchInterval& interval = s.interval_at(counters.time);
  interval.measured_looked_up += looked_up;
  interval.measured_hits += hits;
  of.canary.measured_looked_up += looked_up;
  of.canary.measured_hits += hits;
}

void Watch::expect_counters_alone(std::size_t source) { state_->sources[source].has_counters_alone = true; }

void Watch::count_bad(std::size_t source, const std::string& why) { state_->count_bad(state_->sources[source], why); }

void Watch::advance(TimeNs now) {
  if (state_->first) state_->reach(now);
}

void Watch::advance(std::size_t source, TimeNs now) { state_->drain(state_->sources[source], now); }

void Watch::end() {
  for (State::Source& source : state_->sources) {
    state_->drain(source, kEndOfTime);
    state_->close_window(source);
  }
  state_->tell_intervals(0);
}

void Watch::on_request(std::function<void(std::size_t, const TraceRequest&, Tokens)> call) {
  state_->on_request = std::move(call);
}
void Watch::on_interval(std::function<void(const WatchInterval&)> call) { state_->on_interval = std::move(call); }

WatchFigures Watch::figures() const {
  const State& s = *state_;
  WatchFigures figures;
  figures.begin = s.earliest;
  figures.now = s.now;
  figures.sources = s.sources.size();
  figures.exact_requests = std::ranges::all_of(s.sources, [](const State::Source& one) { return one.is_exact; });
  figures.requests = s.requests;
  figures.block_tokens = s.block_tokens;
  figures.one_in = s.settings.one_in;
  figures.device_blocks = s.device_blocks();
  figures.device_from = s.device_from();
  figures.host_blocks = s.host_blocks();
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
  figures.intervals.assign(s.intervals.begin(), s.intervals.end());
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
  figures.prefixes = s.prefixes.worst();
  figures.memory_bytes = s.memory_bytes();
  for (const State::Source& source : s.sources) {
    figures.tracked_blocks += source.stack.blocks();
    figures.windows += source.optimum.windows();
    figures.forgotten += source.shown.forgotten();
    figures.below_unknown += source.shown.below_unknown();
    figures.reports += source.shown.reports();
    if (source.counts.memory_bytes() > 0) figures.pools.push_back({source.name, source.counts.pools()});
  }
  return figures;
}

}  // namespace kvtwin

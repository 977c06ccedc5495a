#include "lab/watch/watch.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "lab/error.hpp"
#include "lab/watch/watch_state.hpp"
#include "policy/base/mix.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kMostOwnSizes = 8;  // times the present size: of the engine's own rules
constexpr TimeNs kEndOfTime = std::numeric_limits<TimeNs>::max();
constexpr TimeNs kMaxJump = TimeNs{7} * 24 * 3600 * kNsPerSecond;

// The increase of a counter; a smaller number means that the server was started again.
Tokens increase(Tokens before, Tokens now) { return now >= before ? now - before : now; }

}  // namespace

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
  make_twins();
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

// Twins of the present size and those around it, as many as --max-blocks allows.
void Watch::State::make_twins() {
  for (Source& one : sources) one.twins = std::make_unique<EngineTwins>(*server);
  std::uint64_t left = settings.max_blocks / sources.size();
  for (const std::uint64_t size : row_sizes()) {
    if (2 * size < device_blocks() || size > kMostOwnSizes * present_blocks() || size > left ||
        size == server->present_blocks()) {
      continue;
    }
    const auto engine = server->engine_of(size);
    if (!engine) continue;
    left -= size;
    for (Source& one : sources) one.twins->add(size, *engine, block_tokens);
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
  if (!intervals.has_begun() || is_within(intervals.now()) || (before && *before != time && is_within(*before)))
    return true;
  source.far = time;
  return false;
}

// Serves the requests that have ended if no event came before `until`; all at kEndOfTime.
void Watch::State::drain(Source& source, TimeNs until) {
  while (until == kEndOfTime || source.shown.has_next(until)) {
    if (!source.shown.next(request)) return;
    if (source.is_exact || !begin(source, source.shown.block_tokens())) continue;
    serve(source, request);
    serve_pools(source, request);
  }
}

// The pools of the events know the blocks by the events' names.
void Watch::State::serve_pools(Source& source, const TraceRequest& of) {
  if (settings.one_in > 1) return;
  const auto whole = std::min(of.blocks.size(), static_cast<std::size_t>(of.input / block_tokens));
  source.pool_curves.serve(std::span(of.blocks).first(whole), block_tokens);
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
  WatchInterval& interval = intervals.at(of.arrival);
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
  if (source.twins != nullptr) return source.canary.serve(of, source.twins->serve(of), interval);
  const std::uint64_t size = present_blocks();
  if (size == 0) return;
  std::uint64_t blocks = 0, sampled = 0;
  for (const std::uint64_t distance : seen) {
    if (distance == StackDistances::kNotSampled) continue;
    ++sampled;
    blocks += distance != StackDistances::kNew && distance <= size ? 1 : 0;
  }
  if (sampled == 0) return;
  EngineTwin::Hits hits;
  hits.device = std::min<Tokens>(of.input, blocks * block_tokens * seen.size() / sampled);
  source.canary.serve(of, hits, interval);
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
    s.lost += std::min(event.count, std::numeric_limits<std::uint64_t>::max() - s.lost);
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
  if (event.kind == stored || event.kind == removed) s.intervals.reach(event.time);
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
  if (s.settings.one_in == 1) of.pool_curves.take(event);
  if (of.shown.stored_blocks() > stored_before) {
    if (!s.first_store) s.first_store = event.time;
    s.intervals.at(event.time).stored_blocks += of.shown.stored_blocks() - stored_before;
  }
  if (event.kind == removed && event.is_of_device()) s.intervals.at(event.time).removed_blocks += event.blocks.size();
  s.drain(of, 0);
}

void Watch::take(std::size_t source, const TraceRequest& request, Tokens block_tokens) {
  State& s = *state_;
  State::Source& of = s.sources[source];
  if (request.is_hint) return;
  of.is_exact = true;
  if (!s.begin(of, block_tokens)) return;
  s.intervals.reach(request.arrival);
  s.serve(of, request);
}

void Watch::expect_requests(std::size_t source) { state_->sources[source].is_exact = true; }

void Watch::take_kept(std::size_t source, const TraceRequest& request, Tokens block_tokens) {
  State& s = *state_;
  if (request.is_hint || !s.begin(s.sources[source], block_tokens)) return;
  s.intervals.reach(request.arrival);
  s.serve(s.sources[source], request);
  s.sources[source].shown.remember(request);
}

void Watch::take(std::size_t source, const ServerCounters& counters) {
  State& s = *state_;
  State::Source& of = s.sources[source];
  const std::optional<ServerCounters> before = std::exchange(of.counters, counters);
  if (before) of.add_counted(*before, counters);
  // What was counted before the first event or request has no twin, and begins no rate.
  if (!s.intervals.has_begun() && !of.has_counters_alone) return;
  s.intervals.reach(counters.time);
  if (!counters.looked_up) return;
  if (!before || !before->looked_up) return of.canary.begin();
  const Tokens looked_up = increase(*before->looked_up, *counters.looked_up);
  const Tokens hits = std::min(looked_up, increase(before->hits(), counters.hits()));
  of.canary.count(looked_up, hits, s.intervals.at(counters.time));
}

void Watch::expect_counters_alone(std::size_t source) { state_->sources[source].has_counters_alone = true; }

void Watch::count_bad(std::size_t source, const std::string& why) { state_->count_bad(state_->sources[source], why); }

void Watch::count_bad_lines(std::uint64_t count, const std::string& first) {
  if (count > 0 && state_->bad_lines == 0) state_->first_bad_line = first;
  state_->bad_lines += count;
}

void Watch::count_unreachable(std::size_t source, const std::string& why) {
  if (state_->unreachable++ == 0)
    state_->first_unreachable = "counters of " + state_->sources[source].name + ": " + why;
}

void Watch::tell_log_zone(const std::string& zone) { state_->log_zone = zone; }

void Watch::advance(TimeNs now) {
  if (state_->intervals.has_begun()) state_->intervals.reach(now);
}

void Watch::advance(std::size_t source, TimeNs now) { state_->drain(state_->sources[source], now); }

void Watch::end() {
  for (State::Source& source : state_->sources) {
    state_->drain(source, kEndOfTime);
    state_->close_window(source);
  }
  state_->intervals.end();
}

void Watch::on_request(std::function<void(std::size_t, const TraceRequest&, Tokens)> call) {
  state_->on_request = std::move(call);
}
void Watch::on_interval(std::function<void(const WatchInterval&)> call) { state_->intervals.on_end(std::move(call)); }

}  // namespace kvtwin

#include "traces/generate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "traces/draws.hpp"
#include "traces/figure_error.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kBlockTokens = 512;
constexpr Tokens kSystemTokens = 890;  // the shared block, and the rest of a template
constexpr Tokens kMaxInputTokens = 126'000;
constexpr Tokens kMaxOutputTokens = 2'000;
constexpr TimeNs kDriftWindow = 300 * kNsPerSecond;
constexpr double kDrift = 0.1;  // the rate of a window differs from the mean by at most this share

// P(another turn | k turns so far) for k = 1, 2, ...; the last value holds for every larger k. The values are the
// measured ones times 0.97, and long prompts are 4 % longer than measured. With both changes, an hour has the measured
// input length and the measured share of reusable blocks.
constexpr double kAnotherTurn[] = {.3337, .4365, .5529, .6402, .6693, .6693, .7760, .8051};

constexpr LogNormal kLongPrompt{9.12, 0.96};   // tokens; 74 % of first inputs
constexpr LogNormal kAnswer{5.75, 0.73};       // tokens; 88 % of outputs
constexpr LogNormal kSmallGrowth{2.71, 1.75};  // tokens; a typed line: median 15, p90 141
constexpr LogNormal kAttachment{8.15, 0.99};   // tokens; a file or a search result
constexpr LogNormal kKeptHead{1.79, 1.2};      // blocks that an edited history keeps: median 6, p90 28
constexpr LogNormal kThinkingTime{4.87, 1.0};  // seconds from a request to its follow-up: median 130

Tokens first_input(Random& random) {
  if (random.chance(0.26)) return kSystemTokens + clipped(random.exponential(130.0), 0, kMaxInputTokens);
  return clipped(kLongPrompt.draw(random), 1'400, kMaxInputTokens);
}

Tokens output_length(Random& random) {
  if (random.chance(0.12)) return random.integer(1, 30);
  return clipped(kAnswer.draw(random), 1, kMaxOutputTokens);
}

// Returns the tokens that the user's next message adds. Sometimes the chat template drops a few tokens of the previous
// prompt, so the result can be negative.
std::int64_t growth(Random& random) {
  if (!random.chance(0.78)) return static_cast<std::int64_t>(clipped(kAttachment.draw(random), 512, kMaxInputTokens));
  const auto typed = static_cast<std::int64_t>(clipped(kSmallGrowth.draw(random), 1, 511));
  return random.chance(0.1) ? typed - static_cast<std::int64_t>(random.integer(1, 8)) : typed;
}

TimeNs seconds(double s) {
  constexpr double kMaxSeconds = 9e9;
  return static_cast<TimeNs>((s < kMaxSeconds ? s : kMaxSeconds) * static_cast<double>(kNsPerSecond));
}

}  // namespace

ChatGenerator::ChatGenerator(const ChatConfig& config) : config_(config), arrivals_(mix64(config.seed)) {
  if (!(config_.sessions_per_second >= 1e-6 && config_.sessions_per_second <= 1e6)) {
    throw FigureError("sessions_per_second", "must be from 0.000001 to 1000000.");
  }
  if (config_.timestamp_step < 1) throw FigureError("timestamp_step", "must be at least 1 ns.");
  if (config_.duration < 0) throw FigureError("duration", "must be 0 (no limit) or more.");
  draw_arrival();
}

Tokens ChatGenerator::block_tokens() const { return kBlockTokens; }

double ChatGenerator::fraction_read() const {
  if (config_.requests > 0) return static_cast<double>(emitted_) / static_cast<double>(config_.requests);
  if (config_.duration == 0 || heap_.empty()) return 0;
  return static_cast<double>(sessions_by_slot_[heap_.front()].time) / static_cast<double>(config_.duration);
}

bool ChatGenerator::next(TraceRequest& request) {
  if (config_.requests > 0 && emitted_ == config_.requests) return false;
  while (heap_.empty() || next_session_time_ <= sessions_by_slot_[heap_.front()].time) {
    if (config_.duration > 0 && next_session_time_ >= config_.duration) break;
    start_session();
  }
  if (heap_.empty()) return false;
  const std::uint32_t slot = heap_.front();
  Session& session = sessions_by_slot_[slot];
  if (config_.duration > 0 && session.time >= config_.duration) return false;
  std::pop_heap(heap_.begin(), heap_.end(), [this](std::uint32_t a, std::uint32_t b) { return later(a, b); });
  heap_.pop_back();

  const Tokens blocks = (session.input - 1) / kBlockTokens + 1;
  while (session.blocks.size() < blocks) session.blocks.push_back(session.blocks.empty() ? 0 : next_block_++);
  request.clear();
  request.arrival = session.time / config_.timestamp_step * config_.timestamp_step;
  request.input = session.input;
  request.output = session.output;
  request.blocks.assign(session.blocks.begin(), session.blocks.end());
  request.session = session.number;
  request.turn = ++session.turn;
  ++emitted_;
  plan_next_turn(session) ? push(slot) : free_slots_.push_back(slot);
  return true;
}

void ChatGenerator::start_session() {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(sessions_by_slot_.size()));
    sessions_by_slot_.emplace_back();
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  Session& session = sessions_by_slot_[slot];
  session.number = ++sessions_;
  session.random = Random(mix64(config_.seed ^ mix64(session.number)));
  session.time = next_session_time_;
  session.turn = 0;
  session.input = first_input(session.random);
  session.output = output_length(session.random);
  session.blocks.clear();
  push(slot);
  draw_arrival();
}

// Plans the session's next request from the request that next() has just returned. Returns false if the session ends.
bool ChatGenerator::plan_next_turn(Session& session) const {
  Random& random = session.random;
  const std::size_t known = std::size(kAnotherTurn);
  if (!random.chance(kAnotherTurn[std::min<std::size_t>(session.turn, known) - 1])) return false;
  Tokens kept = session.input / kBlockTokens;
  if (random.chance(0.85)) {
    const std::int64_t wanted = static_cast<std::int64_t>(session.input + session.output) + growth(random);
    session.input = std::max(session.input, static_cast<Tokens>(wanted));
  } else {
    kept = std::min(kept, clipped(kKeptHead.draw(random), 1, kMaxInputTokens));
    session.input = first_input(random);
    kept = std::min(kept, session.input / kBlockTokens);
  }
  if (session.input > kMaxInputTokens) return false;
  session.output = output_length(random);
  session.blocks.resize(static_cast<std::size_t>(kept));
  session.time += seconds(kThinkingTime.draw(random));
  return true;
}

// The next point of a Poisson process whose rate is constant within each drift window.
void ChatGenerator::draw_arrival() {
  double rest = arrivals_.exponential(1.0);  // expected arrivals until the next one
  while (true) {
    const TimeNs window = next_session_time_ / kDriftWindow;
    const TimeNs end = (window + 1) * kDriftWindow;
    const double per_ns = rate_at(static_cast<std::uint64_t>(window)) / static_cast<double>(kNsPerSecond);
    const double in_window = per_ns * static_cast<double>(end - next_session_time_);
    if (rest <= in_window) {
      next_session_time_ = std::min(end, next_session_time_ + static_cast<TimeNs>(rest / per_ns));
      return;
    }
    rest -= in_window;
    next_session_time_ = end;
  }
}

double ChatGenerator::rate_at(std::uint64_t window) const {
  Random random(mix64(config_.seed + 1) ^ window);
  return config_.sessions_per_second * (1.0 - kDrift + 2.0 * kDrift * random.uniform());
}

void ChatGenerator::push(std::uint32_t slot) {
  heap_.push_back(slot);
  std::push_heap(heap_.begin(), heap_.end(), [this](std::uint32_t a, std::uint32_t b) { return later(a, b); });
}

bool ChatGenerator::later(std::uint32_t a, std::uint32_t b) const {
  const Session& x = sessions_by_slot_[a];
  const Session& y = sessions_by_slot_[b];
  return x.time != y.time ? x.time > y.time : x.number > y.number;
}

}  // namespace kvtwin

#include "traces/sessions.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "traces/draws.hpp"
#include "traces/figure_error.hpp"
#include "traces/format.hpp"

namespace kvtwin {
namespace {

// A full block is number << kIndexBits | index, with the session's number, or 0 for the shared prefix.
constexpr unsigned kIndexBits = 24;
static_assert(kMaxTraceTokens / SessionsGenerator::kBlockTokens < std::uint64_t{1} << kIndexBits);

constexpr double kNs = static_cast<double>(kNsPerSecond);

LogNormal with_mean(double mean, double spread) { return {log_of(mean) - spread * spread / 2.0, spread}; }

void check_range(const char* figure, double value, double least, double most, const char* range) {
  if (!(value >= least && value <= most)) throw FigureError(figure, std::string("must be from ") + range + ".");
}

}  // namespace

double SessionsConfig::new_tokens() const {
  return (static_cast<double>(prompt_tokens) - static_cast<double>(prefix_tokens) -
          (turns - 1.0) * static_cast<double>(output_tokens)) /
         turns;
}

void SessionsConfig::check() const {
  check_range("requests_per_second", requests_per_second, 1e-3, 1e6, "0.001 to 1000000");
  check_range("turns", turns, 1.0, 1e6, "1 to 1000000");
  check_range("think_s", think_s, 0, 1e6, "0 to 1000000");
  check_range("service_s", service_s, 0, 1e6, "0 to 1000000");
  check_range("length_spread", length_spread, 0, 3, "0 to 3");
  check_range("think_spread", think_spread, 0, 3, "0 to 3");
  if (output_tokens < 1 || output_tokens > kMaxTraceTokens) {
    throw FigureError("output_tokens", "must be from 1 to 1000000000.");
  }
  if (prompt_tokens < 1 || prompt_tokens > kMaxTraceTokens) {
    throw FigureError("prompt_tokens", "must be from 1 to 1000000000.");
  }
  if (duration < 0) throw FigureError("duration", "must be 0 (no limit) or more.");
  if (new_tokens() < 1.0) {
    const double least =
        static_cast<double>(prefix_tokens) + turns + (turns - 1.0) * static_cast<double>(output_tokens);
    const std::string needed =
        least < static_cast<double>(kMaxTraceTokens) ? std::to_string(static_cast<Tokens>(std::ceil(least))) : "more";
    throw FigureError("prompt_tokens",
                      "is " + std::to_string(prompt_tokens) +
                          ", which leaves less than 1 new token per turn: the mean prompt holds the shared prefix (" +
                          std::to_string(prefix_tokens) + ") and turns - 1 answers of " +
                          std::to_string(output_tokens) + "; must be at least " + needed +
                          ", or give a smaller prefix_tokens, output_tokens or turns.");
  }
}

SessionsGenerator::SessionsGenerator(const SessionsConfig& config)
    : config_(config), arrivals_(mix64(config.seed ^ 0x73657373696f6e73ULL)) {
  config_.check();
  new_tokens_ = config_.new_tokens();
  follow_up_share_ = config_.follow_up_share();
  start_live_sessions();
  draw_session_time();
}

double SessionsGenerator::fraction_read() const {
  if (config_.requests > 0) return static_cast<double>(emitted_) / static_cast<double>(config_.requests);
  if (config_.duration == 0 || heap_.empty()) return 0;
  return std::min(1.0, static_cast<double>(heap_.front().time) / static_cast<double>(config_.duration));
}

bool SessionsGenerator::next(TraceRequest& request) {
  if (config_.requests > 0 && emitted_ == config_.requests) return false;
  while (heap_.empty() || next_session_time_ < heap_.front().time) start_session();
  if (config_.duration > 0 && heap_.front().time >= config_.duration) return false;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Session session = heap_.back();
  heap_.pop_back();

  request.clear();
  request.arrival = session.time;
  request.input = session.input;
  request.output = session.output;
  request.session = session.number;
  request.turn = ++session.turn;
  request.think = session.think;
  const std::uint64_t full = session.input / kBlockTokens;
  const std::uint64_t shared = std::min(config_.prefix_tokens / kBlockTokens, full);
  request.blocks.reserve(full + 1);
  for (std::uint64_t i = 0; i < full; ++i) {
    request.blocks.push_back((i < shared ? 0 : session.number << kIndexBits) | i);
  }
  if (session.input % kBlockTokens != 0) request.blocks.push_back(kPrivateBlocks + emitted_);
  ++emitted_;
  if (plan_next(session)) push(session);
  return true;
}

SessionsGenerator::Session SessionsGenerator::new_session(TimeNs time) {
  Session session;
  session.number = ++sessions_;
  session.random = Random(mix64(config_.seed ^ mix64(session.number)));
  session.time = time;
  session.input = config_.prefix_tokens;
  add_turn(session);
  return session;
}

// Adds the session that starts at next_session_time_.
void SessionsGenerator::start_session() {
  push(new_session(next_session_time_));
  draw_session_time();
}

void SessionsGenerator::draw_session_time() {
  next_session_time_ =
      later_by(next_session_time_, arrivals_.exponential(kNs * config_.turns / config_.requests_per_second));
}

// A session is live at time 0 if time 0 is in one of its gaps. By Little's law, the number of live sessions is Poisson
// with mean (follow-ups per second) * (mean gap). Turns are geometric, so the number of turns before time 0 is too.
// Time 0 falls into a longer gap more likely: the gap is length-biased, and time 0 is at a uniform random point of it.
void SessionsGenerator::start_live_sessions() {
  const double mean_gap = config_.service_s + config_.visible_think_s();
  const double live = config_.requests_per_second * follow_up_share_ * mean_gap;
  if (live * config_.turns > kMaxLiveTurns) {
    throw FigureError(
        "think_s",
        "must be smaller: the conversations that are live at a time (requests_per_second * think_s) would "
        "have more than 100 million turns.");
  }
  for (double sum = arrivals_.exponential(1.0); sum < live; sum += arrivals_.exponential(1.0)) {
    Session session = new_session(0);
    Random& random = session.random;
    bool too_long = false;
    do {
      session.input += session.output;
      add_turn(session);
      too_long = session.input > kMaxTraceTokens;
    } while (!too_long && random.chance(follow_up_share_));
    if (too_long) continue;
    double think = config_.visible_think_s();
    if (think > 0) {
      LogNormal law = with_mean(think, config_.think_spread);
      if (!random.chance(config_.service_s / mean_gap)) law.mu += law.sigma * law.sigma;  // length-biased
      think = law.draw(random);
    }
    session.time = later_by(0, random.uniform() * (config_.service_s + think) * kNs);
    session.think = later_by(0, think * kNs);
    push(session);
  }
}

// Plans the session's next request from the request that next() has just returned. Returns false if the session ends.
bool SessionsGenerator::plan_next(Session& session) const {
  if (!session.random.chance(follow_up_share_)) return false;
  session.input += session.output;
  add_turn(session);
  if (session.input > kMaxTraceTokens) return false;
  const double mean = config_.visible_think_s();
  const double think = mean > 0 ? with_mean(mean, config_.think_spread).draw(session.random) : 0.0;
  session.think = later_by(0, think * kNs);
  session.time = later_by(session.time, (config_.service_s + think) * kNs);
  return true;
}

void SessionsGenerator::add_turn(Session& session) const {
  session.input += length(session.random, new_tokens_);
  session.output = length(session.random, static_cast<double>(config_.output_tokens));
}

// Rounds to the nearest whole number, so that the mean stays.
Tokens SessionsGenerator::length(Random& random, double mean) const {
  return clipped(with_mean(mean, config_.length_spread).draw(random) + 0.5, 1, kMaxTraceTokens);
}

void SessionsGenerator::push(const Session& session) {
  heap_.push_back(session);
  std::push_heap(heap_.begin(), heap_.end(), later);
}

bool SessionsGenerator::later(const Session& a, const Session& b) {
  return a.time != b.time ? a.time > b.time : a.number > b.number;
}

}  // namespace kvtwin

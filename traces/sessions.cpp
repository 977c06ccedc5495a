#include "traces/sessions.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "traces/draws.hpp"
#include "traces/figure_error.hpp"
#include "traces/format.hpp"

namespace kvtwin {
namespace {

// A full block is number << kIndexBits | index, with the session's number, or 0 for the shared prefix.
constexpr unsigned kIndexBits = 24;
static_assert(kMaxTraceTokens / SessionsGenerator::kBlockTokens < std::uint64_t{1} << kIndexBits);

constexpr std::uint64_t kMaxUsers = 1'000'000;
constexpr double kNs = static_cast<double>(kNsPerSecond);

LogNormal with_mean(double mean, double spread) { return {log_of(mean) - spread * spread / 2.0, spread}; }

void check_range(const char* figure, double value, double least, double most, const char* range) {
  if (!(value >= least && value <= most)) throw FigureError(figure, std::string("must be from ") + range + ".");
}

}  // namespace

double SessionsConfig::mean_turns() const {
  return turns_most == 0 ? turns : static_cast<double>(turns_least + turns_most) / 2.0;
}

double SessionsConfig::mean_new_tokens() const {
  if (new_tokens != 0) return static_cast<double>(new_tokens);
  return (static_cast<double>(prompt_tokens) - static_cast<double>(prefix_tokens) -
          (mean_turns() - 1.0) * static_cast<double>(output_tokens)) /
         mean_turns();
}

void SessionsConfig::check() const {
  if (users == 0) check_range("requests_per_second", requests_per_second, 1e-3, 1e6, "0.001 to 1000000");
  if (users > kMaxUsers) throw FigureError("users", "must be from 0 to 1000000.");
  check_range("turns", turns, 1.0, 1e6, "1 to 1000000");
  check_range("think_s", think_s, 0, 1e6, "0 to 1000000");
  check_range("service_s", service_s, 0, 1e6, "0 to 1000000");
  check_range("start_spread_s", start_spread_s, 0, 1e6, "0 to 1000000");
  check_range("length_spread", length_spread, 0, 3, "0 to 3");
  check_range("think_spread", think_spread, 0, 3, "0 to 3");
  if (turns_least > turns_most || turns_most > 1'000'000 || (turns_most != 0 && turns_least == 0)) {
    throw FigureError("turns_most", "must be at least turns_least and at most 1000000, and turns_least at least 1.");
  }
  for (const auto& [name, tokens] : {std::pair{"output_tokens", output_tokens}, {"prompt_tokens", prompt_tokens}}) {
    if (tokens < 1 || tokens > kMaxTraceTokens) throw FigureError(name, "must be from 1 to 1000000000.");
  }
  if (new_tokens > kMaxTraceTokens) throw FigureError("new_tokens", "must be from 1 to 1000000000.");
  if (duration < 0) throw FigureError("duration", "must be 0 (no limit) or more.");
  if (context_max > kMaxTraceTokens || context_max < prefix_tokens + 2) {
    throw FigureError("context_max_tokens", "is " + std::to_string(context_max) + ", and the shared prefix has " +
                                                std::to_string(prefix_tokens) +
                                                " tokens: must be at least 2 more, and at most 1000000000.");
  }
  if (mean_new_tokens() < 1.0) {
    const double least =
        static_cast<double>(prefix_tokens) + mean_turns() + (mean_turns() - 1.0) * static_cast<double>(output_tokens);
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
  new_tokens_ = config_.mean_new_tokens();
  drawn_.means = {{"turns", config_.mean_turns()},
                  {"new_tokens", new_tokens_},
                  {"output_tokens", static_cast<double>(config_.output_tokens)},
                  {"think_s", config_.visible_think_s()}};
  drawn_.context_limit = config_.context_max == kMaxTraceTokens ? 0 : config_.context_max;
  follow_up_share_ = config_.follow_up_share();
  if (config_.users != 0) {
    start_users();
  } else {
    start_live_sessions();
    draw_session_time();
  }
}

double SessionsGenerator::fraction_read() const {
  if (config_.requests > 0) return static_cast<double>(emitted_) / static_cast<double>(config_.requests);
  if (config_.duration == 0 || heap_.empty()) return 0;
  const TimeNs time = reached_ != 0 ? reached_ : heap_.front().time;
  return std::min(1.0, static_cast<double>(time) / static_cast<double>(config_.duration));
}

bool SessionsGenerator::next(TraceRequest& request) {
  if (config_.requests > 0 && emitted_ == config_.requests) return false;
  if (config_.users != 0 && emitted_ == 0) std::make_heap(heap_.begin(), heap_.end(), later);
  while (config_.users == 0 && (heap_.empty() || next_session_time_ < heap_.front().time)) start_session();
  if (config_.duration > 0 && heap_.front().time >= config_.duration) return false;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Session session = heap_.back();
  heap_.pop_back();
  emit(session, request);
  if (session.turn == 1 && config_.users != 0) request.think = -1;  // of the user, not of the conversation
  if (plan_next(session)) push(session);
  return true;
}

TimeNs SessionsGenerator::end() const { return config_.requests > 0 ? 0 : config_.duration; }

bool SessionsGenerator::next_of(std::uint64_t user, TraceRequest& request) {
  if (config_.requests > 0 && emitted_ == config_.requests) return false;
  Session& session = heap_[user];
  emit(session, request);
  plan_next(session);  // a user goes on
  return true;
}

void SessionsGenerator::count(const Session& session) {
  drawn_.means[1].add(static_cast<double>(session.added));
  drawn_.means[2].add(static_cast<double>(session.output));
  if (session.turn > 1) drawn_.means[3].add(static_cast<double>(session.think) / kNs);
  drawn_.longest_context = std::max(drawn_.longest_context, session.input + session.output);
}

std::vector<std::string> SessionsGenerator::notes() const {
  std::string note = drawn_note(drawn_);
  return note.empty() ? std::vector<std::string>() : std::vector{std::move(note)};
}

void SessionsGenerator::emit(Session& session, TraceRequest& request) {
  request.clear();
  request.arrival = session.time;
  request.input = session.input;
  request.output = session.output;
  request.system = std::min(session.input, config_.prefix_tokens);
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
  for (std::uint64_t i = full; i < (session.input + session.output) / kBlockTokens; ++i) {
    request.answer_blocks.push_back(session.number << kIndexBits | i);
  }
  ++emitted_;
  count(session);
}

SessionsGenerator::Session SessionsGenerator::new_session(TimeNs time, std::uint64_t number) {
  Session session;
  session.number = number;
  session.random = Random(mix64(config_.seed ^ mix64(session.number)));
  session.time = time;
  session.input = config_.prefix_tokens;
  if (config_.turns_most != 0) session.left = session.random.integer(config_.turns_least, config_.turns_most) - 1;
  add_turn(session);
  if (session.input + session.output > config_.context_max) {
    session.output = std::min(session.output, config_.context_max - config_.prefix_tokens - 1);
    session.input = std::min(session.input, config_.context_max - session.output);
    session.added = session.input - config_.prefix_tokens;
  }
  return session;
}

// The conversations of user u have the numbers u + 1, u + 1 + users, ..., whatever the other users do.
SessionsGenerator::Session SessionsGenerator::next_of_user(const Session& last) {
  Session session = new_session(last.time, last.number + config_.users);
  session.user = last.user;
  return session;
}

// A user is at a random turn of the long run. The turn numbers of a user who starts at turn 1 approach those of the
// long run: three mean conversations let the numbers of turns mix, and a uniform part of a fourth lets their phase mix.
void SessionsGenerator::start_users() {
  const double mean_gap = config_.service_s + config_.visible_think_s();
  const auto mean = static_cast<std::uint64_t>(std::ceil(config_.mean_turns()));
  heap_.reserve(config_.users);
  for (std::uint64_t user = 0; user < config_.users; ++user) {
    Session session = new_session(0, user + 1);
    session.user = user;
    for (std::uint64_t turn = 3 * mean + arrivals_.integer(0, mean - 1); turn > 0; --turn) {
      if (!goes_on(session)) session = next_of_user(session);
    }
    const bool in_think = mean_gap > 0 && !session.random.chance(config_.service_s / mean_gap);
    const double think = draw_think(session.random, in_think);
    const double rest = session.random.uniform() * (config_.service_s + think);
    session.time = later_by(0, (rest + arrivals_.uniform() * config_.start_spread_s) * kNs);
    session.think = later_by(0, think * kNs);
    heap_.push_back(session);
  }
  sessions_ = config_.users;
}

// Adds the session that starts at next_session_time_.
void SessionsGenerator::start_session() {
  push(new_session(next_session_time_, ++sessions_));
  draw_session_time();
}

void SessionsGenerator::draw_session_time() {
  next_session_time_ =
      later_by(next_session_time_, arrivals_.exponential(kNs * config_.mean_turns() / config_.requests_per_second));
}

// A session is live at time 0 if time 0 is in one of its gaps. By Little's law, the number of live sessions is Poisson
// with mean (follow-ups per second) * (mean gap). Turns are geometric, so the number of turns before time 0 is too.
// Time 0 falls into a longer gap more likely: the gap is length-biased, and time 0 is at a uniform random point of it.
void SessionsGenerator::start_live_sessions() {
  const double mean_gap = config_.service_s + config_.visible_think_s();
  const double live = config_.requests_per_second * follow_up_share_ * mean_gap;
  if (live * config_.mean_turns() > kMaxLiveTurns) {
    throw FigureError(
        "think_s",
        "must be smaller: the conversations that are live at a time (requests_per_second * think_s) would "
        "have more than 100 million turns.");
  }
  for (double sum = arrivals_.exponential(1.0); sum < live; sum += arrivals_.exponential(1.0)) {
    Session session = new_session(0, ++sessions_);
    Random& random = session.random;
    // Uniform turns: a conversation is live in proportion to its gaps, and time 0 is in each gap alike.
    if (config_.turns_most != 0) {
      std::uint64_t gaps = session.left;
      while (!random.chance(static_cast<double>(gaps) / static_cast<double>(config_.turns_most - 1))) {
        gaps = random.integer(config_.turns_least, config_.turns_most) - 1;
      }
      session.left = gaps;
    }
    std::uint64_t done = config_.turns_most == 0 ? 1 : random.integer(1, session.left);
    bool ended = false;
    do {
      if (config_.turns_most != 0) --session.left;
      session.input += session.output;
      add_turn(session);
      ended = session.input + session.output > config_.context_max;
    } while (!ended && (config_.turns_most == 0 ? random.chance(follow_up_share_) : --done > 0));
    if (ended) continue;
    const bool in_think = config_.visible_think_s() > 0 && !random.chance(config_.service_s / mean_gap);
    const double think = draw_think(random, in_think);
    session.time = later_by(0, random.uniform() * (config_.service_s + think) * kNs);
    session.think = later_by(0, think * kNs);
    push(session);
  }
}

// `length_biased`: a think time that a random moment is in.
double SessionsGenerator::draw_think(Random& random, bool length_biased) const {
  const double mean = config_.visible_think_s();
  if (mean == 0) return 0;
  LogNormal law = with_mean(mean, config_.think_spread);
  if (length_biased) law.mu += law.sigma * law.sigma;
  return law.draw(random);
}

// Adds the next turn to the conversation, unless it has ended.
SessionsGenerator::Goes SessionsGenerator::goes(Session& session) const {
  if (config_.turns_most == 0 ? !session.random.chance(follow_up_share_) : session.left == 0) return Goes::ended;
  if (config_.turns_most != 0) --session.left;
  session.input += session.output;
  add_turn(session);
  return session.input + session.output <= config_.context_max ? Goes::on : Goes::cut;
}

// Plans the session's next request from the request that was just returned. Returns false if the session ends; that of
// a user becomes the user's next one instead.
bool SessionsGenerator::plan_next(Session& session) {
  const Goes went = goes(session);
  if (went != Goes::on) {
    ++drawn_.ended;
    drawn_.cut += went == Goes::cut ? 1 : 0;
    drawn_.means[0].add(static_cast<double>(session.turns - (went == Goes::cut ? 1 : 0)));
    if (config_.users == 0) return false;
    session = next_of_user(session);
  }
  const double think = draw_think(session.random, false);
  session.think = later_by(0, think * kNs);
  session.time = later_by(session.time, (config_.service_s + think) * kNs);
  return true;
}

void SessionsGenerator::add_turn(Session& session) const {
  ++session.turns;
  session.added = length(session.random, new_tokens_);
  session.input += session.added;
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

#include "traces/agents.hpp"

#include <algorithm>
#include <utility>

#include "traces/draws.hpp"
#include "traces/figure_error.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kPrefixVariants = 1'500;        // prefixes of sessions that a user starts
constexpr std::uint64_t kHelperPrefixVariants = 4;    // prefixes of helper agents; numbered after kPrefixVariants
constexpr std::uint64_t kBlockIdsPerVariant = 1'024;  // block ids reserved for each prefix
constexpr Tokens kMaxContextTokens = 900'000;
constexpr Tokens kMaxAgentAnswerTokens = 20'000;
constexpr std::uint64_t kMaxRequestsPerSession = 1'000;

constexpr LogNormal kRequests{3.67, 1.16};       // requests per session: median 39
constexpr LogNormal kFirstMessage{8.5, 1.0};     // tokens after the prefix
constexpr LogNormal kInstructions{7.937, 0.25};  // tokens of the prefix after the tools: median 2,800
constexpr LogNormal kAgentAnswer{5.5, 0.9};      // tokens
constexpr LogNormal kToolResult{5.84, 1.81};     // tokens
constexpr LogNormal kUserMessage{5.2, 1.86};     // tokens
constexpr LogNormal kService{1.81, 0.85};        // seconds from a request to the end of the answer: median 6.1, p90 18
constexpr LogNormal kToolTime{2.2, 1.64};        // seconds from an answer to the tool result: median 9, p90 74
constexpr LogNormal kUserTime{4.91, 1.74};       // seconds from an answer to a person's message: median 136

// The share of user messages that a program sends. They follow the answer as fast as tool results do.
constexpr double kProgramShare = 0.55;

// Quantiles of the number of tool rounds after a user message, with linear interpolation. The values are a little above
// the measured ones (p75 3, p90 16, p95 34, p99 79), because some sessions end before their rounds are complete.
struct Quantile {
  double share, rounds;
};
constexpr Quantile kRounds[] = {{0, 0},    {.5, 1},   {.75, 3},   {.85, 9}, {.9, 19},
                                {.95, 40}, {.97, 60}, {.99, 100}, {1, 250}};

std::uint64_t draw_rounds(Random& random) {
  const double u = random.uniform();
  const Quantile* above = kRounds + 1;
  while (above->share <= u) ++above;
  const Quantile& below = above[-1];
  const double rounds =
      below.rounds + (above->rounds - below.rounds) * (u - below.share) / (above->share - below.share);
  return static_cast<std::uint64_t>(rounds + 0.5);
}

TimeNs seconds_after(TimeNs time, double seconds) {
  return later_by(time, seconds * static_cast<double>(kNsPerSecond));
}

}  // namespace

AgentsGenerator::AgentsGenerator(const AgentsConfig& config)
    : config_(config),
      arrivals_(mix64(config.seed ^ 0x6167656e7473ULL)),
      next_block_((kPrefixVariants + kHelperPrefixVariants) * kBlockIdsPerVariant) {
  if (!(config_.sessions_per_second >= 1e-6 && config_.sessions_per_second <= 1e6)) {
    throw FigureError("sessions_per_second", "must be from 0.000001 to 1000000.");
  }
  if (config_.duration < 0) throw FigureError("duration", "must be 0 (no limit) or more.");
  // The weight of variant i is 1 / (i + 4). Among 710 sessions, the first variants then have about 29, 23, 19, ...
  // sessions, and about 350 variants occur at all: the measured values.
  double sum = 0;
  for (std::size_t i = 0; i < kPrefixVariants; ++i)
    variant_weight_sums_.push_back(sum += 1.0 / static_cast<double>(i + 4));
  next_session_time_ = seconds_after(0, arrivals_.exponential(1.0 / config_.sessions_per_second));
}

double AgentsGenerator::fraction_read() const {
  if (config_.requests > 0) return static_cast<double>(emitted_) / static_cast<double>(config_.requests);
  if (config_.duration == 0 || heap_.empty()) return 0;
  return std::min(1.0, static_cast<double>(heap_.front()->time) / static_cast<double>(config_.duration));
}

bool AgentsGenerator::later(const std::unique_ptr<Session>& a, const std::unique_ptr<Session>& b) {
  return a->time != b->time ? a->time > b->time : a->number > b->number;
}

void AgentsGenerator::add(std::unique_ptr<Session> session) {
  heap_.push_back(std::move(session));
  std::push_heap(heap_.begin(), heap_.end(), later);
}

bool AgentsGenerator::next(TraceRequest& request) {
  if (config_.requests > 0 && emitted_ == config_.requests) return false;
  while (heap_.empty() || next_session_time_ <= heap_.front()->time) {
    if (config_.duration > 0 && next_session_time_ >= config_.duration) break;
    start_session();
  }
  if (heap_.empty() || (config_.duration > 0 && heap_.front()->time >= config_.duration)) return false;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  std::unique_ptr<Session> session = std::move(heap_.back());
  heap_.pop_back();
  const Tokens blocks = (session->input - 1) / kBlockTokens + 1;
  while (session->blocks.size() < blocks) session->blocks.push_back(next_block_++);
  request.clear();
  request.arrival = session->time;
  request.input = session->input;
  request.output = session->output;
  request.system = std::min(session->input, session->prefix);
  request.blocks.assign(session->blocks.begin(), session->blocks.end());
  request.session = session->number;
  request.think = session->think;
  request.turn = ++session->turn;
  request.type = session->by_tool ? 2 : 1;
  ++emitted_;
  if (session->turn == session->helper_at_turn) start_helper(*session);
  if (--session->requests_left > 0) {
    plan_next(*session);
    add(std::move(session));
  }
  return true;
}

void AgentsGenerator::take_prefix(Session& session, std::uint64_t variant) const {
  Random random(mix64(config_.seed ^ 0x707265666978ULL) + mix64(variant));
  // The tools take 8,000 to 10,600 tokens in one of five prefixes, and 11,900 to 13,050 tokens in the others.
  const bool small_tool_set = random.chance(0.2);
  const std::uint64_t tools = small_tool_set ? random.integer(8'000, 10'600) : random.integer(11'900, 13'050);
  const Tokens instructions = clipped(kInstructions.draw(random), 500, 8'000);
  session.prefix = variant < kPrefixVariants ? tools + instructions : tools / 2 + instructions;
  for (std::uint64_t block = 0; block < session.prefix / kBlockTokens; ++block) {
    session.blocks.push_back(variant * kBlockIdsPerVariant + block);
  }
}

void AgentsGenerator::start_session() {
  auto session = std::make_unique<Session>();
  session->number = ++sessions_;
  session->random = Random(mix64(config_.seed ^ mix64(session->number)));
  Random& random = session->random;
  session->time = next_session_time_;
  session->requests_left = clipped(kRequests.draw(random), 1, kMaxRequestsPerSession);
  session->rounds_left = draw_rounds(random);
  if (random.chance(0.03)) session->helper_at_turn = random.integer(1, session->requests_left);
  const double drawn = random.uniform() * variant_weight_sums_.back();
  const auto variant = std::upper_bound(variant_weight_sums_.begin(), variant_weight_sums_.end() - 1, drawn) -
                       variant_weight_sums_.begin();
  take_prefix(*session, static_cast<std::uint64_t>(variant));
  // About a quarter of the sessions began before the trace: their first prompt in the trace is already long.
  session->input = random.chance(0.27) ? random.integer(60'000, 260'000)
                                       : session->prefix + clipped(kFirstMessage.draw(random), 1, 200'000);
  session->output = clipped(kAgentAnswer.draw(random), 1, kMaxAgentAnswerTokens);
  add(std::move(session));
  next_session_time_ = seconds_after(next_session_time_, arrivals_.exponential(1.0 / config_.sessions_per_second));
}

// Adds the session of a helper agent. It has tool results only, and starts one service time after the request `of`.
void AgentsGenerator::start_helper(const Session& of) {
  auto session = std::make_unique<Session>();
  session->number = ++sessions_;
  session->random = Random(mix64(config_.seed ^ mix64(session->number)));
  Random& random = session->random;
  session->time = seconds_after(of.time, kService.draw(random));
  session->requests_left = random.integer(5, 17);
  session->rounds_left = session->requests_left;
  take_prefix(*session, kPrefixVariants + random.integer(0, kHelperPrefixVariants - 1));
  session->input = session->prefix + clipped(random.lognormal(6.5, 1.0), 1, 20'000);
  session->output = clipped(kAgentAnswer.draw(random), 1, kMaxAgentAnswerTokens);
  add(std::move(session));
}

// Plans the session's next request from the request that next() has just returned.
void AgentsGenerator::plan_next(Session& session) const {
  Random& random = session.random;
  session.by_tool = session.rounds_left > 0;
  session.rounds_left = session.by_tool ? session.rounds_left - 1 : draw_rounds(random);
  const bool by_person = !session.by_tool && !random.chance(kProgramShare);
  const TimeNs answered = seconds_after(session.time, kService.draw(random));
  session.time = seconds_after(answered, (by_person ? kUserTime : kToolTime).draw(random));
  session.think = session.time - answered;
  const Tokens before = session.input;
  session.input += session.output;
  // One tool result in ten makes the prompt shorter by up to 8 tokens.
  if (session.by_tool && random.chance(0.1)) {
    session.input -= std::min<Tokens>(8, session.input - 1);
  } else {
    session.input += clipped((session.by_tool ? kToolResult : kUserMessage).draw(random), 1, 200'000);
  }
  session.output = clipped(kAgentAnswer.draw(random), 1, kMaxAgentAnswerTokens);
  session.blocks.resize(static_cast<std::size_t>(std::min(before, session.input) / kBlockTokens));
  if (random.chance(0.005) || session.input > kMaxContextTokens) cut_back(session);
}

// Replaces the history by a summary: the prefix stays, and the tokens after the prefix are new.
void AgentsGenerator::cut_back(Session& session) const {
  const Tokens most = std::max<Tokens>(session.prefix + 1, session.input * 7 / 10);
  session.input = session.random.integer(session.prefix + 1, most);
  session.blocks.resize(std::min<std::size_t>(session.blocks.size(), session.prefix / kBlockTokens));
}

}  // namespace kvtwin

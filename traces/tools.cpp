#include "traces/tools.hpp"

#include <algorithm>
#include <utility>

#include "traces/figure_error.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kToolBlockTokens = 512;
constexpr Tokens kMaxQuestionTokens = 126'000;
constexpr std::size_t kClients = 60;

// The published shares of the applications are .46, .39 and .15, and the published heads are 12, 5 and 1 blocks. They
// agree with the measured lengths and hits only if the chat has the share .46 and the head of 12 blocks the share .39.
constexpr double kChatShare = 0.46;
constexpr double kRequestsPerChat = 1.6;
constexpr double kLongHeadShare = 0.39 / 0.54;  // of the single questions
constexpr std::uint64_t kLongHead = 12, kShortHead = 5;

// Block ids: 0 .. 16 for the two long heads. From kFirstChatBlock on, even ids for chats and odd ids for questions.
constexpr std::uint64_t kFirstChatBlock = 64;

ChatConfig chats_of(const ToolsConfig& config) {
  if (!(config.requests_per_second >= 1e-3 && config.requests_per_second <= 1e6)) {
    throw FigureError("requests_per_second", "must be from 0.001 to 1000000.");
  }
  ChatConfig chats;
  chats.seed = config.seed;
  chats.duration = config.duration;
  chats.sessions_per_second = config.requests_per_second * kChatShare / kRequestsPerChat;
  chats.timestamp_step = 1;
  return chats;
}

Tokens tokens(double value, Tokens most) {
  return value >= static_cast<double>(most) ? most : std::max<Tokens>(1, static_cast<Tokens>(value));
}

}  // namespace

ToolsGenerator::ToolsGenerator(const ToolsConfig& config)
    : config_(config),
      chats_(chats_of(config)),
      arrivals_(config.seed, kClients, config.requests_per_second * (1.0 - kChatShare)),
      random_(mix64(config.seed ^ 0x746f6f6c73ULL)) {
  has_chat_ = chats_.next(chat_);
}

double ToolsGenerator::fraction_read() const {
  if (config_.requests > 0) return static_cast<double>(emitted_) / static_cast<double>(config_.requests);
  if (config_.duration == 0) return 0;
  return std::min(1.0, static_cast<double>(arrivals_.peek().time) / static_cast<double>(config_.duration));
}

bool ToolsGenerator::next(TraceRequest& request) {
  if (config_.requests > 0 && emitted_ == config_.requests) return false;
  const bool has_single = config_.duration == 0 || arrivals_.peek().time < config_.duration;
  if (!has_single && !has_chat_) return false;
  ++emitted_;
  if (has_single && (!has_chat_ || arrivals_.peek().time <= chat_.arrival)) {
    single(request);
    return true;
  }
  std::swap(request, chat_);
  request.type = 1;
  for (std::uint64_t& id : request.blocks) id = kFirstChatBlock + 2 * id;
  has_chat_ = chats_.next(chat_);
  return true;
}

// Makes one question of a few hundred tokens. 1.5 % of the questions have a document; 35 % of the answers are one word.
void ToolsGenerator::single(TraceRequest& request) {
  request.clear();
  request.arrival = arrivals_.peek().time;
  arrivals_.pop();
  const bool long_head = random_.chance(kLongHeadShare);
  const std::uint64_t head = long_head ? kLongHead : kShortHead;
  const bool document = random_.chance(0.015);
  const double own = document ? random_.lognormal(9.5, 0.8) : random_.lognormal(5.8, 1.0);
  request.input = head * kToolBlockTokens + tokens(own, document ? 60'000 : kMaxQuestionTokens);
  request.output = random_.chance(0.35) ? 3 : tokens(random_.lognormal(2.7, 0.6), 2'000);
  request.type = long_head ? 2 : 3;
  for (std::uint64_t block = 0; block < head; ++block) request.blocks.push_back(long_head ? block : kLongHead + block);
  const Tokens blocks = (request.input - 1) / kToolBlockTokens + 1;
  while (request.blocks.size() < blocks) request.blocks.push_back(kFirstChatBlock + 2 * next_private_++ + 1);
}

}  // namespace kvtwin

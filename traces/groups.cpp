#include "traces/groups.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "traces/draws.hpp"
#include "traces/figure_error.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kMaxPrompts = 10'000'000;

// The streams of the lengths. A length depends on the seed, the stream and the number of its group or prompt only.
constexpr std::uint64_t kPrefixes = std::uint64_t{1} << 60, kQuestions = std::uint64_t{2} << 60,
                        kAnswers = std::uint64_t{3} << 60;

void check_rate(double requests_per_second) {
  if (!(requests_per_second >= 1e-3 && requests_per_second <= 1e6)) {
    throw FigureError("requests_per_second", "must be from 0.001 to 1000000.");
  }
}

void check(const GroupsConfig& config) {
  if (config.groups < 1 || config.groups > kMaxPrompts) {
    throw FigureError("groups", "must be from 1 to 10000000.");
  }
  if (config.prompts_per_group < 1 || config.prompts_per_group > kMaxPrompts / config.groups) {
    throw FigureError("prompts_per_group", "must be from 1 to " + std::to_string(kMaxPrompts / config.groups) +
                                               ", as groups is " + std::to_string(config.groups) + ".");
  }
  if (config.question_tokens > kMaxTraceTokens / 2) {
    throw FigureError("question_tokens", "must be at most 500000000.");
  }
  if (config.question_tokens == 0 && config.prefix_tokens == 0) {
    throw FigureError("question_tokens", "must be at least 1, as prefix_tokens is 0: a prompt has a token.");
  }
  if (config.prefix_tokens > kMaxTraceTokens / 2) throw FigureError("prefix_tokens", "must be at most 500000000.");
  if (config.output_tokens < 1 || config.output_tokens > kMaxTraceTokens) {
    throw FigureError("output_tokens", "must be from 1 to 1000000000.");
  }
  if (!(config.range_ratio >= 0 && config.range_ratio <= 1)) throw FigureError("range_ratio", "must be from 0 to 1.");
  check_rate(config.requests_per_second);
  for (const GroupsConfig::Rate& rate : config.rates) check_rate(rate.requests_per_second);
}

}  // namespace

GroupsGenerator::GroupsGenerator(const GroupsConfig& config) : config_(config), random_(mix64(config.seed)) {
  check(config);
  order_.resize(config.groups * config.prompts_per_group);
  std::iota(order_.begin(), order_.end(), 0U);
  for (std::size_t left = order_.size(); left > 1; --left) {
    std::swap(order_[left - 1], order_[random_.integer(0, left - 1)]);
  }
  requests_ = config.requests == 0 ? order_.size() : config.requests;
  shared_blocks_ = config.prefix_tokens / kBlockTokens;
  // Every length of a prefix leaves a part of a block, which belongs to one prompt like the question.
  const Tokens part = config.range_ratio == 1 ? config.prefix_tokens % kBlockTokens : kBlockTokens - 1;
  own_blocks_ = (part + config.question_tokens + kBlockTokens - 1) / kBlockTokens;
  first_own_block_ = config.groups * shared_blocks_;
}

double GroupsGenerator::fraction_read() const { return static_cast<double>(emitted_) / static_cast<double>(requests_); }

// Returns a length of at most `most`, by the stream and number `of`.
Tokens GroupsGenerator::length(Tokens most, std::uint64_t of) const {
  if (most == 0 || config_.range_ratio == 1) return most;
  const auto low = static_cast<Tokens>(static_cast<double>(most) * config_.range_ratio);
  const Tokens least = std::max<Tokens>(low, 1);
  return least + integer_from(mix64(mix64(config_.seed) ^ mix64(of)), most - least);
}

double GroupsGenerator::rate_of_next() {
  while (rate_ < config_.rates.size() && sent_at_rate_ == config_.rates[rate_].requests) {
    ++rate_;
    sent_at_rate_ = 0;
  }
  ++sent_at_rate_;
  return rate_ < config_.rates.size() ? config_.rates[rate_].requests_per_second : config_.requests_per_second;
}

bool GroupsGenerator::next(TraceRequest& request) {
  if (emitted_ == requests_) return false;
  const std::uint64_t number = emitted_++, place = number % order_.size();
  const std::uint64_t prompt = order_[place], group = prompt / config_.prompts_per_group;
  const Tokens prefix = length(config_.prefix_tokens, kPrefixes + group);
  request.clear();
  request.input = prefix + length(config_.question_tokens, kQuestions + prompt);
  request.output = length(config_.output_tokens, kAnswers + prompt);
  request.system = prefix;
  if (config_.clients != 0) {
    request.session = number % config_.clients + 1;
    request.turn = number / config_.clients + 1;
    request.think = 0;
  } else {
    const double rate = rate_of_next();
    if (number != 0) time_ = later_by(time_, random_.exponential(static_cast<double>(kNsPerSecond) / rate));
  }
  request.arrival = time_;
  const std::uint64_t blocks = (request.input - 1) / kBlockTokens + 1, shared = prefix / kBlockTokens;
  request.blocks.reserve(blocks);
  for (std::uint64_t block = 0; block < shared; ++block) request.blocks.push_back(group * shared_blocks_ + block);
  std::uint64_t own = first_own_block_ + place * own_blocks_;
  while (request.blocks.size() < blocks) request.blocks.push_back(own++);
  return true;
}

}  // namespace kvtwin

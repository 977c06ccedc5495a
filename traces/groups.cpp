#include "traces/groups.hpp"

#include <numeric>
#include <string>
#include <utility>

#include "traces/figure_error.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kMaxRequests = 10'000'000;

void check(const GroupsConfig& config) {
  if (config.groups < 1 || config.groups > kMaxRequests) {
    throw FigureError("groups", "must be from 1 to 10000000.");
  }
  if (config.prompts_per_group < 1 || config.prompts_per_group > kMaxRequests / config.groups) {
    throw FigureError("prompts_per_group", "must be from 1 to " + std::to_string(kMaxRequests / config.groups) +
                                               ", as groups is " + std::to_string(config.groups) + ".");
  }
  if (config.question_tokens < 1 || config.question_tokens > kMaxTraceTokens / 2) {
    throw FigureError("question_tokens", "must be from 1 to 500000000.");
  }
  if (config.prefix_tokens > kMaxTraceTokens / 2) throw FigureError("prefix_tokens", "must be at most 500000000.");
  if (config.output_tokens < 1 || config.output_tokens > kMaxTraceTokens) {
    throw FigureError("output_tokens", "must be from 1 to 1000000000.");
  }
  if (!(config.requests_per_second >= 1e-3 && config.requests_per_second <= 1e6)) {
    throw FigureError("requests_per_second", "must be from 0.001 to 1000000.");
  }
}

}  // namespace

GroupsGenerator::GroupsGenerator(const GroupsConfig& config) : config_(config), random_(mix64(config.seed)) {
  check(config);
  order_.resize(config.groups * config.prompts_per_group);
  std::iota(order_.begin(), order_.end(), 0U);
  for (std::size_t left = order_.size(); left > 1; --left) {
    std::swap(order_[left - 1], order_[random_.integer(0, left - 1)]);
  }
  shared_blocks_ = config.prefix_tokens / kBlockTokens;
  next_block_ = config.groups * shared_blocks_;
}

double GroupsGenerator::fraction_read() const {
  return static_cast<double>(emitted_) / static_cast<double>(order_.size());
}

bool GroupsGenerator::next(TraceRequest& request) {
  if (emitted_ == order_.size()) return false;
  const std::uint64_t number = emitted_++;
  const std::uint64_t group = order_[number] / config_.prompts_per_group;
  request.clear();
  request.input = config_.prefix_tokens + config_.question_tokens;
  request.output = config_.output_tokens;
  if (config_.clients != 0) {
    request.session = number % config_.clients + 1;
    request.turn = number / config_.clients + 1;
    request.think = 0;
  } else if (number != 0) {
    // At most 10 million gaps of at most 37,000 s: the sum fits TimeNs.
    time_ += static_cast<TimeNs>(random_.exponential(static_cast<double>(kNsPerSecond) / config_.requests_per_second));
  }
  request.arrival = time_;
  const std::uint64_t blocks = (request.input - 1) / kBlockTokens + 1;
  request.blocks.reserve(blocks);
  for (std::uint64_t block = 0; block < shared_blocks_; ++block) {
    request.blocks.push_back(group * shared_blocks_ + block);
  }
  while (request.blocks.size() < blocks) request.blocks.push_back(next_block_++);
  return true;
}

}  // namespace kvtwin

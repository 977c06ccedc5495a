#include "traces/returning.hpp"

#include "traces/draws.hpp"
#include "traces/figure_error.hpp"

namespace kvtwin {

ReturningGenerator::ReturningGenerator(const ReturningConfig& config) : config_(config), random_(mix64(config.seed)) {
  if (config.contexts < 1 || config.contexts > kMaxContexts) {
    throw FigureError("contexts", "must be from 1 to " + std::to_string(kMaxContexts) + ".");
  }
  if (config.prompt_tokens < 1 || config.prompt_tokens > kMaxTraceTokens) {
    throw FigureError("prompt_tokens", "must be from 1 to 1000000000.");
  }
  if (config.question_tokens >= config.prompt_tokens)
    throw FigureError("question_tokens", "must be below prompt_tokens.");
  if (config.output_tokens < 1 || config.output_tokens > kMaxTraceTokens) {
    throw FigureError("output_tokens", "must be from 1 to 1000000000.");
  }
  if (!(config.requests_per_second >= 1e-6 && config.requests_per_second <= 1e6)) {
    throw FigureError("requests_per_second", "must be from 0.000001 to 1000000.");
  }
  if (config.at_once < 1) throw FigureError("at_once", "must be 1 or more.");
  shared_blocks_ = (config.prompt_tokens - config.question_tokens) / kBlockTokens;
  visits_.resize(config.contexts);
  next_block_ = config.contexts * shared_blocks_;
}

double ReturningGenerator::fraction_read() const {
  return config_.requests == 0 ? 0 : static_cast<double>(emitted_) / static_cast<double>(config_.requests);
}

bool ReturningGenerator::next(TraceRequest& request) {
  if (config_.requests > 0 && emitted_ == config_.requests) return false;
  const std::uint64_t context = emitted_ < config_.contexts ? emitted_ : random_.integer(0, config_.contexts - 1);
  if (emitted_++ % config_.at_once == 0) {
    const double ns = static_cast<double>(kNsPerSecond) * static_cast<double>(config_.at_once);
    time_ = later_by(time_, random_.exponential(ns / config_.requests_per_second));
  }
  request.clear();
  request.arrival = time_;
  request.input = config_.prompt_tokens;
  request.output = config_.output_tokens;
  request.session = context + 1;
  request.turn = ++visits_[context];
  const std::uint64_t blocks = (config_.prompt_tokens - 1) / kBlockTokens + 1;
  request.blocks.reserve(blocks);
  for (std::uint64_t block = 0; block < shared_blocks_; ++block) {
    request.blocks.push_back(context * shared_blocks_ + block);
  }
  while (request.blocks.size() < blocks) request.blocks.push_back(next_block_++);
  return true;
}

}  // namespace kvtwin

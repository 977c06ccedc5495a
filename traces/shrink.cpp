#include "traces/shrink.hpp"

#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {

ShrunkTrace::ShrunkTrace(std::unique_ptr<TraceSource> source, Tokens factor)
    : source_(std::move(source)), factor_(factor) {
  KV_CHECK(factor > 0 && source_->block_tokens() % factor == 0, "a block shrinks to whole tokens");
}

bool ShrunkTrace::next(TraceRequest& request) {
  if (!source_->next(request)) return false;
  if (!request.is_hint) shrink(request);
  return true;
}

bool ShrunkTrace::next_of(std::uint64_t user, TraceRequest& request) {
  if (!source_->user_traffic()->next_of(user, request)) return false;
  shrink(request);
  return true;
}

void ShrunkTrace::shrink(TraceRequest& request) const {
  const Tokens held = request.input - request.uncached_end;
  request.input = request.input / factor_ + (request.input % factor_ != 0 ? 1 : 0);
  if (request.uncached_end != 0) request.uncached_end = request.input - held / factor_;
  request.system /= factor_;
  request.answer_blocks.clear();
  request.output = request.output / factor_ + (request.output % factor_ != 0 ? 1 : 0);
}

}  // namespace kvtwin

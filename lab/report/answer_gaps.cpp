#include "lab/report/answer_gaps.hpp"

#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/base/mix.hpp"

namespace kvtwin {

void AnswerGaps::add(const TraceRequest& request, Tokens block_tokens) {
  prompt_ += request.input;
  std::uint64_t chain = mixed_bits(request.tenant) ^ mixed_bits(request.session + kGoldenRatio64);
  NodeId longest = NodeId::none;
  const std::uint64_t full = std::min<std::uint64_t>(request.blocks.size(), request.input / block_tokens);
  for (std::uint64_t i = 0; i < full; ++i) {
    chain = mixed_bits(chain + kGoldenRatio64) ^ mixed_bits(request.blocks[i]);
    if (i + 1 >= ends_at_.size() || ends_at_[i + 1] == 0) continue;
    const NodeId found = by_end_.find(key_of(chain), end_of());
    if (found != NodeId::none && earlier_[static_cast<std::size_t>(found)].input < request.input) longest = found;
  }
  if (longest != NodeId::none) {
    const Earlier& earlier = earlier_[static_cast<std::size_t>(longest)];
    by_end_.erase(key_of(earlier.end), longest);
    --ends_at_[earlier.blocks];
    free_.push_back(longest);
    if (!earlier.has_answer) {
      ++requests_;
      tokens_ += std::min(earlier.output, request.input - earlier.input);
    }
  }
  if (full != 0) keep({chain, request.input, request.output, full, !request.answer_blocks.empty()});
}

void AnswerGaps::keep(const Earlier& request) {
  NodeId id = by_end_.find(key_of(request.end), end_of());
  if (id != NodeId::none) {
    earlier_[static_cast<std::size_t>(id)] = request;
    return;
  }
  if (free_.empty()) {
    id = static_cast<NodeId>(earlier_.size());
    earlier_.push_back(request);
  } else {
    id = free_.back();
    free_.pop_back();
    earlier_[static_cast<std::size_t>(id)] = request;
  }
  if (request.blocks >= ends_at_.size()) ends_at_.resize(request.blocks + 1);
  ++ends_at_[request.blocks];
  KV_CHECK(by_end_.insert(key_of(request.end), id, end_of()), "an end has one entry");
}

}  // namespace kvtwin

#include "lab/report/answer_gaps.hpp"

#include <algorithm>

#include "policy/base/mix.hpp"

namespace kvtwin {

void AnswerGaps::add(const TraceRequest& request, Tokens block_tokens) {
  prompt_ += request.input;
  std::uint64_t chain = mixed_bits(request.tenant) ^ mixed_bits(request.session + kGoldenRatio64);
  auto longest = ends_.end();
  const std::uint64_t full = std::min<std::uint64_t>(request.blocks.size(), request.input / block_tokens);
  for (std::uint64_t i = 0; i < full; ++i) {
    chain = mixed_bits(chain + kGoldenRatio64) ^ mixed_bits(request.blocks[i]);
    const auto found = ends_.find(chain);
    if (found != ends_.end() && found->second.input < request.input) longest = found;
  }
  if (longest != ends_.end()) {
    const Earlier earlier = longest->second;
    ends_.erase(longest);
    if (!earlier.has_answer) {
      ++requests_;
      tokens_ += std::min(earlier.output, request.input - earlier.input);
    }
  }
  if (full != 0) ends_[chain] = {request.input, request.output, !request.answer_blocks.empty()};
}

}  // namespace kvtwin

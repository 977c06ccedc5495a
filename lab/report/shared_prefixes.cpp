#include "lab/report/shared_prefixes.hpp"

#include <algorithm>

#include "policy/base/mix.hpp"

namespace kvtwin {

SharedPrefixes::SharedPrefixes(TraceSource& trace, Tokens page_tokens)
    : trace_(trace), users_(trace.user_traffic()), page_tokens_(page_tokens) {}

bool SharedPrefixes::next_of(std::uint64_t user, TraceRequest& request) {
  if (!users_->next_of(user, request)) return false;
  count(request);
  return true;
}

bool SharedPrefixes::next(TraceRequest& request) {
  if (!trace_.next(request)) return false;
  if (!request.is_hint) count(request);
  return true;
}

void SharedPrefixes::count(const TraceRequest& request) {
  const Tokens block = trace_.block_tokens();
  answers_.add(request, block);
  below_.prompt += request.input;
  Tokens shared = 0;
  bool all = true;
  std::uint64_t chain = mixed_bits(request.tenant);
  const auto blocks = std::min<Tokens>(request.blocks.size(), (page_tokens_ - 1) / block + 1);
  for (Tokens i = 0; i < blocks; ++i) {
    chain = mixed_bits(chain + kGoldenRatio64) ^ mixed_bits(request.blocks[i]);
    all = !blocks_.insert(chain).second && all;
    if (all) shared = std::min(request.input, (i + 1) * block);
  }
  // The last token of a prompt is always computed.
  shared = std::min(shared, request.input - 1);
  if (shared == 0 || shared >= page_tokens_) return;
  below_.shortest = below_.requests == 0 ? shared : std::min(below_.shortest, shared);
  below_.longest = std::max(below_.longest, shared);
  ++below_.requests;
  below_.tokens += shared;
}

}  // namespace kvtwin

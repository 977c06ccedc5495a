#include "lab/watch/engine_twins.hpp"

#include <algorithm>

namespace kvtwin {

EngineTwins::EngineTwins(const WatchedServer& server) {
  all_.emplace_back(server.present_blocks(), server.setup().engine, server.block_tokens());
}

void EngineTwins::add(std::uint64_t blocks, const EngineConfig& engine, Tokens block_tokens) {
  all_.emplace_back(blocks, engine, block_tokens);
}

EngineTwin::Hits EngineTwins::serve(const TraceRequest& request) {
  EngineTwin::Hits present;
  for (Sized& one : all_) {
    const EngineTwin::Hits hits = one.twin.serve(request);
    if (&one == &all_.front()) present = hits;
    one.sum.looked_up += request.input;
    one.sum.hits += hits.device + hits.host;
    one.sum.without_window += hits.without_window;
    one.sum.without_state += hits.without_state;
  }
  return present;
}

EngineTwins::Sum EngineTwins::of_size(std::uint64_t blocks) const {
  const auto found = std::ranges::find(all_, blocks, &Sized::blocks);
  return found == all_.end() ? Sum() : found->sum;
}

std::size_t EngineTwins::memory_bytes() const {
  std::size_t bytes = 0;
  for (const Sized& one : all_) bytes += one.twin.memory_bytes();
  return bytes;
}

}  // namespace kvtwin

// The engine's own rules at the present size and at others, each an engine of its own that serves every request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "lab/watch/watched_server.hpp"
#include "policy/base/types.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class EngineTwins {
 public:
  // Begins with the present size.
  explicit EngineTwins(const WatchedServer& server);

  // Requires: no request was served yet.
  void add(std::uint64_t blocks, const EngineConfig& engine, Tokens block_tokens);
  // Returns the hits of the present size.
  EngineTwin::Hits serve(const TraceRequest& request);

  struct Sum {
    Tokens looked_up = 0, hits = 0;
    // Tokens that are there and of no use, because their window or state is gone.
    Tokens without_window = 0, without_state = 0;
  };
  // Nothing of a size that is not there.
  Sum of_size(std::uint64_t blocks) const;
  std::size_t memory_bytes() const;

 private:
  struct Sized {
    Sized(std::uint64_t size, const EngineConfig& engine, Tokens block_tokens)
        : blocks(size), twin(engine, block_tokens) {}

    std::uint64_t blocks;
    EngineTwin twin;
    Sum sum;
  };
  std::deque<Sized> all_;
};

}  // namespace kvtwin

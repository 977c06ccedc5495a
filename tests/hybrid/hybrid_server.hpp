// Servers that a sequence of requests drives, request by request, as tools/engine-parity drives the real engines: the
// same admission, chunks and decode steps, on kvtwin's cache. Copies between the tiers take no time.
//
// A sequence is a file of JSON lines, which tests/hybrid/record.py writes. The first has the engine and its
// configuration. Each further line is an operation with its outcome: `start`, the admission and the prefill of a
// request, `finish`, its decode and its end, or `close` of a session. Token j of segment s is s * 65,536 + j. The last
// token of an answer is never in the cache.
//   SGLang: hit = device + host, the tokens that are used again; full_present, the tokens with full KV; branch, where
//   the next forward pass leaves a state, or ends for a window; evicted, in the operation; usage, after it.
//   vLLM: hit; groups, the longest hit of each group of layers alone; junction, the shared prefix that is kept;
//   evicted_blocks; usage, of equal blocks of all groups only; refused, without room
//   for the prompt; preempted, after so many tokens of the answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/json.hpp"
#include "policy/base/types.hpp"

namespace kvtwin::test {

class HybridServer {
 public:
  virtual ~HybridServer() = default;
  // Returns the outcome of the operation. Throws std::runtime_error if it cannot be made.
  virtual Json run(const Json& operation) = 0;
  // Checks every invariant of the cache.
  virtual void check() const = 0;
};

// Throws std::runtime_error for an unknown engine or an unknown key of the configuration.
std::unique_ptr<HybridServer> make_hybrid_server(const Json& head);

// Runs all operations of a sequence. Returns the first difference from its outcomes in one sentence; empty if there is
// none.
std::string first_difference(const std::string& path);

}  // namespace kvtwin::test

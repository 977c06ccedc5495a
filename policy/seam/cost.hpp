// The costs of passes, transfers and storage operations, as integers. Declared here because policies weigh costs.
// models/ implements the interface from a model's geometry and a machine's figures. The simulated worlds use the same
// object, so they charge what the policies assume. Pure: equal arguments give equal results, on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "policy/base/types.hpp"
#include "policy/transfer/hand_over.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

// The work of one forward pass over a batch, summed over its sequences.
struct ForwardShape {
  Tokens prefill_tokens = 0;          // new prompt tokens
  std::uint64_t prefill_pairs = 0;    // attention work: sum over sequences of new * context + new * (new + 1) / 2
  Tokens prefill_context_tokens = 0;  // cached tokens that attention reads
  std::uint32_t prefill_sequences = 0;
  std::uint32_t decode_sequences = 0;  // each decodes one token per step, or more with a draft model
  Tokens decode_context_tokens = 0;    // KV tokens of the decoding sequences before the first step
  // Speculative decoding: tokens per decode step and sequence that a draft model proposes and the target verifies
  // together with its own token. 0 = no draft model; then a step yields one token per sequence.
  std::uint32_t draft_tokens = 0;
  // With a draft model: average tokens per step, summed over the sequences, in 1/1024.
  std::uint64_t decode_yield_x1024 = 0;
  // Recurrent states: sequences that begin with a cached one, which is first copied within device memory.
  std::uint32_t copied_states = 0;
};

// A transfer first takes `latency_ns`, in which no bytes move. Then `bytes` move on the lane's link at
// `bytes_per_second` at most (0 = the rate of the link).
struct TransferCost {
  TimeNs latency_ns = 0;
  Bytes bytes = 0;
  std::uint64_t bytes_per_second = 0;
};

// Returns the cost of two parts of one operation (the target's pages and its draft model's) that run one after the
// other on one lane: both latencies, all bytes, and the rate at which both together take as long as separately. No part
// moves faster than `link_rate`, the rate of the link.
TransferCost one_after_another(const TransferCost& first, const TransferCost& second, std::uint64_t link_rate);

enum class StorageVerb : std::uint8_t { look_up, get, set, remove };
constexpr std::string_view name_of(StorageVerb verb) {
  switch (verb) {
    case StorageVerb::look_up: return "look_up";
    case StorageVerb::get: return "get";
    case StorageVerb::set: return "set";
    case StorageVerb::remove: return "remove";
  }
  return "";
}

// The bytes that a storage operation moves, and the path.
struct StorageWork {
  StorageVerb verb = StorageVerb::look_up;
  Tier tier = Tier::disk;    // a storage tier
  Tier memory = Tier::host;  // get, set: the tier of the slots; device = without host memory (GPUDirect)
  Pages pages = 0;
  Bytes page_bytes = 0;       // of one rank
  std::uint32_t objects = 1;  // objects that one rank's part of a page is stored as
  std::uint32_t ranks = 1;    // ranks that move it; one rank writes an MLA latent, which is the same on every rank
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  // Time from the start of the pass to the end of its `steps`-th step (>= 1). Contexts grow by one token per step (with
  // a draft model, by the yield). Strictly increasing in `steps`. Excludes waiting for loads.
  virtual TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const = 0;
  // Time of one step of an engine with data parallelism of attention: `groups` has the work of each group of its ranks
  // that takes part. forward_ns() is that of one group, while the others have nothing to do. By default, the longest.
  virtual TimeNs joint_step_ns(std::span<const ForwardShape> groups) const {
    TimeNs longest = 0;
    for (const ForwardShape& shape : groups) longest = std::max(longest, forward_ns(shape, 1));
    return longest;
  }
  // One rank's share of a transfer between device and host memory.
  virtual TransferCost transfer(const Plan& plan) const = 0;
  // All ranks' shares of a storage operation together, as if nothing else used the medium.
  virtual TransferCost storage(const StorageWork& work) const = 0;
  // All ranks' shares of a hand-over to another engine together. By default, only the links limit.
  virtual TransferCost hand_over(const HandOverWork& work) const { return {0, work.bytes, 0}; }
  // Time until `bytes` bytes in the memory of one rank are on the other ranks of its engine. By default, no time.
  virtual TimeNs broadcast_ns(Bytes bytes) const {
    (void)bytes;
    return 0;
  }
};

}  // namespace kvtwin

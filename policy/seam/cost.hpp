// What things cost, as integers. Declared here because policies weigh costs; implemented by models/ from a
// model's geometry and a machine's figures, and asked by the simulated worlds, which so charge what the
// policies believe. Pure: equal arguments, equal answers, on every machine.
#pragma once

#include <cstdint>
#include <string_view>

#include "policy/base/types.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

// The work of one forward pass over a batch, summed over its sequences.
struct ForwardShape {
  Tokens prefill_tokens = 0;          // new prompt tokens
  std::uint64_t prefill_pairs = 0;    // attention work: sum over sequences of new * context + new * (new + 1) / 2
  Tokens prefill_context_tokens = 0;  // cached tokens that attention reads
  std::uint32_t prefill_sequences = 0;
  std::uint32_t decode_sequences = 0;  // each decodes one token a step, or more where a draft model helps
  Tokens decode_context_tokens = 0;    // KV tokens of the decoding sequences before the first step
  // Speculative decoding: in each decode step a draft model proposes so many tokens a sequence, which the target
  // verifies together with its own. 0 = there is none, and a step yields one token a sequence.
  std::uint32_t draft_tokens = 0;
  std::uint64_t decode_yield_x1024 = 0;  // with a draft: tokens that a step yields on average, summed, in 1/1024
};

// A transfer is `latency_ns`, during which nothing flows, then `bytes` on the lane's link at no more than
// `bytes_per_second` (0 = the link's own rate).
struct TransferCost {
  TimeNs latency_ns = 0;
  Bytes bytes = 0;
  std::uint64_t bytes_per_second = 0;
};

// Two parts of one operation (a target's pages and its draft model's), one after the other on one lane: both
// latencies, all bytes, and the rate at which they take together what they take apart. Neither moves faster than
// `link_rate`, the link's own.
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

// What a storage operation moves, and by which way.
struct StorageWork {
  StorageVerb verb = StorageVerb::look_up;
  Tier tier = Tier::disk;    // a storage tier
  Tier memory = Tier::host;  // get, set: whose slots; device = past host memory (GPUDirect)
  Pages pages = 0;
  Bytes page_bytes = 0;       // of one rank
  std::uint32_t objects = 1;  // that one rank's part of a page is stored as
  std::uint32_t ranks = 1;    // that move it; an MLA latent, the same on every rank, is written by one
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  // From the pass's start to the end of its `steps`-th step (>= 1); contexts grow by a token a step.
  // (with a draft model: by what it yields). Strictly increasing in `steps`. Excludes waiting for loads.
  virtual TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const = 0;
  // One rank's share of a transfer between device and host memory.
  virtual TransferCost transfer(const Plan& plan) const = 0;
  // All ranks' shares of a storage operation together, as if nothing else used the medium.
  virtual TransferCost storage(const StorageWork& work) const = 0;
};

}  // namespace kvtwin

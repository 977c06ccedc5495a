// The cost model: a roofline over a model's geometry and a machine's figures, answered in integers.
//
// A forward pass costs, on one of tp ranks (f = FLOP/s times its achievable fraction, b = bytes/s likewise):
//   step         pass overhead + 2 all-reduces a layer (latency) when tp > 1
//   linear       max(2 * active parameters * tokens / (tp * f), weights touched / (tp * b));
//                the output head counts only for sequences that yield a token; of the routed experts,
//                distinct(tokens) are touched: d(0) = 0, d(t+1) = d(t) + k - k * d(t) / E, the expectation when each
//                token picks k of E evenly (a skewed router touches fewer)
//   prefill      both(pairs * FLOPs a pair / (tp * f), (context + new) * KV bytes a token / b), and MLA's projection
//                of cached latents; both(x, y) = max(x, y) + attention_serial * min(x, y); sliding-window layers see
//                min(pairs, new * window)
//   decode       (context + sequences) * both(FLOPs a token / (tp * f), KV bytes a token / b); window layers and DSA
//                at most window a sequence; state layers read their state
//   all-reduce   2 a layer: 2 * (tp - 1) / tp * tokens * hidden * bytes / peer bandwidth
//   draft        a decode step verifies its draft_tokens + 1 tokens a sequence: linear work and all-reduces for each,
//                the context read once; and first it takes draft_tokens steps of the draft model, which read the
//                draft's weights and its KV of the context at the step's start, without a pass overhead of their own.
//                A prefill computes the draft's KV of its tokens too. Contexts grow by what a step yields.
// The sum, as layers run one after another; prefill and decode of a mixed batch share the linear part. Step j
// (1 ..) of a burst reads decode contexts of context + j * sequences; prefill happens in step 1 only. Not
// modelled: expert-parallel all-to-all, pipeline parallelism, kernels' tile quantisation.
//
// Transfers follow what is published of copy engines and copy kernels (sources: models/presets/hardware):
//   copy_engine  call + descriptors * gap, then bytes at piece / max(least descriptor time, piece / link); short
//                host-to-device pieces at the driver's inline rate
//   boxes        the same by boxes, and no faster than row / least row time; no inline rate
//   kernel       launch, then bytes at min(blocks * block rate, what all blocks reach); ring: at its own rate
//   staged       copy engine's latency + launch + relayout of the last chunk, then bytes at
//                min(copy engine, scatter rate); in layer groups by boxes, and the last chunk is a group's
// A plan's window bounds what the copy engine is given at a time, a part of it (kWindowPortions) a call, so that others
// move while the next is being submitted. It costs time only where a part moves faster than a call takes.
//
// Storage, all ranks' n objects together, over all drives or NICs of the socket (latency, then bytes at a rate):
//   get, set     request + one object's latency L, then the slowest of: sequential bandwidth, IOPS, per-object times of
//                NICs and GPUDirect's submitters, and the queue: ceil(n / depth) - 1 further rounds of L. So alone it
//                takes request + L + max(bytes / rate, (rounds - 1) * L). GPUDirect has a ceiling of its own.
//                A file a page: each rank by itself takes L + bytes / stream rate a page, one after the other.
//   look_up      one answer of the index, or one round trip, a batch; of a shared file system each page's file too
//   remove       a request
// An idle link between is the world's matter: it bounds the rate further.
//
// Units: femtoseconds (10^-15 s) a unit of work, so that a tiny model on a fast machine keeps its digits. They
// are rounded once, half up, out of doubles made with + - * / alone; every answer is 128-bit integer arithmetic,
// rounded up to nanoseconds, so equal on all machines. Closed form in `steps`: O(1).
//
// Errors: ModelError from coefficients_of() when tp doesn't divide the heads; answers can't fail, and stay at
// the largest TimeNs when they would exceed it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

__extension__ using Wide128 = unsigned __int128;

// One direction between device and host memory.
struct TransferCoefficients {
  std::uint64_t call_ns = 0;
  std::uint64_t gap_ps = 0;         // a descriptor
  std::uint64_t descriptor_ps = 0;  // least time of a descriptor
  std::uint64_t link_rate = 0;      // bytes/s; 0 = not known, nothing is capped by it
  std::uint64_t inline_limit = 0;   // descriptors below this many bytes ...
  std::uint64_t inline_rate = 0;    // ... flow at this many bytes/s
  std::uint64_t box_row_ps = 0;     // least time of a row of a strided copy
  std::uint64_t launch_ns = 0;      // copy kernel
  std::uint64_t kernel_rate = 0;    // bytes/s
  std::uint64_t ring_rate = 0;      // bytes/s, of a copy kernel that uses bulk copies
  std::uint64_t scatter_rate = 0;   // bytes/s, relayout in device memory
  std::uint64_t staging_bytes = 0;  // one staging chunk
  friend bool operator==(const TransferCoefficients&, const TransferCoefficients&) = default;
};

// One direction of one storage tier, all its devices together.
struct StorageCoefficients {
  std::uint64_t request_ns = 0;  // a batch's own latency
  std::uint64_t object_ns = 0;   // one object's latency, alone
  std::uint64_t depth = 0;       // objects under way at once; 0 = all
  std::uint64_t object_fs = 0;   // least time between two objects
  std::uint64_t rate = 0;        // bytes/s; 0 = no such tier
  // Each rank moves one page after the other at this rate, each after its latency; objects and depth don't count then.
  std::uint64_t stream_rate = 0;  // bytes/s; 0 = it doesn't
  friend bool operator==(const StorageCoefficients&, const StorageCoefficients&) = default;
};

struct StorageTierCoefficients {
  StorageCoefficients read, write;
  std::uint64_t look_up_ns = 0;
  std::uint64_t look_up_page_fs = 0;  // more for each page asked for
  friend bool operator==(const StorageTierCoefficients&, const StorageTierCoefficients&) = default;
};

// Of one rank. Calibration fits these; coefficients_of() makes them from published figures.
struct RooflineCoefficients {
  std::uint64_t step_fs = 0;           // at least 1 ns, so that time grows with every step
  std::uint64_t linear_token_fs = 0;   // FLOPs of a token, without the output head
  std::uint64_t head_sequence_fs = 0;  // FLOPs of the output head, a token yielded
  std::uint64_t weights_fs = 0;        // reading all weights but the routed experts once
  std::uint64_t expert_fs = 0;         // reading one routed expert in every expert layer
  std::uint32_t experts = 0;           // a layer
  std::uint32_t experts_per_token = 0;
  std::uint64_t prefill_pair_fs = 0;
  std::uint64_t prefill_read_fs = 0;  // a token of context or new
  std::uint64_t prefill_window_pair_fs = 0;
  std::uint64_t prefill_window_read_fs = 0;
  std::uint64_t prefill_context_fs = 0;      // MLA: projecting a cached token
  std::uint64_t decode_token_fs = 0;         // a token of context, at least
  std::uint64_t decode_window_token_fs = 0;  // a token of context within the window, at least
  std::uint64_t decode_query_fs = 0;         // of those, the FLOPs: they grow with the tokens verified, reading doesn't
  std::uint64_t decode_window_query_fs = 0;
  std::uint64_t decode_sequence_fs = 0;  // state layers, a sequence
  std::uint64_t serial_x2_32 = 0;        // of attention's shorter part, what the longer doesn't hide; in 2^-32
  std::uint64_t window_tokens = 0;       // 0 = no window layers
  std::uint64_t reduce_token_fs = 0;     // all-reduce, a token
  TransferCoefficients host_to_device, device_to_host;
  PerTier<StorageTierCoefficients> storage;  // of storage tiers
  std::uint64_t gpudirect_rate = 0;          // bytes/s of one rank; 0 = has none
  std::uint64_t gpudirect_object_fs = 0;     // of one rank
  friend bool operator==(const RooflineCoefficients&, const RooflineCoefficients&) = default;
};

RooflineCoefficients coefficients_of(const ModelGeometry& model, const HardwareSpec& hardware, std::uint32_t tp);

// One "name = value unit" a line.
std::string to_string(const RooflineCoefficients& coefficients);

class RooflineCost final : public CostModel {
 public:
  explicit RooflineCost(const RooflineCoefficients& coefficients);
  RooflineCost(const ModelGeometry& model, const HardwareSpec& hardware, std::uint32_t tp)
      : RooflineCost(coefficients_of(model, hardware, tp)) {}

  // The draft model beside this one; from then on passes include its work. Its own step costs no pass overhead.
  void set_draft(const ModelGeometry& draft, const HardwareSpec& hardware, std::uint32_t tp);

  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override;
  TransferCost transfer(const Plan& plan) const override;
  TransferCost storage(const StorageWork& work) const override;

  const RooflineCoefficients& coefficients() const { return c_; }

  // Expected distinct experts that `tokens` tokens touch, in 2^-32.
  std::uint64_t distinct_experts_x2_32(Tokens tokens) const;

 private:
  Wide128 linear_fs(Tokens tokens, std::uint64_t yielding) const;
  Wide128 prefill_fs(const ForwardShape& shape) const;
  Wide128 both_fs(Wide128 computing, Wide128 reading) const;
  Wide128 attention_fs(const ForwardShape& shape, std::uint64_t steps) const;
  Wide128 drafting_fs(const ForwardShape& shape, std::uint64_t steps) const;

  RooflineCoefficients c_;
  std::shared_ptr<const RooflineCost> draft_;  // null = none
  std::vector<std::uint64_t> distinct_;        // [tokens], up to where practically all are touched
};

}  // namespace kvtwin

// The cost model: a roofline over the geometry of a model and the figures of a machine. All answers are integers. See
// docs/internals/simgrid.md, "Cost model".
//
// Definitions: f = FLOP/s and b = bytes/s, each times its achievable fraction;
//              both(x, y) = max(x, y) + attention_serial * min(x, y).
// Time of a forward pass on one of tp ranks:
//   step         pass overhead; for tp > 1 also the latency of 2 all-reduces per layer
//   linear       max(2 * active parameters * tokens / (tp * f), touched weights / (tp * b)). The output head counts
//                only for sequences that yield a token. d(tokens) routed experts are touched:
//                d(0) = 0, d(t+1) = d(t) + k - k * d(t) / E. This is the expectation if each token picks k of E experts
//                evenly (a skewed router touches fewer)
//   prefill      both(pairs * FLOPs per pair / (tp * f), (context + new tokens) * KV bytes per token / b), and MLA's
//                projection of cached latents. Sliding-window layers see min(pairs, new tokens * window)
//   decode       (context + sequences) * both(FLOPs per token / (tp * f), KV bytes per token / b). Window layers and
//                DSA see at most window tokens per sequence. State layers read their state
//   all-reduce   2 per layer: 2 * (tp - 1) / tp * tokens * hidden * bytes / peer bandwidth
//   draft        a decode step verifies draft_tokens + 1 tokens per sequence: linear work and all-reduces for each
//                token, one read of the context. Before that, the draft model runs draft_tokens steps, which read the
//                draft's weights and the draft's KV of the context at the start of the step, without a pass overhead. A
//                prefill also computes the draft's KV. Contexts grow by the tokens that a step yields
// With data parallelism of attention (D > 1 groups of tp / D ranks; a sequence is in one group):
//   a step waits for the slowest group. The prefill, the decode and the linear work of attention, dense feed-forward
//   and shared experts are over tp / D ranks, for the tokens of one group. Routed experts and the output head are over
//   tp ranks, for the tokens of all groups
//   exchange     per layer with experts: the tokens to the ranks of the experts and back, as an all-gather and a
//                reduce-scatter, or all-to-all, whichever moves less: 2 * (tp - 1) / tp * tokens *
//                min(1, experts per token / tp) * hidden * bytes / rate, and 2 latencies. All-reduces are within a
//                group, if it has more than one rank: of attention, and of dense feed-forward
//   transfers, hand-overs and broadcasts are those of one group
// Beyond one NVLink domain the ranks exchange at the rate of NICs: see exchange_rate().
// The pass takes the sum of these times, because layers run one after another. In a mixed batch, prefill and decode
// share the linear part. Step j (1 ..) of a burst reads decode contexts of context + j * sequences tokens; prefill
// happens only in step 1. Not modelled: expert-parallel all-to-all without data parallelism of attention, pipeline
// parallelism, tile quantisation of kernels.
//
// Transfers follow published figures of copy engines and copy kernels (sources: models/presets/hardware):
//   copy_engine  call + descriptors * gap, then bytes at piece / max(minimum descriptor time, piece / link rate); short
//                host-to-device pieces at the driver's inline rate
//   boxes        the same with boxes as descriptors, and at most row / minimum row time; no inline rate
//   kernel       launch, then bytes at min(blocks * block rate, limit of all blocks); ring: at the ring rate
//   staged       latency of the copy engine + launch + relayout of the last chunk, then bytes at min(copy engine,
//                scatter rate). In layer groups: by boxes, and the last chunk is that of a group
// A plan's window limits the bytes in flight in the copy engine. Each call submits a part of the window
// (kWindowPortions), so other parts move during the submission. The window costs time only if a part moves faster than
// a call takes.
//
// Storage: n objects of all ranks together, over all drives or NICs of the socket. A latency, then bytes at a rate:
//   get, set     request + latency L of one object. The rate is the lowest of: sequential bandwidth; IOPS; time per
//                object of NICs and GPUDirect's submitters; queue: ceil(n / depth) - 1 further rounds of L. So an
//                operation alone takes request + L + max(bytes / rate, (rounds - 1) * L). GPUDirect has a rate limit of
//                its own. With a file per page, each rank takes L + bytes / stream rate per page, one page after
//                another
//                With a remote store that one client reads object by object, each rank takes its time per object and
//                bytes / stream rate, one object after another
//   look_up      one answer of the index, or one round trip, per batch; in a shared file system also the time of each
//                file, in a remote store of each object
//   remove       a request
// The world limits the rate further by the rates of the links.
//
// Hand-over: NIC latency (staged: and a call of the copy engine on each side), then bytes at the rate at which the NICs
// accept the writes: bytes / (writes * NIC time per object). The links of both engines limit the rate further.
// Broadcast of an MLA latent among n ranks of a decode engine: latency of an all-reduce, then bytes / rate. A ring of n
// accelerators that pass pieces on has this time if the pieces are small; each link carries each byte once.
//
// With a table of measured operators (measure_with), the parts that the table has replace linear, prefill, decode and
// all-reduce: see models/operator_cost.hpp.
//
// Units: femtoseconds (10^-15 s) per unit of work, so that a tiny model on a fast machine keeps its digits. Each
// coefficient is rounded once, half up, from doubles computed only with + - * /. Answers use 128-bit integers and are
// rounded up to nanoseconds, so they are equal on all machines. Cost: closed form in `steps`, O(1).
//
// Errors: coefficients_of() throws ModelError if attention's ranks do not divide the heads. Answers cannot fail; a
// value above the largest TimeNs gives the largest TimeNs.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/serving_times.hpp"
#include "models/wide.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

// One direction between device and host memory.
struct TransferCoefficients {
  std::uint64_t call_ns = 0;
  std::uint64_t gap_ps = 0;         // per descriptor
  std::uint64_t descriptor_ps = 0;  // minimum time of a descriptor
  std::uint64_t link_rate = 0;      // bytes/s; 0 = not known, limits nothing
  std::uint64_t inline_limit = 0;   // shorter descriptors, in bytes, use inline_rate
  std::uint64_t inline_rate = 0;    // bytes/s
  std::uint64_t box_row_ps = 0;     // minimum time of a row of a strided copy
  std::uint64_t launch_ns = 0;      // launch of a copy kernel
  std::uint64_t kernel_rate = 0;    // bytes/s
  std::uint64_t ring_rate = 0;      // bytes/s of a copy kernel with bulk copies
  std::uint64_t scatter_rate = 0;   // bytes/s, relayout in device memory
  std::uint64_t staging_bytes = 0;  // one staging chunk
  friend bool operator==(const TransferCoefficients&, const TransferCoefficients&) = default;
};

// One direction of one storage tier, all devices together.
struct StorageCoefficients {
  std::uint64_t request_ns = 0;  // latency of a batch
  std::uint64_t object_ns = 0;   // latency of one object, alone
  std::uint64_t depth = 0;       // objects in flight; 0 = all
  std::uint64_t object_fs = 0;   // minimum time between two objects
  std::uint64_t rate = 0;        // bytes/s; 0 = no such tier
  // If not 0, each rank moves one page after another at this rate, each page after object_ns; `depth` and `object_fs`
  // do not count.
  std::uint64_t stream_rate = 0;  // bytes/s
  // With stream_rate: each object takes object_ns, not each page, and object_fs counts too.
  bool streams_objects = false;
  friend bool operator==(const StorageCoefficients&, const StorageCoefficients&) = default;
};

struct StorageTierCoefficients {
  StorageCoefficients read, write;
  std::uint64_t look_up_ns = 0;
  std::uint64_t look_up_page_fs = 0;    // added per page
  std::uint64_t look_up_object_fs = 0;  // added per object
  friend bool operator==(const StorageTierCoefficients&, const StorageTierCoefficients&) = default;
};

// Coefficients of one rank. coefficients_of() computes them from the figures of a machine.
struct RooflineCoefficients {
  std::uint64_t step_fs = 0;           // at least 1 ns, so that time grows with each step
  std::uint64_t linear_token_fs = 0;   // FLOPs per token, without the output head
  std::uint64_t group_token_fs = 0;    // FLOPs of a group's products per token of the group; 0 = in linear_token_fs
  std::uint64_t head_sequence_fs = 0;  // FLOPs of the output head, per yielded token
  std::uint64_t weights_fs = 0;        // one read of all weights except the routed experts
  std::uint64_t expert_fs = 0;         // one read of one routed expert in each expert layer
  std::uint32_t experts = 0;           // per layer
  std::uint32_t experts_per_token = 0;
  std::uint64_t prefill_pair_fs = 0;
  std::uint64_t prefill_read_fs = 0;  // per token of context or new token
  std::uint64_t prefill_window_pair_fs = 0;
  std::uint64_t prefill_window_read_fs = 0;
  std::uint64_t prefill_context_fs = 0;      // MLA: projection of a cached token
  std::uint64_t decode_token_fs = 0;         // minimum per context token
  std::uint64_t decode_window_token_fs = 0;  // minimum per context token within the window
  std::uint64_t decode_query_fs = 0;         // FLOPs in decode_token_fs, which grow with the verified tokens
  std::uint64_t decode_window_query_fs = 0;
  std::uint64_t decode_sequence_fs = 0;  // state layers, per sequence
  std::uint64_t serial_x2_32 = 0;        // share of attention's shorter part that is not hidden, in 2^-32
  std::uint64_t window_tokens = 0;       // 0 = no window layers
  std::uint64_t reduce_token_fs = 0;     // all-reduce, or exchange with the experts, per token
  std::uint64_t group_reduce_fs = 0;     // all-reduce within a group, per token of the group
  std::uint32_t attention_dp = 1;        // groups
  std::uint64_t broadcast_ns = 0;        // latency of a broadcast within a group
  std::uint64_t broadcast_rate = 0;      // bytes/s of all groups; 0 = a group has one rank
  TransferCoefficients host_to_device, device_to_host;
  PerTier<StorageTierCoefficients> storage;  // of storage tiers
  std::uint64_t gpudirect_rate = 0;          // bytes/s of one rank; 0 = not available
  std::uint64_t gpudirect_object_fs = 0;     // of one rank
  friend bool operator==(const RooflineCoefficients&, const RooflineCoefficients&) = default;
};

// Returns the peak FLOP/s of matrix products with weights of this format.
double matrix_peak(const HardwareSpec& hardware, const WeightFormat& format);

// Requires: attention_dp divides tp.
RooflineCoefficients coefficients_of(const ModelGeometry& model, const HardwareSpec& hardware, std::uint32_t tp,
                                     std::uint32_t attention_dp = 1);

// Returns the share of a pass that the fullest of `groups` groups has if the sequences are spread evenly:
// ceil(sequences / groups) of them, and as large a part of their tokens, rounded up. The whole pass for one group.
ForwardShape group_share(const ForwardShape& shape, std::uint32_t groups);

// Returns the number of all-reduces within a group, if it has more than one rank: 1 per layer for attention, and 1 per
// layer with dense feed-forward.
std::uint64_t reduces_of_group(const ModelGeometry& model);

// Returns the number of collective operations of a pass: 2 per layer; with data parallelism of attention 2 per layer
// with experts, and reduces_of_group().
std::uint64_t collectives_of(const ModelGeometry& model, std::uint32_t tp, std::uint32_t attention_dp);

// Returns the share of a layer's tokens that a rank exchanges with the experts' ranks, summed over layers.
double exchanged_layers(const ModelGeometry& model, std::uint32_t tp);

// Returns one line "name = value unit" per coefficient.
std::string to_string(const RooflineCoefficients& coefficients);

class OperatorCost;
struct OperatorTable;

class RooflineCost final : public CostModel {
 public:
  explicit RooflineCost(const RooflineCoefficients& coefficients);
  RooflineCost(const ModelGeometry& model, const HardwareSpec& hardware, std::uint32_t tp,
               std::uint32_t attention_dp = 1)
      : RooflineCost(coefficients_of(model, hardware, tp, attention_dp)) {}

  // Adds a draft model, in the same groups of ranks. Later passes include its work. The draft's steps have no pass
  // overhead.
  void set_draft(const ModelGeometry& draft, const HardwareSpec& hardware, std::uint32_t tp);

  // Uses measured operators for the parts of a pass that the table has. The arguments must be those of the constructor.
  // Requires: called before set_draft() if at all; not for a cost made from coefficients.
  void measure_with(const OperatorTable& table, const ModelGeometry& model, const HardwareSpec& hardware,
                    std::uint32_t tp, std::uint32_t ep = 1, const std::string& experts = "moe");
  // Adds the times of a serving engine, in place of the pass overhead. Arguments as for measure_with().
  // Requires: called after measure_with(), and before set_draft(), if at all.
  void serve_with(const ServingTimes& times, const ModelGeometry& model, const HardwareSpec& hardware);
  const OperatorCost* operators() const { return operators_.get(); }  // null = none

  // Returns the time of a pass whose sequences are spread evenly over the groups of attention. Without groups the same
  // as forward_ns().
  TimeNs spread_ns(const ForwardShape& shape, std::uint64_t steps) const;
  // Returns the share of that time that comes from measured operators, in 2^-32. Excludes a draft model's work.
  std::uint64_t measured_x2_32(const ForwardShape& shape) const;

  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override;
  TimeNs joint_step_ns(std::span<const ForwardShape> groups) const override;
  TransferCost transfer(const Plan& plan) const override;
  TransferCost storage(const StorageWork& work) const override;
  TransferCost hand_over(const HandOverWork& work) const override;
  TimeNs broadcast_ns(Bytes bytes) const override;

  const RooflineCoefficients& coefficients() const { return c_; }

  // Returns the expected number of distinct experts that `tokens` tokens touch, in 2^-32.
  std::uint64_t distinct_experts_x2_32(Tokens tokens) const;

 private:
  // The work of all groups of attention together, and that of each group that can be the slowest.
  struct Pass {
    ForwardShape all;
    std::span<const ForwardShape> groups;
  };
  // The largest value of a group.
  template <typename Of>
  static auto largest(const Pass& pass, Of of);

  Wide128 all_fs(const Pass& pass, std::uint64_t steps) const;
  Wide128 linear_fs(Tokens tokens, Tokens of_group, std::uint64_t yielding) const;
  Wide128 prefill_fs(const ForwardShape& shape) const;
  Wide128 pass_fs(const Pass& pass, std::uint64_t steps) const;
  Wide128 gpu_fs(const Pass& pass, std::uint64_t steps) const;
  Wide128 decode_steps_fs(const Pass& pass, std::uint64_t steps, Wide128 least) const;
  Wide128 both_fs(Wide128 computing, Wide128 reading) const;
  Wide128 attention_fs(const ForwardShape& shape, std::uint64_t steps) const;
  Wide128 state_step_fs(std::uint64_t sequences) const;
  Wide128 drafting_fs(const Pass& pass, std::uint64_t steps) const;

  RooflineCoefficients c_;
  std::shared_ptr<const RooflineCost> draft_;  // null = none
  std::shared_ptr<const OperatorCost> operators_;
  bool serves_ = false;
  ServingTimes serving_;
  std::uint64_t layers_ = 0;
  std::vector<std::uint64_t> distinct_;  // by tokens, up to the number at which nearly all experts are touched
};

}  // namespace kvtwin

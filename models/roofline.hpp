// The cost model: a roofline over the geometry of a model and the figures of a machine, for passes; move_cost.hpp has
// the transfers. All answers are integers. See docs/internals/simgrid.md, "Cost model".
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
//                projection of cached latents. Sliding-window layers see min(pairs, new tokens * window). Few new
//                tokens fill the kernel's tiles badly: pairs count 1 + attention_query_tokens / new tokens of a
//                sequence
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
//   states       a state that is copied before its sequence begins is read and written once
// The pass takes the sum of these times, because layers run one after another. In a mixed batch, prefill and decode
// share the linear part. Step j (1 ..) of a burst reads decode contexts of context + j * sequences tokens; prefill
// happens only in step 1. Not modelled: expert-parallel all-to-all without data parallelism of attention, pipeline
// parallelism, tile quantisation of kernels.
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
#include "models/move_cost.hpp"
#include "models/serving_times.hpp"
#include "models/wide.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

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
  std::uint64_t query_tokens = 0;        // added to the new tokens of a sequence in a prefill's pairs
  std::uint64_t serial_x2_32 = 0;        // share of attention's shorter part that is not hidden, in 2^-32
  std::uint64_t window_tokens = 0;       // 0 = no window layers
  std::uint64_t reduce_token_fs = 0;     // all-reduce, or exchange with the experts, per token
  std::uint64_t group_reduce_fs = 0;     // all-reduce within a group, per token of the group
  std::uint32_t attention_dp = 1;        // groups
  MoveCoefficients moves;
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
  void serve_with(const ServingTimes& times, const ModelGeometry& model, const HardwareSpec& hardware,
                  std::uint32_t tp = 1);
  const OperatorCost* operators() const { return operators_.get(); }  // null = none

  // Returns the time of a pass whose sequences are spread evenly over the groups of attention. Without groups the same
  // as forward_ns().
  TimeNs spread_ns(const ForwardShape& shape, std::uint64_t steps) const;
  // Returns the share of that time that comes from measured operators, in 2^-32. Excludes a draft model's work.
  std::uint64_t measured_x2_32(const ForwardShape& shape) const;

  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override;
  TimeNs joint_step_ns(std::span<const ForwardShape> groups) const override;
  TransferCost transfer(const Plan& plan) const override { return moves_.transfer(plan); }
  TransferCost storage(const StorageWork& work) const override { return moves_.storage(work); }
  TransferCost hand_over(const HandOverWork& work) const override { return moves_.hand_over(work); }
  TimeNs broadcast_ns(Bytes bytes) const override { return moves_.broadcast_ns(bytes); }

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
  // Returns the pairs of a prefill in full attention, with the engine's factor on those with the cached prefix.
  std::uint64_t counted_pairs(const ForwardShape& shape) const;
  // Returns `pairs` with those that the tiles of few new tokens leave empty.
  Wide128 tiled_pairs(const ForwardShape& shape, Wide128 pairs) const;
  Wide128 prefill_fs(const ForwardShape& shape) const;
  Wide128 pass_fs(const Pass& pass, std::uint64_t steps) const;
  Wide128 gpu_fs(const Pass& pass, std::uint64_t steps) const;
  Wide128 decode_steps_fs(const Pass& pass, std::uint64_t steps, Wide128 least) const;
  Wide128 both_fs(Wide128 computing, Wide128 reading) const;
  Wide128 attention_fs(const ForwardShape& shape, std::uint64_t steps) const;
  Wide128 state_step_fs(std::uint64_t sequences) const;
  Wide128 drafting_fs(const Pass& pass, std::uint64_t steps) const;

  RooflineCoefficients c_;
  MoveCost moves_;
  std::shared_ptr<const RooflineCost> draft_;  // null = none
  std::shared_ptr<const OperatorCost> operators_;
  bool serves_ = false;
  ServingTimes serving_;
  std::uint64_t launched_ = 0;           // kernels of a pass without a CUDA graph
  std::vector<std::uint64_t> distinct_;  // by tokens, up to the number at which nearly all experts are touched
};

}  // namespace kvtwin

// The cost of a model's passes as the sum of measured operators (models/operator_table). The roofline fills each part
// that the table lacks.
//
// Per layer of one rank:
//   linear       matrix products: query, key and value; output; feed-forward; MLA's projections; the router. Also the
//                experts, and 2 all-reduces. The output head, once, for tokens that a pass yields. Two norms, rotary
//                embedding and the activation at the rate of memory: they are in no table
//   prefill      full attention at (sequences, query-key pairs per sequence). The table has prefills without a cached
//                prefix. A prefill with a prefix takes the time of one without that has as many pairs, but at least
//                the roofline's time to read the KV. A window layer: as many new tokens plus the window
//   decode       attention at (sequences, mean KV tokens per sequence)
//   sparse       attention of DSA with all of its projections, which are then not in the linear part: prefill at
//                (sequences, tokens per sequence), plus the indexer's roofline for pairs with a cached prefix; decode
//                as above, where each verified token counts as a sequence, because it reads tokens of its own
//   state        layers of a gated delta net: prefill at (sequences, tokens per sequence), decode at sequences
// Sequences of a batch count with their mean length. Verification of draft tokens costs as many times more than
// one token as in the roofline. Not measured: sampling, gaps between kernels, host time (models/serving_times.hpp).
//
// With data parallelism of attention, the products of attention, dense feed-forward and shared experts, and the norms
// are over the tokens of a group, on tp / D ranks. An exchange with the experts takes the time of the table's
// all-to-all of a group's tokens, else that of an all-reduce of as many bytes (models/roofline.hpp). TensorRT-LLM
// quantises the tokens before it sends them to the experts. The all-to-all's lattice may be of another number of
// experts. Of DeepEP's kernels the mode of the experts takes its own. TensorRT-LLM has an all-to-all if there are more
// ranks than experts per token; without a lattice of its own kernels it takes the faster one of DeepEP's.
//
// An all-reduce between nodes is not in the table. It takes the roofline's time, and as much longer as DeepEP's way to
// the experts and back with one token takes longer between the nodes than within one.
//
// A part is measured if the table has its lattice: the products' element type; attention's element type, head size,
// window, heads and KV heads of one rank; DSA's projections' type, hidden size; the experts' shape at this tp and ep;
// the ranks of the all-reduce. A missing lattice of the experts at this ep is that of ep 1; of an element type, the
// nearest type's; of the kernels for wide expert parallelism, that of the plain ones.
//
// Units: femtoseconds, 128-bit integers. Monotone in tokens, pairs and steps, because every lattice is.
// Cost: the linear part is one curve over tokens, computed once. A pass costs O(log points); a burst of decode steps
// costs O(points of the KV axis), however many steps it has.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/operator_table.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

// Time over a number of tokens: linear between knots, in proportion beyond the last.
class OperatorCurve {
 public:
  void add_knot(std::uint64_t tokens, Wide128 fs);  // in rising order; fs never falls
  Wide128 at_fs(std::uint64_t tokens) const;        // 0 tokens take no time

 private:
  std::vector<std::uint64_t> tokens_;
  std::vector<Wide128> fs_;
};

// Attention of `layers` equal layers.
struct MeasuredAttention {
  OperatorLattice context, generation;
  std::uint64_t layers = 0;  // 0 = not measured
  Tokens window = 0;         // 0 = all tokens
  bool sparse = false;       // DSA with its projections: `context` is over tokens, not pairs

  Wide128 prefill_fs(const ForwardShape& shape) const;
  // Returns the sum over j = 1 .. steps of the time at (context_x1024 + j * growth_x1024) / 1024 KV tokens in total.
  Wide128 decode_fs(std::uint64_t sequences, Wide128 context_x1024, std::uint64_t growth_x1024,
                    std::uint64_t steps) const;
};

// Layers of a gated delta net.
struct MeasuredState {
  OperatorLattice context, generation;
  std::uint64_t layers = 0;  // 0 = not measured

  Wide128 prefill_fs(const ForwardShape& shape) const;
  Wide128 step_fs(std::uint64_t sequences) const;  // one decode step
};

class OperatorCost {
 public:
  // `ep`: experts are split over ep groups of tp / ep ranks; divides tp. `attention_dp`: groups of attention; divides
  // tp. `experts`: the table's family of the experts' lattices.
  // Errors: ModelError if attention's ranks do not divide the heads.
  OperatorCost(const ModelGeometry& model, const HardwareSpec& hardware, std::uint32_t tp, std::uint32_t ep,
               const OperatorTable& table, std::uint32_t attention_dp = 1, const std::string& experts = "moe");

  // `of_group`: the tokens whose attention one group has; not read for one group.
  Wide128 linear_fs(Tokens tokens, std::uint64_t yielding, Tokens of_group = 0) const;
  Wide128 linear_measured_fs(Tokens tokens, std::uint64_t yielding, Tokens of_group = 0) const;  // the measured part
  // Returns the number of collective operations of a pass whose latency is not in the linear part.
  std::uint64_t unmeasured_collectives() const { return unmeasured_collectives_; }
  // Returns the time of the host for a kernel that is launched without a CUDA graph; 0 = not measured.
  std::uint64_t launch_ns() const { return launch_ns_; }

  const MeasuredAttention& full() const { return full_; }
  const MeasuredAttention& window() const { return window_; }
  const MeasuredState& state() const { return state_; }
  const std::vector<std::string>& missing() const { return missing_; }  // lattices that the table lacks, by name

 private:
  OperatorCurve linear_, linear_measured_, head_, head_measured_;
  OperatorCurve group_, group_measured_;  // over the tokens of a group; without knots for one group
  MeasuredAttention full_, window_;
  MeasuredState state_;
  std::uint64_t unmeasured_collectives_ = 0, launch_ns_ = 0;
  std::vector<std::string> missing_;
};

}  // namespace kvtwin

#include "models/roofline.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "models/operator_cost.hpp"
#include "models/rounding.hpp"

namespace kvtwin {

namespace {

using Wide = Wide128;

constexpr std::uint64_t kExpertOne = std::uint64_t{1} << 32;
constexpr std::uint64_t kSerialOne = std::uint64_t{1} << 32;

constexpr Wide kMaxWide = kMaxWide128;

Wide sum(Wide a, Wide b) { return saturated_sum(a, b); }
Wide product(Wide a, Wide b) { return saturated_product(a, b); }

TimeNs to_ns(Wide femtoseconds) {
  const Wide ns = femtoseconds / kFsPerNs + (femtoseconds % kFsPerNs == 0 ? 0 : 1);
  constexpr TimeNs kMaxTimeNs = std::numeric_limits<TimeNs>::max();
  return ns > static_cast<Wide>(kMaxTimeNs) ? kMaxTimeNs : static_cast<TimeNs>(ns);
}

double as_double(std::uint64_t value) { return static_cast<double>(value); }

std::uint64_t expert_layers(const ModelGeometry& m) {
  return static_cast<std::uint64_t>(std::ranges::count_if(
      m.layers, [](const LayerGeometry& layer) { return layer.feed_forward == FeedForwardKind::experts; }));
}

// Two parts at the same time: the longer one, plus the share of the shorter one that is not hidden.
Wide overlapped(Wide a, Wide b, std::uint64_t serial_x2_32) {
  const Wide shorter = std::min(a, b);
  const Wide unhidden = shorter > (kMaxWide >> 33) ? shorter : shorter * serial_x2_32 / kSerialOne;
  return sum(std::max(a, b), unhidden);
}

void set_linear(RooflineCoefficients& c, const ModelGeometry& m, const HardwareSpec& hw, double tp) {
  const bool grouped = c.attention_dp > 1;
  const double group = tp / c.attention_dp;
  const std::uint64_t of_groups = grouped ? m.group_parameters : 0;
  const double expert_flops = 2 * as_double(m.expert_parameters) * m.experts_per_token;
  const double head_flops = 2 * as_double(m.head_parameters);
  const double other_flops = 2 * as_double(m.active_parameters) - expert_flops - head_flops - 2 * as_double(of_groups);
  const double expert_s = expert_flops / (tp * hw.gemm_fraction * matrix_peak(hw, m.expert_format));
  const double other_s = other_flops / (tp * hw.gemm_fraction * matrix_peak(hw, m.attention_format));
  c.linear_token_fs = femtoseconds(expert_s + other_s, 1);
  c.group_token_fs =
      femtoseconds(2 * as_double(of_groups), group * hw.gemm_fraction * matrix_peak(hw, m.attention_format));
  c.head_sequence_fs = femtoseconds(head_flops, tp * hw.gemm_fraction * hw.peak_bf16);
  const double bandwidth = tp * hw.memory_bandwidth * hw.memory_fraction;
  // The input embedding is a look-up of one row. A tied embedding is read as the output head.
  const Bytes looked_up = m.tied_embedding ? 0 : m.embedding_bytes;
  const Bytes of_group = grouped ? m.group_weight_bytes : 0;
  const Bytes read = m.weight_bytes - looked_up - m.experts * m.expert_weight_bytes - of_group;
  c.weights_fs =
      femtoseconds(as_double(read), bandwidth) + femtoseconds(as_double(of_group) * c.attention_dp, bandwidth);
  c.expert_fs = femtoseconds(as_double(m.expert_weight_bytes), bandwidth);
  c.experts = m.experts;
  c.experts_per_token = m.experts_per_token;
}

void set_attention(RooflineCoefficients& c, const ModelGeometry& m, const HardwareSpec& hw, std::uint32_t tp) {
  const double flops = tp * hw.peak_bf16 * hw.attention_fraction;
  const double bandwidth = hw.memory_bandwidth * hw.memory_fraction;
  const double full_bytes = as_double(m.full_read_bytes(tp)), window_bytes = as_double(m.window_read_bytes(tp));
  c.prefill_pair_fs = femtoseconds(as_double(m.full_attention.prefill_pair_flops), flops);
  c.prefill_read_fs = femtoseconds(full_bytes, bandwidth);
  c.prefill_window_pair_fs = femtoseconds(as_double(m.window_attention.prefill_pair_flops), flops);
  c.prefill_window_read_fs = femtoseconds(window_bytes, bandwidth);
  c.prefill_context_fs = femtoseconds(as_double(m.context_projection_flops), tp * hw.peak_bf16 * hw.gemm_fraction);
  c.decode_query_fs = femtoseconds(as_double(m.full_attention.decode_token_flops), flops);
  c.decode_window_query_fs = femtoseconds(as_double(m.window_attention.decode_token_flops), flops);
  c.query_tokens = round_half_up(hw.attention_query_tokens);
  c.serial_x2_32 = round_half_up(hw.attention_serial * 4294967296.0);
  const auto a_token = [&](std::uint64_t query, std::uint64_t read) {
    constexpr Wide kMaxCoefficient = std::numeric_limits<std::uint64_t>::max();
    return static_cast<std::uint64_t>(std::min(kMaxCoefficient, overlapped(query, read, c.serial_x2_32)));
  };
  c.decode_token_fs = a_token(c.decode_query_fs, c.prefill_read_fs);
  c.decode_window_token_fs = a_token(c.decode_window_query_fs, c.prefill_window_read_fs);
  c.decode_sequence_fs = femtoseconds(as_double(m.state_bytes) / tp, bandwidth);
  c.window_tokens = m.attention_window;
}

// Returns the sum over j = 1 .. steps of (context + j * sequences).
Wide sum_contexts(Wide context, std::uint64_t sequences, std::uint64_t steps) {
  const Wide grown = product(Wide{steps} * (Wide{steps} + 1) / 2, sequences);
  return sum(product(context, steps), grown);
}

// Returns the same sum with each term at most `max_context`.
Wide sum_capped_contexts(Wide context, std::uint64_t sequences, std::uint64_t steps, Wide max_context) {
  if (sequences == 0) return product(std::min(context, max_context), steps);
  const Wide room = context < max_context ? (max_context - context) / sequences : 0;
  const auto below = static_cast<std::uint64_t>(std::min<Wide>(steps, room));
  return sum(sum_contexts(context, sequences, below), product(max_context, steps - below));
}

}  // namespace

double matrix_peak(const HardwareSpec& hw, const WeightFormat& format) {
  const bool fp8 = format.name == "fp8" || (format.name == "mxfp4" && hw.peak_fp4 > 0);
  if (format.name == "nvfp4" && hw.peak_fp4 > 0) return hw.peak_fp4;
  if (fp8 && hw.peak_fp8 > 0) return hw.peak_fp8;
  return hw.peak_bf16;  // other formats are converted to bf16 first
}

std::uint64_t reduces_of_group(const ModelGeometry& m) { return 2 * m.layers.size() - expert_layers(m); }

std::uint64_t collectives_of(const ModelGeometry& m, std::uint32_t tp, std::uint32_t attention_dp) {
  if (tp == 1) return 0;
  if (attention_dp == 1) return 2 * m.layers.size();
  return 2 * expert_layers(m) + (tp > attention_dp ? reduces_of_group(m) : 0);
}

double exchanged_layers(const ModelGeometry& m, std::uint32_t tp) {
  return as_double(expert_layers(m)) * std::min(1.0, static_cast<double>(m.experts_per_token) / tp);
}

ForwardShape group_share(const ForwardShape& shape, std::uint32_t groups) {
  if (groups == 1) return shape;
  ForwardShape share = shape;
  const auto most = [groups](std::uint32_t sequences) {
    return sequences / groups + (sequences % groups != 0 ? 1 : 0);
  };
  const auto part = [](std::uint64_t all, std::uint32_t of_group, std::uint32_t sequences) {
    if (sequences == 0) return all;
    return static_cast<std::uint64_t>((product(all, of_group) + sequences - 1) / sequences);
  };
  share.prefill_sequences = most(shape.prefill_sequences);
  share.copied_states = most(shape.copied_states);
  share.prefill_tokens = part(shape.prefill_tokens, share.prefill_sequences, shape.prefill_sequences);
  share.prefill_pairs = part(shape.prefill_pairs, share.prefill_sequences, shape.prefill_sequences);
  share.prefill_context_tokens = part(shape.prefill_context_tokens, share.prefill_sequences, shape.prefill_sequences);
  share.decode_sequences = most(shape.decode_sequences);
  share.decode_context_tokens = part(shape.decode_context_tokens, share.decode_sequences, shape.decode_sequences);
  share.decode_yield_x1024 = part(shape.decode_yield_x1024, share.decode_sequences, shape.decode_sequences);
  return share;
}

RooflineCoefficients coefficients_of(const ModelGeometry& m, const HardwareSpec& hw, std::uint32_t tp,
                                     std::uint32_t attention_dp) {
  RooflineCoefficients c;
  const std::uint32_t group = tp / attention_dp;
  (void)m.shape(group, 1);  // refuses a number of ranks that does not divide the heads
  c.attention_dp = attention_dp;
  set_linear(c, m, hw, tp);
  set_attention(c, m, hw, group);
  c.step_fs = femtoseconds(hw.pass_overhead, 1);
  if (tp > 1) {
    const auto token_fs = [&](double layers, double ranks) {
      const double bytes = layers * (2.0 * (ranks - 1) / ranks) * m.hidden * m.dtype_bytes;
      return femtoseconds(bytes, exchange_rate(hw, static_cast<std::uint32_t>(ranks)));
    };
    const double layers = as_double(m.layers.size());
    c.step_fs += femtoseconds(as_double(collectives_of(m, tp, attention_dp)) * hw.peer_latency, 1);
    c.reduce_token_fs = token_fs(attention_dp == 1 ? 2.0 * layers : exchanged_layers(m, tp), tp);
    if (attention_dp > 1) c.group_reduce_fs = token_fs(as_double(reduces_of_group(m)), group);
  }
  c.moves = move_coefficients_of(hw, group);
  return c;
}

RooflineCost::RooflineCost(const RooflineCoefficients& coefficients) : c_(coefficients), moves_(coefficients.moves) {
  c_.step_fs = std::max(c_.step_fs, kFsPerNs);
  const std::uint64_t all = c_.experts * kExpertOne;
  const std::uint64_t picked = std::min(c_.experts_per_token, c_.experts) * kExpertOne;
  if (picked == 0) return;
  distinct_.push_back(0);
  // The table ends where all but 1/1024 of the experts are touched; from there on, the answer is `all`.
  while (all - distinct_.back() > all / 1024 && distinct_.size() < 65536) {
    const std::uint64_t before = distinct_.back();
    distinct_.push_back(before + picked - static_cast<std::uint64_t>(Wide{picked} * before / all));
  }
}

std::uint64_t RooflineCost::distinct_experts_x2_32(Tokens tokens) const {
  if (distinct_.empty()) return 0;
  return tokens < distinct_.size() ? distinct_[tokens] : c_.experts * kExpertOne;
}

// `of_group`: the part of the tokens whose attention one group has; equal to `tokens` for one group.
Wide RooflineCost::linear_fs(Tokens tokens, Tokens of_group, std::uint64_t yielding) const {
  if (tokens == 0) return 0;
  if (operators_ != nullptr) return operators_->linear_fs(tokens, yielding, of_group);
  const Wide products = sum(product(c_.linear_token_fs, tokens), product(c_.group_token_fs, of_group));
  const Wide compute = sum(products, product(c_.head_sequence_fs, yielding));
  const Wide experts = Wide{c_.expert_fs} * distinct_experts_x2_32(tokens) / kExpertOne;
  const Wide exchanges = sum(product(c_.reduce_token_fs, tokens), product(c_.group_reduce_fs, of_group));
  return sum(std::max(compute, c_.weights_fs + experts), exchanges);
}

Wide RooflineCost::both_fs(Wide computing, Wide reading) const {
  return overlapped(computing, reading, c_.serial_x2_32);
}

Wide RooflineCost::tiled_pairs(const ForwardShape& s, Wide pairs) const {
  if (c_.query_tokens == 0 || s.prefill_tokens == 0) return pairs;
  return sum(pairs, product(pairs, product(c_.query_tokens, s.prefill_sequences)) / s.prefill_tokens);
}

std::uint64_t RooflineCost::counted_pairs(const ForwardShape& s) const {
  if (serving_.prefix_x1024 == 1024 || s.prefill_context_tokens == 0) return s.prefill_pairs;
  const Wide each = s.prefill_tokens / std::max<std::uint64_t>(1, s.prefill_sequences);
  const Wide own = product(product(each, each + 1) / 2, s.prefill_sequences);
  if (s.prefill_pairs <= own) return s.prefill_pairs;
  const Wide counted = sum(own, product(s.prefill_pairs - own, serving_.prefix_x1024) / 1024);
  return static_cast<std::uint64_t>(std::min<Wide>(counted, std::numeric_limits<std::uint64_t>::max()));
}

Wide RooflineCost::prefill_fs(const ForwardShape& shape) const {
  ForwardShape s = shape;
  s.prefill_pairs = counted_pairs(shape);
  const Wide all = Wide{s.prefill_context_tokens} + s.prefill_tokens;
  const Wide reading = product(c_.prefill_read_fs, all);
  Wide total = both_fs(product(c_.prefill_pair_fs, tiled_pairs(s, s.prefill_pairs)), reading);
  const bool sparse = operators_ != nullptr && operators_->full().sparse;
  if (sparse) {
    // The indexer's pairs with the cached prefix, which the lattice lacks.
    const Wide each = s.prefill_tokens / std::max<std::uint64_t>(1, s.prefill_sequences);
    const Wide own = product(product(each, each + 1) / 2, s.prefill_sequences);
    const Wide cached = s.prefill_pairs > own ? s.prefill_pairs - own : 0;
    total = sum(operators_->full().prefill_fs(s), product(c_.prefill_pair_fs, cached));
  } else if (operators_ != nullptr && operators_->full().layers != 0) {
    total = operators_->full().prefill_fs(s);
    if (s.prefill_context_tokens != 0) total = std::max(total, reading);
  }
  total = sum(total, product(c_.prefill_context_fs, s.prefill_context_tokens));
  total = sum(total, operators_ != nullptr && operators_->state().layers != 0
                         ? operators_->state().prefill_fs(s)
                         : product(c_.decode_sequence_fs, s.prefill_sequences));
  if (c_.window_tokens == 0 || sparse) return total;
  s.prefill_pairs = shape.prefill_pairs;
  if (operators_ != nullptr && operators_->window().layers != 0) return sum(total, operators_->window().prefill_fs(s));
  const Wide window = c_.window_tokens;
  const Wide seen = std::min<Wide>(s.prefill_pairs, window * s.prefill_tokens);
  const Wide read = std::min<Wide>(s.prefill_context_tokens, window * s.prefill_sequences) + s.prefill_tokens;
  return sum(total, both_fs(product(c_.prefill_window_pair_fs, tiled_pairs(s, seen)),
                            product(c_.prefill_window_read_fs, read)));
}

TimeNs RooflineCost::forward_ns(const ForwardShape& shape, std::uint64_t steps) const {
  return to_ns(all_fs({shape, std::span(&shape, 1)}, std::max<std::uint64_t>(1, steps)));
}

TimeNs RooflineCost::joint_step_ns(std::span<const ForwardShape> groups) const {
  ForwardShape all;
  for (const ForwardShape& group : groups) {
    all.prefill_tokens += group.prefill_tokens;
    all.prefill_pairs += group.prefill_pairs;
    all.prefill_context_tokens += group.prefill_context_tokens;
    all.prefill_sequences += group.prefill_sequences;
    all.decode_sequences += group.decode_sequences;
    all.decode_context_tokens += group.decode_context_tokens;
    all.draft_tokens = std::max(all.draft_tokens, group.draft_tokens);
    all.decode_yield_x1024 += group.decode_yield_x1024;
    all.copied_states += group.copied_states;
  }
  return to_ns(all_fs({all, groups}, 1));
}

TimeNs RooflineCost::spread_ns(const ForwardShape& shape, std::uint64_t steps) const {
  const ForwardShape own = group_share(shape, c_.attention_dp);
  return to_ns(all_fs({shape, std::span(&own, 1)}, std::max<std::uint64_t>(1, steps)));
}

template <typename Of>
auto RooflineCost::largest(const Pass& pass, Of of) {
  auto most = of(pass.groups.front());
  for (const ForwardShape& group : pass.groups.subspan(1)) most = std::max(most, of(group));
  return most;
}

Wide RooflineCost::all_fs(const Pass& pass, std::uint64_t n) const {
  return draft_ == nullptr ? pass_fs(pass, n) : sum(pass_fs(pass, n), draft_->drafting_fs(pass, n));
}

Wide RooflineCost::pass_fs(const Pass& pass, std::uint64_t n) const {
  if (!serves_) return gpu_fs(pass, n);
  const Wide sequences =
      largest(pass, [](const ForwardShape& own) { return Wide{own.prefill_sequences} + own.decode_sequences; });
  const Wide host = (serving_.step_ns + product(serving_.sequence_ns, sequences)) * kFsPerNs;
  const Wide schedule = Wide{serving_.schedule_ns} * kFsPerNs;
  const Wide launches = product(Wide{serving_.launch_ns} * kFsPerNs, launched_);
  const Wide added = serving_.overlap ? host : sum(host, schedule);
  const bool prefills = pass.all.prefill_tokens != 0;
  // The least time of a step, besides what is added to it.
  const auto least = [&](bool graph) { return std::max(graph ? Wide{0} : launches, serving_.overlap ? schedule : 0); };
  if (!prefills) return sum(decode_steps_fs(pass, n, least(serving_.graphs)), product(added, n));
  const Wide alone = gpu_fs(pass, 1);  // only the first step has the prefill
  const Wide first = product(alone, serving_.prefill_x1024) / 1024;
  const Wide rest = std::max(gpu_fs(pass, n) - alone, product(least(serving_.graphs), n - 1));
  return sum(std::max(first, least(false)), sum(rest, product(added, n)));
}

// Returns the time of `n` decode steps of which each takes at least `least`. A step takes no less than the step before
// it, so the steps that take `least` are the first ones.
Wide RooflineCost::decode_steps_fs(const Pass& pass, std::uint64_t n, Wide least) const {
  const auto until = [&](std::uint64_t steps) { return steps == 0 ? Wide{0} : gpu_fs(pass, steps); };
  const Wide all = until(n);
  if (until(1) >= least) return all;
  if (all - until(n - 1) <= least) return product(least, n);
  std::uint64_t low = 1, high = n;  // step `low` is shorter than `least`, step `high` is not
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (until(middle) - until(middle - 1) < least ? low : high) = middle;
  }
  return sum(product(least, low), all - until(low));
}

Wide RooflineCost::gpu_fs(const Pass& pass, std::uint64_t n) const {
  const std::uint64_t verified = std::uint64_t{pass.all.draft_tokens} + 1;  // tokens of a sequence in a decode step
  const std::uint64_t decoded = pass.all.decode_sequences * verified;
  const Tokens new_tokens = std::min(pass.all.prefill_tokens, std::numeric_limits<Tokens>::max() - decoded);
  const std::uint64_t own_decoded =
      largest(pass, [&](const ForwardShape& own) { return own.decode_sequences * verified; });
  const std::uint64_t own_tokens = largest(pass, [&](const ForwardShape& own) {
    return std::min(own.prefill_tokens, new_tokens) + own.decode_sequences * verified;
  });

  Wide total = product(c_.step_fs, n);
  // A state is read and written.
  const auto copied = [](const ForwardShape& own) { return Wide{own.copied_states}; };
  total = sum(total, product(2 * Wide{c_.decode_sequence_fs}, largest(pass, copied)));
  total = sum(total, linear_fs(new_tokens + decoded, own_tokens, pass.all.prefill_sequences + decoded));
  total = sum(total, product(linear_fs(decoded, own_decoded, decoded), n - 1));
  return sum(total, largest(pass, [&](const ForwardShape& own) {
               return sum(sum(prefill_fs(own), product(state_step_fs(own.decode_sequences), n)), attention_fs(own, n));
             }));
}

Wide RooflineCost::state_step_fs(std::uint64_t sequences) const {
  if (operators_ != nullptr && operators_->state().layers != 0) return operators_->state().step_fs(sequences);
  return product(c_.decode_sequence_fs, sequences);
}

// Returns the attention time of `steps` decode steps. Each step reads its contexts once for all tokens that it
// verifies.
Wide RooflineCost::attention_fs(const ForwardShape& shape, std::uint64_t steps) const {
  const std::uint64_t decoding = shape.decode_sequences;
  const std::uint64_t verified = std::uint64_t{shape.draft_tokens} + 1;
  const bool drafted = shape.draft_tokens != 0;
  // Step j (1 ..) reads up to the last token that it verifies: context + (j - 1) * yield + verified tokens.
  const std::uint64_t growth = drafted ? shape.decode_yield_x1024 / 1024 : decoding;
  const Wide context = Wide{shape.decode_context_tokens} + Wide{decoding} * verified - growth;
  const Wide parts = product(shape.decode_yield_x1024 % 1024, Wide{steps} * (steps - 1) / 2) / 1024;
  const Wide seen = sum(sum_contexts(context, growth, steps), drafted ? parts : 0);
  const auto a_token = [&](std::uint64_t least, std::uint64_t query, std::uint64_t read) {
    return std::max(Wide{least}, both_fs(product(query, verified), read));
  };
  // A measured decode step verifies one token per sequence; more tokens cost as many times more as in the roofline.
  const auto measured = [&](const MeasuredAttention& attention, Wide roofline, Wide roofline_of_one) {
    const Wide growth_x1024 = drafted ? Wide{shape.decode_yield_x1024} : Wide{growth} * 1024;
    const Wide last = (Wide{shape.decode_context_tokens} + Wide{decoding} * verified) * 1024;
    const Wide first = last < growth_x1024 ? 0 : last - growth_x1024;
    const Wide one = attention.decode_fs(decoding, first, static_cast<std::uint64_t>(growth_x1024), steps);
    return !drafted || roofline_of_one == 0 ? one
                                            : scaled_by(one, std::max(roofline, roofline_of_one), roofline_of_one);
  };
  if (operators_ != nullptr && operators_->full().sparse) {
    const std::uint64_t growth_x1024 = drafted ? shape.decode_yield_x1024 : growth * 1024;
    const Wide last = (Wide{shape.decode_context_tokens} + Wide{decoding} * verified) * 1024;
    const Wide first = last < growth_x1024 ? 0 : last - growth_x1024;
    return operators_->full().decode_fs(decoding * verified, product(first, verified), growth_x1024 * verified, steps);
  }
  const Wide full = a_token(c_.decode_token_fs, c_.decode_query_fs, c_.prefill_read_fs);
  Wide total = operators_ != nullptr && operators_->full().layers != 0
                   ? measured(operators_->full(), full, c_.decode_token_fs)
                   : product(full, seen);
  if (c_.window_tokens == 0) return total;
  const Wide max_context = Wide{c_.window_tokens} * decoding;
  const Wide windowed = a_token(c_.decode_window_token_fs, c_.decode_window_query_fs, c_.prefill_window_read_fs);
  if (operators_ != nullptr && operators_->window().layers != 0) {
    return sum(total, measured(operators_->window(), windowed, c_.decode_window_token_fs));
  }
  return sum(total, product(windowed, sum_capped_contexts(context, growth, steps, max_context)));
}

// Called on the draft model: returns the time of its work in a pass of the target.
Wide RooflineCost::drafting_fs(const Pass& pass, std::uint64_t steps) const {
  Wide total = 0;
  const ForwardShape& all = pass.all;
  if (all.prefill_tokens != 0) {
    const Tokens most = largest(pass, [](const ForwardShape& own) { return own.prefill_tokens; });
    const Wide linear = linear_fs(all.prefill_tokens, most, all.prefill_sequences);
    const Wide attention = largest(pass, [&](const ForwardShape& own) { return prefill_fs(own); });
    total = sum(Wide{c_.step_fs}, sum(linear, attention));
  }
  if (all.decode_sequences == 0 || all.draft_tokens == 0) return total;
  const std::uint64_t most = largest(pass, [](const ForwardShape& own) { return std::uint64_t{own.decode_sequences}; });
  const Wide linear = linear_fs(all.decode_sequences, most, all.decode_sequences);
  const Wide step = sum(c_.step_fs, sum(linear, state_step_fs(most)));
  const Wide attention = largest(pass, [&](const ForwardShape& own) {
    const std::uint64_t decoding = own.decode_sequences;
    ForwardShape one_token_steps = own;  // a draft verifies no tokens: one token per step
    one_token_steps.draft_tokens = 0;
    const std::uint64_t yield = std::max<std::uint64_t>(decoding, own.decode_yield_x1024 / 1024);
    const Wide grown = product(yield - decoding, Wide{steps} * (steps - 1) / 2);
    return sum(attention_fs(one_token_steps, steps), product(c_.decode_token_fs, grown));
  });
  return sum(total, product(sum(product(step, steps), attention), all.draft_tokens));
}

void RooflineCost::serve_with(const ServingTimes& times, const ModelGeometry& model, const HardwareSpec& hardware,
                              std::uint32_t tp) {
  serves_ = true;
  serving_ = times;
  const bool blackwell = hardware.peak_fp4 > 0;
  const bool pieces = times.engine == ServingEngine::vllm && times.graphs;  // their collectives are in the graphs
  launched_ = launched_kernels(model, times, blackwell || times.engine == ServingEngine::trtllm) +
              (pieces ? 0 : collectives_of(model, tp, c_.attention_dp));
  c_.step_fs -= std::min(c_.step_fs, femtoseconds(hardware.pass_overhead, 1));
  const bool projected = operators_ != nullptr && operators_->full().sparse;
  c_.step_fs = std::max(kFsPerNs, c_.step_fs + small_kernels(model, projected) * times.kernel_ns * kFsPerNs);
}

void RooflineCost::measure_with(const OperatorTable& table, const ModelGeometry& model, const HardwareSpec& hardware,
                                std::uint32_t tp, std::uint32_t ep, const std::string& experts) {
  operators_ = std::make_shared<const OperatorCost>(model, hardware, tp, ep, table, c_.attention_dp, experts);
  const std::uint64_t latencies =
      femtoseconds(as_double(operators_->unmeasured_collectives()) * hardware.peer_latency, 1);
  c_.step_fs = std::max(kFsPerNs, femtoseconds(hardware.pass_overhead, 1) + latencies);
}

std::uint64_t RooflineCost::measured_x2_32(const ForwardShape& shape) const {
  const ForwardShape own = group_share(shape, c_.attention_dp);
  const Wide all = pass_fs({shape, std::span(&own, 1)}, 1);
  if (operators_ == nullptr || all == 0) return 0;
  const std::uint64_t decoded = std::uint64_t{shape.decode_sequences} * (std::uint64_t{shape.draft_tokens} + 1);
  const std::uint64_t own_decoded = std::uint64_t{own.decode_sequences} * (std::uint64_t{shape.draft_tokens} + 1);
  Wide part = operators_->linear_measured_fs(shape.prefill_tokens + decoded, shape.prefill_sequences + decoded,
                                             own.prefill_tokens + own_decoded);
  for (const MeasuredAttention* attention : {&operators_->full(), &operators_->window()}) {
    if (attention->layers == 0) continue;
    part = sum(part, attention->prefill_fs(own));
    part = sum(part, attention->decode_fs(own.decode_sequences, Wide{own.decode_context_tokens} * 1024,
                                          std::uint64_t{own.decode_sequences} * 1024, 1));
  }
  if (operators_->state().layers != 0) {
    part = sum(part, operators_->state().prefill_fs(own));
    part = sum(part, operators_->state().step_fs(own.decode_sequences));
  }
  return static_cast<std::uint64_t>(scaled_by(std::min(part, all), kSerialOne, all));
}

void RooflineCost::set_draft(const ModelGeometry& draft, const HardwareSpec& hardware, std::uint32_t tp) {
  HardwareSpec within_a_pass = hardware;
  within_a_pass.pass_overhead = 0;
  auto cost = std::make_shared<RooflineCost>(draft, within_a_pass, tp, c_.attention_dp);
  draft_ = std::move(cost);
}

std::string to_string(const RooflineCoefficients& c) {
  std::string text;
  const auto line = [&](std::string_view name, std::uint64_t value, std::string_view unit) {
    text.append(name).append(" = ").append(std::to_string(value)).append(" ").append(unit).append("\n");
  };
  line("step", c.step_fs, "fs");
  line("linear_token", c.linear_token_fs, "fs/token");
  line("head_sequence", c.head_sequence_fs, "fs/sequence");
  line("weights", c.weights_fs, "fs");
  line("expert", c.expert_fs, "fs/expert");
  line("experts", c.experts, "experts");
  line("experts_per_token", c.experts_per_token, "experts/token");
  line("prefill_pair", c.prefill_pair_fs, "fs/pair");
  line("prefill_read", c.prefill_read_fs, "fs/token");
  line("prefill_window_pair", c.prefill_window_pair_fs, "fs/pair");
  line("prefill_window_read", c.prefill_window_read_fs, "fs/token");
  line("prefill_context", c.prefill_context_fs, "fs/token");
  line("decode_token", c.decode_token_fs, "fs/token");
  line("decode_window_token", c.decode_window_token_fs, "fs/token");
  line("decode_query", c.decode_query_fs, "fs/token");
  line("decode_window_query", c.decode_window_query_fs, "fs/token");
  line("decode_sequence", c.decode_sequence_fs, "fs/sequence");
  if (c.query_tokens != 0) line("query_tokens", c.query_tokens, "tokens");
  line("attention_serial", c.serial_x2_32, "2^-32");
  line("window", c.window_tokens, "tokens");
  line("reduce_token", c.reduce_token_fs, "fs/token");
  if (c.attention_dp > 1) {
    line("attention_dp", c.attention_dp, "groups");
    line("group_token", c.group_token_fs, "fs/token");
    line("group_reduce", c.group_reduce_fs, "fs/token");
  }
  return text + to_string(c.moves);
}

}  // namespace kvtwin

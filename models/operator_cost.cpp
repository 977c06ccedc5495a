#include "models/operator_cost.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "models/roofline.hpp"
#include "models/rounding.hpp"

namespace kvtwin {

namespace {

// A matrix product of one rank: tokens x k times k x n, `count` times in a pass.
struct MatrixProduct {
  std::uint64_t count = 0, n = 0, k = 0;
  const WeightFormat* format = nullptr;
  bool of_group = false;  // over the tokens of a group
};

bool is_half(std::string_view name) { return name == "bf16" || name == "fp16"; }

// Returns the names of an element type in the table, in the order of preference.
std::vector<std::string> table_types(const WeightFormat& format, bool fp4_units) {
  if (is_half(format.name)) return {"bf16"};
  if (format.name == "fp8") {
    constexpr std::uint64_t kWithoutBlocks = 8 * 1024;  // bits_x1024 of one scale per matrix or row
    if (format.bits_x1024 > kWithoutBlocks) return {"fp8_block", "fp8"};
    return {"fp8", "fp8_block"};
  }
  if (format.name == "mxfp4" && fp4_units) return {"w4a8_mxfp4_mxfp8", "w4a16_mxfp4"};
  if (format.name == "mxfp4") return {"w4a16_mxfp4", "w4a8_mxfp4_mxfp8"};
  if (format.name == "int4" || format.name == "int8") return {format.name + "_wo"};
  return {format.name};
}

// Returns the lattice "FAMILY TYPE REST" of the first type that has one; null if there is none.
const OperatorLattice* find_of_type(const OperatorTable& table, std::string_view family,
                                    const std::vector<std::string>& types, const std::string& rest) {
  for (const std::string& type : types) {
    const OperatorLattice* found = table.find(std::string(family) + " " + type + rest);
    if (found != nullptr) return found;
  }
  return nullptr;
}

// Returns how much longer DeepEP's way to the experts and back with one token takes over these ranks than over those of
// one node; 0 if it was not measured.
Wide128 between_nodes_fs(const OperatorTable& table, std::uint32_t ranks) {
  constexpr std::string_view kFamily = "exchange_low_latency ";
  const std::string after = " " + std::to_string(ranks);
  for (auto entry = table.lattices.lower_bound(kFamily); entry != table.lattices.end(); ++entry) {
    const std::string& name = entry->first;
    if (!name.starts_with(kFamily)) break;
    if (!name.ends_with(after)) continue;
    for (const char* const node : {" 4", " 8"}) {
      const OperatorLattice* const of_node = table.find(name.substr(0, name.size() - after.size()) + node);
      if (of_node == nullptr) continue;
      const Wide128 within = of_node->at_fs(1), between = entry->second.at_fs(1);
      return between > within ? between - within : 0;
    }
  }
  return 0;
}

std::uint64_t whole_fs(double fs) {
  constexpr double kMaxFs = 9.0e18;
  return fs > 0 ? static_cast<std::uint64_t>(std::min(fs, kMaxFs) + 0.5) : 0;
}

// The products of one model on one rank, and what the table and the roofline say about a pass with a number of tokens.
class LinearParts {
 public:
  // `projected`: the products of DSA's projections are in the lattice of the attention.
  LinearParts(const ModelGeometry& m, const HardwareSpec& hw, std::uint32_t tp, std::uint32_t ep,
              const OperatorTable& table, bool projected, std::uint32_t attention_dp, const std::string& experts)
      : m_(m),
        hw_(hw),
        tp_(tp),
        attention_ranks_(tp / attention_dp),
        table_(table),
        roofline_(m, hw, tp, attention_dp),
        projected_(projected) {
    for (const LayerGeometry& layer : m.layers) add_layer(layer);
    reduce_ = tp > 1 ? find("all_reduce " + std::to_string(tp)) : nullptr;
    if (tp > 1 && reduce_ == nullptr) between_nodes_fs_ = between_nodes_fs(table, tp);
    if (grouped() && attention_ranks_ > 1) group_reduce_ = find("all_reduce " + std::to_string(attention_ranks_));
    const std::string shape = " " + std::to_string(m.hidden) + " " + std::to_string(m.expert_width) + " " +
                              std::to_string(m.experts_per_token) + " " + std::to_string(m.experts) + " ";
    if (expert_layers_ != 0) {
      const std::string split = shape + std::to_string(tp / ep) + " " + std::to_string(ep);
      experts_ = find_of_type(table, experts, types_of(m.expert_format), split);
      if (experts_ == nullptr && experts != "moe") {
        missing.insert(experts + " " + types_of(m.expert_format).front() + split);
        experts_ = find_of_type(table, "moe", types_of(m.expert_format), split);
      }
      if (grouped() && ep == tp) set_exchanges(experts);
      if (experts_ == nullptr) {
        missing.insert("moe " + types_of(m.expert_format).front() + split);
        experts_ = find_of_type(table, "moe", types_of(m.expert_format), shape + std::to_string(tp) + " 1");
      }
    }
    const std::uint64_t routed = m.experts_per_token * m.expert_parameters;
    const std::uint64_t others = m.active_parameters - m.head_parameters - routed;
    rest_ = others > counted_ ? others - counted_ : 0;
  }

  // The token counts at which the curves have a knot.
  std::set<std::uint64_t> knots() const {
    std::set<std::uint64_t> all{1};
    const auto add = [&](const OperatorLattice* lattice) {
      if (lattice != nullptr) all.insert(lattice->axis(0).begin(), lattice->axis(0).end());
    };
    for (const MatrixProduct& product : products_) add(lattice_of(product));
    add(experts_);
    constexpr std::uint64_t kDoubling = 1 << 15;  // also without a measured product
    for (std::uint64_t tokens = 1; tokens <= kDoubling; tokens *= 2) all.insert(tokens);
    return all;
  }

  struct Time {
    Wide128 all = 0, measured = 0;
  };

  // The parts over all tokens.
  Time layers(std::uint64_t tokens) {
    Time time;
    for (const MatrixProduct& product : products_) {
      if (!product.of_group) add(product, tokens, time);
    }
    add_experts(tokens, time);
    add_reduces(tokens, time);
    const WeightFormat& format = m_.attention_format;
    time.all += roofline_product(tokens, static_cast<double>(rest_) / tp_, format);
    add_elementwise(elementwise_, tokens, time);
    return time;
  }

  // The parts over the tokens of a group.
  Time group_layers(std::uint64_t tokens) {
    Time time;
    for (const MatrixProduct& product : products_) {
      if (product.of_group) add(product, tokens, time);
    }
    add_elementwise(group_elementwise_, tokens, time);
    if (!exchanges_.empty()) {
      const std::uint64_t of_rank = (tokens + attention_ranks_ - 1) / attention_ranks_;
      Wide128 fastest = exchanges_.front()->at_fs(of_rank);
      for (const OperatorLattice* exchange : exchanges_) fastest = std::min(fastest, exchange->at_fs(of_rank));
      const Wide128 measured = expert_layers_ * fastest;
      time.all += measured;
      time.measured += measured;
    }
    if (attention_ranks_ == 1) return time;
    if (group_reduce_ == nullptr) {
      time.all += Wide128{roofline_.coefficients().group_reduce_fs} * tokens;
      return time;
    }
    const Wide128 measured = Wide128{reduces_of_group(m_)} * group_reduce_->at_fs(tokens * m_.hidden * m_.dtype_bytes);
    time.all += measured;
    time.measured += measured;
    return time;
  }

  Time head(std::uint64_t tokens) {
    Time time;
    plain_ = {"bf16", 16 * 1024};
    add({1, std::max<std::uint64_t>(1, m_.vocab / tp_), m_.hidden, &plain_}, tokens, time);
    return time;
  }

  bool grouped() const { return attention_ranks_ != tp_; }

  std::uint64_t unmeasured_collectives() const {
    std::uint64_t all = collectives_of(m_, tp_, tp_ / attention_ranks_);
    if (reduce_ != nullptr || !exchanges_.empty()) all -= grouped() ? 2 * expert_layers_ : 2 * m_.layers.size();
    if (group_reduce_ != nullptr) all -= reduces_of_group(m_);
    return all;
  }

  std::set<std::string> missing;

 private:
  const OperatorLattice* find(const std::string& name) {
    const OperatorLattice* found = table_.find(name);
    if (found == nullptr) missing.insert(name);
    return found;
  }

  // `whole`: the parameters of all ranks together. `elsewhere`: the product is in another part's lattice.
  void add_product(std::uint64_t n, std::uint64_t k, const WeightFormat& format, std::uint64_t whole,
                   bool elsewhere = false) {
    if (n == 0 || k == 0) return;
    counted_ += whole;
    if (elsewhere) return;
    const bool of_group = in_group_ && grouped();
    if (format.name == "fp8" || format.name == "nvfp4")
      (of_group ? group_elementwise_ : elementwise_) += 1.5 * static_cast<double>(k);  // quantised input
    for (MatrixProduct& product : products_) {
      if (product.n == n && product.k == k && product.format->name == format.name && product.of_group == of_group) {
        ++product.count;
        return;
      }
    }
    products_.push_back({1, n, k, &format, of_group});
    if (lattice_of(products_.back()) == nullptr) missing.insert("gemm " + types_of(format).front());
  }

  // Returns the bits of an element on the way to the experts.
  std::uint64_t sent_bits() const {
    const std::uint64_t plain = 8 * std::uint64_t{m_.dtype_bytes};
    constexpr std::uint64_t kScaledFp8 = 8, kScaledFp4 = 5;  // fp4: 4.5 bits with its scales
    if (table_.engine != "trtllm") return plain;
    if (m_.expert_format.name == "nvfp4") return kScaledFp4;
    return m_.expert_format.name == "fp8" ? kScaledFp8 : plain;
  }

  // Returns the lattice of a way to the experts and back. The traffic does not depend on the number of experts: a
  // lattice of another number serves.
  const OperatorLattice* exchange_of(const std::string& family) const {
    const std::string before =
        family + " " + std::to_string(m_.hidden) + " " + std::to_string(m_.experts_per_token) + " ";
    const std::string after = " " + std::to_string(tp_);
    for (auto entry = table_.lattices.lower_bound(before); entry != table_.lattices.end(); ++entry) {
      if (!entry->first.starts_with(before)) break;
      if (entry->first.ends_with(after)) return &entry->second;
    }
    return nullptr;
  }

  void set_exchanges(const std::string& experts) {
    const auto add = [&](const std::string& family) {
      if (const OperatorLattice* const found = exchange_of(family); found != nullptr) exchanges_.push_back(found);
    };
    const std::string& format = m_.expert_format.name;
    add("exchange " + (format == "fp8" || format == "nvfp4" ? format : std::string("bf16")));
    if (!exchanges_.empty()) return;
    const bool all_to_all = table_.engine == "trtllm" && tp_ > m_.experts_per_token;
    if (experts == "moe_normal" || all_to_all) add("exchange_normal");
    if (experts == "moe_low_latency" || all_to_all) add("exchange_low_latency");
  }

  std::vector<std::string> types_of(const WeightFormat& format) const { return table_types(format, hw_.peak_fp4 > 0); }

  void add_layer(const LayerGeometry& layer) {
    const std::uint64_t hidden = m_.hidden, heads = m_.heads / attention_ranks_;
    constexpr double kNorms = 2 * 4;  // each reads and writes the layer's output and the residual stream
    double& elementwise = grouped() ? group_elementwise_ : elementwise_;
    elementwise += kNorms * static_cast<double>(hidden);
    in_group_ = true;
    switch (layer.attention) {
      case AttentionKind::full:
      case AttentionKind::window:
      case AttentionKind::sparse: add_heads(layer, elementwise); break;
      case AttentionKind::full_state: add_heads(layer, elementwise); break;
      case AttentionKind::compressed: break;  // counted with the other parameters
      case AttentionKind::latent:
      case AttentionKind::sparse_latent: add_latent_layer(heads); break;
      case AttentionKind::state: add_delta_net(); break;
      case AttentionKind::none: break;
    }
    if (layer.feed_forward == FeedForwardKind::dense) add_feed_forward(layer.dense_width);
    if (layer.feed_forward == FeedForwardKind::experts) add_feed_forward(m_.shared_width);
    in_group_ = false;
    if (layer.feed_forward != FeedForwardKind::experts) return;
    ++expert_layers_;
    plain_ = {"bf16", 16 * 1024};
    add_product(m_.experts, hidden, plain_, hidden * m_.experts);
  }

  void add_heads(const LayerGeometry& layer, double& elementwise) {
    const std::uint64_t hidden = m_.hidden, heads = layer.heads / attention_ranks_;
    const std::uint64_t kv_heads = std::max<std::uint64_t>(1, layer.kv_heads / attention_ranks_);
    const std::uint64_t dims = std::uint64_t{layer.head_dim} + layer.value_dim;
    const std::uint64_t qkv = heads * layer.head_dim + kv_heads * dims;
    const std::uint64_t whole = std::uint64_t{layer.heads} * layer.head_dim + layer.kv_heads * dims;
    elementwise += 2 * static_cast<double>(qkv);  // rotary embedding, and the write to the cache
    add_product(qkv, hidden, m_.attention_format, whole * hidden);
    add_product(hidden, heads * layer.value_dim, m_.attention_format, hidden * layer.heads * layer.value_dim);
  }

  void add_delta_net() {
    const DeltaNet& net = m_.delta_net;
    if (net.value_heads == 0) return;
    const std::uint64_t keys = std::uint64_t{net.key_heads} * net.key_dim;
    const std::uint64_t values = std::uint64_t{net.value_heads} * net.value_dim;
    const std::uint64_t in = 2 * keys + 2 * values + std::uint64_t{2} * net.value_heads, hidden = m_.hidden;
    add_product(std::max<std::uint64_t>(1, in / attention_ranks_), hidden, m_.attention_format, in * hidden);
    add_product(hidden, std::max<std::uint64_t>(1, values / attention_ranks_), m_.attention_format, values * hidden);
  }

  // The projections from the hidden state are on every rank.
  void add_latent_layer(std::uint64_t heads) {
    const std::uint64_t hidden = m_.hidden, latent = std::uint64_t{m_.latent_rank} + m_.rope_dim;
    const std::uint64_t query = std::uint64_t{m_.nope_dim} + m_.rope_dim;
    const WeightFormat& format = m_.attention_format;
    const auto add_projection = [&](std::uint64_t n, std::uint64_t k, std::uint64_t whole) {
      add_product(n, k, format, whole, projected_);
    };
    if (m_.query_rank != 0) {
      add_projection(m_.query_rank + latent, hidden, (m_.query_rank + latent) * hidden);
      add_projection(heads * query, m_.query_rank, m_.heads * query * m_.query_rank);
    } else {
      add_projection(latent, hidden, latent * hidden);
      add_projection(heads * query, hidden, m_.heads * query * hidden);
    }
    const std::uint64_t expanded = std::uint64_t{m_.nope_dim} + m_.value_dim;
    add_projection(heads * expanded, m_.latent_rank, m_.heads * expanded * m_.latent_rank);
    add_projection(hidden, heads * m_.value_dim, hidden * m_.heads * m_.value_dim);
    if (!projected_) return;
    const std::uint64_t width = m_.query_rank != 0 ? m_.query_rank : hidden;
    counted_ += width * m_.index_heads * m_.index_dim + hidden * (std::uint64_t{m_.index_dim} + m_.index_heads);
  }

  void add_feed_forward(std::uint64_t width) {
    if (width == 0) return;
    const std::uint64_t share = std::max<std::uint64_t>(1, width / attention_ranks_), up = m_.gated ? 2 : 1;
    (grouped() ? group_elementwise_ : elementwise_) += static_cast<double>((up + 1) * share);
    add_product(up * share, m_.hidden, m_.linear_format, up * width * m_.hidden);
    add_product(m_.hidden, share, m_.linear_format, width * m_.hidden);
  }

  const OperatorLattice* lattice_of(const MatrixProduct& product) const {
    return find_of_type(table_, "gemm", types_of(*product.format), "");
  }

  std::uint64_t roofline_product(std::uint64_t tokens, double parameters, const WeightFormat& format) const {
    const double flops = 2 * parameters * static_cast<double>(tokens);
    const double bytes = parameters * static_cast<double>(format.bits_x1024) / (8 * 1024);
    const double computing = flops / (hw_.gemm_fraction * matrix_peak(hw_, format));
    const double reading = bytes / (hw_.memory_bandwidth * hw_.memory_fraction);
    return whole_fs(std::max(computing, reading) * 1e15);
  }

  void add(const MatrixProduct& product, std::uint64_t tokens, Time& time) const {
    const OperatorLattice* lattice = lattice_of(product);
    if (lattice != nullptr && lattice->axes() == 3) {
      const Wide128 measured = product.count * lattice->at_fs(tokens, product.n, product.k);
      time.all += measured;
      time.measured += measured;
      return;
    }
    const double parameters = static_cast<double>(product.n) * static_cast<double>(product.k);
    time.all += Wide128{product.count} * roofline_product(tokens, parameters, *product.format);
  }

  void add_elementwise(double elements, std::uint64_t tokens, Time& time) const {
    const double bytes = elements * m_.dtype_bytes * static_cast<double>(tokens);
    time.all += whole_fs(bytes / (hw_.memory_bandwidth * hw_.memory_fraction) * 1e15);
  }

  void add_experts(std::uint64_t tokens, Time& time) const {
    if (expert_layers_ == 0) return;
    if (experts_ != nullptr) {
      const Wide128 measured = expert_layers_ * experts_->at_fs(tokens);
      time.all += measured;
      time.measured += measured;
      return;
    }
    const double flops = 2.0 * static_cast<double>(m_.expert_parameters) * m_.experts_per_token;
    const double rate = tp_ * hw_.gemm_fraction * matrix_peak(hw_, m_.expert_format);
    const Wide128 computing = whole_fs(flops * static_cast<double>(tokens) / rate * 1e15);
    const Wide128 reading =
        scaled_by(roofline_.coefficients().expert_fs, roofline_.distinct_experts_x2_32(tokens), Wide128{1} << 32);
    time.all += std::max(computing, reading);
  }

  void add_reduces(std::uint64_t tokens, Time& time) const {
    if (tp_ == 1 || !exchanges_.empty()) return;
    if (reduce_ == nullptr) {
      // The latency within a node is in the pass's step.
      const std::uint64_t ways = grouped() ? expert_layers_ : 2 * m_.layers.size();
      time.all += Wide128{roofline_.coefficients().reduce_token_fs} * tokens + ways * between_nodes_fs_;
      return;
    }
    const std::uint64_t bytes = tokens * m_.hidden * m_.dtype_bytes;
    Wide128 measured = 0;
    if (!grouped()) {
      measured = Wide128{2} * m_.layers.size() * reduce_->at_fs(bytes);
    } else if (expert_layers_ != 0) {
      // An exchange moves as much as one all-reduce of the tokens that go to a rank of the experts, half of that on the
      // way to the experts.
      const std::uint64_t picked = std::min<std::uint64_t>(m_.experts_per_token, tp_);
      const std::uint64_t moved = bytes * picked / tp_;
      measured = Wide128{expert_layers_} * reduce_->at_fs(moved / 2 + moved / 2 * sent_bits() / (8 * m_.dtype_bytes));
    }
    time.all += measured;
    time.measured += measured;
  }

  const ModelGeometry& m_;
  const HardwareSpec& hw_;
  std::uint32_t tp_, attention_ranks_;  // attention_ranks_: of a group; tp_ if there is one group
  const OperatorTable& table_;
  RooflineCost roofline_;
  bool projected_;
  std::vector<MatrixProduct> products_;
  WeightFormat plain_;
  std::uint64_t counted_ = 0, rest_ = 0;  // parameters in products_; other parameters
  double elementwise_ = 0;  // elements that norms, rotary embedding and activations read and write per token
  std::uint64_t expert_layers_ = 0;
  const OperatorLattice* experts_ = nullptr;
  const OperatorLattice* reduce_ = nullptr;
  const OperatorLattice* group_reduce_ = nullptr;
  std::vector<const OperatorLattice*> exchanges_;  // all-to-all with the experts' ranks, over the tokens of a rank
  Wide128 between_nodes_fs_ = 0;                   // of a way between nodes and back, beyond that within a node
  bool in_group_ = false;                          // while products are added that each group has
  double group_elementwise_ = 0;
};

std::uint64_t layers_of(const ModelGeometry& m, AttentionKind kind, Tokens window) {
  return static_cast<std::uint64_t>(std::ranges::count_if(m.layers, [&](const LayerGeometry& layer) {
    return layer.attention == kind && (kind != AttentionKind::window || layer.window == window);
  }));
}

std::string cache_type(const ModelGeometry& m) { return is_half(m.kv_dtype) ? "bf16" : m.kv_dtype; }

MeasuredAttention sparse_attention_of(const ModelGeometry& m, const HardwareSpec& hw, std::uint32_t tp,
                                      const OperatorTable& table, std::vector<std::string>& missing) {
  MeasuredAttention attention;
  const std::vector<std::string> types = table_types(m.attention_format, hw.peak_fp4 > 0);
  const std::string rest = " " + cache_type(m) + " " + std::to_string(m.hidden) + " " + std::to_string(m.heads / tp);
  const OperatorLattice* context = find_of_type(table, "dsa_context", types, rest);
  const OperatorLattice* generation = find_of_type(table, "dsa_generation", types, rest);
  const auto usable = [](const OperatorLattice* lattice) { return lattice != nullptr && lattice->axes() == 2; };
  if (!usable(context)) missing.push_back("dsa_context " + types.front() + rest);
  if (!usable(generation)) missing.push_back("dsa_generation " + types.front() + rest);
  if (!usable(context) || !usable(generation)) return attention;
  attention.context = *context;
  attention.generation = *generation;
  attention.layers = layers_of(m, AttentionKind::sparse_latent, 0);
  attention.sparse = true;
  return attention;
}

MeasuredAttention attention_of(const ModelGeometry& m, std::uint32_t tp, AttentionKind kind, const OperatorTable& table,
                               std::vector<std::string>& missing) {
  MeasuredAttention attention;
  attention.window = kind == AttentionKind::window ? m.window : 0;
  const std::uint64_t layers = layers_of(m, kind, attention.window);
  if (layers == 0) return attention;
  const bool latent = kind == AttentionKind::latent;
  std::string rest = " " + cache_type(m) + " ";
  if (latent) {
    rest += std::to_string(m.heads / tp);
  } else {
    rest += std::to_string(m.head_dim) + " " + std::to_string(attention.window) + " " + std::to_string(m.heads / tp) +
            " " + std::to_string(std::max(1U, m.kv_heads / tp));
  }
  const std::string prefix = latent ? "mla_" : "";
  const OperatorLattice* context = table.find(prefix + "context" + rest);
  const OperatorLattice* generation = table.find(prefix + "generation" + rest);
  const auto usable = [](const OperatorLattice* lattice) { return lattice != nullptr && lattice->axes() == 2; };
  if (!usable(context)) missing.push_back(prefix + "context" + rest);
  if (!usable(generation)) missing.push_back(prefix + "generation" + rest);
  if (!usable(context) || !usable(generation)) return attention;
  // Layers with another window than the largest, and values of another size than the keys, have no lattice.
  if (kind == AttentionKind::window &&
      layers != static_cast<std::uint64_t>(std::ranges::count_if(
                    m.layers, [](const LayerGeometry& layer) { return layer.attention == AttentionKind::window; }))) {
    return attention;
  }
  const auto differs = [&](const LayerGeometry& layer) {
    return layer.attention == kind && (layer.head_dim != m.head_dim || layer.value_dim != m.head_dim ||
                                       layer.heads != m.heads || layer.kv_heads != m.kv_heads);
  };
  if (!latent && std::ranges::any_of(m.layers, differs)) return attention;
  attention.context = *context;
  attention.generation = *generation;
  attention.layers = layers;
  return attention;
}

MeasuredState state_of(const ModelGeometry& m, std::uint32_t tp, const OperatorTable& table,
                       std::vector<std::string>& missing) {
  MeasuredState state;
  if (m.delta_net.value_heads == 0 || m.delta_net.value_heads % tp != 0) return state;
  const std::string rest = " " + std::to_string(m.hidden) + " " +
                           std::to_string(std::max(1U, m.delta_net.key_heads / tp)) + " " +
                           std::to_string(m.delta_net.value_heads / tp);
  const OperatorLattice* context = table.find("gdn_context" + rest);
  const OperatorLattice* generation = table.find("gdn_generation" + rest);
  if (context == nullptr || context->axes() != 2) missing.push_back("gdn_context" + rest);
  if (generation == nullptr || generation->axes() != 1) missing.push_back("gdn_generation" + rest);
  if (context == nullptr || generation == nullptr || context->axes() != 2 || generation->axes() != 1) return state;
  state.context = *context;
  state.generation = *generation;
  state.layers = layers_of(m, AttentionKind::state, 0);
  return state;
}

}  // namespace

void OperatorCurve::add_knot(std::uint64_t tokens, Wide128 fs) {
  tokens_.push_back(tokens);
  fs_.push_back(fs_.empty() ? fs : std::max(fs, fs_.back()));
}

Wide128 OperatorCurve::at_fs(std::uint64_t tokens) const {
  if (tokens == 0 || tokens_.empty()) return 0;
  const auto next = static_cast<std::size_t>(std::ranges::upper_bound(tokens_, tokens) - tokens_.begin());
  if (next == 0) return fs_.front();
  if (next == tokens_.size()) return scaled_by(fs_.back(), tokens, tokens_.back());
  return between_fs(tokens, tokens_[next - 1], tokens_[next], fs_[next - 1], fs_[next]);
}

Wide128 MeasuredAttention::prefill_fs(const ForwardShape& shape) const {
  const std::uint64_t sequences = std::max<std::uint64_t>(1, shape.prefill_sequences);
  if (sparse) {
    if (shape.prefill_tokens == 0) return 0;
    return saturated_product(context.at_fs(sequences, shape.prefill_tokens / sequences), layers);
  }
  std::uint64_t pairs = shape.prefill_pairs / sequences;
  if (window != 0) {  // as many new tokens, and the window before them
    const std::uint64_t cached = std::min<std::uint64_t>(window, shape.prefill_context_tokens / sequences);
    const Wide128 tokens = Wide128{shape.prefill_tokens / sequences} + cached;
    const Wide128 windowed = saturated_product(tokens, tokens + 1) / 2;
    pairs = static_cast<std::uint64_t>(std::min<Wide128>(pairs, windowed));
  }
  return shape.prefill_pairs == 0 ? 0 : saturated_product(context.at_fs(sequences, pairs), layers);
}

Wide128 MeasuredAttention::decode_fs(std::uint64_t sequences, Wide128 context_x1024, std::uint64_t growth_x1024,
                                     std::uint64_t steps) const {
  if (sequences == 0 || steps == 0) return 0;
  const std::vector<std::uint64_t>& knots = generation.axis(1);
  const auto total_x1024 = [&](std::size_t i) { return saturated_product(Wide128{knots[i]} * 1024, sequences); };
  const auto time_at = [&](std::size_t i) { return generation.at_fs(sequences, knots[i]); };
  const Wide128 growth = growth_x1024;
  Wide128 total = 0;
  std::uint64_t left = steps;
  Wide128 at = saturated_sum(context_x1024, growth);
  std::size_t segment = 0;  // `at` is below knot `segment`
  while (left != 0) {
    while (segment < knots.size() && total_x1024(segment) <= at) ++segment;
    // The steps before the next knot, and the sum of their contexts.
    std::uint64_t inside = left;
    if (segment < knots.size() && growth != 0) {
      const Wide128 until = (total_x1024(segment) - at + growth - 1) / growth;
      inside = static_cast<std::uint64_t>(std::min<Wide128>(left, until));
    }
    const Wide128 rises = saturated_product(growth, Wide128{inside} * (inside - 1) / 2);
    const Wide128 contexts = saturated_sum(saturated_product(at, inside), rises);
    Wide128 part = 0;
    if (segment == 0) {
      part = saturated_product(time_at(0), inside);
    } else if (segment == knots.size()) {
      part = scaled_by(time_at(segment - 1), contexts, total_x1024(segment - 1));
    } else {
      const Wide128 low = total_x1024(segment - 1), high = total_x1024(segment);
      const Wide128 above = contexts - low * inside, below = high * inside - contexts;
      part = saturated_sum(scaled_by(time_at(segment - 1), below, high - low),
                           scaled_by(time_at(segment), above, high - low));
    }
    total = saturated_sum(total, part);
    at = saturated_sum(at, saturated_product(growth, inside));
    left -= inside;
  }
  return saturated_product(total, layers);
}

Wide128 MeasuredState::prefill_fs(const ForwardShape& shape) const {
  if (shape.prefill_tokens == 0) return 0;
  const std::uint64_t sequences = std::max<std::uint64_t>(1, shape.prefill_sequences);
  return saturated_product(context.at_fs(sequences, shape.prefill_tokens / sequences), layers);
}

Wide128 MeasuredState::step_fs(std::uint64_t sequences) const {
  return sequences == 0 ? 0 : saturated_product(generation.at_fs(sequences), layers);
}

OperatorCost::OperatorCost(const ModelGeometry& model, const HardwareSpec& hardware, std::uint32_t tp, std::uint32_t ep,
                           const OperatorTable& table, std::uint32_t attention_dp, const std::string& experts) {
  const std::uint32_t group = tp / attention_dp;
  (void)model.shape(group, 1);  // refuses a number of ranks that does not divide the heads
  full_ = model.index_topk != 0 && model.latent_rank != 0
              ? sparse_attention_of(model, hardware, group, table, missing_)
              : attention_of(model, group, model.latent_rank != 0 ? AttentionKind::latent : AttentionKind::full, table,
                             missing_);
  window_ = attention_of(model, group, AttentionKind::window, table, missing_);
  state_ = state_of(model, group, table, missing_);
  LinearParts parts(model, hardware, tp, ep, table, full_.sparse, attention_dp, experts);
  for (const std::uint64_t tokens : parts.knots()) {
    const LinearParts::Time layers = parts.layers(tokens), head = parts.head(tokens);
    linear_.add_knot(tokens, layers.all);
    linear_measured_.add_knot(tokens, layers.measured);
    head_.add_knot(tokens, head.all);
    head_measured_.add_knot(tokens, head.measured);
    if (!parts.grouped()) continue;
    const LinearParts::Time of_group = parts.group_layers(tokens);
    group_.add_knot(tokens, of_group.all);
    group_measured_.add_knot(tokens, of_group.measured);
  }
  unmeasured_collectives_ = parts.unmeasured_collectives();
  if (const OperatorLattice* const launch = table.find("launch"); launch != nullptr) {
    launch_ns_ = static_cast<std::uint64_t>(launch->at_fs(1) / kFsPerNs);
  }
  missing_.insert(missing_.end(), parts.missing.begin(), parts.missing.end());
}

Wide128 OperatorCost::linear_fs(Tokens tokens, std::uint64_t yielding, Tokens of_group) const {
  if (tokens == 0) return 0;
  const Wide128 layers = saturated_sum(linear_.at_fs(tokens), group_.at_fs(of_group));
  return saturated_sum(layers, head_.at_fs(yielding));
}

Wide128 OperatorCost::linear_measured_fs(Tokens tokens, std::uint64_t yielding, Tokens of_group) const {
  if (tokens == 0) return 0;
  const Wide128 layers = saturated_sum(linear_measured_.at_fs(tokens), group_measured_.at_fs(of_group));
  return saturated_sum(layers, head_measured_.at_fs(yielding));
}

}  // namespace kvtwin

#include "impl/device/transformer_sizes.hpp"

#include <algorithm>

namespace kvtwin {

TransformerSizes transformer_sizes(const ModelGeometry& model, std::uint32_t tp) {
  const auto aligned = [](std::uint64_t width) {
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (width + 7) / 8) * 8);
  };
  const auto part = [&](std::uint64_t width) { return aligned((width + tp - 1) / tp); };
  TransformerSizes sizes;
  const auto product = [&](std::uint32_t inner, std::uint32_t outer) { sizes.products.push_back({inner, outer}); };
  const std::uint32_t hidden = aligned(model.hidden);
  const std::uint64_t heads = model.heads;
  if (model.latent_rank != 0) {
    const std::uint32_t query = part(heads * (model.nope_dim + model.rope_dim));
    if (model.query_rank != 0) product(hidden, aligned(model.query_rank));
    product(model.query_rank != 0 ? aligned(model.query_rank) : hidden, query);
    product(hidden, aligned(model.latent_rank + model.rope_dim));
    product(aligned(model.latent_rank), part(heads * (model.nope_dim + model.value_dim)));
  } else {
    const std::uint64_t kv = std::uint64_t{std::max(model.kv_heads, tp)} * (model.head_dim + model.value_dim);
    product(hidden, part(heads * model.head_dim + kv));
  }
  product(part(heads * model.value_dim), hidden);
  const bool experts = model.layers.back().feed_forward == FeedForwardKind::experts;
  const std::uint64_t width =
      experts ? std::uint64_t{model.experts_per_token} * model.expert_width + model.shared_width : model.dense_width;
  if (width != 0) {
    product(hidden, part((model.gated ? 2 : 1) * width));
    product(part(width), hidden);
  }
  sizes.layers = static_cast<std::uint32_t>(model.layers.size());
  sizes.pair_work = static_cast<std::uint32_t>(model.full_attention.prefill_pair_flops / 2 / sizes.layers / tp);
  return sizes;
}

}  // namespace kvtwin

#include "models/serving_times.hpp"

#include <algorithm>
#include <limits>

#include "models/wide.hpp"

namespace kvtwin {

namespace {

// Products with such weights have an input in the same format.
bool quantises(const WeightFormat& format) { return format.name == "fp8" || format.name == "nvfp4"; }

}  // namespace

std::uint64_t small_kernels(const ModelGeometry& model, bool projected) {
  std::uint64_t kernels = 0;
  for (const LayerGeometry& layer : model.layers) {
    kernels += 2;
    const bool in_table = projected && layer.attention == AttentionKind::sparse_latent;
    if (layer.attention != AttentionKind::none && !in_table) {
      const bool latent = layer.attention == AttentionKind::latent || layer.attention == AttentionKind::sparse_latent;
      const std::uint64_t products = latent ? 4 : 2;
      kernels += 1 + (quantises(model.attention_format) ? products : 0);
    }
    const bool experts = layer.feed_forward == FeedForwardKind::experts;
    const bool dense = layer.feed_forward == FeedForwardKind::dense || (experts && model.shared_width != 0);
    if (dense) kernels += 1 + (quantises(model.linear_format) ? 2 : 0);
    if (experts) kernels += 2;
  }
  return kernels;
}

namespace {

// Kernels before, in and after the attention of a layer.
std::uint64_t attention_kernels(const ModelGeometry& model, const LayerGeometry& layer) {
  const bool quantised = quantises(model.attention_format);
  constexpr std::uint64_t kProducts = 2, kWithRotaryAndWrite = 3, kLatentProducts = 4, kLatentOthers = 7, kIndexer = 14,
                          kDeltaNet = 21;
  switch (layer.attention) {
    case AttentionKind::none: return 0;
    case AttentionKind::state: return kDeltaNet + (quantised ? kProducts : 0);
    case AttentionKind::latent: return kLatentOthers + kLatentProducts * (quantised ? 2 : 1);
    case AttentionKind::sparse_latent: return kLatentOthers + kLatentProducts * (quantised ? 2 : 1) + kIndexer;
    case AttentionKind::full:
    case AttentionKind::window:
    case AttentionKind::sparse:
    case AttentionKind::full_state:
    case AttentionKind::compressed: break;
  }
  return kWithRotaryAndWrite + kProducts * (quantised ? 2 : 1);
}

// Kernels of the feed-forward part of a layer.
std::uint64_t feed_forward_kernels(const ModelGeometry& model, const LayerGeometry& layer, bool fused_experts) {
  if (layer.feed_forward == FeedForwardKind::none) return 0;
  const std::uint64_t dense = quantises(model.linear_format) ? 5 : 3;  // two products and the activation
  if (layer.feed_forward != FeedForwardKind::experts) return dense;
  constexpr std::uint64_t kRouting = 2, kFused = 2, kApart = 5;
  const std::uint64_t apart = kApart + (quantises(model.expert_format) ? 2 : 0);
  return kRouting + (fused_experts ? kFused : apart) + (model.shared_width != 0 ? dense + 1 : 0);
}

}  // namespace

std::uint64_t launched_kernels(const ModelGeometry& model, const ServingTimes& times, bool fused_experts) {
  constexpr std::uint64_t kGraphAndAttention = 2, kNorms = 2;
  if (times.engine == ServingEngine::vllm && times.graphs) return kGraphAndAttention * model.layers.size();
  std::uint64_t kernels = 0;
  for (const LayerGeometry& layer : model.layers) {
    kernels += kNorms + attention_kernels(model, layer) + feed_forward_kernels(model, layer, fused_experts);
  }
  return kernels;
}

TimeNs front_end_ns(const ServingTimes& times, Tokens prompt) {
  const Wide128 ns = Wide128{times.request_ns} + saturated_product(times.token_ps, prompt) / 1000;
  return static_cast<TimeNs>(std::min<Wide128>(ns, static_cast<Wide128>(std::numeric_limits<TimeNs>::max())));
}

ServingTimes serving_times(ServingEngine engine) {
  ServingTimes times{.request_ns = 5'000'000, .schedule_ns = 1'000'000, .kernel_ns = 2'000, .launch_ns = 42'600};
  times.engine = engine;
  const auto with = [&](std::uint64_t step_ns, std::uint64_t sequence_ns) {
    times.step_ns = step_ns;
    times.sequence_ns = sequence_ns;
    return times;
  };
  switch (engine) {
    case ServingEngine::none: return {};
    case ServingEngine::sglang: return with(500'000, 15'000);
    case ServingEngine::vllm:
      times.token_ps = 900'000;
      times.prefix_x1024 = 1229;  // 1.2
      return with(300'000, 5'000);
    case ServingEngine::trtllm: return with(500'000, 5'000);
  }
  return {};
}

double host_link_share(ServingEngine engine) { return engine == ServingEngine::vllm ? 0.8 : 1.0; }

}  // namespace kvtwin

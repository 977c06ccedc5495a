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

TimeNs front_end_ns(const ServingTimes& times, Tokens prompt) {
  const Wide128 ns = Wide128{times.request_ns} + saturated_product(times.token_ps, prompt) / 1000;
  return static_cast<TimeNs>(std::min<Wide128>(ns, static_cast<Wide128>(std::numeric_limits<TimeNs>::max())));
}

ServingTimes serving_times(ServingEngine engine) {
  ServingTimes times{.request_ns = 5'000'000, .schedule_ns = 1'000'000, .kernel_ns = 2'000, .launch_ns = 50'000};
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

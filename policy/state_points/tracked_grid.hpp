// A state per prefill pass, at its last point of a grid that begins where the pass begins, or at the branch; and one at
// every `interval` tokens of the sequence while it decodes. SGLang 0.5.23's rule, and the base of policies that also
// say where passes end. Sources: managers/schedule_batch.py, _mamba_radix_cache_v2_req_prepare_for_extend;
// mem_cache/unified_cache/components/mamba.py.
#pragma once

#include <algorithm>
#include <numeric>

#include "policy/config.hpp"
#include "policy/state_points.hpp"

namespace kvtwin {

class TrackedGrid : public StatePoints {
 public:
  TrackedGrid(const EngineConfig& config, const Parameters& parameters)
      : chunk_(std::max<Tokens>(
            parameters.whole("chunk", {.fallback = 64,
                                       .least = 1,
                                       .most = kMostTokens,
                                       .help = "tokens between two states that the model's kernels can store"}),
            config.shape.page_tokens)),
        grid_(std::lcm(chunk_, Tokens{config.shape.page_tokens})),
        interval_(std::lcm(grid_, parameters.whole("interval", {.fallback = 256,
                                                                .least = 1,
                                                                .most = kMostTokens,
                                                                .help = "tokens between two states of a decode"}))) {}

  std::uint32_t tracking_slots() const override { return 2; }
  Tokens after_prefill(Tokens from, Tokens to, Tokens branch) const override {
    if (to - from < grid_) return 0;
    if (from < branch && branch < to && (branch - from) % chunk_ == 0) return branch;
    return from + (to - from) / grid_ * grid_;
  }
  bool after_decode(Tokens length) const override { return length % interval_ == 0; }
  Tokens grid() const override { return grid_; }

 private:
  static constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 20;

  const Tokens chunk_, grid_, interval_;
};

}  // namespace kvtwin

// The time that a serving engine adds to the operators of a pass, and to a request before the scheduler sees it.
// Without it, a pass has the hardware's pass_overhead.
//
// A pass of one step takes, with g the GPU's operators, per step:
//   gpu      = max(g + small kernels * kernel, launches), launches = kernels of the pass * launch if the pass is not a
//              CUDA graph: each pass with a prefill, and with `graphs` = false each pass. In a pass with a prefill, the
//              first term is multiplied by `prefill`. In it, pairs of a new token with one of the cached prefix count
//              `prefix` times
//   overlap: = max(gpu, schedule) + step + sequence * sequences of the pass
//   else     = gpu + schedule + step + sequence * sequences
// So `schedule` is the host's work that overlap scheduling hides, `step` and `sequence` the work that it does not hide.
// The front end takes `request` + tokens of the prompt * `token` before a request reaches the scheduler. Prompts do not
// wait for each other there.
//
// Units: integers, in nanoseconds (per token: picoseconds).
#pragma once

#include <cstdint>
#include <string_view>

#include "models/geometry.hpp"

namespace kvtwin {

enum class ServingEngine : std::uint8_t { none, sglang, vllm, trtllm };
constexpr std::string_view name_of(ServingEngine engine) {
  switch (engine) {
    case ServingEngine::none: return "none";
    case ServingEngine::sglang: return "sglang";
    case ServingEngine::vllm: return "vllm";
    case ServingEngine::trtllm: return "trtllm";
  }
  return "";
}

struct ServingTimes {
  std::uint64_t request_ns = 0;        // front end, per request
  std::uint64_t token_ps = 0;          // front end, per prompt token
  std::uint64_t schedule_ns = 0;       // host, per pass; hidden by overlap scheduling
  std::uint64_t step_ns = 0;           // host, per pass; never hidden
  std::uint64_t sequence_ns = 0;       // host, per sequence of a pass
  std::uint64_t kernel_ns = 0;         // GPU, least time of a small kernel: see small_kernels()
  std::uint64_t launch_ns = 0;         // host, per kernel that a pass without a CUDA graph launches: launched_kernels()
  std::uint64_t prefix_x1024 = 1024;   // GPU, factor on a prefill's pairs with its cached prefix, in 1/1024
  std::uint64_t prefill_x1024 = 1024;  // GPU, factor on a pass with a prefill, in 1/1024
  bool graphs = true;
  bool overlap = true;
  ServingEngine engine = ServingEngine::none;  // whose kernels a pass launches
  friend bool operator==(const ServingTimes&, const ServingTimes&) = default;
};

// Returns the number of kernels in a pass that are in no table of operators: per layer two norms, the rotary embedding
// with the write to the cache, the activation, the router's two; and one before each product of fp8 or nvfp4 weights,
// which quantises the product's input. `projected`: DSA's projections are in the table, and so are the kernels between
// them.
std::uint64_t small_kernels(const ModelGeometry& model, bool projected = false);

// Returns the number of kernels that the host launches for a prefill on one rank, without collectives. The counts are
// those of SGLang's code (docs/results/operators.md, "Launches of a prefill"). `fused_experts`: one call launches all
// kernels of the experts. vLLM with `graphs` replays a CUDA graph between the attention of two layers.
std::uint64_t launched_kernels(const ModelGeometry& model, const ServingTimes& times, bool fused_experts);

// Returns the time between a client's request and the arrival at the scheduler.
TimeNs front_end_ns(const ServingTimes& times, Tokens prompt);

// Returns the times of an engine; zeros for `none`. Fitted on the H100 rows of silicon_sample.csv of
// Returns the times of an engine; zeros for `none`. Fitted on the H100 rows of silicon_sample.csv of
// aiconfigurator-core 0.12.0 (docs/results/published.md); `request` and `schedule` are assumed. `launch` is the one of
// an H100's table: a table of operators has that of its GPU. `token` of
// vLLM is the slope of device hits of 1k to 64k tokens (vLLM 0.18.1, H20). `prefix` of vLLM is that of prompts of 10k
// to 100k tokens in passes of 8,192 (H100): its kernels read pages of 16 tokens without TMA, unlike the tables'.
ServingTimes serving_times(ServingEngine engine);

// Returns the share of the host link's rate at which the engine loads KV from host memory. vLLM's offloading loads at
// 43 GB/s where the link has 54: H100 and H20, two sources (docs/results/published.md). 1 without evidence.
double host_link_share(ServingEngine engine);

}  // namespace kvtwin

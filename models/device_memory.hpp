// How the memory of a GPU is divided when a server starts: weights, what passes and the engine itself need, and KV.
// Each engine has a rule of its own:
//   vLLM:         KV = total * fraction - weights - activations - graphs - engine; graphs from 0.21 on
//   SGLang:       KV = (total - engine) * fraction - weights; activations and graphs are in the rest. Without
//                 --mem-fraction-static, the fraction leaves SGLang's own estimate of both. On AMD's GPUs, aiter's
//                 kernels take 0.15 of the fraction.
//   TensorRT-LLM: KV = (total - engine - weights - activations - graphs) * fraction
//   no engine:    KV = total * 0.9 - weights - activations
// Sources: vllm/v1/worker/gpu_worker.py (0.33.0); sglang/srt/arg_groups/memory_hook.py and
// srt/mem_cache/kv_cache_configurator.py (0.5.23); tensorrt_llm/_torch/pyexecutor/_util.py (1.0). What passes and the
// engine need is estimated: docs/results/memory.md compares it, and the KV, with what servers printed.
#pragma once

#include <cstdint>
#include <string>

#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/serving_times.hpp"

namespace kvtwin {

// What decides about the memory of a GPU.
struct MemoryTerms {
  ServingEngine engine = ServingEngine::none;
  std::string release = {};       // of the engine, as "0.33.0"; empty = the latest
  double fraction = 0;            // of the engine's flag; 0 = the engine's default
  bool holds_activations = true;  // without an engine: the given fraction has the activations in it
  std::uint32_t tp = 1;
  std::uint32_t attention_dp = 1;   // groups of attention; the ranks of a group split attention's weights
  Tokens chunk_tokens = 8192;       // prefill tokens of a pass, for each group
  std::uint32_t max_running = 256;  // requests, for each group
  std::uint32_t limit = 0;  // requests of all groups, if the server's flags limit them; 0 = the engine's default
  bool graphs = true;       // CUDA graphs
  bool prefills = true, decodes = true;
  Bytes draft_weights = 0;  // of a draft model, over all ranks
};

// The rules of engines are of GPUs. A machine with less memory is divided as without an engine.
constexpr double kLeastGpuBytes = 12.0 * 1073741824;

// Bytes of one GPU.
struct DeviceMemory {
  ServingEngine engine = ServingEngine::none;
  double total = 0;       // as the driver says (cudaMemGetInfo)
  double fraction = 0;    // the engine's flag, or its default
  double factor = 1;      // of the fraction, by the engine
  bool is_given = false;  // the fraction
  double taken = 0;       // by the engine: CUDA context, communication, workspaces
  double weights = 0;     // of the draft model too
  double activations = 0, graphs = 0;
  double kv = 0;  // negative if the weights don't fit
  // Returns the bytes that are for none of these. With SGLang, activations and graphs take their memory from them.
  double left() const { return total - taken - weights - activations - graphs - kv; }
};

// The ranks split all weights evenly. The activations are those of a prefill of `chunk_tokens`, or of sampling for
// `max_running` requests, whichever are more. Requires: tp > 0.
DeviceMemory divide_device_memory(const HardwareSpec& hardware, const ModelGeometry& model, const MemoryTerms& terms);

// Returns the KV bytes of one rank. Errors: ModelError if no token fits; the text names a sufficient tp, if there is
// one.
Bytes device_kv_bytes(const HardwareSpec& hardware, const ModelGeometry& model, const MemoryTerms& terms);

// For the screen: "79.1 GiB a GPU: KV 56.1, weights 15.0, activations 1.0, ... (fraction 0.92, the default of vllm)".
std::string device_memory_text(const DeviceMemory& memory);

}  // namespace kvtwin

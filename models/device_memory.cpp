#include "models/device_memory.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "models/error.hpp"

namespace kvtwin {
namespace {

constexpr double kMib = 1048576, kGib = 1073741824;
constexpr double kWithoutEngine = 0.9, kVllm = 0.92, kVllmEarlier = 0.9, kTrtllm = 0.9;  // default fractions
constexpr double kAiter = 0.85;
// Medians of what servers printed (docs/results/memory.md). An engine takes memory for kernels and workspaces, before
// the weights a CUDA context, and for each doubling of tp buffers of its communication.
constexpr double kOfVllm = 0.25 * kGib, kOfSglang = 0.5 * kGib, kOfTrtllm = 1.0 * kGib, kOfDoubling = 0.35 * kGib;
constexpr double kGraphs = 1.0 * kGib;

std::string tenths(double bytes) {
  const auto of = static_cast<std::int64_t>(std::abs(bytes) / kGib * 10 + 0.5);
  return (bytes < 0 ? "-" : "") + std::to_string(of / 10) + "." + std::to_string(of % 10);
}
std::string gib(double bytes) { return tenths(bytes) + " GiB"; }

// Returns the bytes that a prefill of `tokens` tokens needs at once: hidden rows, the widest feed-forward (split over
// tp), and of routed experts the outputs of all chosen ones.
double prefill_bytes(const ModelGeometry& model, std::uint32_t tp, double tokens) {
  const double chosen = std::max(1U, model.experts_per_token);
  const double widest = std::max({static_cast<double>(model.dense_width), static_cast<double>(model.shared_width),
                                  static_cast<double>(model.expert_width) * chosen});
  const double row = 6.0 * model.hidden + 3.0 * widest / tp;
  return tokens * row * model.dtype_bytes;
}

// Returns the bytes of the logits of `requests` requests, and of what sampling makes of them.
double sampling_bytes(const ModelGeometry& model, double requests, double of_logit) {
  return requests * model.vocab * of_logit;
}

// vLLM counts its graphs from 0.21 on. Earlier releases sort the logits of the requests.
bool is_vllm_before_graphs(std::string_view release) {
  if (release.starts_with('v')) release.remove_prefix(1);
  unsigned major = 0, minor = 0;
  const char* const end = release.data() + release.size();
  const auto [dot, error] = std::from_chars(release.data(), end, major);
  if (error != std::errc() || dot == end || *dot != '.') return false;
  return std::from_chars(dot + 1, end, minor).ec == std::errc() && major == 0 && minor < 21;
}

// Returns how many times as large vLLM's kernels make the routed experts: they pad mxfp4 weights (gpt-oss) to 128 rows
// of each rank and 256 columns (mxfp4_round_up_hidden_size_and_intermediate_size in
// vllm/model_executor/layers/fused_moe/oracle/mxfp4.py: Marlin and TensorRT-LLM's kernels). On Hopper, its Triton
// kernels pad no rows.
double padding_of_experts(const HardwareSpec& hardware, const ModelGeometry& model, std::uint32_t tp) {
  if (model.expert_format.name != "mxfp4" || model.expert_width == 0) return 1;
  const auto padded = [](double size, double block) { return std::ceil(size / block) * block / size; };
  const double rows = hardware.gpu.starts_with("h") ? 1 : padded(static_cast<double>(model.expert_width) / tp, 128);
  return rows * padded(model.expert_hidden, 256);
}

double weights_of(const HardwareSpec& hardware, const ModelGeometry& model, const MemoryTerms& terms) {
  double bytes = static_cast<double>(model.weight_bytes) + static_cast<double>(terms.draft_weights);
  bytes += static_cast<double>(model.group_weight_bytes) * (terms.attention_dp - 1);
  if (terms.engine == ServingEngine::vllm) {
    const double experts = static_cast<double>(model.expert_weight_bytes) * model.experts;
    bytes += experts * (padding_of_experts(hardware, model, terms.tp) - 1);
  }
  return bytes / terms.tp;
}

// Returns the number of sizes of prefills that SGLang makes graphs of, up to `most` tokens
// (generate_prefill_cuda_graph_batch_sizes in srt/arg_groups/cuda_graph_hook.py).
double prefill_graphs(Tokens most) {
  struct Sizes {
    Tokens from, to, step;
  };
  constexpr std::array<Sizes, 5> kSizes{
      {{4, 32, 4}, {48, 256, 16}, {288, 512, 32}, {576, 1024, 64}, {1280, 4096, 256}}};
  Tokens count = 0;
  for (const Sizes& sizes : kSizes) {
    if (most >= sizes.from) count += (std::min(most, sizes.to) - sizes.from) / sizes.step + 1;
  }
  if (most >= 4608) count += (most - 4608) / 512 + 1;
  return static_cast<double>(count);
}

// Returns the largest batch that SGLang makes a CUDA graph of (srt/arg_groups/memory_hook.py). Its limits of 60 and 160
// GiB are of nvidia-smi, and the driver gives about 1 % less.
double largest_graph(double total, std::uint32_t tp) {
  if (total < 20 * kGib) return 8;
  if (total < 35 * kGib) return tp < 4 ? 48 : 160;
  if (total < 59 * kGib) return tp < 4 ? 32 : 160;
  return total < 158 * kGib && tp < 4 ? 256 : 512;
}

// Returns whether SGLang takes the attention kernels of aiter by default (srt/arg_groups/model_override_base.py), and
// the model has so long a context that it then takes 0.85 of its fraction, given or not (attention_hook.py).
bool takes_less_for_aiter(const HardwareSpec& hardware, const ModelGeometry& model, std::uint32_t tp) {
  constexpr Tokens kLeastContext = 8192;
  const bool other_kernels =
      model.index_topk != 0 || model.model_type.starts_with("deepseek_v4") || model.model_type.starts_with("gemma4");
  if (!is_amd(hardware) || other_kernels) return false;
  if (model.context_tokens != 0 && model.context_tokens <= kLeastContext) return false;
  const std::uint32_t heads = model.heads / tp;
  return model.latent_rank == 0 || heads == 16 || heads == 128;
}

// Returns the bytes that SGLang leaves for passes, graphs and communication without --mem-fraction-static
// (handle_gpu_memory_settings and reserve_for_graph_mb in srt/arg_groups/memory_hook.py).
double reserve_of_sglang(double total, const ModelGeometry& model, const MemoryTerms& terms) {
  const Tokens chunk = terms.chunk_tokens * terms.attention_dp;
  double largest = largest_graph(total, terms.tp);
  const double running = terms.limit;
  if (running > 0) largest = std::min(largest, running);
  const double tokens = terms.prefills ? static_cast<double>(chunk) : running > 0 ? running : largest;
  double mib = 512 + 1.5 * std::max(tokens, 2048.0) + 128.0 * terms.tp;
  if (terms.graphs && terms.decodes) mib += 2 * largest;
  if (terms.attention_dp > 1 && terms.decodes) mib += largest * terms.attention_dp * (largest > 300 ? 4.5 : 3);
  if (terms.graphs && terms.prefills) mib += model.latent_rank != 0 ? 1536 : 8 * prefill_graphs(chunk);
  if (total > 59 * kGib) mib = std::max(mib, 10240.0);
  return mib * kMib;
}

}  // namespace

DeviceMemory divide_device_memory(const HardwareSpec& hardware, const ModelGeometry& model, const MemoryTerms& terms) {
  DeviceMemory memory;
  memory.total = hardware.memory_bytes;
  memory.engine = memory.total < kLeastGpuBytes ? ServingEngine::none : terms.engine;
  memory.fraction = terms.fraction;
  memory.is_given = terms.fraction != 0;
  memory.weights = weights_of(hardware, model, terms);
  const double prefill = prefill_bytes(model, terms.tp, static_cast<double>(terms.chunk_tokens));
  const double communication = kOfDoubling * (std::bit_width(terms.tp) - 1);
  switch (memory.engine) {
    case ServingEngine::none:
      if (terms.fraction == 0) memory.fraction = kWithoutEngine;
      if (terms.fraction == 0 || terms.holds_activations) memory.activations = prefill;
      memory.kv = memory.total * memory.fraction - memory.weights - memory.activations;
      break;
    case ServingEngine::sglang:
      memory.taken = kOfSglang + communication;
      if (terms.fraction == 0) {
        const double left = 1 - reserve_of_sglang(memory.total, model, terms) / memory.total;
        memory.fraction = std::max(0.001, std::round(left * 1000) / 1000);
      }
      if (takes_less_for_aiter(hardware, model, terms.tp)) memory.factor = kAiter;
      memory.kv = (memory.total - memory.taken) * memory.fraction * memory.factor - memory.weights;
      break;
    case ServingEngine::vllm: {
      const bool earlier = is_vllm_before_graphs(terms.release);
      if (terms.fraction == 0) memory.fraction = earlier ? kVllmEarlier : kVllm;
      memory.activations = std::max(prefill, sampling_bytes(model, terms.max_running, earlier ? 39 : 16));
      memory.taken = kOfVllm + communication;
      memory.graphs = terms.graphs && !earlier ? kGraphs : 0;
      memory.kv = memory.total * memory.fraction - memory.weights - memory.activations - memory.taken - memory.graphs;
      break;
    }
    case ServingEngine::trtllm:
      if (terms.fraction == 0) memory.fraction = kTrtllm;
      memory.activations = prefill;
      memory.taken = kOfTrtllm + communication;
      memory.graphs = terms.graphs ? kGraphs : 0;
      memory.kv = (memory.total - memory.taken - memory.weights - memory.activations - memory.graphs) * memory.fraction;
      break;
  }
  return memory;
}

Bytes device_kv_bytes(const HardwareSpec& hardware, const ModelGeometry& model, const MemoryTerms& terms) {
  if (terms.tp == 0) throw ModelError("parallel.tp is 0; it must be a positive integer.");
  const auto holds_a_token = [&model](const DeviceMemory& memory, const MemoryTerms& of) {
    return memory.kv >= static_cast<double>(model.shape(of.tp / of.attention_dp, 1).token_bytes());
  };
  const DeviceMemory memory = divide_device_memory(hardware, model, terms);
  if (holds_a_token(memory, terms)) return static_cast<Bytes>(memory.kv);
  std::string sentence = model.name + "'s weights (" + gib(memory.weights * terms.tp) +
                         " over parallel.tp = " + std::to_string(terms.tp) + ") leave no room for KV in the " +
                         gib(hardware.memory_bytes) + " of " + hardware.name;
  MemoryTerms wider = terms;
  for (wider.tp = terms.tp * 2; wider.tp <= 64 && model.heads % wider.tp == 0; wider.tp *= 2) {
    if (holds_a_token(divide_device_memory(hardware, model, wider), wider)) {
      throw ModelError(sentence + "; parallel.tp must be at least " + std::to_string(wider.tp) + ".");
    }
  }
  throw ModelError(sentence + "; it must be a smaller model or a larger accelerator.");
}

std::string device_memory_text(const DeviceMemory& memory) {
  std::string text = gib(memory.total) + " a GPU: KV " + tenths(memory.kv);
  const auto add = [&text](const char* name, double bytes) {
    if (bytes > 0) text += std::string(", ") + name + " " + tenths(bytes);
  };
  add("weights", memory.weights);
  add("activations", memory.activations);
  add("graphs", memory.graphs);
  add("engine", memory.taken);
  const bool sglang = memory.engine == ServingEngine::sglang;
  add(sglang ? "activations and graphs" : "left free", memory.left());
  char number[32];
  std::snprintf(number, sizeof number, "%g", memory.fraction);
  text += std::string(" (fraction ") + number;
  std::snprintf(number, sizeof number, "%g", memory.factor);
  if (memory.factor != 1) text += std::string(" * ") + number + " for aiter";
  if (memory.engine == ServingEngine::none) {
    text += ", without an engine";
  } else if (!memory.is_given) {
    text += ", the default of " + std::string(name_of(memory.engine));
  }
  return text + ")";
}

}  // namespace kvtwin

// What a language model's shape costs: parameters, weight bytes, KV bytes a token, FLOPs. Read from a Hugging
// Face config.json (a multimodal one through its text_config), or from a preset in the same format.
//
// Attention: MHA, GQA, MLA (latent of kv_lora_rank + qk_rope_head_dim elements), sliding windows, DSA (an
// indexer picks index_topk tokens), and state-space or linear-attention layers. Feed-forward: dense or routed
// experts with shared ones. Every quantity is an integer: parameters, bytes, FLOPs (a multiply-add is two).
//
// Carried exactly: full attention and MLA. By formula, and named in `inexact`: a window layer holds
// min(window, tokens) tokens, a state layer a constant a sequence, DSA its indexer's row beside the latent;
// refuse_in_run() turns these into a refusal.
//
// Errors: ModelError with one sentence (file, key, what would be right).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "policy/base/types.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

enum class KvDtype : std::uint8_t { automatic, bf16, fp16, fp8 };  // automatic: the config's torch_dtype
KvDtype kv_dtype_from_name(std::string_view name);                 // auto bf16 fp16 fp8; else ModelError

enum class AttentionKind : std::uint8_t { none, full, window, latent, sparse_latent, state };
enum class FeedForwardKind : std::uint8_t { none, dense, experts };
std::string_view name_of(AttentionKind kind);

struct LayerGeometry {
  AttentionKind attention = AttentionKind::full;
  FeedForwardKind feed_forward = FeedForwardKind::dense;
  Tokens window = 0;  // of a window layer
};

// How a group of weights is stored: torch_dtype, or a quantisation with its scales.
struct WeightFormat {
  std::string name;              // "bf16", "fp8", "mxfp4" ...
  std::uint64_t bits_x1024 = 0;  // 1024 times the bits of one weight, scales included
};

// FLOPs of attention, summed over the layers of one kind and all heads.
struct AttentionWork {
  std::uint64_t prefill_pair_flops = 0;  // one query token with one key token
  std::uint64_t decode_token_flops = 0;  // one new token with one token of context
  friend bool operator==(const AttentionWork&, const AttentionWork&) = default;
};

struct ModelGeometry {
  std::string name;    // preset name or file
  std::string source;  // the preset's "_source", else the file
  std::string date;
  std::string model_type;

  std::vector<LayerGeometry> layers;
  std::uint32_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0, vocab = 0;
  std::uint32_t latent_rank = 0, rope_dim = 0, nope_dim = 0, query_rank = 0;  // MLA; latent_rank 0 = not MLA
  std::uint32_t index_topk = 0, index_heads = 0, index_dim = 0;               // DSA; index_topk 0 = none
  std::uint32_t experts = 0, experts_per_token = 0, expert_width = 0, shared_width = 0, dense_width = 0;
  bool gated = true;  // three feed-forward matrices, else two
  bool tied_embedding = false;

  std::uint32_t dtype_bytes = 0;       // of activations and unquantised weights
  std::uint32_t kv_element_bytes = 0;  // of the cache
  std::string kv_dtype;                // "bf16", "fp16", "fp8", "fp32"
  WeightFormat linear_format, attention_format, expert_format;

  // Parameters. `active_parameters` multiply for one token: without the input embedding, which is a look-up,
  // with the output head, with experts_per_token of the routed experts.
  std::uint64_t parameters = 0;
  std::uint64_t active_parameters = 0;
  std::uint64_t embedding_parameters = 0;
  std::uint64_t head_parameters = 0;    // the output head (also when tied)
  std::uint64_t expert_parameters = 0;  // one routed expert in every expert layer
  Bytes weight_bytes = 0;
  Bytes embedding_bytes = 0;
  Bytes expert_weight_bytes = 0;  // one routed expert in every expert layer

  // The cache. A token past every window adds kv_bytes_per_token; kv_formula says how that comes about.
  Bytes kv_bytes_per_token = 0;
  Bytes window_bytes_per_token = 0;  // what window layers add while the sequence is shorter than the window
  Tokens window = 0;                 // the largest window; 0 = no window layer
  Bytes state_bytes = 0;             // state layers, a sequence
  std::string kv_formula;

  // FLOPs beside 2 * active_parameters a token.
  AttentionWork full_attention;                // grows with the context
  AttentionWork window_attention;              // at most attention_window tokens a query
  Tokens attention_window = 0;                 // window, or DSA's index_topk
  std::uint64_t context_projection_flops = 0;  // MLA prefill: keys and values of one cached token from its latent

  std::vector<std::string> inexact;  // one sentence for each thing that is counted by formula

  // Bytes of one sequence of that many tokens, over all layers: a window layer holds min(window, tokens).
  Bytes kv_bytes(Tokens tokens) const;

  // One rank's page. KV heads are split over tp; with fewer heads than ranks each is replicated; the MLA latent
  // is one head and lies on every rank whole. ModelError when heads and tp don't divide. Window and state
  // layers are not in it, unless there is nothing else: then the window layers count as if full.
  KvShape shape(std::uint32_t tp, std::uint32_t page_tokens) const;
  std::uint32_t paged_layers() const;

  // KV bytes that one rank's decode step reads per token of context within the window, in window layers and,
  // for DSA, of the chosen tokens' latents; and per token of the whole context in the rest.
  Bytes window_read_bytes(std::uint32_t tp) const;
  Bytes full_read_bytes(std::uint32_t tp) const;
};

// `kv` overrides the cache's element type.
ModelGeometry parse_model(std::string_view json, const std::string& file, KvDtype kv = KvDtype::automatic);
ModelGeometry model_from_file(const std::string& path, KvDtype kv = KvDtype::automatic);
ModelGeometry model_preset(std::string_view name, KvDtype kv = KvDtype::automatic);

// Empty when the real world can carry the model; else the sentence that refuses it by name.
std::string refuse_in_run(const ModelGeometry& model);

}  // namespace kvtwin

// The geometry of a language model: parameters, weight bytes, KV bytes per token, FLOPs. Read from a Hugging Face
// config.json (of a multimodal model: its text_config), or from a preset in the same format.
//
// Attention: MHA, GQA, MLA (a latent of kv_lora_rank + qk_rope_head_dim elements), sliding windows, DSA (an indexer
// picks index_topk tokens), state-space and linear-attention layers. Feed-forward: dense, or routed experts with shared
// experts.
// Units: integers: parameters, bytes, FLOPs (a multiply-add is two FLOPs).
//
// Exact: full attention and MLA. By formula, and listed in `inexact`: a window layer holds min(window, tokens) tokens;
// a state layer holds a constant per sequence; DSA holds the indexer's row beside the latent. refuse_in_run() refuses
// models with such layers.
//
// Errors: ModelError with one sentence (file, key, a valid value).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "policy/base/types.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

// automatic: the type that the checkpoint states for its cache, else torch_dtype. fp8_raw: fp8 on GPUs where the
// engines' kernels of DSA read latents without scales (Blackwell); of other models, as fp8.
enum class KvDtype : std::uint8_t { automatic, bf16, fp16, fp8, fp8_raw, mxfp8, nvfp4, int4 };
std::string_view name_of(KvDtype dtype);
KvDtype kv_dtype_from_name(std::string_view name);  // auto, bf16, fp16, fp8, mxfp8, nvfp4, int4; else ModelError

// The storage format of the numbers in the cache: `bits` bits each, and a scale of `scale_bytes` bytes for each `group`
// numbers of a head; 0 = no scale.
struct KvFormat {
  std::uint32_t bits = 16, group = 0, scale_bytes = 0;
  bool raw_latent = false;                   // KvDtype::fp8_raw
  Bytes bytes(std::uint64_t numbers) const;  // of one head of `numbers` numbers
};

// sparse: full attention with an indexer. compressed: a window, and rows of groups of tokens (DeepSeek-V4). full_state:
// attention and a state side by side (Falcon-H1).
enum class AttentionKind : std::uint8_t {
  none,
  full,
  window,
  latent,
  sparse_latent,
  state,
  sparse,
  compressed,
  full_state
};
enum class FeedForwardKind : std::uint8_t { none, dense, experts };
std::string_view name_of(AttentionKind kind);

// `bytes` bytes for each group of `tokens` tokens, over all KV heads.
struct KvRow {
  Bytes bytes = 0;
  std::uint32_t tokens = 1;
  Tokens window = 0;     // only of the last `window` tokens of a sequence; 0 = of all tokens
  bool indexer = false;  // read for every token, to choose the tokens whose other rows are read
};

struct LayerGeometry {
  AttentionKind attention = AttentionKind::full;
  FeedForwardKind feed_forward = FeedForwardKind::dense;
  Tokens window = 0;                          // window and compressed layers only
  std::uint32_t heads = 0, kv_heads = 0;      // kv_heads 0 = the rows are not split over ranks
  std::uint32_t head_dim = 0, value_dim = 0;  // of keys and of values
  std::uint32_t dense_width = 0;              // of a dense feed-forward
  std::vector<KvRow> rows;
  bool shares_rows = false;      // reads the rows of an earlier layer, and keeps none
  Tokens picks = 0;              // with an indexer: the rows that a query reads
  Bytes state_bytes = 0;         // a sequence
  std::uint64_t parameters = 0;  // of attention and state
};

// The storage format of a group of weights: torch_dtype, or a quantisation with its scales.
struct WeightFormat {
  std::string name;              // "bf16", "fp8", "mxfp4" ...
  std::uint64_t bits_x1024 = 0;  // bits per weight * 1024, with scales
};

// Format of the weights in matrix products, in place of the config's quantization_config. With 4 bits, MLA keeps its
// attention in torch_dtype, as DeepSeek-R1-NVFP4 and Kimi-K2.5 do.
// int4: 32 weights share a scale; awq: 128 share a scale and a zero point (AWQ, GPTQ); w4a8: experts in int4 with a
// scale for 128 weights, all else in fp8_block (DeepSeek-R1-W4AFP8).
enum class WeightChoice : std::uint8_t { automatic, bf16, fp8, fp8_block, mxfp8, nvfp4, mxfp4, int4, int8, awq, w4a8 };
constexpr std::string_view name_of(WeightChoice weights) {
  switch (weights) {
    case WeightChoice::automatic: return "auto";
    case WeightChoice::bf16: return "bf16";
    case WeightChoice::fp8: return "fp8";
    case WeightChoice::fp8_block: return "fp8_block";
    case WeightChoice::mxfp8: return "mxfp8";
    case WeightChoice::nvfp4: return "nvfp4";
    case WeightChoice::mxfp4: return "mxfp4";
    case WeightChoice::int4: return "int4";
    case WeightChoice::int8: return "int8";
    case WeightChoice::awq: return "awq";
    case WeightChoice::w4a8: return "w4a8";
  }
  return "";
}

// A public checkpoint of the model with its weights in this format; `automatic` = as the config says.
struct PublishedCheckpoint {
  WeightChoice weights = WeightChoice::automatic;
  std::string repository;  // for example "Qwen/Qwen3-32B-FP8"
};

// Linear attention by a gated delta net; value_heads 0 = the state layers are of another kind, or there are none.
struct DeltaNet {
  std::uint32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
};

// Figures of the user, in place of those that follow from the config; 0 = none.
struct GivenFigures {
  Bytes kv_bytes_per_token = 0, state_bytes = 0;
};

// FLOPs of attention, summed over all layers of one kind and all heads.
struct AttentionWork {
  std::uint64_t prefill_pair_flops = 0;  // per query token and key token
  std::uint64_t decode_token_flops = 0;  // per new token and context token
  friend bool operator==(const AttentionWork&, const AttentionWork&) = default;
};

struct ModelGeometry {
  std::string name;    // preset name or file
  std::string source;  // the preset's "_source", else the file
  std::string date;
  std::string model_type;
  Tokens context_tokens = 0;  // longest context by the config (max_position_embeddings); 0 = the config has none

  std::vector<LayerGeometry> layers;
  std::uint32_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0, vocab = 0;
  std::uint32_t latent_rank = 0, rope_dim = 0, nope_dim = 0, query_rank = 0;  // MLA; latent_rank 0 = not MLA
  std::uint32_t index_topk = 0, index_heads = 0, index_dim = 0;               // DSA; index_topk 0 = none
  DeltaNet delta_net;
  std::uint32_t experts = 0, experts_per_token = 0, expert_width = 0, shared_width = 0, dense_width = 0;
  std::uint32_t expert_hidden = 0;  // width of the routed experts' input; hidden, unless they work on a latent
  bool gated = true;                // three feed-forward matrices; otherwise two
  bool tied_embedding = false;

  std::uint32_t dtype_bytes = 0;  // of activations and of weights without quantisation
  KvFormat kv_format;
  std::string kv_dtype;  // "bf16", "fp16", "fp8", "fp32", "mxfp8", "nvfp4", "int4"
  WeightFormat linear_format, attention_format, state_format, expert_format, head_format;

  // Parameters. `active_parameters`: parameters that are multiplied per token. They exclude the input embedding, which
  // is a look-up; they include the output head, and experts_per_token of the routed experts.
  std::uint64_t parameters = 0;
  std::uint64_t active_parameters = 0;
  std::uint64_t embedding_parameters = 0;
  std::uint64_t head_parameters = 0;    // output head, also if tied to the embedding
  std::uint64_t expert_parameters = 0;  // one routed expert in each expert layer
  // Of all layers, outside of the routed experts: attention, states, dense feed-forward and shared experts. With data
  // parallelism of attention, each group has all of them.
  std::uint64_t group_parameters = 0;
  Bytes weight_bytes = 0;
  Bytes embedding_bytes = 0;
  Bytes expert_weight_bytes = 0;  // one routed expert in each expert layer
  Bytes group_weight_bytes = 0;   // of group_parameters

  // The KV cache. A token beyond every window adds kv_bytes_per_token bytes; kv_formula is the calculation as a text.
  Bytes kv_bytes_per_token = 0;
  Bytes window_bytes_per_token = 0;  // added by window layers while the sequence is shorter than the window
  Tokens window = 0;                 // largest window; 0 = no window layer
  bool windows_paged = false;        // window layers keep the KV of all tokens, in the pages
  Bytes state_bytes = 0;             // state layers, per sequence
  std::string kv_formula;

  // FLOPs in addition to 2 * active_parameters per token.
  AttentionWork full_attention;                // grows with the context
  AttentionWork window_attention;              // at most attention_window tokens per query
  Tokens attention_window = 0;                 // window, or DSA's index_topk
  std::uint64_t context_projection_flops = 0;  // MLA prefill: keys and values of one cached token, from its latent

  // The preset's "_checkpoints", the config's own format first; empty if only that one is known.
  std::vector<PublishedCheckpoint> checkpoints;

  std::vector<std::string> inexact;  // one sentence per part that is counted by formula
  // The same of windows and states. An engine that has pools for them does not need these sentences.
  std::vector<std::string> without_pages;
  std::vector<std::string> notes;  // one sentence per choice between readings of the config

  GivenFigures given;

  // Makes window layers keep the KV of all tokens, in the pages, beside full layers. Returns false, and does nothing,
  // if there are not both kinds of layers.
  bool page_windows();
  // Returns the KV bytes of a sequence of `tokens` tokens, over all layers. A window layer holds min(window, tokens).
  Bytes kv_bytes(Tokens tokens) const;

  // Returns the shape of one rank's page. KV heads are split over tp. If there are fewer heads than ranks, each head is
  // replicated. The MLA latent is one head, and each rank has the whole latent. Window and state layers are not
  // included, except that in a model without full attention the window layers count as if full.
  // Errors: ModelError if tp does not divide the heads.
  KvShape shape(std::uint32_t tp, std::uint32_t page_tokens) const;
  std::uint32_t paged_layers() const;
  // Returns the bytes of one token in a row, for one rank. Requires: `row` is a row of `layer`. Errors: as shape().
  double rank_token_bytes(const LayerGeometry& layer, const KvRow& row, std::uint32_t tp) const;

  // Return the KV bytes that a decode step of one rank reads. window_read_bytes: per context token within the window,
  // in window layers; for DSA, of the chosen tokens' latents. full_read_bytes: per token of the whole context, in the
  // other layers.
  Bytes window_read_bytes(std::uint32_t tp) const;
  Bytes full_read_bytes(std::uint32_t tp) const;
};

// `kv` overrides the cache's element type, `weights` the format of the weights, `given` the bytes of the cache. A
// config with an unknown model_type, or an unknown key about attention or the cache, is refused unless
// given.kv_bytes_per_token is set. model_from_file also reads hf_quant_config.json beside config.json,
// and takes weight_bytes from the checkpoint's safetensors in that folder, if there are any and `weights` is automatic.
ModelGeometry parse_model(std::string_view json, const std::string& file, KvDtype kv = KvDtype::automatic,
                          WeightChoice weights = WeightChoice::automatic, const GivenFigures& given = {});
ModelGeometry model_from_file(const std::string& path, KvDtype kv = KvDtype::automatic,
                              WeightChoice weights = WeightChoice::automatic, const GivenFigures& given = {});
ModelGeometry model_preset(std::string_view name, KvDtype kv = KvDtype::automatic,
                           WeightChoice weights = WeightChoice::automatic, const GivenFigures& given = {});

// Returns an empty text if the real world can serve the model, else a sentence with the reason.
std::string refuse_in_run(const ModelGeometry& model);

}  // namespace kvtwin

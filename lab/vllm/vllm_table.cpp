#include "lab/vllm/vllm_table.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace kvtwin {
namespace {

using Takes = EngineFlag::Takes;
using Is = EngineFlag::Is;

struct Modelled {
  std::string_view field;
  Takes takes;
  std::string_view preset, words, key;
};

struct NotModelled {
  std::string_view why, fields, key = "";
};

struct Alias {
  std::string_view name, field;
};

// Lists of fields below are as add_listed_flags() takes them.
constexpr Modelled kModelled[] = {
    {"model", Takes::text, "Qwen/Qwen3-0.6B", "", ""},
    {"quantization", Takes::text, "", "", ""},
    {"kv_cache_dtype", Takes::word, "auto",
     "auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 "
     "turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc octave_k3v4 octave_k3v3 octave_k3v3_compact "
     "ultraquant_4bit int4_per_token_head int8_per_token_head fp8_per_token_head nvfp4 nvfp4_4over6",
     "model.kv_dtype"},
    {"tensor_parallel_size", Takes::integer, "1", "", "parallel.tp"},
    {"data_parallel_size", Takes::integer, "1", "", ""},
    {"enable_expert_parallel", Takes::nothing, "", "", ""},
    {"block_size", Takes::integer, "16", "", "cache.page_tokens"},
    {"gpu_memory_utilization", Takes::number, "0.92", "", "tiers.device.memory_fraction"},
    {"kv_cache_memory_bytes", Takes::tokens, "", "", ""},
    {"num_gpu_blocks_override", Takes::integer, "", "", ""},
    {"disable_hybrid_kv_cache_manager", Takes::nothing, "", "", ""},
    {"prefix_cache_retention_interval", Takes::integer, "0", "", ""},
    {"max_num_batched_tokens", Takes::tokens, "", "", "scheduler.chunk_tokens"},
    {"max_num_seqs", Takes::integer, "", "", "scheduler.max_running"},
    {"max_num_active_seqs", Takes::integer, "", "", ""},
    {"performance_mode", Takes::word, "balanced", "balanced interactivity throughput", ""},
    {"scheduling_policy", Takes::word, "fcfs", "fcfs priority", "scheduler.order"},
    {"scheduler_reserve_full_isl", Takes::nothing, "true", "", "scheduler.admit_whole_prompt"},
    {"async_scheduling", Takes::nothing, "true", "", "serving.overlap"},
    {"enforce_eager", Takes::nothing, "", "", ""},
    {"kv_offloading_size", Takes::number, "", "", ""},
    {"kv_offloading_backend", Takes::word, "native", "lmcache native", ""},
    {"kv_transfer_config", Takes::text, "", "", ""},
    {"speculative_config", Takes::text, "", "", ""},
    {"spec_method", Takes::text, "", "", ""},
    {"spec_model", Takes::text, "", "", ""},
    {"spec_tokens", Takes::integer, "", "", ""},
};

constexpr NotModelled kNotModelled[] = {
    {"kvtwin always caches prefixes", "enable_prefix_caching!=true"},
    {"of parallelism, tensor ranks, groups of attention, experts and engines are modelled",
     "pipeline_parallel_size=1 decode_context_parallel_size=1 prefill_context_parallel_size=1 nnodes=1 "
     "enable_elastic_ep! enable_hc_sp!"},
    {"weights are stored as the model's preset or config.json says",
     "dtype=auto cpu_offload_gb=0 offload_backend=auto hf_overrides={} hf_config_path quantization_config "
     "cpu_offload_params* offload_group_size=0 model_class_overrides={}"},
    {"requests are as long as the trace says", "max_model_len"},
    {"kvtwin simulates the generation of text", "runner=auto convert=auto pooler_config diffusion_config"},
    {"a pass is bounded by --max-num-batched-tokens alone",
     "enable_chunked_prefill!=true max_num_scheduled_tokens long_prefill_token_threshold=0 "
     "long_prefill_token_threshold_adaptive! prefill_schedule_interval=1 enable_dbo! ubatch_size=0"},
    {"the scheduler works as without it", "scheduler_cls watermark=0.0 stream_interval=1"},
    {"arrivals are rejected by scheduler.max_waiting alone, which counts waiting requests of an engine",
     "max_num_queued_reqs max_num_queued_tokens", "scheduler.max_waiting"},
    {"of window and state layers, only the blocks of their groups are modelled",
     "disable_sliding_window! kv_cache_dtype_skip_layers* kv_sharing_fast_prefill! "
     "swa_bounded_replay!=true mamba_cache_dtype=auto mamba_ssm_cache_dtype=auto mamba_block_size "
     "mamba_cache_mode enable_mamba_shared_prefix_checkpoint! prefix_match_unit use_replayssm!"},
    {"a request's adapter is a namespace of pages if the trace names it (lora_path); the adapters' weights and times "
     "aren't counted",
     "enable_lora! lora_modules*"},
    {"that file isn't read: give what it says as flags", "config"},
};

// Flags of serving, logging, kernels, multimodal input and weights on disk have no effect: the cost model uses the
// figures of the hardware and not the kernels.
constexpr std::string_view kWithoutEffect =
    "additional_config aggregate_engine_logging! all2all_backend allow_credentials! "
    "allow_deprecated_quantization! allowed_headers allowed_local_media_path allowed_media_domains* "
    "allowed_methods allowed_origins anthropic_disabled_thinking_effort api_key* api_server_count "
    "attention_backend attention_config aux_output_config chat_template chat_template_content_format "
    "code_revision cohere_format cohere_is_reasoning_model! collect_detailed_traces* compilation_config "
    "config_format cp_kv_cache_interleave_size cpu_distributed_timeout_seconds cudagraph_capture_sizes* "
    "cudagraph_metrics! custom_histogram_buckets data_parallel_address data_parallel_backend "
    "data_parallel_external_lb! data_parallel_hybrid_lb! data_parallel_multi_port_external_lb! "
    "data_parallel_rank data_parallel_rpc_port data_parallel_size_local data_parallel_start_rank "
    "data_parallel_supervisor_port dbo_decode_token_threshold dbo_prefill_token_threshold "
    "dcp_comm_backend dcp_kv_cache_interleave_size dcp_q_replicate! default_chat_template_kwargs "
    "default_mm_loras device_ids disable_access_log_for_endpoints disable_cascade_attn! "
    "disable_chunked_mm_input! disable_custom_all_reduce! disable_fastapi_docs! disable_log_stats! "
    "disable_nccl_for_dp_synchronization! disable_uvicorn_access_log! distributed_executor_backend "
    "distributed_timeout_seconds download_dir dp_supervisor_probe_failure_threshold "
    "dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dp_sync_interval ec_manager_config "
    "ec_transfer_config elastic_ep_max_dp_size enable_auto_tool_choice! enable_batch_sharded_sampling! "
    "enable_cumem_allocator! enable_ep_weight_filter! enable_eplb! enable_fault_tolerance! "
    "enable_flash_late_interaction! enable_flashinfer_autotune! enable_force_include_usage! "
    "enable_layerwise_nvtx_tracing! enable_log_deltas! enable_log_outputs! enable_log_requests! "
    "enable_logging_iteration_details! enable_mamba_cache_stochastic_rounding! enable_mfu_metrics! "
    "enable_mixed_moe_lora_format! enable_mm_embeds! enable_moe_shared_loras! enable_nccl_comm_suspend! "
    "enable_offline_docs! enable_per_request_metrics! enable_prompt_embeds! enable_prompt_tokens_details! "
    "enable_request_id_headers! enable_return_routed_experts! enable_scale_out! "
    "enable_server_load_tracking! enable_shm_tensor_arena! enable_sleep_mode! enable_ssl_refresh! "
    "enable_tokenizer_info_endpoint! enable_tower_connector_lora! enable_trace_replay! engram_config "
    "eplb_config exclude_tools_when_tool_choice_none! expert_placement_strategy "
    "fail_on_environ_validation! fault_tolerance_config fingerprint_mode fingerprint_value "
    "fully_sharded_loras! gdn_prefill_backend generation_config grpc! grpc_port h11_max_header_count "
    "h11_max_incomplete_event_size headless! hf_token* host ignore_patterns* interleave_mm_strings! "
    "io_processor_plugin ir_op_priority jit_monitor_mode jit_monitor_verbose! kda_decode_backend "
    "kda_prefill_backend kernel_config kv_cache_metrics! kv_cache_metrics_sample kv_events_config "
    "language_model_only! limit_mm_per_prompt linear_backend load_format log_config_file log_error_stack! "
    "log_level logging_config logits_processors* logprobs_mode lora_dtype lora_target_modules* "
    "mamba_backend mamba_cache_philox_rounds mamba_ssu_algorithm master_addr master_port max_cpu_loras "
    "max_cudagraph_capture_size max_log_len max_logprobs max_lora_cls_labels max_lora_rank max_loras "
    "max_parallel_loading_workers media_io_kwargs middleware mm_device_do_normalize! "
    "mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path "
    "mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path mm_encoder_only! mm_encoder_tp_mode "
    "mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type "
    "mm_processor_device mm_processor_kwargs mm_shm_cache_max_object_size_mb mm_tensor_ipc model_impl "
    "model_loader_extra_config moe_backend monokernel! node_rank numa_bind! numa_bind_cpus* "
    "numa_bind_nodes* offload_num_in_group offload_params* offload_prefetch_step optimization_level "
    "otlp_traces_endpoint override_generation_config per_request_spec_decode_metrics port "
    "prefix_caching_hash_algo profiler_config pt_load_map_location ray_workers_use_nsight! "
    "reasoning_config reasoning_effort_map reasoning_parser reasoning_parser_plugin renderer_num_workers "
    "replayssm_buffer_len response_role return_sampling_mask! return_tokens_as_token_ids! revision "
    "root_path safetensors_load_strategy safetensors_prefetch_block_size safetensors_prefetch_num_threads "
    "seed served_model_name* show_hidden_metrics_for_version shutdown_timeout skip_mm_profiling! "
    "skip_tokenizer_init! sleep_mode_backend sleep_mode_offload_cudagraph! "
    "sleep_preserve_parameter_names* sparse_indexer_topk_backend specialize_active_lora! "
    "sse_keep_alive_interval ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers ssl_keyfile "
    "structured_outputs_config tokenizer tokenizer_mode tokenizer_revision tokens_only! tool_call_parser "
    "tool_parser_plugin tool_server tool_strict_level trust_remote_code! trust_request_chat_template! "
    "trust_request_mm_kwargs! uds use_fp64_gumbel! use_tqdm_on_load! uvicorn_log_level "
    "video_pruning_method video_pruning_rate watchdog_config watermark_config weight_transfer_config "
    "worker_cls worker_extension_cls";

constexpr Alias kAliases[] = {
    {"-asc", "api_server_count"},
    {"-ac", "attention_config"},
    {"-cc", "compilation_config"},
    {"-dpa", "data_parallel_address"},
    {"-dpb", "data_parallel_backend"},
    {"-dpe", "data_parallel_external_lb"},
    {"-dph", "data_parallel_hybrid_lb"},
    {"-dpm", "data_parallel_multi_port_external_lb"},
    {"-dpn", "data_parallel_rank"},
    {"-dpp", "data_parallel_rpc_port"},
    {"-dp", "data_parallel_size"},
    {"-dpl", "data_parallel_size_local"},
    {"-dpr", "data_parallel_start_rank"},
    {"-dcp", "decode_context_parallel_size"},
    {"-dc", "diffusion_config"},
    {"-ep", "enable_expert_parallel"},
    {"--device-memory-utilization", "gpu_memory_utilization"},
    {"-n", "nnodes"},
    {"-r", "node_rank"},
    {"-pp", "pipeline_parallel_size"},
    {"-pcp", "prefill_context_parallel_size"},
    {"-q", "quantization"},
    {"-sc", "speculative_config"},
    {"-tp", "tensor_parallel_size"},
};

// Switches without a negated name.
constexpr std::string_view kOnlyOn[] = {"headless", "grpc", "data_parallel_multi_port_external_lb", "disable_log_stats",
                                        "aggregate_engine_logging"};

constexpr FlagWord kWords[] = {
    {"kv_cache_dtype", "float16", "fp16"},
    {"kv_cache_dtype", "bfloat16", "bf16"},
    {"kv_cache_dtype", "fp8_e4m3", "fp8"},
    {"kv_cache_dtype", "fp8_e5m2", "fp8"},
    {"kv_cache_dtype", "fp8_inc", "fp8"},
    {"kv_cache_dtype", "fp8_ds_mla", "fp8", "its scales and rotary part are not counted as in the kernel's rows"},
    {"kv_cache_dtype", "nvfp4_ds_mla", "nvfp4", "its scales and rotary part are not counted as in the kernel's rows"},
    {"kv_cache_dtype", "nvfp4_4over6", "nvfp4"},
    {"kv_cache_dtype", "int4_per_token_head", "int4"},
    {"kv_cache_dtype", "fp8_per_token_head", "fp8", "the scale of each token and head isn't counted"},
    {"kv_cache_dtype", "int8_per_token_head", "fp8", "the scale of each token and head isn't counted"},
    {"kv_cache_dtype", "turboquant_k8v4", "fp8", "its values take 4 bits"},
    {"kv_cache_dtype", "turboquant_4bit_nc", "int4", "its rows are packed otherwise"},
    {"kv_cache_dtype", "turboquant_k3v4_nc", "int4", "its keys take 3 bits"},
    {"kv_cache_dtype", "turboquant_3bit_nc", "int4", "it takes 3 bits"},
    {"kv_cache_dtype", "octave_k3v4", "int4", "its keys take 3 bits"},
    {"kv_cache_dtype", "octave_k3v3", "int4", "it takes 3 bits"},
    {"kv_cache_dtype", "octave_k3v3_compact", "int4", "it takes 3 bits"},
    {"kv_cache_dtype", "ultraquant_4bit", "int4", "its rows are packed otherwise"},
    {"scheduling_policy", "priority", "fcfs", "it orders by the requests' priority"},
};

std::vector<EngineFlag> make_flags() {
  std::vector<EngineFlag> flags;
  for (const Modelled& row : kModelled) {
    flags.push_back({.field = std::string(row.field),
                     .name = flag_name_of(row.field),
                     .takes = row.takes,
                     .is = Is::modelled,
                     .preset = std::string(row.preset),
                     .words = row.words,
                     .key = row.key,
                     .why = ""});
  }
  for (const NotModelled& group : kNotModelled) {
    add_listed_flags(flags, group.fields, Is::not_modelled, group.why, group.key);
  }
  add_listed_flags(flags, kWithoutEffect, Is::without_effect);
  return flags;
}

// Returns the names that turn a switch off, as vLLM's parser makes them.
std::vector<std::string> names_of_off(const EngineFlag& flag) {
  static constexpr std::pair<std::string_view, std::string_view> kInverse[] = {{"--enable-", "--disable-"},
                                                                               {"--disable-", "--enable-"}};
  std::vector<std::string> names{"--no-" + flag.name.substr(2)};
  for (const auto& [prefix, inverse] : kInverse) {
    if (flag.name.starts_with(prefix)) names.push_back(std::string(inverse) + flag.name.substr(prefix.size()));
  }
  return names;
}

}  // namespace

const FlagTable& vllm_table() {
  static const FlagTable table = [] {
    std::vector<EngineFlag> flags = make_flags();
    std::vector<FlagTable::Alias> aliases;
    for (const auto& [name, field] : kAliases) aliases.push_back({std::string(name), std::string(field)});
    for (const EngineFlag& flag : flags) {
      if (flag.takes != Takes::nothing || std::ranges::find(kOnlyOn, flag.field) != std::end(kOnlyOn)) continue;
      for (std::string& name : names_of_off(flag)) aliases.push_back({std::move(name), flag.field, true});
    }
    return FlagTable("vLLM", kVllmVersion, std::move(flags), std::move(aliases), kWords);
  }();
  return table;
}

}  // namespace kvtwin

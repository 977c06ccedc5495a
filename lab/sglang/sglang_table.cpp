#include "lab/sglang/sglang_table.hpp"

#include <algorithm>
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
  bool hierarchical = false;
};

constexpr Modelled kModelled[] = {
    {"model_path", Takes::text, "", "", ""},
    {"quantization", Takes::word, "",
     "auto-round auto-round-int8 awq awq_marlin bitsandbytes compressed-tensors fp8 gguf gptq gptq_marlin humming "
     "mlx_q4 "
     "mlx_q8 modelopt modelopt_fp4 modelopt_fp8 modelopt_mixed modelslim moe_wna16 mxfp4 mxfp8 mxfp_w4a8 nvfp4_online "
     "petit_nvfp4 quark quark_int4fp8_moe quark_mxfp4 unquant w4afp8 w8a8_fp8 w8a8_int8",
     ""},
    {"kv_cache_dtype", Takes::word, "auto", "auto fp8_e5m2 fp8_e4m3 mxfp8 bf16 bfloat16 nvfp4 fp4_mx_block16 fp4_e2m1",
     "model.kv_dtype"},
    {"tp_size", Takes::integer, "1", "", "parallel.tp"},
    {"ep_size", Takes::integer, "1", "", "parallel.ep"},
    {"dp_size", Takes::integer, "1", "", "cluster.engines"},  // with enable_dp_attention: parallel.attention_dp
    {"enable_dp_attention", Takes::nothing, "", "", ""},
    {"attn_dp_size", Takes::integer, "1", "", "parallel.attention_dp"},
    {"load_balance_method", Takes::word, "auto", "auto round_robin follow_bootstrap_room total_requests total_tokens",
     "parallel.attention_route"},
    {"disaggregation_mode", Takes::word, "null", "null prefill decode", ""},
    {"disaggregation_decode_enable_radix_cache", Takes::nothing, "", "", "cluster.decode_cache"},
    {"page_size", Takes::integer, "1", "", "cache.page_tokens"},
    {"max_total_tokens", Takes::tokens, "", "", "tiers.device.tokens"},
    {"mem_fraction_static", Takes::number, "", "", "tiers.device.memory_fraction"},
    {"swa_full_tokens_ratio", Takes::number, "", "", "tiers.device.window_ratio"},
    {"mamba_full_memory_ratio", Takes::number, "", "", "tiers.device.state_ratio"},
    {"max_mamba_cache_size", Takes::integer, "", "", "tiers.device.states"},
    {"mamba_radix_cache_strategy", Takes::word, "auto", "auto extra_buffer extra_buffer_lazy no_buffer",
     "tiers.device.states_per_request"},
    {"mamba_track_interval", Takes::integer, "256", "", ""},  // cache.state_points: extra_buffer(interval=N)
    {"mamba_max_states_per_path", Takes::integer, "-1", "", "cache.states_per_path"},
    {"disable_hybrid_swa_memory", Takes::nothing, "", "", ""},
    {"disable_cuda_graph", Takes::nothing, "", "", ""},
    {"chunked_prefill_size", Takes::integer, "", "", "scheduler.chunk_tokens"},
    {"scheduler_recv_interval", Takes::integer, "1", "", "scheduler.poll_steps"},
    {"enable_mixed_chunk", Takes::nothing, "", "", "scheduler.mixed_chunks"},
    {"max_running_requests", Takes::integer, "", "", "scheduler.max_running"},
    {"max_queued_requests", Takes::integer, "", "", "scheduler.max_waiting"},
    {"schedule_policy", Takes::word, "fcfs",
     "lpm random fcfs dfs-weight lof priority routing-key hrrn shortest-prefill-first", "scheduler.order"},
    {"radix_eviction_policy", Takes::word, "lru", "lru lfu slru priority tlru", "cache.eviction"},
    {"radix_eviction_policy_config", Takes::text, "", "", ""},
    {"enable_session_radix_cache", Takes::nothing, "", "", "cache.session_radix"},
    {"enable_hierarchical_cache", Takes::nothing, "", "", ""},
    {"hicache_ratio", Takes::number, "2", "", "", true},
    {"hicache_size", Takes::integer, "0", "", "", true},
    {"hicache_host_memory_fraction", Takes::number, "0.8", "", "", true},
    {"hicache_host_memory_mode", Takes::word, "cache", "cache buffer_only", "cache.host_mode", true},
    {"hicache_write_policy", Takes::word, "write_through", "write_back write_through write_through_selective",
     "cache.write_policy", true},
    {"hicache_io_backend", Takes::word, "kernel", "direct kernel kernel_ascend", "cache.io", true},
    {"hicache_mem_layout", Takes::word, "page_first",
     "layer_first page_first page_first_direct page_first_kv_split page_head", "cache.layout", true},
    {"hicache_storage_backend", Takes::word, "",
     "file sim mooncake hf3fs nixl aibrix dynamic eic simm mori shm kvcc npu_memcache seaweedfs tensorcast", "", true},
    {"enable_unified_cache_external_linker", Takes::nothing, "", "", ""},
    {"unified_cache_external_linker_backend", Takes::word, "mooncake", "mooncake mori dynamic", ""},
    {"hicache_storage_prefetch_policy", Takes::word, "timeout", "best_effort wait_complete timeout",
     "cache.prefetch_policy", true},
    {"hicache_storage_prefetch_retry_poll_interval", Takes::integer, "8", "", "cache.prefetch_retry_steps", true},
    {"hicache_storage_prefetch_retry_max_attempts", Takes::integer, "8", "", "cache.prefetch_attempts", true},
    {"hicache_storage_backend_extra_config", Takes::text, "", "", "", true},
};

// Lists of fields as add_listed_flags() takes them.
struct NotModelled {
  std::string_view why, fields, key = "";
};

constexpr NotModelled kNotModelled[] = {
    {"kvtwin always caches prefixes",
     "disable_radix_cache! prefill_only_disable_kv_cache! is_embedding! strip_thinking_cache!"},
    {"of parallelism, tensor ranks, groups of attention and engines are modelled",
     "pp_size=1 dcp_size=1 attn_cp_size=1 moe_dp_size=1 dwdp_size=1 nnodes=1 enable_prefill_cp! "
     "enable_dsa_cache_layer_split! enable_cp_decode_attn_tp! moe_dense_tp_size "
     "shared_experts_tp_size enable_kv_cache_sharding!"},
    {"weights are stored as the model's preset or config.json says",
     "dtype=auto modelopt_quant quantize_and_serve! cpu_offload_gb=0 json_model_override_args={}"},
    {"requests are as long as the trace says", "context_length allow_auto_truncate!"},
    {"a prefill pass is bounded by --chunked-prefill-size alone",
     "max_prefill_tokens=16384 prefill_max_requests enable_dynamic_chunking!"},
    {"the scheduler works as without it",
     "schedule_conservativeness=1.0 num_continuous_decode_steps=1 prefill_decode_interval=0 "
     "prefill_decode_interval_min_bs=0 "
     "enable_priority_scheduling! disable_priority_preemption! default_priority_value "
     "schedule_low_priority_values_first! priority_scheduling_preemption_threshold=10 retraction_policy=length "
     "enable_prefill_delayer! min_free_slots_delay disable_overlap_schedule! enable_pdmux! "
     "num_reserved_decode_tokens=512 "
     "optimistic_prefill_attempts=0"},
    {"windows and states are kept as without it",
     "enable_unified_memory! enable_page_major_kv_layout! mamba_ssm_dtype "
     "enable_int8_mamba_checkpoint! int8_mamba_ckpt_size swa_prefix_tails "
     "enable_encoder_swa_bounded_replay! enable_decoder_swa_bounded_replay!"},
    {"speculative decoding and its draft model are left out of this plan; model.draft.kind, model.draft.config and "
     "model.draft.accept_length add them",
     "speculative_algorithm speculative_draft_model_path speculative_num_steps speculative_eagle_topk "
     "speculative_num_draft_tokens speculative_draft_kv_cache_dtype uno_lora_path",
     "model.draft.kind"},
    {"a request's adapter is a namespace of pages if the trace names it (lora_path); the adapters' weights and times "
     "aren't counted",
     "enable_lora! lora_paths*"},
    {"kvtwin's tiers stand for HiCache's own only",
     "enable_lmcache! lmcache_config_file enable_flexkv! flexkv_config_file radix_cache_backend enable_hisparse! "
     "hisparse_config "
     "unified_cache_external_linker_config enable_streaming_session!"},
    {"engines with roles hand over without it",
     "disaggregation_decode_enable_offload_kvcache! "
     "disaggregation_decode_retraction_backup disaggregation_decode_host_receive_threshold=1.0 "
     "disaggregation_decode_allocation_policy=early enable_pd_role_switch!"},
    {"that file isn't read: give what it says as flags", "config"},
};

// Flags of serving, logging, kernels and weights on disk have no effect: the cost model uses the figures of the
// hardware and not the kernels.
constexpr std::string_view kWithoutEffect =
    // model and tokenizer
    "tokenizer_path tokenizer_mode tokenizer_backend tokenizer_worker_num detokenizer_worker_num skip_tokenizer_init! "
    "load_format model_loader_extra_config trust_remote_code! enable_multimodal! revision model_impl "
    "model_config_parser quantization_param_path enable_fp32_lm_head! modelopt_checkpoint_restore_path "
    "modelopt_checkpoint_save_path modelopt_export_path rl_quant_profile enable_tf32_matmul! no_enable_tf32_matmul! "
    // scheduling
    "c128_page_size abort_on_priority_when_disabled! disable_chunked_prefix_cache! "
    "prefill_delayer_max_delay_passes prefill_delayer_token_usage_low_watermark prefill_delayer_queue_min_ratio "
    "prefill_delayer_forward_passes_buckets* prefill_delayer_wait_seconds_buckets* prefill_delayer_max_delay_ms "
    // topology
    "nccl_port dist_timeout dist_init_addr gated_launch_port node_rank pp_max_micro_batch_size pp_async_batch_depth "
    "dcp_comm_backend dcp_replicate_q_proj! no_dcp_replicate_q_proj! cp_strategy "
    "enable_dp_attention_local_control_broadcast! enable_dp_lm_head! enable_tp_lm_head_all_to_all! "
    "no_enable_tp_lm_head_all_to_all! enable_attn_tp_input_scattered! enable_shared_experts_attn_tp! "
    "enable_dense_mlp_attn_tp! disable_attn_tp_gather! enable_p2p_check! boundary_reduction enable_layernorm_sp! "
    "enable_megamoe_for_layernorm_sp! "
    // device and server
    "device base_gpu_id gpu_id_step random_seed mlx_enable_sampling! watchdog_timeout soft_watchdog_timeout "
    "sleep_on_idle! use_ray! numa_node* gc_threshold* host port fastapi_root_path smg_grpc_mode! grpc_mode! grpc_port "
    "sidecar sidecar_args skip_server_warmup! warmups enable_http2! http2_max_concurrent_streams ssl_keyfile "
    "ssl_certfile ssl_ca_certs ssl_keyfile_password enable_ssl_refresh! api_key admin_api_key served_model_name "
    "weight_version chat_template hf_chat_template_name completion_template file_storage_path enable_cache_report! "
    "reasoning_parser default_chat_template_kwargs enable_strict_thinking! tool_call_parser tool_server "
    "sampling_defaults asr_max_buffer_seconds asr_max_concurrent_sessions preferred_sampling_params stream_interval "
    "batch_notify_size stream_response_default_include_usage! incremental_streaming_output! "
    "enable_http_worker_reuseport! enable_response_store! enable_watermark! watermark_config "
    "grpc_response_timeout_secs http2_initial_connection_window_size return_input_ids! return_output_ids! "
    "sampling_mask_max_tokens trust_request_chat_template! "
    // logs and metrics
    "log_level log_level_http log_requests! log_requests_level log_requests_format log_requests_target* "
    "uvicorn_access_log_exclude_prefixes* crash_dump_folder show_time_cost! enable_metrics! smg_http_sidecar_port "
    "enable_mfu_metrics! enable_metrics_for_all_schedulers! load_snapshot_publish_interval "
    "tokenizer_metrics_custom_labels_header tokenizer_metrics_allowed_custom_labels* extra_metric_labels "
    "bucket_time_to_first_token* bucket_inter_token_latency* bucket_e2e_request_latency* prompt_tokens_buckets* "
    "generation_tokens_buckets* gc_warning_threshold_secs decode_log_interval enable_request_time_stats_logging! "
    "kv_events_config enable_forward_pass_metrics! forward_pass_metrics_worker_id forward_pass_metrics_ipc_name "
    "enable_trace! trace_modules otlp_traces_endpoint export_metrics_to_file! export_metrics_to_file_dir "
    "constrained_json_whitespace_pattern constrained_json_disable_any_whitespace! "
    "constrained_json_max_whitespace_cnt load_publish_endpoint otlp_service_name "
    // kernels and graphs
    "attention_backend decode_attention_backend prefill_attention_backend sampling_backend grammar_backend "
    "mm_attention_backend fp8_gemm_runner_backend fp4_gemm_runner_backend bf16_gemm_backend dsa_prefill_backend "
    "dsv4_prefill_backend dsa_decode_backend dsa_paged_mqa_logits_backend "
    "dsa_topk_backend dsa_triton_union dsv4_attn_backend enable_dsa_fused_indexer! no_enable_dsa_fused_indexer! "
    "qsa_indexer_dtype prefill_kv_cache_dequant_dtype enable_lean_attention! enable_nvidia_megakernel! "
    "enable_amd_monokernel! monokernel_backend disable_flashinfer_autotune! "
    "flashinfer_autotune_skip_ops* mamba_backend cuda_graph_config cuda_graph_backend_decode "
    "cuda_graph_backend_prefill cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_bs_decode* "
    "cuda_graph_bs_prefill* cuda_graph_max_seq_len_prefill cuda_graph_prefill_max_context "
    "disable_prefill_cuda_graph! disable_decode_cuda_graph! disable_cuda_graph_padding! "
    "enable_profile_cuda_graph! enable_cudagraph_gc! debug_cuda_graph! enable_layerwise_nvtx_marker! enable_nccl_nvls! "
    "enable_symm_mem! triton_attention_reduce_in_fp32! "
    "triton_attention_num_kv_splits triton_attention_split_tile_size flashinfer_mla_disable_ragged! "
    "enable_fused_qk_norm_rope! no_enable_fused_qk_norm_rope! disable_aiter_allreduce_fusion_in_decode! "
    "disable_aiter_allreduce_fusion_in_prefill! enable_precise_embedding_interpolation! "
    "enable_fused_moe_sum_all_reduce! "
    "enable_deepseek_v4_fp4_indexer! disable_custom_all_reduce! enable_mscclpp! enable_torch_symm_mem! "
    "enable_scattered_sconv! pre_warm_nccl! enable_quant_communications! enable_flashinfer_allreduce_fusion! "
    "enforce_disable_flashinfer_allreduce_fusion! flashinfer_allreduce_fusion_backend enable_aiter_allreduce_fusion! "
    "enable_torch_compile! enable_torch_compile_debug_mode! torch_compile_max_bs "
    // speculative decoding, except the flags of the draft model
    "speculative_draft_model_revision speculative_draft_load_format speculative_dflash_block_size "
    "speculative_dspark_block_size speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path "
    "speculative_dspark_align_verify_tokens_to_graph_tier! speculative_accept_threshold_single "
    "speculative_accept_threshold_acc speculative_use_rejection_sampling! speculative_token_map "
    "speculative_attention_mode speculative_draft_attention_backend speculative_dsa_topk_backend "
    "speculative_draft_window_size speculative_moe_runner_backend speculative_moe_a2a_backend "
    "speculative_draft_model_quantization speculative_domino_candidate_pool_size speculative_draft_sink_size "
    "speculative_enable_w4a4_mxfp4_megamoe! no_speculative_enable_w4a4_mxfp4_megamoe! "
    "speculative_use_block_verification! enable_multi_layer_eagle! "
    "speculative_adaptive! speculative_adaptive_config decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints "
    "decoupled_spec_rank decoupled_spec_role spec_trace_dir speculative_ngram_min_bfs_breadth "
    "speculative_ngram_max_bfs_breadth speculative_ngram_match_type speculative_ngram_max_trie_depth "
    "speculative_ngram_capacity speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget "
    "speculative_ngram_external_corpus_max_tokens "
    // experts
    "moe_a2a_backend enable_w4a4_mxfp4_megamoe! deepep_v2_mode moe_runner_backend flashinfer_mxfp4_moe_precision "
    "deepep_mode fuseep_mode deepep_dispatcher_output_dtype ep_num_redundant_experts ep_dispatch_algorithm "
    "init_expert_location enable_eplb! eplb_algorithm eplb_rebalance_num_iterations eplb_rebalance_layers_per_chunk "
    "eplb_min_rebalancing_utilization_threshold expert_distribution_recorder_mode "
    "expert_distribution_recorder_buffer_size expert_balancedness_report_mode flashinfer_a2a_dispatch_type "
    "enable_paged_experts! paged_experts_num_resident "
    "deepep_config elastic_ep_backend enable_elastic_expert_backup! mooncake_ib_device enable_waterfill! "
    "elastic_ep_join_mode elastic_ep_join_rank_offset elastic_ep_initial_size max_ep_size elastic_ep_scale_timeout "
    "disable_flashinfer_cutlass_moe_fp4_allgather! disable_shared_experts_fusion! "
    "enforce_shared_experts_fusion! kt_weight_path kt_method kt_cpuinfer "
    "kt_threadpool_count kt_num_gpu_experts kt_max_deferred_experts_per_token "
    // kernels of state-space layers
    "enable_mamba_cache_stochastic_rounding! mamba_cache_philox_rounds linear_attn_backend "
    "linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend enable_linear_replayssm! "
    "linear_replayssm_cache_len enable_linear_replayssm_spec! "
    // flags of HiCache without a model
    "enable_linker_mla_dedup! no_enable_decoder_swa_bounded_replay! "
    // multimodal input
    "enable_broadcast_mm_inputs_process! enable_prefix_mm_cache! mm_enable_dp_encoder! no_mm_enable_dp_encoder! "
    "mm_process_config "
    "mm_processor_worker_num mm_io_worker_num allowed_media_domains* media_url_max_file_size_mb "
    "mm_preprocess_cache_size_mb trust_mm_content_hashes! limit_mm_data_per_request enable_mm_global_cache! "
    "image_processor_backend mm_global_cache_backend disable_fast_image_processor! mm_feature_transport "
    // adapters, except the flags that name them
    "enable_lora_overlap_loading! max_lora_rank lora_target_modules* max_loaded_loras max_loras_per_batch "
    "lora_eviction_policy lora_backend max_lora_chunk_size experts_shared_outer_loras! no_experts_shared_outer_loras! "
    "lora_use_virtual_experts! lora_strict_loading! no_lora_strict_loading! lora_drain_wait_threshold "
    // overlap, offloading, diffusion, roles
    "enable_two_batch_overlap! enable_single_batch_overlap! tbo_token_distribution_threshold offload_group_size "
    "offload_num_in_group offload_prefetch_step offload_mode ple_offload_embedding! no_ple_offload_embedding! "
    "ple_offload_backend ple_offload_dir dllm_algorithm dllm_algorithm_config dllm_fdfo! "
    "no_dllm_fdfo! disaggregation_transfer_backend disaggregation_bootstrap_port disaggregation_ib_device "
    "disaggregation_enable_kv_checksum! disaggregation_decode_extra_slots disaggregation_decode_polling_interval "
    "encoder_only! language_only! "
    "language_model_only! encoder_transfer_backend encoder_urls* encoder_bootstrap_port encoder_register_urls* "
    "enable_adaptive_dispatch_to_encoder! pdmux_config_path sm_group_num "
    // weights on disk
    "startup_weight_load_mode custom_weight_loader* weight_loader_disable_mmap! weight_loader_prefetch_checkpoints! "
    "weight_loader_prefetch_num_threads weight_loader_drop_cache_after_load! "
    "remote_instance_weight_loader_seed_instance_ip remote_instance_weight_loader_seed_instance_service_port "
    "remote_instance_weight_loader_send_weights_group_ports remote_instance_weight_loader_backend "
    "remote_instance_weight_loader_start_seed_via_transfer_engine! engine_info_bootstrap_port modelexpress_config "
    "download_dir model_checksum* delete_ckpt_after_loading! decrypted_config_file decrypted_draft_config_file "
    "checkpoint_engine_wait_weights_before_ready! weight_cache_mode weight_cache_socket weight_cache_timeout "
    // debugging and the rest
    "enable_deterministic_inference! rl_on_policy_target kv_canary kv_canary_real_data kv_canary_sweep_interval "
    "enable_dynamic_batch_tokenizer! dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout "
    "enable_tokenizer_batch_encode! disable_tokenizer_batch_decode! debug_tensor_dump_output_folder "
    "debug_tensor_dump_layers* debug_tensor_dump_input_file enable_memory_saver! enable_weights_cpu_backup! "
    "enable_draft_weights_cpu_backup! enable_custom_logit_processor! enable_return_hidden_states! "
    "return_hidden_states_mode enable_return_routed_experts! enable_return_indexer_topk! "
    "enable_return_aux_hidden_states! return_aux_hidden_state_layer_ids* "
    "disable_outlines_disk_cache! enable_mis! forward_hooks msprobe_dump_config";

// Flags of earlier releases, which scripts still use. All are without effect.
constexpr std::string_view kOfEarlierReleases =
    "prefill_round_robin_balance! stream_output! nsa_prefill_backend "
    "nsa_decode_backend cuda_graph_tc_compiler cuda_graph_max_bs cuda_graph_bs* enable_piecewise_cuda_graph! "
    "disable_piecewise_cuda_graph! piecewise_cuda_graph_max_tokens piecewise_cuda_graph_tokens* "
    "piecewise_cuda_graph_compiler speculative_skip_dp_mlp_sync! enable_expert_distribution_metrics! "
    "elastic_ep_rejoin! enable_ep_moe! enable_deepep_moe! disable_hicache_numa_detect! mooncake_store_contributor! "
    "keep_mm_feature_on_device! mm_max_concurrent_calls mm_per_request_timeout";

constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"--model", "model_path"},
    {"--nccl-init-addr", "dist_init_addr"},
    {"--tensor-parallel-size", "tp_size"},
    {"--decode-context-parallel-size", "dcp_size"},
    {"--pipeline-parallel-size", "pp_size"},
    {"--data-parallel-size", "dp_size"},
    {"--attention-context-parallel-size", "attn_cp_size"},
    {"--moe-data-parallel-size", "moe_dp_size"},
    {"--expert-parallel-size", "ep_size"},
    {"--ep", "ep_size"},
    {"--tp", "tp_size"},  // common short forms; today each is the prefix of one flag
    {"--dp", "dp_size"},
    {"--pp", "pp_size"},
    {"--speculative-draft-model", "speculative_draft_model_path"},
    {"--fp8-gemm-backend", "fp8_gemm_runner_backend"},
    {"--fp4-gemm-backend", "fp4_gemm_runner_backend"},
    {"--enable-hicache", "enable_hierarchical_cache"},
    {"--hicache-storage-prefetch-max-attempts", "hicache_storage_prefetch_retry_max_attempts"},  // its earlier name
    {"--attention-data-parallel-size", "attn_dp_size"},
    {"--context-bucket", "cuda_graph_prefill_max_context"},
    {"--hierarchical-sparse-attention-extra-config", "hisparse_config"},
    {"--grpc-http-sidecar-port", "smg_http_sidecar_port"},
};

constexpr std::string_view kServerInfoFields[] = {"max_total_num_tokens",
                                                  "max_req_input_len",
                                                  "internal_states",
                                                  "version",
                                                  "scheduler_info",
                                                  "kv_events",
                                                  "status",
                                                  "uses_mamba_radix_cache",
                                                  "stat_loggers",
                                                  "custom_sigquit_handler",
                                                  "ep_join_mode",
                                                  "ep_join_rank_offset",
                                                  "enable_prefill_context_parallel",
                                                  "prefill_cp_mode",
                                                  "enable_dsa_prefill_context_parallel",
                                                  "dsa_prefill_cp_mode",
                                                  "launch_command",
                                                  "startup_time",
                                                  "grpc_worker_threads",
                                                  "speculative_boundary_reduction",
                                                  "enable_cp_tp_group_sharing",
                                                  "aux_hidden_state_capture",
                                                  "watermark_key",
                                                  "watermark_key_b",
                                                  "watermark_context_window",
                                                  "watermark_mixing_probability",
                                                  "watermark_max_probability",
                                                  "watermark_default_enabled",
                                                  "watermark_enforce_all",
                                                  "_speculative_draft_quantization_explicitly_set",
                                                  "_radix_eviction_policy_explicitly_set",
                                                  "_swa_full_tokens_ratio_explicitly_set"};

constexpr FlagWord kWords[] = {
    {"schedule_policy", "lpm", "longest_prefix"},
    {"kv_cache_dtype", "fp8_e4m3", "fp8"},
    {"kv_cache_dtype", "fp8_e5m2", "fp8"},
    {"kv_cache_dtype", "bfloat16", "bf16"},
    {"kv_cache_dtype", "fp4_mx_block16", "nvfp4", "its pages are as large, and its workspace isn't counted"},
    {"kv_cache_dtype", "fp4_e2m1", "nvfp4", "its pages are as large, and its workspace isn't counted"},
    {"schedule_policy", "dfs-weight", "longest_prefix", "it orders by the tree's weight"},
    {"schedule_policy", "random", "fcfs", "its order is drawn"},
    {"schedule_policy", "lof", "fcfs", "it takes the longest output first"},
    {"schedule_policy", "priority", "fcfs", "it orders by the requests' priority"},
    {"schedule_policy", "routing-key", "fcfs", "it orders by the requests' routing key"},
    {"schedule_policy", "shortest-prefill-first", "shortest_prefill_first"},
    {"load_balance_method", "auto", "round_robin"},
    {"load_balance_method", "total_requests", "least_loaded"},
    {"load_balance_method", "total_tokens", "least_loaded", "it counts tokens and not requests"},
    {"load_balance_method", "follow_bootstrap_room", "round_robin", "the router draws a number for each request"},
    {"mamba_radix_cache_strategy", "auto", "0"},
    {"mamba_radix_cache_strategy", "extra_buffer", "5"},
    {"mamba_radix_cache_strategy", "extra_buffer_lazy", "4"},
    {"mamba_radix_cache_strategy", "no_buffer", "3"},
    {"hicache_host_memory_mode", "buffer_only", "buffer"},
    {"hicache_io_backend", "kernel_ascend", "kernel", "it is the NPU's copy kernel"},
    {"hicache_mem_layout", "page_first_kv_split", "page_first", "it keeps K and V in pools of their own"},
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
                     .why = "",
                     .earlier = false,
                     .hierarchical = row.hierarchical});
  }
  for (const NotModelled& group : kNotModelled) {
    add_listed_flags(flags, group.fields, Is::not_modelled, group.why, group.key);
  }
  add_listed_flags(flags, kWithoutEffect, Is::without_effect);
  const std::size_t of_the_release = flags.size();
  add_listed_flags(flags, kOfEarlierReleases, Is::without_effect);
  for (std::size_t i = of_the_release; i < flags.size(); ++i) flags[i].earlier = true;
  return flags;
}

}  // namespace

const FlagTable& sglang_table() {
  static const FlagTable table = [] {
    std::vector<FlagTable::Alias> aliases;
    for (const auto& [name, field] : kAliases) aliases.push_back({std::string(name), std::string(field)});
    return FlagTable("SGLang", kSglangVersion, make_flags(), std::move(aliases), kWords);
  }();
  return table;
}

bool is_server_info_field(std::string_view field) {
  return std::ranges::find(kServerInfoFields, field) != std::end(kServerInfoFields);
}

}  // namespace kvtwin

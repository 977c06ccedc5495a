// Checks that every key of an experiment changes a result, or that all values except the supported one are errors. A
// new key needs a row here.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "tests/hardware_file.hpp"
#include "tests/paths.hpp"
#include "tests/price_list.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

const std::string kModels = in_source("models/presets/models/");
const std::string kOperators = in_source("models/presets/operators/");

struct Knob {
  std::string key;
  std::string one, other;
  Settings base;  // if not empty: replaces the common base
};

class Knobs : public testing::Test {
 protected:
  // Both tiers evict and hit, requests queue, and the PCIe link and host memory are busy.
  Settings busy() {
    return conversations({.requests = 250, .gap_ms = 60}, 1).save(folder_) +
           Settings{"tiers.device.tokens=20032", "tiers.host.tokens=60032"};
  }

  std::vector<Knob> moving() {
    const Settings generated{"workload.generate.duration_s=60"};
    const Settings served{"serving.engine=vllm"};
    const Settings ordered = busy() + Settings{"scheduler.order=longest_prefix"};
    const Settings ranks = busy() + Settings{"parallel.tp=2", "parallel.rank_model=instances"};
    const Settings drafted =
        busy() + Settings{"model.draft.kind=side_pool", "model.draft.config=tiny", "model.draft.accept_length=2.5"};
    const Settings offloaded = busy() + Settings{"scheduler.style=vllm", "cache.offload=vllm"};
    const Settings stored = busy() + Settings{"tiers.host.tokens=30016", "tiers.disk.tokens=400000"};
    const Settings shared_fs =
        busy() + Settings{"hardware.set.shared_fs_read_bandwidth=2", "hardware.set.shared_fs_write_bandwidth=2",
                          "hardware.set.shared_fs_latency=200", "hardware.set.shared_fs_file=50"};
    const Settings remote = busy() + Settings{"tiers.host.tokens=30016", "tiers.remote.tokens=400000"};
    const Settings nodes = remote + Settings{"hardware.set.pool_nodes=2", "hardware.set.pool_node_gbps=0.5"};
    const Settings slow_disk = stored + Settings{"hardware.set.disk_read_gbps=0.2"};
    const Settings crowded = slow_disk + Settings{"cache.rules.prefetch_host_share=0.05"};
    const Settings affine = busy() + Settings{"cluster.engines=2", "cluster.route=prefix_affinity"};
    const Settings scored = busy() + Settings{"cluster.engines=2", "cluster.route=score"};
    const Settings roles = busy() + Settings{"cluster.prefill=1", "cluster.decode=2"};
    const Settings stateful = busy() + Settings{"model.name=qwen3-next-80b-a3b", "tiers.device.gib=6"};
    const Settings uncertain = busy() + Settings{"hardware.spread_percent=20"};
    const Settings returning{"workload.generate.kind=returning", "workload.generate.prompt_tokens=2048",
                             "workload.generate.working_set_tokens=40000", "tiers.device.tokens=20032"};
    const Settings groups{"workload.generate.kind=groups", "workload.generate.groups=8",
                          "workload.generate.prefix_tokens=1024", "tiers.device.tokens=20032"};
    const Settings users{"workload.generate.kind=sessions",  "workload.loop=closed",
                         "workload.generate.duration_s=60",  "workload.generate.users=8",
                         "workload.generate.new_tokens=300", "workload.generate.output_tokens=16",
                         "workload.generate.turns_least=2",  "workload.generate.turns_most=6",
                         "workload.generate.think_s=5",      "workload.generate.prefix_tokens=0"};
    const Settings sessions{"workload.generate.kind=sessions",         "workload.generate.duration_s=60",
                            "workload.generate.prompt_tokens=2048",    "workload.generate.turns=4",
                            "workload.generate.requests_per_second=2", "workload.generate.think_s=5",
                            "workload.generate.prefix_tokens=256",     "workload.generate.output_tokens=64"};
    const Settings clients = groups + Settings{"workload.loop=closed"};
    // These ten ids fit blocks of 64 to 70 tokens.
    TraceText ambiguous(64);
    ambiguous.request(0, 1, ids(0, 10));
    std::vector<std::uint64_t> half = ids(0, 5);
    for (const std::uint64_t id : ids(100, 5)) half.push_back(id);
    ambiguous.request(60'000, 1, half);
    const Settings blocks{ambiguous.save(folder_, "ambiguous.jsonl").front(), "cache.page_tokens=16"};
    // The times may be in ms or in seconds, depending on the format.
    write_text(
        folder_ / "either.jsonl",
        R"({"timestamp":0,"input_length":64,"output_length":2,"hash_ids":[1,2,3,4],"chat_id":1,"parent_chat_id":-1})"
        "\n"
        R"({"timestamp":7,"input_length":64,"output_length":2,"hash_ids":[1,2,3,4],"chat_id":2,"parent_chat_id":1})"
        "\n");
    const Settings either{"workload.trace=" + folder_ / "either.jsonl", "workload.block_tokens=16"};
    write_text(folder_ / "lengths.csv",
               "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,480,10\n2023-11-16 18:17:05,480,10\n");
    const Settings lengths{"workload.trace=" + folder_ / "lengths.csv"};
    const std::string session = R"({"block_size":64,"requests":[{"t":0,"in":200,"out":3,"hash_runs":[[1,3]]}]})"
                                "\n";
    write_text(folder_ / "agents.jsonl", session + session + session);
    const Settings agents{"workload.trace=" + folder_ / "agents.jsonl"};
    const std::string slow = hardware_setting(
        folder_, "h100-sxm", "slow.json",
        [](const std::string& key, const std::string&) { return key == "memory_bandwidth" ? 0.5 : 1.0; });
    const std::string same =
        hardware_setting(folder_, "h100-sxm", "same.json", [](const std::string&, const std::string&) { return 1.0; });
    const auto file_of = [](const std::string& setting) { return setting.substr(setting.find('=') + 1); };
    conversations({.requests = 50}, 2).save(folder_, "other.jsonl");
    // The same run, measured twice and four times as slow as predicted.
    const Json features = simulate(busy()).report.at("intervals_of").at("features");
    for (const int slower : {2, 4}) {
      Json figures = Json::array();
      for (const char* name : {"ttft_mean_s", "tpot_mean_s"}) {
        figures.push_back({{"figure", name}, {"measured", 0.1 * slower}, {"predicted", 0.1}});
      }
      const Json cell{{"intervals_of", {{"features", features}}}, {"figures", figures}};
      const fs::path own = fs::path(folder_ / ("slower" + std::to_string(slower)));
      fs::create_directories(own);
      Json whole;
      whole["cells"].push_back(cell);
      write_text(own / "validate.json", whole.dump());
    }
    // A pinned session comes back after others that fill the device. `alone`: only its requests name their session.
    std::string hinted, alone;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const std::uint64_t of_session = i % 10 == 0 ? 1 : i + 2;
      const std::string time = std::to_string(500 * i), number = std::to_string(of_session);
      std::string request = R"({"timestamp":)" + time + R"(,"input_length":256,"output_length":4,"hash_ids":[)";
      for (std::uint64_t block = 0; block < 4; ++block) {
        request += (block == 0 ? "" : ",") + std::to_string(4 * of_session + block);
      }
      const std::string named = request + R"(],"session":)" + number + "}\n";
      hinted += named;
      alone += of_session == 1 ? named : request + "]}\n";
      if (i == 0)
        hinted += R"({"timestamp":1,"hint":"pin","session":1})"
                  "\n";
    }
    write_text(folder_ / "hinted.jsonl", hinted);
    write_text(folder_ / "alone.jsonl", alone);
    const Settings pinned{"workload.trace=" + folder_ / "hinted.jsonl", "workload.block_tokens=64",
                          "tiers.device.tokens=1024", "tiers.host.tokens=0"};
    const Settings one_session = pinned + Settings{"workload.trace=" + folder_ / "alone.jsonl"};
    const std::string cheap = price_list(folder_, "cheap.toml", 1), dear = price_list(folder_, "dear.toml", 2);
    std::vector<Knob> knobs = {
        {"seed", "1", "2", generated},
        {"model.name", "llama-3.1-8b", "qwen3-coder-30b-a3b", {}},
        {"model.config", kModels + "llama-3.1-8b.json", kModels + "qwen3-coder-30b-a3b.json", {}},
        {"model.kv_dtype", "bf16", "fp8", {}},
        {"model.kv_bytes_per_token", "0", "65536", {}},
        {"model.state_bytes", "0", "1000000000", {}},
        {"model.weights", "bf16", "fp8", {}},
        {"serving.engine", "none", "vllm", {}},
        {"serving.request_us", "0", "5000", served},
        {"serving.token_ns", "0", "100000", served},
        {"serving.host_link_share", "1", "0.01", served + stored},
        {"serving.schedule_us", "0", "1000000", served},
        {"serving.step_us", "0", "10000", served},
        {"serving.sequence_us", "0", "10000", served},
        {"serving.kernel_us", "0", "100", served},
        {"serving.launch_us", "0", "10000", served},
        {"serving.prefix_factor", "1", "2", served},
        {"serving.prefill_factor", "1", "1.5", served},
        {"serving.cuda_graphs", "true", "false", served + Settings{"serving.launch_us=10000"}},
        {"serving.overlap", "true", "false", served + Settings{"serving.schedule_us=50000"}},
        {"parallel.ep", "1", "2",
         Settings{"model.name=qwen3-coder-30b-a3b", "parallel.tp=2", "hardware.operators=h100-sxm/sglang"}},
        {"parallel.expert_mode", "fused", "low_latency",
         Settings{"model.name=deepseek-v3", "hardware.name=gb200", "hardware.operators=gb200/sglang", "parallel.tp=8",
                  "parallel.ep=8"}},
        {"model.draft.kind", "none", "side_pool", drafted},
        {"model.draft.config", "tiny", "llama-3.1-8b", drafted},
        {"model.draft.accept_length", "2.5", "2.8", drafted},
        {"model.draft.accept_length_without_kv", "1", "2", drafted + Settings{"model.draft.restore=false"}},
        {"model.draft.restore", "true", "false", drafted},
        {"model.draft.tokens", "3", "5", drafted},
        {"engine", "sglang", "vllm", {}},
        {"tiers.device.window_ratio", "0", "0.2", busy() + Settings{"model.name=gpt-oss-120b", "tiers.device.gib=1"}},
        {"tiers.device.state_ratio", "0", "0.5", stateful},
        {"tiers.device.states", "0", "30", stateful},
        {"tiers.device.states_per_request", "0", "12", stateful},
        {"cache.state_points", "extra_buffer", "extra_buffer(chunk=512, interval=512)", stateful},
        {"cache.state_points", "align", "align(retention=16)",
         busy() + Settings{"model.name=gpt-oss-120b", "scheduler.style=vllm", "cache.page_tokens=16",
                           "tiers.host.tokens=0", "tiers.device.gib=4"}},
        {"cache.state_points", "overlap(states=1)", "overlap(states=4, apart=64)", stateful},
        {"cache.state_points", "overlap(apart=64)", "overlap(apart=64, chunk=512, interval=512)", stateful},
        {"cache.state_points", "overlap(states=3, apart=64, share=0)", "overlap(states=3, apart=64, share=1)",
         stateful},
        {"cache.states_per_path", "0", "1", stateful},
        {"cache.pool_eviction", "lru", "work_per_byte", stateful},
        {"cache.pool_eviction", "work_per_byte", "work_per_byte(inner=0)", stateful},
        {"cache.pool_eviction", "work_per_byte", "work_per_byte(leaves=false)",
         stateful + Settings{"tiers.device.states=60"}},
        {"hardware.name", "h100-sxm", "h200-sxm", {}},
        {"hardware.operators", "none", "h100-sxm/sglang", {}},
        {"hardware.operators_file", kOperators + "h100-sxm.sglang.zst", kOperators + "h200-sxm.sglang.zst",
         busy() + Settings{"hardware.operators_of_another_gpu=true"}},
        {"hardware.draw", "1", "2", uncertain},
        {"hardware.spread_percent", "10", "50", uncertain + Settings{"hardware.draw=1"}},
        {"hardware.end", "memory_bandwidth:low", "memory_bandwidth:high", uncertain},
        {"hardware.file", file_of(same), file_of(slow), {}},
        {"prices.file", cheap, dear, {}},
        {"report.validated", folder_ / "slower2", folder_ / "slower4", {}},
        {"workload.recipe", "inferencemax-1k1k", "inferencemax-8k1k",
         Settings{"workload.generate.concurrency=4", "workload.limit=8", "tiers.device.tokens=200000"}},
        {"workload.trace", folder_ / "trace.jsonl", folder_ / "other.jsonl", {}},
        {"workload.block_tokens", "64", "70", blocks},
        {"workload.format", "mooncake", "qwen", either},
        {"workload.shared_tokens", "0", "128", lengths},
        {"workload.session_gap_s", "30", "1", agents},
        {"workload.generate.kind", "chat", "tools", generated},
        {"workload.generate.kind", "chat", "agentic", generated},
        {"workload.generate.requests_per_second", "6.67", "5", generated + Settings{"workload.generate.kind=tools"}},
        {"workload.generate.requests", "40", "41", generated},
        {"workload.generate.duration_s", "60", "90", {"workload.generate.requests=0"}},
        {"workload.generate.sessions_per_second", "2.08", "2.5", generated},
        {"workload.limit", "0", "100", {}},
        {"workload.shrink", "1", "2", {}},
        {"workload.time_scale", "1.0", "1.5", {}},
        {"workload.loop", "open", "closed", generated},
        {"workload.service_s", "0", "0.05", generated + Settings{"workload.loop=closed"}},
        {"parallel.tp", "1", "2", {}},
        {"parallel.attention_dp", "1", "2", busy() + Settings{"parallel.tp=2"}},
        {"parallel.attention_route", "round_robin", "prefix_affinity",
         busy() + Settings{"parallel.tp=2", "parallel.attention_dp=2"}},
        {"cache.page_tokens", "64", "16", {}},
        {"cache.hybrid_allocator", "true", "false", busy() + Settings{"model.name=gpt-oss-120b"}},
        {"cache.layout", "page_first", "layer_first", {}},
        {"cache.eviction", "lru", "fifo", {}},
        {"cache.evict_unit", "page", "node", {}},
        {"cache.offload", "hicache", "vllm", busy() + Settings{"scheduler.style=vllm"}},
        {"cache.offload_eviction", "lru", "arc", offloaded},
        {"cache.offload_threshold", "0", "2", offloaded},
        {"cache.offload_prompt_only", "true", "false", offloaded},
        {"cache.offload_backpressure", "none", "drop",
         offloaded + Settings{"tiers.disk.tokens=400000", "hardware.set.disk_write_gbps=0.5"}},
        {"cache.write_policy", "write_through", "write_through_selective", {}},
        {"cache.write_policy", "write_through", "write_back", {}},
        {"cache.clean_reserve", "0.02", "0.4", busy() + Settings{"cache.write_policy=write_back"}},
        {"cache.rules.raise_prompt_priority", "false", "true", busy() + Settings{"cache.eviction=priority"}},
        {"cache.eviction", "slru", "slru(protected=5)", {}},
        {"cache.eviction", "tlru", "tlru(threshold=4Ki)", {}},
        {"cache.eviction", "tlru(threshold=4Ki)", "tlru(threshold=4Ki, next_prompt=4Ki)", {}},
        {"cache.tiering", "inclusive", "exclusive", busy() + Settings{"cache.write_policy=write_back"}},
        {"cache.host_clean_reserve", "0", "0.3", stored},
        {"cache.host_clean_reserve", "0.1", "0.9", stored},
        {"cache.host_mode", "cache", "until_stored", stored},
        {"cache.host_mode", "cache", "buffer", stored},
        {"cache.rules.reclaim_shadowed", "false", "true", busy() + Settings{"tiers.host.tokens=15040"}},
        {"cache.rules.reclaim_order", "inserted", "shadowed",
         busy() +
             Settings{"cache.write_policy=write_back", "cache.rules.reclaim_shadowed=true", "tiers.host.tokens=15040"}},
        {"cache.rules.host_evicts_leaving", "false", "true",
         busy() + Settings{"cache.write_policy=write_back", "cache.eviction=mru", "tiers.host.tokens=15040"}},
        {"cache.rules.count_touches", "admission", "insert", busy() + Settings{"cache.eviction=lfu"}},
        {"cache.rules", "", "count_touches=insert", busy() + Settings{"cache.eviction=lfu"}},
        {"cache.write_threshold", "1", "2", {}},
        {"cache.rules.split_refreshes", "false", "true", busy() + Settings{"cache.evict_unit=node"}},
        {"cache.rules.look_ups_refresh", "false", "true", busy()},
        {"cache.io", "auto", "kernel", {}},
        {"cache.io", "auto", "direct", {}},
        {"cache.load_back_admission", "threshold", "cost", busy() + Settings{"hardware.set.host_link_gbps=0.2"}},
        {"cache.load_back_min_tokens", "10", "4096", {}},
        {"cache.load_back_quota_tokens", "0", "1024", {}},
        {"cache.output", "true", "false", {}},
        {"cache.session_radix", "false", "true", one_session},
        {"cache.hints", "policy", "obey", pinned},
        {"cache.hints", "ignore", "obey", pinned},
        {"cache.hint_share", "0.1", "0.5", pinned + Settings{"cache.hints=obey"}},
        {"tiers.device.tokens", "20032", "30016", {}},
        {"tiers.device.gib", "3", "4", {}},
        {"tiers.device.memory_fraction", "0.5", "0.8", {}},
        {"tiers.host.tokens", "60032", "70016", {}},
        {"tiers.host.gib", "6", "8", {}},
        {"tiers.host.ratio", "1.5", "3", {}},
        {"tiers.host.memory_gib", "100", "12", busy() + Settings{"tiers.host.ratio=2", "tiers.host.memory_share=0.8"}},
        {"tiers.host.memory_share", "0", "0.5", busy() + Settings{"tiers.host.ratio=2", "tiers.host.memory_gib=12"}},
        {"tiers.disk.tokens", "0", "64000", {}},
        {"tiers.disk.gib", "0", "8", {}},
        {"tiers.shared_fs.tokens", "0", "64000", shared_fs},
        {"tiers.shared_fs.gib", "0", "8", shared_fs},
        {"tiers.remote.tokens", "0", "64000", {}},
        {"tiers.remote.gib", "0", "8", {}},
        {"hardware.set.host_link_gbps", "0", "2", {}},
        {"scheduler.style", "sglang", "vllm", {}},
        {"scheduler.poll_steps", "1", "50", {}},
        {"scheduler.mixed_chunks", "false", "true", {}},
        {"scheduler.admit_whole_prompt", "true", "false", busy() + Settings{"scheduler.style=vllm"}},
        {"scheduler.order", "fcfs", "longest_prefix", {}},
        {"scheduler.order_window", "2", "64", ordered},
        {"scheduler.overtake_limit", "0", "64", ordered},
        {"scheduler.max_running", "256", "2", {}},
        {"scheduler.max_waiting", "0", "1", {}},
        {"scheduler.chunk_tokens", "8192", "1024", {}},
        {"scheduler.burst_steps", "64", "2", {}},
        {"cluster.engines", "1", "2", {}},
        {"cluster.prefill", "1", "2", roles},
        {"cluster.decode", "1", "2", roles},
        {"cluster.decode_set", "", "parallel.tp=2", roles},
        {"cluster.hand_over", "layers", "whole", roles},
        {"cluster.hand_over", "layers", "chunks", roles + Settings{"scheduler.chunk_tokens=512"}},
        {"cluster.hand_over_staged", "false", "true", roles},
        {"cluster.hand_over_min_tokens", "0", "1000000", roles},
        {"cluster.decode_reuse", "true", "false", roles},
        {"cluster.decode_cache", "true", "false", roles},
        {"cluster.decode_route", "least_loaded", "round_robin", roles},
        {"faults", "none", "engine(index=2, at=4s)", roles},
        {"faults", "engine(index=2, at=2s)", "engine(index=2, at=5s)", roles},
        {"faults", "engine(index=2, at=4s, detect=100ms)", "engine(index=2, at=4s, detect=3s)", roles},
        {"sim.notice_us", "50", "5000", roles},
        {"cluster.route", "round_robin", "prefix_affinity", busy() + Settings{"cluster.engines=2"}},
        {"cluster.route", "round_robin", "least_loaded", busy() + Settings{"cluster.engines=2"}},
        {"cluster.route", "round_robin", "score", busy() + Settings{"cluster.engines=2"}},
        {"cluster.route", "round_robin", "power_of_two", busy() + Settings{"cluster.engines=4"}},
        {"cluster.route", "least_loaded", "session_affinity", sessions + Settings{"cluster.engines=2"}},
        {"cluster.route_view_delay_s", "0", "2", scored},
        {"cluster.route", "prefix_affinity(min_prefix=0.1)", "prefix_affinity(min_prefix=1)", affine},
        {"cluster.route", "prefix_affinity(uneven_requests=0)", "prefix_affinity(uneven_requests=100)", affine},
        {"cluster.route", "prefix_affinity(uneven_requests=0, uneven_factor=1)",
         "prefix_affinity(uneven_requests=0, uneven_factor=100)", affine},
        {"cluster.route", "session_affinity(uneven_requests=0)", "session_affinity(uneven_requests=100)",
         sessions + Settings{"cluster.engines=2"}},
        {"cluster.route", "session_affinity(uneven_requests=0, uneven_factor=1)",
         "session_affinity(uneven_requests=0, uneven_factor=100)", sessions + Settings{"cluster.engines=2"}},
        {"cluster.route", "score(queue=0)", "score(queue=10)", scored},
        {"cluster.route", "score(kv=0)", "score(kv=100)", scored},
        {"cluster.route", "score(prefix=0)", "score(prefix=3)", scored},
        {"cluster.route", "score(host_share=0)", "score(host_share=1)", scored},
        {"cluster.route", "score(prefix_from=events)", "score(prefix_from=prompts)", scored},
        {"cluster.route", "score(storage_share=0)", "score(storage_share=100%)",
         scored + Settings{"tiers.remote.tokens=400000"}},
        {"parallel.rank_model", "lockstep", "instances", busy() + Settings{"parallel.tp=2"}},
        {"cache.path", "via_host", "direct", stored},
        {"cache.host_copies", "rank", "node",
         busy() + Settings{"model.name=deepseek-v3", "hardware.name=h200-sxm", "parallel.tp=8", "tiers.host.tokens=0",
                           "tiers.host.gib=12"}},
        {"tiers.disk.format", "segments", "hicache_files", stored},
        {"cache.split_kv", "false", "true",
         busy() + Settings{"tiers.host.tokens=30016", "tiers.remote.tokens=400000", "hardware.set.nic_object=500"}},
        {"cache.prefetch_policy", "best_effort", "wait_complete", slow_disk},
        {"cache.prefetch_admission", "threshold", "cost", slow_disk},
        {"cache.prefetch_min_tokens", "64", "4096", stored},
        {"cache.prefetch_policy", "timeout(base=1ms)", "timeout(base=9s)", slow_disk},
        {"cache.prefetch_policy", "timeout(base=0, per_ki_token=1ms)", "timeout(base=0, per_ki_token=9s)", slow_disk},
        {"cache.prefetch_policy", "timeout", "timeout(most=1ms)", slow_disk},
        {"cache.rules.prefetch_timeout_from", "wait", "issue",
         slow_disk + Settings{"cache.prefetch_policy=timeout(base=50ms)"}},
        {"cache.rules.prefetch_host_share", "0.02", "1", slow_disk},
        {"cache.rules.prefetch_share_of", "host", "host_less_device",
         slow_disk + Settings{"cache.rules.prefetch_host_share=0.05"}},
        {"cache.rules.prefetch_style", "kvtwin", "sglang", crowded},
        {"cache.rules.private_loads", "false", "true",
         busy() + Settings{"tiers.host.tokens=0", "tiers.disk.tokens=400000", "cache.path=direct",
                           "hardware.name=h100-sxm", "cache.evict_unit=node"}},
        {"cache.prefetch_retry_steps", "0", "1", crowded},
        {"cache.rules.prefetch_recheck", "false", "true", crowded},
        {"cache.prefetch_attempts", "1", "50", crowded + Settings{"cache.prefetch_retry_steps=1"}},
        {"cache.storage_batch_pages", "2", "128", slow_disk},
        {"tiers.remote.drives_gib", "0", "8",
         busy() + Settings{"tiers.remote.gib=1", "tiers.remote.store=mooncake", "tiers.host.tokens=20000"}},
        {"cache.storage_write_share", "0.02", "0.5", slow_disk},
        {"cache.storage_backlog", "drop", "wait", slow_disk + Settings{"cache.storage_write_share=0.02"}},
        {"cache.storage_backlog", "drop", "throttle", slow_disk + Settings{"cache.storage_write_share=0.02"}},
        {"cache.storage_backlog", "wait", "block", slow_disk + Settings{"cache.storage_write_share=0.02"}},
        {"tiers.remote.store", "redis", "s3", remote},
        {"tiers.remote.store_file", "", in_source("models/presets/stores/valkey.json"), remote},
        {"hardware.set", "disk_read_gbps=1", "disk_read_gbps=2", stored},
        {"hardware.set.pool_nodes", "2", "4", nodes},
        {"hardware.set.pool_node_gbps", "0.1", "1", nodes},
        {"hardware.set.pool_peers", "false", "true", remote + Settings{"cluster.engines=2"}},
        {"hardware.set.rails", "0", "4", remote},
        {"hardware.set.switch_oversubscription", "1", "1000", remote},
        {"hardware.set.network_share", "0", "0.9", nodes},
        {"faults", "none", "node(index=0, from=2s, to=7s)", nodes},
        {"faults", "node(index=0, from=2s, to=7s)", "node(index=1, from=2s, to=7s)", nodes},
        {"faults", "none", "drives(factor=50, to=100s)", stored},
        {"faults", "none", "link(name=nic, share=0.001, to=100s)", remote},
        {"report.bounds", "false", "true", {}},
        {"report.warm", "false", "true", {}},
        {"faults", "none", "stall(share=0.5)", stored},
        {"faults", "stall(share=0.5, factor=2)", "stall(share=0.5, factor=50)", stored},
        {"workload.generate.prompt_tokens", "2048", "4096", returning},
        {"workload.generate.output_tokens", "16", "32", returning},
        {"workload.generate.visits", "4", "8", returning},
        {"workload.generate.question_tokens", "64", "512", returning},
        {"workload.generate.working_set_tokens", "40000", "80000", returning},
        {"workload.generate.prompt_tokens_per_second", "4096", "9000", returning},
        {"workload.generate.at_once", "1", "4", returning},
        {"workload.generate.kind", "chat", "groups", generated},
        {"workload.generate.groups", "8", "9", groups},
        {"workload.generate.prompts_per_group", "16", "17", groups},
        {"workload.generate.prefix_tokens", "1024", "2048", groups},
        {"workload.generate.question_tokens", "64", "512", groups},
        {"workload.generate.output_tokens", "16", "32", groups},
        {"workload.generate.requests_per_second", "6.67", "5", groups},
        {"workload.generate.concurrency", "1", "4", clients},
        {"workload.generate.range_ratio", "1", "0.5", groups},
        {"workload.generate.start_spread_s", "0", "5", clients + Settings{"workload.generate.concurrency=4"}},
        {"workload.generate.think_s", "0", "0.5", clients + Settings{"workload.generate.concurrency=4"}},
        {"workload.generate.stages", "1,4", "4,1", clients},
        {"workload.generate.turns", "2", "4", sessions},
        {"workload.generate.users", "4", "8", users},
        {"workload.generate.new_tokens", "300", "600", users},
        {"workload.generate.context_max_tokens", "1000", "4000", users},
        {"workload.generate.turns_least", "2", "4", users},
        {"workload.generate.turns_most", "6", "12", users},
        {"workload.generate.length_spread", "0", "1", sessions},
        {"workload.generate.think_spread", "0", "1", sessions},
        {"slo.ttft_s", "0", "0.05", {}},
        {"slo.tpot_s", "0", "0.003", {}},
        {"slo.e2e_s", "0", "0.5", {}},
        {"workload.warmup_requests", "0", "5", groups},
        {"workload.count_drain", "true", "false", clients + Settings{"workload.generate.concurrency=4"}},
        {"sim.reduce_us", "10", "500", ranks},
        {"faults", "none", "rank(index=0, factor=50)", ranks},
        {"faults", "rank(index=0, factor=50)", "rank(index=1, factor=50)", ranks},
    };
    if (KVTWIN_TEST_SIMGRID) {  // the event heap does not share links; here eight GPUs share the memory of one host
      knobs.push_back({"sim.dram_shared", "true", "false", busy() + Settings{"parallel.tp=8"}});
      knobs.push_back({"sim.both_ways_shared", "true", "false", busy() + Settings{"sim.dram_shared=false"}});
    }
    return knobs;
  }

  Folder folder_;
};

// Keys for the owner of stored pages, or for the place of a real storage tier. In a simulation with one engine and
// without failures, they have no effect.
const std::map<std::string, std::string>& of_storage_tiers() {
  static const std::map<std::string, std::string> keys = {{"cache.storage_retries", "9"},
                                                          {"cache.namespace", "mine"},
                                                          {"model.revision", "main"},
                                                          {"tiers.disk.path", "/nowhere"},
                                                          {"tiers.shared_fs.path", "/nowhere"},
                                                          {"tiers.remote.url", "redis://nowhere"},
                                                          {"tiers.remote.tls_ca", "/nowhere.pem"},
                                                          {"tiers.remote.timeout_s", "7"}};
  return keys;
}

// The choice of the world, and keys of the real world only (tested in tests/property/impl). Copies do not fail in a
// simulation, so tests/swarm tests the retries. The salt is in a file and changes the page keys: see Salt in
// tests/unit/cli. A table of another GPU is refused without its key: see EngineWord there.
const std::set<std::string>& of_worlds() {
  static const std::set<std::string> keys = {"sim.world",
                                             "real.device",
                                             "cache.backup_retries",
                                             "real.cublas",
                                             "real.cufile",
                                             "real.cufile_library",
                                             "workload.salt_file",
                                             "real.check_every",
                                             "real.nixl_library",
                                             "hardware.operators_of_another_gpu"};
  return keys;
}

// Returns all results that a user sees, without the value of the seed.
std::string results(const Simulated& run) {
  Json report = without_costs(run.report);
  report.erase("seed");
  return report.dump() + run.requests_csv;
}

TEST_F(Knobs, EachMovesAResult) {
  for (const Knob& knob : moving()) {
    const Settings base = knob.base.empty() ? busy() : knob.base;
    const Simulated one = simulate(base + Settings{knob.key + "=" + knob.one});
    const Simulated other = simulate(base + Settings{knob.key + "=" + knob.other});
    EXPECT_NE(results(one), results(other)) << knob.key << " = " << knob.one << " or " << knob.other;
    EXPECT_GT(one.requests("completed"), 0U) << knob.key;
  }
}

TEST_F(Knobs, NamesOfStoredPagesChangeNothing) {
  const Settings base = busy() + Settings{"tiers.disk.tokens=200000"};
  const auto served = [&](const Settings& settings) {
    Simulated run = simulate(settings);
    run.report.erase("notes");  // the notes say that these keys have no effect
    return results(run);
  };
  const std::string plain = served(base);
  for (const auto& [key, other] : of_storage_tiers()) {
    EXPECT_TRUE(served(base + Settings{key + "=" + other}) == plain) << key;
  }
}

TEST_F(Knobs, EveryKeyIsHere) {
  const std::vector<Knob> knobs = moving();
  for (const ExperimentKey& key : experiment_keys()) {
    const std::string name(key.name);
    const bool shares = name == "sim.dram_shared" || name == "sim.both_ways_shared";
    if (shares && !KVTWIN_TEST_SIMGRID) continue;
    const bool moves = std::ranges::any_of(knobs, [&](const Knob& knob) { return knob.key == name; });
    EXPECT_EQ(moves + of_storage_tiers().contains(name) + of_worlds().contains(name), 1) << name;
  }
}

TEST_F(Knobs, EveryParameterOfAPolicyIsHere) {
  const std::vector<Knob> knobs = moving();
  for (const ExperimentKey& key : experiment_keys()) {
    if (!key.policy) continue;
    for (const std::string_view policy : policy_names(*key.policy)) {
      for (const Parameter& parameter : facts_of_policy(*key.policy, policy).parameters) {
        const bool moves = std::ranges::any_of(knobs, [&](const Knob& knob) {
          return knob.other.starts_with(std::string(policy) + "(") &&
                 knob.other.find(parameter.name + "=") != std::string::npos;
        });
        EXPECT_TRUE(moves) << key.name << " = " << policy << "(" << parameter.name << "=...)";
      }
    }
  }
}

}  // namespace
}  // namespace kvtwin::test

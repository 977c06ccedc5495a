#include "lab/experiment/keys.hpp"

#include <sstream>
#include <type_traits>
#include <utility>

#include "lab/names.hpp"
#include "policy/base/names.hpp"
#include "policy/load_back_admission.hpp"
#include "policy/order.hpp"
#include "policy/prefetch_admission.hpp"
#include "policy/route.hpp"
#include "policy/termination.hpp"
#include "policy/write.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

using Key = ExperimentKey;
using Configuration = Key::Configuration;

constexpr double kMost = kMostOfAnyKey;
constexpr double kLeastGbps = 1e-3;  // 1 MB/s: slower than any device that serves pages

template <typename Class, typename Member>
Member member_type(Member Class::*);

template <auto member>
using MemberOf = decltype(member_type(member));

template <auto member>
MemberOf<member>& member_of(const Configuration& of) {
  if constexpr (std::is_same_v<decltype(member), MemberOf<member> EngineConfig::*>) {
    return of.engine.*member;
  } else {
    return of.world.*member;
  }
}

// The member as a configuration has it before any key is applied.
template <auto member>
MemberOf<member> initial() {
  EngineConfig engine;
  WorldConfig world;
  return member_of<member>({engine, world});
}

Key text(std::string_view name, const char* fallback, std::string_view help) {
  return {.name = name, .fallback = std::string(fallback), .help = help};
}

Key path(std::string_view name, std::string_view help) {
  Key key = text(name, "", help);
  key.is_path = true;
  return key;
}

Key whole(std::string_view name, std::int64_t fallback, double least, double most, std::string_view help) {
  return {.name = name, .fallback = fallback, .least = least, .most = most, .help = help};
}

Key number(std::string_view name, double fallback, double least, double most, std::string_view help) {
  return {.name = name, .fallback = fallback, .least = least, .most = most, .help = help};
}

Key number_or_0(std::string_view name, double least, double most, std::string_view help) {
  Key key = number(name, 0, 0, most, help);
  key.least_but_0 = least;
  return key;
}

Key flag(std::string_view name, bool fallback, std::string_view help) {
  return {.name = name, .fallback = fallback, .help = help};
}

// The first choice is the default.
Key word(std::string_view name, std::vector<std::string_view> choices, std::string_view help) {
  Key key = text(name, std::string(choices.front()).c_str(), help);
  key.choices = std::move(choices);
  return key;
}

// Keys that set a member: of an enum, an integer, a number, a flag.
template <auto member>
Key choice(std::string_view name, std::string_view help) {
  using Enum = MemberOf<member>;
  Key key = text(name, std::string(name_of(initial<member>())).c_str(), help);
  key.choices.assign(names_of<Enum>().begin(), names_of<Enum>().end());
  key.apply = [](const KeyValue& value, const Configuration& to) {
    member_of<member>(to) = *value_named<Enum>(std::get<std::string>(value));
  };
  return key;
}

// A policy or a trace format, each one file (cmake/Choices.cmake).
Key file_choice(std::string_view name, const char* fallback, std::span<const std::string_view> names,
                std::string_view help) {
  Key key = text(name, fallback, help);
  key.choices.assign(names.begin(), names.end());
  key.chooses_file = true;
  return key;
}

template <auto member>
Key file_choice(std::string_view name, std::span<const std::string_view> names, std::string_view help) {
  Key key = file_choice(name, initial<member>().c_str(), names, help);
  key.apply = [](const KeyValue& value, const Configuration& to) {
    member_of<member>(to) = std::get<std::string>(value);
  };
  return key;
}

template <auto member>
Key whole(std::string_view name, double least, double most, std::string_view help) {
  Key key = whole(name, static_cast<std::int64_t>(initial<member>()), least, most, help);
  key.apply = [](const KeyValue& value, const Configuration& to) {
    member_of<member>(to) = static_cast<MemberOf<member>>(std::get<std::int64_t>(value));
  };
  return key;
}

template <auto member>
Key number(std::string_view name, double least, double most, std::string_view help) {
  Key key = number(name, initial<member>(), least, most, help);
  key.apply = [](const KeyValue& value, const Configuration& to) { member_of<member>(to) = std::get<double>(value); };
  return key;
}

template <auto member>
Key flag(std::string_view name, std::string_view help) {
  Key key = flag(name, initial<member>(), help);
  key.apply = [](const KeyValue& value, const Configuration& to) { member_of<member>(to) = std::get<bool>(value); };
  return key;
}

// A member in units of which the key's own holds `scale`, rounded.
template <auto member, int scale>
Key scaled(std::string_view name, double fallback, double least, double most, std::string_view help) {
  Key key = number(name, fallback, least, most, help);
  key.apply = [](const KeyValue& value, const Configuration& to) {
    member_of<member>(to) = static_cast<MemberOf<member>>(std::get<double>(value) * scale + 0.5);
  };
  return key;
}

template <auto member>
Key seconds(std::string_view name, double least, double most, std::string_view help) {
  return scaled<member, 1'000'000'000>(name, static_cast<double>(initial<member>()) / 1e9, least, most, help);
}

template <auto member>
Key microseconds(std::string_view name, double least, double most, std::string_view help) {
  return scaled<member, 1000>(name, static_cast<double>(initial<member>()) / 1e3, least, most, help);
}

// In 1/1024 of what is shared.
template <auto member>
Key share(std::string_view name, double fallback, std::string_view help) {
  return scaled<member, 1024>(name, fallback, 0, 1, help);
}

}  // namespace

std::span<const Key> experiment_keys() {
  static const std::vector<Key> keys = {
      whole<&WorldConfig::seed>("seed", 0, kMost, "of everything that is drawn"),
      text("model.name", "llama-3.1-8b", "a preset: see kvtwin presets"),
      path("model.config", "path of a Hugging Face config.json, instead of model.name"),
      whole("model.kv_bytes_per_token", 0, 0, 1e9,
            "what you take them to be, refused if the model has others; 0 = the model's"),
      text("model.kv_dtype", "auto", "auto, bf16, fp16 or fp8"),
      text("model.revision", "", "of the weights; pages in a storage tier are told apart by it"),
      word("model.draft.kind", {"none", "packed", "side_pool"},
           "of the draft model's KV: none (no draft), packed (last layers of the target's pages) or side_pool (its "
           "own)"),
      text("model.draft.config", "", "the draft model: path of a Hugging Face config.json, or a preset"),
      number("model.draft.accept_length", 0.0, 0, 65,
             "tokens that a decode step yields on average; to be given with a draft"),
      number("model.draft.accept_length_without_kv", 1.0, 1, 65,
             "the same of a request whose prefix lacks the draft's KV"),
      flag("model.draft.restore", true,
           "the draft's KV is backed up, stored and loaded too; else a prefix comes back without it"),
      whole("model.draft.tokens", 0, 0, 64,
            "tokens that the draft proposes in a decode step; 0 = accept_length, rounded up"),
      text("hardware.name", "h100-pcie5", "a preset: see kvtwin presets"),
      path("hardware.file", "path of a hardware description, instead of hardware.name"),
      whole("hardware.draw", 0, 0, 1e9,
            "number of a machine drawn from what this one may be, by its figures' intervals; 0 = this one"),
      number("hardware.spread_percent", 0.0, 0, 1000,
             "% (95 % confidence) that a rate, time or share without an interval of its own may be off, for "
             "hardware.draw and hardware.end"),
      text("hardware.end", "", "NUMBER:low or NUMBER:high: one figure at an end of its interval"),
      number_or_0("hardware.disk_read_gbps", kLeastGbps, 2000, "GB/s that all drives read together; 0 = the machine's"),
      number_or_0("hardware.disk_write_gbps", kLeastGbps, 2000,
                  "GB/s that all drives write together; 0 = the machine's"),
      number_or_0("hardware.shared_fs_read_gbps", kLeastGbps, 10000,
                  "GB/s that all engines together read from the shared file system; 0 = the machine's"),
      number_or_0("hardware.shared_fs_write_gbps", kLeastGbps, 10000,
                  "GB/s that all engines together write to the shared file system; 0 = the machine's"),
      number("hardware.shared_fs_latency_us", 0.0, 0, 1e6,
             "us of one file's read, write or look-up on the shared file system, alone; 0 = the machine's"),
      number("hardware.shared_fs_file_us", 0.0, 0, 1e6,
             "us that the shared file system's metadata servers take for a file, whatever its size; 0 = the machine's"),
      number_or_0("hardware.remote_gbps", kLeastGbps, 10000,
                  "GB/s to and from the remote pool, each way; 0 = the machine's"),
      number("hardware.remote_object_us", 0.0, 0, 1e5,
             "us that one NIC takes for an object of the remote pool, whatever its size; 0 = the machine's"),
      number_or_0("hardware.host_link_gbps", kLeastGbps, 1000,
                  "GB/s of a GPU's link to the host, each way, copy kernels in proportion; 0 = the machine's"),
      path("workload.trace", "path of a trace, in any format that kvtwin trace info reads"),
      file_choice("workload.format", "auto", trace_format_names(), "of the trace; auto: told from its first line"),
      whole("workload.block_tokens", 0, 0, 1e6,
            "tokens of a block id in the trace; 0 = the trace's own, 512 for mooncake"),
      whole("workload.shared_tokens", 0, 0, 1e9,
            "azure, burstgpt: tokens that all prompts begin with; the files don't say"),
      number("workload.session_gap_s", 30.0, 1e-6, 1e6,
             "agentic: mean seconds between the starts of sessions, which are drawn"),
      path("workload.salt_file",
           "path of a file with a secret, 16 to 4,096 bytes, that goes into every page key, so that a guessed prompt's "
           "pages can't be told from the keys; no run folder holds the secret"),
      word("workload.generate.kind", {"chat", "agentic", "tools", "returning", "groups"},
           "what to generate where no trace is given: chat, agentic (coding), tools (applications' calls), returning "
           "(contexts of one size that come back), or groups (prompts that share a prefix)"),
      whole("workload.generate.requests", 0, 0, kMost, "requests to generate; 0 = by duration, or visits (returning)"),
      number("workload.generate.duration_s", 3600.0, 0, 1e9, "chat, agentic, tools: seconds of traffic to generate"),
      number_or_0("workload.generate.sessions_per_second", 1e-6, 1e6,
                  "chat, agentic: new sessions a second; 0 = the measured 2.08 of chat (about 3.4 requests a second), "
                  "or 1/30 of agentic"),
      number("workload.generate.requests_per_second", 6.67, 1e-3, 1e6, "tools, groups: requests a second"),
      whole("workload.generate.prompt_tokens", 8192, 1, 1e9, "returning: tokens of every prompt"),
      whole("workload.generate.question_tokens", 64, 0, 1e9,
            "returning, groups: of a prompt, at its end, never seen again; the rest is its context or prefix"),
      whole("workload.generate.output_tokens", 16, 1, 1e9, "returning, groups: tokens of every answer"),
      whole("workload.generate.working_set_tokens", 1'000'000, 1, 1e15,
            "returning: tokens of the prompts of all contexts together; tiers that hold less don't hold all"),
      number("workload.generate.visits", 4.0, 1, 1e6, "returning: mean visits to a context, the first among them"),
      number("workload.generate.prompt_tokens_per_second", 4096.0, 1e-3, 1e12,
             "returning: prompt tokens that arrive a second"),
      whole("workload.generate.groups", 64, 1, 1e7, "groups: groups of prompts that share a prefix"),
      whole("workload.generate.prompts_per_group", 16, 1, 1e7, "groups: prompts of a group"),
      whole("workload.generate.prefix_tokens", 2048, 0, 5e8, "groups: tokens that a group's prompts share"),
      whole("workload.generate.concurrency", 0, 0, 1e6,
            "groups: clients that ask one question after the other, with workload.loop=closed; 0 = by "
            "requests_per_second"),
      whole("workload.generate.at_once", 1, 1, 1e6, "returning: requests that arrive together"),
      whole("workload.limit", 0, 0, kMost, "requests to serve; 0 = all"),
      word("workload.loop", {"open", "closed"},
           "open: requests come at their times; closed: a session's next one no sooner than its think time after the "
           "answer to the last"),
      number("workload.service_s", 0.0, 0, 1e6,
             "closed, where the trace has no think times: seconds of a session's gaps that are service"),
      whole("workload.shrink", 1, 1, 1e6,
            "divides all lengths in tokens, those of blocks too: the same traffic for a small machine"),
      number("workload.time_scale", 1.0, 1e-9, 999'999'999, "2.0 = arrivals twice as far apart"),
      whole("parallel.tp", 1, 1, 64,
            "tensor-parallel ranks of the engine; for real a process each: mpirun -np N kvtwin run"),
      word("parallel.rank_model", {"lockstep", "instances"},
           "lockstep: one policy drives all ranks; instances: each rank has a policy of its own, and all decide the "
           "same; for real always instances"),
      whole<&WorldConfig::engines>(
          "cluster.engines", 1, 1024,
          "engines, each with a machine of its own; the shared file system and the remote tier are shared"),
      whole("cluster.prefill", 0, 0, 1024, "engines that only prefill; not served yet: anything but 0 is refused"),
      whole("cluster.decode", 0, 0, 1024, "engines that only decode; not served yet: anything but 0 is refused"),
      file_choice("cluster.route", "round_robin", route_names(), "how requests find their engine"),
      whole("cache.page_tokens", 64, 1, 1e6, "tokens of a page"),
      choice<&EngineConfig::host_layout>("cache.layout",
                                         "of the host pool; simulated storage tiers hold a page in as many objects as "
                                         "it has pieces there, kvtwin run in one"),
      text("cache.eviction", "lru", "a policy: see kvtwin presets"),
      choice<&EngineConfig::evict_unit>("cache.evict_unit",
                                        "page (just enough, from a leaf's tail) or node (whole leaves)"),
      file_choice<&EngineConfig::write_policy>("cache.write_policy", write_policy_names(),
                                               "when pages are written to the host: when a first request has inserted "
                                               "a prefix, when a second one has, or when they leave the device"),
      choice<&EngineConfig::tiering>("cache.tiering",
                                     "inclusive, or exclusive (with write_back): what was loaded back leaves the host"),
      flag<&EngineConfig::reclaim_shadowed>(
          "cache.reclaim_shadowed", "a host short of room first drops copies of pages that the device holds too"),
      whole<&EngineConfig::backup_retries>("cache.backup_retries", 0, 1000,
                                           "tries more for a copy to the host that failed"),
      share<&EngineConfig::clean_reserve>(
          "cache.clean_reserve", 0.1,
          "write_back: share of the device kept free or ready to be evicted, by writing ahead of need"),
      whole<&EngineConfig::write_threshold>(
          "cache.write_threshold", 0, 1e9,
          "requests that insert a prefix before it is backed up; 0 = 1, or 2 for write_through_selective"),
      file_choice<&EngineConfig::prefetch_policy>(
          "cache.prefetch_policy", termination_names(),
          "when a request stops waiting for its prefetch from storage tiers: at once, never, after a time that grows "
          "with its length, or when computing the rest is faster"),
      file_choice<&EngineConfig::prefetch_admission>(
          "cache.prefetch_admission", prefetch_admission_names(),
          "what is prefetched: all that is long enough, or of that what takes less time than computing it"),
      whole<&EngineConfig::prefetch_min_tokens>("cache.prefetch_min_tokens", 0, 1e9,
                                                "shorter hits in a storage tier aren't prefetched"),
      seconds<&EngineConfig::prefetch_timeout_base_ns>("cache.prefetch_timeout_base_s", 0, 1e6,
                                                       "seconds that a prefetch may take, whatever its length"),
      seconds<&EngineConfig::prefetch_timeout_per_ki_token_ns>("cache.prefetch_timeout_per_ki_token_s", 0, 1e6,
                                                               "seconds more for each 1024 tokens of a prefetch"),
      seconds<&EngineConfig::prefetch_timeout_most_ns>("cache.prefetch_timeout_most_s", 0, 1e6,
                                                       "seconds that no prefetch exceeds; 0 = no limit"),
      share<&EngineConfig::prefetch_host_share>("cache.prefetch_host_share", 0.5,
                                                "share of the host tier that prefetches in flight may take"),
      whole<&EngineConfig::prefetch_retry_steps>(
          "cache.prefetch_retry_steps", 0, 1e9,
          "scheduler steps until a prefetch that was declined is tried again; 0 = it isn't"),
      whole<&EngineConfig::prefetch_attempts>("cache.prefetch_attempts", 1, 1e6, "tries of a prefetch in all"),
      whole<&EngineConfig::storage_batch_pages>("cache.storage_batch_pages", 1, 1e6,
                                                "most pages of one storage operation"),
      whole<&EngineConfig::storage_retries>("cache.storage_retries", 0, 1000,
                                            "tries more for pages that a storage tier didn't take"),
      flag("cache.split_kv", false,
           "a page is stored as an object for K and one for V; simulated only: kvtwin run stores one object a page"),
      text("cache.namespace", "", "partition of the storage tiers; another's pages are never found"),
      choice<&EngineConfig::io>("cache.io",
                                "what copies pages between the device and the host: kernels, copy engines (direct), or "
                                "the faster one of each copy"),
      choice<&EngineConfig::path>("cache.path",
                                  "way of pages from storage tiers to the device: through host memory, past it "
                                  "(direct: GPUDirect), or as is better for the request"),
      file_choice<&EngineConfig::load_back_admission>("cache.load_back_admission", load_back_admission_names(),
                                                      "which hits on the host are loaded: all that are long enough, or "
                                                      "of those what takes less time than computing it"),
      whole<&EngineConfig::load_back_min_tokens>("cache.load_back_min_tokens", 0, 1e9,
                                                 "shorter hits on the host are computed again"),
      whole("cache.load_back_quota_tokens", 0, 0, kMost, "most tokens one request loads back; 0 = no quota"),
      flag<&EngineConfig::cache_output>("cache.output", "generated pages are cached too"),
      whole("tiers.device.tokens", 0, 0, kMost, "capacity of L1"),
      number("tiers.device.gib", 0.0, 0, 1e9, "capacity of L1; neither = what the hardware leaves beside the weights"),
      number("tiers.device.memory_fraction", 0.0, 0, 1,
             "of the GPU's memory, for weights and L1, as SGLang's mem_fraction_static; 0 = 0.9 less activations"),
      whole("tiers.host.tokens", 0, 0, kMost, "capacity of L2"),
      number("tiers.host.gib", 0.0, 0, 1e9, "capacity of L2; neither = no host tier"),
      number("tiers.host.ratio", 0.0, 0, 1e6, "capacity of L2 as a multiple of L1's"),
      whole("tiers.disk.tokens", 0, 0, kMost, "capacity of the disk tier, the engine's own"),
      number("tiers.disk.gib", 0.0, 0, 1e9, "capacity of the disk tier"),
      path("tiers.disk.path", "folder of the disk tier, for kvtwin run"),
      word("tiers.disk.format", {"segments", "hicache_files"},
           "segments (of many pages), or hicache_files: a file a page, as HiCache's file back end"),
      whole("tiers.shared_fs.tokens", 0, 0, kMost,
            "capacity of the file system that engines share, of all of them together; asked after the disk tier"),
      number("tiers.shared_fs.gib", 0.0, 0, 1e9, "capacity of the shared file system"),
      path("tiers.shared_fs.path", "folder on the shared file system, for kvtwin run; several runs may use it at once"),
      whole("tiers.remote.tokens", 0, 0, kMost, "capacity of the remote tier, which evicts by itself"),
      number("tiers.remote.gib", 0.0, 0, 1e9, "capacity of the remote tier"),
      text("tiers.remote.url", "",
           "where the remote tier is, for kvtwin run: redis://host:port,host:port/database; rediss:// for TLS"),
      path("tiers.remote.tls_ca", "file of certificates to trust, with rediss://; none = the system's"),
      number("tiers.remote.timeout_s", 1.0, 0.001, 3600,
             "seconds after which a server that doesn't answer counts as gone, for kvtwin run"),
      file_choice<&EngineConfig::order>("scheduler.order", request_order_names(),
                                        "order in which waiting requests are admitted"),
      whole<&EngineConfig::order_window>("scheduler.order_window", 1, 1e6, "waiting requests that a step looks at"),
      whole<&EngineConfig::overtake_limit>("scheduler.overtake_limit", 0, 1e9,
                                           "times a waiting request may be passed over"),
      whole<&EngineConfig::max_running>("scheduler.max_running", 1, 1e6, "requests that run at once"),
      whole<&EngineConfig::max_waiting>("scheduler.max_waiting", 0, kMost,
                                        "requests that wait; more are rejected; 0 = no limit, and each takes 0.4 KB "
                                        "and 32 bytes a page of its prompt"),
      whole<&EngineConfig::chunk_tokens>("scheduler.chunk_tokens", 1, 1e9, "prefill tokens of one pass"),
      whole<&EngineConfig::burst_steps>("scheduler.burst_steps", 1, 1e6, "decode steps submitted at once"),
      flag("report.bounds", false,
           "reckon what could have been hit at best, and by LRU, in one cache of all tiers; 80 bytes of memory a page"),
      word("sim.world", {"simgrid", "events"}, "simgrid (links are shared) or events (they are not)"),
      word("real.device", {"auto", "host", "cuda"},
           "host (host memory stands in for the GPU), cuda, or auto: cuda where there is a GPU, else host"),
      word("real.cufile", {"auto", "on", "off"},
           "on: the disk tier's pages come into GPU memory by cuFile (GPUDirect Storage); off: through host memory; "
           "auto: by cuFile where the kernel supports it"),
      text("real.cufile_library", "", "cuFile's library file; empty: where the system has it"),
      text("real.cublas", "", "cuBLAS's library file, for cuda; empty: where the system has it"),
      word("real.flip", {"none", "device", "host"}, "flips a bit of a page on the device or the host, to see it found"),
      whole("real.slow_rank", 0, 0, 63, "the rank that is slower, to see the others wait for it"),
      number("real.slow_factor", 1.0, 1, 1e6,
             "times as long take that rank's copies and storage operations; it idles in between"),
      number<&WorldConfig::storage_stall_share>("sim.storage_stall_share", 0, 1,
                                                "share of reads of storage tiers that stall"),
      number<&WorldConfig::storage_stall_factor>("sim.storage_stall_factor", 1, 1e6,
                                                 "times as long as without takes a read that stalls"),
      microseconds<&WorldConfig::reduce_ns>("sim.reduce_us", 1, 1e6,
                                            "instances: microseconds that a reduction among the ranks takes"),
      whole("sim.straggler_rank", 0, 0, 63, "instances: the rank that is slower"),
      number("sim.straggler_factor", 1.0, 1, 1e6, "instances: times as long take its transfers and storage operations"),
      flag("sim.both_ways_shared", true, "loads and backups of a GPU share what its link carries both ways together"),
      flag("sim.dram_shared", true, "all of a host's transfers share its DRAM bandwidth"),
  };
  return keys;
}

std::string Key::range() const {
  std::ostringstream out;
  if (std::holds_alternative<bool>(fallback)) {
    out << "true or false";
  } else if (!choices.empty()) {
    out << one_of(choices);
  } else if (!std::holds_alternative<std::string>(fallback)) {
    if (least_but_0 > 0) out << "0, or ";
    out << "at least " << (least_but_0 > 0 ? least_but_0 : least);
    if (most < kMostOfAnyKey) out << " and at most " << most;
  }
  return out.str();
}

}  // namespace kvtwin

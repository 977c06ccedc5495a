#include "lab/experiment/experiment.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <sstream>

#include "lab/error.hpp"
#include "models/names.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

using Value = Experiment::Value;
using Key = Experiment::Key;

Value text_value(const char* text) { return std::string(text); }
Value integer_value(std::int64_t number) { return number; }

constexpr double kMost = 9.2e18;
constexpr double kLeastGbps = 1e-3;  // 1 MB/s: slower than any device that serves pages

const std::vector<Key>& table() {
  static const std::vector<Key> keys = {
      {"seed", integer_value(1), 0, kMost, "of everything that is drawn"},
      {"model.name", text_value("llama-3.1-8b"), 0, 0, "a preset: see kvtwin presets"},
      {"model.config", text_value(""), 0, 0, "path of a Hugging Face config.json, instead of model.name"},
      {"model.kv_bytes_per_token", integer_value(0), 0, 1e9,
       "what you take them to be, refused if the model has others; 0 = the model's"},
      {"model.kv_dtype", text_value("auto"), 0, 0, "auto, bf16, fp16 or fp8"},
      {"model.revision", text_value(""), 0, 0, "of the weights; pages in a storage tier are told apart by it"},
      {"model.draft.kind", text_value("none"), 0, 0,
       "of the draft model's KV: none (no draft), packed (last layers of the target's pages) or side_pool (its own)"},
      {"model.draft.config", text_value(""), 0, 0, "the draft model: path of a Hugging Face config.json, or a preset"},
      {"model.draft.accept_length", 0.0, 0, 65,
       "tokens that a decode step yields on average; to be given with a draft"},
      {"model.draft.accept_length_without_kv", 1.0, 1, 65, "the same of a request whose prefix lacks the draft's KV"},
      {"model.draft.restore", true, 0, 0,
       "the draft's KV is backed up, stored and loaded too; else a prefix comes back without it"},
      {"model.draft.tokens", integer_value(0), 0, 64,
       "tokens that the draft proposes in a decode step; 0 = accept_length, rounded up"},
      {"hardware.name", text_value("h100-pcie5"), 0, 0, "a preset: see kvtwin presets"},
      {"hardware.file", text_value(""), 0, 0, "path of a hardware description, instead of hardware.name"},
      {"hardware.draw", integer_value(0), 0, 1e9,
       "number of a machine drawn from what this one may be, by its figures' intervals; 0 = this one"},
      {"hardware.spread_percent", 0.0, 0, 1000,
       "% (95 % confidence) that a rate, time or share without an interval of its own may be off, for hardware.draw "
       "and hardware.end"},
      {"hardware.end", text_value(""), 0, 0, "NUMBER:low or NUMBER:high: one figure at an end of its interval"},
      {"hardware.disk_read_gbps", 0.0, 0, 2000, "GB/s that all drives read together; 0 = the machine's", kLeastGbps},
      {"hardware.disk_write_gbps", 0.0, 0, 2000, "GB/s that all drives write together; 0 = the machine's", kLeastGbps},
      {"hardware.shared_fs_read_gbps", 0.0, 0, 10000,
       "GB/s that all engines together read from the shared file system; 0 = the machine's", kLeastGbps},
      {"hardware.shared_fs_write_gbps", 0.0, 0, 10000,
       "GB/s that all engines together write to the shared file system; 0 = the machine's", kLeastGbps},
      {"hardware.shared_fs_latency_us", 0.0, 0, 1e6,
       "us of one file's read, write or look-up on the shared file system, alone; 0 = the machine's"},
      {"hardware.shared_fs_file_us", 0.0, 0, 1e6,
       "us that the shared file system's metadata servers take for a file, whatever its size; 0 = the machine's"},
      {"hardware.remote_gbps", 0.0, 0, 10000, "GB/s to and from the remote pool, each way; 0 = the machine's",
       kLeastGbps},
      {"hardware.remote_object_us", 0.0, 0, 1e5,
       "us that one NIC takes for an object of the remote pool, whatever its size; 0 = the machine's"},
      {"hardware.host_link_gbps", 0.0, 0, 1000,
       "GB/s of a GPU's link to the host, each way, copy kernels in proportion; 0 = the machine's", kLeastGbps},
      {"workload.trace", text_value(""), 0, 0, "path of a trace, in any format that kvtwin trace info reads"},
      {"workload.format", text_value("auto"), 0, 0,
       "of the trace: auto (told from its first line), mooncake, qwen, agentic, azure, burstgpt, token_ids or sglang"},
      {"workload.block_tokens", integer_value(0), 0, 1e6,
       "tokens of a block id in the trace; 0 = the trace's own, 512 for mooncake"},
      {"workload.shared_tokens", integer_value(0), 0, 1e9,
       "azure, burstgpt: tokens that all prompts begin with; the files don't say"},
      {"workload.session_gap_s", 30.0, 1e-6, 1e6,
       "agentic: mean seconds between the starts of sessions, which are drawn"},
      {"workload.salt_file", text_value(""), 0, 0,
       "path of a file with a secret, 16 to 4,096 bytes, that goes into every page key, so that a guessed prompt's "
       "pages "
       "can't be told from the keys; no run folder holds the secret"},
      {"workload.generate.kind", text_value("chat"), 0, 0,
       "what to generate where no trace is given: chat, agentic (coding), tools (applications' calls), returning "
       "(contexts of one size that come back), or groups (prompts that share a prefix)"},
      {"workload.generate.requests", integer_value(0), 0, kMost,
       "requests to generate; 0 = by duration, or visits (returning)"},
      {"workload.generate.duration_s", 3600.0, 0, 1e9, "chat, agentic, tools: seconds of traffic to generate"},
      {"workload.generate.sessions_per_second", 0.0, 0, 1e6,
       "chat, agentic: new sessions a second; 0 = the measured 2.08 of chat (about 3.4 requests a second), or 1/30 of "
       "agentic",
       1e-6},
      {"workload.generate.requests_per_second", 6.67, 1e-3, 1e6, "tools, groups: requests a second"},
      {"workload.generate.prompt_tokens", integer_value(8192), 1, 1e9, "returning: tokens of every prompt"},
      {"workload.generate.question_tokens", integer_value(64), 0, 1e9,
       "returning, groups: of a prompt, at its end, never seen again; the rest is its context or prefix"},
      {"workload.generate.output_tokens", integer_value(16), 1, 1e9, "returning, groups: tokens of every answer"},
      {"workload.generate.working_set_tokens", integer_value(1'000'000), 1, 1e15,
       "returning: tokens of the prompts of all contexts together; tiers that hold less don't hold all"},
      {"workload.generate.visits", 4.0, 1, 1e6, "returning: mean visits to a context, the first among them"},
      {"workload.generate.prompt_tokens_per_second", 4096.0, 1e-3, 1e12,
       "returning: prompt tokens that arrive a second"},
      {"workload.generate.groups", integer_value(64), 1, 1e7, "groups: groups of prompts that share a prefix"},
      {"workload.generate.prompts_per_group", integer_value(16), 1, 1e7, "groups: prompts of a group"},
      {"workload.generate.prefix_tokens", integer_value(2048), 0, 5e8, "groups: tokens that a group's prompts share"},
      {"workload.generate.concurrency", integer_value(0), 0, 1e6,
       "groups: clients that ask one question after the other, with workload.loop=closed; 0 = by "
       "requests_per_second"},
      {"workload.generate.at_once", integer_value(1), 1, 1e6, "returning: requests that arrive together"},
      {"workload.limit", integer_value(0), 0, kMost, "requests to serve; 0 = all"},
      {"workload.loop", text_value("open"), 0, 0,
       "open: requests come at their times; closed: a session's next one no sooner than its think time after the "
       "answer "
       "to the last"},
      {"workload.service_s", 0.0, 0, 1e6,
       "closed, where the trace has no think times: seconds of a session's gaps that are service"},
      {"workload.shrink", integer_value(1), 1, 1e6,
       "divides all lengths in tokens, those of blocks too: the same traffic for a small machine"},
      {"workload.time_scale", 1.0, 1e-9, 999'999'999, "2.0 = arrivals twice as far apart"},
      {"parallel.tp", integer_value(1), 1, 64,
       "tensor-parallel ranks of the engine; for real a process each: mpirun -np N kvtwin run"},
      {"parallel.rank_model", text_value("lockstep"), 0, 0,
       "lockstep, or instances: each rank a policy of its own, which must all decide the same; for real always "
       "instances"},
      {"cluster.engines", integer_value(1), 1, 1024,
       "engines, each with a machine of its own; the shared file system and the remote tier are shared"},
      {"cluster.prefill", integer_value(0), 0, 1024,
       "engines that only prefill; not served yet: anything but 0 is refused"},
      {"cluster.decode", integer_value(0), 0, 1024,
       "engines that only decode; not served yet: anything but 0 is refused"},
      {"cluster.route", text_value("round_robin"), 0, 0,
       "how requests find their engine: round_robin or prefix_affinity"},
      {"cache.page_tokens", integer_value(64), 1, 1e6, "tokens of a page"},
      {"cache.layout", text_value("page_first"), 0, 0,
       "of the host pool: layer_first, page_first, page_first_direct, page_head; simulated storage tiers hold a page "
       "in "
       "as many objects as it has pieces there, kvtwin run in one"},
      {"cache.eviction", text_value("lru"), 0, 0, "a policy: see kvtwin presets"},
      {"cache.evict_unit", text_value("page"), 0, 0, "page (just enough, from a leaf's tail) or node (whole leaves)"},
      {"cache.write_policy", text_value("write_through"), 0, 0,
       "write_through, write_through_selective or write_back: to the host when a first request has inserted a prefix, "
       "when a second one has, or when it leaves the device"},
      {"cache.tiering", text_value("inclusive"), 0, 0,
       "inclusive, or exclusive (with write_back): what was loaded back leaves the host"},
      {"cache.reclaim_shadowed", false, 0, 0,
       "a host short of room first drops copies of pages that the device holds too"},
      {"cache.backup_retries", integer_value(0), 0, 1000, "tries more for a copy to the host that failed"},
      {"cache.clean_reserve", 0.1, 0, 1,
       "write_back: share of the device kept free or ready to be evicted, by writing ahead of need"},
      {"cache.write_threshold", integer_value(0), 0, 1e9,
       "requests that insert a prefix before it is backed up; 0 = 1, or 2 for write_through_selective"},
      {"cache.prefetch_policy", text_value("timeout"), 0, 0,
       "best_effort, wait_complete, timeout, or cost_stop: as long as it is faster than computing; for storage tiers"},
      {"cache.prefetch_admission", text_value("threshold"), 0, 0,
       "what is prefetched: threshold (what is long enough), or cost (of that, what takes less time than computing "
       "it)"},
      {"cache.prefetch_min_tokens", integer_value(256), 0, 1e9, "shorter hits in a storage tier aren't prefetched"},
      {"cache.prefetch_timeout_base_s", 1.0, 0, 1e6, "seconds that a prefetch may take, whatever its length"},
      {"cache.prefetch_timeout_per_ki_token_s", 0.25, 0, 1e6, "seconds more for each 1024 tokens of a prefetch"},
      {"cache.prefetch_timeout_most_s", 0.0, 0, 1e6, "seconds that no prefetch exceeds; 0 = no limit"},
      {"cache.prefetch_host_share", 0.5, 0, 1, "share of the host tier that prefetches in flight may take"},
      {"cache.prefetch_retry_steps", integer_value(0), 0, 1e9,
       "scheduler steps until a prefetch that was declined is tried again; 0 = it isn't"},
      {"cache.prefetch_attempts", integer_value(4), 1, 1e6, "tries of a prefetch in all"},
      {"cache.storage_batch_pages", integer_value(128), 1, 1e6, "most pages of one storage operation"},
      {"cache.storage_retries", integer_value(0), 0, 1000, "tries more for pages that a storage tier didn't take"},
      {"cache.split_kv", false, 0, 0,
       "a page is stored as an object for K and one for V; simulated only: kvtwin run stores one object a page"},
      {"cache.namespace", text_value(""), 0, 0, "partition of the storage tiers; another's pages are never found"},
      {"cache.io", text_value("auto"), 0, 0, "kernel, direct or auto"},
      {"cache.path", text_value("via_host"), 0, 0,
       "from storage tiers to the device: via_host, direct (GPUDirect), or auto"},
      {"cache.load_back_admission", text_value("threshold"), 0, 0,
       "which hits on the host are loaded: threshold (what is long enough), or cost (of that, what takes less time "
       "than "
       "computing it)"},
      {"cache.load_back_min_tokens", integer_value(10), 0, 1e9, "shorter hits on the host are computed again"},
      {"cache.load_back_quota_tokens", integer_value(0), 0, kMost, "most tokens one request loads back; 0 = no quota"},
      {"cache.output", true, 0, 0, "generated pages are cached too"},
      {"tiers.device.tokens", integer_value(0), 0, kMost, "capacity of L1"},
      {"tiers.device.gib", 0.0, 0, 1e9, "capacity of L1; neither = what the hardware leaves beside the weights"},
      {"tiers.device.memory_fraction", 0.0, 0, 1,
       "of the GPU's memory, for weights and L1, as SGLang's mem_fraction_static; 0 = 0.9 less activations"},
      {"tiers.host.tokens", integer_value(0), 0, kMost, "capacity of L2"},
      {"tiers.host.gib", 0.0, 0, 1e9, "capacity of L2; neither = no host tier"},
      {"tiers.host.ratio", 0.0, 0, 1e6, "capacity of L2 as a multiple of L1's"},
      {"tiers.disk.tokens", integer_value(0), 0, kMost, "capacity of the disk tier, the engine's own"},
      {"tiers.disk.gib", 0.0, 0, 1e9, "capacity of the disk tier"},
      {"tiers.disk.path", text_value(""), 0, 0, "folder of the disk tier, for kvtwin run"},
      {"tiers.disk.format", text_value("segments"), 0, 0,
       "segments (of many pages), or hicache_files: a file a page, as HiCache's file back end"},
      {"tiers.shared_fs.tokens", integer_value(0), 0, kMost,
       "capacity of the file system that engines share, of all of them together; asked after the disk tier"},
      {"tiers.shared_fs.gib", 0.0, 0, 1e9, "capacity of the shared file system"},
      {"tiers.shared_fs.path", text_value(""), 0, 0,
       "folder on the shared file system, for kvtwin run; several runs may use it at once"},
      {"tiers.remote.tokens", integer_value(0), 0, kMost, "capacity of the remote tier, which evicts by itself"},
      {"tiers.remote.gib", 0.0, 0, 1e9, "capacity of the remote tier"},
      {"tiers.remote.url", text_value(""), 0, 0,
       "where the remote tier is, for kvtwin run: redis://host:port,host:port/database; rediss:// for TLS"},
      {"tiers.remote.tls_ca", text_value(""), 0, 0,
       "file of certificates to trust, with rediss://; none = the system's"},
      {"tiers.remote.timeout_s", 1.0, 0.001, 3600,
       "seconds after which a server that doesn't answer counts as gone, for kvtwin run"},
      {"scheduler.order", text_value("fcfs"), 0, 0, "fcfs or longest_prefix"},
      {"scheduler.order_window", integer_value(128), 1, 1e6, "waiting requests that a step looks at"},
      {"scheduler.overtake_limit", integer_value(128), 0, 1e9, "times a waiting request may be passed over"},
      {"scheduler.max_running", integer_value(256), 1, 1e6, "requests that run at once"},
      {"scheduler.max_waiting", integer_value(0), 0, kMost,
       "requests that wait; more are rejected; 0 = no limit, and each takes 0.4 KB and 32 bytes a page of its prompt"},
      {"scheduler.chunk_tokens", integer_value(8192), 1, 1e9, "prefill tokens of one pass"},
      {"scheduler.burst_steps", integer_value(64), 1, 1e6, "decode steps submitted at once"},
      {"report.bounds", false, 0, 0,
       "reckon what could have been hit at best, and by LRU, in one cache of all tiers; 80 bytes of memory a page"},
      {"sim.world", text_value("simgrid"), 0, 0, "simgrid (links are shared) or events (they are not)"},
      {"real.device", text_value("auto"), 0, 0,
       "host (host memory stands in for the GPU), cuda, or auto: cuda where there is a GPU, else host"},
      {"real.cufile", text_value("auto"), 0, 0,
       "on: the disk tier's pages come into GPU memory by cuFile (GPUDirect Storage); off: through host memory; auto: "
       "by "
       "cuFile where the kernel supports it"},
      {"real.cufile_library", text_value(""), 0, 0, "cuFile's library file; empty: where the system has it"},
      {"real.cublas", text_value(""), 0, 0, "cuBLAS's library file, for cuda; empty: where the system has it"},
      {"real.flip", text_value("none"), 0, 0, "none, device or host: flips a bit of a page there, to see it found"},
      {"real.slow_rank", integer_value(0), 0, 63, "the rank that is slower, to see the others wait for it"},
      {"real.slow_factor", 1.0, 1, 1e6,
       "times as long take that rank's copies and storage operations; it idles in between"},
      {"sim.storage_stall_share", 0.0, 0, 1, "share of reads of storage tiers that stall"},
      {"sim.storage_stall_factor", 20.0, 1, 1e6, "times as long as without takes a read that stalls"},
      {"sim.reduce_us", 10.0, 1, 1e6, "instances: microseconds that a reduction among the ranks takes"},
      {"sim.straggler_rank", integer_value(0), 0, 63, "instances: the rank that is slower"},
      {"sim.straggler_factor", 1.0, 1, 1e6, "instances: times as long take its transfers and storage operations"},
      {"sim.both_ways_shared", true, 0, 0, "loads and backups of a GPU share what its link carries both ways together"},
      {"sim.dram_shared", true, 0, 0, "all of a host's transfers share its DRAM bandwidth"},
  };
  return keys;
}

const char* type_name(const Value& value) {
  static constexpr std::array kNames{"a string", "an integer", "a number", "true or false"};
  static_assert(kNames.size() == std::variant_size_v<Value>);
  return kNames[value.index()];
}

std::string shown(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    std::ostringstream out;
    out << toml::value<std::string>(*text);
    return out.str();
  }
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  std::ostringstream out;
  out << toml::value<double>(std::get<double>(value));
  return out.str();
}

// Would the resolved experiment bring it back? Bytes that aren't UTF-8, as in some file names, it wouldn't.
bool can_be_written(const Value& value) {
  if (!std::holds_alternative<std::string>(value)) return true;
  try {
    const toml::table parsed = toml::parse("value = " + shown(value));
    return parsed["value"].value<std::string>() == std::get<std::string>(value);
  } catch (const toml::parse_error&) {
    return false;
  }
}

const Key& find_key(std::string_view name, const std::string& where) {
  for (const Key& key : table()) {
    if (key.name == name) return key;
  }
  std::vector<std::string> names;
  for (const Key& key : table()) names.emplace_back(key.name);
  const std::string nearest = nearest_name(name, names);
  std::string sentence = where + ": unknown key \"" + std::string(name) + "\"";
  if (!nearest.empty()) sentence += "; did you mean \"" + nearest + "\"?";
  throw InputError(sentence + (nearest.empty() ? "; " : " ") + "`kvtwin simulate --help-keys` lists all keys");
}

Value to_value(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  throw InputError(where + ": must be a string, a number or true/false");
}

// toml++ nests a table for each dot of a key and takes them down by recursion: thousands would overflow the stack.
void check_depth(std::string_view text, const std::string& name) {
  constexpr std::size_t kMostDots = 64;
  std::size_t dots = 0, line = 1;
  for (const char c : text) {
    if (c == '\n') {
      dots = 0;
      ++line;
    } else if (c == '.' && ++dots > kMostDots) {
      throw InputError(name + ":" + std::to_string(line) +
                       ": more than 64 dots in a line; keys have at most four parts");
    }
  }
}

}  // namespace

std::span<const Experiment::Key> Experiment::keys() { return table(); }

Experiment::Experiment() {
  for (const Key& key : table()) entries_[std::string(key.name)].value = key.fallback;
}

Experiment Experiment::from_file(const std::filesystem::path& path) {
  Experiment experiment = from_text(read_text_file(path, kWantedExperiment, kMaxExperimentBytes), path.string());
  experiment.folder_ = path.parent_path();
  return experiment;
}

Experiment Experiment::from_text(std::string_view text, const std::string& name) {
  Experiment experiment;
  check_depth(text, name);
  toml::table document;
  try {
    document = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw InputError(name + ":" + std::to_string(error.source().begin.line) +
                     ": not TOML: " + std::string(error.description()));
  }
  struct Level {
    std::string prefix;
    const toml::table* table;
  };
  std::vector<Level> open{{"", &document}};  // breadth first, no recursion on user input
  for (std::size_t i = 0; i < open.size(); ++i) {
    const Level level = open[i];
    for (const auto& [key, node] : *level.table) {
      const std::string full = level.prefix + std::string(key.str());
      const std::string where = name + ":" + std::to_string(node.source().begin.line);
      if (full == "sweep" && node.is_table()) continue;  // not of one experiment: see sweep_plan.hpp
      if (const auto* child = node.as_table()) {
        open.push_back({full + ".", child});
        continue;
      }
      const Key& known = find_key(full, where);
      experiment.assign(known, to_value(node, where + ": " + full), where, true);
    }
  }
  return experiment;
}

void Experiment::set(std::string_view assignment, const std::string& origin) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw InputError(origin + " " + std::string(assignment) + ": must be key=value, e.g. cache.page_tokens=32");
  }
  const std::string key(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));
  const Key& known = find_key(key, origin);
  Value value = text;
  if (!std::holds_alternative<std::string>(known.fallback)) {
    try {
      const toml::table parsed = toml::parse("value = " + text);
      if (parsed.size() == 1) value = to_value(*parsed.get("value"), origin + " " + key);
    } catch (const toml::parse_error&) {  // stays a string, whose type is then refused below
    }
  } else if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    value = text.substr(1, text.size() - 2);
  }
  if (!can_be_written(value)) {
    throw InputError(origin + ": " + key + " is given in bytes that an experiment file can't hold; it must be UTF-8");
  }
  assign(known, std::move(value), origin, false);
}

void Experiment::assign(const Key& key, Value value, const std::string& origin, bool from_file) {
  const std::string where = origin + ": " + std::string(key.name);
  if (std::holds_alternative<double>(key.fallback) && std::holds_alternative<std::int64_t>(value)) {
    value = static_cast<double>(std::get<std::int64_t>(value));
  }
  if (value.index() != key.fallback.index()) {
    throw InputError(where + " is " + shown(value) + "; it must be " + type_name(key.fallback) + " (" +
                     std::string(key.help) + ")");
  }
  const auto check = [&](double number) {
    const double least = key.least_but_0 > 0 && number != 0 ? key.least_but_0 : key.least;
    if (!(number >= least && number <= key.most)) {
      std::ostringstream range;
      range << where << " is " << shown(value) << "; it must be ";
      if (key.least_but_0 > 0) range << "0, or ";
      range << "at least " << least;
      if (key.most < kMost) range << " and at most " << key.most;
      throw InputError(range.str() + " (" + std::string(key.help) + ")");
    }
  };
  if (const auto* integer = std::get_if<std::int64_t>(&value)) check(static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&value)) check(*number);
  const bool empty = value == Value(std::string()) || value == Value(std::int64_t{0}) || value == Value(0.0);
  entries_.find(key.name)->second = {std::move(value), origin, from_file};
  // Two ways of saying one thing: the later one wins, but one file that says both is a mistake.
  static constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {"tiers.device.tokens", "tiers.device.gib"},
      {"tiers.device.tokens", "tiers.device.memory_fraction"},
      {"tiers.device.gib", "tiers.device.memory_fraction"},
      {"tiers.host.tokens", "tiers.host.gib"},
      {"tiers.host.tokens", "tiers.host.ratio"},
      {"tiers.host.gib", "tiers.host.ratio"},
      {"tiers.disk.tokens", "tiers.disk.gib"},
      {"tiers.shared_fs.tokens", "tiers.shared_fs.gib"},
      {"tiers.remote.tokens", "tiers.remote.gib"},
      {"model.name", "model.config"},
      {"hardware.name", "hardware.file"}};
  for (const auto& [a, b] : kPairs) {
    if (key.name != a && key.name != b) continue;
    if (empty && from_file) continue;  // says nothing, as in a resolved experiment
    const std::string_view other_name = key.name == a ? b : a;
    Entry& other = entry(other_name);
    const bool other_empty = std::visit([](const auto& v) { return v == std::decay_t<decltype(v)>{}; }, other.value);
    if (other.from_file && from_file && !other_empty) {
      throw InputError(where + ": " + std::string(other_name) + " is given too (" + other.origin +
                       "); give one of them");
    }
    if (other_empty) continue;
    const bool preset = other_name == "model.name" || other_name == "hardware.name";
    if (empty && preset) continue;  // an empty path leaves the preset as it is
    other.value = std::visit([](const auto& v) { return Value(std::decay_t<decltype(v)>{}); }, other.value);
    other.origin = origin;
    other.from_file = false;
  }
}

Experiment::Entry& Experiment::entry(std::string_view key) { return entries_.find(key)->second; }
const Experiment::Entry& Experiment::entry(std::string_view key) const { return entries_.find(key)->second; }

const std::string& Experiment::text(std::string_view key) const { return std::get<std::string>(entry(key).value); }
std::int64_t Experiment::integer(std::string_view key) const { return std::get<std::int64_t>(entry(key).value); }
double Experiment::number(std::string_view key) const { return std::get<double>(entry(key).value); }
bool Experiment::flag(std::string_view key) const { return std::get<bool>(entry(key).value); }
const std::string& Experiment::origin(std::string_view key) const { return entry(key).origin; }

std::string Experiment::as_toml(std::string_view key) const { return shown(entry(key).value); }

// A report and a terminal take them: they may quote anything.
void Experiment::note(std::string_view sentence) {
  std::string text;
  for (const char c : sentence) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      text += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      text += escaped;
    }
  }
  notes_.push_back(std::move(text));
}

std::string Experiment::where(std::string_view key) const { return std::string(key) + " (" + origin(key) + ")"; }

std::filesystem::path Experiment::path(std::string_view key) const {
  const std::filesystem::path given_path = text(key);
  return given_path.is_absolute() || !entry(key).from_file ? given_path : folder_ / given_path;
}

std::string Experiment::resolved() const {
  std::ostringstream out;
  out << "# Every key, its value and where it came from.\n";
  for (const Key& key : table()) {
    const Entry& e = entry(key.name);
    const bool is_path = key.name == "workload.trace" || key.name == "model.config" || key.name == "hardware.file" ||
                         key.name == "tiers.disk.path" || key.name == "tiers.shared_fs.path" ||
                         key.name == "tiers.remote.tls_ca" || key.name == "workload.salt_file";
    Value value = e.value;
    if (is_path && !text(key.name).empty())
      value = std::filesystem::absolute(path(key.name)).lexically_normal().string();
    out << key.name << " = " << shown(value) << "  # " << e.origin << "\n";
  }
  return out.str();
}

}  // namespace kvtwin

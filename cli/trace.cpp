// kvtwin trace: what a trace holds; make one.
#include <cstdio>
#include <filesystem>
#include <string>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "traces/generate.hpp"
#include "traces/info.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

struct InfoArguments {
  std::string trace;
  std::uint64_t block_tokens = 512, limit = 0;
  bool json = false;
};

struct GenerateArguments {
  std::string out, kind = "chat";
  std::uint64_t seed = 1, requests = 0;
  double duration_s = 3600, sessions_per_second = 2.08;
  bool force = false;
};

void print_info(const InfoArguments& arguments) {
  TraceOptions options;
  options.block_tokens = arguments.block_tokens;
  TraceReader reader(arguments.trace, options);
  const TraceInfo info = trace_info(reader, arguments.limit);
  const std::string text = arguments.json ? trace_info_json(info) + "\n" : trace_info_text(info);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (reader.ignored_keys() != 0) {
    std::fprintf(stderr, "%llu keys that kvtwin doesn't know were passed over\n",
                 static_cast<unsigned long long>(reader.ignored_keys()));
  }
}

void generate(const GenerateArguments& arguments) {
  namespace fs = std::filesystem;
  if (fs::exists(arguments.out) && !arguments.force) {
    throw InputError("--out " + arguments.out + ": exists; give another name, or --force to replace it");
  }
  if (!(arguments.duration_s >= 0 && arguments.duration_s <= 1e9)) {
    throw InputError("--duration: must be between 0 and 1e9 seconds");
  }
  ChatConfig config;
  config.seed = arguments.seed;
  config.requests = arguments.requests;
  config.duration = arguments.requests != 0 ? 0 : static_cast<TimeNs>(arguments.duration_s * 1e9 + 0.5);
  config.sessions_per_second = arguments.sessions_per_second;
  ChatGenerator generator(config);
  // The compression follows the name's end, so the partial file keeps it.
  const fs::path target = arguments.out;
  const fs::path partial = target.parent_path() / (".partial." + target.filename().string());
  TraceRequest request;
  std::uint64_t count = 0;
  try {
    TraceWriter writer(partial.string());
    for (; generator.next(request); ++count) writer.write(request);
    writer.finish();
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    throw WorkError(error.what());
  }
  fs::rename(partial, target);
  std::fprintf(stderr, "%llu requests written to %s\n", static_cast<unsigned long long>(count), arguments.out.c_str());
}

}  // namespace

void add_trace(CLI::App& program) {
  CLI::App* trace = program.add_subcommand("trace", "What a trace holds; make one");
  trace->require_subcommand(1);
  trace->footer("Example: kvtwin trace info traces/chat_small.jsonl.zst");
  static InfoArguments info;
  CLI::App* show = trace->add_subcommand("info", "Count requests, lengths, blocks and ideal hits");
  show->footer("Example: kvtwin trace info traces/chat_small.jsonl.zst");
  show->add_option("trace", info.trace, "Trace file (Mooncake JSONL; plain, gzip or zstd)")->required();
  show->add_option("--block-tokens", info.block_tokens, "Tokens of a block id")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 31))
      ->capture_default_str();
  show->add_option("--limit", info.limit, "Requests to read; 0 = all");
  show->add_flag("--json", info.json, "Machine-readable");
  show->callback([] { print_info(info); });

  static GenerateArguments made;
  CLI::App* make = trace->add_subcommand("generate", "Write a generated trace (Mooncake JSONL)");
  make->footer("Example: kvtwin trace generate --seed 1 --duration 3600 --out chat.jsonl.zst");
  make->add_option("--out", made.out, "File to write; .zst and .gz are compressed")->required();
  make->add_option("--kind", made.kind, "chat: multi-turn chat behind one system prompt")
      ->check(CLI::IsMember({"chat"}))
      ->capture_default_str();
  make->add_option("--seed", made.seed, "Of everything drawn")->capture_default_str();
  make->add_option("--requests", made.requests, "Requests; 0 = by duration");
  make->add_option("--duration", made.duration_s, "Seconds of traffic; 0 = no limit")->capture_default_str();
  make->add_option("--sessions-per-second", made.sessions_per_second, "New sessions a second")->capture_default_str();
  make->add_flag("--force", made.force, "Replace the file");
  make->callback([] { generate(made); });
}

}  // namespace kvtwin

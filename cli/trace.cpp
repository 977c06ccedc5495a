// kvtwin trace: describes, generates and converts traces. Reads any format, writes Mooncake's.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/session_options.hpp"
#include "cli/trace_options.hpp"
#include "lab/error.hpp"
#include "lab/experiment/generated.hpp"
#include "traces/figure_error.hpp"
#include "traces/groups.hpp"
#include "traces/info.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

// Turns a TraceError of `write` into a WorkError: the output cannot be written, and the input is not the cause.
template <class Write>
auto write_or_fail(Write write) {
  try {
    return write();
  } catch (const TraceError& error) {
    throw WorkError(error.what());
  }
}

std::unique_ptr<TraceWriter> writer_of(const std::string& path) {
  return write_or_fail([&] { return std::make_unique<TraceWriter>(path); });
}

struct InfoArguments {
  std::string trace;
  TraceArguments how;
  std::uint64_t limit = 0;
  bool json = false;
};

struct GenerateArguments {
  std::string out, kind = "chat";
  std::uint64_t seed = 1, requests = 0;
  double duration_s = 3600, sessions_per_second = 0, requests_per_second = 6.67;
  GroupsConfig groups;
  SessionsConfig sessions;
  bool force = false;
};

struct ConvertArguments {
  std::string in, out;
  TraceArguments how;
  std::uint64_t limit = 0;
  bool force = false;
};

// Prints on stderr what the reader generated or ignored.
void print_notes(const TraceReader& reader) {
  for (const std::string& note : reader.notes()) std::fprintf(stderr, "kvtwin: note: %s\n", note.c_str());
}

void print_info(const InfoArguments& arguments) {
  TraceReader reader(arguments.trace, arguments.how.chosen());
  const TraceInfo info = trace_info(reader, arguments.limit);
  std::string text;
  if (arguments.json) {
    text = trace_info_json(info) + "\n";
  } else {
    text = "format       " + std::string(reader.format()) + "\n" + trace_info_text(info);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  print_notes(reader);
}

// Writes .partial.NAME and renames the complete file. So an interrupted program never leaves a partial file at `out`.
void write_trace(TraceSource& source, std::uint64_t limit, const std::string& out) {
  namespace fs = std::filesystem;
  // The end of the name selects the compression, so the partial file has the same end.
  const fs::path target = out;
  const fs::path partial = target.parent_path() / (".partial." + target.filename().string());
  TraceRequest request;
  std::uint64_t requests = 0;
  try {
    const std::unique_ptr<TraceWriter> writer = writer_of(partial.string());
    while ((limit == 0 || requests < limit) && source.next(request)) {
      write_or_fail([&] { writer->write(request); });
      if (!request.is_hint) ++requests;
    }
    write_or_fail([&] { writer->finish(); });
    fs::rename(partial, target);
  } catch (...) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    throw;
  }
  std::fprintf(stderr, "%llu requests written to %s\n", static_cast<unsigned long long>(requests), out.c_str());
}

// Prints the block size on stderr, because a file in Mooncake's format does not contain it.
void print_block_tokens(Tokens block) {
  const auto tokens = static_cast<unsigned long long>(block);
  std::fprintf(stderr, "its blocks are of %llu tokens", tokens);
  if (tokens != 512) {
    std::fprintf(stderr,
                 ", which the reader must be given (trace info, convert: --block-tokens %llu; hitrate: "
                 "--trace-block-tokens %llu; experiments: workload.block_tokens=%llu)",
                 tokens, tokens, tokens);
  }
  std::fputc('\n', stderr);
}

void refuse_existing(const std::string& out, bool force, const char* what) {
  if (std::filesystem::exists(out) && !force) {
    throw InputError(std::string(what) + out + ": exists; give another name, or --force to replace it");
  }
}

std::unique_ptr<TraceSource> groups_of(const GenerateArguments& arguments) {
  GroupsConfig config = arguments.groups;
  config.seed = arguments.seed;
  config.requests = arguments.requests;
  config.requests_per_second = arguments.requests_per_second;
  return std::make_unique<GroupsGenerator>(config);
}

std::unique_ptr<TraceSource> sessions_of(const CLI::App& command, const GenerateArguments& arguments, TimeNs duration) {
  require_session_options(command);
  SessionsConfig config = arguments.sessions;
  config.seed = arguments.seed;
  config.requests = arguments.requests;
  config.duration = duration;
  config.requests_per_second = arguments.requests_per_second;
  config.output_tokens = arguments.groups.output_tokens;
  config.prefix_tokens = arguments.groups.prefix_tokens;
  return make_sessions(config);
}

void generate(const CLI::App& command, const GenerateArguments& arguments) {
  refuse_existing(arguments.out, arguments.force, "--out ");
  if (!(arguments.duration_s >= 0 && arguments.duration_s <= 1e9)) {
    throw InputError("--duration: must be between 0 and 1e9 seconds");
  }
  const TimeNs duration = arguments.requests != 0 ? 0 : static_cast<TimeNs>(arguments.duration_s * 1e9 + 0.5);
  if (arguments.requests == 0 && duration == 0) {
    throw InputError("--duration: is 0, as --requests is: that is a trace without an end; set one of them");
  }
  const std::unique_ptr<TraceSource> made = [&] {
    if (arguments.kind == "sessions") return sessions_of(command, arguments, duration);
    try {
      return arguments.kind == "groups"
                 ? groups_of(arguments)
                 : generated_traffic(arguments.kind, arguments.seed, arguments.requests, duration,
                                     arguments.sessions_per_second, arguments.requests_per_second);
    } catch (const FigureError& error) {
      std::string option = "--" + error.figure();
      std::ranges::replace(option, '_', '-');
      throw InputError(option + ": " + error.range());
    }
  }();
  write_trace(*made, 0, arguments.out);
  print_block_tokens(made->block_tokens());
}

void convert(const ConvertArguments& arguments) {
  refuse_existing(arguments.out, arguments.force, "");
  TraceReader reader(arguments.in, arguments.how.chosen());
  write_trace(reader, arguments.limit, arguments.out);
  std::fprintf(stderr, "from %s; ", std::string(reader.format()).c_str());
  print_block_tokens(reader.block_tokens());
  print_notes(reader);
}

void add_groups_options(CLI::App& command, GroupsConfig& groups) {
  const auto add = [&](const char* name, std::uint64_t& value, const char* help) {
    command.add_option(name, value, std::string("groups: ") + help)->capture_default_str();
  };
  add("--groups", groups.groups, "number of groups of prompts that share a prefix");
  add("--prompts-per-group", groups.prompts_per_group, "prompts per group");
  add("--prefix-tokens", groups.prefix_tokens,
      "tokens of the prefix that a group shares; sessions: that all conversations share (no default)");
  add("--question-tokens", groups.question_tokens, "tokens of each prompt after the prefix");
  add("--output-tokens", groups.output_tokens, "tokens per answer; sessions: mean (no default)");
  command
      .add_option("--range-ratio", groups.range_ratio,
                  "groups: smallest length / largest length; each length is drawn between the two, all equally likely; "
                  "1 = equal lengths")
      ->capture_default_str();
  add("--concurrency", groups.clients,
      "number of clients; each client is a session for a closed loop (workload.loop=closed), and "
      "--requests-per-second is not used; 0 = no clients");
}

}  // namespace

void add_trace(CLI::App& program) {
  CLI::App* trace = program.add_subcommand("trace", "Describe, generate or convert a trace");
  trace->require_subcommand(1);
  trace->footer("Example: kvtwin trace info traces/chat_small.jsonl.zst");
  static InfoArguments info;
  CLI::App* show = trace->add_subcommand(
      "info", "Print the number of requests, the lengths, the blocks and the hits of an infinite cache");
  show->footer("Example: kvtwin trace info traces/chat_small.jsonl.zst");
  show->add_option("trace", info.trace, "Trace file, in a format of --format; plain, gzip or zstd")->required();
  add_trace_options(*show, info.how, "--block-tokens,--trace-block-tokens");
  show->add_option("--limit", info.limit, "Number of requests to read (default: 0, all)");
  show->add_flag("--json", info.json, "Print JSON");
  show->callback([] { print_info(info); });

  static GenerateArguments made;
  CLI::App* make = trace->add_subcommand("generate", "Write a generated trace (Mooncake JSONL)");
  make->footer("Example: kvtwin trace generate --seed 1 --duration 3600 --out chat.jsonl.zst");
  make->add_option("--out", made.out,
                   "File to write, in Mooncake's format; names that end in .zst or .gz are compressed")
      ->required();
  make->add_option(
          "--kind", made.kind,
          "chat: multi-turn chat with one system prompt; agentic: coding agents; tools: calls of applications; "
          "groups: groups of prompts that share a prefix (number of prompts: --groups times --prompts-per-group); "
          "sessions: conversations with the averages that you give")
      ->check(CLI::IsMember({"chat", "agentic", "tools", "groups", "sessions"}))
      ->capture_default_str();
  make->add_option("--seed", made.seed, "Seed of all random draws")->capture_default_str();
  make->add_option("--requests", made.requests,
                   "Number of requests; groups: after the last prompt, the first one is sent again (default: 0, by "
                   "--duration, or each prompt once)");
  make->add_option("--duration", made.duration_s, "Seconds of traffic, if --requests is 0")->capture_default_str();
  make->add_option("--sessions-per-second", made.sessions_per_second,
                   "chat, agentic: new sessions per second; 0 = 2.08 for chat, 1/30 for agentic")
      ->capture_default_str();
  make->add_option("--requests-per-second", made.requests_per_second,
                   "tools, groups, sessions: requests per second (sessions: no default)")
      ->capture_default_str();
  add_groups_options(*make, made.groups);
  add_session_options(*make, made.sessions, false);
  make->add_flag("--force", made.force, "Replace the file if it exists");
  make->callback([make] { generate(*make, made); });

  static ConvertArguments converted;
  CLI::App* convert_app = trace->add_subcommand("convert", "Convert a trace of any format to Mooncake JSONL");
  convert_app->footer("Example: kvtwin trace convert traces/chat_small.jsonl.zst chat.jsonl");
  convert_app->add_option("in", converted.in, "Trace file, in a format of --format; plain, gzip or zstd")->required();
  convert_app->add_option("out", converted.out, "File to write; names that end in .zst or .gz are compressed")
      ->required();
  add_trace_options(*convert_app, converted.how, "--block-tokens,--trace-block-tokens");
  convert_app->add_option("--limit", converted.limit, "Number of requests to convert (default: 0, all)");
  convert_app->add_option(
      "--salt", converted.how.options.salt,
      "token_ids, sglang: secret for the hashes that replace the prompts; without the secret, nobody can check "
      "a guessed prompt against the file");
  convert_app->add_option("--seed", converted.how.options.seed, "agentic: seed of the session starts")
      ->capture_default_str();
  convert_app->add_flag("--force", converted.force, "Replace the file if it exists");
  convert_app->callback([] { convert(converted); });
}

}  // namespace kvtwin

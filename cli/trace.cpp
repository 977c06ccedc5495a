// kvtwin trace: describes, generates and converts traces. Reads any format, writes Mooncake's.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "cli/commands.hpp"
#include "cli/one_of.hpp"
#include "cli/say.hpp"
#include "cli/session_options.hpp"
#include "cli/trace_options.hpp"
#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/generated.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/units.hpp"
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
  double duration_s = 3600, sessions_per_second = 0;
  GroupsConfig groups;
  WorkloadWords words;
  double service_s = 0, length_spread = 1, think_spread = 1;  // of sessions
  bool force = false;
};

struct ConvertArguments {
  std::string in, out;
  TraceArguments how;
  std::uint64_t limit = 0;
  bool force = false;
};

constexpr double kRequestsPerSecond = 6.67;  // of tools and groups
constexpr const char* kWordsOfSessions[] = {"--users",       "--turns",         "--think",   "--new-tokens",
                                            "--context-max", "--prompt-tokens", "--workload"};

void print_note(const std::string& note) { std::fprintf(stderr, "%s %s\n", note_mark().c_str(), note.c_str()); }

// Prints on stderr what the reader generated or ignored.
void print_notes(const TraceReader& reader) {
  for (const std::string& note : reader.notes()) print_note(note);
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

// Returns the number in an option that several kinds read.
double word_or(const GenerateArguments& arguments, std::string_view option, double fallback) {
  const std::string text = workload_word(arguments.words, option);
  return text.empty() ? fallback : number_in({}, text, std::string(option));
}

std::unique_ptr<TraceSource> groups_of(const GenerateArguments& arguments) {
  GroupsConfig config = arguments.groups;
  config.seed = arguments.seed;
  config.requests = arguments.requests;
  config.requests_per_second = word_or(arguments, "--requests-per-second", kRequestsPerSecond);
  const auto tokens = [&](std::string_view option, Tokens& to) {
    const double number = word_or(arguments, option, static_cast<double>(to));
    if (!(number >= 0 && number <= 1e9)) throw InputError(std::string(option) + ": must be from 0 to 1000000000");
    to = static_cast<Tokens>(number);
  };
  tokens("--prefix-tokens", config.prefix_tokens);
  tokens("--output-tokens", config.output_tokens);
  return std::make_unique<GroupsGenerator>(config);
}

constexpr std::string_view kOrigin = "trace generate";  // of the settings that options stand for

// Names the option where an error names the key that the option stands for.
std::string in_options(std::string text) {
  constexpr std::string_view kGenerate = "workload.generate.";
  const std::string origin = " (" + std::string(kOrigin) + ")";
  for (std::size_t at = text.find(kGenerate); at != std::string::npos; at = text.find(kGenerate, at + 1)) {
    const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at + kGenerate.size());
    std::string option =
        text.substr(at + kGenerate.size(), end == std::string::npos ? end : end - at - kGenerate.size());
    if (option == "context_max_tokens") option = "context_max";
    if (option.starts_with("turns_")) option = "turns";
    std::ranges::replace(option, '_', '-');
    const bool marked = end != std::string::npos && text.compare(end, origin.size(), origin) == 0;
    const std::size_t after = end == std::string::npos ? text.size() : end + (marked ? origin.size() : 0);
    text.replace(at, after - at, "--" + option);
  }
  return text;
}

// The traffic that the same options give plan, compare and simulate, without a model: only --context-max limits it.
std::unique_ptr<TraceSource> sessions_of(const CLI::App& command, const GenerateArguments& arguments, TimeNs duration) {
  if (command.count("--users") == 0 && command.count("--workload") == 0) {
    for (const char* option : {"--requests-per-second", "--turns", "--output-tokens", "--prefix-tokens"}) {
      if (command.count(option) != 0) continue;
      throw InputError(std::string(option) +
                       ": is not given, and conversations need averages of your traffic; give it, or --users or "
                       "--workload");
    }
  }
  const WordSettings words = settings_of_words(command, arguments.words);
  Experiment experiment = Experiment::from_text("", "trace generate");
  for (const std::string& setting : words.settings) experiment.set(setting, std::string(kOrigin));
  for (const auto& [option, key, value] :
       {std::tuple{"--service-s", "workload.service_s", arguments.service_s},
        {"--length-spread", "workload.generate.length_spread", arguments.length_spread},
        {"--think-spread", "workload.generate.think_spread", arguments.think_spread}}) {
    if (command.count(option) != 0) experiment.set(std::string(key) + "=" + plain_number(value), option);
  }
  experiment.set("seed=" + std::to_string(arguments.seed), "--seed");
  const bool limited = experiment.is_given("workload.generate.context_max_tokens");
  if (!limited) experiment.set("workload.generate.context_max_tokens=" + std::to_string(kMaxTraceTokens), "no limit");
  SessionsConfig config = sessions_config(experiment);
  config.requests = arguments.requests;
  config.duration = duration;
  for (const std::string& note : words.notes) print_note(note);
  if (!limited) print_note("--context-max is not given, so conversations end by their turns only");
  return make_sessions(config);
}

// The words of conversations mean --kind sessions.
std::string kind_of(const CLI::App& command, const GenerateArguments& arguments) {
  const std::string kind = command.count("--kind") != 0 ? arguments.kind : "";
  for (const char* option : kWordsOfSessions) {
    if (command.count(option) == 0) continue;
    if (!kind.empty() && kind != "sessions") {
      throw InputError(std::string(option) + ": is of conversations, and --kind is " + kind +
                       "; leave one of them out");
    }
    return "sessions";
  }
  return arguments.kind;
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
  const std::string kind = kind_of(command, arguments);
  const std::unique_ptr<TraceSource> made = [&] {
    if (kind == "sessions") {
      try {
        return sessions_of(command, arguments, duration);
      } catch (const InputError& error) {
        throw InputError(in_options(error.what()));
      }
    }
    try {
      return kind == "groups"
                 ? groups_of(arguments)
                 : generated_traffic(kind, arguments.seed, arguments.requests, duration, arguments.sessions_per_second,
                                     word_or(arguments, "--requests-per-second", kRequestsPerSecond));
    } catch (const FigureError& error) {
      std::string option = "--" + error.figure();
      std::ranges::replace(option, '_', '-');
      throw InputError(option + ": " + error.range());
    }
  }();
  write_trace(*made, 0, arguments.out);
  print_block_tokens(made->block_tokens());
  if (const std::optional<DrawnTraffic> drawn = made->drawn()) {
    std::fprintf(stderr, "drawn: %s\n", drawn_text(*drawn).c_str());
  }
  for (const std::string& note : made->notes()) print_note(note);
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
  add("--question-tokens", groups.question_tokens, "tokens of each prompt after the prefix");
  command
      .add_option(
          "--range-ratio", groups.range_ratio,
          "groups: smallest length / largest length. Each length is drawn evenly between the two. 1 = equal lengths")
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
  make->footer(
      "Example: kvtwin trace generate --seed 1 --duration 3600 --out chat.jsonl.zst\n"
      "         kvtwin trace generate --users 50 --turns 30-60 --think 20s --context-max 60k --out agents.jsonl.zst\n"
      "The options of generated traffic are those of plan, compare and simulate. --requests-per-second is also read by "
      "tools and groups (default 6.67), --prefix-tokens and --output-tokens also by groups.");
  make->add_option("--out", made.out,
                   "File to write, in Mooncake's format; names that end in .zst or .gz are compressed")
      ->required();
  make->add_option(
          "--kind", made.kind,
          "chat: multi-turn chat with one system prompt; agentic: coding agents; tools: calls of applications; "
          "groups: groups of prompts that share a prefix (number of prompts: --groups times --prompts-per-group); "
          "sessions: conversations with the averages that you give")
      ->check(is_one_of({"chat", "agentic", "tools", "groups", "sessions"}))
      ->capture_default_str();
  make->add_option("--seed", made.seed, "Seed of all random draws")->capture_default_str();
  make->add_option("--requests", made.requests,
                   "Number of requests; groups: after the last prompt, the first one is sent again (default: 0, by "
                   "--duration, or each prompt once)");
  make->add_option("--duration", made.duration_s, "Seconds of traffic, if --requests is 0")->capture_default_str();
  make->add_option("--sessions-per-second", made.sessions_per_second,
                   "chat, agentic: new sessions per second; 0 = 2.08 for chat, 1/30 for agentic")
      ->capture_default_str();
  add_groups_options(*make, made.groups);
  add_workload_words(*make, made.words);
  make->add_option("--service-s", made.service_s, "sessions: time of an answer in the generated trace, in seconds")
      ->capture_default_str();
  make->add_option("--length-spread", made.length_spread,
                   "sessions: standard deviation of the logarithm of new tokens per turn and of answers; 0 = equal")
      ->capture_default_str();
  make->add_option("--think-spread", made.think_spread,
                   "sessions: standard deviation of the logarithm of think times; 0 = equal")
      ->capture_default_str();
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
  convert_app->add_option("--salt", converted.how.options.salt,
                          "token_ids, sglang, vllm: secret for the hashes that replace the prompts. Without the "
                          "secret, no reader can check "
                          "a guessed prompt against the file");
  convert_app->add_option("--seed", converted.how.options.seed, "agentic: seed of the session starts")
      ->capture_default_str();
  convert_app->add_flag("--force", converted.force, "Replace the file if it exists");
  convert_app->callback([] { convert(converted); });
}

}  // namespace kvtwin

// kvtwin watch: what other sizes of cache would hit, for engines that run or for recordings.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>

#include "cli/commands.hpp"
#include "cli/engine_options.hpp"
#include "cli/say.hpp"
#include "cli/terminal.hpp"
#include "lab/error.hpp"
#include "lab/units.hpp"
#include "lab/watch/watch_run.hpp"

namespace kvtwin {
namespace {

std::atomic<bool> stop_watching = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler sets it

void request_stop(int /*signal*/) { stop_watching = true; }

// No SA_RESTART: a wait ends at once. The second one of a kind ends the program, whatever it waits for.
void stop_at_signals() {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

struct WatchCommand : WatchArguments {
  std::string every = "60s", duration, metrics_every = "5s", token_file;
  bool json = false;
};

// One screen that is drawn again in its place, on a terminal; otherwise a line per interval.
WatchOutput output_of(const WatchCommand& command) {
  WatchOutput output;
  if (command.json) return output;
  if (isatty(STDOUT_FILENO) != 0) {
    output.screen = [](const std::string& screen) {
      std::printf("\033[H\033[2J%s", screen.c_str());
      std::fflush(stdout);
    };
    return output;
  }
  output.interval = [](const std::string& line) {
    print(line);
    std::fflush(stdout);
  };
  return output;
}

std::string token_in(const std::string& path) {
  std::ifstream in(path);
  std::string token;
  if (!in || !std::getline(in, token) || token.empty()) {
    throw InputError("--token-file " + path + ": can't be read, or its first line is empty");
  }
  return token;
}

// Refuses options that would have no effect.
void check_options(const CLI::App& options, const WatchCommand& command, bool is_live) {
  const auto given = [&](const std::string& option) { return options.get_option(option)->count() > 0; };
  const auto refuse = [&](std::initializer_list<const char*> list, const char* why) {
    for (const char* const option : list) {
      if (given(option)) throw InputError(std::string(option) + ": " + why);
    }
  };
  for (const CLI::Option* const option : options.get_options()) {
    const bool may_be_empty = option->check_lname("topic");
    const auto is_empty = [](const std::string& value) { return value.empty(); };
    if (!may_be_empty && std::ranges::any_of(option->results(), is_empty)) {
      throw InputError(option->get_name() + ": is empty; give a value, or leave it out");
    }
  }
  if (is_live) {
    refuse({"--speed"}, "is of recordings; leave it out");
    if (command.sources.empty()) {
      refuse({"--replay", "--topic"}, "is of KV events; give tcp://HOST:PORT of the engines, or leave it out");
    }
    if (command.request_logs.empty()) {
      refuse({"--block-tokens", "--log-zone"}, "is of request logs; give --request-log, or leave it out");
    }
    if (command.sources.empty() && command.request_logs.empty()) {
      refuse({"--out", "--device-blocks", "--host-blocks", "--max-blocks", "--sample", "--window", "--experiment",
              "--set", "--from-vllm-flags", "--from-sglang-flags", "--from-sglang-server-info", "--from-server-log"},
             "has no effect on counters alone; give tcp://HOST:PORT or --request-log, or leave it out");
    }
  } else {
    refuse({"--replay", "--metrics", "--metrics-every", "--request-log", "--log-zone", "--out", "--keep-mib", "--serve",
            "--token-file", "--topic"},
           "needs engines that run; give tcp://HOST:PORT");
  }
  for (const auto& [option, needed] :
       {std::pair{"--token-file", "--serve"}, {"--metrics-every", "--metrics"}, {"--keep-mib", "--out"}}) {
    if (given(option) && !given(needed)) {
      throw InputError(std::string(option) + ": needs " + needed + "; give it, or leave this out");
    }
  }
}

// Of this moment: a log of another time of the year may have another one.
int machine_zone_s() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return static_cast<int>(local.tm_gmtoff);
}

void watch(const CLI::App& options, WatchCommand& command) {
  const double every_s = number_in(unit_named("interval_s"), command.every, "--every");
  constexpr double kLongestS = 365.0 * 86'400;
  if (!(every_s >= 1e-3) || every_s > kLongestS) {
    throw InputError("--every " + command.every + ": must be 1ms to a year, e.g. 10s");
  }
  command.settings.interval = static_cast<TimeNs>(every_s * 1e9);
  if (!command.duration.empty()) {
    command.for_seconds = number_in(unit_named("duration_s"), command.duration, "--for");
    if (!(command.for_seconds > 0) || command.for_seconds > kLongestS) {
      throw InputError("--for " + command.duration + ": must be above 0 and at most a year, e.g. 10m");
    }
  }
  command.metrics_every_s = number_in(unit_named("interval_s"), command.metrics_every, "--metrics-every");
  if (!command.token_file.empty()) command.token = token_in(command.token_file);
  const auto engines = std::ranges::count_if(command.sources, is_endpoint);
  const bool is_live = engines > 0 || command.sources.empty();
  if (command.sources.empty() && command.metrics.empty() && command.request_logs.empty()) {
    throw InputError(
        "watch: nothing to watch; give tcp://HOST:PORT of an engine, a recording, --metrics or --request-log");
  }
  if (is_live && static_cast<std::size_t>(engines) != command.sources.size()) {
    throw InputError("watch: endpoints of engines and recordings are given; give one of them");
  }
  check_options(options, command, is_live);
  command.machine_zone_s = machine_zone_s();
  stop_at_signals();
  Terminal terminal;
  const WatchResult result =
      (is_live ? watch_engines : play_recordings)(command, stop_watching, output_of(command), terminal.listener());
  terminal.erase();
  if (command.json) {
    print(result.json.dump() + "\n");
  } else {
    if (isatty(STDOUT_FILENO) != 0) print("\033[H\033[2J");
    print(result.text);
  }
  if (result.missed.empty()) return;
  say("watch: " + result.missed);
  throw AlreadySaid(3);
}

}  // namespace

void add_watch(CLI::App& program) {
  static WatchCommand arguments;
  CLI::App* command = program.add_subcommand(
      "watch", "Print what caches of other sizes would hit, for the traffic of a recording or of running servers");
  command->footer(
      "Example: kvtwin watch tests/fixtures/vllm --device-blocks 100 --every 5s\n"
      "         kvtwin watch tcp://127.0.0.1:5557 --metrics http://127.0.0.1:8000/metrics --serve 127.0.0.1:8990\n"
      "Exit:    0 done, also after Ctrl-C; 2 bad input; 3 hits are below --expect");
  command
      ->add_option("source", arguments.sources,
                   "Engines that run, tcp://HOST:PORT of their publishers of KV events; or recordings, one per engine: "
                   "folders of kvtwin record or of --out, or traces. Each engine has a cache of its own. Without any, "
                   "--request-log or --metrics is watched alone")
      ->delimiter(',');
  command
      ->add_option("--replay", arguments.replays,
                   "Replay sockets of the engines, in their order: lost messages, and those before the first one, are "
                   "requested there")
      ->delimiter(',');
  command
      ->add_option("--metrics", arguments.metrics,
                   "Counters of the engines, in their order: http://HOST:PORT/metrics. Adds measured hits, rates and "
                   "sizes; alone, only these are shown")
      ->delimiter(',');
  command
      ->add_option("--request-log", arguments.request_logs,
                   "Logs of requests that the engines write, in their order: SGLang's, or vLLM's at level DEBUG. Their "
                   "requests are exact; those of the events are not used then")
      ->delimiter(',');
  command->add_option("--log-zone", arguments.log_zone,
                      "Zone of dates in request logs that have none, as SGLang's: +02:00, -05:30 or Z (default: this "
                      "machine's)");
  command->add_option("--metrics-every", arguments.metrics_every, "Time between two looks at the counters")
      ->capture_default_str();
  command->add_option("--topic", arguments.topic, "Only messages whose topic begins with this");
  command->add_option("--out", arguments.out,
                      "Folder that keeps the requests, without prompts, as workloads. A later watch goes on with them");
  command
      ->add_option("--keep-mib", arguments.keep_mib, "Largest size of the requests in --out, MiB; the oldest go first")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--serve", arguments.serve,
                      "HOST:PORT: serve a page with the figures, /metrics for Prometheus, and /report.html; read only");
  command->add_option("--report", arguments.report,
                      "File to write at the end: the page with the last figures, by itself");
  command->add_option(
      "--token-file", arguments.token_file,
      "File whose first line a client of --serve must give, as Authorization: Bearer or ?token=; needed "
      "for other addresses than 127.0.0.1");
  command->add_option("--experiment", arguments.server.experiment,
                      "Experiment file that describes the servers: adds the engine's own rules, prefill times, prices "
                      "and sizes in GiB");
  add_engine_options(*command, arguments.server.flags);
  command->add_option("--set", arguments.server.sets, "key=value: set a key of the description; may be repeated")
      ->allow_extra_args(false);
  constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 30;
  command
      ->add_option("--device-blocks", arguments.settings.device_blocks,
                   "Blocks that the device of an engine holds (default: as the description says, or as events show)")
      ->check(CLI::Range(std::uint64_t{0}, kMaxBlocks));
  command
      ->add_option("--host-blocks", arguments.settings.host_blocks,
                   "Blocks that the host tier of an engine holds (default: as the description says)")
      ->check(CLI::Range(std::uint64_t{0}, kMaxBlocks));
  command
      ->add_option("--block-tokens", arguments.block_tokens,
                   "Tokens per block of a trace whose format leaves it open (default: as the description or the format "
                   "says)")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 31));
  command->add_option("--every", arguments.every, "Length of an interval, which has one line, e.g. 10s")
      ->capture_default_str();
  command->add_option("--for", arguments.duration,
                      "Stop after this time, e.g. 10m (default: the end of a recording, or Ctrl-C)");
  command
      ->add_option("--speed", arguments.speed,
                   "Speed of a recording, times that of its making (default: 0, as fast as possible)")
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--expect", arguments.expect,
                      "hits=SHARE: exit with 3 if the hits, as a share of the prompt tokens, are lower, and say why");
  command
      ->add_option(
          "--max-blocks", arguments.settings.max_blocks,
          "Blocks to track, of all engines together, at most 80 bytes each, and as many again for the pool of several "
          "engines; an engine has its share, up to which sizes are known")
      ->check(CLI::Range(std::uint64_t{1}, kMaxBlocks))
      ->capture_default_str();
  command
      ->add_option("--sample", arguments.settings.one_in,
                   "Track one in N blocks, for large fleets; the error is printed (default: 1, all)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 20));
  command
      ->add_option("--window", arguments.settings.window_blocks,
                   "Look-ups, in blocks, of a window for the best possible hits; 0 = none")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 28))
      ->capture_default_str();
  command->add_flag("--json", arguments.json, "Print one JSON object at the end");
  command->callback([command] { watch(*command, arguments); });
}

}  // namespace kvtwin

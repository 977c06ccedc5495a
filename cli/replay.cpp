// kvtwin replay: feeds the inputs of a journal to the policy again, without a world, and compares the decisions.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/past_run/call_replay.hpp"
#include "lab/past_run/past_run.hpp"
#include "lab/run/journal_file.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

struct ReplayCommand {
  std::string run;
  std::vector<std::string> sets;
  bool json = false;
};

// Keeps the first decisions after the last input. They are printed if the replay ends there.
class LastDecisions final : public RerunObserver {
 public:
  void handle(const Input&) override {
    decisions.clear();
    count = 0;
  }
  void decided(const Decision& decision) override {
    ++count;
    if (decisions.size() < kShown) decisions.push_back(decision);
  }

  static constexpr std::size_t kShown = 8;
  std::vector<Decision> decisions;
  std::uint64_t count = 0;
};

std::string report(const Rerun& rerun, const LastDecisions& last, const std::vector<std::string>& sets,
                   double seconds) {
  const ReplayResult& result = rerun.result();
  std::string text;
  char line[256];
  if (rerun.verdict() == RerunVerdict::equal) {
    const double each = result.inputs == 0 ? 0 : seconds * 1e6 / static_cast<double>(result.inputs);
    std::snprintf(line, sizeof line,
                  "replay     %" PRIu64 " inputs, %" PRIu64 " decisions, digest %s: equal (%.2f s, %.1f us an input)\n",
                  result.inputs, result.got.count, digest_text(result.got.digest).c_str(), seconds, each);
    text = line;
  } else {
    text = "replay     " + rerun.sentence() + "\n";
  }
  for (const std::string& set : sets) text += "with       " + set + "\n";
  if (rerun.verdict() != RerunVerdict::diverged) return text;
  for (const auto& [name, mark] : {std::pair{"expected", result.expected}, std::pair{"got", result.got}}) {
    std::snprintf(line, sizeof line, "%-10s %" PRIu64 " decisions, digest %s\n", name, mark.count,
                  digest_text(mark.digest).c_str());
    text += line;
  }
  for (std::size_t i = 0; i < last.decisions.size(); ++i) {
    text +=
        "decided    " + std::to_string(result.agreed.count + i + 1) + ": " + decision_text(last.decisions[i]) + "\n";
  }
  if (last.count > last.decisions.size()) {
    text += "           and " + std::to_string(last.count - last.decisions.size()) + " more after that input\n";
  }
  if (last.count == 0) text += "decided    nothing after that input\n";
  return text;
}

Json report_json(const Rerun& rerun, const LastDecisions& last, double seconds) {
  const ReplayResult& result = rerun.result();
  Json json{{"verdict", name_of(rerun.verdict())},
            {"inputs", result.inputs},
            {"decisions", mark_json(result.agreed)},
            {"wall_seconds", seconds}};
  if (rerun.verdict() == RerunVerdict::equal) return json;
  json["sentence"] = rerun.sentence();
  if (rerun.verdict() == RerunVerdict::report_differs) return json;
  json["record"] = {{"number", result.place.number}, {"kind", rerun.record_kind()}, {"byte", result.place.offset}};
  if (rerun.verdict() != RerunVerdict::diverged) return json;
  json["expected"] = mark_json(result.expected);
  json["got"] = mark_json(result.got);
  json["decided"] = Json::array();
  for (const Decision& decision : last.decisions) json["decided"].push_back(decision_json(decision));
  return json;
}

// A journal of cache calls.
void print_call_replay(const ReplayCommand& arguments) {
  constexpr std::string_view kKey = "cache.eviction=";
  std::string eviction;
  for (const std::string& set : arguments.sets) {
    if (!set.starts_with(kKey)) {
      throw InputError("--set " + set + ": a journal of calls has no experiment; only cache.eviction can be set");
    }
    eviction = set.substr(kKey.size());
  }
  const CallReplay replay = replay_calls(arguments.run, eviction);
  const bool cut = replay.end != JournalStatus::end;
  if (arguments.json) {
    const char* verdict = replay.diverged                          ? "diverged"
                          : replay.end == JournalStatus::end       ? "equal"
                          : replay.end == JournalStatus::truncated ? "truncated"
                                                                   : "corrupt";
    Json json{{"verdict", verdict},
              {"host", replay.host},
              {"eviction", replay.eviction},
              {"calls", replay.calls},
              {"storage_calls", replay.storage_calls},
              {"victims", replay.victims},
              {"equal_victims", replay.equal_victims},
              {"evictions", replay.evictions},
              {"other_evictions", replay.other_evictions},
              {"decisions", mark_json(replay.mark)}};
    if (!replay.sentence.empty()) json["sentence"] = replay.sentence;
    if (replay.diverged || cut) json["record"] = {{"number", replay.place.number}, {"byte", replay.place.offset}};
    std::printf("%s\n", json.dump(2).c_str());
  } else if (cut && !replay.diverged) {
    throw InputError(arguments.run + ": is " + std::string(name_of(replay.end)) + " at record " +
                     std::to_string(replay.place.number) + ", byte " + std::to_string(replay.place.offset) +
                     "; close the journal where it is recorded");
  } else {
    std::printf("replay     %" PRIu64 " calls of %s, %" PRIu64 " victims, digest %s: %s\n", replay.calls,
                replay.host.empty() ? "a host" : replay.host.c_str(), replay.mark.count,
                digest_text(replay.mark.digest).c_str(), replay.diverged ? "diverged" : "equal");
    if (replay.storage_calls > 0)
      std::printf("storage    %" PRIu64 " calls, which the tree ignores\n", replay.storage_calls);
    if (replay.other_evictions > 0) {
      std::printf("host       %" PRIu64 " of %" PRIu64 " evictions were not the policy's victim\n",
                  replay.other_evictions, replay.evictions);
    }
    if (!eviction.empty()) std::printf("with       cache.eviction=%s\n", eviction.c_str());
    if (replay.diverged) {
      std::printf("first      %s\n", replay.sentence.c_str());
      std::printf("victims    %" PRIu64 " of %" PRIu64 " are as recorded\n", replay.equal_victims, replay.victims);
    }
  }
  if (replay.diverged) throw AlreadySaid(3);
  if (cut) throw AlreadySaid(2);
}

struct Replayed {
  int code = 0;
  Json json;  // with --json
};

// Replays one journal, and prints the outcome unless --json was given. `several`: it is one of several, so a truncated
// one is no error.
Replayed replay_journal(const ReplayCommand& arguments, const PastRun& run, bool several) {
  if (!run.has_journal()) {
    throw InputError(arguments.run + ": holds no " + kJournalName +
                     "; give a folder of `kvtwin run`, or of `kvtwin simulate --journal`");
  }
  Experiment experiment = run.experiment();
  for (const std::string& assignment : arguments.sets) experiment.set(assignment);
  LastDecisions last;
  const auto start = std::chrono::steady_clock::now();
  const Rerun rerun(run, experiment, &last);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (arguments.json) return {rerun.exit_code(), report_json(rerun, last, seconds)};
  if (rerun.verdict() == RerunVerdict::truncated && !several) throw InputError(rerun.sentence());
  const std::string text = report(rerun, last, arguments.sets, seconds);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {rerun.exit_code(), {}};
}

// Several engines: one journal per engine, in a real run one per process.
int replay_engines(const ReplayCommand& arguments, const std::filesystem::path& folder) {
  int code = 0;
  Json all{{"verdict", name_of(RerunVerdict::equal)}, {"journals", Json::array()}};
  std::error_code missing;
  for (std::size_t number = 0; std::filesystem::exists(folder / journal_name(number), missing); ++number) {
    const Replayed replayed = replay_journal(arguments, PastRun(arguments.run, number), true);
    if (replayed.code > code && arguments.json) all["verdict"] = replayed.json.at("verdict");
    code = std::max(code, replayed.code);
    if (arguments.json) all["journals"].push_back(replayed.json);
  }
  if (arguments.json) std::printf("%s\n", all.dump(2).c_str());
  return code;
}

void replay_run(const ReplayCommand& arguments) {
  if (is_call_journal(arguments.run)) return print_call_replay(arguments);
  const PastRun run(arguments.run);
  const std::filesystem::path folder = arguments.run;
  std::error_code missing;
  const bool more = std::filesystem::exists(folder / journal_name(1), missing);
  int code = 0;
  if (more && setup_for_rerun(run.experiment()).world.engines > 1) {
    code = replay_engines(arguments, folder);
  } else {
    const Replayed replayed = replay_journal(arguments, run, false);
    if (arguments.json) std::printf("%s\n", replayed.json.dump(2).c_str());
    code = replayed.code;
    if (more) {
      std::fprintf(stderr, "kvtwin: note: that was rank 0's journal; kvtwin replay %s checks rank 1's, and so on\n",
                   (folder / journal_name(1)).c_str());
    }
  }
  if (code != 0) throw AlreadySaid(code);
}

}  // namespace

void add_replay(CLI::App& program) {
  static ReplayCommand arguments;
  CLI::App* command =
      program.add_subcommand("replay", "Decide a recorded run again from its journal, and compare the decisions");
  command->footer(
      "Example: kvtwin simulate experiments/quickstart.toml --journal --out out/recorded\n"
      "         kvtwin replay out/recorded\n"
      "         kvtwin replay out/recorded --set cache.eviction=fifo\n"
      "Exit:    0 equal; 2 the journal is cut short or cannot be read; 3 a decision differs (printed)");
  command
      ->add_option("run_dir", arguments.run,
                   "A run folder with a journal, or the path of a journal (of a run, or of a "
                   "host's cache calls)")
      ->required();
  command
      ->add_option("--set", arguments.sets,
                   "key=value: change a key of the recorded experiment, e.g. cache.eviction=fifo; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--json", arguments.json, "Print the result as JSON");
  command->callback([] { replay_run(arguments); });
}

}  // namespace kvtwin

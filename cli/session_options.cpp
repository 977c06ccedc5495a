#include "cli/session_options.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lab/error.hpp"
#include "lab/experiment/named_workloads.hpp"
#include "lab/units.hpp"
#include "traces/figure_error.hpp"

namespace kvtwin {
namespace {

constexpr const char* kAverages[] = {"--requests-per-second", "--prompt-tokens", "--output-tokens", "--turns",
                                     "--prefix-tokens",       "--think-s"};
constexpr const char* kShapes[] = {"--length-spread", "--think-spread", "--service-s"};

struct Word {
  std::string_view option, key;  // key: of workload.generate
  const char* help;
};
constexpr std::string_view kRate = "--requests-per-second";
constexpr Word kWords[] = {
    {kRate, "requests_per_second", "Requests per second of all conversations together; or --users"},
    {"--users", "users",
     "Users who each have one conversation after another: a user reads an answer, thinks, and sends the next request; "
     "sets the rate, so without --requests-per-second"},
    {"--turns", "turns", "Requests per conversation: a mean, e.g. 5 (geometric), or a range, e.g. 30-60 (uniform)"},
    {"--think,--think-s", "think_s", "Mean time from an answer to the user's next request, e.g. 20s (log-normal)"},
    {"--new-tokens", "new_tokens", "Mean new tokens of a turn, e.g. 800 (log-normal); or --prompt-tokens"},
    {"--prompt-tokens", "prompt_tokens",
     "Mean tokens of a prompt over all requests, with the shared prefix and the history of the conversation"},
    {"--output-tokens", "output_tokens", "Mean tokens of an answer (log-normal)"},
    {"--prefix-tokens", "prefix_tokens", "Tokens of the prefix that all conversations share, e.g. 4k"},
    {"--context-max", "context_max_tokens",
     "A conversation ends before prompt and answer exceed this number of tokens, e.g. 60k (default: the model's own "
     "limit)"},
};

// Returns the first name of an option.
std::string first_name(std::string_view names) { return std::string(names.substr(0, names.find(','))); }

// Returns the settings of --turns: "5" or "30-60".
std::vector<std::string> turns_of(const std::string& text) {
  const std::size_t dash = text.find('-', 1);
  if (dash == std::string::npos) return {"workload.generate.turns=" + text};
  const std::string least = text.substr(0, dash), most = text.substr(dash + 1);
  for (const std::string& one : {least, most}) {
    if (!one.empty() && one.find_first_not_of("0123456789") == std::string::npos) continue;
    throw InputError("--turns " + text + ": must be a number or a range of whole numbers, e.g. 5 or 30-60");
  }
  return {"workload.generate.turns_least=" + least, "workload.generate.turns_most=" + most};
}

}  // namespace

std::vector<CLI::Option*> add_workload_words(CLI::App& command, WorkloadWords& words, bool rate) {
  std::vector<CLI::Option*> options;
  words.values.assign(std::size(kWords), "");
  for (std::size_t i = 0; i < std::size(kWords); ++i) {
    if (!rate && kWords[i].option == kRate) continue;
    options.push_back(command.add_option(std::string(kWords[i].option), words.values[i],
                                         std::string("Generated traffic: ") + kWords[i].help));
  }
  options.push_back(command.add_option("--workload", words.workload,
                                       "Generated traffic: a named workload, whose figures the options above replace; "
                                       "kvtwin presets lists the names"));
  return options;
}

namespace {

// Returns new_tokens=N so that a conversation with the most turns and mean lengths just fills --context-max; nothing
// without a range of turns and --context-max, or if the answers alone fill it. Errors: InputError.
std::optional<std::string> filling_tokens(const WorkloadWords& words) {
  const auto text = [&](std::string_view key) {
    return words.values[static_cast<std::size_t>(std::ranges::find(kWords, key, &Word::key) - std::begin(kWords))];
  };
  const auto number = [&](std::string_view key, std::string_view fallback) {
    const std::string given = text(key);
    return number_in({}, given.empty() ? fallback : given, "--" + std::string(key));
  };
  const std::string turns = text("turns");
  const std::size_t dash = turns.find('-', 1);
  if (dash == std::string::npos || text("context_max_tokens").empty()) return std::nullopt;
  const auto fallback = [](std::string_view key) {
    const std::span<const WorkloadFigure> figures = named_workload(std::string(kDefaultWorkload)).figures;
    return std::ranges::find(figures, key, &WorkloadFigure::key)->value;
  };
  const double most = number_in({}, turns.substr(dash + 1), "--turns");
  const double each = (number("context_max_tokens", "") - number("prefix_tokens", fallback("prefix_tokens"))) / most -
                      number("output_tokens", fallback("output_tokens"));
  if (!(each >= 1)) return std::nullopt;
  return "new_tokens=" + plain_number(std::floor(each));
}

}  // namespace

WordSettings settings_of_words(const CLI::App& command, const WorkloadWords& words) {
  const auto given = [&](const Word& word) {
    const CLI::Option* const option = command.get_option_no_throw(first_name(word.option));
    return option != nullptr && option->count() != 0;
  };
  const auto key_given = [&](std::string_view key) {  // some keys of named workloads have no option
    return std::ranges::any_of(kWords, [&](const Word& word) { return word.key == key && given(word); });
  };
  const bool users = key_given("users"), lengths = key_given("new_tokens") || key_given("prompt_tokens");
  const bool by_rate = !words.values[0].empty();
  WordSettings result;
  std::vector<std::string>& settings = result.settings;
  if (words.workload.empty() &&
      std::ranges::none_of(kWords, [&](const Word& word) { return word.option != kRate && given(word); }) && !by_rate) {
    return result;
  }
  if (users && key_given("requests_per_second")) {
    throw InputError(std::string(kRate) +
                     ": --users is given too, and the users set the rate, by their think times and the "
                     "answers; leave one of them out");
  }
  settings.emplace_back("workload.trace=");  // generated traffic takes the place of the experiment's trace
  settings.emplace_back("workload.generate.kind=sessions");
  if (users) settings.emplace_back("workload.loop=closed");
  if (users || !words.workload.empty()) {
    const std::string name = words.workload.empty() ? std::string(kDefaultWorkload) : words.workload;
    // A figure of the named workload stays out where an option gives the figure, in the same or in another form.
    std::string assumed;
    const std::optional<std::string> filling =
        lengths || !words.workload.empty() ? std::nullopt : filling_tokens(words);
    for (const WorkloadFigure& figure : named_workload(name).figures) {
      const bool of_lengths = figure.key == "new_tokens" || figure.key == "prompt_tokens";
      if (of_lengths ? lengths : key_given(figure.key)) continue;
      std::string text = std::string(figure.key) + "=" + std::string(figure.value);
      if (of_lengths && filling) text = *filling;
      settings.push_back("workload.generate." + text);
      if (words.workload.empty()) assumed += (assumed.empty() ? "" : ", ") + text;
      if (words.workload.empty() && of_lengths && filling) assumed += " (the longest conversation fills --context-max)";
    }
    if (!assumed.empty()) {
      result.notes.push_back("assumed for the users, as in --workload " + name + ": " + assumed +
                             "; give these figures of your traffic where you know them");
    }
  }
  for (std::size_t i = 0; i < std::size(kWords); ++i) {
    const Word& word = kWords[i];
    if (!given(word) || words.values[i].empty()) continue;
    if (word.key == "turns") {
      for (std::string& setting : turns_of(words.values[i])) settings.push_back(std::move(setting));
    } else {
      settings.push_back("workload.generate." + std::string(word.key) + "=" + words.values[i]);
    }
  }
  return result;
}

std::string workload_word(const WorkloadWords& words, std::string_view option) {
  const auto* const at = std::ranges::find(kWords, option, &Word::option);
  return words.values[static_cast<std::size_t>(at - std::begin(kWords))];
}

void add_session_options(CLI::App& command, SessionsConfig& config) {
  command.add_option("--requests-per-second", config.requests_per_second, "sessions: requests per second");
  command.add_option("--output-tokens", config.output_tokens, "sessions: mean tokens per answer");
  command.add_option("--prefix-tokens", config.prefix_tokens,
                     "sessions: tokens of the prefix that all conversations share");
  command.add_option(
      "--prompt-tokens", config.prompt_tokens,
      "sessions: mean tokens per prompt over all requests, with the shared prefix and the history of the "
      "conversation");
  command.add_option("--turns", config.turns, "sessions: mean number of requests per conversation");
  command.add_option("--think-s", config.think_s,
                     "sessions: mean time from an answer to the next request of the conversation, in seconds");
  command.add_option("--service-s", config.service_s, "sessions: time of an answer in the generated trace, in seconds")
      ->capture_default_str();
  command
      .add_option("--length-spread", config.length_spread,
                  "sessions: standard deviation of the logarithm of new tokens per turn and of answers; 0 = equal")
      ->capture_default_str();
  command
      .add_option("--think-spread", config.think_spread,
                  "sessions: standard deviation of the logarithm of think times; 0 = equal")
      ->capture_default_str();
}

bool has_session_options(const CLI::App& command) {
  const auto given = [&](const char* name) { return command.count(name) != 0; };
  return std::ranges::any_of(kAverages, given) || std::ranges::any_of(kShapes, given);
}

void require_session_options(const CLI::App& command) {
  for (const char* const name : kAverages) {
    if (command.count(name) == 0) {
      throw InputError(std::string(name) + ": is not given, and conversations need averages of your traffic; give it");
    }
  }
}

std::unique_ptr<SessionsGenerator> make_sessions(const SessionsConfig& config) {
  try {
    return std::make_unique<SessionsGenerator>(config);
  } catch (const FigureError& error) {
    std::string option = "--" + error.figure();
    std::ranges::replace(option, '_', '-');
    throw InputError(option + ": " + error.range());
  }
}

}  // namespace kvtwin

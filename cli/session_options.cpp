#include "cli/session_options.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include "lab/error.hpp"
#include "traces/figure_error.hpp"

namespace kvtwin {
namespace {

constexpr const char* kAverages[] = {"--requests-per-second", "--prompt-tokens", "--output-tokens", "--turns",
                                     "--prefix-tokens",       "--think-s"};
constexpr const char* kShapes[] = {"--length-spread", "--think-spread", "--service-s"};

}  // namespace

void add_session_options(CLI::App& command, SessionsConfig& config, bool shared_names) {
  if (shared_names) {
    command.add_option("--requests-per-second", config.requests_per_second, "sessions: requests per second");
    command.add_option("--output-tokens", config.output_tokens, "sessions: mean tokens per answer");
    command.add_option("--prefix-tokens", config.prefix_tokens,
                       "sessions: tokens of the prefix that all conversations share");
  }
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

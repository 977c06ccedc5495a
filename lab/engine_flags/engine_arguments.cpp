#include "lab/engine_flags/engine_arguments.hpp"

#include <string_view>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/sglang/sglang_flags.hpp"

namespace kvtwin {
namespace {

// The key `engine` in the words of the user: of a later setting, or of the experiment. Empty if nobody gave it.
struct GivenEngine {
  std::string text, where;
};

GivenEngine given_engine(const Experiment& experiment, std::span<const std::string> set_later) {
  const std::string key(kEngineKey);
  GivenEngine given;
  if (experiment.is_given(key)) given = {experiment.text(key), experiment.where(key)};
  for (const std::string& text : set_later) {
    if (text.starts_with(key + "=")) given = {text.substr(key.size() + 1), key + " (--set)"};
  }
  const std::string_view text = given.text;
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') given.text = text.substr(1, text.size() - 2);
  return given;
}

}  // namespace

void apply_engine_arguments(const EngineArguments& arguments, std::span<const std::string> set_later,
                            Experiment& experiment) {
  std::vector<std::string> keys;
  for (const std::string& text : set_later) keys.push_back(text.substr(0, text.find('=')));
  const GivenEngine given = given_engine(experiment, set_later);
  const EngineWord word = given.text.empty() ? EngineWord{} : engine_word(given.text, given.where);
  const bool of_a_server = !arguments.flags.empty() || arguments.server_info;
  const SglangRelease* release = word.version.empty() ? nullptr : word.release;
  if (of_a_server && given.where.ends_with("(--set)") && word.release == nullptr) {
    throw InputError(given.where + ": is " + given.text +
                     ", and the flags are of SGLang; leave it out, or give the keys " + "of " + given.text +
                     " without these flags");
  }
  if (!arguments.version.empty()) {
    const SglangRelease* const named = find_sglang_release(arguments.version);
    if (named == nullptr) {
      throw InputError("--sglang-version: the rules of SGLang " + arguments.version +
                       " are not known; known are those of " + sglang_release_names());
    }
    const bool other_engine = !of_a_server && !given.text.empty() && word.release == nullptr;
    if (other_engine || (release != nullptr && release != named)) {
      throw InputError("--sglang-version is " + arguments.version + ", and " + given.where + " is " + given.text +
                       "; give one of them");
    }
    release = named;
    if (!of_a_server) experiment.set("engine=sglang " + arguments.version, "--sglang-version");
  }
  if (!arguments.flags.empty()) apply_sglang_lines(experiment, arguments.flags, keys, release);
  if (arguments.server_info) apply_sglang_server_info(experiment, *arguments.server_info, keys, release);
}

}  // namespace kvtwin

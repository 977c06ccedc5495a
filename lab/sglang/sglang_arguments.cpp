#include "lab/sglang/sglang_arguments.hpp"

#include <vector>

#include "lab/error.hpp"
#include "lab/sglang/sglang_flags.hpp"

namespace kvtwin {

void apply_sglang(const SglangArguments& arguments, std::span<const std::string> set_later, Experiment& experiment) {
  std::vector<std::string> keys;
  for (const std::string& text : set_later) keys.push_back(text.substr(0, text.find('=')));
  const SglangRelease* release = nullptr;
  if (!arguments.version.empty()) {
    release = find_sglang_release(arguments.version);
    if (release == nullptr) {
      throw InputError("--sglang-version: the rules of SGLang " + arguments.version +
                       " are not known; known are those of " + sglang_release_names());
    }
    if (arguments.flags.empty() && !arguments.server_info) {
      throw InputError("--sglang-version goes with --from-sglang-flags or --from-sglang-server-info");
    }
  }
  if (!arguments.flags.empty()) apply_sglang_lines(experiment, arguments.flags, keys, release);
  if (arguments.server_info) apply_sglang_server_info(experiment, *arguments.server_info, keys, release);
}

}  // namespace kvtwin

#include "cli/sglang_options.hpp"

#include "cli/sglang_flags.hpp"

namespace kvtwin {

std::vector<CLI::Option*> add_sglang_options(CLI::App& command, SglangArguments& arguments) {
  CLI::Option* flags = command.add_option(
      "--from-sglang-flags", arguments.flags,
      "The flags of an SGLang server, e.g. \"--tp 1 --enable-hierarchical-cache --hicache-ratio 2\". They override the "
      "file; --set and --vary override them");
  CLI::Option* info =
      command
          .add_option("--from-sglang-server-info", arguments.server_info,
                      "The answer of an SGLang server's /server_info, as a JSON file; instead of the flags")
          ->excludes(flags);
  return {flags, info};
}

void apply_sglang(const SglangArguments& arguments, std::span<const std::string> set_later, Experiment& experiment) {
  std::vector<std::string> keys;
  for (const std::string& text : set_later) keys.push_back(text.substr(0, text.find('=')));
  if (arguments.flags) apply_sglang_flags(experiment, *arguments.flags, keys);
  if (arguments.server_info) apply_sglang_server_info(experiment, *arguments.server_info, keys);
}

}  // namespace kvtwin

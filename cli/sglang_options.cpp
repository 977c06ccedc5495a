#include "cli/sglang_options.hpp"

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

}  // namespace kvtwin

#include "cli/sglang_options.hpp"

namespace kvtwin {

std::vector<CLI::Option*> add_sglang_options(CLI::App& command, SglangArguments& arguments) {
  CLI::Option* flags = command.add_option(
      "--from-sglang-flags", arguments.flags,
      "Set the keys that these flags of an SGLang server mean, e.g. \"--tp 1 --enable-hierarchical-cache "
      "--hicache-ratio 2\". The flags override the file; --set and --vary override the flags");
  CLI::Option* info =
      command
          .add_option("--from-sglang-server-info", arguments.server_info,
                      "JSON file with the answer of an SGLang server's /server_info, instead of the flags")
          ->excludes(flags);
  return {flags, info};
}

}  // namespace kvtwin

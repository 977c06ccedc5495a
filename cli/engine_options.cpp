#include "cli/engine_options.hpp"

#include <string>

#include "lab/experiment/sglang_releases.hpp"

namespace kvtwin {

namespace {

std::string range_of_releases() {
  const auto releases = sglang_releases();
  return std::string(releases.front().version) + " to " + std::string(releases.back().version);
}

}  // namespace

std::vector<CLI::Option*> add_engine_options(CLI::App& command, EngineArguments& arguments) {
  CLI::Option* flags =
      command
          .add_option(
              "--from-sglang-flags", arguments.sglang_flags,
              "Set the keys that these flags of an SGLang server mean, e.g. \"--tp 1 --enable-hierarchical-cache "
              "--hicache-ratio 2\". The flags override the file; --set and --vary override the flags. Twice: the "
              "line of a prefill and of a decode engine (--disaggregation-mode)")
          ->expected(1)
          ->take_all();
  CLI::Option* info =
      command
          .add_option("--from-sglang-server-info", arguments.sglang_server_info,
                      "JSON file with the answer of an SGLang server's /server_info, instead of the flags")
          ->excludes(flags);
  CLI::Option* version =
      command.add_option("--sglang-version", arguments.sglang_version,
                         "The release of SGLang whose defaults and rules apply, " + range_of_releases() +
                             "; the same as engine = \"sglang VERSION\" (default: as the key or the server says, or "
                             "the latest)");
  CLI::Option* vllm =
      command
          .add_option("--from-vllm-flags", arguments.vllm_flags,
                      "Set the keys that the command line of a vLLM server means, e.g. \"vllm serve Qwen/Qwen3-32B "
                      "--tensor-parallel-size 2\"; overrides and is overridden as --from-sglang-flags")
          ->excludes(flags)
          ->excludes(info)
          ->excludes(version);
  CLI::Option* log =
      command
          .add_option(
              "--from-server-log", arguments.server_log,
              "Log of an SGLang or vLLM server, with its first lines: the arguments and the size of the KV cache "
              "that it printed, instead of the flags")
          ->excludes(flags)
          ->excludes(info)
          ->excludes(vllm);
  return {flags, info, version, vllm, log};
}

}  // namespace kvtwin

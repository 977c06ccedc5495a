// kvtwin import-ops: makes tables of measured operator times with python/kvtwin/import_ops.py.
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/package_python.hpp"

namespace kvtwin {
namespace {

struct ImportOptions {
  std::string source, out, gpus, engines, date;
  std::size_t leave_out = 0;
  bool force = false;
};

void import_tables(const ImportOptions& options) {
  std::vector<std::string> arguments = {options.source, "--out", options.out};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  };
  add("--gpu", options.gpus);
  add("--engine", options.engines);
  add("--date", options.date);
  if (options.leave_out != 0) add("--leave-out", std::to_string(options.leave_out));
  if (options.force) arguments.emplace_back("--force");
  run_package_module("import-ops", "import_ops", arguments);
}

}  // namespace

void add_import_ops(CLI::App& program) {
  CLI::App* command = program.add_subcommand("import-ops",
                                             "Make tables of measured operator times of the Python package "
                                             "aiconfigurator-core: a file GPU.ENGINE.zst for each "
                                             "GPU and engine. hardware.operators_file takes such a file");
  command->footer(
      "Example: pip download aiconfigurator-core==0.12.0 --no-deps\n"
      "         kvtwin import-ops aiconfigurator_core-0.12.0-*.whl --gpu h100-sxm --engine sglang --out out/operators\n"
      "         kvtwin simulate experiments/chat_hour.toml --set "
      "hardware.operators_file=out/operators/h100-sxm.sglang.zst");
  static ImportOptions options;
  command->add_option("source", options.source, "The wheel of aiconfigurator-core, or a folder with its content")
      ->required();
  command->add_option("--out", options.out, "Folder of the tables; a folder that is not empty needs --force")
      ->required();
  command->add_option("--gpu", options.gpus, "Only these GPUs, as NAME,...; for example h100-sxm,gb200");
  command->add_option("--engine", options.engines, "Only these engines, as NAME,...: sglang, vllm, trtllm");
  command->add_option("--date", options.date,
                      "Date in the tables, as YYYY-MM-DD. Default: the newest date of a collection in the package");
  command->add_option("--leave-out", options.leave_out,
                      "Leave one measured row in N out, and write these rows to GPU.ENGINE.csv, for presets --rows");
  command->add_flag("--force", options.force, "Replace tables in the folder");
  command->callback([] { import_tables(options); });
}

}  // namespace kvtwin

#include "lab/engine_commands.hpp"

#include "lab/experiment/setup.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/vllm/vllm_flags.hpp"

namespace kvtwin {

std::vector<EngineCommand> engine_commands(const Experiment& experiment) {
  const Setup setup = make_setup(experiment);
  std::vector<EngineCommand> commands{{"sglang", to_sglang_flags(experiment, setup)},
                                      {"vllm", to_vllm_line(experiment, setup)}};
  commands.front().line.line.insert(0, "python -m sglang.launch_server ");
  return commands;
}

}  // namespace kvtwin

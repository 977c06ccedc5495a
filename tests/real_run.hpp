// Runs `kvtwin run` with a very small model, and reads the run folder. The device is the host device, unless
// KVTWIN_TEST_DEVICE names another one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/simulation.hpp"

#ifndef KVTWIN_TEST_DEVICE
#define KVTWIN_TEST_DEVICE "host"
#endif

namespace kvtwin::test {

// A model with 64 bytes of KV per token.
inline Settings small_model(const Folder& folder) {
  write_text(folder / "config.json",
             R"({"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 32, "vocab_size": 32,
                 "torch_dtype": "bfloat16"})");
  return {"model.config=" + (folder / "config.json")};
}

// Conversations that are larger than the L1 and L2 of these tests.
inline Conversations busy_conversations(std::uint64_t requests) {
  return {.requests = requests,
          .block_tokens = 16,
          .first_blocks = 8,
          .growth_blocks = 3,
          .live = 12,
          .output = 20,
          .gap_ms = 2};
}

inline std::vector<std::string> run_arguments(const Folder& folder, const Settings& settings,
                                              const std::string& out = "run",
                                              const std::vector<std::string>& more = {}) {
  if (!fs::exists(folder / "experiment.toml")) write_text(folder / "experiment.toml", kNoEngine);
  std::vector<std::string> arguments{"run", folder / "experiment.toml", "--json", "--device", KVTWIN_TEST_DEVICE};
#ifdef KVTWIN_TEST_BLAS
  arguments.insert(arguments.end(), {"--set", "real.cublas=" + built("libblas_stand_in.so")});
#endif
  if (!out.empty()) arguments.insert(arguments.end(), {"--out", folder / out});
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

inline Simulated run_for_real(const Folder& folder, const Settings& settings, const std::string& out = "run") {
  return read_run(run(run_arguments(folder, settings, out)), folder / out);
}

}  // namespace kvtwin::test

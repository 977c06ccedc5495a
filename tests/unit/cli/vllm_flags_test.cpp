// Lines and logs of vLLM servers in the program.
#include <gtest/gtest.h>

#include <string>

#include "tests/folder.hpp"
#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

const std::string kServe = "vllm serve Qwen/Qwen3-32B ";

TEST(VllmProgram, LinesAndLogsAreTaken) {
  Surroundings around;
  around.folder = kSourceFolder;
  const Outcome line = run({"simulate", "experiments/quickstart.toml", "--world", kAnyWorld, "--to-vllm-flags",
                            "--from-vllm-flags", kServe + "-tp 2"},
                           around);
  EXPECT_EQ(line.exit_code, 0) << line.err;
  EXPECT_TRUE(line.out.starts_with("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 ")) << line.out;
  const Outcome log = run({"simulate", "experiments/quickstart.toml", "--world", kAnyWorld, "--to-vllm-flags",
                           "--from-server-log", "tests/fixtures/vllm/server.log"},
                          around);
  EXPECT_EQ(log.exit_code, 0) << log.err;
  EXPECT_NE(log.out.find("--num-gpu-blocks-override"), std::string::npos) << log.out << log.err;
  const Folder folder;
  write_text(folder / "sglang.log", "[2026-09-18 08:39:19] server_args=ServerArgs(model_path='m')\n");
  write_text(folder / "vllm.log", "INFO 11-28 10:00:00 [utils.py:1] non-default args: {}\n");
  for (const char* file : {"sglang.log", "vllm.log"}) {
    const Outcome trace = run({"trace", "info", (folder / file)});
    EXPECT_EQ(trace.exit_code, 2);
    EXPECT_NE(trace.err.find("--from-server-log reads the server's arguments"), std::string::npos) << trace.err;
  }
  const Outcome other = run({"simulate", "experiments/quickstart.toml", "--from-sglang-flags", kServe}, around);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("give it as --from-vllm-flags"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace kvtwin::test

// --sglang-version in the program.
#include <gtest/gtest.h>

#include <string>

#include "tests/program.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

constexpr const char* kStored = "--page-size 16 --enable-hierarchical-cache --hicache-storage-backend file ";

TEST(SglangReleases, TheProgramTakesTheVersion) {
  Folder folder;
  Surroundings around;
  around.folder = folder.path();
  write_text(folder / "trace.jsonl",
             R"({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]})");
  write_text(folder / "good.toml", "[workload]\ntrace = \"trace.jsonl\"\n");
  const auto simulate = [&](const std::string& version) {
    return run({"simulate", "good.toml", "--world", kAnyWorld, "--out", "out", "--from-sglang-flags", kStored,
                "--sglang-version", version},
               around);
  };
  const Outcome known = simulate("0.5.18");
  EXPECT_EQ(known.exit_code, 0) << known.err;
  const std::string resolved = text_of(folder / "out/experiment.resolved.toml");
  EXPECT_NE(resolved.find("most=30s)"), std::string::npos) << resolved;
  const Outcome unknown = simulate("9.9");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("known are those of 0.5.10, 0.5.11"), std::string::npos) << unknown.err;
}

}  // namespace
}  // namespace kvtwin::test

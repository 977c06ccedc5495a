// The engine of an experiment on the screen of the program.
#include "lab/experiment/engine_word.hpp"

#include <gtest/gtest.h>

#include <string>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

TEST(EngineWord, StandsInTheFirstLineOfTheScreen) {
  const Folder folder;
  write_text(folder / "x.toml",
             "[hardware]\nname = \"h100-sxm\"\n[workload.generate]\nkind = \"groups\"\nrequests = "
             "4\n[sim]\nworld = "
             "\"events\"\n");
  EXPECT_TRUE(run({"simulate", folder / "x.toml"})
                  .out.starts_with("engine     sglang 0.5.23; operator times "
                                   "h100-sxm/sglang\n"));
  const std::string compared =
      run({"compare", folder / "x.toml", "--vary", "engine=sglang,vllm", "--vary", "cache.page_tokens=16,64"}).out;
  EXPECT_TRUE(
      compared.starts_with("engine     sglang 0.5.23; operator times h100-sxm/sglang\n"
                           "engine     vllm; operator times h100-sxm/vllm\n"))
      << compared;
}

}  // namespace
}  // namespace kvtwin::test

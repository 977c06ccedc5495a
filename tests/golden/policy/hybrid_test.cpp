// kvtwin's cache against the stored sequences of the engines' own caches (tests/golden/hybrid, written by
// `tools/engine-parity hybrid --golden`): hits, evictions and used slots after each operation. And kvtwin's managers of
// offloaded KV against the stored answers of vLLM's (tests/golden/offload, `tools/engine-parity vllm --offloading
// --renew`).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/hybrid/hybrid_server.hpp"
#include "tests/paths.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> stored_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(in_source("tests/golden/" + folder)))
    names.push_back(entry.path().stem());
  std::ranges::sort(names);
  return names;
}

std::string first_difference(const std::string& folder, const std::string& name) {
  try {
    return test::first_difference(in_source("tests/golden/" + folder + "/" + name + ".jsonl"));
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& tested) {
  std::string name = tested.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

class HybridSequence : public testing::TestWithParam<std::string> {};

TEST_P(HybridSequence, HasTheOutcomesOfTheEngine) { EXPECT_EQ(first_difference("hybrid", GetParam()), ""); }

INSTANTIATE_TEST_SUITE_P(, HybridSequence, testing::ValuesIn(stored_names("hybrid")), test_name);

class OffloadCalls : public testing::TestWithParam<std::string> {};

TEST_P(OffloadCalls, HaveTheAnswersOfTheEngine) { EXPECT_EQ(first_difference("offload", GetParam()), ""); }

INSTANTIATE_TEST_SUITE_P(, OffloadCalls, testing::ValuesIn(stored_names("offload")), test_name);

}  // namespace
}  // namespace kvtwin

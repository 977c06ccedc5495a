// kvtwin's cache against the stored sequences of the engines' own caches (tests/golden/hybrid, written by
// `tools/engine-parity hybrid --golden`): hits, evictions and used slots after each operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/hybrid/hybrid_server.hpp"
#include "tests/paths.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> stored_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(in_source("tests/golden/hybrid")))
    names.push_back(entry.path().stem());
  std::ranges::sort(names);
  return names;
}

std::string first_difference(const std::string& name) {
  try {
    return test::first_difference(in_source("tests/golden/hybrid/" + name + ".jsonl"));
  } catch (const std::exception& error) {
    return error.what();
  }
}

class HybridSequence : public testing::TestWithParam<std::string> {};

TEST_P(HybridSequence, HasTheOutcomesOfTheEngine) { EXPECT_EQ(first_difference(GetParam()), ""); }

INSTANTIATE_TEST_SUITE_P(, HybridSequence, testing::ValuesIn(stored_names()), [](const auto& tested) {
  std::string name = tested.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace kvtwin

// The help of experiment keys.
#include <gtest/gtest.h>

#include <string>

#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

TEST(Keys, HelpTellsRangeChoicesAndDefault) {
  const std::string help = run({"simulate", "--help-keys"}).out;
  for (const char* line : {"[one of open, closed]; default open", "[at least 1 and at most 64]; default 1",
                           "[true or false]; default true", "default 6.67\n"}) {
    EXPECT_NE(help.find(line), std::string::npos) << line;
  }
}

TEST(Keys, HelpTellsTheParametersOfPoliciesBelowTheirKey) {
  const std::string help = run({"simulate", "--help-keys"}).out;
  const std::size_t key = help.find("\ncache.eviction "), next = help.find("\ncache.evict_unit ");
  for (const char* line : {"\n  slru(protected=...) ", "\n  tlru(threshold=...) ", "\n  tlru(next_prompt=...) "}) {
    const std::size_t at = help.find(line);
    EXPECT_TRUE(key < at && at < next) << line;
  }
  EXPECT_NE(help.find("[at least 0s and at most 1000000s]; default 0.25s\n"), std::string::npos);
  const std::size_t queue = help.find("\n  score(queue=...) ");
  EXPECT_GT(queue, help.find("\ncluster.route "));
  EXPECT_EQ(help.find("\n  score(queue=...) ", queue + 1), std::string::npos) << "once for all keys of routes";
}

}  // namespace
}  // namespace kvtwin::test

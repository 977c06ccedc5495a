// The exact number of hit blocks of each eviction policy on the bundled trace. Any changed decision is visible here.
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "policy/eviction.hpp"
#include "tests/paths.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

TEST(GoldenEvictions, HitWhatTheyHit) {
  const Json golden = Json::parse(text_of(in_source("tests/golden/evictions.json")));
  ASSERT_GE(golden.size(), 5U);
  std::set<std::string> covered;
  for (const auto& [options, hits] : golden.items()) {
    std::vector<std::string> words{"hitrate", "--trace", in_source("traces/chat_small.jsonl.zst"), "--json"};
    std::istringstream more(options);
    for (std::string word; more >> word;) words.push_back(word);
    std::string names;
    for (const auto& [name, hit] : hits.items()) {
      covered.insert(name);
      names += (names.empty() ? "" : ",") + name;
    }
    words.insert(words.end(), {"--eviction", names});
    const Outcome outcome = run(words);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    std::istringstream lines(outcome.out);
    std::size_t seen = 0;
    for (std::string line; std::getline(lines, line); ++seen) {
      const Json rate = Json::parse(line);
      const std::string name = rate.at("eviction");
      EXPECT_EQ(rate.at("hit_blocks"), hits.at(name)) << name << " " << options << "; if meant: tests/golden/update";
    }
    EXPECT_EQ(seen, hits.size());
  }
  for (const std::string_view name : eviction_names()) EXPECT_TRUE(covered.contains(std::string(name))) << name;
}

}  // namespace
}  // namespace kvtwin::test

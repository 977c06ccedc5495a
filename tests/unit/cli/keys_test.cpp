// The table of experiment keys: its limits and texts for values, and the members of configurations that the keys set.
#include "lab/experiment/keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

TEST(Keys, AreDeclaredOnceWithHelpAndADefaultThatTheyTake) {
  std::set<std::string_view> names;
  for (const ExperimentKey& key : experiment_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    if (!key.choices.empty()) {
      EXPECT_NE(std::ranges::find(key.choices, std::get<std::string>(key.fallback)), key.choices.end()) << key.name;
    }
  }
}

TEST(Keys, SetTheMembersThatTheyName) {
  Experiment experiment = Experiment::from_text("engine = \"none\"", "x");
  EngineConfig engine;
  WorldConfig world;
  experiment.apply_keys({engine, world});
  EXPECT_EQ(engine.clean_reserve, EngineConfig{}.clean_reserve);  // 0.1, stored in units of 1/1024
  EXPECT_EQ(engine.prefetch_policy, EngineConfig{}.prefetch_policy);
  EXPECT_EQ(world.reduce_ns, WorldConfig{}.reduce_ns);
  for (const char* assignment : {"cache.layout=page_head", "cache.io=direct", "cache.clean_reserve=0.25",
                                 "cache.prefetch_policy=timeout(base=500ms)", "cache.output=false",
                                 "scheduler.max_running=7", "sim.reduce_us=2.5", "seed=9"}) {
    experiment.set(assignment);
  }
  experiment.apply_keys({engine, world});
  EXPECT_EQ(engine.host_layout, Layout::page_head);
  EXPECT_EQ(engine.io, IoBackend::direct);
  EXPECT_EQ(engine.clean_reserve, 256U);
  EXPECT_EQ(engine.prefetch_policy, "timeout(base=0.5s)");
  EXPECT_FALSE(engine.cache_output);
  EXPECT_EQ(engine.max_running, 7U);
  EXPECT_EQ(world.reduce_ns, 2500);
  EXPECT_EQ(world.seed, 9U);
}

TEST(Keys, AChoiceThatThereIsNotIsRefusedWhereItIsGiven) {
  Experiment experiment = Experiment::from_text("", "x");
  try {
    experiment.set("cache.layout=page_frist");
    FAIL() << "it was taken";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "cache.layout (--set): unknown name \"page_frist\": did you mean \"page_first\"? Known: layer_first, "
                 "page_first, page_first_direct, page_head.");
  }
}

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

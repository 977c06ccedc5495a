// The table of experiment keys: its limits and texts for values, and the members of configurations that the keys set.
#include "lab/experiment/keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"

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

}  // namespace
}  // namespace kvtwin::test

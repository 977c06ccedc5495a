// parallel.attention_dp in an experiment: pages, links, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"

namespace kvtwin::test {
namespace {

kvtwin::Setup setup_of(const std::vector<std::string>& settings) {
  Experiment experiment = Experiment::from_text("", "x.toml");
  experiment.set("model.name=deepseek-v3");
  experiment.set("hardware.name=gb200");
  experiment.set("parallel.tp=8");
  for (const std::string& setting : settings) experiment.set(setting);
  return make_setup(experiment);
}

TEST(AttentionGroupsSetup, EachGroupIsAnEngineWithAnEqualPart) {
  const kvtwin::Setup tensor = setup_of({}),
                      groups = setup_of(
                          {"parallel.attention_dp=8", "scheduler.chunk_tokens=8192", "scheduler.max_running=64"});
  EXPECT_EQ(tensor.engine.ranks, 8U);
  EXPECT_EQ(groups.engine.ranks, 1U);
  EXPECT_EQ(groups.engine_gpus(), 8U);
  EXPECT_EQ(groups.gpus(), 8U);
  EXPECT_EQ(groups.machines(), 1U);
  EXPECT_EQ(groups.world.engines, 8U);
  EXPECT_EQ(groups.world.groups, 8U);
  EXPECT_EQ(groups.router.engines, 8U);
  EXPECT_EQ(groups.engine.chunk_tokens, 1024U);
  EXPECT_EQ(groups.engine.max_running, 8U);
  EXPECT_EQ(groups.engine.burst_steps, 1U);
  EXPECT_EQ(groups.page_bytes(), tensor.page_bytes());  // each rank has whole latents either way
  ASSERT_TRUE(groups.memory);
  EXPECT_EQ(groups.engine.device_pages, static_cast<Bytes>(groups.memory->kv) / groups.page_bytes());
  // Tiers are of all groups together. Tensor parallelism has eight copies of a token in them.
  const kvtwin::Setup copies = setup_of({"tiers.host.gib=64"});
  const kvtwin::Setup once = setup_of({"tiers.host.gib=64", "parallel.attention_dp=8"});
  EXPECT_NEAR(static_cast<double>(once.engine.host_pages), static_cast<double>(copies.engine.host_pages), 1);
  EXPECT_EQ(setup_of({"tiers.device.tokens=80000", "parallel.attention_dp=8"}).engine.device_pages, 1250U / 8);
}

// Eight ranks with one copy of MLA's rows on the host, and with one copy each.
TEST(AttentionGroupsSetup, RanksMayShareTheirCopyOnTheHost) {
  const kvtwin::Setup each = setup_of({"tiers.host.gib=64"});
  const kvtwin::Setup one = setup_of({"tiers.host.gib=64", "cache.host_copies=node"});
  EXPECT_NEAR(static_cast<double>(one.engine.host_pages), 8.0 * static_cast<double>(each.engine.host_pages), 8);
  EXPECT_EQ(one.engine.device_pages, each.engine.device_pages);
  EXPECT_EQ(one.copies_on_host, 1U);
  EXPECT_EQ(each.copies_on_host, 8U);
  // Groups of attention have requests of their own.
  const kvtwin::Setup groups = setup_of({"tiers.host.gib=64", "parallel.attention_dp=2", "cache.host_copies=node"});
  EXPECT_NEAR(2.0 * static_cast<double>(groups.engine.host_pages), static_cast<double>(one.engine.host_pages), 2);
  // Ranks have heads of their own, or states beside MLA.
  for (const char* model : {"llama-3.1-8b", "kimi-k3"}) {
    for (const char* engine : {"sglang", "vllm"}) {
      try {
        setup_of({std::string("model.name=") + model, std::string("engine=") + engine, "tiers.host.gib=64",
                  "tiers.device.gib=64", "cache.host_copies=node"});
        ADD_FAILURE() << model << " " << engine;
      } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("only a model with MLA alone"), std::string::npos) << error.what();
      }
    }
  }
}

TEST(AttentionGroupsSetup, EnginesAndRolesCountMachines) {
  const kvtwin::Setup two = setup_of({"parallel.attention_dp=4", "cluster.engines=2"});
  EXPECT_EQ(two.world.engines, 8U);
  EXPECT_EQ(two.machines(), 2U);
  EXPECT_EQ(two.gpus(), 16U);
  EXPECT_EQ(two.stores_of(Tier::disk), 2U);
  const kvtwin::Setup roles = setup_of({"cluster.prefill=2", "cluster.decode=3", "parallel.attention_dp=2",
                                        "cluster.decode_set=parallel.attention_dp=8"});
  EXPECT_EQ(roles.roles.prefill, 4U);
  EXPECT_EQ(roles.roles.decode.engines, 24U);
  EXPECT_EQ(roles.world.engines, 28U);
  EXPECT_EQ(roles.world.decode->groups, 8U);
  EXPECT_EQ(roles.machines(), 2U);
  EXPECT_EQ(roles.all_machines(), 5U);
  EXPECT_EQ(roles.gpus(), 40U);
}

TEST(AttentionGroupsSetup, HeadsAreSplitWithinAGroup) {
  const auto heads = [](const std::string& groups) {
    return setup_of({"model.name=llama-3.1-8b", "parallel.attention_dp=" + groups}).engine.shape.heads;
  };
  EXPECT_EQ(heads("1"), 1U);
  EXPECT_EQ(heads("2"), 2U);
  EXPECT_EQ(heads("8"), 8U);
}

TEST(AttentionGroupsSetup, EachGroupHasItsOwnLinkAndAllShareTheDisk) {
  const kvtwin::Setup one = setup_of({"tiers.host.gib=64", "tiers.disk.gib=100"});
  const kvtwin::Setup four = setup_of({"tiers.host.gib=64", "tiers.disk.gib=100", "parallel.attention_dp=4"});
  EXPECT_EQ(four.world.ranks, 2U);
  EXPECT_EQ(four.world.h2d_bytes_per_second, one.world.h2d_bytes_per_second);
  EXPECT_EQ(four.world.nic_bytes_per_second, one.world.nic_bytes_per_second);
  ASSERT_EQ(four.engine.storage.size(), 1U);
  EXPECT_TRUE(one.engine.storage[0].owned);
  EXPECT_FALSE(four.engine.storage[0].owned) << "no group knows what the others store";
  EXPECT_TRUE(std::ranges::any_of(four.notes, [](const std::string& note) {
    return note.find("each of the 4 groups has a prefix cache of its own") != std::string::npos;
  }));
  EXPECT_TRUE(four.world.storage[0].evicts_itself);
}

TEST(AttentionGroupsSetup, OtherNumbersAreRefused) {
  const auto refusal = [](const std::vector<std::string>& settings) -> std::string {
    try {
      setup_of(settings);
    } catch (const InputError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_NE(refusal({"parallel.attention_dp=3"}).find("must divide"), std::string::npos);
  EXPECT_NE(refusal({"parallel.attention_dp=8", "tiers.device.tokens=256"}).find("fewer than the 8 groups"),
            std::string::npos);
  EXPECT_NE(refusal({"parallel.attention_dp=8", "scheduler.max_running=4"}).find("fewer than the 8 groups"),
            std::string::npos);
  EXPECT_NE(refusal({"parallel.attention_dp=2", "parallel.rank_model=instances"}).find("parallel.attention_dp"),
            std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test

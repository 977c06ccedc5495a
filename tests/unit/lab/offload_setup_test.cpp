// Whether vLLM's offloading decides what moves between the tiers, and what its keys set.
#include <gtest/gtest.h>

#include <string>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

const Settings kHost{"model.name=llama-3.1-8b", "engine=vllm", "cache.page_tokens=16", "tiers.device.tokens=3200",
                     "tiers.host.tokens=16000"};

kvtwin::Setup setup_of(const Settings& settings) {
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return make_setup(experiment);
}

std::string notes_of(const kvtwin::Setup& setup) {
  std::string text;
  for (const std::string& note : setup.notes) text += note + "\n";
  return text;
}

std::string refusal(const Settings& settings) {
  try {
    setup_of(kHost + settings);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(OffloadSetup, AModelWithOneKindOfKvHasBlocksAsLargeAsPages) {
  const kvtwin::Setup setup = setup_of(kHost);
  EXPECT_EQ(setup.engine.block_groups.blocks, 200U) << "with the null block";
  EXPECT_EQ(setup.engine.block_groups.groups.size(), 1U);
  EXPECT_EQ(setup.engine.device_pages, 199U);
  EXPECT_EQ(setup.engine.block_offload.host.chunks, 1000U);
  EXPECT_EQ(setup.engine.block_offload.shape.page_bytes(), setup.engine.shape.page_bytes());
  EXPECT_FALSE(setup_of(kHost + Settings{"tiers.host.tokens=0"}).has_blocks()) << "nothing is offloaded";
  EXPECT_FALSE(setup_of(kHost + Settings{"engine=trtllm"}).has_blocks());
}

TEST(OffloadSetup, KeysSetTheRules) {
  const BlockOffloadConfig plain = setup_of(kHost).engine.block_offload;
  EXPECT_EQ(plain.host.eviction, ChunkEviction::lru);
  EXPECT_EQ(plain.host.store_threshold, 0U);
  EXPECT_TRUE(plain.prompt_only);
  const BlockOffloadConfig other = setup_of(kHost + Settings{"cache.offload_eviction=arc", "cache.offload_threshold=2",
                                                             "cache.offload_prompt_only=false"})
                                       .engine.block_offload;
  EXPECT_EQ(other.host.eviction, ChunkEviction::arc);
  EXPECT_EQ(other.host.store_threshold, 2U);
  EXPECT_FALSE(other.prompt_only);
  const Settings disk = kHost + Settings{"tiers.disk.gib=10"};
  EXPECT_EQ(setup_of(disk).engine.block_offload.pressure, std::nullopt);
  EXPECT_EQ(setup_of(disk + Settings{"cache.offload_backpressure=drop"}).engine.block_offload.pressure,
            PressureAction::drop);
}

TEST(OffloadSetup, WhatItIsNotBuiltForIsNotedOrRefused) {
  for (const Settings& settings :
       {Settings{"cache.eviction=slru"}, Settings{"cluster.prefill=1", "cluster.decode=1"},
        Settings{"model.name=gpt-oss-120b", "tiers.disk.gib=10"}, Settings{"scheduler.style=sglang"}}) {
    SCOPED_TRACE(settings.front());
    const kvtwin::Setup setup = setup_of(kHost + settings);
    EXPECT_FALSE(setup.has_blocks());
    EXPECT_NE(notes_of(setup).find("pages move by SGLang's (cache.offload = hicache)"), std::string::npos);
    EXPECT_NE(refusal(settings + Settings{"cache.offload=vllm"}).find("set cache.offload to hicache"),
              std::string::npos);
    EXPECT_EQ(notes_of(setup_of(kHost + settings + Settings{"cache.offload=hicache"})).find("vLLM's offloading"),
              std::string::npos);
  }
  EXPECT_NE(refusal({"tiers.disk.gib=10", "cache.offload_threshold=2"}).find("which vLLM refuses"), std::string::npos);
}

TEST(OffloadSetup, KeysWithoutAnEffectAreNamed) {
  for (const char* key :
       {"cache.write_policy=write_back", "cache.load_back_min_tokens=100", "cache.write_threshold=5"}) {
    const std::string name = std::string(key).substr(0, std::string(key).find('='));
    EXPECT_NE(notes_of(setup_of(kHost + Settings{key})).find(name + " (--set) has no effect"), std::string::npos)
        << key;
  }
  EXPECT_NE(notes_of(setup_of(kHost + Settings{"cache.offload=hicache", "cache.offload_eviction=arc"}))
                .find("cache.offload_eviction (--set) has no effect"),
            std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test

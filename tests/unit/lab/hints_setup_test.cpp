// The keys of hints, and what they do not fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

kvtwin::Setup setup_of(const Settings& settings) {
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return make_setup(experiment);
}

std::string error_of(const Settings& settings) {
  try {
    setup_of(settings + Settings{"cache.hints=obey"});
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HintsSetup, AreLeftToThePolicyUnlessAsked) {
  const EngineConfig plain = setup_of({"model.name=tiny"}).engine;
  EXPECT_EQ(plain.hints, HintRule::policy);
  EXPECT_EQ(plain.hint_share, 256U);
  const EngineConfig obeying = setup_of({"model.name=tiny", "cache.hints=obey", "cache.hint_share=0.5"}).engine;
  EXPECT_EQ(obeying.hints, HintRule::obey);
  EXPECT_EQ(obeying.hint_share, 512U);
}

TEST(HintsSetup, HoldWhatATreeHas) {
  EXPECT_EQ(error_of({"model.name=llama-3.1-8b", "tiers.host.gib=10"}), "no error");
  EXPECT_EQ(error_of({"model.name=gpt-oss-120b", "tiers.device.gib=4", "cache.session_radix=true"}), "no error");
  const std::string blocks = error_of({"model.name=llama-3.1-8b", "engine=vllm", "tiers.host.gib=10"});
  EXPECT_NE(blocks.find("not vLLM's blocks"), std::string::npos) << blocks;
}

TEST(HintsSetup, NotesThatNoSessionClosesIfHintsAreIgnored) {
  const auto notes = [](const char* hints) {
    const kvtwin::Setup setup = setup_of({"model.name=tiny", "cache.session_radix=true", hints});
    return std::ranges::count_if(
        setup.notes, [](const std::string& note) { return note.find("sessions never close") != std::string::npos; });
  };
  EXPECT_EQ(notes("cache.hints=ignore"), 1);
  EXPECT_EQ(notes("cache.hints=policy"), 0);
}

}  // namespace
}  // namespace kvtwin::test

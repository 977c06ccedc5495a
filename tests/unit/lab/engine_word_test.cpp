// The key `engine`: the keys that it sets, what overrides it, recorded experiments, and tables of another GPU.
#include "lab/experiment/engine_word.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lab/engine_arguments.hpp"
#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// `engine`: sglang unless the settings give it.
Experiment with(const Settings& settings) {
  Experiment experiment = Experiment::from_text("engine = \"sglang\"\n", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return experiment;
}

std::string refusal(const Settings& settings) {
  try {
    make_setup(with(settings));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(EngineWord, SetsStyleTimesTableAndRules) {
  const Experiment sglang = with({"hardware.name=h200-sxm"});
  EXPECT_EQ(sglang.text("scheduler.style"), "sglang");
  EXPECT_EQ(sglang.text("serving.engine"), "sglang");
  EXPECT_EQ(sglang.text("hardware.operators"), "h200-sxm/sglang");
  EXPECT_EQ(sglang.text("cache.evict_unit"), "node");
  EXPECT_EQ(sglang.number("cache.clean_reserve"), 0);
  EXPECT_TRUE(sglang.flag("cache.rules.prefetch_recheck"));
  EXPECT_TRUE(sglang.flag("cache.rules.look_ups_refresh"));
  EXPECT_EQ(sglang.text("cache.rules.prefetch_style"), "sglang");
  EXPECT_EQ(sglang.origin("cache.evict_unit"), "engine = sglang");
  EXPECT_FALSE(sglang.is_given("cache.evict_unit"));

  const Experiment vllm = with({"hardware.name=h200-sxm", "engine=vllm 0.33.0"});
  EXPECT_EQ(vllm.text("scheduler.style"), "vllm");
  EXPECT_EQ(vllm.text("serving.engine"), "vllm");
  EXPECT_EQ(vllm.text("hardware.operators"), "h200-sxm/vllm");
  EXPECT_EQ(vllm.text("cache.evict_unit"), "page");
  EXPECT_EQ(vllm.integer("cache.load_back_min_tokens"), 0);
  const std::vector<std::string> notes = make_setup(vllm).notes;
  EXPECT_EQ(std::ranges::count(notes,
                               "engine (--set): the rules of vllm are the same for all its releases here, but for the "
                               "GPU's memory before 0.21"),
            1);

  const Experiment trtllm = with({"hardware.name=gb300", "engine=trtllm"});
  EXPECT_EQ(trtllm.text("scheduler.style"), "vllm");
  EXPECT_EQ(trtllm.text("hardware.operators"), "gb300/trtllm");
}

// Loads of vLLM reach a part of the link. The front end of its server takes time for each token of a prompt.
TEST(EngineWord, SetsTheHostLinkAndTheFrontEndOfTheEngine) {
  const auto link_of = [](const Settings& settings) {
    const auto setup = make_setup(with(settings));
    EXPECT_EQ(setup.world.h2d_bytes_per_second, setup.cost->coefficients().moves.host_to_device.link_rate);
    return static_cast<double>(setup.world.h2d_bytes_per_second);
  };
  const double whole = link_of({"engine=none"});
  EXPECT_EQ(link_of({"engine=sglang"}), whole);
  EXPECT_EQ(link_of({"engine=trtllm"}), whole);
  EXPECT_NEAR(link_of({"engine=vllm"}) / whole, 0.8, 1e-9);
  EXPECT_EQ(link_of({"engine=vllm", "serving.host_link_share=1"}), whole);
  EXPECT_NEAR(link_of({"serving.host_link_share=0.5"}) / whole, 0.5, 1e-9);
  EXPECT_NEAR(link_of({"engine=vllm", "hardware.set.host_link_gbps=10"}), 8e9, 1);
  const auto written = [](const Settings& settings) { return make_setup(with(settings)).world.d2h_bytes_per_second; };
  EXPECT_EQ(written({"engine=vllm"}), written({"engine=none"}));
  EXPECT_EQ(make_setup(with({})).serving.token_ps, 0U);
  EXPECT_EQ(make_setup(with({"engine=vllm"})).serving.token_ps, 900'000U);
  EXPECT_EQ(make_setup(with({})).serving.prefix_x1024, 1024U);
  EXPECT_EQ(make_setup(with({"engine=vllm"})).serving.prefix_x1024, 1229U);
}

TEST(EngineWord, SetsRulesOfTheReleaseAndOfTheWritePolicy) {
  const Experiment early = with({"engine=sglang 0.5.10", "cache.write_policy=write_back"});
  EXPECT_FALSE(early.flag("cache.rules.raise_prompt_priority"));
  EXPECT_FALSE(early.flag("cache.rules.reclaim_shadowed"));
  EXPECT_EQ(early.text("cache.rules.prefetch_timeout_from"), "issue");
  Experiment late = with({"cache.write_policy=write_back"});
  EXPECT_TRUE(late.flag("cache.rules.reclaim_shadowed"));
  EXPECT_EQ(late.text("cache.rules.reclaim_order"), "shadowed");
  late.set("cache.write_policy=write_through");
  EXPECT_EQ(late.origin("cache.rules.reclaim_order"), "default");
}

TEST(EngineWord, IsSglangByDefault) {
  Experiment experiment = Experiment::from_text("[hardware]\nname = \"h100-sxm\"\n", "x.toml");
  EXPECT_EQ(experiment.where("engine"), "engine (default)");
  EXPECT_EQ(experiment.text("hardware.operators"), "h100-sxm/sglang");
  EXPECT_EQ(experiment.origin("hardware.operators"), "engine = sglang");
  EXPECT_EQ(engine_line(experiment), "sglang 0.5.23; operator times h100-sxm/sglang");
  experiment.set("scheduler.style=vllm");
  EXPECT_EQ(engine_line(experiment), "sglang 0.5.23; operator times h100-sxm/sglang; scheduled as vllm");
  experiment.set("engine=none");
  EXPECT_EQ(experiment.text("hardware.operators"), "none");
}

TEST(EngineWord, NoneSetsNothing) {
  const Experiment experiment = Experiment::from_text("engine = \"none\"", "x.toml");
  for (const ExperimentKey& key : experiment_keys()) {
    if (key.name == "engine") continue;
    EXPECT_EQ(experiment.value(key.name), key.fallback) << key.name;
    EXPECT_EQ(experiment.origin(key.name), "default") << key.name;
  }
}

TEST(EngineWord, KeysThatAreGivenStayInAnyOrder) {
  for (const Settings& settings : {Settings{"serving.engine=none", "hardware.operators=none", "engine=vllm"},
                                   Settings{"engine=vllm", "hardware.operators=none", "serving.engine=none"}}) {
    Experiment experiment = with(settings);
    experiment.set("hardware.name=b200-sxm");
    EXPECT_EQ(experiment.text("serving.engine"), "none");
    EXPECT_EQ(experiment.text("hardware.operators"), "none");
    EXPECT_EQ(experiment.text("scheduler.style"), "vllm");
    EXPECT_EQ(engine_line(experiment), "vllm; roofline; without the engine's host times");
  }
}

TEST(EngineWord, FollowsTheHardware) {
  Experiment experiment = with({"hardware.name=h100-pcie5"});
  EXPECT_EQ(engine_line(experiment), "sglang 0.5.23; operator times h100-sxm/sglang");
  experiment.set("hardware.name=mi300x");
  EXPECT_EQ(engine_line(experiment), "sglang 0.5.23; no operator table for mi300x/sglang: roofline");
  experiment.set("hardware.name=a100-sxm");
  EXPECT_EQ(engine_line(experiment), "sglang 0.5.23; operator times a100-sxm/sglang");
  experiment.set("engine=vllm 0.33.0");
  EXPECT_EQ(engine_line(experiment), "vllm 0.33.0; no operator table for a100-sxm/vllm: roofline");
  experiment.set("hardware.file=machine.json");
  EXPECT_EQ(engine_line(experiment), "vllm 0.33.0; no operator table for machine.json, which names no GPU: roofline");
  experiment.set("hardware.operators=h100-sxm/vllm");
  EXPECT_EQ(engine_line(experiment), "vllm 0.33.0; operator times h100-sxm/vllm");
  EXPECT_EQ(engine_line(with({"engine=none"})), "");
}

TEST(EngineWord, TheTokensOfAPassFollowTheMemoryThatTheGpuHas) {
  EXPECT_EQ(with({"hardware.name=h100-sxm"}).integer("scheduler.chunk_tokens"), 8192);
  EXPECT_EQ(with({"hardware.name=h100-sxm", "hardware.set.memory_bytes=190GiB"}).integer("scheduler.chunk_tokens"),
            16384);
  EXPECT_EQ(with({"hardware.name=h100-sxm", "hardware.set.memory_bytes=24GiB"}).integer("scheduler.chunk_tokens"),
            4096);
}

TEST(EngineWord, AMemoryThatIsTooSmallIsNamed) {
  const std::string sentence = refusal({"hardware.name=h100-sxm", "hardware.set.memory_bytes=190"});  // no unit: bytes
  EXPECT_TRUE(sentence.ends_with(" and hardware.set.memory_bytes (--set) too.")) << sentence;
}

TEST(EngineWord, TheMemoryIsNotDividedForAnL1WithASize) {
  const auto memory = [](const Settings& settings) { return make_setup(with(settings)).memory.has_value(); };
  const Settings sized = {"hardware.name=h100-sxm", "model.name=qwen3-next-80b-a3b", "parallel.tp=4",
                          "tiers.device.tokens=100000"};
  EXPECT_TRUE(memory({"hardware.name=h100-sxm", "model.name=qwen3-next-80b-a3b", "parallel.tp=4"}));
  EXPECT_FALSE(memory(sized));
}

TEST(EngineWord, UnknownEnginesAndReleasesAreRefused) {
  const auto error_of = [](const std::string& engine) -> std::string {
    try {
      with({"engine=" + engine});
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of("sglan"),
            "engine (--set): unknown engine \"sglan\": did you mean \"sglang\"? Known: none, sglang, vllm, trtllm.");
  EXPECT_NE(error_of("sglang 0.5.99").find("the rules of SGLang 0.5.99 are not known; known are those of 0.5.10, "),
            std::string::npos)
      << error_of("sglang 0.5.99");
  for (const char* junk : {"vllm ", "vllm x", "none 1", "sglang  0.5.23", "vllm 0.33 0"}) {
    EXPECT_NE(error_of(junk).find("it must be an engine, or one with a release"), std::string::npos) << junk;
  }
  EXPECT_EQ(error_of("sglang v0.5.20"), "");
  EXPECT_EQ(error_of("sglang 0.5.20.post1"), "");
}

TEST(EngineWord, ATableOfAnotherGpuIsRefusedUnlessItIsAskedFor) {
  const Settings other{"hardware.name=h20", "hardware.operators=h100-sxm/sglang"};
  EXPECT_EQ(refusal(other),
            "hardware.operators (--set): the times of h100-sxm/sglang were measured on h100-sxm, and hardware.name "
            "(--set) is h20; there is no table of h20: set hardware.operators to none, or set "
            "hardware.operators_of_another_gpu to true");
  EXPECT_NE(
      refusal({"hardware.name=a100-sxm", "hardware.operators=h100-sxm/vllm"}).find("take a100-sxm/sglang or none"),
      std::string::npos);
  EXPECT_EQ(refusal(other + Settings{"hardware.operators_of_another_gpu=true"}), "");
  EXPECT_EQ(refusal({"hardware.name=h100-sxm", "hardware.operators=h100-sxm/vllm"}), "") << "another engine's";
  EXPECT_NE(refusal({"hardware.name=cpu-host", "hardware.operators=h100-sxm/vllm"}), "");
}

// The user's own machine, whatever its file is called.
TEST(EngineWord, AHardwareFileHasTheTablesOfTheGpuThatItNames) {
  const Folder folder;
  const std::string file = folder / "rack7.json", set = "hardware.file=" + file;
  Json machine = Json::parse(text_of(in_source("models/presets/hardware/h100-sxm.json")));
  machine["gpu"] = "h100_sxm";
  write_text(file, machine.dump());
  EXPECT_EQ(engine_line(with({set})), "sglang 0.5.23; operator times h100-sxm/sglang");
  EXPECT_EQ(refusal({set}), "");
  EXPECT_EQ(refusal({set, "hardware.operators=h100-sxm/vllm"}), "");
  EXPECT_EQ(refusal({set, "hardware.operators=h200-sxm/sglang"}),
            "hardware.operators (--set): the times of h200-sxm/sglang were measured on h200-sxm, and hardware.file "
            "(--set) is h100-sxm; take h100-sxm/sglang, h100-sxm/trtllm, h100-sxm/vllm or none, or set "
            "hardware.operators_of_another_gpu to true");
  write_text(folder / "near.toml", "hardware.file = \"rack7.json\"\n");
  EXPECT_EQ(engine_line(Experiment::from_file(folder / "near.toml")), "sglang 0.5.23; operator times h100-sxm/sglang");

  machine.erase("gpu");
  write_text(file, machine.dump());
  EXPECT_EQ(engine_line(with({set})),
            "sglang 0.5.23; no operator table for " + file + ", which names no GPU: roofline");
  const std::vector<std::string> notes = make_setup(with({set, "hardware.operators=h200-sxm/sglang"})).notes;
  EXPECT_EQ(std::ranges::count(notes,
                               "hardware.file (--set) names no GPU, so nothing says whether the times of "
                               "h200-sxm/sglang are its own; if they are, add \"gpu\": \"h200-sxm\" to it"),
            1);
}

TEST(EngineWord, ARecordedExperimentKeepsItsValuesAndFollowsALaterSetting) {
  const Experiment made = with({"hardware.name=h100-sxm", "cache.evict_unit=page"});
  Experiment recorded = Experiment::from_text(made.resolved(), "resolved.toml");
  for (const ExperimentKey& key : experiment_keys())
    EXPECT_EQ(recorded.value(key.name), made.value(key.name)) << key.name;
  EXPECT_TRUE(recorded.is_given("cache.evict_unit"));
  recorded.set("hardware.name=h200-sxm");
  EXPECT_EQ(recorded.text("hardware.operators"), "h200-sxm/sglang");
  recorded.set("engine=vllm");
  EXPECT_EQ(recorded.text("serving.engine"), "vllm");
  EXPECT_EQ(recorded.text("cache.evict_unit"), "page");
}

// SGLang's share of the memory depends on whether the server's flags limit the requests.
TEST(EngineWord, ARecordedExperimentHasTheSameL1) {
  const auto pages = [](const Experiment& experiment) { return make_setup(experiment).engine.device_pages; };
  const Settings eight = {"hardware.name=b200-sxm", "model.name=llama-3.1-70b", "parallel.tp=8"};
  Settings limited = eight;
  limited.push_back("scheduler.max_running=256");  // the default, and given
  for (const Settings& settings : {eight, limited}) {
    const Experiment made = with(settings);
    const Experiment recorded = Experiment::from_text(made.resolved(), "resolved.toml");
    EXPECT_EQ(recorded.is_given("scheduler.max_running"), made.is_given("scheduler.max_running"));
    EXPECT_EQ(pages(recorded), pages(made));
    EXPECT_EQ(pages(Experiment::from_text(recorded.resolved(), "again.toml")), pages(made));
  }
  EXPECT_LT(pages(with(eight)), pages(with(limited)));
}

TEST(EngineWord, ARecordedDefaultIsNotGivenUnlessItIsChanged) {
  const Experiment made = with({"engine=none"});
  EXPECT_FALSE(Experiment::from_text(made.resolved(), "resolved.toml").is_given("scheduler.max_running"));
  std::string text = made.resolved();
  const std::string line = "scheduler.max_running = 256  # default";
  text.replace(text.find(line), line.size(), "scheduler.max_running = 64  # default");
  const Experiment changed = Experiment::from_text(text, "resolved.toml");
  EXPECT_TRUE(changed.is_given("scheduler.max_running"));
  EXPECT_EQ(changed.integer("scheduler.max_running"), 64);
}

// A kvtwin of before the key recorded all other keys.
TEST(EngineWord, ARecordedExperimentWithoutTheKeyGetsNoNewDefaults) {
  const Experiment made = with({"engine=none", "hardware.name=h100-sxm"});
  std::string text = made.resolved();
  const std::size_t line = text.find("\nengine = ") + 1;
  text.erase(line, text.find('\n', line) + 1 - line);
  const std::size_t later = text.find("\ncache.rules = ") + 1;  // as if it had not known these keys either
  text.erase(later, text.find('\n', later) + 1 - later);
  const Experiment recorded = Experiment::from_text(text, "resolved.toml");
  EXPECT_EQ(recorded.where("engine"), "engine (resolved.toml, recorded without this key)");
  for (const ExperimentKey& key : experiment_keys())
    EXPECT_EQ(recorded.value(key.name), made.value(key.name)) << key.name;
}

TEST(EngineWord, SglangVersionIsAnAlias) {
  const auto apply = [](const std::string& toml, const std::string& version, const Settings& later,
                        const char* flags = nullptr) {
    Experiment experiment = Experiment::from_text(toml, "x.toml");
    EngineArguments arguments;
    arguments.sglang_version = version;
    if (flags != nullptr) arguments.sglang_flags = {flags};
    try {
      apply_engine_arguments(arguments, later, experiment);
      for (const std::string& setting : later) experiment.set(setting);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return experiment.text("engine") + (experiment.flag("cache.rules.raise_prompt_priority") ? " raises" : "");
  };
  EXPECT_EQ(apply("", "0.5.10", {}), "sglang 0.5.10");
  EXPECT_EQ(apply("engine = \"sglang\"", "0.5.10", {}, "--tp 1"), "sglang 0.5.10");
  EXPECT_EQ(apply("engine = \"sglang 0.5.10\"", "", {}, "--tp 1"), "sglang 0.5.10");
  EXPECT_EQ(apply("engine = \"sglang\"", "0.5.10", {}), "sglang 0.5.10");
  EXPECT_EQ(apply("", "", {"engine=sglang 0.5.10"}, "--tp 1"), "sglang 0.5.10");
  EXPECT_EQ(apply("", "0.5.23", {}, "--tp 1"), "sglang raises");
  EXPECT_EQ(apply("engine = \"vllm\"", "", {}, "--tp 1"), "sglang raises");
  EXPECT_EQ(apply("engine = \"sglang 0.5.20\"", "0.5.23", {}),
            "--sglang-version is 0.5.23, and engine (x.toml:1) is sglang 0.5.20; give one of them");
  EXPECT_EQ(apply("", "0.5.23", {"engine=sglang 0.5.20"}, "--tp 1"),
            "--sglang-version is 0.5.23, and engine (--set) is sglang 0.5.20; give one of them");
  EXPECT_EQ(apply("engine = \"vllm\"", "0.5.23", {}),
            "--sglang-version is 0.5.23, and engine (x.toml:1) is vllm; give one of them");
  EXPECT_EQ(apply("", "", {"engine=vllm"}, "--tp 1"),
            "engine (--set): is vllm, and the flags are of SGLang; leave it out, or give the keys of vllm without "
            "these flags");
}

}  // namespace
}  // namespace kvtwin::test

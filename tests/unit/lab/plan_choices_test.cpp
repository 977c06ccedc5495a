// What a plan varies by default: GPU types and formats of weights, and which of them go together.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "lab/plan/choices.hpp"
#include "lab/plan/default_parts.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "models/presets.hpp"
#include "tests/price_list.hpp"

namespace kvtwin::test {
namespace {

using Words = std::vector<std::string>;

Experiment base_of(const Words& settings) {
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return experiment;
}

Choices choices_of(const Words& settings, const Words& lists = {}) {
  return Choices(lists, base_of(settings), PriceList::built_in());
}

Words values_of(const Choices& choices, const std::string& name) {
  Words values;
  for (const PlanChoice& choice : choices.list()) {
    if (choice.name != name) continue;
    for (const SweepValue& value : choice.values) values.push_back(value.text);
  }
  return values;
}

// The sentences of assumed() that begin with these words, as one text.
std::string assumed(const Choices& choices, const std::string& beginning) {
  std::string text;
  for (const std::string& sentence : choices.assumed()) {
    if (sentence.starts_with(beginning)) text += sentence + "\n";
  }
  return text;
}

// Returns the parts of the offered combinations, e.g. "h100-sxm bf16 2".
Words offered(const Choices& choices, const Words& names) {
  Words all;
  Setting setting{std::vector<std::size_t>(choices.list().size(), 0), 1};
  const std::function<void(std::size_t, const std::string&)> visit = [&](std::size_t name, const std::string& text) {
    if (name == names.size()) {
      if (choices.offers(setting)) all.push_back(text);
      return;
    }
    const auto at = static_cast<std::size_t>(std::ranges::find(choices.list(), names[name], &PlanChoice::name) -
                                             choices.list().begin());
    for (std::size_t value = 0; value < choices.list()[at].values.size(); ++value) {
      setting.values[at] = value;
      visit(name + 1, text + (text.empty() ? "" : " ") + choices.list()[at].values[value].text);
    }
  };
  visit(0, "");
  return all;
}

bool has(const Words& list, const std::string& word) { return std::ranges::find(list, word) != list.end(); }

TEST(PlanChoices, GpusWithAPublishedPriceAndMeasuredTimesVary) {
  const Choices choices = choices_of({"model.name=llama-3.1-8b"});
  EXPECT_EQ(values_of(choices, "hardware.name"), (Words{"b200-sxm", "b300-sxm", "h100-sxm", "h200-sxm"}));
  const std::string sentence = assumed(choices, "GPU");
  for (const char* part :
       {"by default", "a100-sxm (no fp8 units)", "gb200 (of a rack)", "cpu-host (no price)",
        "mi300x, mi325x (no operator times of sglang)", "(an assumed price)", "--vary hardware.name"}) {
    EXPECT_NE(sentence.find(part), std::string::npos) << part << ": " << sentence;
  }
  const Words roofline = values_of(choices_of({"engine=none"}), "hardware.name");
  for (const char* name : {"h100-sxm", "mi300x", "mi325x"}) EXPECT_TRUE(has(roofline, name)) << name;
}

TEST(PlanChoices, EachDefaultGpuHasAPriceWithSourceAndDate) {
  const PriceList list = PriceList::built_in();
  for (const std::string& name : values_of(choices_of({"engine=none"}), "hardware.name")) {
    const PriceFigure& hour = list.get("gpu." + name + ".hour");
    EXPECT_FALSE(hour.is_assumed()) << name;
    EXPECT_FALSE(hour.source.empty()) << name;
    EXPECT_EQ(hour.date.size(), 10U) << name;
  }
}

TEST(PlanChoices, AGivenGpuIsTheOnlyOne) {
  const Choices given = choices_of({"hardware.name=h100-sxm"});
  EXPECT_TRUE(values_of(given, "hardware.name").empty());
  EXPECT_EQ(assumed(given, "GPU"), "GPU h100-sxm: given\n");
  const Choices named = choices_of({}, {"hardware.name=h20,mi355x"});
  EXPECT_EQ(values_of(named, "hardware.name"), (Words{"h20", "mi355x"}));
  EXPECT_EQ(assumed(named, "GPU"), "");
  const Choices measured = choices_of({"hardware.operators=h100-sxm/sglang"});
  EXPECT_TRUE(values_of(measured, "hardware.name").empty());
  EXPECT_NE(assumed(measured, "GPU h100-sxm: the default").find("operator times are given"), std::string::npos);
}

TEST(PlanChoices, OnlyGpusOfThePriceList) {
  const Choices choices({}, base_of({"model.name=llama-3.1-8b"}), PriceList::from_text(price_list_text(), "p.toml"));
  EXPECT_EQ(values_of(choices, "hardware.name"), Words{"h100-sxm"});
  EXPECT_NE(assumed(choices, "GPU").find("h200-sxm"), std::string::npos) << "it has no price";
}

TEST(PlanChoices, FormatsWithAPublishedCheckpointVary) {
  const Choices choices = choices_of({"model.name=qwen3-32b"});
  EXPECT_EQ(values_of(choices, "model.weights"), (Words{"bf16", "fp8_block", "nvfp4", "awq"}));
  const std::string sentence = assumed(choices, "weights:");
  for (const char* part : {"Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-AWQ", "quality", "does not measure"}) {
    EXPECT_NE(sentence.find(part), std::string::npos) << part << ": " << sentence;
  }
  const Choices none = choices_of({"model.name=gpt-oss-20b"});
  EXPECT_TRUE(values_of(none, "model.weights").empty());
  EXPECT_EQ(assumed(none, "weights"), "weights mxfp4: no published checkpoint in another format is known\n");
  const Choices given = choices_of({"model.name=qwen3-32b", "model.weights=fp8"});
  EXPECT_TRUE(values_of(given, "model.weights").empty());
  EXPECT_EQ(assumed(given, "weights"), "weights fp8: given\n");
  const Choices models = choices_of({}, {"model.name=qwen3-32b,qwen3-8b"});
  EXPECT_TRUE(values_of(models, "model.weights").empty());
  EXPECT_NE(assumed(models, "weights").find("the model varies"), std::string::npos);
}

// A server's line names a checkpoint.
TEST(PlanChoices, TheModelOfAServerLineHasItsFormat) {
  for (const char* line : {"--model-path Qwen/Qwen3-32B", "--model-path Qwen/Qwen3-32B-FP8"}) {
    Experiment base = base_of({});
    apply_sglang_flags(base, line);
    const Choices choices({}, base, PriceList::built_in());
    EXPECT_TRUE(values_of(choices, "model.weights").empty()) << line;
    EXPECT_FALSE(values_of(choices, "hardware.name").empty()) << line;
  }
}

TEST(PlanChoices, PartsThatDoNotGoTogetherAreNotOffered) {
  const Words names{"hardware.name", "model.weights", "parallel.tp"};
  const Choices choices = choices_of({"model.name=qwen3-32b"});
  const Words all = offered(choices, names);
  EXPECT_TRUE(has(all, "h100-sxm fp8_block 1"));
  const Words by_roofline = offered(choices_of({"model.name=qwen3-32b", "engine=none"}), names);
  EXPECT_TRUE(has(by_roofline, "h100-sxm awq 1")) << "engines convert int4 to bf16";
  EXPECT_FALSE(has(all, "h100-sxm awq 1")) << "the operator table has no products of int4 weights";
  EXPECT_NE(assumed(choices, "weights awq").find("too little of a pass"), std::string::npos);
  EXPECT_TRUE(has(all, "b200-sxm nvfp4 1"));
  for (const std::string& one : all)
    EXPECT_FALSE(one.starts_with("h") && one.find("nvfp4") != std::string::npos) << one;
  EXPECT_NE(assumed(choices, "weights nvfp4").find("not on h100-sxm"), std::string::npos);

  const Choices large = choices_of({"model.name=llama-3.1-70b"});
  const Words fitting = offered(large, names);
  EXPECT_FALSE(has(fitting, "h100-sxm bf16 1")) << "141 GB in 80 GB";
  EXPECT_TRUE(has(fitting, "h100-sxm bf16 4"));
  EXPECT_TRUE(has(fitting, "h100-sxm fp8 2"));

  const Choices huge = choices_of({"model.name=llama-3.1-405b"}, {"parallel.tp=4"});
  EXPECT_FALSE(has(offered(huge, names), "h100-sxm fp8 4"));
  const Choices huge_by_roofline = choices_of({"model.name=llama-3.1-405b", "engine=none"}, {"parallel.tp=4"});
  EXPECT_FALSE(has(offered(huge_by_roofline, names), "h100-sxm fp8 4"));
  EXPECT_TRUE(has(offered(huge_by_roofline, names), "h100-sxm awq 4"));
  EXPECT_TRUE(huge.offers(huge.largest()));
}

TEST(PlanChoices, ALeftOutGpuIsNamed) {
  const Choices choices = choices_of({"model.name=llama-3.1-70b", "model.weights=bf16"}, {"parallel.tp=1"});
  EXPECT_EQ(offered(choices, {"hardware.name"}), (Words{"b200-sxm", "b300-sxm"}));
  for (const char* gpu : {"h100-sxm", "h200-sxm"}) {
    EXPECT_NE(assumed(choices, std::string("GPU ") + gpu).find("does not fit"), std::string::npos) << gpu;
  }
}

// The search names the cause.
TEST(PlanChoices, IfNothingCanBeSetUpAllIsOffered) {
  const Choices choices = choices_of({"model.name=llama-3.1-70b", "parallel.tp=7"});
  EXPECT_EQ(offered(choices, {"hardware.name"}).size(), 4U);
}

TEST(PlanChoices, WhatCostsNothingIsAPolicy) {
  const Choices choices = choices_of({"model.name=gpt-oss-20b", "hardware.name=h100-sxm"},
                                     {"scheduler.chunk_tokens=2048,8192", "tiers.device.window_ratio=0.2,0.8",
                                      "tiers.device.state_ratio=0.5,0.9", "model.kv_dtype=bf16,fp8"});
  for (const PlanChoice& choice : choices.list()) {
    const bool part = choice.name == "model.kv_dtype" || choice.name == "parallel.tp";
    const bool policy =
        choice.name == "cluster.route" || choice.name.ends_with("_ratio") || choice.name == "scheduler.chunk_tokens";
    EXPECT_EQ(choice.kind, part ? ChoiceKind::part : policy ? ChoiceKind::policy : ChoiceKind::amount) << choice.name;
  }
}

TEST(PlanChoices, UnitsOfAGpu) {
  EXPECT_FALSE(computes(hardware_preset("a100-sxm"), WeightChoice::fp8));
  EXPECT_TRUE(computes(hardware_preset("a100-sxm"), WeightChoice::awq));
  EXPECT_FALSE(computes(hardware_preset("h200-sxm"), WeightChoice::nvfp4));
  EXPECT_TRUE(computes(hardware_preset("b200-sxm"), WeightChoice::nvfp4));
  EXPECT_FALSE(computes(hardware_preset("mi355x"), WeightChoice::nvfp4)) << "its fp4 units take mxfp4";
}

}  // namespace
}  // namespace kvtwin::test

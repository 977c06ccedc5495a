// The 80 % intervals of predicted times (lab/errors).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "lab/error.hpp"
#include "lab/errors/intervals.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/simulate.hpp"
#include "models/error.hpp"
#include "models/presets.hpp"
#include "tests/folder.hpp"

namespace kvtwin::test {
namespace {

using Times = ErrorFeatures::Times;

ErrorFeatures features(const char* engine = "vllm", const char* gpu = "h100-sxm") {
  ErrorFeatures of;
  of.times = Times::table;
  of.engine = engine;
  of.gpu = gpu;
  of.values = {{"ln_ttft", std::log(0.4)}, {"ln_tpot", std::log(0.01)}, {"ln_prompt", std::log(2000)}};
  return of;
}

double width(const ErrorFactors& errors, TimeKind kind) {
  const TimeInterval interval = interval_of(errors, kind, 1, 0.2);
  return std::log(interval.high / interval.low);
}

double middle(const ErrorFactors& errors, TimeKind kind) {
  const TimeInterval interval = interval_of(errors, kind, 1, 0.2);
  return std::sqrt(interval.high * interval.low);
}

TEST(Errors, NamesTheRunsThatAnIntervalIsMadeOf) {
  const ErrorFactors errors = error_factors(features());
  ASSERT_EQ(errors.widened.size(), 1U);
  EXPECT_NE(errors.widened.front().find("no measured run is of this server"), std::string::npos);
  EXPECT_GE(errors.runs.size(), 50U);
  EXPECT_NE(errors.of.find("measured runs of vllm with times from operator tables"), std::string::npos) << errors.of;
}

// A table that was made from too few sets once gave intervals from 0.006 to 10^8 s.
TEST(Errors, NoIntervalIsWiderThanAnyMeasuredRunWasOff) {
  constexpr double kWidest = 100;  // upper / lower end
  for (const Times times : {Times::table, Times::roofline, Times::fitted}) {
    for (const char* engine : {"sglang", "vllm", "trtllm", "none"}) {
      for (const char* gpu : {"h100-sxm", "b200-sxm", "", "cpu-host"}) {
        for (const double ttft : {0.001, 0.1, 10.0}) {
          for (const double share : {0.0, 1.0}) {
            ErrorFeatures of = features(engine, gpu);
            of.times = times;
            of.values["ln_ttft"] = std::log(ttft);
            for (const char* name : {"queue_share", "hit_below", "experts"}) of.values[name] = share;
            const ErrorFactors errors = error_factors(of);
            EXPECT_LT(width(errors, TimeKind::ttft), std::log(1.01 * kWidest))
                << name_of(times) << " " << engine << " " << ttft;
            EXPECT_LT(width(errors, TimeKind::tpot), std::log(1.01 * kWidest))
                << name_of(times) << " " << engine << " " << ttft;
          }
        }
      }
    }
  }
}

TEST(Errors, AnIntervalIsNeverNarrowerThanTwoRunsOfOneSetting) {
  const ErrorFactors errors = error_factors(features());
  ASSERT_GT(errors.repeat.ttft, 1);
  ASSERT_GT(errors.repeat.tpot, 1);
  ErrorFactors sure = errors;
  sure.runs.assign(100, {1.5, 1.5});
  const TimeInterval interval = interval_of(sure, TimeKind::ttft, 1, 0);
  EXPECT_NEAR(interval.low, 1.5 / errors.repeat.ttft, 0.01);
  EXPECT_NEAR(interval.high, 1.5 * errors.repeat.ttft, 0.01);
}

TEST(Errors, WhatNoMeasuredRunHasMakesTheIntervalWiderAndIsSaid) {
  const ErrorFactors known = error_factors(features());
  const ErrorFactors gpu = error_factors(features("vllm", "h30-pro"));
  ASSERT_EQ(gpu.widened.size(), 2U);
  EXPECT_NE(gpu.widened.back().find("no measured run is of h30-pro"), std::string::npos) << gpu.widened.back();
  EXPECT_GT(width(gpu, TimeKind::ttft), 1.05 * width(known, TimeKind::ttft));
  ErrorFeatures tiers = features();
  tiers.values["hit_below"] = 0.3;
  EXPECT_GT(width(error_factors(tiers), TimeKind::ttft), 1.05 * width(known, TimeKind::ttft));
  const ErrorFactors engine = error_factors(features("none"));
  ASSERT_EQ(engine.widened.size(), 2U);
  EXPECT_NE(engine.widened.back().find("engine = none"), std::string::npos) << engine.widened.back();
}

// The runs of other publications showed it: where requests queue for longer, the times are less certain.
TEST(Errors, LongerQueuesThanAnyMeasuredOnesMakeTheIntervalWider) {
  ErrorFeatures within = features(), beyond = features();
  within.values["queue_share"] = 0.89;
  beyond.values["queue_share"] = 0.99;
  const ErrorFactors known = error_factors(within), other = error_factors(beyond);
  EXPECT_EQ(known.widened.size(), 1U);
  ASSERT_EQ(other.widened.size(), 2U);
  EXPECT_NE(other.widened.back().find("queue for at most 90 %"), std::string::npos) << other.widened.back();
  EXPECT_GT(width(other, TimeKind::ttft), 1.5 * width(known, TimeKind::ttft));
  EXPECT_GT(width(other, TimeKind::tpot), width(known, TimeKind::tpot));
  add_own_runs({{features(), {1, 1}}}, beyond);
  EXPECT_TRUE(error_factors(beyond).widened.empty()) << error_factors(beyond).widened.front();
}

// Figures fitted to a capture that they do not explain.
TEST(Errors, AFitThatIsOffIsWider) {
  ErrorFeatures good = features(), bad = features();
  good.times = bad.times = Times::fitted;
  good.values["fit_off_ttft"] = good.values["fit_off_tpot"] = 0.1;
  bad.values["fit_off_ttft"] = 0.6;
  bad.values["fit_off_tpot"] = 0.1;
  const ErrorFactors before = error_factors(good), after = error_factors(bad);
  EXPECT_GT(width(after, TimeKind::ttft), 2 * width(before, TimeKind::ttft));
  EXPECT_DOUBLE_EQ(width(after, TimeKind::tpot), width(before, TimeKind::tpot));
  EXPECT_NE(after.widened.back().find("off by more than 60 % (TTFT)"), std::string::npos) << after.widened.back();
}

// A prompt of a million tokens is as uncertain as the longest that was measured: the lines are not followed further.
TEST(Errors, FeaturesCountWithinTheRangeOfTheMeasuredRuns) {
  ErrorFeatures far = features(), farther = features();
  far.values["ln_ttft"] = std::log(1e4);
  farther.values["ln_ttft"] = std::log(1e6);
  EXPECT_DOUBLE_EQ(middle(error_factors(far), TimeKind::ttft), middle(error_factors(farther), TimeKind::ttft));
}

TEST(Errors, OwnRunsShiftTheMiddleAndMakeTheIntervalNarrower) {
  const ErrorFactors before = error_factors(features());
  const auto after = [&](std::size_t runs, double factor) {
    ErrorFeatures of = features();
    add_own_runs(std::vector<OwnRun>(runs, {features(), {factor, factor}}), of);
    return error_factors(of);
  };
  const ErrorFactors one = after(1, 2), many = after(50, 2);
  EXPECT_GT(middle(one, TimeKind::ttft), middle(before, TimeKind::ttft));
  EXPECT_GT(middle(many, TimeKind::ttft), middle(one, TimeKind::ttft));
  EXPECT_LE(width(many, TimeKind::ttft), width(one, TimeKind::ttft));
  EXPECT_LT(width(many, TimeKind::ttft), width(before, TimeKind::ttft));
  EXPECT_NE(many.of.find("and 50 of report.validated"), std::string::npos) << many.of;
}

TEST(Errors, OwnRunsOfAnotherEngineOrGpuSayNothing) {
  for (const ErrorFeatures& other : {features("sglang"), features("vllm", "b200-sxm")}) {
    ErrorFeatures of = features();
    add_own_runs({{other, {3, 3}}}, of);
    EXPECT_EQ(of.values, features().values);
  }
}

TEST(Errors, EndToEndIsByTheShareOfTheFirstToken) {
  ErrorFactors errors;
  errors.runs.assign(10, {2, 1});
  const TimeInterval interval = interval_of(errors, TimeKind::e2e, 8, 0.25);
  EXPECT_DOUBLE_EQ(interval.low, 10) << "a quarter of 8 s doubles";
}

TEST(Errors, FeaturesComeBackFromAReport) {
  ErrorFeatures of = features();
  of.values["experts"] = 1;
  of.model = "qwen3-32b";
  const ErrorFeatures back = ErrorFeatures::from_json(of.json());
  EXPECT_EQ(back.json().dump(), of.json().dump());
}

Json report_of(const char* set) {
  Experiment experiment = Experiment::from_text("workload.limit = 40\n", "test");
  for (const char* one : {"model.name=qwen3-32b", "hardware.name=h100-sxm", "parallel.tp=2", "engine=vllm",
                          "workload.generate.kind=groups", "sim.world=events"}) {
    experiment.set(one);
  }
  if (set != nullptr) experiment.set(set);
  return Json::parse(simulate(experiment, {}).report);
}

TEST(Errors, TheErrorsOfAFitAreThoseOfItsHardwareFile) {
  Folder folder;
  Json file = Json::parse(std::string(hardware_preset_text("h100-sxm")));
  Json& number = file["numbers"]["gemm_fraction"];
  number["low"] = number.at("value").get<double>() * 0.9;
  number["high"] = number.at("value").get<double>() * 1.1;
  const auto widened_with = [&](double median) {
    const Json after{{"figures", 28}, {"median_abs_error", median}};
    file["capture"]["errors"]["TTFT"]["held_out"]["after"] = after;
    std::ofstream(folder.path() / "hardware.json") << file.dump();
    Experiment experiment = Experiment::from_text("workload.limit = 40\nengine = \"none\"\n", "test");
    for (const std::string& one :
         {std::string("model.name=qwen3-8b"), "hardware.file=" + (folder.path() / "hardware.json").string(),
          std::string("workload.generate.kind=groups"), std::string("sim.world=events")}) {
      experiment.set(one);
    }
    return Json::parse(simulate(experiment, {}).report).at("intervals_of").at("widened").dump();
  };
  EXPECT_EQ(widened_with(0.1).find("held-out"), std::string::npos) << widened_with(0.1);
  EXPECT_NE(widened_with(0.7).find("off by more than 70 % (TTFT)"), std::string::npos) << widened_with(0.7);
}

TEST(Errors, EveryTimeOfASimulationHasItsInterval) {
  const Json report = report_of(nullptr);
  for (const char* times : {"ttft", "tpot", "e2e"}) {
    for (const char* which : {"mean", "p50", "p90", "p95", "p99"}) {
      const Json& interval = report.at("intervals").at(std::string(times) + "_" + which + "_s");
      EXPECT_LT(interval.at(0).get<double>(), interval.at(1).get<double>());
    }
  }
  const Json& found = report.at("intervals_of").at("features");
  EXPECT_EQ(found.at("times"), "table");
  EXPECT_EQ(found.at("engine"), "vllm");
  EXPECT_EQ(found.at("gpu"), "h100-sxm");
  EXPECT_FALSE(found.contains("experts"));
  EXPECT_TRUE(errors_of_report(report));
}

TEST(Errors, OfTheRooflineAreWiderThanOfATable) {
  const auto ratio = [](const Json& report) {
    const Json& interval = report.at("intervals").at("ttft_mean_s");
    return interval.at(1).get<double>() / interval.at(0).get<double>();
  };
  EXPECT_GT(ratio(report_of("hardware.operators=none")), ratio(report_of(nullptr)));
}

TEST(OwnRuns, AreReadFromAValidation) {
  const Folder folder;
  const auto write = [&](const std::string& text) { std::ofstream(folder.path() / "validate.json") << text; };
  EXPECT_THROW(read_own_runs(folder.path()), ModelError) << "there is no file";
  write("[]");
  EXPECT_THROW(read_own_runs(folder.path()), InputError);
  write(R"({"cells": []})");
  EXPECT_THROW(read_own_runs(folder.path()), InputError) << "no run";
  const Json cell{{"figures",
                   {{{"figure", "ttft_mean_s"}, {"measured", 0.6}, {"predicted", 0.3}},
                    {{"figure", "tpot_mean_s"}, {"measured", 0.03}, {"predicted", 0.02}}}},
                  {"intervals_of", {{"features", features().json()}}}};
  write(Json{{"cells", {cell}}}.dump());
  const std::vector<OwnRun> runs = read_own_runs(folder.path());
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_DOUBLE_EQ(runs.front().factors.ttft, 2);
  EXPECT_DOUBLE_EQ(runs.front().factors.tpot, 1.5);
}

}  // namespace
}  // namespace kvtwin::test

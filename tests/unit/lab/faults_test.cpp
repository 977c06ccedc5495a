// The key `faults`: its grammar, the earlier keys that add faults, and the faults that a world refuses.
#include <gtest/gtest.h>

#include "lab/error.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "tests/paths.hpp"
#include "tests/program.hpp"
#include "tests/with_settings.hpp"

namespace kvtwin::test {
namespace {

using Settings = std::vector<std::string>;

std::string faults_with(const Settings& settings, std::string_view file = "") {
  return with_settings(settings, file).text("faults");
}

std::string refusal_of(const Settings& settings, std::string_view file = "") {
  try {
    make_setup(with_settings(settings, file));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Faults, AreAListInAFileAndInASetting) {
  const std::string two = "engine(index=3, at=30s, detect=2s), node(index=1, from=10s, to=20.5s)";
  EXPECT_EQ(faults_with({}, "faults = [\"engine(index=3, at=30s, detect=2s)\", \"node(index=1,from=10,to=20500ms)\"]"),
            two);
  EXPECT_EQ(faults_with({"faults=engine(index=3, at=30s, detect=2s), node(index=1, from=10s, to=20500ms)"}), two);
  EXPECT_EQ(faults_with({"faults=[\"engine(index=3, at=30s, detect=2s)\", \"node(index=1, from=10s, to=20.5s)\"]"}),
            two);
  EXPECT_EQ(faults_with({"faults=none"}, "faults = [\"stall(share=0.5)\"]"), "");
  const Experiment again = Experiment::from_text(with_settings({"faults=" + two}).resolved(), "resolved.toml");
  EXPECT_EQ(again.text("faults"), two);
}

TEST(Faults, AreRefusedInOneSentence) {
  EXPECT_EQ(refusal_of({"faults=engin(index=1)"}).find("faults (--set): unknown fault \"engin\""), 0U);
  EXPECT_EQ(refusal_of({"faults=engine(at=1s)"}),
            "faults (--set): engine: give index, number of an engine that dies; prefill engines come first");
  EXPECT_EQ(refusal_of({"faults=node(index=1, from=9s, to=9s)"}),
            "faults (--set): node: to is 9s; it must be later than from, 9s");
  EXPECT_NE(refusal_of({"faults=engine(index=1"}).find("is no fault; write name(parameter=value, ...)"),
            std::string::npos);
  EXPECT_NE(
      refusal_of({"faults=drives(factor=0.5)"}).find("faults (--set): drives: factor is 0.5; it must be at least"),
      std::string::npos);
  EXPECT_NE(refusal_of({"faults=flip(place=disk)"}).find("one of device, host"), std::string::npos);
  EXPECT_NE(refusal_of({"faults=stall(share=0.5)"}).find("faults (--set): stall(share=0.5): there is no storage tier"),
            std::string::npos);
  EXPECT_NE(refusal_of({"faults=engine(index=1), engine(index=2)"}).find("there is one such fault in a run"),
            std::string::npos);
  EXPECT_NE(refusal_of({}, "faults = [1]").find("x.toml:1: faults: must be a list of strings"), std::string::npos);
  EXPECT_NE(refusal_of({"cluster.engines=2", "faults=engine(index=2)"}).find("engine(index=2): the engines are 0 to 1"),
            std::string::npos);
}

TEST(Faults, OfAnotherWorldAreRefusedByName) {
  const Experiment flipped = with_settings({"faults=flip(place=device)", "sim.world=events"});
  const kvtwin::Setup setup = make_setup(flipped);
  EXPECT_THROW(make_simulated_world(flipped, setup), InputError);
  for (const char* fault : {"engine(index=1)", "link(name=nic, share=0.5)", "stall(share=0.5)"}) {
    try {
      refuse_faults_of_simulations(with_settings({std::string("faults=") + fault}));
      FAIL() << fault;
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()).find(std::string("faults (--set): ") + fault + ": "), 0U) << error.what();
    }
  }
}

TEST(Faults, OfEarlierKeysAreInTheList) {
  EXPECT_EQ(faults_with({"cluster.dead_at_s=1.5", "cluster.dead_engine=2", "cluster.detect_s=0.2"}),
            "engine(index=2, at=1.5s, detect=0.2s)");
  EXPECT_EQ(faults_with({"cluster.dead_at_s=1.5"}), "");
  EXPECT_EQ(faults_with({"faults.node_down=1@60+30,0@0.5+1", "faults.slow_drives=10@1+2"}),
            "node(index=1, from=60s, to=90s), node(index=0, from=0.5s, to=1.5s), drives(factor=10, from=1s, to=3s)");
  EXPECT_EQ(faults_with({"faults.slow_link=nic:0.5@1+2,node1:0.25@3+4"}),
            "link(name=nic, share=0.5, from=1s, to=3s), link(name=node, index=1, share=0.25, from=3s, to=7s)");
  EXPECT_EQ(faults_with({"sim.straggler_factor=2"}), "rank(index=0, factor=2)");
  EXPECT_EQ(faults_with({"real.slow_rank=1", "real.slow_factor=2.5"}), "rank(index=1, factor=2.5)");
  EXPECT_EQ(faults_with({"sim.storage_stall_share=0.05"}), "stall(share=0.05, factor=20)");
  EXPECT_EQ(faults_with({"real.flip=host"}, "[real]\nflip = \"device\"\n"), "flip(place=host)");
  EXPECT_EQ(faults_with({"cluster.dead_engine=-1"}, "[cluster]\ndead_engine = 2\n"), "");
  EXPECT_EQ(with_settings({"real.flip=host"}).notes(),
            std::vector<std::string>{"real.flip = 'host': write faults = \"flip(place=host)\""});
}

TEST(Faults, OfEarlierKeysJoinTheListUnlessALaterListReplacesThem) {
  const char* const file = "faults = [\"stall(share=0.5)\"]\n[cluster]\ndead_engine = 2\n";
  EXPECT_EQ(faults_with({}, file), "stall(share=0.5), engine(index=2, at=0s, detect=1s)");
  EXPECT_EQ(faults_with({"faults=none"}, file), "");
  EXPECT_EQ(faults_with({"real.flip=host"}, file),
            "stall(share=0.5), engine(index=2, at=0s, detect=1s), flip(place=host)");
  EXPECT_NE(refusal_of({"sim.storage_stall_share=0.1"}, file).find("there is one such fault in a run"),
            std::string::npos);
}

TEST(Faults, VaryInASweep) {
  SweepPlan plan =
      SweepPlan::from_text("[sweep.vary]\nfaults = [\"none\", [\"stall(share=0.5)\", \"flip(place=host)\"]]", "x.toml");
  EXPECT_EQ(plan.experiment(with_settings({}), plan.cells()[0]).text("faults"), "");
  EXPECT_EQ(plan.experiment(with_settings({}), plan.cells()[1]).text("faults"), "stall(share=0.5), flip(place=host)");
}

}  // namespace
}  // namespace kvtwin::test

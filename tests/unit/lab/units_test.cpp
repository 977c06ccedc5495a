// Tests numbers with units: what they mean in each place, and the sentences for units of the wrong kind.
#include "lab/units.hpp"

#include <gtest/gtest.h>

#include <string>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/prices/price_list.hpp"
#include "lab/report/figures.hpp"
#include "lab/sweep/sweep_plan.hpp"

namespace kvtwin::test {
namespace {

double read(const char* name, const char* text) { return number_in(unit_named(name), text, name); }

template <class Do>
std::string refusal(Do what) {
  try {
    what();
  } catch (const InputError& error) {
    return error.what();
  }
  return "it was taken";
}

TEST(Units, ANumberWithAUnitIsInTheUnitOfItsPlace) {
  EXPECT_EQ(read("prompt_tokens", "60k"), 60'000);
  EXPECT_EQ(read("prompt_tokens", "4Ki"), 4096);
  EXPECT_EQ(read("prompt_tokens", "1.1k"), 1100);
  EXPECT_EQ(read("tokens", "1.5M"), 1'500'000);
  EXPECT_EQ(read("think_s", "500ms"), 0.5);
  EXPECT_EQ(read("think_s", "1h"), 3600);
  EXPECT_EQ(read("think_s", "2 min"), 120);
  EXPECT_EQ(read("think_s", "5m"), 300);
  EXPECT_EQ(read("sim.notice_us", "0.1ms"), 100);
  EXPECT_EQ(read("serving.token_ns", "2us"), 2000);
  EXPECT_EQ(read("tiers.host.gib", "64GiB"), 64);
  EXPECT_EQ(read("tiers.host.gib", "64Gi"), 64);
  EXPECT_EQ(read("tiers.host.gib", "1TiB"), 1024);
  EXPECT_NEAR(read("tiers.host.gib", "1TB"), 931.3226, 1e-4);
  EXPECT_EQ(read("model.kv_bytes_per_token", "72KiB"), 73'728);
  EXPECT_EQ(read("hardware.set.disk_read_gbps", "12GB/s"), 12);
  EXPECT_EQ(read("hardware.set.remote_gbps", "400Gb/s"), 50);
  EXPECT_EQ(read("hardware.set.remote_gbps", "400Gbit/s"), 50);
  EXPECT_EQ(read("good_share", "90%"), 0.9);
  EXPECT_EQ(read("hardware.spread_percent", "10%"), 10);
  EXPECT_EQ(read("power_kw", "700W"), 0.7);
  EXPECT_EQ(read("requests_per_second", "2k"), 2000);
  EXPECT_EQ(read("--think-s", "20s"), 20);
}

TEST(Units, ANumberWithoutAUnitStaysAndShortestTextsReadBack) {
  EXPECT_EQ(read("tiers.host.gib", "64"), 64);
  EXPECT_EQ(read("think_s", "1e-3"), 1e-3);
  EXPECT_EQ(plain_number(60'000), "60000");
  EXPECT_EQ(plain_number(0.5), "0.5");
}

TEST(Units, AUnitOfTheWrongKindIsRefusedInOneSentence) {
  EXPECT_EQ(refusal([] { read("tiers.host.gib", "20s"); }),
            "tiers.host.gib is 20s; s is the unit of a time, and it must be an amount of bytes in GiB, e.g. 64GiB or "
            "1.5TB");
  EXPECT_EQ(
      refusal([] { read("think_s", "64GiB"); }),
      "think_s is 64GiB; GiB is the unit of an amount of bytes, and it must be a time in seconds, e.g. 20s, 500ms or "
      "1h");
  EXPECT_EQ(refusal([] { read("prompt_tokens", "60K"); }),
            "prompt_tokens is 60K; K is 1,000 for some programs and 1,024 for others: write k (1,000) or Ki (1,024)");
  EXPECT_EQ(refusal([] { read("prompt_tokens", "60q"); }),
            "prompt_tokens is 60q; q is no unit that kvtwin knows, and it must be a count, e.g. 60000, 60k or 4Ki");
  EXPECT_EQ(refusal([] { read("prompt_tokens", "1e999k"); }),
            "prompt_tokens is 1e999k, which is too large; it must be a count, e.g. 60000, 60k or 4Ki");
  EXPECT_NE(refusal([] { read("think_s", "s"); }), "it was taken");
  EXPECT_NE(refusal([] { read("think_s", "-"); }), "it was taken");
}

TEST(Units, KeysTakeThemInFilesAndOnTheCommandLine) {
  Experiment e =
      Experiment::from_text("tiers.host.gib = \"1TB\"\nworkload.generate.prompt_tokens = \"60k\"\n", "x.toml");
  EXPECT_NEAR(e.number("tiers.host.gib"), 931.3226, 1e-4);
  EXPECT_EQ(e.integer("workload.generate.prompt_tokens"), 60'000);
  e.set("workload.generate.think_s=500ms");
  EXPECT_EQ(e.number("workload.generate.think_s"), 0.5);
  EXPECT_NE(e.resolved().find("workload.generate.think_s = 0.5  #"), std::string::npos) << "numbers stay numbers";
  EXPECT_TRUE(refusal([&] {
                e.set("workload.generate.prompt_tokens=0.5");
              }).starts_with("--set: workload.generate.prompt_tokens is 0.5; it must be an integer"));
  EXPECT_TRUE(
      refusal([&] {
        e.set("workload.generate.prompt_tokens=1.0005k");
      }).starts_with("--set: workload.generate.prompt_tokens is 1.0005k, which is 1000.5; it must be a whole number"));
  EXPECT_TRUE(
      refusal([&] { e.set("tiers.host.gib=20s"); }).starts_with("--set: tiers.host.gib is 20s; s is the unit of"));
  EXPECT_TRUE(refusal([&] { e.set("model.name=60k"); }) == "it was taken") << "a text stays a text";
  EXPECT_EQ(e.text("model.name"), "60k");
}

TEST(Units, ListsOfValuesBecomeNumbers) {
  SweepPlan plan = SweepPlan::from_text("[sweep.vary]\n\"tiers.host.gib\" = [\"64GiB\", \"1TiB\"]\n", "x.toml");
  plan.vary("workload.generate.think_s=500ms,1h");
  EXPECT_EQ(plan.axes[0].values[1], (SweepValue{"1024", 1024.0}));
  EXPECT_EQ(plan.axes[1].values[0], (SweepValue{"0.5", 0.5}));
  EXPECT_EQ(plan.axes[1].values[1], (SweepValue{"3600", 3600.0}));
  EXPECT_NE(refusal([&] { plan.vary("tiers.disk.gib+tiers.disk.tokens=1Ti"); }).find("are not in the same unit"),
            std::string::npos);
  EXPECT_NE(refusal([&] { plan.vary("tiers.disk.gib=20s"); }).find("s is the unit of a time"), std::string::npos);
}

TEST(Units, GoalsTakeThem) {
  EXPECT_EQ(Goal::from_text("ttft_p90_s=500ms").value, 0.5);
  EXPECT_EQ(Goal::from_text("good_share=90%").value, 0.9);
  EXPECT_EQ(Goal::from_text("price_per_month=20k").value, 20'000);
  EXPECT_EQ(Goal::from_text("written_disk_bytes=1.5TB").value, 1.5e12);
  EXPECT_NE(refusal([] { Goal::from_text("ttft_p90_s=2GiB"); }).find("GiB is the unit of an amount of bytes"),
            std::string::npos);
  EXPECT_NE(refusal([] { Goal::from_text("ttft_p90_s=0ms"); }).find("give a number above 0"), std::string::npos);
}

TEST(Units, PriceListsTakeThem) {
  const auto list = [](const std::string& figure, const std::string& value) {
    return PriceList::from_text("currency = \"USD\"\n" + figure + " = {value = \"" + value +
                                    "\", source = \"a test\", date = \"2026-11-28\"}\n",
                                "p.toml");
  };
  EXPECT_EQ(list("gpu.h100-sxm.price", "30k").get("gpu.h100-sxm.price").value, 30'000);
  EXPECT_EQ(list("gpu.h100-sxm.watts", "1.2kW").get("gpu.h100-sxm.watts").value, 1200);
  EXPECT_EQ(list("drive.tb", "3840GB").get("drive.tb").value, 3.84);
  EXPECT_NE(refusal([&] { list("drive.tb", "3s"); }).find("p.toml:2: drive.tb: value is 3s; s is the unit of a time"),
            std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test

// Keys of earlier versions for parameters of policies: they still work, and are a part of the policy's text.
#include <gtest/gtest.h>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/sweep/sweep_plan.hpp"
#include "tests/with_settings.hpp"

namespace kvtwin {
namespace {

using Settings = std::vector<std::string>;

std::string refusal_of(const Settings& settings, std::string_view file = "") {
  try {
    test::with_settings(settings, file);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(EarlierKeys, AreInNoList) {
  for (const EarlierKey& earlier : earlier_keys()) {
    EXPECT_EQ(std::ranges::find(experiment_keys(), earlier.key.name, &ExperimentKey::name), experiment_keys().end());
    EXPECT_EQ(test::with_settings({}).resolved().find(earlier.key.name), std::string::npos);
    for (const std::string_view key : earlier.of) {
      const auto at = std::ranges::find(experiment_keys(), key, &ExperimentKey::name);
      if (earlier.policies.empty()) {
        ASSERT_NE(find_key_of_experiment(key), nullptr) << earlier.key.name;
        EXPECT_EQ(find_key_of_experiment(key)->fallback, earlier.key.fallback) << earlier.key.name;
        continue;
      }
      ASSERT_TRUE(at != experiment_keys().end() && (at->policy || key == kFaultsKey));
      for (const std::string_view name : earlier.policies) {
        const PolicyFacts facts = at->policy ? facts_of_policy(*at->policy, name) : facts_of_fault(name);
        EXPECT_TRUE(earlier.parameter.empty() || facts.find(earlier.parameter) != nullptr) << earlier.key.name;
      }
    }
  }
}

TEST(EarlierKeys, GiveParametersInAnyOrder) {
  for (const Settings& settings : {Settings{"cache.slru_protected_touches=3", "cache.eviction=slru"},
                                   Settings{"cache.eviction=slru", "cache.slru_protected_touches=3"}}) {
    EXPECT_EQ(test::with_settings(settings).text("cache.eviction"), "slru(protected=3)");
  }
  EXPECT_EQ(test::with_settings({"cache.eviction=tlru", "cache.tlru_next_prompt_tokens=100"},
                                "[cache]\ntlru_threshold_tokens = \"4Ki\"\n")
                .text("cache.eviction"),
            "tlru(threshold=4096, next_prompt=100)");
  EXPECT_EQ(test::with_settings({"cache.prefetch_timeout_base_s=250ms", "cache.prefetch_timeout_most_s=1e-3"})
                .text("cache.prefetch_policy"),
            "timeout(base=0.25s, most=0.001s)");
  const Experiment routed =
      test::with_settings({"cluster.route=score", "cluster.route_queue_weight=0.1", "cluster.decode_route=score",
                           "cluster.route_prefix_from=prompts", "parallel.attention_route=session_affinity",
                           "cluster.route_uneven_factor=2"});
  EXPECT_EQ(routed.text("cluster.route"), "score(queue=0.1, prefix_from=prompts)");
  EXPECT_EQ(routed.text("cluster.decode_route"), "score(queue=0.1, prefix_from=prompts)");
  EXPECT_EQ(routed.text("parallel.attention_route"), "session_affinity(uneven_factor=2)");
}

TEST(EarlierKeys, AreAPartOfTheResolvedForm) {
  const Experiment given = test::with_settings({"cache.eviction=slru", "cache.slru_protected_touches=3"});
  const std::string resolved = given.resolved();
  EXPECT_NE(resolved.find("cache.eviction = 'slru(protected=3)'"), std::string::npos) << resolved;
  const Experiment again = Experiment::from_text(resolved, "resolved.toml");
  EXPECT_EQ(again.text("cache.eviction"), "slru(protected=3)");
  EXPECT_EQ(again.notes(), std::vector<std::string>{});
  EXPECT_EQ(again.resolved().find("tlru"), std::string::npos);
}

TEST(EarlierKeys, ANoteNamesTheNewForm) {
  const Experiment given = test::with_settings({"cache.eviction=slru", "cache.slru_protected_touches=3"});
  EXPECT_EQ(given.notes(),
            std::vector<std::string>{"cache.slru_protected_touches = 3: write cache.eviction = \"slru(protected=3)\""});
}

TEST(EarlierKeys, OfARecordedExperimentGiveNoNote) {
  const std::string recorded =
      "# Every key, its value and where it came from.\n"
      "cache.eviction = 'slru'  # --set\ncache.slru_protected_touches = 4  # --set\n"
      "cache.prefetch_policy = 'timeout'  # default\ncache.prefetch_timeout_base_s = 1.0  # default\n"
      "cluster.route_queue_weight = 2.0  # default\n";
  Experiment experiment = Experiment::from_text(recorded, "resolved.toml");
  EXPECT_EQ(experiment.notes(), std::vector<std::string>{});
  EXPECT_EQ(experiment.text("cache.eviction"), "slru(protected=4)");
  EXPECT_EQ(experiment.text("cache.prefetch_policy"), "timeout");
  experiment.set("cache.eviction=slru(protected=5)");  // later, so it counts
  EXPECT_EQ(experiment.text("cache.eviction"), "slru(protected=5)");
}

TEST(EarlierKeys, OneFileOrOneCommandGivesOneValue) {
  const char* const file = "[cache]\neviction = \"slru(protected=2)\"\nslru_protected_touches = 3\n";
  EXPECT_EQ(refusal_of({}, file),
            "x.toml:3: cache.slru_protected_touches is 3, and cache.eviction = \"slru(protected=2)\" gives protected "
            "too (x.toml:2); give one of them");
  EXPECT_NE(refusal_of({"cache.slru_protected_touches=3", "cache.eviction=slru(protected=2)"}), "");
  EXPECT_EQ(refusal_of({"cache.slru_protected_touches=3", "cache.eviction=slru(protected=3)"}), "");
  // A setting replaces what the file gives.
  EXPECT_EQ(test::with_settings({"cache.eviction=slru(protected=5)"}, "[cache]\nslru_protected_touches = 3\n")
                .text("cache.eviction"),
            "slru(protected=5)");
  EXPECT_EQ(test::with_settings({"cache.slru_protected_touches=5"}, "[cache]\neviction = \"slru(protected=3)\"\n")
                .text("cache.eviction"),
            "slru(protected=5)");
}

TEST(EarlierKeys, AreCheckedByTheirOwnName) {
  EXPECT_NE(
      refusal_of({"cache.slru_protected_touches=0"}).find("cache.slru_protected_touches is 0; it must be at least 1"),
      std::string::npos);
  EXPECT_NE(refusal_of({"cluster.route_prefix_from=x"}).find("cluster.route_prefix_from"), std::string::npos);
}

TEST(EarlierKeys, AreIdleUnlessThePolicyIsChosen) {
  const std::vector<IdleKey> idle = idle_keys(test::with_settings({"cache.slru_protected_touches=3"}));
  ASSERT_EQ(idle.size(), 1U);
  EXPECT_EQ(idle[0].sentence,
            "cache.slru_protected_touches (--set): has no effect: it is read for cache.eviction = slru only; set that, "
            "or leave this out");
  EXPECT_TRUE(idle_keys(test::with_settings({"cache.slru_protected_touches=3", "cache.eviction=slru"})).empty());
}

TEST(EarlierKeys, WithAnotherNameNowSetIt) {
  const Experiment given = test::with_settings({"hardware.disk_drives=8", "hardware.remote_object_us=3us"});
  EXPECT_EQ(given.integer("hardware.set.drive_count"), 8);
  EXPECT_EQ(given.number("hardware.set.nic_object"), 3);
  EXPECT_EQ(given.text("hardware.set"), "drive_count=8, nic_object=3.0");
  EXPECT_EQ(given.notes(),
            (std::vector<std::string>{"hardware.disk_drives = 8: write hardware.set.drive_count = 8",
                                      "hardware.remote_object_us = 3.0: write hardware.set.nic_object = 3.0"}));
  EXPECT_EQ(given.where("hardware.set.drive_count"), "hardware.disk_drives (--set)");  // as it was given
  EXPECT_EQ(
      test::with_settings({"hardware.disk_drives=8", "hardware.set.drive_count=2"}).integer("hardware.set.drive_count"),
      2);
  EXPECT_EQ(test::with_settings({"hardware.set.drive_count=2", "hardware.disk_drives=0"}).text("hardware.set"), "");
  EXPECT_EQ(refusal_of({}, "[hardware]\ndisk_drives = 8\nset.drive_count = 2\n"),
            "x.toml:3: hardware.set.drive_count is 2, and hardware.disk_drives (x.toml:2) gives the same figure; give "
            "one of them");
}

TEST(HardwareSet, TakesAnyFigureOfAHardwareFile) {
  const Experiment given = test::with_settings({"hardware.set.nic_bandwidth=400Gb/s", "hardware.set.copy_call=2500ns"},
                                               "[hardware.set]\ndrive_count = 8\ndrive_read_bandwidth = \"14GB/s\"\n");
  EXPECT_EQ(given.text("hardware.set"), "copy_call=2.5, drive_count=8, drive_read_bandwidth=14.0, nic_bandwidth=50.0");
  const kvtwin::Setup setup = make_setup(given);
  EXPECT_EQ(setup.hardware.drive_count, 8);
  EXPECT_EQ(setup.hardware.drive_read_bandwidth, 14e9);
  EXPECT_DOUBLE_EQ(setup.hardware.copy_call, 2.5e-6);
  EXPECT_EQ(setup.hardware.nic_bandwidth, 50e9);
  const Experiment again = Experiment::from_text(given.resolved(), "resolved.toml");
  EXPECT_EQ(again.text("hardware.set"), given.text("hardware.set"));
  EXPECT_EQ(again.number("hardware.set.copy_call"), 2.5);
  EXPECT_EQ(test::with_settings({"hardware.set.rails=2", "hardware.set=drive_count=8"}).text("hardware.set"),
            "drive_count=8");
  for (const KeyTable& table : key_tables()) {
    for (const ExperimentKey& key : table.keys) EXPECT_EQ(given.resolved().find(key.name), std::string::npos);
  }
}

TEST(HardwareSet, IsRefusedByTheNameThatWasGiven) {
  EXPECT_NE(refusal_of({"hardware.set.nic_bandwith=1"}).find("did you mean \"hardware.set.nic_bandwidth\"?"),
            std::string::npos);
  EXPECT_EQ(refusal_of({"hardware.set.drive_count=100"}),
            "--set: hardware.set.drive_count is 100; it must be at least 0 and at most 64 (0 = the hardware's figure)");
  EXPECT_EQ(refusal_of({"hardware.disk_drives=100"}).find("--set: hardware.disk_drives is 100"), 0U);
  EXPECT_NE(refusal_of({"hardware.set=drives"}).find("\"drives\" is no figure; write name=value"), std::string::npos);
}

TEST(CacheRules, OverrideTheRulesOfTheEngine) {
  const Experiment plain = test::with_settings({"engine=sglang"});
  EXPECT_TRUE(plain.flag("cache.rules.split_refreshes"));
  EXPECT_NE(plain.text("cache.rules").find("split_refreshes=true"), std::string::npos);
  EXPECT_EQ(plain.origin("cache.rules"), "engine = sglang");
  const Experiment given = test::with_settings(
      {"engine=sglang", "cache.rules.split_refreshes=false", "cache.rules.count_touches=admission"});
  EXPECT_FALSE(given.flag("cache.rules.split_refreshes"));
  EXPECT_TRUE(given.flag("cache.rules.look_ups_refresh"));  // as the engine has it
  EXPECT_EQ(given.origin("cache.rules"), "--set");
  const kvtwin::Setup setup = make_setup(given);
  EXPECT_FALSE(setup.engine.split_refreshes);
  EXPECT_TRUE(setup.engine.look_ups_refresh);
  const Experiment again = Experiment::from_text(given.resolved(), "resolved.toml");
  EXPECT_EQ(again.text("cache.rules"), given.text("cache.rules"));
  EXPECT_FALSE(again.flag("cache.rules.split_refreshes"));
  const Experiment table = test::with_settings({}, "engine = \"sglang\"\n[cache.rules]\nprefetch_host_share = 0.25\n");
  EXPECT_EQ(table.number("cache.rules.prefetch_host_share"), 0.25);
  EXPECT_NE(refusal_of({"cache.rules.split_refresh=true"}).find("did you mean \"cache.rules.split_refreshes\"?"),
            std::string::npos);
  EXPECT_NE(refusal_of({"cache.rules=all"}).find("\"all\" is no rule; write name=value"), std::string::npos);
}

TEST(CacheRules, TakeThePlaceOfTwelveKeys) {
  const Experiment given =
      test::with_settings({"engine=sglang", "cache.split_refreshes=true", "cache.reclaim_order=shadowed"});
  EXPECT_EQ(given.notes(), (std::vector<std::string>{
                               "cache.split_refreshes = true: write cache.rules.split_refreshes = true",
                               "cache.reclaim_order = 'shadowed': write cache.rules.reclaim_order = 'shadowed'"}));
  EXPECT_EQ(given.where("cache.rules.split_refreshes"), "cache.split_refreshes (--set)");
  EXPECT_EQ(refusal_of({}, "[cache]\nsplit_refreshes = true\nrules.split_refreshes = false\n"),
            "x.toml:3: cache.rules.split_refreshes is false, and cache.split_refreshes (x.toml:2) gives the same rule; "
            "give one of them");
}

TEST(EarlierKeys, WorkForTheDecodeEngines) {
  Experiment experiment = test::with_settings({"cluster.prefill=1", "cluster.decode=1"});
  for (const char* set : {"cache.eviction=slru(protected=3),parallel.tp=2",
                          "cache.eviction=slru, parallel.tp=2, cache.slru_protected_touches=3"}) {
    experiment.set(std::string("cluster.decode_set=") + set);
    EXPECT_EQ(make_setup(experiment).decode->engine.eviction, "slru(protected=3)") << set;
  }
}

TEST(PolicyParameters, AreRefusedWithTheirKey) {
  EXPECT_EQ(refusal_of({"cache.eviction=slru(protected=0)"}),
            "cache.eviction (--set): slru: protected is 0; it must be at least 1 and at most 1000000000 (touches from "
            "which a page is protected; the insertion counts as a touch)");
  EXPECT_EQ(refusal_of({"cache.prefetch_policy=timeout(bas=1s)"}),
            "cache.prefetch_policy (--set): timeout: unknown parameter \"bas\": did you mean \"base\"? Known: base, "
            "per_ki_token, most.");
  EXPECT_EQ(refusal_of({"cluster.route=round_robin(queue=1)"}),
            "cluster.route (--set): round_robin: has no parameters; leave out queue");
  EXPECT_EQ(refusal_of({"scheduler.order=fcfs("}),
            "scheduler.order (--set) is \"fcfs(\"; write fcfs(parameter=value, ...)");
  EXPECT_NE(refusal_of({"cluster.route=scor(queue=1)"}).find("did you mean \"score\""), std::string::npos);
}

TEST(PolicyParameters, ACommaInBracketsDoesNotSeparateTheValuesOfAList) {
  SweepPlan plan = SweepPlan::from_text("", "x.toml");
  plan.vary("cluster.route=round_robin,score(queue=2, prefix=3),score");
  ASSERT_EQ(plan.axes.size(), 1U);
  ASSERT_EQ(plan.axes[0].values.size(), 3U);
  EXPECT_EQ(plan.axes[0].values[1].text, "score(queue=2, prefix=3)");
  EXPECT_EQ(plan.experiment(test::with_settings({}), plan.cells()[1]).text("cluster.route"), "score");  // the defaults
}

}  // namespace
}  // namespace kvtwin

// Keys of an experiment that have no effect are reported, according to a table of conditions. Simulations check this
// table.
#include "lab/experiment/idle_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

constexpr const char* kTrace = "workload.trace=traces/chat_small.jsonl.zst";

std::vector<std::string> idle_of(const Experiment& experiment) {
  std::vector<std::string> keys;
  for (const IdleKey& key : idle_keys(experiment)) keys.emplace_back(key.key);
  return keys;
}

std::vector<std::string> idle_of(const Settings& settings, const std::string& file = "") {
  Experiment experiment = Experiment::from_text(file, "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return idle_of(experiment);
}

std::string key_of(const std::string& setting) { return setting.substr(0, setting.find('=')); }

// A setting, other settings with which it has no effect, and settings with which it has one.
struct Case {
  std::string setting;
  Settings idle, effective;
};

std::vector<Case> cases() {
  const Settings host{"tiers.host.tokens=64000"}, disk = host + Settings{"tiers.disk.tokens=640000"},
                                                  shared_fs = host + Settings{"tiers.shared_fs.tokens=640000"},
                                                  remote = host + Settings{"tiers.remote.tokens=640000"};
  std::vector<Case> list = {
      {"hardware.set.disk_read_gbps=1", host, disk},
      {"hardware.set.disk_write_gbps=1", remote, disk},
      {"tiers.disk.path=x", host, disk},
      {"tiers.disk.format=hicache_files", host, disk},
      {"real.cufile=off", host, disk},
      {"hardware.set.shared_fs_read_bandwidth=1", disk, shared_fs},
      {"hardware.set.shared_fs_write_bandwidth=1", remote, shared_fs},
      {"hardware.set.shared_fs_latency=1", host, shared_fs},
      {"hardware.set.shared_fs_file=1", host, shared_fs},
      {"tiers.shared_fs.path=x", disk, shared_fs},
      {"hardware.set.remote_gbps=1", disk, remote},
      {"hardware.set.pool_bandwidth=1", disk, remote},
      {"hardware.set.drive_count=2", remote, disk},
      {"hardware.set.nic_count=2", disk, remote},
      {"hardware.set.nic_object=1", host, remote},
      {"tiers.remote.url=redis://h:1", host, remote},
      {"tiers.remote.tls_ca=x", host, remote},
      {"tiers.remote.timeout_s=2", host, remote},
      {"tiers.remote.store=redis", host, remote},
      {"tiers.remote.store_file=x", disk, remote},
      {"hardware.set.pool_nodes=2", disk, remote},
      {"hardware.set.pool_node_gbps=1", disk, remote},
      {"hardware.set.pool_node_gbps=2", remote + Settings{"hardware.set.pool_peers=true", "cluster.engines=2"}, remote},
      {"hardware.set.pool_peers=true", disk, remote},
      {"hardware.set.rails=2", disk, remote},
      {"hardware.set.switch_oversubscription=2", host, remote},
      {"hardware.set.network_share=0.5", host, remote},
      {"hardware.set.host_link_gbps=9", {}, host},
      {"workload.format=qwen", {}, {kTrace}},
      {"workload.block_tokens=512", {}, {kTrace}},
      {"workload.shared_tokens=9", {kTrace, "workload.format=qwen"}, {kTrace, "workload.format=azure"}},
      {"workload.session_gap_s=9", {kTrace, "workload.format=qwen"}, {kTrace, "workload.format=agentic"}},
      {"workload.service_s=9", {}, {"workload.loop=closed"}},
      {"cluster.route=prefix_affinity", {}, {"cluster.engines=2"}},
      {"cluster.route_uneven_requests=9",
       {"cluster.engines=2", "cluster.route=score"},
       {"cluster.engines=2", "cluster.route=session_affinity"}},
      {"cluster.route_view_delay_s=1", {"cluster.engines=2"}, {"cluster.engines=2", "cluster.route=least_loaded"}},
      {"cluster.route_prefix_from=prompts", {"cluster.engines=2"}, {"cluster.engines=2", "cluster.route=score"}},
      {"cluster.route_storage_share=0.5",
       {"cluster.engines=2", "cluster.route=score"},
       remote + Settings{"cluster.engines=2", "cluster.route=score"}},
      {"cache.layout=layer_first", {}, host},
      {"cache.write_policy=write_back", {}, host},
      {"cache.tiering=exclusive", {}, host + Settings{"cache.write_policy=write_back"}},
      {"cache.host_mode=buffer", {}, host + disk},
      {"cache.rules.reclaim_shadowed=true", {}, host},
      {"tiers.host.memory_gib=100", {}, host},
      {"tiers.host.memory_share=0.5", host, Settings{"tiers.host.ratio=2"}},
      {"cache.rules.reclaim_order=shadowed", host, host + Settings{"cache.rules.reclaim_shadowed=true"}},
      {"cache.rules.host_evicts_leaving=true", host, host + Settings{"cache.write_policy=write_back"}},
      {"cache.rules.count_touches=insert", {}, {"cache.eviction=slru"}},
      {"cache.backup_retries=2", {}, host},
      {"cache.clean_reserve=0.2", host, host + Settings{"cache.write_policy=write_back"}},
      {"cache.write_threshold=3", host + Settings{"cache.write_policy=write_back"}, host},
      {"cache.io=direct", {}, host},
      {"cache.load_back_admission=cost", {}, host},
      {"cache.load_back_min_tokens=9", {}, host},
      {"cache.load_back_quota_tokens=9", {}, host},
      {"model.revision=x", host, disk},
      {"cache.prefetch_policy=best_effort", host, remote},
      {"cache.prefetch_admission=cost", host, disk},
      {"cache.prefetch_min_tokens=9", host, disk},
      {"cache.prefetch_retry_steps=9", host, disk},
      {"cache.prefetch_timeout_base_s=9", disk + Settings{"cache.prefetch_policy=best_effort"}, disk},
      {"cache.prefetch_timeout_per_ki_token_s=9", host, disk},
      {"cache.prefetch_timeout_most_s=9", host, disk},
      {"cache.rules.prefetch_timeout_from=issue", host, disk},
      {"cache.rules.prefetch_host_share=0.9", disk + Settings{"cache.path=direct"}, disk},
      {"cache.rules.prefetch_share_of=host_less_device", host, disk},
      {"cache.rules.prefetch_style=sglang", host, disk},
      {"cache.rules.private_loads=true", disk, {"tiers.disk.tokens=640000"}},
      {"parallel.attention_route=least_loaded", {}, {"parallel.tp=2", "parallel.attention_dp=2"}},
      {"scheduler.burst_steps=9", {"parallel.tp=2", "parallel.attention_dp=2"}, {}},
      {"cache.rules.prefetch_recheck=false", host, disk},
      {"cache.prefetch_attempts=9",
       disk + Settings{"cache.prefetch_retry_steps=0", "cache.rules.prefetch_recheck=false"},
       disk + Settings{"cache.prefetch_retry_steps=0"}},
      {"cache.storage_batch_pages=9", host, disk},
      {"cache.storage_write_share=0.25", host, disk + Settings{"cache.storage_backlog=drop"}},
      {"cache.storage_backlog=wait", host, disk},
      {"cache.storage_write_share=0.25", disk + Settings{"cache.storage_backlog=wait"},
       disk + Settings{"cache.storage_backlog=block"}},
      {"cache.storage_write_share=0.25", disk + Settings{"cache.host_mode=buffer"},
       disk + Settings{"cache.host_mode=buffer", "cache.storage_backlog=block"}},
      {"cache.storage_backlog=throttle", disk + Settings{"cache.host_mode=buffer"}, disk},
      {"cache.storage_backlog=wait", disk + Settings{"cache.host_mode=buffer"},
       disk + Settings{"cache.host_mode=until_stored"}},
      {"cache.host_clean_reserve=0.2", host, disk},
      {"cache.slru_protected_touches=9", {}, {"cache.eviction=slru"}},
      {"cache.tlru_threshold_tokens=9", {}, {"cache.eviction=tlru"}},
      {"cache.tlru_next_prompt_tokens=9", {}, {"cache.eviction=tlru"}},
      {"cache.storage_retries=9", host, disk},
      {"cache.namespace=x", host, disk},
      {"cache.path=auto", host, disk},
      {"cache.split_kv=true", disk + Settings{"cache.layout=layer_first"}, disk},
      {"scheduler.overtake_limit=9", {}, {"scheduler.order=longest_prefix"}},
      {"sim.storage_stall_factor=9", {}, disk + Settings{"sim.storage_stall_share=0.5"}},
      {"sim.reduce_us=9", {}, {"parallel.rank_model=instances"}},
      {"sim.straggler_rank=1", {}, {"sim.straggler_factor=2"}},
      {"real.slow_rank=1", {}, {"real.slow_factor=2"}},
      {"workload.generate.requests=9", {kTrace}, {"workload.generate.kind=groups"}},
      {"workload.generate.duration_s=9", {"workload.generate.requests=9"}, {}},
      {"workload.generate.sessions_per_second=9", {"workload.generate.kind=tools"}, {}},
      {"workload.generate.requests_per_second=9", {}, {"workload.generate.kind=groups"}},
      {"workload.generate.requests_per_second=9",
       {"workload.generate.kind=groups", "workload.generate.concurrency=3"},
       {"workload.generate.kind=tools"}},
      {"workload.generate.prompt_tokens=4000", {}, {"workload.generate.kind=returning"}},
      {"workload.generate.prompt_tokens=8192", {}, {"workload.generate.kind=returning"}},
      {"workload.generate.question_tokens=9", {}, {"workload.generate.kind=groups"}},
      {"workload.generate.output_tokens=300", {}, {"workload.generate.kind=returning"}},
      {"workload.generate.working_set_tokens=9", {}, {"workload.generate.kind=returning"}},
      {"workload.generate.visits=9", {}, {"workload.generate.kind=returning"}},
      {"workload.generate.prompt_tokens_per_second=9", {}, {"workload.generate.kind=returning"}},
      {"workload.generate.at_once=9", {}, {"workload.generate.kind=returning"}},
      {"workload.generate.groups=9", {}, {"workload.generate.kind=groups"}},
      {"workload.generate.prompts_per_group=9", {}, {"workload.generate.kind=groups"}},
      {"workload.generate.prefix_tokens=9", {}, {"workload.generate.kind=groups"}},
      {"workload.generate.concurrency=9", {}, {"workload.generate.kind=groups"}},
      {"workload.generate.range_ratio=0.5", {"workload.generate.kind=returning"}, {"workload.generate.kind=groups"}},
      {"workload.generate.stages=4,8", {"workload.generate.kind=returning"}, {"workload.generate.kind=groups"}},
      {"workload.generate.requests_per_second=9",
       {"workload.generate.kind=groups", "workload.generate.stages=4,8"},
       {"workload.generate.kind=tools", "workload.generate.stages=4,8"}},
      {"workload.generate.start_spread_s=9",
       {"workload.generate.kind=groups"},
       {"workload.generate.kind=groups", "workload.generate.concurrency=3"}},
      {"workload.generate.think_s=9",
       {"workload.generate.kind=groups", "workload.generate.stages=4,8"},
       {"workload.generate.kind=groups", "workload.generate.stages=4,8", "workload.loop=closed"}},
      {"workload.generate.kind=tools", {kTrace}, {}},
      {"workload.generate.turns=4", {}, {"workload.generate.kind=sessions"}},
      {"workload.generate.users=4", {}, {"workload.generate.kind=sessions"}},
      {"workload.generate.new_tokens=4", {}, {"workload.generate.kind=sessions"}},
      {"workload.generate.context_max_tokens=4000", {}, {"workload.generate.kind=sessions"}},
      {"workload.generate.turns_least=2", {}, {"workload.generate.kind=sessions"}},
      {"workload.generate.turns_most=4", {}, {"workload.generate.kind=sessions"}},
      {"workload.generate.length_spread=2", {"workload.generate.kind=groups"}, {"workload.generate.kind=sessions"}},
      {"workload.generate.question_tokens=9",
       {"workload.generate.kind=sessions"},
       {"workload.generate.kind=returning"}},
      {"workload.generate.requests_per_second=9", {}, {"workload.generate.kind=sessions"}},
      {"workload.generate.think_s=9",
       {"workload.generate.kind=sessions"},
       {"workload.generate.kind=sessions", "workload.generate.turns=4"}},
      {"workload.generate.think_spread=2",
       {"workload.generate.kind=sessions", "workload.generate.turns=4"},
       {"workload.generate.kind=sessions", "workload.generate.turns=4", "workload.generate.think_s=9"}},
      {"workload.service_s=8",
       {"workload.generate.kind=sessions"},
       {"workload.generate.kind=sessions", "workload.generate.turns=4"}},
  };
  for (const char* setting :
       {"model.draft.config=tiny", "model.draft.accept_length=2", "model.draft.accept_length_without_kv=2",
        "model.draft.restore=false", "model.draft.tokens=3"}) {
    list.push_back({setting, {"model.draft.kind=none"}, {"model.draft.kind=packed"}});
  }
  return list;
}

TEST(IdleKeys, HangOnOtherKeys) {
  for (const Case& one : cases()) {
    const std::string key = key_of(one.setting);
    const auto idle = idle_of(one.idle + Settings{one.setting}),
               effective = idle_of(one.effective + Settings{one.setting});
    EXPECT_NE(std::ranges::find(idle, key), idle.end()) << one.setting;
    EXPECT_EQ(std::ranges::find(effective, key), effective.end()) << one.setting;
  }
}

TEST(IdleKeys, OfTheGeneratorAreAllIdleBesideATrace) {
  for (const ExperimentKey& key : experiment_keys()) {
    if (!key.name.starts_with("workload.generate.")) continue;
    const auto named = [&](const Case& one) { return key_of(one.setting) == key.name; };
    const std::vector<Case> all = cases();
    const auto one = std::ranges::find_if(all, named);
    ASSERT_NE(one, all.end()) << key.name << " has no case here";
    EXPECT_EQ(idle_of({kTrace, one->setting}), std::vector{std::string(key.name)});
  }
}

TEST(IdleKeys, AreThoseThatAUserGave) {
  EXPECT_EQ(idle_of(Settings{}), Settings{});
  EXPECT_EQ(idle_of({"hardware.set.disk_read_gbps=0", "tiers.disk.path=", "cache.split_kv=false"}), Settings{})
      << "says nothing";
  EXPECT_EQ(idle_of({}, "[workload.generate]\nprompt_tokens = 8192\n"), Settings{"workload.generate.prompt_tokens"})
      << "the default, but the prompts will be of other lengths";
  Experiment experiment = Experiment::from_text("", "x.toml");
  experiment.set("workload.generate.prompt_tokens=4000");
  experiment.set("cache.prefetch_policy=best_effort", "SGLang's default of --hicache-storage-prefetch-policy");
  ASSERT_EQ(idle_of(experiment), Settings{"workload.generate.prompt_tokens"});
  EXPECT_EQ(idle_keys(experiment)[0].sentence,
            "workload.generate.prompt_tokens (--set): has no effect: workload.generate.kind is chat, which draws "
            "lengths of its own; set that to returning or sessions, or leave this out");
  // The resolved form lists all keys, but only the same keys are reported for it.
  EXPECT_EQ(idle_of(Experiment::from_text(experiment.resolved(), "resolved.toml")),
            (Settings{"workload.generate.prompt_tokens", "cache.prefetch_policy"}));
  EXPECT_EQ(idle_of(Experiment::from_text(Experiment::from_text("", "x.toml").resolved(), "resolved.toml")),
            Settings{});
}

TEST(IdleKeys, ShippedExperimentsHaveNone) {
  const fs::path folder = fs::path(kSourceFolder) / "experiments";
  for (const char* name : {"quickstart.toml", "chat_hour.toml"}) {
    EXPECT_EQ(idle_of(Experiment::from_file(folder / name)), Settings{}) << name;
  }
}

// Simulations check the table: a key that it calls idle must change no decision and no time.
TEST(IdleKeys, ChangeNothing) {
  const Folder folder;
  write_text(folder / "x.toml", kReturning);
  const auto figures = [&](const Settings& settings) {
    Json report = without_costs(simulate_file(folder / "x.toml", settings).report);
    report.erase("notes");
    return report;
  };
  std::size_t tried = 0;
  for (const Case& one : cases()) {
    if (one.setting.starts_with("workload.") || one.setting.starts_with("model.draft.") ||
        one.setting.starts_with("tiers.remote.tls")) {
      continue;  // needs a different experiment
    }
    SCOPED_TRACE(one.setting);
    Settings base = {"tiers.host.tokens=0"};  // as in the file
    base = base + one.idle;
    // The base has no host tier, so its write policy is write_through, and exclusive tiering is refused.
    const bool refused = one.setting.starts_with("cache.tiering");
    if (refused || one.setting.starts_with("sim.straggler")) continue;
    EXPECT_EQ(figures(base + Settings{one.setting}), figures(base));
    ++tried;
  }
  EXPECT_GT(tried, 30U);
}

TEST(IdleKeys, StandInTheReportAndOnTheScreen) {
  const Folder folder;
  write_text(folder / "x.toml", "");
  const std::vector<std::string> words{
      "simulate",        folder / "x.toml", "--world",          kAnyWorld, "--set",
      "model.name=tiny", "--set",           "workload.limit=3", "--set",   "workload.generate.prompt_tokens=4000"};
  const std::string sentence = "workload.generate.prompt_tokens (--set): has no effect";
  const Outcome screen = run(words);
  EXPECT_NE(screen.out.find("note       " + sentence), std::string::npos) << screen.out;
  std::vector<std::string> json = words;
  json.emplace_back("--json");
  const Outcome machine = run(json);
  EXPECT_NE(machine.json().at("notes").dump().find(sentence), std::string::npos);
  EXPECT_NE(machine.err.find("kvtwin: note: " + sentence), std::string::npos) << machine.err;
}

TEST(IdleKeys, WithOneReasonShareASentence) {
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const char* setting : {"tiers.device.tokens=64000", "cache.layout=page_first", "cache.io=direct",
                              "cache.write_policy=write_back", "cluster.route=prefix_affinity"}) {
    experiment.set(setting);
  }
  const std::vector<std::string> sentences = idle_sentences(idle_keys(experiment));
  ASSERT_EQ(sentences.size(), 3U);
  EXPECT_TRUE(std::ranges::any_of(sentences, [](const std::string& sentence) {
    return sentence ==
           "cache.layout (--set), cache.write_policy (--set): have no effect: the device tier is the only "
           "one; give tiers.host, tiers.disk, tiers.shared_fs or tiers.remote, or leave these out";
  })) << sentences[0];
}

// A key may have no effect in one case of a sweep and an effect in another. A key is reported, once, only if no cell
// uses it.
TEST(IdleKeys, OfASweepAreThoseOfAllItsCells) {
  const Folder folder;
  write_text(folder / "x.toml", kReturning);
  const Outcome outcome =
      run({"compare", "--cells", folder / "x.toml", "--world", kAnyWorld, "--vary", "tiers.disk.tokens=0,8192", "--set",
           "cache.prefetch_policy=best_effort", "--vary", "cluster.route=round_robin,prefix_affinity"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("kvtwin: note: cluster.route (--vary): has no effect")) << outcome.err;
  EXPECT_NE(outcome.err.find("has no effect: there is one engine; set cluster.engines to more"), std::string::npos);
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
}

}  // namespace
}  // namespace kvtwin::test

// Storage tiers in an experiment: the configurations of the engine and of the world, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "models/presets.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

using Settings = std::vector<std::string>;

kvtwin::Setup setup_of(const Settings& settings) {
  Experiment experiment = Experiment::from_text("engine = \"none\"\n[tiers.host]\ntokens = 64000\n", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return make_setup(experiment);
}

Settings joined(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_refused(const Settings& settings, const Settings& parts) {
  try {
    setup_of(settings);
  } catch (const InputError& error) {
    const std::string sentence = error.what();
    for (const std::string& part : parts) EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
    return;
  }
  ADD_FAILURE() << "not refused: " << parts.front();
}

// On the slower of these GPUs, 4096 tokens take months: this time in picoseconds does not fit into 64 bits.
TEST(StorageSetup, PricesOfAnAbsurdlySlowMachineDoNotWrap) {
  const Folder folder;
  const auto token_ps = [&](double peak) {
    Json machine = Json::parse(hardware_preset_text("h100-sxm"));
    machine["numbers"]["peak_bf16"]["value"] = peak;
    const std::string file = folder / "slow.json";
    write_text(file, machine.dump());
    return setup_of({"model.name=tiny", "hardware.file=" + file, "hardware.spread_percent=1000",
                     "hardware.end=peak_bf16:low"})
        .engine.cost_token_ps;
  };
  const std::uint64_t slow = token_ps(1e-3), slower = token_ps(1e-6);
  EXPECT_GT(slower, 900 * slow);
  EXPECT_LT(slower, 1100 * slow);
}

TEST(StorageSetup, DrivesBehindAStoreHoldMorePages) {
  const Settings mooncake{"tiers.remote.gib=8", "tiers.remote.store=mooncake"};
  const kvtwin::Setup plain = setup_of(mooncake), more = setup_of(joined(mooncake, {"tiers.remote.drives_gib=24"}));
  EXPECT_EQ(more.world.storage[0].pages, plain.world.storage[0].pages);
  EXPECT_NEAR(static_cast<double>(more.world.storage[0].drive_pages),
              3.0 * static_cast<double>(plain.world.storage[0].pages), 3);
  EXPECT_EQ(more.engine.storage[0].pages, more.world.storage[0].pages + more.world.storage[0].drive_pages);
  EXPECT_EQ(more.world.store_drive_bytes_per_second, 6'800'000'000U);
  expect_refused(
      {"tiers.remote.gib=8", "tiers.remote.store=redis", "tiers.remote.drives_gib=24"},
      {"the store redis has no drives behind its memory", "set tiers.remote.store=mooncake", "drive_read_bandwidth"});
}

TEST(StorageSetup, AStoreGivesItsCostsItsLeaseAndItsEviction) {
  const kvtwin::Setup plain = setup_of({"tiers.remote.gib=8"});
  EXPECT_FALSE(plain.store);
  EXPECT_EQ(plain.world.storage[0].lease_ns, 0);
  const kvtwin::Setup mooncake = setup_of({"tiers.remote.gib=8", "tiers.remote.store=mooncake"});
  EXPECT_EQ(mooncake.world.storage[0].lease_ns, 5'000'000'000);
  EXPECT_TRUE(mooncake.world.storage[0].evicts_itself);
  EXPECT_NE(mooncake.cost->coefficients(), plain.cost->coefficients());
  const kvtwin::Setup s3 = setup_of({"tiers.remote.gib=8", "tiers.remote.store=s3"});
  EXPECT_FALSE(s3.world.storage[0].evicts_itself);
  EXPECT_GT(s3.engine.storage[0].read_token_ps, 20 * plain.engine.storage[0].read_token_ps);
  const Folder folder;
  write_text(folder / "mine.json", std::string(store_preset_text("redis")));
  const std::string file = "tiers.remote.store_file=" + (folder / "mine.json");
  EXPECT_EQ(setup_of({"tiers.remote.gib=8", file}).cost->coefficients(),
            setup_of({"tiers.remote.gib=8", "tiers.remote.store=redis"}).cost->coefficients());
  expect_refused({"tiers.remote.gib=8", "tiers.remote.store=rediss"},
                 {"tiers.remote.store (--set): ", "did you mean \"redis\""});
  expect_refused({"tiers.remote.gib=8", "tiers.remote.store_file=/nowhere.json"},
                 {"tiers.remote.store_file (--set): ", "/nowhere.json"});
}

TEST(StorageSetup, TheNetworkToThePoolFollowsItsKeys) {
  const Settings remote{"tiers.remote.gib=8"};
  const auto network = [&](const Settings& more) { return setup_of(joined(remote, more)).world.network; };
  const kvtwin::Setup plain = setup_of(remote);
  EXPECT_EQ(plain.world.network.nodes, 0U);
  EXPECT_EQ(plain.world.network.switch_bytes_per_second, 0U);
  EXPECT_EQ(plain.world.fabric_bytes_per_second, 190'000'000'000U);
  EXPECT_EQ(network({"hardware.set.pool_nodes=4"}).node_bytes_per_second, 47'500'000'000U);  // parts of 190 GB/s
  EXPECT_EQ(setup_of(joined(remote, {"hardware.set.pool_nodes=4"})).world.fabric_bytes_per_second, 0U);
  EXPECT_EQ(network({"hardware.set.pool_nodes=4", "hardware.set.pool_node_gbps=25"}).node_bytes_per_second,
            25'000'000'000U);
  EXPECT_EQ(network({"hardware.set.pool_nodes=4", "hardware.set.pool_node_gbps=25", "hardware.set.network_share=0.2"})
                .node_bytes_per_second,
            20'000'000'000U);
  EXPECT_EQ(network({"hardware.set.pool_nodes=4", "tiers.remote.store=redis"}).node_bytes_per_second, 2'140'000'000U);
  EXPECT_EQ(network({"cluster.engines=2", "hardware.set.switch_oversubscription=4"}).switch_bytes_per_second,
            2 * 186'400'000'000U / 4);
  const PoolNetwork peers = network({"cluster.engines=3", "hardware.set.pool_peers=true"});
  EXPECT_EQ(peers.nodes, 3U);
  EXPECT_EQ(peers.node_bytes_per_second, 186'400'000'000U);
  expect_refused(joined(remote, {"hardware.set.pool_peers=true"}),
                 {"hardware.set.pool_peers (--set)", "cluster.engines"});
  expect_refused(joined(remote, {"hardware.set.pool_peers=true", "cluster.engines=3", "hardware.set.pool_nodes=4"}),
                 {"hardware.set.pool_nodes (--set): is 4", "3 engines"});
  expect_refused(joined(remote, {"hardware.set.rails=5"}), {"hardware.set.rails (--set): is 5", "4 NICs"});
  // A bandwidth that is given counts, whatever the store has.
  EXPECT_EQ(setup_of(joined(remote, {"tiers.remote.store=redis", "hardware.set.pool_bandwidth=3"}))
                .world.fabric_bytes_per_second,
            3'000'000'000U);
  expect_refused(joined(remote, {"hardware.set.pool_node_gbps=25", "hardware.set.pool_bandwidth=3"}),
                 {"hardware.set.pool_node_gbps (--set)", "leave one out"});
  // Engines with roles share the network.
  const kvtwin::Setup roles =
      setup_of(joined(remote, {"cluster.prefill=1", "cluster.decode=2", "hardware.set.pool_peers=true"}));
  EXPECT_EQ(roles.world.network.nodes, 3U);
  EXPECT_EQ(roles.decode->world.network.nodes, 3U);
}

TEST(StorageSetup, PlannedFailuresAreReadOrRefusedInASentence) {
  const Settings remote{"tiers.remote.gib=8", "hardware.set.pool_nodes=2", "tiers.disk.tokens=64000"};
  const WorldConfig world = setup_of(joined(remote, {"faults.node_down=1@60+30,0@0.5+1", "faults.slow_drives=10@1+2",
                                                     "faults.slow_link=nic:0.5@1+2,node1:0.25@3+4"}))
                                .world;
  EXPECT_EQ(world.node_downs,
            (std::vector<NodeDown>{{1, {60'000'000'000, 90'000'000'000}}, {0, {500'000'000, 1'500'000'000}}}));
  EXPECT_EQ(world.slow_drives, (std::vector<SlowSpan>{{10, {1'000'000'000, 3'000'000'000}}}));
  ASSERT_EQ(world.slow_links.size(), 2U);
  EXPECT_EQ(world.slow_links[1].part, NetworkPart::node);
  EXPECT_EQ(world.slow_links[1].node, 1U);
  EXPECT_EQ(world.slow_links[1].share, 0.25);
  for (const char* wrong : {"1", "1@60", "@60+30", "x@60+30", "1@60+0", "1@-1+3", "2@60+30", "1@60+30,", "1@60+1e10",
                            "1@nan+3", "1 @60+30"}) {
    expect_refused(joined(remote, {std::string("faults.node_down=") + wrong}), {"faults"});
  }
  for (const char* wrong : {"0.5@1+2", "x@1+2", "10@1", "10"}) {
    expect_refused(joined(remote, {std::string("faults.slow_drives=") + wrong}), {"faults"});
  }
  for (const char* wrong :
       {"nic@1+2", "nic:0@1+2", "nic:2@1+2", "nick:0.5@1+2", "node2:0.5@1+2", "switches:0.5@1+2", "nic:0.5"}) {
    expect_refused(joined(remote, {std::string("faults.slow_link=") + wrong}), {"faults"});
  }
  for (const char* overlap : {"faults.node_down=1@5+10,0@5+10,1@6+20", "faults.slow_drives=2@1+3,3@2+1",
                              "faults.slow_link=pool:0.5@0+100,pool:0.5@5+100"}) {
    expect_refused(joined(remote, {overlap}), {"at the same time"});
  }
  EXPECT_EQ(setup_of(joined(remote, {"faults.slow_drives=2@1+3,3@4+1"})).world.slow_drives.size(), 2U);
  expect_refused({"tiers.remote.gib=8", "faults.node_down=0@1+1"}, {"hardware.set.pool_nodes"});
  expect_refused({"tiers.remote.gib=8", "faults.slow_drives=2@1+1"}, {"there is no disk tier"});
  expect_refused({"tiers.disk.tokens=64000", "faults.slow_link=nic:0.5@1+1"}, {"there is no remote tier"});
}

TEST(StorageSetup, TiersAreTheEnginesOwnDiskAndAPoolThatEvicts) {
  const kvtwin::Setup setup = setup_of({"tiers.disk.tokens=640000", "tiers.remote.gib=8"});
  ASSERT_EQ(setup.engine.storage.size(), 2U);
  EXPECT_EQ(setup.engine.storage[0].tier, Tier::disk);
  EXPECT_EQ(setup.engine.storage[0].pages, 10'000U);
  EXPECT_TRUE(setup.engine.storage[0].owned);
  EXPECT_EQ(setup.engine.storage[1].tier, Tier::remote);
  EXPECT_EQ(setup.engine.storage[1].pages, 1'024U);  // pages of 8 MiB
  EXPECT_FALSE(setup.engine.storage[1].owned);
  ASSERT_EQ(setup.world.storage.size(), 2U);
  EXPECT_EQ(setup.world.storage[0].pages, 10'000U);
  EXPECT_FALSE(setup.world.storage[0].evicts_itself);
  EXPECT_TRUE(setup.world.storage[1].evicts_itself);
  EXPECT_EQ(setup.world.disk_read_bytes_per_second, 27'200'000'000U);
  EXPECT_EQ(setup.world.nic_bytes_per_second, 186'400'000'000U);
  EXPECT_EQ(setup.world.both_ways_bytes_per_second, 88'000'000'000U);
  EXPECT_EQ(setup.world.root_bytes_per_second, 252'000'000'000U);
  EXPECT_EQ(setup_of({"parallel.tp=8"}).world.root_bytes_per_second, 504'000'000'000U);
}

const Settings kSharedFsFigures = {"hardware.set.shared_fs_read_bandwidth=20",
                                   "hardware.set.shared_fs_write_bandwidth=10", "hardware.set.shared_fs_latency=200",
                                   "hardware.set.shared_fs_file=50"};

TEST(StorageSetup, ASharedFileSystemIsOfAllEnginesAndAskedBeforeThePool) {
  const kvtwin::Setup setup = setup_of(
      joined({"tiers.disk.tokens=640000", "tiers.shared_fs.tokens=64000", "tiers.remote.gib=8", "cluster.engines=2"},
             kSharedFsFigures));
  ASSERT_EQ(setup.engine.storage.size(), 3U);
  EXPECT_EQ(setup.engine.storage[1].tier, Tier::shared_fs);
  EXPECT_EQ(setup.engine.storage[1].pages, 1000U);
  EXPECT_FALSE(setup.engine.storage[1].owned);
  EXPECT_TRUE(setup.world.storage[1].evicts_itself);
  EXPECT_EQ(setup.world.shared_fs_read_bytes_per_second, 20'000'000'000U);
  EXPECT_EQ(setup.world.shared_fs_write_bytes_per_second, 10'000'000'000U);
  ASSERT_EQ(setup.notes.size(), 4U);
  EXPECT_EQ(setup.notes[0], "hardware.set.shared_fs_read_bandwidth: 20 GB/s instead of 42.9497 GB/s as of h100-sxm");
}

TEST(StorageSetup, EveryPresetHasASharedFileSystem) {
  for (const std::string& name : hardware_preset_names()) {
    const kvtwin::Setup setup = setup_of({"tiers.shared_fs.gib=1", "hardware.name=" + name, "model.name=tiny"});
    ASSERT_EQ(setup.engine.storage.size(), 1U) << name;
    EXPECT_EQ(setup.engine.storage[0].tier, Tier::shared_fs) << name;
  }
}

TEST(StorageSetup, AMachineWithoutASharedFileSystemSaysWhichFiguresToGive) {
  const Folder folder;
  Json machine = Json::parse(hardware_preset_text("h100-sxm"));
  for (const char* figure : {"read_bandwidth", "write_bandwidth", "latency", "file"}) {
    machine["numbers"].erase(std::string("shared_fs_") + figure);
  }
  write_text(folder / "machine.json", machine.dump());
  const Settings without = {"hardware.file=" + (folder / "machine.json"), "tiers.shared_fs.gib=1"};
  expect_refused(without, {"tiers.shared_fs.gib (--set): ", "machine.json has no shared file system; give",
                           "hardware.set.shared_fs_read_bandwidth", "hardware.set.shared_fs_write_bandwidth",
                           "hardware.set.shared_fs_latency", "hardware.set.shared_fs_file", "leave the tier out"});
  for (std::size_t left_out = 0; left_out < kSharedFsFigures.size(); ++left_out) {
    Settings some = kSharedFsFigures;
    some.erase(some.begin() + static_cast<std::ptrdiff_t>(left_out));
    expect_refused(joined(without, some), {"tiers.shared_fs.gib (--set)", "no shared file system"});
  }
  EXPECT_EQ(setup_of(joined(without, kSharedFsFigures)).engine.storage.size(), 1U);
  expect_refused({"tiers.shared_fs.tokens=3"}, {"tiers.shared_fs.tokens (--set)", "less than one page"});
  const Settings both = {"tiers.shared_fs.gib=1", "tiers.shared_fs.tokens=64000"};
  EXPECT_EQ(setup_of(joined(both, kSharedFsFigures)).engine.storage[0].pages, 1000U) << "the later one wins";
}

// An MLA latent, which is equal on all ranks, is stored only once.
TEST(StorageSetup, ObjectsAndWriters) {
  const auto objects = [](const Settings& settings) { return setup_of(settings).engine.storage_objects; };
  EXPECT_EQ(objects({}), 1U);
  EXPECT_EQ(objects({"cache.split_kv=true"}), 2U);
  EXPECT_EQ(objects({"cache.layout=layer_first"}), 64U);
  EXPECT_EQ(setup_of({"parallel.tp=4"}).engine.storage_writers, 4U);
  const Settings latent = {"model.name=deepseek-v3", "parallel.tp=16", "tiers.disk.gib=100"};
  const kvtwin::Setup mla = setup_of(latent);
  EXPECT_EQ(mla.engine.storage_writers, 1U);
  EXPECT_EQ(mla.engine.storage[0].pages, (Bytes{100} << 30) / (mla.engine.shape.token_bytes()) / 64);
}

TEST(StorageSetup, PagesOfOtherIdentitiesAreOthers) {
  const PageKey plain = setup_of({}).engine.storage_space;
  for (const char* setting :
       {"model.name=qwen3-32b", "model.revision=main", "model.kv_dtype=fp8", "cache.page_tokens=32",
        "cache.layout=layer_first", "parallel.tp=2", "cache.namespace=mine"}) {
    EXPECT_NE(setup_of({setting}).engine.storage_space, plain) << setting;
  }
  EXPECT_EQ(setup_of({"cache.eviction=fifo", "model.kv_dtype=bf16"}).engine.storage_space, plain);
}

TEST(StorageSetup, KeysReachTheEngineAndTheWorld) {
  const kvtwin::Setup setup =
      setup_of({"cache.path=auto", "cache.prefetch_policy=timeout(base=2s, per_ki_token=500ms)",
                "cache.prefetch_timeout_most_s=9", "cache.rules.prefetch_timeout_from=issue",
                "cache.prefetch_min_tokens=64", "cache.rules.prefetch_host_share=0.25", "cache.prefetch_retry_steps=3",
                "cache.prefetch_attempts=2", "cache.storage_batch_pages=32", "cache.storage_retries=1",
                "sim.storage_stall_share=0.5", "sim.storage_stall_factor=7", "tiers.disk.tokens=64000", "seed=5"});
  EXPECT_EQ(setup.engine.path, CachePath::automatic);
  EXPECT_EQ(setup.engine.prefetch_policy, "timeout(base=2s, per_ki_token=0.5s, most=9s)");
  EXPECT_EQ(setup.engine.prefetch_timeout_from, TimeoutFrom::issue);
  EXPECT_EQ(setup.engine.prefetch_min_tokens, 64U);
  EXPECT_EQ(setup.engine.prefetch_host_share, 256U);
  EXPECT_EQ(setup.engine.prefetch_retry_steps, 3U);
  EXPECT_EQ(setup.engine.prefetch_attempts, 2U);
  EXPECT_EQ(setup.engine.storage_batch_pages, 32U);
  EXPECT_EQ(setup.engine.storage_retries, 1U);
  EXPECT_EQ(setup.world.storage_stall_share, 0.5);
  EXPECT_EQ(setup.world.storage_stall_factor, 7);
  EXPECT_EQ(setup.world.seed, 5U);
}

TEST(StorageSetup, FiguresAreOverriddenAndSaid) {
  const kvtwin::Setup setup = setup_of({"hardware.set.disk_read_gbps=3.5", "hardware.set.disk_write_gbps=2",
                                        "hardware.set.remote_gbps=12.5", "hardware.set.host_link_gbps=25"});
  EXPECT_EQ(setup.world.disk_read_bytes_per_second, 3'500'000'000U);
  EXPECT_EQ(setup.world.disk_write_bytes_per_second, 2'000'000'000U);
  EXPECT_EQ(setup.world.nic_bytes_per_second, 12'500'000'000U);
  EXPECT_EQ(setup.world.fabric_bytes_per_second, 12'500'000'000U);
  EXPECT_EQ(setup.world.h2d_bytes_per_second, 25'000'000'000U);
  EXPECT_EQ(setup.cost->coefficients().moves.storage[Tier::disk].read.rate, 3'500'000'000U);
  EXPECT_EQ(setup.cost->coefficients().moves.host_to_device.link_rate, 25'000'000'000U);
  ASSERT_EQ(setup.notes.size(), 4U);
  EXPECT_EQ(setup.notes[0], "hardware.set.disk_read_gbps: drives at 3.5 GB/s instead of 27.2 GB/s as of h100-sxm");
}

TEST(StorageSetup, AllEnginesShareThePoolsBandwidth) {
  const kvtwin::Setup setup = setup_of(
      {"tiers.remote.gib=1", "cluster.engines=4", "hardware.set.remote_gbps=12.5", "hardware.set.pool_bandwidth=40"});
  EXPECT_EQ(setup.world.nic_bytes_per_second, 12'500'000'000U);
  EXPECT_EQ(setup.world.fabric_bytes_per_second, 40'000'000'000U);
}

TEST(StorageSetup, TheRouterKnowsTheCapacities) {
  const kvtwin::Setup setup = setup_of({"tiers.host.tokens=640", "tiers.disk.tokens=1280", "tiers.remote.tokens=2560",
                                        "cluster.engines=4", "cache.page_tokens=64"});
  EXPECT_EQ(setup.router.engines, 4U);
  EXPECT_EQ(setup.router.device_pages, setup.engine.device_pages);
  EXPECT_EQ(setup.router.host_pages, 10U);
  EXPECT_EQ(setup.router.shared_pages, 40U) << "the remote tier, and not the disk";
}

TEST(StorageSetup, AHostThatKeepsNoPagesIsBetweenTheDeviceAndStorage) {
  for (const char* mode : {"until_stored", "buffer"}) {
    const Settings host{std::string("cache.host_mode=") + mode}, stored = joined(host, {"tiers.disk.gib=1"});
    EXPECT_EQ(name_of(setup_of(stored).engine.host_mode), mode);
    const std::string key = std::string("cache.host_mode (--set): is ") + mode;
    expect_refused(host, {key, "there is no storage tier that keeps the pages; give tiers.disk"});
    expect_refused(joined(stored, {"cache.path=direct"}), {key, "cache.path (--set) is direct; set that to via_host"});
    expect_refused(joined(stored, {"cache.write_policy=write_back"}), {key, "set cache.write_policy to write_through"});
    expect_refused(joined(stored, {"cluster.prefill=1", "cluster.decode=1"}), {key, "engines with roles"});
    expect_refused(joined(stored, {"model.name=gpt-oss-120b"}), {key, "windows or states"});
    EXPECT_EQ(setup_of(joined(host, {"tiers.host.tokens=0"})).engine.host_mode, HostMode::cache) << "has no effect";
  }
}

TEST(StorageSetup, WritesWaitOnAHostThatIsACacheOfPages) {
  const Settings late{"cache.host_clean_reserve=0.25"}, stored = joined(late, {"tiers.disk.gib=1"});
  EXPECT_EQ(setup_of(stored).engine.host_clean_reserve, 256U);
  EXPECT_EQ(setup_of(late).engine.host_clean_reserve, 0U) << "has no effect without storage";
  EXPECT_EQ(setup_of(joined(stored, {"tiers.host.tokens=0", "cache.path=direct"})).engine.host_clean_reserve, 0U);
  EXPECT_EQ(setup_of(joined(stored, {"cache.host_mode=until_stored"})).engine.host_clean_reserve, 256U);
  const std::string key = "cache.host_clean_reserve (--set): is above 0, ";
  for (const char* share : {"cache.host_clean_reserve", "cache.clean_reserve", "cache.hint_share"}) {
    expect_refused({std::string(share) + "=0.0001"}, {share, "0, or at least 0.0005"});
  }
  EXPECT_EQ(setup_of({"tiers.disk.gib=1", "cache.host_clean_reserve=0.0005"}).engine.host_clean_reserve, 1U);
  expect_refused(joined(stored, {"cache.host_mode=buffer"}), {key, "a host that is a buffer", "set it to 0"});
  expect_refused(joined(stored, {"model.name=gpt-oss-120b"}), {key, "windows or states"});
}

TEST(StorageSetup, LoadsOfOneRequestAreThoseWithoutAHostTier) {
  const Settings linked{"cache.rules.private_loads=true", "tiers.disk.gib=1", "cache.path=direct"};
  EXPECT_FALSE(setup_of(linked).engine.private_loads);
  EXPECT_TRUE(setup_of(joined(linked, {"tiers.host.tokens=0"})).engine.private_loads);
}

TEST(StorageSetup, Refusals) {
  expect_refused({"tiers.disk.gib=1", "tiers.host.tokens=0"},
                 {"cache.path (default): is via_host, and there is no host tier; set cache.path=direct or give "
                  "tiers.host"});
  expect_refused({"cache.path=drect"}, {"cache.path (--set)", "\"drect\"", "direct"});
  expect_refused({"cache.prefetch_policy=never"}, {"cache.prefetch_policy", "best_effort"});
  expect_refused({"tiers.disk.format=file"}, {"tiers.disk.format (--set)", "\"file\"", "hicache_files", "segments"});
  expect_refused({"tiers.disk.tokens=3"}, {"tiers.disk.tokens (--set)", "less than one page"});
  EXPECT_EQ(setup_of({"tiers.disk.gib=1", "tiers.host.tokens=0", "cache.path=direct"}).engine.path, CachePath::direct);
  const Folder folder;
  for (const auto& [device, setting, what] : {std::array{"drive_", "tiers.disk.gib=1", "has no drives"},
                                              {"nic_", "tiers.remote.gib=1", "has no NIC"},
                                              {"gpudirect_", "cache.path=direct", "has no GPUDirect"},
                                              {"drive_", "hardware.set.disk_read_gbps=1", "has no drives"},
                                              {"nic_", "hardware.set.remote_gbps=1", "has no remote pool"}}) {
    Json machine = Json::parse(hardware_preset_text("h100-sxm"));
    Json numbers = machine["numbers"];
    for (const auto& [key, number] : numbers.items()) {
      const bool other = std::string(device) == "drive_" ? key == "disk_look_up" || key.starts_with("file_")
                                                         : key.starts_with("pool_");
      if (key.starts_with(device) || (other && std::string(device) != "gpudirect_")) machine["numbers"].erase(key);
    }
    write_text(folder / "machine.json", machine.dump());
    Settings settings = {"hardware.file=" + (folder / "machine.json"), setting};
    if (std::string(device) == "gpudirect_") settings.push_back("tiers.disk.gib=1");
    expect_refused(settings, {std::string(setting).substr(0, std::string(setting).find('=')), what});
  }
}

}  // namespace
}  // namespace kvtwin::test

// Real runs of models with windows or with recurrent states: every kind of KV has bytes, in pools of its own on the
// device and the host, and every pass checks those that it continues from.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/hybrid_run.hpp"
#include "tests/mpi_run.hpp"

#if KVTWIN_TEST_REAL
#if KVTWIN_HAVE_REDIS
#include "tests/redis_server.hpp"
#endif

namespace kvtwin::test {
namespace {

TEST(RealHybrid, EveryKindIsCheckedInEveryLayout) {
  std::uint64_t seed = 0;
  for (const HybridKind& kind : kHybridKinds) {
    for (const char* form : {"cache.layout=layer_first", "cache.layout=page_first", "cache.layout=page_first_direct"}) {
      SCOPED_TRACE(std::string(kind.verified) + " " + form);
      const Folder folder;
      const Simulated real = run_for_real(folder, hybrid_work(folder, kind, ++seed) + Settings{form});
      EXPECT_EQ(real.requests("failed") + real.requests("rejected"), 0U);
      EXPECT_GT(real.tokens("hit_device"), 0U);
      EXPECT_GT(real.tokens("hit_host"), 0U);
      const Json& verified = real.report.at("real").at("verified");
      EXPECT_EQ(verified.at("wrong_reads"), 0);
      const Json& part = verified.at(kind.verified);
      EXPECT_GT(part.at("read"), 0);
      EXPECT_GT(part.at("audited"), 0);
      EXPECT_GT(part.at("bytes_checked"), 0);
      if (std::string_view(KVTWIN_TEST_DEVICE) == "host") {  // a GPU checks a part
        EXPECT_EQ(part.at("bytes_checked"), part.at("bytes_read"));
      }
      EXPECT_EQ(part.contains("copied"), std::string(kind.verified) == "states");
      EXPECT_GT(part.value("copied", 1), 0);
      EXPECT_EQ(run({"replay", folder / "run", "--json"}).json().at("verdict"), "equal");
    }
  }
}

// One request after another, and nothing leaves memory: times decide nothing.
TEST(RealHybrid, DecidesAsTheSimulation) {
  for (const HybridKind& kind : kHybridKinds) {
    SCOPED_TRACE(kind.verified);
    const Folder folder;
    Settings settings = hybrid_work(folder, kind, 7, 40);
    settings.pop_back();  // the pool's size
    settings = settings + Settings{"scheduler.max_running=1", "tiers.device.tokens=100000", "tiers.host.tokens=200000"};
    const Simulated real = run_for_real(folder, settings);
    const Simulated simulated = simulate(settings);
    EXPECT_EQ(real.digest(), simulated.digest());
    EXPECT_GT(real.tokens("hit_device"), 0U);
    EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
  }
}

// Eight sessions take turns. Each goes on with what it has, and some give hints: holds, moves to the host, and their
// ends.
Settings sessions_with_hints(const Folder& folder) {
  std::string trace;
  std::uint64_t block = 0, time = 0;
  std::vector<std::vector<std::uint64_t>> turns(8);
  const auto add_hint = [&](const char* kind, std::size_t session) {
    trace += R"({"timestamp":)" + std::to_string(time++) + R"(,"hint":")" + kind + R"(","session":)" +
             std::to_string(session) + "}\n";
  };
  for (std::size_t i = 0; i < 96; ++i) {
    const std::size_t session = 1 + i * 5 % turns.size();
    std::vector<std::uint64_t>& blocks = turns[session - 1];
    if (blocks.size() > 9) blocks.clear();
    for (std::size_t more = 0; more < 3; ++more) blocks.push_back(block++);
    std::string ids;
    for (const std::uint64_t id : blocks) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    trace += R"({"timestamp":)" + std::to_string(time += 2) + R"(,"input_length":)" +
             std::to_string(32 * blocks.size()) + R"(,"output_length":8,"hash_ids":[)" + ids + R"(],"session":)" +
             std::to_string(session) + "}\n";
    if (i % 6 == 1) add_hint("pin", session);
    if (i % 7 == 2) add_hint("demote", session);
    if (i % 11 == 3) add_hint("share", session);
    if (i % 9 == 4) add_hint("session_end", session);
  }
  write_text(folder / "sessions.jsonl", trace);
  return {"workload.trace=" + (folder / "sessions.jsonl"), "workload.block_tokens=32"};
}

TEST(RealHybrid, SessionsAndHintsKeepEveryKind) {
  for (const HybridKind& kind : kHybridKinds) {
    for (const char* write_policy : {"write_through", "write_back"}) {
      SCOPED_TRACE(std::string(kind.verified) + " " + write_policy);
      const Folder folder;
      const Settings settings = hybrid_work(folder, kind, 50) + sessions_with_hints(folder) +
                                Settings{"cache.session_radix=true", "cache.hints=obey", "cache.hint_share=0.5",
                                         std::string("cache.write_policy=") + write_policy};
      const Simulated real = run_for_real(folder, settings);
      EXPECT_EQ(real.requests("failed") + real.requests("rejected"), 0U);
      EXPECT_GT(real.tokens("hit_device"), 0U);
      const Json& verified = real.report.at("real").at("verified");
      EXPECT_EQ(verified.at("wrong_reads"), 0);
      EXPECT_GT(verified.at(kind.verified).at("read"), 0);
      EXPECT_EQ(run({"replay", folder / "run", "--json"}).json().at("verdict"), "equal");
    }
  }
}

class RealHybridTiers : public HybridTiers {};

TEST_F(RealHybridTiers, ADiskKeepsEveryKindInEveryLayout) {
  std::vector<const char*> layouts = {"page_first", "layer_first", "page_first_direct"};
  if (std::string_view(KVTWIN_TEST_DEVICE) != "host") layouts.resize(1);  // the stand-in for a GPU is slow
  std::uint64_t seed = 20;
  for (const HybridKind& kind : kHybridKinds) {
    for (const char* layout : layouts) {
      fs::remove_all(folder_ / (std::string("disk-") + kind.verified));
      fill_and_read(kind, "disk", disk(100000, kind) + Settings{std::string("cache.layout=") + layout}, ++seed);
    }
  }
}

// A tier that holds a part of the pages, windows and states evicts some of them: all kinds share its bytes.
TEST_F(RealHybridTiers, ASmallDiskEvicts) {
  for (const HybridKind& kind : kHybridKinds) {
    SCOPED_TRACE(kind.verified);
    const Settings settings = tiers_of(kind, 31, 80) + disk(1600, kind);
    for (const char* out : {"first", "second", "third"}) {
      const Simulated real = serve(settings, out);
      EXPECT_GT(real.tier("disk").at("evicted_pages"), 0);
      const Json& counters = real.report.at("real").at("storage").at("disk");
      EXPECT_GT(counters.at("pages_removed"), 0);
      EXPECT_GT(counters.at("pool1_pages_removed"), 0);
      EXPECT_EQ(counters.at("full").get<int>() + counters.at("pool1_full").get<int>(), 0);
    }
  }
}

TEST_F(RealHybridTiers, AFolderThatManyShareKeepsEveryKind) {
  std::uint64_t seed = 40;
  for (const HybridKind& kind : kHybridKinds) {
    const Settings place = {"tiers.shared_fs.tokens=100000",
                            "tiers.shared_fs.path=" + (folder_ / (std::string("shared-") + kind.verified))};
    fill_and_read(kind, "shared_fs", place, ++seed);
  }
}

// A bit of each tenth file is flipped: these pages, windows and states are misses.
TEST_F(RealHybridTiers, DamagedObjectsAreMisses) {
  for (const HybridKind& kind : kHybridKinds) {
    SCOPED_TRACE(kind.verified);
    const std::string place = folder_ / (std::string("shared-") + kind.verified);
    const Settings settings =
        tiers_of(kind, 51) + Settings{"tiers.shared_fs.tokens=100000", "tiers.shared_fs.path=" + place};
    serve(settings, "filled");
    std::size_t count = 0;
    for (const auto& file : fs::directory_iterator(place)) {
      if (file.file_size() < 200 || ++count % 10 != 0) continue;
      std::string bytes = text_of(file.path());
      bytes[bytes.size() - 50] = static_cast<char>(bytes[bytes.size() - 50] ^ 4);
      write_text(file.path(), bytes);
    }
    ASSERT_GT(count, 50U);
    const Simulated real = serve(settings, "read");
    const Json& counters = real.report.at("real").at("storage").at("shared_fs");
    EXPECT_GT(counters.at("corrupt_pages").get<int>() + counters.at("pool1_corrupt_pages").get<int>(), 0);
    EXPECT_GT(real.tokens("hit_shared_fs"), 0U);
  }
}

// One request after another, and nothing leaves memory: times decide nothing, and the disk is looked up and written.
TEST_F(RealHybridTiers, DecideAsTheSimulation) {
  for (const HybridKind& kind : kHybridKinds) {
    SCOPED_TRACE(kind.verified);
    Settings settings = hybrid_work(folder_, kind, 7, 40);
    settings.pop_back();  // the pool's size
    settings =
        settings + disk(100000, kind) +
        Settings{"scheduler.max_running=1",      "tiers.device.tokens=100000",          "tiers.host.tokens=200000",
                 "cache.prefetch_min_tokens=16", "cache.prefetch_policy=wait_complete", "workload.time_scale=10"};
    const Simulated real = serve(settings, "alone");
    const Simulated simulated = simulate(settings);
    // The digest has the order in which writes end.
    EXPECT_EQ(real.report.at("tokens"), simulated.report.at("tokens"));
    EXPECT_EQ(real.report.at("pools"), simulated.report.at("pools"));
    EXPECT_EQ(real.tier("disk").at("used_pages_max"), simulated.tier("disk").at("used_pages_max"));
    EXPECT_GT(real.report.at("real").at("storage").at("disk").at("pool1_objects_stored"), 0);
  }
}

#if KVTWIN_HAVE_REDIS
TEST_F(RealHybridTiers, AServerKeepsEveryKind) {
  const RedisProcess server;
  std::uint64_t seed = 60;
  for (const HybridKind& kind : kHybridKinds) {
    fill_and_read(kind, "remote", {"tiers.remote.tokens=100000", "tiers.remote.url=" + server.url()}, ++seed);
  }
}
#endif

// The example of docs/examples/store: it opens a store for the pages, and one for each pool.
TEST_F(RealHybridTiers, AStoreLibraryKeepsEveryKind) {
  std::uint64_t seed = 80;
  for (const HybridKind& kind : kHybridKinds) {
    const std::string url = std::string("library:") + kBuildFolder + "/store_library/files_store.so?" +
                            (folder_ / (std::string("values-") + kind.verified));
    fill_and_read(kind, "remote", {"tiers.remote.tokens=100000", "tiers.remote.url=" + url}, ++seed);
  }
}

TEST_F(RealHybridTiers, RefusesWhatIsNotThere) {
  const Folder folder;
  const Settings settings = hybrid_work(folder, kHybridKinds[0], 1);
  EXPECT_NE(run(run_arguments(folder, settings + Settings{"tiers.disk.tokens=100000", "tiers.disk.format=hicache_files",
                                                          "tiers.disk.path=" + (folder / "disk")}))
                .err.find("hicache_files has names for pages only"),
            std::string::npos);
  const Settings vllm = settings + Settings{"engine=vllm", "tiers.device.window_ratio=0.8"};
  const Outcome outcome = run(run_arguments(folder, vllm));
  EXPECT_EQ(outcome.exit_code, 2);
}

#if KVTWIN_HAVE_MPI
TEST(RealHybrid, TwoRanksHaveTheirPartsOfEveryKind) {
  for (const HybridKind& kind : kHybridKinds) {
    SCOPED_TRACE(kind.verified);
    const Folder folder;
    const Outcome outcome = run_ranks(folder, hybrid_work(folder, kind, 11, 40) + Settings{"parallel.tp=2"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Simulated real = read_run(outcome, folder / "run");
    const Json& verified = real.report.at("real").at("verified");
    EXPECT_EQ(verified.at("wrong_reads"), 0);
    EXPECT_GT(verified.at(kind.verified).at("read"), 0);
    expect_equal_ranks(folder, real.report, 2);
  }
}

// Each rank stores its own part. With MLA (Kimi) rank 0 writes the pages of both, and each rank its own states.
TEST_F(RealHybridTiers, TwoRanksStoreTheirPartsOfEveryKind) {
  std::uint64_t seed = 70;
  for (const HybridKind& kind : kRankHybridKinds) {
    for (const char* tier : {"disk", "shared_fs"}) {
      const bool latents = kind.config == kStatesBesideLatents;
      if ((std::string_view(tier) == "disk") == latents) continue;
      SCOPED_TRACE(std::string(kind.verified) + " " + tier);
      const std::string key = std::string("tiers.") + tier;
      const Settings settings =
          tiers_of(kind, ++seed, 40) +
          Settings{"parallel.tp=2", key + ".tokens=100000", key + ".path=" + (folder_ / std::to_string(seed))};
      for (const char* out : {"filled", "read"}) {
        fs::remove_all(folder_ / out);
        const Outcome outcome = run_ranks(folder_, settings, 2, out);
        ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
        const Simulated real = read_run(outcome, folder_ / out);
        EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
        if (std::string_view(out) == "read") {
          EXPECT_GT(real.tokens((std::string("hit_") + tier).c_str()), 0U);
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace kvtwin::test

#endif

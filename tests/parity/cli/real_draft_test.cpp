// Real runs with a draft model: its KV moves through every tier with the target's, both are checked, what comes back
// without it is counted, and the journal replays to the same decisions. Simulations of the same experiment count the
// same objects.
#include <gtest/gtest.h>

#include <string>

#include "tests/hybrid_run.hpp"
#include "tests/mpi_run.hpp"
#include "tests/real_run.hpp"
#include "tests/recorded_run.hpp"

#if KVTWIN_TEST_REAL

namespace kvtwin::test {
namespace {

// Two layers, a head of 8 bytes in two planes: the same rows as small_model(), so the draft can be packed.
Settings drafted(const Folder& folder, const std::string& kind, bool restore = true) {
  return {"model.draft.kind=" + kind, "model.draft.config=" + (folder / "config.json"), "model.draft.accept_length=2.6",
          std::string("model.draft.restore=") + (restore ? "true" : "false")};
}

class RealDraft : public testing::Test {
 protected:
  Settings work(std::uint64_t seed, const std::string& tier) {
    return small_model(folder_) + conversations(busy_conversations(80), seed).save(folder_) +
           Settings{"cache.page_tokens=16",
                    "cache.prefetch_min_tokens=16",
                    "cache.prefetch_policy=wait_complete",
                    "hardware.name=cpu-host",
                    "tiers.device.tokens=1600",
                    "tiers.host.tokens=1600",
                    "tiers." + tier + ".tokens=100000",
                    "tiers." + tier + ".path=" + (folder_ / tier),
                    "workload.time_scale=1",
                    "scheduler.max_running=4"};
  }
  Simulated serve(const Settings& settings) {
    fs::remove_all(folder_ / "run");
    Simulated real = run_for_real(folder_, settings, "run");
    EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
    EXPECT_EQ(real.requests("failed") + real.requests("rejected"), 0U);
    const Outcome again = run({"replay", folder_ / "run", "--json"});
    EXPECT_EQ(again.exit_code, 0) << again.out << again.err;
    return real;
  }
  std::uint64_t simulated_objects(const Settings& settings) {
    const Json report = simulate_to(folder_, "simulated", settings, false, kAnyWorld, {"--force"});
    return report.at("storage").at("objects_per_page").get<std::uint64_t>();
  }

  Folder folder_;
};

TEST_F(RealDraft, EveryStorageTierKeepsBothKvs) {
  std::uint64_t seed = 0;
  for (const char* tier : {"disk", "shared_fs"}) {
    for (const char* form : {"cache.layout=layer_first", "cache.split_kv=true", "cache.layout=page_first_direct"}) {
      for (const char* kind : {"side_pool", "packed"}) {
        SCOPED_TRACE(std::string(tier) + " " + form + " " + kind);
        const Settings settings = work(++seed, tier) + drafted(folder_, kind) + Settings{form};
        const Simulated cold = serve(settings);
        const Simulated warm = serve(settings);  // finds the pages of the first run
        EXPECT_GT(warm.tokens(("hit_" + std::string(tier)).c_str()), 0U);
        const Json& counters = warm.report.at("real").at("storage").at(tier);
        EXPECT_GT(counters.at("objects_read"), 0);
        EXPECT_EQ(counters.at("objects_per_page"), simulated_objects(settings));
        EXPECT_EQ(warm.report.at("storage").at("objects_per_page"), counters.at("objects_per_page"));
        const Json& parts = warm.report.at("components");
        EXPECT_EQ(parts[0].at("hit_pages"), parts[1].at("hit_pages"));
        EXPECT_GT(parts[1].at("bytes"), 0);
        EXPECT_TRUE(parts[1].at("dropped").empty());
        const Json& verified = warm.report.at("real").at("verified");
        if (std::string(kind) == "packed") {
          EXPECT_FALSE(verified.contains("draft")) << "its layers are the target's last ones";
        } else {
          EXPECT_GT(verified.at("draft").at("pages_read"), 0);
          EXPECT_GT(verified.at("draft").at("pages_audited"), 0);
          EXPECT_EQ(verified.at("draft").at("pages_left_out"), 0);
        }
        fs::remove_all(folder_ / tier);
      }
    }
  }
}

TEST_F(RealDraft, HiCachesFilesAndPagesStraightIntoTheDevice) {
  for (const char* setting : {"tiers.disk.format=hicache_files", "cache.path=direct"}) {
    SCOPED_TRACE(setting);
    const Settings settings = work(21, "disk") + drafted(folder_, "side_pool") + Settings{setting};
    serve(settings);
    EXPECT_GT(serve(settings).tokens("hit_disk"), 0U);
    fs::remove_all(folder_ / "disk");
  }
}

// A part of the draft that is lost makes its page a miss, which is counted; the other run's requests are served.
TEST_F(RealDraft, APageWithoutItsDraftInStorageIsAMiss) {
  const Settings settings = work(31, "shared_fs") + drafted(folder_, "side_pool");
  serve(settings);
  std::size_t removed = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "shared_fs/draft")) {
    if (entry.path().extension() == ".page" && removed++ < 1000) fs::remove(entry.path());
  }
  EXPECT_GT(removed, 0U);
  const Simulated second = serve(settings);
  const Json& counters = second.report.at("real").at("storage").at("shared_fs");
  EXPECT_GT(counters.at("draft_set_pages"), 0) << "stored again";
}

TEST_F(RealDraft, WhatIsNotRestoredIsCountedAsInASimulation) {
  for (const char* kind : {"side_pool", "packed"}) {
    SCOPED_TRACE(kind);
    const Settings settings = work(41, "disk") + drafted(folder_, kind, false);
    const Simulated real = serve(settings);
    const Json& draft = real.report.at("components")[1];
    EXPECT_EQ(draft.at("bytes"), 0);
    EXPECT_GT(draft.at("dropped").value("not_restored", 0), 0);
    EXPECT_GT(real.report.at("real").at("verified").at("draft").at("pages_left_out"), 0);
    EXPECT_EQ(real.report.at("real").at("storage").at("disk").at("objects_per_page"), 1);
    fs::remove_all(folder_ / "disk");
  }
}

// A burst that an arrival ends leaves the state behind the tokens of the steps that are done.
TEST(RealDraftOfAHybrid, WindowsAndStatesFollowTheYieldOfEachStep) {
  for (const HybridKind& kind : kHybridKinds) {
    SCOPED_TRACE(kind.verified);
    const Folder folder;
    const Settings work = hybrid_work(folder, kind, 51);
    write_text(folder / "target.json", kind.config);
    small_model(folder);
    const Simulated real =
        run_for_real(folder,
                     work + drafted(folder, "side_pool") +
                         Settings{"model.config=" + (folder / "target.json"), "workload.time_scale=0.1"},
                     "run");
    const Json& verified = real.report.at("real").at("verified");
    EXPECT_EQ(verified.at("wrong_reads"), 0);
    EXPECT_GT(verified.at(kind.verified).at("read"), 0);
    EXPECT_GT(verified.at("draft").at("pages_read"), 0);
  }
}

#if KVTWIN_HAVE_MPI
TEST(RealDraftRanks, TwoRanksMoveBothKvsAndDecideAlike) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 5, 40) + drafted(folder, "side_pool") +
                            Settings{"cache.layout=layer_first", "tiers.disk.tokens=100000",
                                     "tiers.disk.path=" + (folder / "disk"), "cache.prefetch_min_tokens=16"};
  const Outcome outcome = run_ranks(folder, settings);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Simulated real = read_run(outcome, folder / "run");
  const Json& verified = real.report.at("real").at("verified");
  EXPECT_EQ(verified.at("wrong_reads"), 0);
  EXPECT_GT(verified.at("draft").at("pages_read"), 0);
  expect_equal_ranks(folder, real.report, 2);
  EXPECT_EQ(real.report.at("storage").at("objects_per_page"), 16);
  EXPECT_EQ(real.report.at("real").at("storage").at("disk").at("objects_per_page"), 16);
}
#endif

}  // namespace
}  // namespace kvtwin::test

#endif

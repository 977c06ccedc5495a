// Tests real runs with four tiers: device memory, host memory, a folder, and a Redis server. Every read page is
// checked, and every run is replayed from its journal.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/real_run.hpp"

#if KVTWIN_TEST_REAL && KVTWIN_HAVE_REDIS
#include "tests/redis_server.hpp"

namespace kvtwin::test {
namespace {

std::string key(const std::string& name, std::uint64_t value) { return name + "=" + std::to_string(value); }

class RealStorage : public testing::Test {
 protected:
  // Conversations. L1 holds some turns, L2 about as many, and the folder a part of the rest.
  Settings work(std::uint64_t seed) {
    return small_model(folder_) + conversations(busy_conversations(120), seed).save(folder_) +
           Settings{"cache.page_tokens=16",   "cache.prefetch_min_tokens=16", "tiers.device.tokens=1600",
                    "tiers.host.tokens=1600", "workload.time_scale=1",        "scheduler.max_running=4"};
  }
  Settings disk(std::uint64_t tokens, const std::string& format = "segments") const {
    return {key("tiers.disk.tokens", tokens), "tiers.disk.path=" + (folder_ / "disk"), "tiers.disk.format=" + format};
  }
  Settings remote(const RedisProcess& server) const {
    return {"tiers.remote.tokens=100000", "tiers.remote.url=redis://127.0.0.1:" + std::to_string(server.port())};
  }

  Simulated serve(const Settings& settings, const std::string& out) {
    Simulated real = run_for_real(folder_, settings, out);
    EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
    EXPECT_EQ(real.requests("failed") + real.requests("rejected"), 0U);
    for (const Json& lane : real.report.at("lanes")) EXPECT_LE(lane.at("busy_fraction"), 1) << lane;
    const Outcome outcome = run({"replay", folder_ / out, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    if (outcome.exit_code == 0) {
      EXPECT_EQ(outcome.json().at("verdict"), "equal");
      EXPECT_EQ(outcome.json().at("decisions"), real.report.at("decisions"));
    }
    return real;
  }

  Folder folder_;
};

// Which tier a page is read from, and which prefetch is stopped, depend on the load of the machine: the policies are
// run again with other conversations until all of it has happened.
TEST_F(RealStorage, FourTiersUnderEachWriteAndTerminationPolicy) {
  std::map<std::string, std::uint64_t> happened;
  const auto run_each_policy = [&](std::uint64_t round) {
    std::uint64_t seed = 9 * round;
    for (const char* write : {"write_through", "write_through_selective", "write_back"}) {
      for (const char* prefetch : {"best_effort", "wait_complete", "timeout"}) {
        SCOPED_TRACE(std::string(write) + " " + prefetch);
        const RedisProcess server;
        const std::string name = std::string(write) + "-" + prefetch + "-" + std::to_string(round);
        const Simulated real = serve(
            work(++seed) + disk(3200) + remote(server) +
                Settings{std::string("cache.write_policy=") + write, std::string("cache.prefetch_policy=") + prefetch,
                         "cache.prefetch_timeout_base_s=0.00002", "cache.prefetch_timeout_per_ki_token_s=0"},
            name);
        for (const char* tier : {"device", "host", "disk"}) {
          happened[std::string("evicted from ") + tier] += real.tier(tier).at("evicted_pages").get<std::uint64_t>();
        }
        for (const char* hit : {"hit_device", "hit_host", "hit_disk", "hit_remote"}) happened[hit] += real.tokens(hit);
        const Json& prefetches = real.report.at("prefetch");
        for (const char* what : {"completed", "stopped"}) {
          const bool waits = std::string(prefetch) == "wait_complete";
          happened[(waits ? "waited for, " : "not waited for, ") + std::string(what)] +=
              prefetches.at(what).get<std::uint64_t>();
        }
        EXPECT_GT(real.tier("disk").at("written_bytes"), 0);
        EXPECT_GT(real.tier("remote").at("written_bytes"), 0);
        fs::remove_all(folder_ / "disk");
      }
    }
    EXPECT_EQ(happened["waited for, stopped"], 0U);
    happened.erase("waited for, stopped");
    if (std::string_view(KVTWIN_TEST_DEVICE) != "host") {
      // The passes of the CUDA twin take so long that prefetches always complete in time.
      happened.erase("not waited for, stopped");
      happened.erase("hit_remote");
    }
  };
  const auto all_happened = [&] {
    return std::all_of(happened.begin(), happened.end(), [](const auto& it) { return it.second > 0; });
  };
  run_each_policy(0);
  for (std::uint64_t round = 1; round < 5 && !all_happened(); ++round) run_each_policy(round);
  for (const auto& [what, count] : happened) EXPECT_GT(count, 0U) << what;
}

TEST_F(RealStorage, StraightIntoTheDevice) {
  const RedisProcess server;
  std::uint64_t straight = 0;
  for (const char* path : {"direct", "auto"}) {
    SCOPED_TRACE(path);
    const Simulated real = serve(work(11) + disk(3200) + remote(server) +
                                     Settings{std::string("cache.path=") + path, "cache.prefetch_policy=wait_complete"},
                                 path);
    straight += real.lane_bytes("direct_read");
    fs::remove_all(folder_ / "disk");
  }
  EXPECT_GT(straight, 0U);
  // Without a host tier. The second run finds the pages of the first run, even on a slow machine.
  const Settings alone = work(12) + disk(100'000) +
                         Settings{"tiers.host.tokens=0", "cache.path=direct", "cache.prefetch_policy=wait_complete"};
  serve(alone, "alone");
  EXPECT_GT(serve(alone, "again").tokens("hit_disk"), 0U);
}

TEST_F(RealStorage, TheFolderIsWarmForTheNextRun) {
  for (const char* format : {"segments", "hicache_files"}) {
    SCOPED_TRACE(format);
    const Settings settings =
        work(21) + disk(100'000, format) + Settings{"cache.prefetch_policy=wait_complete", "tiers.host.tokens=6400"};
    const Simulated cold = serve(settings, std::string("cold-") + format);
    const Simulated warm = serve(settings, std::string("warm-") + format);
    EXPECT_GT(warm.tokens("hit_disk"), cold.tokens("hit_disk"));
    EXPECT_LT(warm.tokens("miss"), cold.tokens("miss"));
    fs::remove_all(folder_ / "disk");
  }
}

// A run that finds the pages of another run has no upper bound of hits, so report.bounds is an error.
TEST_F(RealStorage, BoundsAreRefused) {
  const Outcome outcome = run(run_arguments(folder_, work(22) + disk(3200) + Settings{"report.bounds=true"}, "bounds"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("report.bounds (--set): "), std::string::npos) << outcome.err;
}

// The names of stored pages contain the model, the data type and the layout. So pages of another kind are never found.
TEST_F(RealStorage, PagesOfAnotherKindAreNotFound) {
  TraceText trace(16);  // no two prompts share a page
  for (std::uint64_t i = 0; i < 40; ++i) trace.request(20 * i, 4, ids(1000 * (i + 1), 20));
  const RedisProcess server;
  const Settings base = work(31) + trace.save(folder_, "distinct.jsonl") + remote(server) +
                        Settings{"cache.prefetch_policy=wait_complete", "cache.prefetch_min_tokens=16"};
  EXPECT_EQ(serve(base, "cold").tokens("hit_remote"), 0U);
  EXPECT_GT(serve(base, "warm").tokens("hit_remote"), 0U);
  for (const char* other :
       {"model.revision=v2", "cache.layout=page_head", "cache.namespace=two", "model.kv_dtype=fp8"}) {
    EXPECT_EQ(serve(base + Settings{other}, std::string("other-") + other).tokens("hit_remote"), 0U) << other;
  }
}

TEST_F(RealStorage, RefusesWhatItCannotServe) {
  const auto refused = [&](const Settings& settings, const std::string& part) {
    const Outcome outcome = run(run_arguments(folder_, work(1) + settings, "refused"));
    EXPECT_EQ(outcome.exit_code, 2) << part;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "refused")) << part;
  };
  refused({"tiers.disk.tokens=1600"},
          "tiers.disk.path (default): is empty; a real run keeps its disk tier in a folder");
  refused({"tiers.remote.tokens=1600"}, "tiers.remote.url (default): is empty; a real run needs servers");
  refused({"tiers.remote.tokens=1600", "tiers.remote.url=http://x"}, "tiers.remote.url (--set)");
  refused({"tiers.remote.tokens=1600", "tiers.remote.url=redis://me:secret@x"}, "KVTWIN_REDIS_PASSWORD");
  refused({"tiers.remote.tokens=1600", "tiers.remote.url=redis://x", "tiers.remote.tls_ca=ca.pem"},
          "tiers.remote.tls_ca (--set): is for TLS");
  write_text(folder_ / "file", "");
  refused({"tiers.disk.tokens=1600", "tiers.disk.path=" + (folder_ / "file")}, "tiers.disk.path (--set)");
  refused({"tiers.disk.tokens=1600", "tiers.disk.path=" + (folder_ / "file/below")},
          "tiers.disk.path (--set): making the folder " + (folder_ / "file") + ": Not a directory");
  refused(disk(1600) + Settings{"real.flip=host"},
          "faults (--set): flip(place=host): would leave a wrong page in the disk tier");
}

// A folder with other files is an error, in both formats, and its files are not changed.
TEST_F(RealStorage, FoldersOfOthersAreRefused) {
  for (const char* format : {"segments", "hicache_files"}) {
    SCOPED_TRACE(format);
    fs::create_directory(folder_ / "disk");
    fs::permissions(folder_ / "disk", fs::perms::owner_all);
    write_text(folder_ / "disk/deadbeefdeadbeef", "mine");
    const auto refused = [&](const std::string& part) {
      const Outcome outcome = run(run_arguments(folder_, work(1) + disk(1600, format), "refused"));
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_NE(outcome.err.find("tiers.disk.path (--set): "), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
      EXPECT_EQ(text_of(folder_ / "disk/deadbeefdeadbeef"), "mine");
    };
    refused("holds files (deadbeefdeadbeef)");
    fs::permissions(folder_ / "disk", fs::perms::others_write, fs::perm_options::add);
    refused("chmod go-w it");
    fs::remove_all(folder_ / "disk");
  }
}

// The secret appears in no file. Pages of another secret, or without a secret, are misses, and are counted. The host
// tier holds all pages, so a run hits storage only where an earlier run stored the page.
TEST_F(RealStorage, PagesTakeASecret) {
  const RedisProcess server;
  const Settings settings = work(53) + disk(100'000) + remote(server) +
                            Settings{"cache.prefetch_policy=wait_complete", "tiers.host.tokens=100000"};
  const std::string secret = "correct horse battery staple";
  const auto serve_with = [&](const std::string& key, const std::string& out) {
    Surroundings around;
    if (!key.empty()) around.environment = {"KVTWIN_PAGE_KEY=" + key};
    const Outcome outcome = run(run_arguments(folder_, settings, out), around);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ((outcome.out + outcome.err).find("horse"), std::string::npos);
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      if (entry.is_regular_file() && !key.empty()) {
        EXPECT_EQ(text_of(entry.path()).find(key), std::string::npos) << entry.path();
      }
    }
    return outcome.exit_code == 0 ? outcome.json() : Json();
  };
  const auto hits = [](const Json& report) {
    return report.at("tokens").at("hit_disk").get<std::uint64_t>() +
           report.at("tokens").at("hit_remote").get<std::uint64_t>();
  };
  const auto strange = [](const Json& report) {
    return report.at("real").at("storage").at("disk").at("pages_of_another_secret").get<std::uint64_t>();
  };
  const Json cold = serve_with(secret, "cold"), warm = serve_with(secret, "warm");
  EXPECT_EQ(hits(cold), 0U);
  EXPECT_GT(hits(warm), hits(cold));
  EXPECT_EQ(strange(warm), 0U);
  for (const std::string& other : {std::string(), std::string("sixteen characters of another")}) {
    const Json report = serve_with(other, "other" + std::to_string(other.size()));
    EXPECT_EQ(hits(report), 0U) << other;
    EXPECT_GT(strange(report), 0U) << other;
    EXPECT_EQ(report.at("real").at("verified").at("wrong_reads"), 0) << other;
    EXPECT_NE(report.at("notes").dump().find("checked with another secret or none"), std::string::npos);
    fs::remove_all(folder_ / "disk");
    serve_with(secret, "again" + std::to_string(other.size()));
  }
  const auto refused = [&](const std::string& key, const Settings& more, const std::string& part) {
    Surroundings around;
    around.environment = {"KVTWIN_PAGE_KEY=" + key};
    const Outcome outcome = run(run_arguments(folder_, work(1) + more, "refused"), around);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  };
  refused("fifteen charact", disk(1600), "KVTWIN_PAGE_KEY: must have 16 characters at least");
  fs::remove_all(folder_ / "disk");
  refused(secret, disk(1600, "hicache_files"), "tiers.disk.format (--set): hicache_files has no place for the check");
}

// Changes the current folder, and sets a umask that lets the group write to new files.
class Elsewhere {
 public:
  explicit Elsewhere(const fs::path& place) : before_(fs::current_path()), mask_(::umask(002)) {
    fs::current_path(place);
  }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;
  ~Elsewhere() {
    ::umask(mask_);
    fs::current_path(before_);
  }

 private:
  const fs::path before_;
  const mode_t mask_;
};

TEST_F(RealStorage, FoldersInAnyNotation) {
  const Folder place;
  const Elsewhere there(place.path());
  int life = 0;
  for (const char* path : {"alone", "ends/", "alone/"}) {
    serve(work(51) + Settings{"tiers.disk.tokens=4000", std::string("tiers.disk.path=") + path},
          "notation" + std::to_string(life++));
  }
  for (const char* name : {"alone", "ends"}) {
    EXPECT_EQ(fs::status(place / name).permissions(), fs::perms::owner_all) << name;
  }
}

// The name and the length of a file do not show its layout. So a different layout is an error.
TEST_F(RealStorage, FilesOfAnotherLayoutAreRefused) {
  const Settings base = work(52) + disk(4000, "hicache_files");
  serve(base, "one");
  const Outcome outcome = run(run_arguments(folder_, base + Settings{"cache.layout=layer_first"}, "other"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("take another folder"), std::string::npos) << outcome.err;
}

// The same script in a real run and in a simulation: pages of the node are unreachable, and every request is served.
TEST_F(RealStorage, ANodeThatIsDownFailsItsPagesForRealAndSimulated) {
  const RedisProcess server;
  const Settings settings = work(61) + remote(server) +
                            Settings{"hardware.set.pool_nodes=3", "faults.node_down=0@0+3600", "cache.namespace=down"};
  const Simulated real = serve(settings, "down");
  const Simulated simulated = simulate(settings);
  for (const Simulated* run : {&real, &simulated}) {
    EXPECT_EQ(run->requests("completed"), 120U);
    EXPECT_GT(run->report.at("storage").at("fell_short").at("unreachable").get<int>(), 0);
  }
  EXPECT_GT(real.report.at("real").at("storage").at("remote").at("planned_unreachable").get<int>(), 0);
}

// The second run finds the pages of the first, but not those that its failing node has lost.
TEST_F(RealStorage, PagesOfANodeThatWasDownAreLost) {
  const RedisProcess server;
  const Settings settings = work(62) + remote(server) + Settings{"hardware.set.pool_nodes=2", "cache.namespace=lost"};
  serve(settings, "first");
  const Simulated second = serve(settings + Settings{"faults.node_down=1@0+0.000001"}, "second");
  const Json& counters = second.report.at("real").at("storage").at("remote");
  EXPECT_GT(counters.at("planned_lost").get<int>(), 0);
  const Simulated fresh = serve(settings + Settings{"cache.namespace=fresh", "faults.node_down=1@0+0.000001"}, "fresh");
  EXPECT_EQ(fresh.report.at("real").at("storage").at("remote").at("planned_lost"), 0) << "nothing was there to lose";
}

TEST_F(RealStorage, SlowDrivesServeAndReplay) {
  const Simulated slow = serve(work(63) + disk(4000) + Settings{"faults.slow_drives=3@0+3600"}, "slow");
  EXPECT_EQ(slow.requests("completed"), 120U);
}

TEST_F(RealStorage, ASlowLinkIsOfSimulations) {
  const RedisProcess server;
  const Settings settings = work(64) + remote(server) + Settings{"faults.slow_link=nic:0.5@0+1"};
  const Outcome outcome = run(run_arguments(folder_, settings, "link"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("faults (--set): link(name=nic, share=0.5"), std::string::npos) << outcome.err;
}

// No server is running. The run reports this and continues.
TEST_F(RealStorage, AServerThatIsNotThereIsAMiss) {
  const Settings settings = work(41) + Settings{"tiers.remote.tokens=100000", "tiers.remote.url=redis://127.0.0.1:1"};
  std::vector<std::string> in_words = run_arguments(folder_, settings, "");
  std::erase(in_words, "--json");
  const Outcome told = run(in_words);
  EXPECT_NE(told.out.find(" unreachable (pages that storage didn't keep or bring)"), std::string::npos) << told.out;
  const Outcome outcome = run(run_arguments(folder_, settings, "alone"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("can't be connected to. Its pages are misses until that changes."), std::string::npos)
      << outcome.err;
  EXPECT_EQ(outcome.json().at("tokens").at("hit_remote"), 0);
  EXPECT_EQ(outcome.json().at("requests").at("completed"), 120);
  EXPECT_GT(outcome.json().at("storage").at("fell_short").at("unreachable"), 0);
}

}  // namespace
}  // namespace kvtwin::test
#endif

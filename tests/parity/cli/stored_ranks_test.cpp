// Tests `mpirun -np 2 kvtwin run` with four tiers and ranks of different speed. The ranks differ in the pages that have
// arrived from a folder or a server when a request continues, but the decisions are equal.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/mpi_run.hpp"

#if KVTWIN_HAVE_MPI && KVTWIN_HAVE_REDIS
#include "tests/redis_server.hpp"

namespace kvtwin::test {
namespace {

// No tier holds all live pages, and the gaps between requests are so long that pages can move.
Settings four_tiers(const Folder& folder, const RedisProcess& server, std::uint64_t seed) {
  const Conversations c{.requests = 120,
                        .block_tokens = 16,
                        .first_blocks = 6,
                        .growth_blocks = 2,
                        .live = 8,
                        .output = 12,
                        .gap_ms = 16};
  return model_of_ranks(folder) + conversations(c, seed).save(folder) +
         Settings{"parallel.tp=2",
                  "cache.page_tokens=16",
                  "cache.prefetch_min_tokens=16",
                  "cache.prefetch_timeout_base_s=0.01",
                  "cache.prefetch_timeout_per_ki_token_s=0",
                  "cache.rules.prefetch_host_share=1",
                  "tiers.device.tokens=1200",
                  "tiers.host.tokens=1600",
                  "tiers.disk.tokens=4800",
                  "tiers.disk.path=" + (folder / "disk"),
                  "tiers.remote.tokens=1000000",
                  "tiers.remote.url=" + server.url(),
                  "tiers.remote.timeout_s=60",
                  "scheduler.max_running=4",
                  "workload.time_scale=1"};
}

Simulated serve(const Folder& folder, const Settings& settings) {
  const Outcome outcome = run_ranks(folder, settings, 2, "run", {"--force"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  Simulated real = read_run(outcome, folder.path() / "run");
  EXPECT_EQ(real.requests("completed") + real.requests("rejected"), real.requests("total"));
  EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
  EXPECT_EQ(real.report.at("ranks").size(), 2U);
  for (const Json& rank : real.report.at("ranks")) {
    EXPECT_EQ(rank.at("digest"), real.report.at("decisions").at("digest"));
    EXPECT_EQ(rank.at("reductions"), real.report.at("ranks")[0].at("reductions"));
  }
  for (const char* journal : {"run/journal.kvj", "run/journal.1.kvj"}) {
    const Json again = run({"replay", folder / journal, "--json"}).json();
    EXPECT_EQ(again.at("verdict"), "equal") << journal;
    EXPECT_EQ(again.at("decisions"), real.report.at("decisions")) << journal;
  }
  return real;
}

using Happened = std::map<std::string, std::uint64_t>;

void note(const Simulated& real, Happened& happened) {
  for (const char* tier : {"device", "host", "disk"}) {
    happened[std::string("evicted from ") + tier] += real.tier(tier).at("evicted_pages").get<std::uint64_t>();
  }
  for (const char* hit : {"hit_device", "hit_host", "hit_disk", "hit_remote"}) happened[hit] += real.tokens(hit);
  for (const char* what : {"completed", "stopped"}) {
    happened[what] += real.report.at("prefetch").at(what).get<std::uint64_t>();
  }
}

// The first run fills the folder and the server. The next runs fetch many pages, slowly on one rank: from the server
// alone, which has room for all pages; and from both, while the full server evicts pages.
TEST(StoredRanks, DecideAlikeThoughOneIsSlower) {
  const Folder folder;
  const RedisProcess server({"--maxmemory-policy", "allkeys-lru"});
  const Settings settings = four_tiers(folder, server, 1);
  const Settings slowed =
      settings + Settings{"cache.write_policy=write_back", "real.slow_factor=100", "real.slow_rank=1"};
  Happened happened;
  note(serve(folder, settings), happened);
  for (const char* rank : {"disk/rank0", "disk/rank1"}) EXPECT_FALSE(fs::is_empty(folder / rank)) << rank;
  note(serve(folder,
             slowed + Settings{"cache.prefetch_policy=wait_complete", "tiers.disk.path=" + (folder / "empty disk")}),
       happened);
  // A little more than the memory of an empty server.
  EXPECT_EQ(server.ask("CONFIG SET maxmemory 1300kb").substr(0, 3), "+OK");
  // Where requests queue up, because the machine is busy, prefetches end before they are stopped: then they come
  // slower.
  for (const char* policy : {"best_effort", "timeout"}) {
    SCOPED_TRACE(policy);
    for (const char* scale : {"1", "16"}) {
      note(serve(folder, slowed + Settings{std::string("cache.prefetch_policy=") + policy,
                                           std::string("workload.time_scale=") + scale}),
           happened);
      if (happened["stopped"] > 0) break;
    }
  }
  happened["evicted from remote"] = server.evicted();
  for (const auto& [what, count] : happened) EXPECT_GT(count, 0U) << what;
}

void write_latent_model(const Folder& folder) {
  write_text(folder / "config.json",
             R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 32, "torch_dtype": "bfloat16",
                 "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
                 "q_lora_rank": null})");
}

// One file per object. A latent is one object per layer, which one rank stores; with heads, each rank stores K and V of
// each layer.
TEST(StoredRanks, TheObjectsOfAPageAreThoseInTheFolder) {
  for (const bool latent : {true, false}) {
    SCOPED_TRACE(latent);
    const Folder folder;
    const Settings settings = busy_ranks(folder, 3, 20) +
                              Settings{"cache.layout=layer_first", "tiers.shared_fs.tokens=1000000",
                                       "tiers.shared_fs.path=" + (folder / "files"), "cache.prefetch_min_tokens=4"};
    if (latent) write_latent_model(folder);
    const Simulated real = serve(folder, settings);
    std::uint64_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "files")) {
      files += entry.path().extension() == ".page" ? 1 : 0;
    }
    const auto objects = real.report.at("storage").at("objects_per_page").get<std::uint64_t>();
    EXPECT_EQ(objects, latent ? 2U : 8U);
    EXPECT_EQ(real.report.at("real").at("storage").at("shared_fs").at("objects_per_page"), objects);
    EXPECT_GT(files, 0U);
    EXPECT_EQ(files, objects * real.tier("shared_fs").at("used_pages_max").get<std::uint64_t>());
  }
}

// An MLA latent is the same on all ranks. One rank writes it to the server, and all ranks read it.
TEST(StoredRanks, OneWritesALatentForAll) {
  const Folder folder;
  const RedisProcess server;
  const Settings settings =
      four_tiers(folder, server, 7) + Settings{"cache.prefetch_policy=wait_complete", "tiers.disk.tokens=800"};
  write_latent_model(folder);
  // The counts of both ranks together: one rank sets a page, two ranks get it, and no set finds the page already
  // stored.
  const auto remote_pages = [](const Simulated& real, const char* what) {
    return real.report.at("real").at("storage").at("remote").at(what).get<std::uint64_t>();
  };
  const std::uint64_t set = remote_pages(serve(folder, settings), "set_pages");
  EXPECT_EQ(set, server.keys());
  const Simulated again = serve(folder, settings + Settings{"tiers.disk.path=" + (folder / "empty disk")});
  EXPECT_GT(again.tokens("hit_remote"), 0U);
  EXPECT_GE(remote_pages(again, "got_pages") * 16, 2 * again.tokens("hit_remote"));
  // The disk of each rank has its own copy.
  for (const char* rank : {"disk/rank0", "disk/rank1"}) EXPECT_FALSE(fs::is_empty(folder / rank)) << rank;
}

}  // namespace
}  // namespace kvtwin::test
#endif

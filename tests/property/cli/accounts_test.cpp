// Checks that bytes, tokens and pages add up, for different models, numbers of ranks and page sizes.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// Returns the KV bytes per token, computed from the original config of the model.
std::uint64_t token_bytes(const std::string& model) {
  const Json config = Json::parse(text_of(fs::path(kSourceFolder) / "models/presets/models" / (model + ".json")));
  const auto number = [&](const char* key) { return config.at(key).get<std::uint64_t>(); };
  constexpr std::uint64_t kBf16 = 2;
  if (config.contains("kv_lora_rank")) {
    return number("num_hidden_layers") * (number("kv_lora_rank") + number("qk_rope_head_dim")) * kBf16;
  }
  const std::uint64_t head =
      config.contains("head_dim") ? number("head_dim") : number("hidden_size") / number("num_attention_heads");
  return 2 * number("num_hidden_layers") * number("num_key_value_heads") * head * kBf16;
}

struct Case {
  const char* model;
  std::uint64_t ranks, copies;  // copies: number of ranks that have the same heads
};
constexpr Case kCases[] = {{"llama-3.1-8b", 1, 1},  {"llama-3.1-8b", 4, 1}, {"llama-3.1-8b", 16, 2},
                           {"llama-3.1-70b", 4, 1}, {"qwen3-32b", 2, 1},    {"qwen3-coder-30b-a3b", 8, 2},
                           {"deepseek-v3", 8, 8},   {"tiny", 1, 1}};

std::string key(const std::string& name, std::uint64_t value) { return name + "=" + std::to_string(value); }

// Both tiers are so small that they evict, and so large that they hit.
Settings busy(const Folder& folder, std::uint64_t seed) {
  return conversations({.requests = 250}, seed).save(folder) +
         Settings{"hardware.name=b200-sxm", "tiers.device.tokens=20032", "tiers.host.tokens=60032"};
}

TEST(Accounts, LanesCarryThePagesOfTheFormula) {
  for (const Case& c : kCases) {
    for (const std::uint64_t page : {16U, 64U}) {
      SCOPED_TRACE(std::string(c.model) + " on " + std::to_string(c.ranks) + ", pages of " + std::to_string(page));
      const Folder folder;
      const Simulated run =
          simulate(busy(folder, 1) + Settings{std::string("model.name=") + c.model, key("parallel.tp", c.ranks),
                                              key("cache.page_tokens", page)});
      const std::uint64_t bytes = token_bytes(c.model);
      EXPECT_NE(run.report.at("model_kv").get<std::string>().find("= " + std::to_string(bytes) + " bytes/token"),
                std::string::npos)
          << run.report.at("model_kv");

      std::uint64_t up = 0, down = 0;
      for (std::uint64_t rank = 0; rank < c.ranks; ++rank) {
        const std::string gpu = "gpu" + std::to_string(rank);
        EXPECT_EQ(run.lane_bytes(gpu + ".d2h"), run.lane_bytes("gpu0.d2h"));
        EXPECT_EQ(run.lane_bytes(gpu + ".h2d"), run.lane_bytes("gpu0.h2d"));
        down += run.lane_bytes(gpu + ".d2h");
        up += run.lane_bytes(gpu + ".h2d");
      }
      EXPECT_GT(up, 0U);
      EXPECT_EQ(down, run.counter("sglang:hicache_backup_tokens_total") * bytes * c.copies);
      EXPECT_EQ(up, run.counter("sglang:load_back_tokens_total") * bytes * c.copies);
      EXPECT_EQ(down, run.tier("host").at("written_bytes").get<std::uint64_t>());
      // A page is loaded for a request, which counts it as a hit. A retracted request loads its pages again.
      const std::uint64_t loaded = run.counter("sglang:load_back_tokens_total");
      EXPECT_GE(loaded, run.tokens("hit_host"));
      if (run.requests("retractions") == 0) {
        EXPECT_EQ(loaded, run.tokens("hit_host"));
      }
      // A tier with a size in tokens holds the whole pages of these tokens.
      EXPECT_EQ(run.tier("device").at("capacity_pages").get<std::uint64_t>(), 20032 / page);
      EXPECT_EQ(run.tier("host").at("capacity_pages").get<std::uint64_t>(), 60032 / page);
      EXPECT_LE(run.tier("device").at("used_pages_max").get<std::uint64_t>(), 20032 / page);
      EXPECT_LE(run.tier("host").at("used_pages_max").get<std::uint64_t>(), 60032 / page);
    }
  }
}

// A size in GiB is the size of all ranks together, including copies, in units of 2^30 bytes.
TEST(Accounts, GibHoldsWholePagesOfTheFormula) {
  for (const Case& c : kCases) {
    const Folder folder;
    const Simulated run = simulate(conversations({.requests = 5}, 1).save(folder) +
                                   Settings{std::string("model.name=") + c.model, "hardware.name=b200-sxm",
                                            key("parallel.tp", c.ranks), "tiers.device.gib=8", "tiers.host.gib=16"});
    const std::uint64_t page = token_bytes(c.model) * c.copies * 64, gib = 1ULL << 30;
    EXPECT_EQ(run.tier("device").at("capacity_pages").get<std::uint64_t>(), 8 * gib / page) << c.model;
    EXPECT_EQ(run.tier("host").at("capacity_pages").get<std::uint64_t>(), 16 * gib / page) << c.model;
  }
}

TEST(Accounts, TiersSumToTheTotalForEveryRequest) {
  for (const char* order : {"fcfs", "longest_prefix"}) {
    const Folder folder;
    const Simulated run = simulate(busy(folder, 2) + Settings{std::string("scheduler.order=") + order});
    const Table requests(run.requests_csv);
    std::uint64_t host_hits = 0;
    for (std::size_t row = 0; row < requests.size(); ++row) {
      std::uint64_t sum = 0;
      for (const char* part : {"hit_device", "hit_host", "hit_disk", "hit_remote", "recomputed_after_stop", "miss"}) {
        sum += requests.integer(row, part);
      }
      ASSERT_EQ(sum, requests.integer(row, "prompt_tokens"));
      ASSERT_GE(requests.integer(row, "miss"), 1U);
      host_hits += requests.integer(row, "hit_host");
    }
    EXPECT_GT(host_hits, 0U);
    EXPECT_EQ(host_hits, run.counter("sglang:cached_tokens_total{cache_source=\"host\"}"));
  }
}

// Every issued prefetch ends in exactly one way.
TEST(Accounts, PrefetchesEndInOneWayEach) {
  std::map<std::string, std::uint64_t> happened;
  for (const char* policy : {"best_effort", "wait_complete", "timeout", "cost_stop"}) {
    // A host tier that is too small; a large one; a disk that evicts; a tier behind the disk; and a pool with a node
    // that goes down.
    for (const Settings& tiers :
         {Settings{"tiers.host.tokens=8192", "tiers.disk.tokens=120000"},
          Settings{"tiers.host.tokens=60032", "tiers.disk.tokens=120000"},
          Settings{"tiers.host.tokens=30032", "tiers.disk.tokens=30000"},
          Settings{"tiers.host.tokens=30032", "tiers.disk.tokens=60000", "tiers.remote.tokens=120000"},
          Settings{"hardware.set.pool_nodes=2", "faults.node_down=0@3+1,0@6+1,1@9+1", "tiers.host.tokens=30032",
                   "tiers.remote.tokens=120000"}}) {
      SCOPED_TRACE(std::string(policy) + ", " + tiers.back());
      const Folder folder;
      const Simulated run =
          simulate(busy(folder, 3) + tiers +
                   Settings{"hardware.set.disk_read_gbps=1", std::string("cache.prefetch_policy=") + policy,
                            "cache.prefetch_timeout_base_s=0.05"});
      const Json& prefetch = run.report.at("prefetch");
      const auto count = [&](const char* name) { return prefetch.at(name).get<std::uint64_t>(); };
      std::uint64_t ends = 0, revoked = 0;
      for (const char* way : {"completed", "failed", "stopped", "revoked", "aborted", "open"}) {
        ends += count(way);
        happened[way] += count(way);
      }
      EXPECT_EQ(count("issued"), ends);
      EXPECT_EQ(count("open"), 0U) << "the run went to its end";
      for (const auto& [reason, times] : prefetch.at("revoked_reasons").items()) {
        revoked += times.get<std::uint64_t>();
        happened[reason] += times.get<std::uint64_t>();
      }
      EXPECT_EQ(count("revoked"), revoked) << "each for a reason";
    }
  }
  for (const char* way : {"completed", "failed", "stopped", "miss"}) EXPECT_GT(happened[way], 0U) << way;
}

// The compulsory misses, the only misses of an infinite cache. The blocks up to the end of a page identify the page.
class Compulsory {
 public:
  Compulsory(std::uint64_t block, std::uint64_t page) : block_(block), page_(page) {}
  // Returns the tokens of the request that were seen before, and marks all as seen.
  std::uint64_t hit(std::uint64_t input, const std::vector<std::uint64_t>& blocks) {
    std::uint64_t hit = 0;
    bool missed = false;
    for (std::uint64_t end = page_; end <= input; end += page_) {
      const auto last = blocks.begin() + static_cast<std::ptrdiff_t>((end + block_ - 1) / block_);
      const bool fresh = seen_.insert({end, {blocks.begin(), last}}).second;
      missed |= fresh || end > input - 1;  // the last token is always computed
      if (!missed) hit = end;
    }
    return hit;
  }

 private:
  std::uint64_t block_, page_;
  std::set<std::pair<std::uint64_t, std::vector<std::uint64_t>>> seen_;
};

std::uint64_t compulsory_hits(const TraceText& trace, std::uint64_t block, std::uint64_t page) {
  Compulsory cache(block, page);
  std::istringstream lines(trace.text());
  std::uint64_t hits = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json request = Json::parse(line);
    hits += cache.hit(request.at("input_length").get<std::uint64_t>(),
                      request.at("hash_ids").get<std::vector<std::uint64_t>>());
  }
  return hits;
}

TEST(Accounts, InfiniteCacheMissesWhatIsCompulsory) {
  for (const std::uint64_t page : {1U, 16U, 48U, 64U, 512U}) {
    SCOPED_TRACE(page);
    const Folder folder;
    // One request at a time, because pages that are being computed cannot be hit.
    const TraceText trace = conversations({.requests = 150, .least_gap_ms = 60'000}, 5);
    const std::uint64_t expected = compulsory_hits(trace, 64, page);
    const Settings settings = trace.save(folder) + Settings{key("cache.page_tokens", page)};
    const Simulated device = simulate(settings + Settings{"tiers.device.tokens=4000000"});
    EXPECT_EQ(device.tokens("hit_device"), expected);
    // The same with a host tier, and a device that holds little more than one request.
    const Simulated host = simulate(settings + Settings{"tiers.device.tokens=32768", "tiers.host.tokens=4000000"});
    if (page > 10) {  // shorter host hits are computed: cache.load_back_min_tokens
      EXPECT_EQ(host.tokens("hit_device") + host.tokens("hit_host"), expected);
    }
    EXPECT_GT(host.tokens("hit_host"), 0U);
    EXPECT_EQ(host.requests("completed"), 150U);
  }
}

TEST(Accounts, NoCacheHitsMoreThanAnInfiniteOne) {
  for (std::uint64_t seed = 10; seed < 16; ++seed) {
    const Folder folder;
    const TraceText trace = conversations({.requests = 250}, seed);
    const Simulated run =
        simulate(trace.save(folder) + Settings{"tiers.device.tokens=" + std::to_string(16384 * (seed - 8)),
                                               "tiers.host.tokens=" + std::to_string(32768 * (seed - 10))});
    EXPECT_LE(run.tokens("hit_device") + run.tokens("hit_host"), compulsory_hits(trace, 64, 64));
  }
}

TEST(Accounts, EmptyLowerTierIsNoTier) {
  const Folder folder;
  const Settings base = conversations({.requests = 250}, 6).save(folder) + Settings{"tiers.device.tokens=20032"};
  const Simulated none = simulate(base);
  for (const char* empty : {"tiers.host.gib=0", "tiers.host.tokens=0", "tiers.host.gib=0.0"}) {
    const Simulated run = simulate(base + Settings{empty});
    EXPECT_EQ(without_costs(run.report), without_costs(none.report)) << empty;
    EXPECT_EQ(run.requests_csv, none.requests_csv) << empty;
    EXPECT_EQ(run.lanes_csv, none.lanes_csv) << empty;
  }
  EXPECT_EQ(none.lane_bytes("gpu0.d2h"), 0U);
  EXPECT_EQ(none.lane_bytes("gpu0.h2d"), 0U);
}

TEST(Accounts, SeedMovesTheGeneratorAndNothingElse) {
  const Settings generated{"workload.generate.requests=150"};
  const Simulated one = simulate(generated + Settings{"seed=7"});
  const Simulated same = simulate(generated + Settings{"seed=7"});
  const Simulated other = simulate(generated + Settings{"seed=8"});
  EXPECT_EQ(without_costs(one.report), without_costs(same.report));
  EXPECT_EQ(one.requests_csv, same.requests_csv);
  EXPECT_NE(one.digest(), other.digest());
  EXPECT_NE(one.requests_csv, other.requests_csv);

  const Folder folder;
  const Settings traced = conversations({.requests = 100}, 1).save(folder);
  EXPECT_EQ(simulate(traced + Settings{"seed=7"}).requests_csv, simulate(traced + Settings{"seed=8"}).requests_csv);
}

// Later requests do not change the results of earlier requests.
TEST(Accounts, LimitCutsAndChangesNothingBefore) {
  const Folder folder;
  const Settings base = conversations({.requests = 200, .least_gap_ms = 60'000}, 7).save(folder) +
                        Settings{"tiers.device.tokens=20032", "tiers.host.tokens=60032"};
  const std::string all = simulate(base).requests_csv;
  const std::string some = simulate(base + Settings{"workload.limit=80"}).requests_csv;
  EXPECT_EQ(all.substr(0, some.size()), some);
  EXPECT_EQ(Table(some).size(), 80U);
}

}  // namespace
}  // namespace kvtwin::test

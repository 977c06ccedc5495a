// Policies that use knowledge of the future: the waiting queue, and hints about sessions.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "policy/index/radix_tree.hpp"
#include "sim/bounds/hitrate.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kBlock = 512;

struct Request {
  TimeNs time = 0;
  std::vector<PageKey> keys;
  Tokens output = 100;
  std::uint64_t session = 0;
  std::optional<Hint> hint = std::nullopt;  // if set, the input is this hint instead of a request
};

class Requests final : public InputSource {
 public:
  explicit Requests(const std::vector<Request>& requests) : requests_(requests) {}
  bool next(Input& input) override {
    if (at_ == requests_.size()) return false;
    const Request& request = requests_[at_++];
    if (request.hint) {
      input = {request.time, *request.hint};
      return true;
    }
    Arrival arrival;
    arrival.request = served_++;
    arrival.session = request.session;
    arrival.prompt_tokens = request.keys.size() * kBlock;
    arrival.output_tokens = request.output;
    arrival.keys = request.keys;
    input = {request.time, arrival};
    return true;
  }

 private:
  const std::vector<Request>& requests_;
  std::size_t at_ = 0;
  RequestId served_ = 0;
};

HitRate replay(const std::vector<Request>& requests, std::string_view eviction, Pages capacity, std::size_t view = 0,
               unsigned end_hints = 0) {
  Requests source(requests);
  HitRateConfig config;
  config.evictions = {std::string(eviction)};
  config.capacities = {capacity};
  config.queue_view = view;
  config.end_hints = end_hints;
  return replay_hit_rates(source, config).front();
}

std::vector<Request> bushy_trace(std::uint64_t seed, std::size_t requests) {
  test::Splitmix random(seed);
  std::vector<Request> trace;
  TimeNs now = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    std::vector<std::uint64_t> tokens(random.between(1, 10));
    for (std::uint64_t& token : tokens) token = random.chance(60) ? 0 : random.below(3);
    now += static_cast<TimeNs>(random.below(5'000'000'000));
    trace.push_back({now, test::chain(tokens), random.below(3'000)});
  }
  return trace;
}

// Returns the hits of look-ahead LRU, computed page by page from its definition: a page that one of the next `view`
// requests uses is evicted after all others.
std::uint64_t look_ahead_lru(const std::vector<Request>& trace, std::size_t capacity, std::size_t view) {
  struct Page {
    PageKey parent;
    std::size_t last = 0, inserted = 0;
  };
  std::map<PageKey, Page> pages;
  std::uint64_t hits = 0;
  std::size_t inserted = 0;
  for (std::size_t now = 0; now < trace.size(); ++now) {
    const std::vector<PageKey>& keys = trace[now].keys;
    std::size_t hit = 0;
    for (; hit < keys.size() && pages.contains(keys[hit]); ++hit) pages[keys[hit]].last = now;
    hits += hit;
    const std::set<PageKey> path(keys.begin(), keys.end());
    const auto evict = [&] {
      std::set<PageKey> parents;
      for (const auto& [key, page] : pages) parents.insert(page.parent);
      using Rank = std::tuple<bool, std::size_t, std::size_t>;
      std::optional<std::pair<Rank, PageKey>> victim;
      for (const auto& [key, page] : pages) {
        if (parents.contains(key) || path.contains(key)) continue;
        Rank rank{false, page.last, page.inserted};
        for (std::size_t next = std::min(now + view, trace.size() - 1); next > now; --next) {
          if (std::ranges::find(trace[next].keys, key) != trace[next].keys.end()) rank = {true, ~next, page.inserted};
        }
        if (!victim || rank < victim->first) victim = {rank, key};
      }
      if (victim) pages.erase(victim->second);
      return victim.has_value();
    };
    while (capacity - pages.size() < keys.size() - hit && evict()) {
    }
    for (std::size_t i = hit; i < keys.size() && pages.size() < capacity; ++i) {
      pages[keys[i]] = {i == 0 ? PageKey{} : keys[i - 1], now, ++inserted};
    }
  }
  return hits;
}

TEST(Queue, IsLookAheadLruToTheHit) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const std::vector<Request> trace = bushy_trace(seed, 120);
    const Pages capacity = 1 + test::mix(seed) % 40;
    const std::size_t view = test::mix(seed + 1) % 20;
    ASSERT_EQ(replay(trace, "queue", capacity, view).hit_blocks, look_ahead_lru(trace, capacity, view));
  }
}

TEST(Queue, IsLruIfNobodyWaits) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<Request> trace = bushy_trace(seed, 120);
    ASSERT_EQ(replay(trace, "queue", 20).hit_blocks, replay(trace, "lru", 20).hit_blocks);
  }
}

TEST(LookingAhead, HitsNoMoreThanIsPossible) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const std::vector<Request> trace = bushy_trace(seed, 80);
    const Pages capacity = 1 + test::mix(seed) % 40;
    const std::uint64_t best = replay(trace, "opt", capacity).hit_blocks;
    for (const std::string_view eviction : {"queue", "tide"}) {
      for (const std::size_t view : {1U, 8U, 500U}) {
        ASSERT_LE(replay(trace, eviction, capacity, view).hit_blocks, best) << eviction;
        ASSERT_LE(replay(trace, eviction, capacity, view, 80).hit_blocks, best) << eviction;
      }
    }
  }
}

// Returns the requests of conversations. Half of them have one turn, the others have four, and the first turn does not
// show which.
std::vector<Request> chats(std::size_t conversations, std::uint64_t seed) {
  test::Splitmix random(seed);
  std::multimap<TimeNs, std::vector<std::uint64_t>> turns;
  for (std::uint64_t c = 0; c < conversations; ++c) {
    std::vector<std::uint64_t> tokens;
    TimeNs time = static_cast<TimeNs>(c) * kNsPerSecond;
    for (int turn = 0; turn < (c % 2 == 0 ? 1 : 4); ++turn) {
      for (int i = 0; i < 4; ++i) tokens.push_back(1'000 + c * 100 + tokens.size());
      turns.emplace(time, tokens);
      time += static_cast<TimeNs>(random.between(60, 180)) * kNsPerSecond;
    }
  }
  std::vector<Request> trace;
  for (const auto& [time, tokens] : turns) trace.push_back({time, test::chain(tokens), 300});
  return trace;
}

TEST(LookingAhead, Pays) {
  const std::vector<Request> trace = chats(1'500, 1);
  const double tide = replay(trace, "tide", 400).saved_cost;
  EXPECT_GT(replay(trace, "tide", 400, 256).saved_cost, 1.2 * tide);
  EXPECT_GT(replay(trace, "queue", 400, 256).saved_cost, 1.2 * replay(trace, "lru", 400).saved_cost);
}

// The policy learns how reliable the hints are, so even hints that are always wrong are useful.
TEST(EndHints, Pay) {
  const auto saved = [](unsigned accuracy) {
    double sum = 0;
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      sum += replay(chats(1'500, seed), "tide", 1'500, 0, accuracy).saved_cost;
    }
    return sum;
  };
  const double none = saved(0), good = saved(80);
  EXPECT_GT(good, 1.03 * none);
  EXPECT_GT(saved(100), 1.02 * good);
  EXPECT_GT(saved(1), good);
  EXPECT_GT(saved(50), 0.97 * none);
}

// The pages that move from the device down to an exclusive host were used before, and hits on them count for the host.
TEST(Tide, SavesMoreThanLruBelowAnExclusiveTierToo) {
  const std::vector<Request> trace = chats(3'000, 1);
  const auto saved = [&](std::string_view eviction) {
    Requests source(trace);
    HitRateConfig config;
    config.evictions = {std::string(eviction)};
    config.capacities = {300};
    config.host_capacity = 700;
    config.exclusive = true;
    return replay_hit_rates(source, config).front().saved_cost;
  };
  EXPECT_GT(saved("tide"), 3 * saved("lru"));
}

// ---- pins

class Script {
 public:
  // Serves a request with `blocks` blocks, which are numbered from `first` on.
  Script& serve(std::uint64_t session, std::uint64_t first, std::size_t blocks) {
    std::vector<std::uint64_t> ids(blocks);
    for (std::uint64_t& id : ids) id = 1'000'000 + first++;
    steps_.push_back({now(), test::chain(ids), 100, session, std::nullopt});
    return *this;
  }
  Script& hint(HintKind kind, std::uint64_t session, std::int64_t value = 0) {
    steps_.push_back({now(), {}, 0, 0, Hint{kind, session, value}});
    return *this;
  }
  // Uses the same sixty blocks in each round, with one request per block.
  Script& hot(int rounds) {
    for (int i = 0; i < 60 * rounds; ++i) serve(0, 900'000 + 10 * static_cast<std::uint64_t>(i % 60), 1);
    return *this;
  }
  Script& flood(int requests) {
    for (int i = 0; i < requests; ++i) serve(0, 500'000 + 100 * static_cast<std::uint64_t>(i), 5);
    return *this;
  }
  std::uint64_t hits(std::string_view eviction) const { return replay(steps_, eviction, 100).hit_blocks; }

 private:
  TimeNs now() { return time_ += kNsPerSecond; }
  TimeNs time_ = 0;
  std::vector<Request> steps_;
};

TEST(Pins, HoldWhatTheirSessionUsedLast) {
  for (const bool pinned : {false, true}) {
    Script script;
    script.serve(7, 0, 10);
    if (pinned) script.hint(HintKind::pin, 7);
    script.flood(400).serve(7, 0, 10);
    EXPECT_EQ(script.hits("tide"), pinned ? 10U : 0U);
  }
}

TEST(Pins, EndAtTheirTime) {
  Script script;
  script.serve(7, 0, 10).hint(HintKind::pin, 7, 60'000).flood(400).serve(7, 0, 10);
  EXPECT_EQ(script.hits("tide"), 0U);
}

TEST(Pins, GoOnWithTheirSession) {
  Script script;
  for (std::uint64_t s = 1; s <= 18; ++s) {
    script.serve(s, 100 * s, 5).hint(HintKind::pin, s).serve(s, 100 * s + 50, 1).hint(HintKind::unpin, s);
  }
  script.hot(40);
  EXPECT_GT(script.hits("tide"), script.hits("lru") * 9 / 10);
}

TEST(Pins, HaveAFifthOfTheTierThoughTheirSessionsGrow) {
  Script script;
  for (std::uint64_t s = 1; s <= 4; ++s) script.serve(s, 100 * s, 1).hint(HintKind::pin, s);
  for (std::uint64_t s = 1; s <= 4; ++s) script.serve(s, 100 * s, 22);
  script.hot(25);
  EXPECT_GT(script.hits("tide"), script.hits("lru") * 9 / 10);
}

TEST(Pins, EndByTheirSessionsNameWhoeverHasItsPlace) {
  Script script;
  for (std::uint64_t s = 1; s <= 18; ++s) {
    script.serve(s, 100 * s, 5).hint(HintKind::pin, s).serve(s + 4096, 100 * s + 50, 1).hint(HintKind::unpin, s);
  }
  script.hot(45);
  EXPECT_GT(script.hits("tide"), script.hits("lru") * 9 / 10);
}

}  // namespace
}  // namespace kvtwin

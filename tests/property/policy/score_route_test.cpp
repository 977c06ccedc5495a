// The route `score` against a slow model: a map of pages per engine, exact fractions, and a scan of all engines.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "policy/base/wide.hpp"
#include "policy/route.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kOne = std::uint64_t{1} << 32;

std::uint64_t share(std::uint64_t part, std::uint64_t whole) {
  return static_cast<std::uint64_t>(UnsignedWide{std::min(part, whole)} * kOne / whole);
}

PageKey key_of(std::uint64_t document, std::uint64_t page) {
  // Documents share their first two pages with every fourth document.
  const std::uint64_t own = page < 2 ? document % 4 : document;
  PageKey key;
  key.words[0] = mix(own * 100 + page + 1);
  key.words[1] = own * 100 + page;
  return key;
}

struct SlowEngine {
  std::uint64_t open = 0, running = 0;
  Pages running_pages = 0;
  std::map<std::uint64_t, std::set<Tier>> tiers_of;  // by words[1]
};

// Weights and shares, in 1/1024.
struct Terms {
  std::uint32_t queue, kv, prefix, storage_share, host_share = 819;  // 0.8, the default
};

// n / 1024, in full.
std::string in_decimals(std::uint32_t n) {
  std::string text = std::to_string(n / 1024) + ".";
  for (std::uint32_t rest = n % 1024, digit = 0; digit < 10; ++digit) {
    rest *= 10;
    text += static_cast<char>('0' + rest / 1024);
    rest %= 1024;
  }
  return text;
}

std::size_t slow_route(const std::vector<SlowEngine>& engines, const std::set<std::uint64_t>& shared,
                       const RouterSetup& setup, const Terms& terms, const std::vector<PageKey>& keys) {
  std::uint64_t least = ~std::uint64_t{0}, most = 0;
  for (const SlowEngine& engine : engines) {
    least = std::min(least, engine.open - engine.running);
    most = std::max(most, engine.open - engine.running);
  }
  std::size_t best = 0;
  UnsignedWide best_score = 0;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const SlowEngine& engine = engines[i];
    std::uint64_t worth = 0;
    std::size_t page = 0;
    for (; page < keys.size() && engine.tiers_of.contains(keys[page].words[1]); ++page) {
      const bool device = engine.tiers_of.at(keys[page].words[1]).contains(Tier::device);
      worth += device ? std::max(1024U, terms.host_share) : terms.host_share;
    }
    for (; page < keys.size() && shared.contains(keys[page].words[1]); ++page) worth += terms.storage_share;
    const std::uint64_t queue = most == least ? kOne : share(most - (engine.open - engine.running), most - least);
    const UnsignedWide score = UnsignedWide{queue} * terms.queue +
                               UnsignedWide{kOne - share(engine.running_pages, setup.device_pages)} * terms.kv +
                               UnsignedWide{share(worth, 1024 * std::max<std::size_t>(1, keys.size()))} * terms.prefix;
    if (i != 0 && (score < best_score || (score == best_score && engine.open >= engines[best].open))) continue;
    best = i;
    best_score = score;
  }
  return best;
}

void compare_with_the_model(std::uint64_t seed) {
  Splitmix random(seed);
  RouterSetup setup;
  setup.engines = random.chance(30) ? random.between(10, 40) : random.between(1, 9);  // many: tables of holders
  setup.device_pages = random.between(5, 60);
  setup.page_tokens = 1;
  setup.shared_pages = 100'000;
  Terms terms{};
  terms.queue = static_cast<std::uint32_t>(random.below(4096));
  terms.kv = static_cast<std::uint32_t>(random.below(4096));
  terms.prefix = static_cast<std::uint32_t>(random.below(4096));
  terms.storage_share = random.chance(50) ? 0 : static_cast<std::uint32_t>(random.below(1025));
  const auto router = make_router("score(queue=" + in_decimals(terms.queue) + ", kv=" + in_decimals(terms.kv) +
                                      ", prefix=" + in_decimals(terms.prefix) +
                                      ", storage_share=" + in_decimals(terms.storage_share) + ")",
                                  setup);
  std::vector<SlowEngine> engines(setup.engines);
  std::set<std::uint64_t> shared;
  const auto some_keys = [&](std::size_t first) {
    std::vector<PageKey> keys;
    const std::uint64_t document = random.below(12);
    for (std::uint64_t page = first; page < 8; ++page) keys.push_back(key_of(document, page));
    keys.resize(random.below(keys.size() + 1));
    return keys;
  };
  for (int i = 0; i < 600; ++i) {
    SlowEngine& engine = engines[random.below(engines.size())];
    const auto number = static_cast<std::size_t>(&engine - engines.data());
    const Tier tier = random.chance(50) ? Tier::device : Tier::host;
    switch (random.below(7)) {
      case 0: {
        const std::vector<PageKey> keys = some_keys(random.below(4));
        router->stored(number, tier, keys);
        for (const PageKey& key : keys) engine.tiers_of[key.words[1]].insert(tier);
        break;
      }
      case 1: {
        const std::vector<PageKey> keys = some_keys(random.below(4));
        router->removed(number, tier, keys);
        for (const PageKey& key : keys) {
          engine.tiers_of[key.words[1]].erase(tier);
          if (engine.tiers_of[key.words[1]].empty()) engine.tiers_of.erase(key.words[1]);
        }
        break;
      }
      case 2: {
        const std::vector<PageKey> keys = some_keys(0);
        router->stored_for_all(keys);
        for (const PageKey& key : keys) shared.insert(key.words[1]);
        break;
      }
      case 3:
        if (engine.open == engine.running) break;
        router->admitted(number, 3);
        ++engine.running;
        engine.running_pages += 3;
        break;
      case 4:
        if (engine.running == 0) break;
        router->left(number, 3);
        --engine.running;
        engine.running_pages -= 3;
        if (random.chance(20)) break;  // retracted
        router->ended(number);
        --engine.open;
        break;
      default: {
        const std::vector<PageKey> keys = some_keys(0);
        Arrival arrival;
        arrival.prompt_tokens = arrival.output_tokens = 1;
        arrival.keys = keys;
        const std::size_t expected = slow_route(engines, shared, setup, terms, keys);
        ASSERT_EQ(router->route(arrival), expected) << "step " << i;
        ++engines[expected].open;
      }
    }
  }
}

TEST(ScoreRoute, RoutesAsTheModel) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_NO_FATAL_FAILURE(compare_with_the_model(seed));
  }
}

}  // namespace
}  // namespace kvtwin::test

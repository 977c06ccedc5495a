// Tests storage tiers of models with windows or states, one completion at a time. Pages have four tokens.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "stored_rig.hpp"
#include "tests/paths.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kWindow = 1, kState = 2;  // pools of config_of(); with states alone, they are pool 1

// With windows of two pages, with states, or with both.
EngineConfig config_of(bool windows, bool states, PrefetchStyle style = PrefetchStyle::kvtwin) {
  EngineConfig config = stored_config(64, 64);
  config.prefetch_min_tokens = 1;
  config.prefetch_style = style;
  config.evict_unit = EvictUnit::node;
  config.max_running = 2;
  if (windows) config.pools.push_back({Closure::tail, 2 * kPage, 160, 40, config.shape});
  if (states) {
    config.state_points = "extra_buffer(chunk=4, interval=16)";
    config.pools.push_back({Closure::point, 0, 12, 8, config.shape});
  }
  return config;
}

void put_of_pool(EngineRig& rig, const std::vector<PageKey>& keys, std::size_t pool, std::initializer_list<int> pages) {
  for (const int page : pages) {  // counted from 1 on
    store_of(rig).insert(pool_page_key(keys[static_cast<std::size_t>(page - 1)], pool));
  }
}

// Other requests take all of L1 and L2.
void evict_all(EngineRig& rig) {
  for (std::uint64_t other = 2; other < 12; ++other) {
    rig.arrive(other, chain(other, 14), 57, 1);
    rig.drain();
  }
}

// Returns the tokens of a prompt of ten pages and one token that come from the disk.
Tokens hit_with(bool windows, bool states, PrefetchStyle style = PrefetchStyle::kvtwin) {
  EngineRig rig(config_of(windows, states, style));
  const std::vector<PageKey> keys = chain(1, 10);
  put(rig, keys);
  if (windows) put_of_pool(rig, keys, kWindow, {3, 4, 5, 9, 10});
  if (states) put_of_pool(rig, keys, windows ? kState : 1, {4, 8});
  rig.arrive(0, keys, 41, 1);
  expect_rest(rig);
  return last(rig).hit[Tier::disk];
}

// What SGLang's file storage answers for the same objects: {4, 5, 10}, {4, 8} and {4}.
TEST(PoolStorage, reads_the_longest_prefix_that_is_usable) {
  for (const PrefetchStyle style : {PrefetchStyle::kvtwin, PrefetchStyle::sglang}) {
    EXPECT_EQ(hit_with(true, false, style), 10 * kPage);
    EXPECT_EQ(hit_with(false, true, style), 8 * kPage);
    EXPECT_EQ(hit_with(true, true, style), 4 * kPage);
  }
}

std::vector<bool> objects(const std::string& text) {
  std::vector<bool> there;
  for (const char c : text) there.push_back(c == '1');
  return there;
}

// The rows are what SGLang's own file storage answered (tests/sglang/usable_lengths.py).
TEST(PoolStorage, usable_lengths_are_those_of_SGLang) {
  std::ifstream file(in_source("tests/fixtures/sglang/usable_lengths.tsv"));
  std::string line;
  std::getline(file, line);
  std::size_t rows = 0;
  for (; std::getline(file, line); ++rows) {
    std::istringstream cells(line);
    std::string pages, windows, states, lengths;
    Pages window = 0;
    cells >> pages >> windows >> window >> states >> lengths;
    std::vector<StorageOperation::Need> needs;
    if (window != 0) needs.push_back({kWindow, window, true});
    if (states != "-") needs.push_back({kState, 1, false});
    const std::array there{objects(windows), objects(states)};
    const Pages leading = std::min(pages.find('0'), pages.size());
    std::string usable;
    for (const Pages length : usable_lengths(
             needs, leading, [&](std::size_t pool, Pages page) { return static_cast<bool>(there[pool - 1][page]); })) {
      usable += (usable.empty() ? "" : ",") + std::to_string(length);
    }
    EXPECT_EQ(usable.empty() ? "-" : usable, lengths) << line;
  }
  EXPECT_GT(rows, 100U);
}

TEST(PoolStorage, ranks_read_the_longest_prefix_that_all_of_them_have) {
  constexpr std::size_t kUsable = 12, kDistance = 13;  // in the reduction, of the first tier
  constexpr std::int64_t kMostPages = std::int64_t{1} << 40;
  for (const int theirs : {8, 4, 2}) {
    const Tokens pages = theirs == 2 ? 0 : static_cast<Tokens>(theirs);
    EngineConfig config = config_of(false, true);
    config.ranks = 2;
    EngineRig rig(config);
    const std::vector<PageKey> keys = chain(1, 10);
    put(rig, keys);
    put_of_pool(rig, keys, 1, {4, 8});
    // Of the lengths 4 and 8, the other rank has 8 and 4, 4 alone, or none, but 2.
    rig.other_ranks = [&rig, theirs](ReduceVector& values) {
      if (rig.world.stored.empty() && values[kUsable] == 0 && values[kDistance] == 0) return;
      const std::int64_t most = theirs == 2 && values[kUsable] < 2 ? 0 : theirs;
      values[kUsable] = std::min<std::int64_t>(values[kUsable], most);
      values[kDistance] = std::min<std::int64_t>(values[kDistance], kMostPages - std::min<std::int64_t>(most, 8));
    };
    rig.arrive(0, keys, 41, 1);
    rig.complete_stored();  // the look-up
    rig.other_ranks = {};
    expect_rest(rig);
    EXPECT_EQ(last(rig).hit[Tier::disk], pages * kPage) << theirs;
    EXPECT_EQ(rig.events.page_count(EventKind::prefetch_started), pages) << "nothing else is read";
  }
}

TEST(PoolStorage, what_is_beside_a_page_is_written_with_it) {
  EngineRig rig(config_of(true, true));
  const std::vector<PageKey> keys = chain(1, 8);
  rig.arrive(0, keys, 33, 1);
  expect_rest(rig);
  expect_stored(rig, keys);
  const std::set<PageKey>& store = store_of(rig);
  EXPECT_TRUE(store.contains(pool_page_key(keys[7], kWindow)) && store.contains(pool_page_key(keys[6], kWindow)));
  EXPECT_TRUE(store.contains(pool_page_key(keys[7], kState)));
  EXPECT_FALSE(store.contains(pool_page_key(keys[6], kState)));
  const std::size_t size = store.size();
  rig.arrive(1, keys, 33, 1);
  expect_rest(rig);
  EXPECT_EQ(store.size(), size) << "what is there is not written again";
}

// The second request of a shared prefix leaves a state where it parts, in a node that L2 has already.
TEST(PoolStorage, a_state_that_comes_later_is_written_too) {
  EngineRig rig(config_of(false, true));
  rig.arrive(0, chain(1, 8), 33, 1);
  expect_rest(rig);
  rig.arrive(1, branch(1, 6, 2, 10), 41, 1);
  expect_rest(rig);
  EXPECT_TRUE(store_of(rig).contains(pool_page_key(chain(1, 6).back(), 1)));
}

// What has arrived of a prefetch is freed if the state does not come.
TEST(PoolStorage, a_prefix_whose_state_is_lost_is_of_no_use) {
  EngineRig rig(config_of(false, true));
  const std::vector<PageKey> keys = chain(1, 8);
  rig.arrive(0, keys, 33, 1);
  expect_rest(rig);  // writes pages and state
  evict_all(rig);
  rig.arrive(20, keys, 33, 1);
  rig.complete_stored();         // the look-up
  rig.complete_stored(kGet, 8);  // the pages
  store_of(rig).erase(pool_page_key(keys[7], 1));
  rig.complete_stored(kGet, 0);  // the state
  expect_rest(rig);
  EXPECT_EQ(record_of(rig, 20).hit[Tier::disk], 0U);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_wasted, Reason::transfer_failed), 1U);
  EXPECT_TRUE(store_of(rig).contains(pool_page_key(keys[7], 1))) << "the request has written it again";
}

EngineConfig with_two_tiers(bool windows, bool states) {
  EngineConfig config = config_of(windows, states);
  config.storage.push_back({Tier::remote, 1000, false});
  return config;
}

void put_at(EngineRig& rig, Tier tier, const std::vector<PageKey>& keys, std::size_t pool) {
  for (const PageKey& key : keys) store_of(rig, tier).insert(pool == 0 ? key : pool_page_key(key, pool));
}

// The nearer tier has the pages alone.
TEST(PoolStorage, asks_the_next_tier_for_the_state_that_one_lacks) {
  EngineRig rig(with_two_tiers(false, true));
  const std::vector<PageKey> keys = chain(1, 8);
  put_at(rig, Tier::disk, keys, 0);
  put_at(rig, Tier::remote, keys, 0);
  put_at(rig, Tier::remote, {keys.back()}, 1);
  rig.arrive(0, keys, 33, 1);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit.sum(), 32U);
  EXPECT_EQ(last(rig).hit[Tier::remote], 32U);
}

// The window cuts the node that enters the index.
TEST(PoolStorage, nearer_tiers_get_all_pages_of_a_farther_one) {
  EngineRig rig(with_two_tiers(true, false));
  const std::vector<PageKey> keys = chain(1, 10);
  put_at(rig, Tier::remote, keys, 0);
  put_at(rig, Tier::remote, {keys.end() - 2, keys.end()}, kWindow);
  rig.arrive(0, keys, 41, 1);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::remote], 40U);
  expect_stored(rig, keys, Tier::disk);
  EXPECT_TRUE(store_of(rig, Tier::disk).contains(pool_page_key(keys[9], kWindow)));
}

// Behind the pages of a nearer tier, a part of a window is never enough. That says nothing of what is there.
TEST(PoolStorage, what_is_not_usable_behind_another_tier_is_not_taken_for_lost) {
  EngineConfig config = with_two_tiers(true, false);
  config.host_pages = 100;
  config.storage_write_share = 8192;
  config.pools[0] = {Closure::tail, 8 * kPage, 400, 100, config.shape};
  EngineRig rig(config);
  const std::vector<PageKey> keys = chain(1, 13);
  rig.arrive(0, keys, 53, 1);
  expect_rest(rig);  // both tiers have all
  evict_all(rig);
  const std::uint64_t writes = rig.events.count(EventKind::store_queued);
  for (const PageKey& key : std::vector<PageKey>(keys.begin() + 10, keys.end())) store_of(rig).erase(key);
  rig.arrive(20, keys, 53, 1);
  expect_rest(rig);
  EXPECT_GE(record_of(rig, 20).hit[Tier::disk], 40U);
  for (const PageKey& key : keys) EXPECT_TRUE(store_of(rig, Tier::remote).contains(pool_page_key(key, kWindow)));
  EXPECT_EQ(in_flight(rig, kRemove), 0U);
  EXPECT_LE(rig.events.count(EventKind::store_queued), writes + 4) << "the lost pages of the disk, and no more";
}

}  // namespace
}  // namespace kvtwin

// What tide is made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "policy/eviction/tide/lru_shadow.hpp"
#include "policy/eviction/tide/returns.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

// ---- Returns ------------------------------------------------------------------------------------------------------

Returns::Facts visit_at(TimeNs time, Tokens prompt, Tokens output = 300) {
  return {time, prompt, output, prompt / 512, 0, 0, kNoRecord};
}

// Conversations, one begun each second: all of the short ones come back once, after 40 to 60 s; no long one does.
struct Chats {
  Returns returns;
  TimeNs now = 0;
  RecordId last_short = kNoRecord, last_long = kNoRecord, last_second = kNoRecord;

  explicit Chats(int seconds) {
    test::Splitmix random(7);
    std::multimap<TimeNs, RecordId> due;
    for (int second = 0; second < seconds; ++second) {
      now = second * kNsPerSecond;
      for (; !due.empty() && due.begin()->first <= now; due.erase(due.begin())) {
        Returns::Facts facts = visit_at(due.begin()->first, 3'000);
        facts.previous = due.begin()->second;
        facts.known = returns.pages_of(facts.previous);
        facts.known_tokens = 512 * facts.known;
        last_second = returns.begin(facts);
      }
      if (random.chance(50)) {
        last_short = returns.begin(visit_at(now, 2'000));
        due.emplace(now + static_cast<TimeNs>(random.between(40, 60)) * kNsPerSecond, last_short);
      } else {
        last_long = returns.begin(visit_at(now, 40'000));
      }
    }
  }
  std::uint32_t chance(RecordId id) const { return returns.outlook(id).chance; }
  std::uint64_t density(RecordId id, std::int64_t seconds) const {
    return returns.density(returns.outlook(id), seconds * kNsPerSecond);
  }
};

TEST(Returns, LearnWhoComesBack) {
  const Chats chats(4'000);
  EXPECT_GT(chats.chance(chats.last_short), 45U);
  EXPECT_LT(chats.chance(chats.last_long), 5U);
  EXPECT_LT(chats.chance(chats.last_second), 5U);
}

TEST(Returns, AreBelievedInLessBeforeAnythingIsKnown) {
  Returns returns;
  const RecordId first = returns.begin(visit_at(0, 2'000));
  EXPECT_GT(returns.outlook(first).chance, 5U);
  EXPECT_LT(returns.outlook(first).chance, 30U);
}

TEST(Returns, AreWorthMostShortlyBeforeTheyComeAndLittleAfter) {
  const Chats chats(4'000);
  const RecordId id = chats.last_short;
  EXPECT_LT(chats.density(id, 1), chats.density(id, 30));
  EXPECT_LT(chats.density(id, 30), chats.density(id, 42));
  EXPECT_LT(chats.density(id, 300), chats.density(id, 1) / 4);
  EXPECT_LT(chats.density(chats.last_long, 1), chats.density(id, 1) / 4);
}

TEST(Returns, CountByTheShareOfThePathThatTheyTakeUp) {
  // All come back, for a quarter of the path.
  Returns returns;
  RecordId id = kNoRecord;
  for (int i = 0; i < 4'000; ++i) {
    Returns::Facts facts = visit_at(i * kNsPerSecond, 10'240);
    if (i % 2 == 1) facts.previous = id, facts.known = 5, facts.known_tokens = 5 * 512;
    id = returns.begin(facts);
  }
  Returns::Facts facts = visit_at(4'000 * kNsPerSecond, 10'240);
  EXPECT_NEAR(returns.outlook(returns.begin(facts)).chance, Returns::kChances / 4, 3);
}

TEST(Returns, OfForgottenRecordsAreNone) {
  Returns returns;
  const RecordId first = returns.begin(visit_at(0, 2'000));
  EXPECT_EQ(returns.pages_of(first), 3U);
  for (int i = 0; i < 20'000; ++i) returns.begin(visit_at(i, 600));
  EXPECT_EQ(returns.pages_of(first), 0U);
  Returns::Facts facts = visit_at(20'000, 4'000);
  facts.previous = first;
  EXPECT_EQ(returns.pages_of(returns.begin(facts)), 7U);  // as a first turn
}

TEST(Returns, BearTimesAndLengthsOfAnySize) {
  Returns returns;
  RecordId id = kNoRecord;
  for (const TimeNs time : {TimeNs{0}, TimeNs{1}, TimeNs{1} << 40, TimeNs{1} << 61, (TimeNs{1} << 61) + 5}) {
    Returns::Facts facts = visit_at(time, Tokens{1} << 29, Tokens{1} << 29);
    facts.previous = id;
    facts.known = returns.pages_of(id);
    id = returns.begin(facts);
    for (const TimeNs age : {TimeNs{-5}, TimeNs{0}, TimeNs{1} << 61}) {
      EXPECT_LT(returns.density(returns.outlook(id), age), std::uint64_t{1} << 49);  // times a cost fits in 64 bits
    }
  }
}

// ---- LruShadow ----------------------------------------------------------------------------------------------------

// A visit uses one page: then the shadow is LRU, exactly.
TEST(LruShadow, HoldsWhatLruHolds) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    test::Splitmix random(seed);
    const Pages capacity = random.between(1, 20);
    LruShadow shadow(capacity);
    std::map<std::uint64_t, std::uint64_t> last;  // visit, by page
    std::list<std::uint64_t> lru;                 // the page used last first
    for (std::uint64_t visit = 1; visit <= 500; ++visit) {
      const std::uint64_t page = random.below(40);
      const bool held = std::find(lru.begin(), lru.end(), page) != lru.end();
      ASSERT_EQ(last.contains(page) && shadow.holds(last[page]), held) << "seed " << seed << ", visit " << visit;
      shadow.begin_visit();
      shadow.move(1, last.contains(page) ? last[page] : 0);
      last[page] = visit;
      lru.remove(page);
      lru.push_front(page);
      if (lru.size() > capacity) lru.pop_back();
    }
  }
}

}  // namespace
}  // namespace kvtwin

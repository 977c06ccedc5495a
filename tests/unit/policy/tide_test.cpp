// What tide is made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "policy/eviction/tide/lru_shadow.hpp"
#include "policy/eviction/tide/returns.hpp"
#include "policy/radix_tree.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

// ---- Returns ------------------------------------------------------------------------------------------------------

Returns::Facts visit_at(TimeNs time, Tokens prompt, Tokens output = 300) {
  return {time, prompt, output, prompt / 512, 0, 0, kNoRecord};
}

// A request's first visit, and what there is to learn by then.
RecordId seen(Returns& returns, const Returns::Facts& facts) {
  const RecordId id = returns.begin(facts);
  returns.learn();
  return id;
}

constexpr std::uint32_t kLikely = Returns::kChances * 9 / 10, kUnlikely = Returns::kChances / 10;

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
        last_second = seen(returns, facts);
      }
      if (random.chance(50)) {
        last_short = seen(returns, visit_at(now, 2'000));
        due.emplace(now + static_cast<TimeNs>(random.between(40, 60)) * kNsPerSecond, last_short);
      } else {
        last_long = seen(returns, visit_at(now, 40'000));
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
  EXPECT_GT(chats.chance(chats.last_short), kLikely);
  EXPECT_LT(chats.chance(chats.last_long), kUnlikely);
  EXPECT_LT(chats.chance(chats.last_second), kUnlikely);
}

TEST(Returns, AreBelievedInLessBeforeAnythingIsKnown) {
  Returns returns;
  const RecordId first = seen(returns, visit_at(0, 2'000));
  EXPECT_GT(returns.outlook(first).chance, kUnlikely);
  EXPECT_LT(returns.outlook(first).chance, 2 * Returns::kChances / 3);
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
    id = seen(returns, facts);
  }
  Returns::Facts facts = visit_at(4'000 * kNsPerSecond, 10'240);
  EXPECT_NEAR(returns.outlook(seen(returns, facts)).chance, Returns::kChances / 4, 3);
}

TEST(Returns, OfForgottenRecordsAreNone) {
  Returns returns;
  const RecordId first = seen(returns, visit_at(0, 2'000));
  EXPECT_EQ(returns.pages_of(first), 3U);
  for (int i = 0; i < 40'000; ++i) seen(returns, visit_at(i, 600));
  EXPECT_EQ(returns.pages_of(first), 0U);
  Returns::Facts facts = visit_at(40'000, 4'000);
  facts.previous = first;
  EXPECT_EQ(returns.pages_of(seen(returns, facts)), 7U);  // as a first turn
}

TEST(Returns, BearTimesAndLengthsOfAnySize) {
  Returns returns;
  RecordId id = kNoRecord;
  for (const TimeNs time : {TimeNs{0}, TimeNs{1}, TimeNs{1} << 40, TimeNs{1} << 61, (TimeNs{1} << 61) + 5}) {
    Returns::Facts facts = visit_at(time, Tokens{1} << 29, Tokens{1} << 29);
    facts.previous = id;
    facts.known = returns.pages_of(id);
    id = seen(returns, facts);
    for (const TimeNs age : {TimeNs{-5}, TimeNs{0}, TimeNs{1} << 61}) {
      EXPECT_LT(returns.density(returns.outlook(id), age), std::uint64_t{1} << 49);  // times a cost fits in 64 bits
    }
  }
}

// A request that is seen three times is one: what was seen first leads to what was seen last, and that is what returns.
TEST(Returns, OfARequestThatGoesOnAreOne) {
  Returns returns;
  RecordId first = kNoRecord, last = kNoRecord;
  for (int i = 0; i < 3'000; ++i) {
    const TimeNs time = i * 10 * kNsPerSecond;
    Returns::Facts facts = visit_at(time, 3'000);
    if (i % 2 == 1) {  // every other one goes on from the one before
      facts.previous = returns.latest(first);
      EXPECT_EQ(facts.previous, last);
      facts.known = returns.pages_of(last);
      facts.known_tokens = 512 * facts.known;
    }
    first = last = seen(returns, facts);
    for (int chunk = 1; chunk <= 2; ++chunk) last = returns.again(last, visit_at(time + chunk, 3'000));
  }
  EXPECT_EQ(returns.latest(first), last);
  EXPECT_EQ(returns.latest(last), last);
  // A first turn returns, a second one doesn't: so it is believed only if the first two parts don't count as lost.
  const RecordId fresh =
      returns.again(seen(returns, visit_at(30'001 * kNsPerSecond, 3'000)), visit_at(30'001 * kNsPerSecond + 1, 3'000));
  EXPECT_GT(returns.outlook(fresh).chance, kLikely);
}

TEST(Returns, BelieveHintsAsFarAsTheyProveRight) {
  for (const bool right : {true, false}) {
    Returns returns;
    RecordId before = kNoRecord;
    for (int i = 0; i < 4'000; ++i) {  // by turns one that ends, one that returns once
      Returns::Facts facts = visit_at(i * 10 * kNsPerSecond, 3'000);
      if (i % 4 == 3) {
        facts.previous = before;
        facts.known = 5;
        facts.known_tokens = 5 * 512;
      }
      const RecordId record = seen(returns, facts);
      if ((i % 4 == 2) != right) returns.say(record, Said::ends);
      if (i % 4 == 2) before = record;
    }
    const RecordId said = seen(returns, visit_at(40'000 * kNsPerSecond, 3'000));
    const RecordId unsaid = seen(returns, visit_at(40'001 * kNsPerSecond, 3'000));
    returns.say(said, Said::ends);
    const std::uint32_t ends = returns.outlook(said).chance, other = returns.outlook(unsaid).chance;
    EXPECT_GT((right ? other : ends), 4 * Returns::kChances / 5);
    EXPECT_LT((right ? ends : other), Returns::kChances / 3);
  }
}

// ---- LruShadow ----------------------------------------------------------------------------------------------------

// A visit uses one page: then the shadow is LRU, exactly.
TEST(LruShadow, HoldsWhatLruHolds) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    test::Splitmix random(seed);
    const std::uint64_t scale = seed % 10 == 0 ? 25 : 1;
    const Pages capacity = scale * random.between(1, 20);
    LruShadow shadow(capacity);
    std::map<std::uint64_t, std::uint64_t> last;  // visit, by page
    std::list<std::uint64_t> lru;                 // the page used last first
    for (std::uint64_t visit = 1; visit <= 500 * scale; ++visit) {
      const std::uint64_t page = random.below(40 * scale);
      const bool held = std::find(lru.begin(), lru.end(), page) != lru.end();
      ASSERT_EQ(last.contains(page) && shadow.holds(last[page]), held) << "seed " << seed << ", visit " << visit;
      shadow.begin_visit();
      shadow.move(1, last.contains(page) ? last[page] : 0, visit);
      last[page] = visit;
      lru.remove(page);
      lru.push_front(page);
      if (lru.size() > capacity) lru.pop_back();
    }
  }
}

// ---- the whole of it -----------------------------------------------------------------------------------------------

// A tier as an engine uses it: a request is seen at its admission, and again when it has added its pages; in between
// others are.
class Engine {
 public:
  Engine(std::string_view eviction, Pages capacity)
      : capacity_(capacity), tree_(make_eviction(eviction, {capacity, 512, 53'000}), nullptr) {}

  Pages admit(RequestId request, TimeNs time, std::span<const PageKey> keys) {
    const PrefixMatch match = tree_.match(keys);
    tree_.visit({request, time, 0, keys.size() * 512, 0, keys, false});
    tree_.touch(match.end, tree_.next_stamp());
    return match.device_pages;
  }
  void publish(RequestId request, TimeNs time, std::span<const PageKey> keys) {
    const PrefixMatch match = tree_.match(keys);
    tree_.visit({request, time, 0, keys.size() * 512, 100, keys, true});
    tree_.lease_device(match.end);
    std::vector<SlotId> released;
    while (capacity_ - tree_.device_pages() < keys.size() - match.device_pages) {
      const NodeId victim = tree_.device_victim();
      tree_.tell_evicted(PolicyRole::device, victim, 1);
      tree_.remove_tail(victim, 1, released, released);
    }
    tree_.release_device(match.end);
    const std::uint64_t stamp = tree_.next_stamp();
    NodeId end = match.end;
    for (Pages at = match.device_pages; at < keys.size();) {
      const Pages pages = tree_.alike(keys.subspan(at));
      end = tree_.insert(end, keys.subspan(at, pages), std::vector<SlotId>(pages), {}, stamp, 0);
      at += pages;
    }
    tree_.touch(end, stamp, RadixTree::Touch::recency_only);
  }

 private:
  Pages capacity_;
  RadixTree tree_;
};

struct Turn {
  TimeNs time = 0;
  std::vector<PageKey> keys;
};

// Every third conversation goes on for four turns, a minute or two apart; the others, which are longer, end at once.
std::vector<Turn> turns(std::uint64_t conversations) {
  test::Splitmix random(5);
  std::multimap<TimeNs, std::vector<std::uint64_t>> all;
  for (std::uint64_t c = 0; c < conversations; ++c) {
    std::vector<std::uint64_t> tokens;
    TimeNs time = static_cast<TimeNs>(c) * kNsPerSecond;
    for (int turn = 0; turn < (c % 3 == 0 ? 4 : 1); ++turn) {
      const std::size_t more = c % 3 == 0 ? 3 : 12;
      for (std::size_t i = 0; i < more; ++i) tokens.push_back(1'000 + c * 100 + tokens.size());
      all.emplace(time, tokens);
      time += static_cast<TimeNs>(random.between(60, 120)) * kNsPerSecond;
    }
  }
  std::vector<Turn> trace;
  for (const auto& [time, tokens] : all) trace.push_back({time, test::chain(tokens)});
  return trace;
}

std::uint64_t hits(std::string_view eviction, std::size_t under_way) {
  const std::vector<Turn> trace = turns(2'000);
  Engine engine(eviction, 400);
  std::uint64_t hits = 0;
  for (std::size_t i = 0; i < trace.size() + under_way; ++i) {
    if (i < trace.size()) hits += engine.admit(i, trace[i].time, trace[i].keys);
    const TimeNs now = trace[std::min(i, trace.size() - 1)].time;
    if (i >= under_way) engine.publish(i - under_way, now, trace[i - under_way].keys);
  }
  return hits;
}

TEST(Tide, LearnsAsWellFromRequestsThatAreAtWorkAtOnce) {
  const std::uint64_t alone = hits("tide", 0), many = hits("tide", 8), lru = hits("lru", 8);
  EXPECT_GT(many, 2 * lru);
  EXPECT_GT(many, alone * 9 / 10);
}

// Pages that come back soon or never, whatever their requests look like: there is nothing to be learnt, and time and
// again LRU's order is taken, and left, by more leaves than change over at once.
TEST(Tide, KeepsUpWithLruWhereItTakesItsOrderAmongManyLeaves) {
  constexpr Pages kCapacity = 20'000;
  const auto hits_of = [](std::string_view eviction) {
    Engine engine(eviction, kCapacity);
    test::Splitmix random(9);
    std::uint64_t hits = 0;
    for (std::uint64_t request = 0; request < 300'000; ++request) {
      const std::uint64_t back = random.below(random.chance(70) ? kCapacity : 4 * kCapacity);
      const std::vector<PageKey> keys = test::chain({std::max(back, request) - back});
      const auto time = static_cast<TimeNs>(request) * kNsPerSecond / 10;
      hits += engine.admit(request, time, keys);
      engine.publish(request, time, keys);
    }
    return hits;
  };
  EXPECT_GT(hits_of("tide"), hits_of("lru") * 98 / 100);
}

// Hits of a tier that serves requests one after another, every tenth of a second.
struct Served {
  std::vector<PageKey> keys;
  Tokens tokens = 0;
};
Pages hits_of(std::string_view eviction, Pages capacity, std::span<const Served> requests) {
  RadixTree tree(make_eviction(eviction, {capacity, 512, 53'000}), nullptr);
  Pages hits = 0;
  RequestId id = 0;
  for (const auto& [keys, tokens] : requests) {
    const PrefixMatch match = tree.match(keys);
    const std::uint64_t stamp = tree.next_stamp();
    tree.visit({id, static_cast<TimeNs>(id) * kNsPerSecond / 10, 0, tokens, 100, keys, false});
    ++id;
    hits += match.device_pages;
    tree.touch(match.end, stamp);
    tree.lease_device(match.end);
    std::vector<SlotId> released;
    while (capacity - tree.device_pages() < keys.size() - match.device_pages) {
      const NodeId victim = tree.device_victim();
      tree.tell_evicted(PolicyRole::device, victim, 1);
      tree.remove_tail(victim, 1, released, released);
    }
    NodeId end = match.end;
    for (Pages at = match.device_pages; at < keys.size();) {
      const Pages pages = tree.alike(std::span(keys).subspan(at));
      end = tree.insert(end, std::span(keys).subspan(at, pages), std::vector<SlotId>(pages), {}, stamp, 0);
      at += pages;
    }
    tree.release_device(match.end);
  }
  return hits;
}

// Paths that are used again as they are among the last hundred, each with a last page that isn't full.
std::vector<Served> repeated(std::size_t requests, Tokens short_of) {
  test::Splitmix random(11);
  std::vector<Served> served;
  for (std::uint64_t i = 0; i < requests; ++i) {
    if (i > 100 && random.chance(60)) {
      served.push_back(served[i - random.between(1, 100)]);
      continue;
    }
    std::vector<std::uint64_t> tokens(random.between(1, 8));
    for (std::uint64_t& token : tokens) token = 100 * i + static_cast<std::uint64_t>(&token - tokens.data());
    served.push_back({test::chain(tokens), tokens.size() * 512 - short_of});
  }
  return served;
}

TEST(Tide, KeepsLastPagesThatAreNotFullWhereTheyAreUsedAgain) {
  const Pages full = hits_of("tide", 300, repeated(8'000, 0)), partial = hits_of("tide", 300, repeated(8'000, 100));
  EXPECT_GT(partial, full * 97 / 100);
}

// Who comes back does so soon, at an ever lower rate, whatever it looks like: nothing beats LRU by much. What is lost
// to it by trying is a few requests' worth.
TEST(Tide, LosesLittleWhereLruIsBest) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    test::Splitmix random(seed);
    std::vector<Served> requests, recent;
    Pages all = 0;
    for (std::uint64_t i = 0; i < 6'000; ++i) {
      Served next;
      if (!recent.empty() && random.chance(75)) {  // at a distance of d or more with a probability of d^-1/2
        const double draw = (1.0 + static_cast<double>(random.below(1 << 20))) / (1 << 20);
        const auto back = static_cast<std::size_t>(std::min(1 / (draw * draw), static_cast<double>(recent.size())));
        next = recent[recent.size() - back];
        recent.erase(recent.end() - static_cast<std::ptrdiff_t>(back));
      } else {
        std::vector<std::uint64_t> tokens(random.between(1, 30));
        for (std::uint64_t& token : tokens) token = 100 * i + static_cast<std::uint64_t>(&token - tokens.data());
        next = {test::chain(tokens), tokens.size() * 512};
      }
      recent.push_back(next);
      requests.push_back(next);
      all += next.keys.size();
    }
    for (const Pages capacity : {400U, 1'000U, 2'500U, 6'000U}) {
      const Pages lru = hits_of("lru", capacity, requests), tide = hits_of("tide", capacity, requests);
      EXPECT_GT(tide + all * 15 / 10'000, lru) << "seed " << seed << ", " << capacity << " pages, of " << all;
    }
  }
}

}  // namespace
}  // namespace kvtwin

// Tests the parts of the eviction policy tide, and the whole policy.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "policy/eviction/tide/lru_shadow.hpp"
#include "policy/eviction/tide/returns.hpp"
#include "policy/index/radix_tree.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

// ---- Returns ------------------------------------------------------------------------------------------------------

Returns::Facts visit_at(TimeNs time, Tokens prompt, Tokens output = 300) {
  return {time, prompt, output, prompt / 512, 0, 0, kNoRecord};
}

// Begins the record of a request's first visit, and learns.
RecordId seen(Returns& returns, const Returns::Facts& facts) {
  const RecordId id = returns.begin(facts);
  returns.learn();
  return id;
}

constexpr std::uint32_t kLikely = Returns::kChances * 9 / 10, kUnlikely = Returns::kChances / 10;

// Conversations; one begins each second. All short ones return once, after 40 to 60 s. No long one returns.
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
  // Every second request returns to the path of the previous one, and uses a quarter of it.
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
  EXPECT_EQ(returns.pages_of(seen(returns, facts)), 7U);  // counts as a first turn
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
      EXPECT_LT(returns.density(returns.outlook(id), age), std::uint64_t{1} << 49);  // density * cost fits in 64 bits
    }
  }
}

// A request with three visits has three records, which count as one: the first leads to the last, and the last returns.
TEST(Returns, OfARequestThatGoesOnAreOne) {
  Returns returns;
  RecordId first = kNoRecord, last = kNoRecord;
  for (int i = 0; i < 3'000; ++i) {
    const TimeNs time = i * 10 * kNsPerSecond;
    Returns::Facts facts = visit_at(time, 3'000);
    if (i % 2 == 1) {  // every second request continues the previous one
      facts.previous = returns.latest(first);
      EXPECT_EQ(facts.previous, last);
      facts.known = returns.pages_of(last);
      facts.known_tokens = 512 * facts.known;
    }
    first = last = seen(returns, facts);
    for (int chunk = 1; chunk <= 2; ++chunk) last = returns.continue_record(last, visit_at(time + chunk, 3'000));
  }
  EXPECT_EQ(returns.latest(first), last);
  EXPECT_EQ(returns.latest(last), last);
  // First turns return; second turns do not. The chance of a first turn is high only if the first two records of each
  // request do not count as records without a return.
  const RecordId fresh = returns.continue_record(seen(returns, visit_at(30'001 * kNsPerSecond, 3'000)),
                                                 visit_at(30'001 * kNsPerSecond + 1, 3'000));
  EXPECT_GT(returns.outlook(fresh).chance, kLikely);
}

TEST(Returns, BelieveHintsAsFarAsTheyProveRight) {
  for (const bool right : {true, false}) {
    Returns returns;
    RecordId before = kNoRecord;
    for (int i = 0; i < 4'000; ++i) {  // alternately: a conversation that ends, and one that returns once
      Returns::Facts facts = visit_at(i * 10 * kNsPerSecond, 3'000);
      if (i % 4 == 3) {
        facts.previous = before;
        facts.known = 5;
        facts.known_tokens = 5 * 512;
      }
      const RecordId record = seen(returns, facts);
      if ((i % 4 == 2) != right) returns.note_hint(record, SessionHint::ends);
      if (i % 4 == 2) before = record;
    }
    const RecordId said = seen(returns, visit_at(40'000 * kNsPerSecond, 3'000));
    const RecordId unsaid = seen(returns, visit_at(40'001 * kNsPerSecond, 3'000));
    returns.note_hint(said, SessionHint::ends);
    const std::uint32_t ends = returns.outlook(said).chance, other = returns.outlook(unsaid).chance;
    EXPECT_GT((right ? other : ends), 4 * Returns::kChances / 5);
    EXPECT_LT((right ? ends : other), Returns::kChances / 3);
  }
}

// ---- LruShadow ----------------------------------------------------------------------------------------------------

// If every visit uses one page, the shadow equals LRU exactly.
TEST(LruShadow, HoldsWhatLruHolds) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    test::Splitmix random(seed);
    const std::uint64_t scale = seed % 10 == 0 ? 25 : 1;
    const Pages capacity = scale * random.between(1, 20);
    LruShadow shadow(capacity);
    std::map<std::uint64_t, std::uint64_t> last;  // page -> last visit
    std::list<std::uint64_t> lru;                 // the most recently used page is first
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

// Another tier may be one visit ahead, and report pages of a visit that has not begun in this tier.
TEST(LruShadow, BearsVisitsThatHaveNotBegun) {
  LruShadow shadow(2);
  shadow.move(1, 0, 1);
  shadow.begin_visit();
  shadow.move(1, 0, 1);
  shadow.move(1, 1, 70);
  EXPECT_FALSE(shadow.holds(70));
  for (std::uint64_t visit = 2; visit <= 70; ++visit) {
    shadow.begin_visit();
    shadow.move(1, 0, visit);
  }
  EXPECT_TRUE(shadow.holds(70));
  EXPECT_TRUE(shadow.holds(69));
  EXPECT_FALSE(shadow.holds(68));
}

// ---- the whole policy ----------------------------------------------------------------------------------------------

// A tier as an engine uses it: a request visits at its admission, and again when it adds its pages. Other requests
// visit in between.
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
    tree_.lease(Tier::device, match.end);
    std::vector<SlotId> released;
    while (capacity_ - tree_.pages(Tier::device) < keys.size() - match.device_pages) {
      const NodeId victim = tree_.device_victim();
      tree_.notify_evicted(PolicyRole::device, victim, 1);
      tree_.remove_tail(victim, 1, released, released);
    }
    tree_.release(Tier::device, match.end);
    const std::uint64_t stamp = tree_.next_stamp();
    NodeId end = match.end;
    for (Pages at = match.device_pages; at < keys.size();) {
      const Pages pages = tree_.shared_history_prefix(keys.subspan(at));
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

// Every third conversation has four turns, one to two minutes apart. The others are longer and have one turn.
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

// Pages return soon or never, and the requests do not tell which, so there is nothing to learn. The policy changes
// between LRU's order and its own order again and again, with more leaves than one change can process at once.
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

// A request for a tier that serves requests one after another.
struct Served {
  std::vector<PageKey> keys;
  Tokens tokens = 0;
  std::uint64_t session = 0;
  bool pinned = false;
};
struct Tier {
  Pages capacity = 0;
  Tokens page_tokens = 512;
  TimeNs pace = kNsPerSecond / 10;  // time between two requests
};
// Returns the hit pages of all requests from number `from` on.
Pages hits_of(std::string_view eviction, const Tier& tier, std::span<const Served> requests, RequestId from = 0) {
  RadixTree tree(make_eviction(eviction, {tier.capacity, tier.page_tokens, 53'000}), nullptr);
  Pages hits = 0;
  for (RequestId id = 0; id < requests.size(); ++id) {
    const auto& [keys, tokens, session, pinned] = requests[id];
    const PrefixMatch match = tree.match(keys);
    const std::uint64_t stamp = tree.next_stamp();
    const TimeNs time = static_cast<TimeNs>(id) * tier.pace;
    tree.visit({id, time, session, tokens, 100, keys, false});
    hits += id >= from ? match.device_pages : 0;
    tree.touch(match.end, stamp);
    tree.lease(kvtwin::Tier::device, match.end);
    std::vector<SlotId> released;
    while (tier.capacity - tree.pages(kvtwin::Tier::device) < keys.size() - match.device_pages) {
      const NodeId victim = tree.device_victim();
      tree.notify_evicted(PolicyRole::device, victim, 1);
      tree.remove_tail(victim, 1, released, released);
    }
    NodeId end = match.end;
    for (Pages at = match.device_pages; at < keys.size();) {
      const Pages pages = tree.shared_history_prefix(std::span(keys).subspan(at));
      end = tree.insert(end, std::span(keys).subspan(at, pages), std::vector<SlotId>(pages), {}, stamp, 0);
      at += pages;
    }
    tree.release(kvtwin::Tier::device, match.end);
    if (pinned) tree.hint({HintKind::pin, session, 0}, time);
  }
  return hits;
}

Served path(std::uint64_t name, std::size_t pages, Tokens page_tokens = 512) {
  std::vector<std::uint64_t> tokens(pages);
  for (std::size_t i = 0; i < pages; ++i) tokens[i] = 100 * name + i;
  return {test::chain(tokens), pages * page_tokens};
}

// 60 % of the requests repeat one of the last hundred paths unchanged. The last page of a path misses `short_of`
// tokens.
std::vector<Served> repeated(std::size_t requests, Tokens short_of) {
  test::Splitmix random(11);
  std::vector<Served> served;
  for (std::uint64_t i = 0; i < requests; ++i) {
    if (i > 100 && random.chance(60)) {
      served.push_back(served[i - random.between(1, 100)]);
      continue;
    }
    served.push_back(path(i, random.between(1, 8)));
    served.back().tokens -= short_of;
  }
  return served;
}

TEST(Tide, KeepsLastPagesThatAreNotFullWhereTheyAreUsedAgain) {
  const Pages full = hits_of("tide", {300}, repeated(8'000, 0)), partial = hits_of("tide", {300}, repeated(8'000, 100));
  EXPECT_GT(partial, full * 97 / 100);
}

// Paths that return mostly return soon, at a decreasing rate, and the requests do not tell which paths return. No
// policy is much better than LRU.
std::vector<Served> soon_or_never(std::uint64_t seed, std::size_t requests, Tokens page_tokens = 512) {
  test::Splitmix random(seed);
  std::vector<Served> served, recent;
  for (std::uint64_t i = 0; i < requests; ++i) {
    Served next;
    if (!recent.empty() && random.chance(75)) {  // P(distance >= d) = d^(-1/2)
      const double draw = (1.0 + static_cast<double>(random.below(1 << 20))) / (1 << 20);
      const auto back = static_cast<std::size_t>(std::min(1 / (draw * draw), static_cast<double>(recent.size())));
      next = recent[recent.size() - back];
      recent.erase(recent.end() - static_cast<std::ptrdiff_t>(back));
    } else {
      next = path(i, random.between(1, 30), page_tokens);
    }
    recent.push_back(next);
    served.push_back(next);
  }
  return served;
}
Pages pages_of(std::span<const Served> requests) {
  Pages all = 0;
  for (const Served& request : requests) all += request.keys.size();
  return all;
}

// Trying its own order costs tide only a few requests' worth of hits, even if the clock stands still.
TEST(Tide, LosesLittleWhereLruIsBest) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::vector<Served> requests = soon_or_never(seed, 6'000);
    const Pages all = pages_of(requests);
    for (const Pages capacity : {400U, 1'000U, 2'500U, 6'000U}) {
      for (const TimeNs pace : {kNsPerSecond / 10, TimeNs{0}}) {
        const Tier tier{capacity, 512, pace};
        const Pages lru = hits_of("lru", tier, requests), tide = hits_of("tide", tier, requests);
        EXPECT_GT(tide + all * 25 / 10'000, lru) << "seed " << seed << ", " << capacity << " pages, of " << all;
      }
    }
  }
}

// Short paths that are used again and again, and long paths that are used once: LRU keeps pages of the long paths.
std::vector<Served> popular(std::uint64_t seed, std::size_t requests, Tokens page_tokens = 512) {
  test::Splitmix random(seed);
  std::vector<Served> served;
  for (std::uint64_t i = 0; i < requests; ++i) {
    const std::uint64_t which = random.below(1 + random.below(600));
    const bool once = random.chance(40);
    served.push_back(once ? path(1'000'000 + i, 10 + i % 10, page_tokens)
                          : path(2'000'000 + which, 1 + which % 5, page_tokens));
  }
  return served;
}

// The guard compares tide with LRU on a tier without the pinned pages. Otherwise the cost of pins would count against
// the current order.
TEST(Tide, IsNotMisledByPins) {
  std::vector<Served> requests = popular(1, 8'000);
  const Pages lru = hits_of("lru", {1'000}, requests);
  for (std::uint64_t i = 0; i < 20; ++i) {  // pinned for ever: a fifth of the tier, which is never used again
    requests.insert(requests.begin(), path(i, 10));
    requests.front().session = 1 + i;
    requests.front().pinned = true;
  }
  EXPECT_GT(hits_of("tide", {1'000}, requests), lru * 115 / 100) << lru;
}

// With pages of one token, each repayment is smaller than the cost of one token.
TEST(Tide, PaysOffWhatItOwesHoweverSmallItsPages) {
  for (const Tokens page_tokens : {1U, 512U}) {
    std::vector<Served> requests = soon_or_never(3, 6'000, page_tokens);
    const std::size_t before = requests.size();
    for (Served& request : popular(2, 12'000, page_tokens)) requests.push_back(std::move(request));
    const Tier tier{1'000, page_tokens};
    const Pages lru = hits_of("lru", tier, requests, before), tide = hits_of("tide", tier, requests, before);
    EXPECT_GT(tide, lru * 115 / 100) << page_tokens << " tokens a page";
  }
}

// Earlier gains do not allow unlimited losses.
TEST(Tide, LosesLittleWhereLruHasBecomeBest) {
  std::vector<Served> requests = popular(4, 8'000);
  const std::size_t before = requests.size();
  for (Served& request : soon_or_never(4, 8'000)) requests.push_back(std::move(request));
  const Pages lru = hits_of("lru", {1'000}, requests, before), tide = hits_of("tide", {1'000}, requests, before);
  EXPECT_GT(tide, lru * 985 / 1'000);
}

// A node that a test offers directly to the policy.
struct Node {
  NodeId id;
  Served is;
  NodeFacts facts;
  PolicyMarks marks;

  Node(int number, std::size_t pages, Tokens tokens)
      : id(static_cast<NodeId>(number)), is(path(static_cast<std::uint64_t>(number), pages)) {
    is.tokens = tokens;
    is.session = static_cast<std::uint64_t>(number + 1);
    const auto nth = static_cast<std::uint64_t>(number + 1);
    facts = {nth, nth, 1, 0, static_cast<std::uint32_t>(pages), static_cast<std::uint32_t>(pages)};
  }
  PolicyNode seen() { return {id, facts, is.keys, marks}; }
  void enter(const InstalledPolicy& policy) {
    const TimeNs time = static_cast<TimeNs>(facts.last_access) * kNsPerSecond;
    policy.learner->visit({facts.last_access, time, is.session, is.tokens, 0, is.keys});
    policy.learner->entered(seen());
    policy->offer(seen());
  }
};

// As long as no partial last page was used again, partial last pages are evicted first. This holds also on the lower
// tier that gets a copy of them.
TEST(Tide, KnowsALastPageThatIsNotFullByWhatItWasOnTheTierBefore) {
  const EvictionSetup setup{10, 512, 53'000};
  const InstalledPolicy upper = make_eviction("tide", setup), lower = make_eviction("tide", setup);
  std::vector<Node> nodes{{0, 1, 512}, {1, 1, 500}, {2, 1, 512}};
  for (Node& node : nodes) {
    node.enter(upper);
    upper.learner->evicted(node.seen(), 1);
    const PolicyMarks there = std::exchange(node.marks, {});
    lower.learner->copied(node.seen(), there);
    lower->offer(node.seen());
  }
  EXPECT_EQ(lower->victim(), nodes[1].id);
}

// After the eviction of a partial last page, the rest of the node counts as full.
TEST(Tide, TakesWhatIsLeftForFull) {
  const InstalledPolicy policy = make_eviction("tide", {10, 512, 53'000});
  Node part(0, 2, 1'000), full(1, 1, 512), other(2, 1, 512);
  for (Node* const node : {&full, &part, &other}) node->enter(policy);
  ASSERT_EQ(policy->victim(), part.id);
  policy.learner->evicted(part.seen(), 1);
  part.is.keys.pop_back();
  part.facts.pages = part.facts.depth_pages = 1;
  part.facts.last_access = part.facts.inserted = 3;
  policy->offer(part.seen());
  full.facts.last_access = 2;
  policy->offer(full.seen());
  EXPECT_EQ(policy->victim(), full.id);
}

// A partial last page is kept if a waiting request wants it or its session is pinned. Tested in LRU's order, and in
// tide's own order, which begins after 100 visits.
TEST(Tide, KeepsALastPageThatIsNotFullForWhoWaitsForItOrPinnedIt) {
  for (const int before : {0, 100}) {
    for (const bool pinned : {false, true}) {
      const InstalledPolicy policy = make_eviction("tide", {1'000, 512, 53'000});
      int number = 0;
      for (; number < before; ++number) Node(number, 1, 512).enter(policy);
      for (int gone = 0; gone < number; ++gone) policy->withdraw(static_cast<NodeId>(gone));
      Node full(number, 1, 512), part(number + 1, 2, 1'000), other(number + 2, 1, 512);
      for (Node* const node : {&full, &part, &other}) node->enter(policy);
      ASSERT_EQ(policy->victim(), part.id);
      if (pinned) {
        policy.takes_hints->hint({HintKind::pin, part.is.session, 0}, 0);
      } else {
        policy.looks_ahead->queued(1'000, part.is.keys);
      }
      policy->offer(part.seen());
      EXPECT_NE(policy->victim(), part.id) << before << " before, " << (pinned ? "pinned" : "waited for");
    }
  }
}

// A page that was prefetched for a request, and evicted before the request came, does not count as a partial page.
TEST(Tide, TellsWhatCameAheadFromALastPageThatIsNotFull) {
  const InstalledPolicy policy = make_eviction("tide", {10, 512, 53'000});
  Node ahead(0, 1, 512), full(1, 1, 512), part(2, 1, 500), other(3, 1, 512);
  policy.learner->entered(ahead.seen());
  policy.learner->evicted(ahead.seen(), 1);
  ahead.marks = {};
  for (Node* const node : {&ahead, &full, &part, &other}) node->enter(policy);
  EXPECT_EQ(policy->victim(), part.id);
}

// A thousand partial last pages are used again; the next forty thousand are not.
TEST(Tide, ForgetsThatLastPagesThatAreNotFullWereUsedAgain) {
  const InstalledPolicy policy = make_eviction("tide", {1'000'000, 512, 53'000});
  const auto goes_first = [&](int number) {
    Node full(number, 1, 512), part(number + 1, 1, 500), other(number + 2, 1, 512);
    for (Node* const node : {&full, &part, &other}) node->enter(policy);
    const NodeId victim = policy->victim();
    for (const Node* const node : {&full, &part, &other}) policy->withdraw(node->id);
    return victim == part.id;
  };
  for (int number = 0; number < 1'000; ++number) {
    Node part(number, 1, 500);
    part.enter(policy);
    policy->withdraw(part.id);
    policy.learner->visit({static_cast<RequestId>(number), 0, 0, 500, 0, part.is.keys});
    policy.learner->touched(part.seen());
  }
  EXPECT_FALSE(goes_first(1'000));
  for (int number = 2'000; number < 42'000; ++number) {
    Node part(number, 1, 500);
    part.enter(policy);
    policy->withdraw(part.id);
  }
  EXPECT_TRUE(goes_first(50'000));
}

}  // namespace
}  // namespace kvtwin

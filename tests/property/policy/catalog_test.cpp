// Compares Catalog with a slow model written from its specification: a map of pages and their parents, without counters
// and without a set of leaves.
#include "policy/storage/catalog.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

enum class Place : std::uint8_t { absent, coming, there };

struct Page {
  std::optional<PageKey> parent;
  Place place = Place::absent;
  std::uint64_t last_access = 0, inserted = 0;
  TimeNs used_at = 0;
  PromptRole role = PromptRole::unknown;
  std::uint32_t pins = 0;
};

class Model {
 public:
  explicit Model(Pages capacity) : capacity_(capacity) {}

  void know(const std::vector<PageKey>& chain) {
    for (std::size_t i = 0; i < chain.size(); ++i) {
      if (i > 0) pages_[chain[i]].parent = chain[i - 1];
      pages_[chain[i]];
    }
  }
  bool knows(const PageKey& key) const { return pages_.at(key).place != Place::absent; }
  bool is(const PageKey& key, Place place) const { return pages_.at(key).place == place; }
  Pages used() const {
    return static_cast<Pages>(
        std::ranges::count_if(pages_, [](const auto& entry) { return entry.second.place != Place::absent; }));
  }

  void put(std::span<const PageKey> keys, Place place, TimeNs now, const PromptParts& parts) {
    ++stamp_;
    for (const PageKey& key : keys) {
      if (knows(key)) continue;
      if (used() == capacity_) return;
      Page& page = pages_.at(key);
      page.place = place;
      page.last_access = stamp_;
      page.inserted = ++insertions_;
      page.used_at = now;
      page.role = parts.role_at(depth_of(key));
    }
  }
  void arrive(const PageKey& key) { pages_.at(key).place = Place::there; }
  void lose(const PageKey& key) { pages_.at(key).place = Place::absent; }
  void forget(const PageKey& key) {
    if (is(key, Place::there)) lose(key);
  }
  void touch(std::span<const PageKey> keys, TimeNs now) {
    ++stamp_;
    for (const PageKey& key : keys) {
      if (!knows(key)) continue;
      pages_.at(key).last_access = stamp_;
      pages_.at(key).used_at = now;
    }
  }
  std::uint32_t depth_of(const PageKey& key) const {
    const std::optional<PageKey>& parent = pages_.at(key).parent;
    return parent ? 1 + depth_of(*parent) : 1;
  }
  void pin(const PageKey& key, int by) { pages_.at(key).pins += static_cast<std::uint32_t>(by); }

  // A page may be evicted if it is stored and not pinned, and no direct child of it is stored or being written.
  bool may_go(const PageKey& key) const {
    return is(key, Place::there) && pages_.at(key).pins == 0 && std::ranges::none_of(pages_, [&](const auto& entry) {
             return entry.second.place != Place::absent && entry.second.parent == key;
           });
  }
  // If, in addition, no deeper descendant is stored, being written or pinned, the catalog must be able to evict the
  // page. Otherwise this depends on whether the catalog keeps the nodes in between.
  bool must_be_free_to_go(const PageKey& key) const {
    return may_go(key) && std::ranges::none_of(pages_, [&](const auto& entry) {
             return (entry.second.place != Place::absent || entry.second.pins > 0) && leads_to(key, entry.first);
           });
  }
  std::pair<std::uint64_t, std::uint64_t> age(const PageKey& key) const {
    return {pages_.at(key).last_access, pages_.at(key).inserted};
  }
  void check_victim(const PageKey& victim) const {
    ASSERT_TRUE(may_go(victim));
    for (const auto& [key, page] : pages_) {
      ASSERT_TRUE(age(key) >= age(victim) || !must_be_free_to_go(key)) << "the least recently used goes first";
    }
  }
  bool anything_free_to_go() const {
    return std::ranges::any_of(pages_, [this](const auto& entry) { return must_be_free_to_go(entry.first); });
  }

  const std::map<PageKey, Page>& pages() const { return pages_; }

 private:
  bool leads_to(const PageKey& above, const PageKey& below) const {
    for (std::optional<PageKey> at = pages_.at(below).parent; at; at = pages_.at(*at).parent) {
      if (*at == above) return true;
    }
    return false;
  }

  Pages capacity_;
  std::map<PageKey, Page> pages_;
  std::uint64_t stamp_ = 0, insertions_ = 0;
};

// LRU that remembers what it was told of the pages on offer.
class Watching final : public EvictionPolicy {
 public:
  void offer(const PolicyNode& node) override {
    offered_[node.id] = {node.keys.front(), node.facts};
    lru_->offer(node);
  }
  void withdraw(NodeId node) override {
    offered_.erase(node);
    lru_->withdraw(node);
  }
  NodeId victim() override { return lru_->victim(); }
  std::size_t offered() const override { return lru_->offered(); }
  bool is_offered(NodeId node) const override { return lru_->is_offered(node); }
  const std::map<NodeId, std::pair<PageKey, NodeFacts>>& told() const { return offered_; }

 private:
  std::unique_ptr<EvictionPolicy> lru_ = make_eviction("lru");
  std::map<NodeId, std::pair<PageKey, NodeFacts>> offered_;
};

struct Write {
  std::vector<PageKey> keys;
};

class Twin {
 public:
  explicit Twin(std::uint64_t seed) : Twin(seed, std::make_unique<Watching>()) {}
  Twin(std::uint64_t seed, std::unique_ptr<Watching> policy)
      : random_(seed),
        capacity_(random_.between(1, 14)),
        watching_(*policy),
        catalog_(capacity_, std::move(policy)),
        model_(capacity_) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      std::vector<PageKey> chain;
      if (!chains_.empty()) {
        chain = chains_[random_.below(chains_.size())];
        chain.resize(random_.below(chain.size() + 1));
      }
      while (chain.size() < 8) chain.push_back(test::chain_key(chain.empty() ? PageKey{} : chain.back(), 10 + i));
      model_.know(chain);
      chains_.push_back(chain);
    }
  }

  void step() {
    if (random_.chance(30)) {
      visit_.time += static_cast<TimeNs>(random_.below(3));
      catalog_.visit(visit_);
    }
    switch (random_.below(10)) {
      case 0:
      case 1:
      case 2: begin_write(); break;
      case 3:
      case 4: end_write(); break;
      case 5: adopt(); break;
      case 6: touch(); break;
      case 7: random_.chance(50) ? pin() : unpin(); break;
      case 8: forget(); break;
      default: take_victims(random_.below(capacity_ + 2)); break;
    }
    compare();
  }

  void drain() {
    while (!writes_.empty()) end_write();
    while (!pins_.empty()) unpin();
    take_victims(capacity_);
    compare();
    EXPECT_EQ(catalog_.used(), 0U) << "what nothing holds can go";
  }

  static inline std::uint64_t roles_seen = 0;

 private:
  struct Stretch {
    std::span<const PageKey> keys;
    const PageKey* prior;
  };
  Stretch draw() {
    const std::vector<PageKey>& chain = chains_[random_.below(chains_.size())];
    const std::size_t first = random_.below(chain.size());
    const std::size_t count = random_.between(1, chain.size() - first);
    return {std::span(chain).subspan(first, count), first == 0 ? nullptr : &chain[first - 1]};
  }

  void begin_write() {
    Stretch drawn = draw();
    const auto known = std::ranges::find_if(drawn.keys, [this](const PageKey& key) { return model_.knows(key); });
    drawn.keys = drawn.keys.first(static_cast<std::size_t>(known - drawn.keys.begin()));
    if (drawn.keys.empty()) return;
    // Like a real writer: the parent page is pinned while space for the new pages is made.
    if (drawn.prior != nullptr) pin_both(*drawn.prior, 1);
    const Pages room = take_victims(drawn.keys.size());
    if (drawn.prior != nullptr) pin_both(*drawn.prior, -1);
    if (room == 0) return;
    drawn.keys = drawn.keys.first(room);
    const PromptParts parts = PromptParts::of(random_.below(3), random_.below(7), 1);
    catalog_.begin_write(drawn.prior, drawn.keys, 0, 0, parts);
    model_.put(drawn.keys, Place::coming, visit_.time, parts);
    writes_.push_back({{drawn.keys.begin(), drawn.keys.end()}});
  }

  void end_write() {
    if (writes_.empty()) return;
    const std::size_t which = random_.below(writes_.size());
    const std::vector<PageKey> keys = writes_[which].keys;
    writes_.erase(writes_.begin() + static_cast<std::ptrdiff_t>(which));
    const Pages stored = random_.chance(60) ? keys.size() : random_.below(keys.size() + 1);
    catalog_.end_write(keys, stored);
    for (std::size_t i = 0; i < keys.size(); ++i) i < stored ? model_.arrive(keys[i]) : model_.lose(keys[i]);
  }

  void adopt() {
    const Stretch drawn = draw();
    catalog_.adopt(drawn.prior, drawn.keys);
    model_.put(drawn.keys, Place::there, visit_.time, {});
  }
  void touch() {
    const Stretch drawn = draw();
    catalog_.touch(drawn.keys);
    model_.touch(drawn.keys, visit_.time);
  }
  void pin_both(const PageKey& key, int by) {
    by > 0 ? catalog_.pin(key) : catalog_.unpin(key);
    model_.pin(key, by);
  }
  void pin() {
    pins_.push_back(draw().keys.back());
    pin_both(pins_.back(), 1);
  }
  void unpin() {
    if (pins_.empty()) return;
    const auto at = pins_.begin() + static_cast<std::ptrdiff_t>(random_.below(pins_.size()));
    pin_both(*at, -1);
    pins_.erase(at);
  }
  void forget() {
    const PageKey key = draw().keys.back();
    catalog_.forget(key);
    model_.forget(key);
  }

  Pages take_victims(Pages pages) {
    std::vector<PageKey> victims;
    const Pages room = catalog_.take_victims(pages, victims);
    for (const PageKey& victim : victims) {
      EXPECT_GT(model_.used() + pages, capacity_) << "no more than have to";
      model_.check_victim(victim);
      model_.lose(victim);
    }
    EXPECT_TRUE(room == pages || !model_.anything_free_to_go());
    EXPECT_EQ(room, std::min(pages, capacity_ - model_.used()));
    return room;
  }

  void compare() {
    catalog_.check_invariants();
    ASSERT_EQ(catalog_.used(), model_.used());
    used_max_ = std::max(used_max_, model_.used());
    ASSERT_EQ(catalog_.used_max(), used_max_);
    for (const auto& [key, page] : model_.pages()) ASSERT_EQ(catalog_.knows(key), page.place != Place::absent);
    for (const auto& [id, told] : watching_.told()) {
      const auto& [key, facts] = told;
      ASSERT_EQ(facts.used_at, model_.pages().at(key).used_at);
      // The catalog does not know the depth of a page if a page above has gone. Then it does not know the role either.
      if (facts.role() != PromptRole::unknown) {
        ASSERT_EQ(facts.role(), model_.pages().at(key).role);
        ++roles_seen;
      }
    }
  }

  test::Splitmix random_;
  Pages capacity_;
  Watching& watching_;
  Catalog catalog_;
  Model model_;
  std::vector<std::vector<PageKey>> chains_;
  std::vector<Write> writes_;
  std::vector<PageKey> pins_;
  Pages used_max_ = 0;
  Visit visit_;
};

TEST(CatalogProperty, AgreesWithAMapOfPages) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Twin twin(seed);
    for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) twin.step();
    if (!testing::Test::HasFailure()) twin.drain();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(Twin::roles_seen, 10'000U);
}

// As in the index: a page that a request of a higher priority inserts again stays longer.
TEST(Catalog, ranks_pages_by_the_priority_they_have_been_raised_to) {
  Catalog catalog(3, make_eviction("priority"));
  const std::vector<PageKey> keys{{{1}}, {{2}}, {{3}}};
  for (std::size_t i = 0; i < 3; ++i) {
    catalog.begin_write(nullptr, std::span(keys).subspan(i, 1), static_cast<std::int32_t>(3 - i));
    catalog.end_write(std::span(keys).subspan(i, 1), 1);
  }
  catalog.raise_priority(std::span(keys).subspan(2, 1), 9);
  catalog.raise_priority(keys, 1);  // no effect: the pages have higher priorities
  std::vector<PageKey> victims;
  EXPECT_EQ(catalog.take_victims(3, victims), 3U);
  EXPECT_EQ(victims, (std::vector<PageKey>{keys[1], keys[0], keys[2]}));
}

// If a lookup started before a page was stored, its miss does not mean that the page is absent.
TEST(Catalog, a_mark_tells_what_has_been_there_since_before_it) {
  Catalog catalog(4, make_eviction("lru"));
  const std::vector<PageKey> keys{{{1}}, {{2}}, {{3}}};
  catalog.begin_write(nullptr, keys, 0);
  const std::uint64_t while_coming = catalog.mark();
  EXPECT_FALSE(catalog.is_there_since(keys[0], while_coming)) << "it is only on its way";
  catalog.end_write(keys, 2);
  EXPECT_FALSE(catalog.is_there_since(keys[0], while_coming)) << "it came after the mark";
  const std::uint64_t once_there = catalog.mark();
  EXPECT_TRUE(catalog.is_there_since(keys[0], once_there));
  EXPECT_TRUE(catalog.is_there_since(keys[1], once_there));
  EXPECT_FALSE(catalog.is_there_since(keys[2], once_there)) << "it never came";
  catalog.forget(keys[1]);
  EXPECT_FALSE(catalog.is_there_since(keys[1], once_there));
  catalog.adopt(&keys[0], std::span(keys).subspan(1, 1));
  EXPECT_FALSE(catalog.is_there_since(keys[1], once_there)) << "it is there anew";
  EXPECT_TRUE(catalog.is_there_since(keys[1], catalog.mark()));
}

}  // namespace
}  // namespace kvtwin

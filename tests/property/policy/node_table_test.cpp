// Compares NodeTable with a std::unordered_map.
#include "policy/index/node_table.hpp"

#include <gtest/gtest.h>

#include <unordered_map>
#include <vector>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

// Inserts, erases and renumbers nodes with `names` different keys. The keys have only `first_words` different first
// words: keys with the same first word collide in the table, and only the rest of the key differs.
class Nodes {
  PageKey key_of(std::uint64_t name) const { return {{test::mix(name % first_words_), name, 0, name % 3}}; }
  auto first_key() const {
    return [this](NodeId id) -> const PageKey& { return keys_[static_cast<std::size_t>(id)]; };
  }

 public:
  Nodes(std::uint64_t seed, std::uint64_t names, std::uint64_t first_words)
      : random_(seed), names_(names), first_words_(first_words) {}

  void step(std::uint64_t inserts_of_a_hundred) {
    const PageKey key = key_of(random_.below(names_));
    const auto known = model_.find(key);
    ASSERT_EQ(table_.find(key, first_key()), known == model_.end() ? NodeId::none : known->second);
    if (random_.chance(inserts_of_a_hundred)) {
      const NodeId id = number(key);
      ASSERT_EQ(table_.insert(key, id, first_key()), model_.emplace(key, id).second);
    } else if (known != model_.end() && random_.chance(20)) {
      const NodeId id = number(key);
      table_.renumber(key, known->second, id);
      known->second = id;
    } else if (known != model_.end()) {
      table_.erase(key, known->second);
      model_.erase(known);
    }
    ASSERT_EQ(table_.size(), model_.size());
  }

  void compare() {
    for (std::uint64_t name = 0; name < names_; ++name) {
      const auto known = model_.find(key_of(name));
      ASSERT_EQ(table_.find(key_of(name), first_key()), known == model_.end() ? NodeId::none : known->second);
    }
  }

  void drain() {
    for (const auto& [key, id] : model_) table_.erase(key, id);
    model_.clear();
    ASSERT_EQ(table_.size(), 0U);
  }

 private:
  NodeId number(const PageKey& key) {
    keys_.push_back(key);
    return static_cast<NodeId>(keys_.size() - 1);
  }

  test::Splitmix random_;
  const std::uint64_t names_, first_words_;
  std::vector<PageKey> keys_;  // indexed by node id
  NodeTable table_;
  std::unordered_map<PageKey, NodeId, PageKeyHash> model_;
};

TEST(NodeTable, FindsWhatAMapFinds) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::uint64_t names =
        seed % 10 == 0 ? 20'000 : 1 + seed * seed;  // enough that the parts of the table grow a few times
    const std::uint64_t first_words = seed % 3 == 0 ? names : 1 + names / (1 + seed % 7);
    Nodes nodes(seed, names, first_words);
    for (const std::uint64_t inserts : {80U, 40U, 10U, 60U}) {
      for (std::uint64_t i = 0; i < 2 * names && !testing::Test::HasFatalFailure(); ++i) nodes.step(inserts);
      nodes.compare();
    }
    nodes.drain();
    nodes.compare();
  }
}

// Pages with the same hash fill half of the slots of a part in one run, and displace the pages that belong into these
// slots.
TEST(NodeTable, KeepsPagesOfOneHashApart) {
  Nodes nodes(5, 40, 2);
  for (std::uint64_t i = 0; i < 20'000 && !testing::Test::HasFatalFailure(); ++i) nodes.step(50);
  nodes.compare();
}

}  // namespace
}  // namespace kvtwin

// Compares the eviction policies with slow models of single pages. tests/property/lab/eviction_rules_test.cpp tests the
// properties of all policies.
#include "policy/eviction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/leaf_blocks.hpp"
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/index/radix_tree.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/property/policy/eviction_models.hpp"

namespace kvtwin {
namespace {

struct Request {
  std::vector<PageKey> keys;
  TimeNs time = 0;
  Tokens prompt_tokens = 0, output_tokens = 0;
  std::int32_t priority = 0;
};

// Serves requests one after another from one tier, like sim/bounds/hitrate.hpp.
class OneTier {
 public:
  OneTier(std::unique_ptr<EvictionPolicy> policy, Pages capacity)
      : capacity_(capacity), tree_(std::move(policy), nullptr) {}

  Pages serve(const Request& request) {
    const PrefixMatch match = tree_.match(request.keys);
    const std::uint64_t stamp = tree_.next_stamp();
    tree_.visit({requests_++, request.time, 0, request.prompt_tokens, request.output_tokens, request.keys, false});
    tree_.raise_priority(match.end, request.priority);
    tree_.touch(match.end, stamp);
    const Pages missing = request.keys.size() - match.device_pages;
    tree_.lease(Tier::device, match.end);
    while (capacity_ - tree_.pages(Tier::device) < missing && evict()) {
    }
    tree_.release(Tier::device, match.end);
    insert(match, request, std::min(missing, capacity_ - tree_.pages(Tier::device)), stamp);
    return match.device_pages;
  }

  // Splits a random node at a random page, where no request would split it.
  void split(test::Splitmix& random) {
    const auto id = static_cast<NodeId>(random.below(tree_.nodes() + 1));
    const Node& node = tree_.node(id);
    if (node.alive && node.facts.pages > 1) tree_.split(id, random.between(1, node.facts.pages - 1));
  }
  const RadixTree& tree() const { return tree_; }

 private:
  bool evict() {
    const NodeId victim = tree_.device_victim();
    if (victim == NodeId::none) return false;
    tree_.notify_evicted(PolicyRole::device, victim, 1);
    tree_.remove_tail(victim, 1, released_, released_);
    return true;
  }
  void insert(const PrefixMatch& match, const Request& request, Pages pages, std::uint64_t stamp) {
    NodeId end = match.end;
    for (Pages at = match.device_pages; pages > 0;) {
      const Pages now = tree_.shared_history_prefix(std::span(request.keys).subspan(at, pages));
      end = tree_.insert(end, std::span(request.keys).subspan(at, now), std::vector<SlotId>(now), {}, stamp,
                         request.priority);
      at += now;
      pages -= now;
    }
  }

  Pages capacity_;
  RadixTree tree_;
  RequestId requests_ = 0;
  std::vector<SlotId> released_;
};

EvictionSetup setup_of(Pages capacity) {
  return {capacity, test::kModelPageTokens, test::kModelDoubling, capacity % 2 == 0};  // prefix_closed may be unset
}

// ---- ghosts --------------------------------------------------------------------------------------------

// Compares Ghosts with a list of single pages. Paths of a tree enter and leave in the order of the index: a page enters
// after the pages above it, and leaves before them. Paths leave in long or short parts, return whole or in parts, or
// branch off.
TEST(Ghosts, RememberTheLastPages) {
  using Path = std::vector<std::uint64_t>;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    test::Splitmix random(seed);
    const bool large = seed % 20 == 0;  // the table grows several times and reaches its limit
    const std::uint64_t forgotten = random.below(20), longest = random.chance(30) ? 1 : random.between(1, 100);
    const std::uint64_t branches = random.between(1, large ? 500 : 8), values = random.between(1, 4);
    const Pages most = random.below(large ? 5'000 : 200);
    EvictionSetup setup;
    setup.prefix_closed = random.chance(70);
    Ghosts ghosts(most, setup);
    std::deque<std::pair<std::uint64_t, std::uint64_t>> model;  // page, number; oldest first
    const auto find = [&model](std::uint64_t page) {
      return std::ranges::find(model, page, &std::pair<std::uint64_t, std::uint64_t>::first);
    };
    const auto number = [&](std::uint64_t page) {
      const auto known = find(page);
      return known == model.end() ? std::optional<std::uint64_t>() : known->second;
    };
    const auto key = [](std::uint64_t page) { return PageKey{{test::mix(page), 0, 0, 0}}; };
    const auto keys_of = [&](std::span<const std::uint64_t> pages) {
      std::vector<PageKey> keys;
      for (const std::uint64_t page : pages) keys.push_back(key(page));
      return keys;
    };
    std::map<std::uint64_t, std::uint64_t> children;  // page in the tier -> number of its children in the tier
    std::vector<Path> there;                          // whole paths; some of their last pages may have left the tier
    for (std::uint64_t step = 0; step < (large ? 1'500U : 300U); ++step) {
      if (random.chance(60)) {
        // Makes a path. Branch b leaves branch b / 2 at some depth.
        Path path;
        const std::uint64_t branch = random.below(branches), length = random.between(1, longest);
        for (std::uint64_t depth = 0; depth < length; ++depth) {
          std::uint64_t at = branch;
          while (at > 0 && depth < at * 13 % longest) at /= 2;
          path.push_back(at * 1'000 + depth);
        }
        const auto first = static_cast<std::size_t>(
            std::ranges::find_if(path, [&](std::uint64_t page) { return !children.contains(page); }) - path.begin());
        const std::vector<PageKey> keys = keys_of(path);
        const std::size_t some = random.between(1, path.size());
        // Checks the answers for all pages that are not in the tier, and for one of them.
        Ghosts::Walk walk;
        for (std::size_t i = first; i < path.size(); ++i) {
          const std::uint64_t* const known = ghosts.find(keys[i], walk);
          ASSERT_EQ(known == nullptr ? std::optional<std::uint64_t>() : *known, number(path[i]));
        }
        ASSERT_EQ(ghosts.remembers_last(std::span(keys).first(some)), number(path[some - 1]).has_value());
        // The path enters in parts, usually parts with equal history, and not always to its end.
        const std::size_t end = random.chance(70) ? path.size() : std::max(first, some);
        for (std::size_t i = first; i < end;) {
          const std::span<const PageKey> rest = std::span(keys).subspan(i, end - i);
          const auto others = std::span(path).subspan(i, end - i);
          const auto other = [&](std::uint64_t page) { return number(page) != number(others.front()); };
          const auto alike = static_cast<std::size_t>(std::ranges::find_if(others, other) - others.begin());
          ASSERT_EQ(ghosts.shared_history_prefix(rest), alike);
          const std::size_t part = random.chance(80) ? alike : random.between(1, rest.size());
          ASSERT_EQ(ghosts.recall(rest.first(part)), number(others[part - 1]).value_or(0));
          for (const std::uint64_t page : others.first(part)) {
            if (const auto known = find(page); known != model.end()) model.erase(known);
          }
          i += part;
        }
        for (std::size_t i = first; i < end; ++i) {
          children[path[i]] = 0;
          if (i > 0) ++children[path[i - 1]];
        }
        if (first < end) there.emplace_back(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(end));
      } else if (random.chance(forgotten) && !model.empty()) {
        ghosts.forget_oldest();
        model.pop_front();
      } else if (!setup.prefix_closed && random.chance(30) && !model.empty()) {
        const auto any = model.begin() + static_cast<std::ptrdiff_t>(random.below(model.size()));
        ASSERT_EQ(ghosts.recall(std::vector{key(any->first)}), any->second);
        model.erase(any);
      } else if (!there.empty()) {
        std::swap(there[random.below(there.size())], there.back());
        Path path = there.back();
        there.pop_back();
        while (!path.empty() && (!children.contains(path.back()))) path.pop_back();
        // Pages leave up to the first page with other children, and within one node that begins at a random page.
        std::size_t free = 0;
        while (free < path.size() && children[path[path.size() - 1 - free]] == (free == 0 ? 0U : 1U)) ++free;
        if (free == 0) continue;
        const std::size_t pages = random.between(1, free), node = random.between(pages, path.size());
        const std::uint64_t value = random.between(1, values);
        ghosts.remember_tail(keys_of(std::span(path).last(node)), pages, value);
        for (std::size_t i = 0; i < pages; ++i) {
          children.erase(path.back());
          model.emplace_back(path.back(), value);
          if (model.size() > most) model.pop_front();
          path.pop_back();
        }
        if (!path.empty()) {
          --children[path.back()];
          there.push_back(path);
        }
      }
      ASSERT_EQ(ghosts.size(), model.size());
    }
  }
}

// Pages leave that have not returned, which no caller does. Nothing breaks, and recall returns one of their values.
TEST(Ghosts, BearPagesThatLeaveTwice) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    test::Splitmix random(seed);
    const Pages most = random.between(1, 400);
    Ghosts ghosts(most, {.prefix_closed = random.chance(70)});
    for (std::uint64_t step = 0; step < 500; ++step) {
      std::vector<PageKey> keys;
      const std::uint64_t first = random.below(200), length = random.between(1, 100);
      for (std::uint64_t page = first; page < first + length; ++page) keys.push_back({{test::mix(page), 0, 0, 0}});
      if (random.chance(60)) {
        ghosts.remember_tail(keys, random.between(1, length), 7);
      } else {
        ghosts.recall_each(keys, [](std::size_t, std::uint64_t value) { ASSERT_EQ(value, 7U); });
      }
      ASSERT_LE(ghosts.size(), most);
    }
  }
}

// ---- leaves in order -----------------------------------------------------------------------------------

// Ranks grow within a class or only approximately, and fall when a tail is evicted. Withdrawn leaves return with their
// old rank, soon or late. Some leaves move to another list.
TEST(LeafLists, AgreeWithSets) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    test::Splitmix random(seed);
    const std::uint64_t classes = random.between(1, 20), back = random.chance(50) ? 0 : random.below(500);
    const std::uint64_t nodes = random.between(1, 300), lists = random.between(1, 4);
    LeafLists leaves(lists, random.chance(50) ? LeafLists::kMaxRuns : random.between(1, 2));
    struct Known {
      std::size_t list;
      LeafRank rank;
    };
    std::map<NodeId, Known> known, withdrawn;
    std::vector<std::set<std::pair<LeafRank, NodeId>>> model(lists);
    const auto remove = [&](NodeId node) { model[known[node].list].erase({known[node].rank, node}); };
    const auto set = [&](NodeId node, const Known& now) {
      if (known.contains(node)) remove(node);
      known[node] = now;
      model[now.list].emplace(now.rank, node);
      leaves.set(node, now.list, now.rank);
    };
    for (std::uint64_t step = 1; step < 3'000; ++step) {
      const auto node = static_cast<NodeId>(random.below(nodes));
      const std::size_t list = random.below(lists);
      const std::uint64_t draw = random.below(10);
      if (draw < 5) {
        set(node, {list, {random.below(classes), 1'000 * (step + back - random.below(back + 1)), step}});
      } else if (draw < 7 && !model[list].empty()) {
        const auto [rank, first] = *model[list].begin();
        set(first, {list, {rank.first, rank.second - random.below(100), rank.third}});
      } else if (known.contains(node)) {
        withdrawn[node] = known[node];
        remove(node);
        known.erase(node);
        leaves.remove(node);
      } else if (withdrawn.contains(node)) {
        set(node, {random.chance(80) ? withdrawn[node].list : list, withdrawn[node].rank});
      }
      ASSERT_EQ(leaves.size(), known.size());
      ASSERT_EQ(leaves.contains(node), known.contains(node));
      for (std::size_t i = 0; i < lists; ++i) {
        ASSERT_EQ(leaves.size(i), model[i].size());
        ASSERT_EQ(leaves.smallest(i), model[i].empty() ? NodeId::none : model[i].begin()->second);
        if (!model[i].empty()) {
          ASSERT_EQ(leaves.smallest_rank(i), model[i].begin()->first);
        }
      }
    }
  }
}

// So many leaves in random order that LeafLists uses the blocks behind the heap. Leaves are removed at the front or
// anywhere. Some return with their old rank, and the rank of some leaves at the front falls.
TEST(LeafLists, AgreeWithSetsWhenThereAreMany) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    test::Splitmix random(seed);
    const std::uint64_t lists = random.between(1, 2);
    LeafLists leaves(lists, random.between(1, 3));
    struct Known {
      std::size_t list;
      LeafRank rank;
    };
    std::vector<std::set<std::pair<LeafRank, NodeId>>> model(lists);
    std::map<NodeId, Known> known, withdrawn;
    std::vector<NodeId> last;  // withdrawn leaves, the last one at the end
    const auto remove = [&](NodeId node) {
      model[known[node].list].erase({known[node].rank, node});
      withdrawn[node] = known[node];
      known.erase(node);
      last.push_back(node);
      leaves.remove(node);
    };
    const auto set = [&](NodeId node, const Known& now) {
      if (known.contains(node)) model[known[node].list].erase({known[node].rank, node});
      known[node] = now;
      model[now.list].emplace(now.rank, node);
      leaves.set(node, now.list, now.rank);
    };
    const std::uint64_t nodes = 20'000, distinct = random.chance(50) ? 20 : 1'000'000;
    const std::int64_t drift = static_cast<std::int64_t>(random.below(3)) - 1;  // ranks rise, fall, or neither
    std::uint64_t leave = 20, from_front = random.below(100);
    for (std::uint64_t step = 1; step < 120'000; ++step) {
      if (step % 20'000 == 0) leave = 100 - leave;
      const std::size_t list = random.below(lists);
      const auto node = static_cast<NodeId>(random.below(nodes));
      if (random.chance(10) && !last.empty()) {
        const NodeId back = last[last.size() - 1 - random.below(std::min<std::size_t>(last.size(), 100))];
        if (!known.contains(back)) set(back, withdrawn[back]);
      } else if (random.chance(5) && !model[list].empty()) {
        const auto [rank, first] = *model[list].begin();
        set(first, {list, {rank.first - random.below(2), rank.second, rank.third}});
      } else if (!random.chance(leave)) {
        const std::uint64_t first = random.below(distinct) + 10'000'000 + static_cast<std::uint64_t>(drift) * step * 20;
        set(node, {list, {first, step, 0}});
      } else if (random.chance(from_front)) {
        if (!model[list].empty()) remove(model[list].begin()->second);
      } else if (known.contains(node)) {
        remove(node);
      }
      ASSERT_EQ(leaves.size(), known.size());
      for (std::size_t i = 0; i < lists; ++i) {
        ASSERT_EQ(leaves.size(i), model[i].size());
        ASSERT_EQ(leaves.smallest(i), model[i].empty() ? NodeId::none : model[i].begin()->second);
        if (step % 10'000 != 0) continue;
        std::set<NodeId> each;
        leaves.each(i, [&](NodeId leaf) { ASSERT_TRUE(each.insert(leaf).second); });
        ASSERT_EQ(each.size(), model[i].size());
        for (const auto& [rank, leaf] : model[i]) ASSERT_TRUE(each.contains(leaf));
      }
    }
    for (std::size_t i = 0; i < lists; ++i) {
      while (!model[i].empty()) {
        ASSERT_EQ(leaves.smallest(i), model[i].begin()->second);
        remove(model[i].begin()->second);
      }
      ASSERT_EQ(leaves.smallest(i), NodeId::none);
    }
  }
}

// The reported places of leaves are correct, and few leaves use few blocks. This holds also if more leaves have the
// same rank than fit into a block.
TEST(LeafBlocks, KeepFewPlacesForTheirLeaves) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    test::Splitmix random(seed);
    LeafBlocks blocks;
    std::vector<RankedLeaf> there, smaller;  // `smaller`: leaves that wait until there are enough for add_smallest()
    std::map<NodeId, std::uint32_t> at;
    const auto placed = [&](NodeId node, std::uint32_t now) { at[node] = now; };
    std::uint64_t made = 0, leave = 10;
    const std::uint64_t spread = random.chance(50) ? 100 : 10'000'000;
    const bool ties = seed % 4 == 0;
    const std::uint64_t rise = ties ? 0 : random.below(200);
    for (std::uint64_t step = 1; step < 60'000; ++step) {
      if (step % 20'000 == 0) leave = 100 - leave;
      if (there.empty() || !random.chance(leave)) {
        const auto node = static_cast<NodeId>(made++);
        const RankedLeaf leaf{{random.below(ties ? 7 : spread) + step * rise, ties ? 0 : made, 0}, node};
        if (blocks.covers(leaf.rank)) {
          blocks.add(leaf, placed);
          there.push_back(leaf);
        } else {
          smaller.push_back(leaf);
        }
        if (smaller.size() == LeafBlocks::kPlacesPerBlock / 2) {
          blocks.add_smallest(smaller, placed);
          there.insert(there.end(), smaller.begin(), smaller.end());
          smaller.clear();
        }
      } else {
        std::swap(there[random.below(there.size())], there.back());
        blocks.remove(at.at(there.back().node), there.back().rank, placed);
        at.erase(there.back().node);
        there.pop_back();
      }
      ASSERT_EQ(blocks.empty(), there.empty());
      ASSERT_LE(blocks.blocks() * LeafBlocks::kPlacesPerBlock, 8 * there.size() + 2 * LeafBlocks::kPlacesPerBlock)
          << step;
    }
    std::set<std::uint32_t> different;
    for (const RankedLeaf& leaf : there) different.insert(at.at(leaf.node));
    EXPECT_EQ(different.size(), there.size());
    // Takes the leaves from the smallest on, one block at a time.
    std::ranges::sort(there, {}, &RankedLeaf::rank);
    std::set<NodeId> left;
    for (auto next = there.begin(); next != there.end();) {
      for (const RankedLeaf& leaf : blocks.take_smallest()) {
        ASSERT_EQ(leaf.rank, (next++)->rank);
        ASSERT_TRUE(left.insert(leaf.node).second);
      }
    }
    EXPECT_TRUE(blocks.empty());
  }
}

// Blocks that are alternately half full and with one leaf. Then leaves are removed, as many as possible without joining
// blocks.
TEST(LeafBlocks, KeepAnEighthOfTheirPlacesInUse) {
  LeafBlocks blocks;
  std::map<NodeId, std::uint32_t> at;
  const auto placed = [&](NodeId node, std::uint32_t now) { at[node] = now; };
  std::uint64_t rank = 1'000'000'000, leaves = 0, made = 0;
  std::vector<RankedLeaf> to_go;
  for (int turn = 0; turn < 200; ++turn) {
    for (const std::size_t some : {std::size_t{LeafBlocks::kPlacesPerBlock / 2}, std::size_t{1}}) {
      std::vector<RankedLeaf> added;
      for (std::size_t i = 0; i < some; ++i) added.push_back({{--rank, 0, 0}, static_cast<NodeId>(made++)});
      blocks.add_smallest(added, placed);
      leaves += some;
      if (some > 1) to_go.insert(to_go.end(), added.begin() + LeafBlocks::kPlacesPerBlock / 4 + 1, added.end());
    }
  }
  for (const RankedLeaf& leaf : to_go) {
    blocks.remove(at.at(leaf.node), leaf.rank, placed);
    --leaves;
  }
  EXPECT_LE(blocks.blocks() * LeafBlocks::kPlacesPerBlock, 8 * leaves + 2 * LeafBlocks::kPlacesPerBlock);
}

// ---- where every page is a leaf ------------------------------------------------------------------------

std::vector<test::PageRequest> page_trace(std::uint64_t seed, std::size_t requests) {
  test::Splitmix random(seed);
  std::vector<test::PageRequest> trace(requests);
  const std::uint64_t pages = random.between(3, 60), pause = random.between(0, 3'000'000'000);
  std::uint64_t now = random.below(2) * 1'000'000'000, fresh = 1'000;
  for (test::PageRequest& request : trace) {
    now += random.chance(40) ? 0 : random.below(pause + 1);
    // A few pages are popular, some occur once, and the set of popular pages changes.
    const std::uint64_t epoch = now / 100'000'000'000;
    request.page = random.chance(20) ? fresh++ : random.below(random.chance(50) ? 5 : pages) + 7 * (epoch % 3);
    request.time = now;
    request.prompt_tokens = random.between(1, test::kModelPageTokens);
    request.output_tokens = random.chance(50) ? random.below(200) : random.below(9'000);
  }
  return trace;
}

class PageModels : public testing::TestWithParam<std::string_view> {};

void compare_with_model(std::string_view eviction, std::uint64_t seed, Pages capacity, std::size_t requests) {
  OneTier tier(make_eviction(eviction, setup_of(capacity)), capacity);
  const auto model = test::make_model(eviction, capacity);
  std::size_t at = 0;
  for (const test::PageRequest& page : page_trace(seed, requests)) {
    const Request request{test::chain({page.page}), static_cast<TimeNs>(page.time), page.prompt_tokens,
                          page.output_tokens, 0};
    ASSERT_EQ(tier.serve(request) == 1, model->serve(page)) << "request " << at;
    ++at;
  }
}

TEST_P(PageModels, AgreeToTheHit) {
  for (std::uint64_t seed = 0; seed < 320; ++seed) {
    SCOPED_TRACE(seed);
    compare_with_model(GetParam(), seed, 1 + test::mix(seed) % 40, 50 + test::mix(seed + 1) % 1'000);
    if (HasFatalFailure()) return;
  }
}

TEST_P(PageModels, AgreeAfterTheirMemoryHasTurnedOver) {
  for (std::uint64_t seed = 1'000; seed < 1'003; ++seed) {
    SCOPED_TRACE(seed);
    compare_with_model(GetParam(), seed, 1 + test::mix(seed) % 20, 15'000);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, PageModels,
                         testing::Values("lfuda", "gdsf", "pgdsf", "lruk", "2q", "arc", "s3fifo", "sieve", "lhd", "wa",
                                         "ttl", "tail_lru", "marconi", "tide"),
                         [](const auto& tested) { return "of_" + std::string(tested.param); });

// ---- deep traces ---------------------------------------------------------------------------------------

std::vector<Request> deep_trace(std::uint64_t seed, std::size_t requests, std::size_t depth) {
  test::Splitmix random(seed);
  std::vector<Request> trace;
  TimeNs now = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    std::vector<std::uint64_t> tokens(random.between(1, depth));
    for (std::uint64_t& token : tokens) token = random.chance(70) ? 0 : random.below(3);
    now += static_cast<TimeNs>(random.below(5'000'000'000));
    const Tokens prompt = tokens.size() * test::kModelPageTokens - random.below(test::kModelPageTokens);
    trace.push_back(
        {test::chain(tokens), now, prompt, random.below(3'000), static_cast<std::int32_t>(random.below(5)) - 2});
  }
  return trace;
}

// A slow model of a tree of pages. A derived class defines the rank of a page and the remembered facts.
template <typename Page>
class PagesOnATree {
 public:
  explicit PagesOnATree(std::size_t capacity) : capacity_(capacity) {}
  virtual ~PagesOnATree() = default;

  std::size_t serve(const Request& request) {
    ++stamp_;
    std::size_t hit = 0;
    for (; hit < request.keys.size() && pages_.contains(request.keys[hit]); ++hit) {
      use(pages_[request.keys[hit]].page);
      inserted_again(pages_[request.keys[hit]].page, request);
    }
    const std::set<PageKey> path(request.keys.begin(), request.keys.end());
    while (capacity_ - pages_.size() < request.keys.size() - hit && evict_off(path)) {
    }
    for (std::size_t i = hit; i < request.keys.size() && pages_.size() < capacity_; ++i) {
      pages_[request.keys[i]] = {i == 0 ? PageKey{} : request.keys[i - 1], enter(request, i)};
    }
    return hit;
  }

 protected:
  using Rank = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  virtual void use(Page& page) const = 0;
  virtual void inserted_again(Page&, const Request&) const {}
  virtual Page enter(const Request& request, std::size_t i) = 0;
  virtual Rank rank(const Page& page) const = 0;
  virtual void leave(const PageKey&, const Page&) {}

  const std::size_t capacity_;
  std::int64_t stamp_ = 0, inserted_ = 0;

 private:
  bool evict_off(const std::set<PageKey>& path) {
    std::set<PageKey> parents;
    for (const auto& [key, known] : pages_) parents.insert(known.parent);
    std::optional<std::pair<Rank, PageKey>> victim;
    for (const auto& [key, known] : pages_) {
      if (parents.contains(key) || path.contains(key)) continue;
      if (!victim || rank(known.page) < victim->first) victim = {rank(known.page), key};
    }
    if (!victim) return false;
    leave(victim->second, pages_[victim->second].page);
    pages_.erase(victim->second);
    return true;
  }

  struct Known {
    PageKey parent;
    Page page;
  };
  std::map<PageKey, Known> pages_;
};

// The eviction strategies of SGLang.
struct PageFacts {
  std::int64_t last = 0, inserted = 0, touches = 0, priority = 0, depth = 0, history = 0;
};
class PagesByStrategy final : public PagesOnATree<PageFacts> {
 public:
  PagesByStrategy(std::string_view strategy, const EvictionSetup& setup, Tokens protects, Tokens threshold,
                  Tokens next_prompt)
      : PagesOnATree(setup.capacity),
        strategy_(strategy),
        protected_(static_cast<std::int64_t>(protects)),
        threshold_(static_cast<std::int64_t>(threshold)),
        next_prompt_(static_cast<std::int64_t>(next_prompt)) {}

 private:
  void use(PageFacts& page) const override {
    page.last = stamp_;
    ++page.touches;
  }
  void inserted_again(PageFacts& page, const Request& request) const override {
    page.priority = std::max<std::int64_t>(page.priority, request.priority);
    page.history = std::max(page.history, static_cast<std::int64_t>(request.keys.size()));
  }
  PageFacts enter(const Request& request, std::size_t i) override {
    return {stamp_,
            ++inserted_,
            1,
            request.priority,
            static_cast<std::int64_t>(i),
            static_cast<std::int64_t>(request.keys.size())};
  }
  Rank rank(const PageFacts& page) const override {
    if (strategy_ == "lru") return {0, page.last, page.inserted};
    if (strategy_ == "fifo") return {0, 0, page.inserted};
    if (strategy_ == "lfu") return {page.touches, page.last, page.inserted};
    if (strategy_ == "mru") return {0, -page.last, -page.inserted};
    if (strategy_ == "filo") return {0, 0, -page.inserted};
    if (strategy_ == "priority") return {page.priority, page.last, page.inserted};
    if (strategy_ == "tlru") {
      constexpr auto kPage = static_cast<std::int64_t>(test::kModelPageTokens);
      const bool needed = page.depth * kPage < page.history * kPage + next_prompt_ - threshold_;
      return {needed, page.last, page.inserted};
    }
    return {page.touches >= protected_, page.last, page.inserted};
  }

  std::string_view strategy_;
  std::int64_t protected_, threshold_, next_prompt_;  // parameters of slru and tlru
};

class Strategies : public testing::TestWithParam<std::string_view> {};

// Nodes are also split where no request ends. A split must not change the order of evictions.
TEST_P(Strategies, AgreeToThePageOnDeepTraces) {
  const test::ThrowingChecks checks;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    EvictionSetup setup = setup_of(1 + test::mix(seed) % 40);
    const Tokens protects = 2 + seed % 3, threshold = test::mix(seed + 1) % (8 * test::kModelPageTokens),
                 next_prompt = test::mix(seed + 2) % (2 * test::kModelPageTokens);
    std::string text(GetParam());
    if (text == "slru") text += "(protected=" + std::to_string(protects) + ")";
    if (text == "tlru") {
      text += "(threshold=" + std::to_string(threshold) + ", next_prompt=" + std::to_string(next_prompt) + ")";
    }
    OneTier tier(make_eviction(text, setup), setup.capacity);
    PagesByStrategy model(GetParam(), setup, protects, threshold, next_prompt);
    test::Splitmix random(seed);
    for (const Request& request : deep_trace(seed, 80, 12)) {
      ASSERT_EQ(tier.serve(request), model.serve(request));
      if (random.chance(50)) tier.split(random);
    }
    tier.tree().check_invariants();
  }
}

INSTANTIATE_TEST_SUITE_P(Sglang, Strategies,
                         testing::Values("lru", "fifo", "lfu", "mru", "filo", "priority", "slru", "tlru"),
                         [](const auto& tested) { return std::string(tested.param); });

// lfuda, gdsf and lruk: every page has its own history and its own depth.
struct PageHistory {
  std::int64_t depth = 0, last = 0, uses = 0, inserted = 0, age = 0, before = 0;
};
class PagesWithHistory final : public PagesOnATree<PageHistory> {
 public:
  PagesWithHistory(std::string_view policy, std::size_t capacity)
      : PagesOnATree(capacity), policy_(policy), gone_(4 * capacity) {}

 private:
  void use(PageHistory& page) const override {
    ++page.uses;
    page.before = page.last;
    page.last = stamp_;
    page.age = age_;
  }
  PageHistory enter(const Request& request, std::size_t i) override {
    const auto known = static_cast<std::int64_t>(gone_.take(request.keys[i].words[0]));
    PageHistory page{static_cast<std::int64_t>(i), 0, known, ++inserted_};
    if (policy_ == "lruk") page.last = std::exchange(page.uses, 0);
    use(page);
    return page;
  }
  std::int64_t worth(const PageHistory& page) const {
    if (policy_ == "lruk") return page.before;
    if (policy_ == "lfuda") return page.age + page.uses;
    return page.age + page.uses * static_cast<std::int64_t>(test::kModelDoubling) +
           page.uses * page.depth * static_cast<std::int64_t>(test::kModelPageTokens);
  }
  Rank rank(const PageHistory& page) const override { return {worth(page), page.last, page.inserted}; }
  void leave(const PageKey& key, const PageHistory& page) override {
    age_ = std::max(age_, worth(page));
    gone_.put(key.words[0], static_cast<std::uint64_t>(policy_ == "lruk" ? page.last : page.uses));
  }

  std::string_view policy_;
  test::PageMemory gone_;
  std::int64_t age_ = 0;
};

class Histories : public testing::TestWithParam<std::string_view> {};

// A node has one history for a run of pages. So a node is cut where the remembered histories of its pages differ.
TEST_P(Histories, AreEachPagesOwn) {
  const test::ThrowingChecks checks;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Pages capacity = 1 + test::mix(seed) % 30;
    OneTier tier(make_eviction(GetParam(), setup_of(capacity)), capacity);
    PagesWithHistory model(GetParam(), capacity);
    test::Splitmix random(seed);
    for (const Request& request : deep_trace(seed, 150, 12)) {
      ASSERT_EQ(tier.serve(request), model.serve(request));
      if (random.chance(30)) tier.split(random);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Histories, testing::Values("lfuda", "gdsf", "lruk"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace kvtwin

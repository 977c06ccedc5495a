// Compares RadixTree with a slow model: a map of single pages with their own states, without a tree.
#include "policy/index/radix_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

struct Page {
  PageKey parent;  // zero: the first page of a chain
  SlotId device = kNoSlot, host = kNoSlot;
  std::uint64_t last_access = 0, inserted = 0, depth = 0;
  std::uint32_t hits = 0, backup_hits = 0, device_leases = 0, host_leases = 0;
  std::int32_t priority = 0;
  OperationId backup = OperationId::none, load = OperationId::none;
  bool leaving = false;
  TimeNs used_at = 0;
  PromptParts parts;
  bool settled = false, evictable = false;  // set by classify()
};

using Model = std::map<PageKey, Page>;

struct Lease {
  NodeId node;
  PageKey last;
  bool device;
};

struct Copy {  // a transfer to or from the host, and the node at the end of the transferred part of a path
  NodeId node;
  PageKey last;
  OperationId operation;
};

class Twin {
 public:
  Twin(std::uint64_t seed, std::string policy)
      : random_(seed),
        policy_(std::move(policy)),
        modelled_(policy_ == "lru" || policy_ == "fifo"),
        by_choice_(seed % 2 == 0),
        ordered_(seed % 3 == 0),
        evicts_leaving_(by_choice_ && seed % 4 == 0),
        joins_(seed % 5 < 3),
        tree_(make_eviction(policy_, kSetup), make_eviction(policy_, kSetup),
              by_choice_ ? make_eviction(policy_, kSetup) : nullptr,
              ordered_ ? nullptr : make_eviction("fifo", kSetup)) {
    if (ordered_) tree_.order_shadowed_copies();
    tree_.set_first_hits(first_hits_);
    tree_.set_joins_nodes(joins_);
    tree_.set_host_evicts_leaving(evicts_leaving_);
  }

  void step() {
    switch (random_.below(18)) {
      case 0:
      case 1:
      case 2:
      case 3: request(); break;
      case 4:
      case 5: evict_device(); break;
      case 6: evict_host(); break;
      case 7: lease(); break;
      case 8:
      case 9: release(); break;
      case 10: backup(); break;
      case 11: load_back(); break;
      case 12: split(); break;
      case 13: acknowledge(); break;
      case 17: acknowledge_load(); break;
      case 14:
      case 15: choose(); break;
      default: other(); break;
    }
    compare();
  }

  // Releases all leases and writes, and evicts page by page until the tree is empty.
  void drain() {
    while (!leases_.empty()) release();
    while (!writes_.empty()) acknowledge();
    while (!loads_.empty()) acknowledge_load();
    compare();
    for (;;) {
      choose();
      classify();
      const PageKey device = victim(true), host = victim(false);
      if (device == PageKey{} && host == PageKey{}) {
        if (!model_.empty() && by_choice_) continue;
        break;
      }
      if (device != PageKey{} && (host == PageKey{} || random_.chance(50))) {
        evict_device();
      } else {
        evict_host();
      }
      compare();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(tree_.nodes(), 0u);
    EXPECT_TRUE(model_.empty());
  }

 private:
  // ---- what the model says ------------------------------------------------------------------------

  // Determines which pages may leave L1, from the deepest pages upward.
  void classify() {
    std::map<PageKey, std::pair<bool, bool>>
        stuck;  // page -> has an unsettled child, has a child that is not evictable
    std::vector<std::pair<std::uint64_t, PageKey>> order;
    for (const auto& [key, page] : model_) order.emplace_back(page.depth, key);
    std::ranges::sort(order, std::greater<>{});
    for (const auto& [depth, key] : order) {
      Page& page = model_.at(key);
      const auto [settled, evictable] = stuck[key];
      const bool own = page.device != kNoSlot && page.device_leases == 0 && (page.leaving || !by_choice_);
      page.settled = own && !settled;
      page.evictable = own && !evictable && page.backup == OperationId::none;
      if (page.device == kNoSlot) continue;
      stuck[page.parent].first |= !page.settled;
      stuck[page.parent].second |= !page.evictable;
    }
  }

  template <typename Allowed, typename Keeps>
  PageKey first(bool lru, Allowed allowed, Keeps keeps_parent) const {
    std::set<PageKey> blocked;  // pages with a child that keeps them in the tier
    for (const auto& [key, page] : model_) {
      if (keeps_parent(page)) blocked.insert(page.parent);
    }
    const PageKey* best = nullptr;
    std::tuple<std::uint64_t, std::uint64_t> best_rank;
    for (const auto& [key, page] : model_) {
      if (!allowed(page) || blocked.count(key) > 0) continue;
      const std::tuple rank{lru ? page.last_access : page.inserted, page.inserted};
      if (best == nullptr || rank < best_rank) {
        best = &key;
        best_rank = rank;
      }
    }
    return best == nullptr ? PageKey{} : *best;
  }

  PageKey victim(bool device) const {
    const bool lru = policy_ == "lru";
    if (device) {
      return first(
          lru, [](const Page& page) { return page.evictable; },
          [](const Page& page) { return page.device != kNoSlot; });
    }
    return first(
        lru,
        [this](const Page& page) {
          const bool gone = page.device == kNoSlot || (evicts_leaving_ && page.leaving);
          return gone && page.host != kNoSlot && page.host_leases == 0 && page.device_leases == 0;
        },
        [](const Page&) { return true; });
  }

  PageKey candidate() const {
    return first(
        policy_ == "lru",
        [](const Page& page) { return page.device != kNoSlot && page.device_leases == 0 && !page.leaving; },
        [](const Page& page) { return page.device != kNoSlot && !page.settled; });
  }

  static bool may_lose_copy(const Page& page) {
    return page.device != kNoSlot && page.host != kNoSlot && page.host_leases == 0 && !page.leaving &&
           page.backup == OperationId::none && page.load == OperationId::none;
  }

  PageKey shadowed() const {
    return first(false, may_lose_copy,
                 [this](const Page& page) { return page.host != kNoSlot && !(ordered_ && by_choice_); });
  }

  // Returns whether L1 may evict the node next, or would if its pages had been chosen to leave.
  bool goes_next(const Node& node) const {
    if (node.device.leases > 0) return false;
    for (NodeId at = node.first_child; at != NodeId::none; at = tree_.node(at).next_sibling) {
      const Page& page = model_.at(tree_.node(at).keys().front());
      if (page.device != kNoSlot && !(by_choice_ && page.settled)) return false;
    }
    return true;
  }

  // Checks that the order takes the nodes that L1 evicts next last. Another test compares the rest of the order.
  void compare_order(NodeId found) {
    ASSERT_EQ(found == NodeId::none, shadowed() == PageKey{});
    if (found == NodeId::none) return;
    ASSERT_TRUE(may_lose_copy(model_.at(last_key(found))));
    if (!goes_next(tree_.node(found))) return;
    for (const NodeId id : all_nodes()) {
      const bool may_go = may_lose_copy(model_.at(last_key(id))) && (by_choice_ || tree_.node(id).host.children == 0);
      ASSERT_TRUE(!may_go || goes_next(tree_.node(id)));
    }
  }

  template <typename Change>
  void for_path(PageKey end, Change change) {
    while (end != PageKey{}) {
      Page& page = model_.at(end);
      change(page);
      end = page.parent;
    }
  }

  std::vector<PageKey> keys_of(NodeId id) const {
    const std::span<const PageKey> keys = tree_.node(id).keys();
    return {keys.begin(), keys.end()};
  }
  PageKey last_key(NodeId id) const { return id == tree_.root() ? PageKey{} : tree_.node(id).keys().back(); }

  void compare() {
    tree_.check_invariants();
    classify();
    Pages pages = 0, device = 0, host = 0, evictable = 0, settled = 0;
    for (const NodeId id : all_nodes()) {
      const Node& node = tree_.node(id);
      pages += node.keys().size();
      PageKey parent = last_key(node.parent);
      for (std::size_t i = 0; i < node.keys().size(); ++i) {
        const auto found = model_.find(node.keys()[i]);
        ASSERT_NE(found, model_.end());
        const Page& page = found->second;
        const std::size_t after = node.keys().size() - 1 - i;
        ASSERT_EQ(page.parent, parent);
        ASSERT_EQ(page.device, node.device.resident() ? node.device.slots[i] : kNoSlot);
        ASSERT_EQ(page.host, node.host.resident() ? node.host.slots[i] : kNoSlot);
        ASSERT_EQ(page.last_access, node.facts.last_access);
        ASSERT_EQ(page.inserted, node.facts.inserted - after);
        ASSERT_EQ(page.depth, node.facts.depth_pages - after);
        ASSERT_EQ(page.used_at, node.facts.used_at);
        // A node that was joined has the parts of its lower part.
        const auto depth = static_cast<std::uint32_t>(page.depth);
        if (!joins_) {
          ASSERT_EQ(page.parts.role_at(depth), node.facts.parts.role_at(depth));
        }
        ASSERT_EQ(page.hits, node.facts.hits);
        ASSERT_EQ(page.backup_hits, node.backup_hits);
        ASSERT_EQ(page.priority, node.facts.priority);
        ASSERT_EQ(page.device_leases, node.device.leases);
        ASSERT_EQ(page.host_leases, node.host.leases);
        ASSERT_EQ(page.backup, node.host.arriving);
        ASSERT_EQ(page.load, node.device.arriving);
        ASSERT_EQ(page.leaving, node.leaving);
        ASSERT_EQ(page.settled, node.settled);
        ASSERT_EQ(page.evictable, node.evictable);
        if (page.device != kNoSlot) ++device;
        if (page.host != kNoSlot) ++host;
        evictable += page.evictable;
        settled += page.settled;
        parent = node.keys()[i];
      }
    }
    ASSERT_EQ(pages, model_.size());
    ASSERT_EQ(device, tree_.pages(Tier::device));
    ASSERT_EQ(host, tree_.pages(Tier::host));
    ASSERT_EQ(evictable, tree_.evictable_device_pages());
    ASSERT_EQ(settled, tree_.settled_device_pages());
    if (ordered_) {
      compare_order(tree_.shadowed_victim());
    } else {
      compare_victim(tree_.shadowed_victim(), shadowed());
    }
    if (by_choice_) compare_victim(tree_.candidate(), candidate());
    compare_victim(tree_.device_victim(), victim(true));
    compare_victim(tree_.host_victim(), victim(false));
  }

  // For policies without a model: checks that there is a victim if a node is offered, and that a second call returns
  // the same victim. Other checks compare the offered nodes.
  void compare_victim(NodeId found, const PageKey& expected) {
    if (modelled_) {
      ASSERT_EQ(found == NodeId::none ? PageKey{} : last_key(found), expected);
    } else {
      ASSERT_EQ(found == NodeId::none, expected == PageKey{});
    }
  }

  std::vector<NodeId> all_nodes() const {
    std::vector<NodeId> nodes = {tree_.root()};
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (NodeId at = tree_.node(nodes[i]).first_child; at != NodeId::none; at = tree_.node(at).next_sibling) {
        nodes.push_back(at);
      }
    }
    nodes.erase(nodes.begin());
    return nodes;
  }

  NodeId any_node() {
    const std::vector<NodeId> nodes = all_nodes();
    return nodes.empty() ? NodeId::none : nodes[random_.below(nodes.size())];
  }

  std::vector<SlotId> fresh_slots(std::size_t count) {
    next_slot_ += static_cast<SlotId>(count);
    return test::slots(next_slot_ - static_cast<SlotId>(count), count);
  }

  // ---- operations on both -------------------------------------------------------------------------

  std::vector<PageKey> any_chain() {
    std::vector<std::uint64_t> tokens(random_.between(1, 14));
    for (std::uint64_t& token : tokens) token = random_.below(8) == 0 ? 1 : 0;  // long common prefixes
    return test::chain(tokens);
  }

  void request() {
    const std::vector<PageKey> keys = any_chain();
    std::size_t cached = 0, on_device = 0;
    while (cached < keys.size() && model_.count(keys[cached]) > 0) {
      if (model_.at(keys[cached]).device != kNoSlot) ++on_device;
      ++cached;
    }
    const PrefixMatch peeked = tree_.peek(keys);
    const PrefixMatch match = tree_.match(keys);
    for (const PrefixMatch& m : {peeked, match}) {
      ASSERT_EQ(m.device_pages, on_device);
      ASSERT_EQ(m.host_pages, cached - on_device);
    }
    ASSERT_EQ(last_key(match.end), cached == 0 ? PageKey{} : keys[cached - 1]);
    ASSERT_EQ(last_key(match.device_end), on_device == 0 ? PageKey{} : keys[on_device - 1]);

    time_ += static_cast<TimeNs>(random_.below(3) * 1'000'000'000);
    if (random_.chance(60)) parts_ = PromptParts::of(random_.below(4), random_.below(12), 1);
    if (random_.chance(20)) parts_ = {};
    tree_.visit({requests_++, time_, 0, keys.size() * 512, 100, keys, random_.chance(20), parts_});
    const std::uint64_t stamp = tree_.next_stamp();
    if (random_.chance(70)) {  // without touch, inserted nodes may have the same stamp and use count as their parents
      tree_.touch(match.end, stamp);
      for_path(last_key(match.end), [&](Page& page) {
        page.last_access = stamp;
        page.used_at = time_;
        if (!page.parts.known()) page.parts = parts_;
        page.leaving = false;
        ++page.hits;
      });
    }
    if (random_.chance(30)) {
      const Pages above = random_.below(cached + 1);
      tree_.count_touch(match.end, above);
      for (NodeId at = match.end; at != tree_.root(); at = tree_.node(at).parent) {
        if (tree_.node(at).facts.depth_pages <= above) break;
        for (const PageKey& key : tree_.node(at).keys()) ++model_.at(key).hits;
      }
    }
    if (cached == keys.size() || random_.chance(20)) return;
    insert(match, std::span(keys).subspan(cached), stamp);
  }

  void insert(const PrefixMatch& match, std::span<const PageKey> keys, std::uint64_t stamp) {
    std::vector<SlotId> device, host;
    if (match.host_pages == 0 && random_.chance(85)) device = fresh_slots(keys.size());
    if (device.empty() || random_.chance(10)) host = fresh_slots(keys.size());
    const auto priority = static_cast<std::int32_t>(random_.below(5)) - 2;
    PageKey parent = last_key(match.end);
    for_path(parent, [&](Page& page) { page.priority = std::max(page.priority, priority); });
    std::uint64_t depth = tree_.node(match.end).facts.depth_pages;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Page page;
      page.parent = parent;
      if (!device.empty()) page.device = device[i];
      if (!host.empty()) page.host = host[i];
      page.last_access = stamp;
      page.used_at = time_;
      page.parts = parts_;
      page.inserted = ++insertions_;
      page.depth = ++depth;
      page.hits = first_hits_;
      page.priority = priority;
      model_.emplace(keys[i], page);
      parent = keys[i];
    }
    tree_.insert(match.end, keys, std::move(device), std::move(host), stamp, priority);
  }

  void evict_device() {
    const NodeId victim = tree_.device_victim();
    if (victim == NodeId::none) return;
    const Pages pages = random_.between(1, tree_.node(victim).facts.pages);
    if (random_.chance(80)) tree_.notify_evicted(PolicyRole::device, victim, pages);  // pages may leave without notice
    if (!tree_.node(victim).host.resident()) {
      // If the victim has children on the host, or a host lease, a cache would back up the victim first.
      if (tree_.node(victim).children > 0 || tree_.node(victim).host.leases > 0) {
        fill_host(victim);
      } else {
        remove_tail(victim, pages);
        return;
      }
    }
    if (pages < tree_.node(victim).facts.pages) tree_.split(victim, tree_.node(victim).facts.pages - pages);
    const std::vector<PageKey> keys = keys_of(victim);
    const std::vector<SlotId> slots = tree_.clear(Tier::device, victim);
    ASSERT_EQ(slots.size(), pages);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(model_.at(keys[i]).device, slots[i]);
      model_.at(keys[i]).device = kNoSlot;
      model_.at(keys[i]).leaving = false;
    }
  }

  // Removes the tail of the next victim from L1.
  void choose() {
    const NodeId next = by_choice_ ? tree_.candidate() : NodeId::none;
    if (next == NodeId::none) return;
    const Pages pages = random_.between(1, tree_.node(next).facts.pages);
    if (pages < tree_.node(next).facts.pages) tree_.split(next, tree_.node(next).facts.pages - pages);
    tree_.set_leaving(next);
    for (const PageKey& key : tree_.node(next).keys()) model_.at(key).leaving = true;
  }

  void evict_host() {
    const NodeId victim = tree_.host_victim();
    if (victim == NodeId::none || tree_.node(victim).host.arriving != OperationId::none) return;
    const Pages pages = random_.between(1, tree_.node(victim).facts.pages);
    if (random_.chance(80)) tree_.notify_evicted(PolicyRole::host, victim, pages);
    remove_tail(victim, pages);
  }

  void remove_tail(NodeId id, Pages pages) {
    const std::vector<PageKey> keys = keys_of(id);
    std::vector<SlotId> device, host, expected_device, expected_host;
    tree_.remove_tail(id, pages, device, host);
    for (std::size_t i = keys.size() - pages; i < keys.size(); ++i) {
      const Page& page = model_.at(keys[i]);
      if (page.device != kNoSlot) expected_device.push_back(page.device);
      if (page.host != kNoSlot) expected_host.push_back(page.host);
      model_.erase(keys[i]);
    }
    ASSERT_EQ(device, expected_device);
    ASSERT_EQ(host, expected_host);
  }

  void take_lease(Lease lease) {
    if (lease.device) {
      tree_.lease(Tier::device, lease.node);
      for_path(lease.last, [](Page& page) { ++page.device_leases; });
    } else {
      tree_.lease(Tier::host, lease.node);
      for_path(lease.last, [](Page& page) { ++page.host_leases; });
    }
    leases_.push_back(lease);
  }

  void lease() {
    const NodeId id = any_node();
    if (id == NodeId::none || leases_.size() > 6) return;
    take_lease({id, last_key(id), random_.chance(60)});
  }

  // The node of a lease may have been split in the meantime. It is still the end of the leased path.
  void release() {
    if (leases_.empty()) return;
    const std::size_t at = random_.below(leases_.size());
    const Lease lease = leases_[at];
    leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(at));
    ASSERT_EQ(last_key(lease.node), lease.last);
    if (lease.device) {
      tree_.release(Tier::device, lease.node);
      for_path(lease.last, [](Page& page) { --page.device_leases; });
    } else {
      tree_.release(Tier::host, lease.node);
      for_path(lease.last, [](Page& page) { --page.host_leases; });
    }
  }

  // After splits, the upper parts are above the node of the write, with the same operation.
  void acknowledge() {
    if (writes_.empty()) return;
    const Copy write = writes_.front();
    writes_.erase(writes_.begin());
    ASSERT_EQ(last_key(write.node), write.last);
    for (NodeId at = write.node; at != tree_.root() && tree_.node(at).host.arriving == write.operation;
         at = tree_.node(at).parent) {
      tree_.set_arriving(Tier::host, at, OperationId::none);
    }
    for (auto& [key, page] : model_) {
      if (page.backup == write.operation) page.backup = OperationId::none;
    }
  }

  void fill_host(NodeId id) {
    std::vector<SlotId> slots = fresh_slots(tree_.node(id).keys().size());
    for (std::size_t i = 0; i < slots.size(); ++i) model_.at(tree_.node(id).keys()[i]).host = slots[i];
    tree_.set_slots(Tier::host, id, std::move(slots));
  }

  void backup() {
    const NodeId id = any_node();
    if (id == NodeId::none || tree_.node(id).host.resident() || writes_.size() > 3) return;
    fill_host(id);
    const auto operation = static_cast<OperationId>(++operations_);
    tree_.set_arriving(Tier::host, id, operation);
    for (const PageKey& key : tree_.node(id).keys()) model_.at(key).backup = operation;
    writes_.push_back({id, last_key(id), operation});
  }

  void load_back() {
    const NodeId id = any_node();
    if (id == NodeId::none || tree_.node(id).device.resident()) return;
    const NodeId parent = tree_.node(id).parent;
    if (parent != tree_.root() && !tree_.node(parent).device.resident()) return;
    std::vector<SlotId> slots = fresh_slots(tree_.node(id).keys().size());
    for (std::size_t i = 0; i < slots.size(); ++i) model_.at(tree_.node(id).keys()[i]).device = slots[i];
    tree_.set_slots(Tier::device, id, std::move(slots));
    if (loads_.size() > 2 || random_.chance(50)) return;
    tree_.lease(Tier::device, id);
    for_path(last_key(id), [](Page& page) { ++page.device_leases; });
    const auto operation = static_cast<OperationId>(++operations_);
    tree_.set_arriving(Tier::device, id, operation);
    for (const PageKey& key : tree_.node(id).keys()) model_.at(key).load = operation;
    loads_.push_back({id, last_key(id), operation});
  }

  void acknowledge_load() {
    if (loads_.empty()) return;
    const Copy load = loads_.front();
    loads_.erase(loads_.begin());
    ASSERT_EQ(last_key(load.node), load.last);
    tree_.release(Tier::device, load.node);
    for_path(load.last, [](Page& page) { --page.device_leases; });
    for (NodeId at = load.node; tree_.node(at).device.arriving == load.operation; at = tree_.node(at).parent) {
      tree_.set_arriving(Tier::device, at, OperationId::none);
    }
    for (auto& [key, page] : model_) {
      if (page.load == load.operation) page.load = OperationId::none;
    }
  }

  void split() {
    const NodeId id = any_node();
    if (id == NodeId::none || tree_.node(id).facts.pages < 2) return;
    const std::vector<PageKey> keys = keys_of(id);
    const Pages upper = random_.between(1, keys.size() - 1);
    const NodeId above = tree_.split(id, upper);
    ASSERT_EQ(last_key(above), keys[upper - 1]);
    ASSERT_EQ(last_key(id), keys.back());
    ASSERT_EQ(tree_.node(id).parent, above);
  }

  void other() {
    const NodeId id = any_node();
    if (id == NodeId::none) return;
    const Node& node = tree_.node(id);
    if (random_.chance(30)) {
      tree_.count_backup_hit(id);
      for (const PageKey& key : node.keys()) ++model_.at(key).backup_hits;
    } else if (random_.chance(50)) {
      const auto priority = static_cast<std::int32_t>(random_.below(6));
      Pages raised = 0;
      for_path(last_key(id), [&](Page& page) {
        raised += page.priority < priority;
        page.priority = std::max(page.priority, priority);
      });
      ASSERT_EQ(tree_.raise_priority(id, priority), raised);
    } else if (node.device.resident() && node.host.resident() && node.host.leases == 0 &&
               node.host.arriving == OperationId::none && node.device.arriving == OperationId::none) {
      const std::vector<SlotId> slots = tree_.clear(Tier::host, id);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        ASSERT_EQ(model_.at(node.keys()[i]).host, slots[i]);
        model_.at(node.keys()[i]).host = kNoSlot;
      }
    }
  }

  test::Splitmix random_;
  static inline const EvictionSetup kSetup{8};  // small, so that policies forget pages
  std::string policy_;
  const bool modelled_;
  const bool by_choice_;  // the policy chooses the candidates that leave L1 (write-back)
  const bool ordered_;    // by ShadowedCopies
  const bool evicts_leaving_;
  const bool joins_;
  const std::uint32_t first_hits_ = ordered_ ? 0 : 1;
  RadixTree tree_;
  Model model_;
  std::vector<Lease> leases_;
  std::vector<Copy> writes_, loads_;
  SlotId next_slot_ = 0;
  std::uint64_t insertions_ = 0, operations_ = 0;
  RequestId requests_ = 0;
  TimeNs time_ = 0;
  PromptParts parts_;
};

class RadixTreeProperty : public testing::TestWithParam<std::string_view> {};

TEST_P(RadixTreeProperty, AgreesWithAModelOfSinglePages) {
  const test::ThrowingChecks checks;
  const bool modelled = GetParam() == "lru" || GetParam() == "fifo";
  for (std::uint64_t seed = 0; seed < (modelled ? 120 : 60); ++seed) {
    SCOPED_TRACE(seed);
    Twin twin(seed, std::string(GetParam()));
    for (int step = 0; step < 250; ++step) {
      twin.step();
      if (HasFatalFailure()) return;
    }
    twin.drain();
    if (HasFatalFailure()) return;
  }
}

std::vector<std::string_view> all_policies() {
  const auto names = eviction_names();
  return {names.begin(), names.end()};
}
INSTANTIATE_TEST_SUITE_P(Policies, RadixTreeProperty, testing::ValuesIn(all_policies()),
                         [](const auto& tested) { return "of_" + std::string(tested.param); });

}  // namespace
}  // namespace kvtwin

#include "policy/storage/catalog.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"

namespace kvtwin {

Catalog::Catalog(Pages capacity, std::unique_ptr<EvictionPolicy> policy, std::vector<Pages> sizes)
    : capacity_(capacity), sizes_(std::move(sizes)), policy_(std::move(policy)) {}

bool Catalog::knows(const PageKey& key) const {
  const std::uint32_t id = find(key);
  return id != kNone && entries_[id].state != State::named;
}

bool Catalog::is_there_since(const PageKey& key, std::uint64_t mark) const {
  const std::uint32_t id = find(key);
  return id != kNone && entries_[id].state == State::there && entries_[id].arrived <= mark;
}

// ---- entries ---------------------------------------------------------------------------------------------

std::uint32_t Catalog::name(const PageKey& key) {
  std::uint32_t id = find(key);
  if (id != kNone) return id;
  if (free_.empty()) {
    KV_CHECK(entries_.size() < kNone, "a catalog has a number for every page");
    id = static_cast<std::uint32_t>(entries_.size());
    entries_.grow();
    used_at_.grow();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  entries_[id] = Entry{};
  entries_.set_key(id, key);
  set_marks(id, {});
  KV_CHECK(by_key_.insert(key, NodeId{id}, key_of()), "a page has one entry");
  return id;
}

void Catalog::set_marks(std::uint32_t id, const PolicyMarks& marks) {
  if (id >= marks_.size()) {
    if (marks.first == 0 && marks.second == 0) return;
    marks_.resize(entries_.size());
  }
  marks_[id] = marks;
}

void Catalog::attach(std::uint32_t child, std::uint32_t parent) {
  if (entries_[child].parent == parent) return;
  KV_CHECK(entries_[child].parent == kNone, "a key names one chain of pages");
  entries_[child].parent = parent;
  if (parent == kNone) return;
  ++entries_[parent].children;
  refresh(parent);
}

// Drops a name without children, and the names above that only led to it.
void Catalog::drop_name(std::uint32_t id) {
  while (id != kNone && entries_[id].state == State::named && entries_[id].children == 0) {
    const std::uint32_t parent = entries_[id].parent;
    by_key_.erase(entries_.key(id), NodeId{id});
    free_.push_back(id);
    if (parent != kNone) --entries_[parent].children;
    id = parent;
  }
  if (id != kNone) refresh(id);
}

void Catalog::lose(std::uint32_t id) {
  Entry& entry = entries_[id];
  KV_CHECK(entry.state != State::named, "only a known page is lost");
  entry.state = State::named;
  used_ -= sizes_[entry.pool];
  policy_->withdraw(NodeId{id});
  drop_name(id);
}

std::uint32_t Catalog::depth_below(std::uint32_t parent) const {
  if (parent == kNone) return 1;
  return entries_[parent].depth == 0 ? 0 : entries_[parent].depth + 1;
}

NodeFacts Catalog::facts(std::uint32_t id) const {
  const Entry& entry = entries_[id];
  NodeFacts facts;
  facts.last_access = entry.last_access;
  facts.inserted = entry.inserted;
  facts.hits = entry.hits;
  facts.priority = entry.priority;
  facts.pages = 1;
  facts.depth_pages = entry.depth;
  facts.used_at = used_at_[id];
  facts.parts = PromptParts::of(entry.role);
  return facts;
}

template <typename Call>
void Catalog::with_node(std::uint32_t id, Call call) {
  const NodeFacts known = facts(id);
  const PageKey key = entries_.key(id);
  PolicyMarks marks = id < marks_.size() ? marks_[id] : PolicyMarks{};
  call(PolicyNode{NodeId{id}, known, {&key, 1}, marks});
  set_marks(id, marks);
}

template <typename Call>
void Catalog::notify_learner(std::uint32_t id, Call call) {
  if (policy_.learner == nullptr) return;
  with_node(id, [&](const PolicyNode& node) { call(*policy_.learner, node); });
}

void Catalog::refresh(std::uint32_t id) {
  const Entry& entry = entries_[id];
  const bool leaf = entry.children == 0 || (KV_MUTANT(8) && !pinned_.contains(id));  // a pin counts as a child
  if (entry.state == State::there && leaf) {
    with_node(id, [this](const PolicyNode& node) { policy_->offer(node); });
  } else {
    policy_->withdraw(NodeId{id});
  }
}

// ---- pages come and go ---------------------------------------------------------------------------------

Pages Catalog::take_victims(Pages objects, std::vector<PageKey>& victims, std::size_t pool) {
  if (sizes_[pool] > capacity_) return 0;
  while (room_for(objects, pool) < objects) {
    const NodeId victim = policy_->victim();
    if (victim == NodeId::none) break;
    const auto id = static_cast<std::uint32_t>(victim);
    notify_learner(id, [](LearnsFromVisits& learner, const PolicyNode& node) { learner.evicted(node, 1); });
    victims.push_back(entries_.key(id));
    lose(id);
  }
  return room_for(objects, pool);
}

void Catalog::begin_write(const PageKey* prior, std::span<const PageKey> keys, std::int32_t priority, std::size_t pool,
                          const PromptParts& parts) {
  KV_CHECK(room_for(keys.size(), pool) == keys.size(), "room was made before");
  std::uint32_t parent = prior == nullptr ? kNone : name(*prior);
  least_priority_ = std::min(least_priority_, priority);
  ++stamp_;
  for (const PageKey& key : keys) {
    const std::uint32_t id = name(key);
    Entry& entry = entries_[id];
    KV_CHECK(entry.state == State::named, "a page is written once");
    entry.state = State::arriving;
    entry.pool = static_cast<std::uint8_t>(pool);
    entry.last_access = stamp_;
    used_at_[id] = now_;
    entry.inserted = ++insertions_;
    entry.hits = 1;
    entry.priority = priority;
    set_marks(id, {});
    entry.depth = depth_below(parent);
    entry.role = entry.depth == 0 ? PromptRole::unknown : parts.role_at(entry.depth);
    attach(id, parent);
    notify_learner(id, [](LearnsFromVisits& learner, const PolicyNode& node) { learner.entered(node); });
    parent = id;
  }
  used_ += keys.size() * sizes_[pool];
  used_max_ = std::max(used_max_, used_);
}

void Catalog::end_write(std::span<const PageKey> keys, Pages stored) {
  for (std::size_t i = keys.size(); i > 0; --i) {  // from the end, so a page that is lost has no child among them
    const std::uint32_t id = find(keys[i - 1]);
    KV_CHECK(id != kNone && entries_[id].state == State::arriving, "only a page on its way arrives");
    if (i - 1 < stored) {
      entries_[id].state = State::there;
      entries_[id].arrived = ++arrivals_;
      refresh(id);
    } else {
      lose(id);
    }
  }
}

void Catalog::adopt(const PageKey* prior, std::span<const PageKey> keys, std::size_t pool) {
  ++stamp_;
  for (const PageKey& key : keys) {
    if (!knows(key)) {
      if (room_for(1, pool) == 0) break;
      const std::uint32_t parent = prior == nullptr ? kNone : name(*prior);
      const std::uint32_t id = name(key);
      Entry& entry = entries_[id];
      entry.state = State::there;
      entry.pool = static_cast<std::uint8_t>(pool);
      entry.arrived = ++arrivals_;
      entry.last_access = stamp_;
      used_at_[id] = now_;
      entry.inserted = ++insertions_;
      entry.hits = 1;
      entry.priority = 0;
      entry.role = PromptRole::unknown;
      set_marks(id, {});
      entry.depth = depth_below(parent);
      used_ += sizes_[pool];
      attach(id, parent);
      notify_learner(id, [](LearnsFromVisits& learner, const PolicyNode& node) { learner.entered(node); });
      refresh(id);
    }
    prior = &key;
  }
  used_max_ = std::max(used_max_, used_);
}

void Catalog::raise_priority(std::span<const PageKey> keys, std::int32_t priority) {
  if (priority <= least_priority_) return;
  for (const PageKey& key : keys) {
    const std::uint32_t id = find(key);
    if (id == kNone || entries_[id].state == State::named || entries_[id].priority >= priority) continue;
    entries_[id].priority = priority;
    refresh(id);
  }
}

void Catalog::touch(std::span<const PageKey> keys) {
  ++stamp_;
  for (const PageKey& key : keys) {
    const std::uint32_t id = find(key);
    if (id == kNone || entries_[id].state == State::named) continue;
    entries_[id].last_access = stamp_;
    used_at_[id] = now_;
    ++entries_[id].hits;
    entries_[id].depth = depth_below(entries_[id].parent);  // a page above may have become known
    notify_learner(id, [](LearnsFromVisits& learner, const PolicyNode& node) { learner.touched(node); });
    refresh(id);
  }
}

void Catalog::queue(RequestId request, std::span<const PageKey> keys) {
  if (policy_.looks_ahead == nullptr) return;
  policy_.looks_ahead->queued(request, keys);
  reoffer(keys);
}

void Catalog::unqueue(RequestId request, std::span<const PageKey> keys) {
  if (policy_.looks_ahead == nullptr) return;
  policy_.looks_ahead->unqueued(request);
  reoffer(keys);
}

void Catalog::reoffer(std::span<const PageKey> keys) {
  for (const PageKey& key : keys) {
    const std::uint32_t id = find(key);
    if (id != kNone) refresh(id);
  }
}

void Catalog::pin(const PageKey& key) {
  const std::uint32_t id = name(key);
  ++pinned_[id];
  ++entries_[id].children;  // keeps the name
  refresh(id);
}

void Catalog::unpin(const PageKey& key) {
  const std::uint32_t id = find(key);
  const auto pins = pinned_.find(id);
  KV_CHECK(id != kNone && pins != pinned_.end(), "a pin is removed once");
  if (--pins->second == 0) pinned_.erase(pins);
  --entries_[id].children;
  refresh(id);
  drop_name(id);
}

void Catalog::forget(const PageKey& key) {
  const std::uint32_t id = find(key);
  if (id != kNone && entries_[id].state == State::there) lose(id);
}

void Catalog::check_invariants() const {
  Pages used = 0;
  std::size_t leaves = 0, known = 0;
  std::vector<std::uint32_t> children(entries_.size(), 0);
  const auto in_use = [this](std::uint32_t id) { return find(entries_.key(id)) == id; };
  for (std::uint32_t id = 0; id < entries_.size(); ++id) {
    if (!in_use(id)) continue;
    const Entry& entry = entries_[id];
    ++known;
    if (entry.parent != kNone) ++children[entry.parent];
    if (const auto pins = pinned_.find(id); pins != pinned_.end()) children[id] += pins->second;
    if (entry.state != State::named) used += sizes_[entry.pool];
  }
  KV_CHECK(known == by_key_.size() && known + free_.size() == entries_.size(), "an entry is found by its key");
  for (std::uint32_t id = 0; id < entries_.size(); ++id) {
    if (!in_use(id)) continue;
    const Entry& entry = entries_[id];
    KV_CHECK(entry.children == children[id], "children and pins are counted");
    KV_CHECK(entry.state != State::named || entry.children > 0, "a page that is only named has a child or a pin");
    const bool leaf = entry.state == State::there && entry.children == 0;
    KV_CHECK(policy_->is_offered(NodeId{id}) == leaf, "a page is on offer exactly if it may be evicted");
    leaves += leaf;
  }
  KV_CHECK(used == used_ && used_ <= capacity_, "a tier holds at most its capacity");
  KV_CHECK(leaves == policy_->offered(), "no other page is on offer");
}

}  // namespace kvtwin

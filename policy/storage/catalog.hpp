// The pages of one storage tier, as this engine knows them: which pages are there or on their way, and which is evicted
// next. Exact for a tier that this engine owns. A bounded guess for a shared tier, which look-ups and gets correct.
//
// A page is identified by its key. Its parent is the page before it in its chain. A page may have further objects: its
// windows, or the state behind it. Each has a key of its own (pool_page_key), and its page as parent.
//
//   absent --begin_write--> on its way --end_write--> there --take_victims, forget--> absent
//
// Pages leave from the ends of their chains: a victim is a page that has no known child and is not pinned. A page may
// be known while its parent is not, because under write-back the pages above are written later. Only L1, L2 and L3
// together are prefix-closed. An unknown parent of known pages is kept by name only.
//
// Cost: begin_write, adopt and touch O(pages); a victim O(log pages). Memory: about 90 bytes per block key, besides the
// eviction policy's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/eviction.hpp"
#include "policy/index/keyed_list.hpp"
#include "policy/index/node_table.hpp"

namespace kvtwin {

class Catalog {
 public:
  // `sizes`: of an object of each pool, pool 0 first, in the unit of `capacity`. By default, the unit is a page.
  Catalog(Pages capacity, std::unique_ptr<EvictionPolicy> policy, std::vector<Pages> sizes = {1});

  // Returns whether the page is there or on its way.
  bool knows(const PageKey& key) const;
  // Returns whether the page has been there since before the mark was taken.
  bool is_there_since(const PageKey& key, std::uint64_t mark) const;
  std::uint64_t mark() const { return arrivals_; }
  // In the unit of the capacity.
  Pages used() const { return used_; }  // there or on their way
  Pages capacity() const { return capacity_; }
  Pages used_max() const { return used_max_; }

  // Makes room for up to `objects` more objects of the pool. Appends what must be removed to `victims`. Returns for how
  // many objects there is room.
  Pages take_victims(Pages objects, std::vector<PageKey>& victims, std::size_t pool = 0);

  // Begins to write consecutive pages of a chain, or one object of another pool. Requires: none of them is known; there
  // is room. `prior`: the page before them, null at the start of the chain; the object's page.
  void begin_write(const PageKey* prior, std::span<const PageKey> keys, std::int32_t priority, std::size_t pool = 0,
                   const PromptParts& parts = {});
  // The write has ended. The first `stored` pages are there now, the others are absent again.
  void end_write(std::span<const PageKey> keys, Pages stored);
  // A look-up has found these pages: adds those that are not known, as far as there is room. Their priority is 0,
  // because the requests that wrote them are not known.
  void adopt(const PageKey* prior, std::span<const PageKey> keys, std::size_t pool = 0);

  void visit(const Visit& visit) {
    now_ = visit.time;
    if (policy_.learner != nullptr) policy_.learner->visit(visit);
  }
  void hint(const Hint& hint, TimeNs time) {
    if (policy_.takes_hints != nullptr) policy_.takes_hints->hint(hint, time);
  }
  void queue(RequestId request, std::span<const PageKey> keys);
  void unqueue(RequestId request, std::span<const PageKey> keys);
  // Raises the priority of the known pages to at least this, as in the index.
  void raise_priority(std::span<const PageKey> keys, std::int32_t priority);
  // One request has read these pages.
  void touch(std::span<const PageKey> keys);
  // A pinned page and the pages above it are no victims. Pins are counted.
  void pin(const PageKey& key);
  void unpin(const PageKey& key);

  // The page is not there any more. Does nothing to a page on its way.
  void forget(const PageKey& key);

  void check_invariants() const;

 private:
  enum class State : std::uint8_t { named, arriving, there };
  static constexpr auto kNone = static_cast<std::uint32_t>(NodeId::none);
  struct Entry {
    std::uint64_t last_access = 0, inserted = 0, arrived = 0;
    std::uint32_t parent = kNone;
    std::uint32_t children = 0;  // known, or kept by name; pins count too
    std::uint32_t hits = 0;
    std::uint32_t depth = 0;  // pages from the start of the chain; 0 if a page above is not known
    std::int32_t priority = 0;
    State state = State::named;
    std::uint8_t pool = 0;
    PromptRole role = PromptRole::unknown;
  };

  auto key_of() const {
    return [this](NodeId id) { return entries_.key(static_cast<std::size_t>(id)); };
  }
  std::uint32_t find(const PageKey& key) const { return static_cast<std::uint32_t>(by_key_.find(key, key_of())); }
  std::uint32_t name(const PageKey& key);
  void set_marks(std::uint32_t id, const PolicyMarks& marks);
  void attach(std::uint32_t child, std::uint32_t parent);
  void drop_name(std::uint32_t id);
  void lose(std::uint32_t id);
  void refresh(std::uint32_t id);
  void reoffer(std::span<const PageKey> keys);
  std::uint32_t depth_below(std::uint32_t parent) const;
  NodeFacts facts(std::uint32_t id) const;
  // Calls call(node) with the entry as a policy sees it.
  template <typename Call>
  void with_node(std::uint32_t id, Call call);
  // Calls call(learner, node), if the policy has a LearnsFromVisits.
  template <typename Call>
  void notify_learner(std::uint32_t id, Call call);

  Pages room_for(Pages objects, std::size_t pool) const {
    return std::min(objects, (capacity_ - used_) / sizes_[pool]);
  }

  const Pages capacity_;
  const std::vector<Pages> sizes_;  // by pool
  InstalledPolicy policy_;
  // By entry.
  KeyedList<Entry> entries_;
  ChunkedList<TimeNs> used_at_;     // beside the entries, which fill a cache line
  std::vector<PolicyMarks> marks_;  // of the first entries: no later one has marks
  std::vector<std::uint32_t> free_;
  NodeTable by_key_;
  std::unordered_map<std::uint32_t, std::uint32_t> pinned_;  // by pinned entry
  std::uint64_t stamp_ = 0, insertions_ = 0, arrivals_ = 0;
  TimeNs now_ = 0;                   // of the last visit
  std::int32_t least_priority_ = 0;  // no entry has a lower priority; adopted entries have 0
  Pages used_ = 0, used_max_ = 0;
};

}  // namespace kvtwin

// What one storage tier holds, as this engine knows it: which pages are there or on their way, and which goes next.
//
// Exact for a tier that is ours alone; a bounded guess for one that is shared, which look-ups and gets correct. A
// page is known by its key; its parent is the page before it in its chain:
//
//   absent --begin_write--> on its way --end_write--> there --take_victims, forget--> absent
//
// Pages leave from their chains' ends: a victim is a page with no known child, not pinned. A page may be known
// while its parent isn't (under write-back what lies above is written later): what counts is that L1, L2 and L3
// together are prefix-closed. A parent that isn't there but has known children is kept as a mere name.
// insert and touch cost O(pages); a victim O(log pages).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/eviction.hpp"

namespace kvtwin {

class Catalog {
 public:
  Catalog(Pages capacity, std::unique_ptr<EvictionPolicy> policy);

  // There, or on its way.
  bool knows(const PageKey& key) const;
  // It has been there since before the mark was taken.
  bool has_had(const PageKey& key, std::uint64_t mark) const;
  std::uint64_t mark() const { return arrivals_; }
  Pages used() const { return used_; }  // there or on their way
  Pages capacity() const { return capacity_; }
  Pages used_max() const { return used_max_; }

  // Makes room for up to `pages` more, appending to `victims` what has to go; returns for how many there is room.
  Pages take_victims(Pages pages, std::vector<PageKey>& victims);

  // Consecutive pages of a chain, none of them known; there is room. `prior`: the page before them, null at the
  // chain's start.
  void begin_write(const PageKey* prior, std::span<const PageKey> keys, std::int32_t priority);
  // The first `stored` are there now, the others absent again.
  void end_write(std::span<const PageKey> keys, Pages stored);
  // Seen there, by a look-up: those that aren't known yet, as far as there is room. Of priority 0: whose they
  // were isn't known.
  void adopt(const PageKey* prior, std::span<const PageKey> keys);

  void visit(const Visit& visit) {
    if (policy_.learner != nullptr) policy_.learner->visit(visit);
  }
  void hint(const Hint& hint, TimeNs time) {
    if (policy_.takes_hints != nullptr) policy_.takes_hints->hint(hint, time);
  }
  void queue(RequestId request, std::span<const PageKey> keys);
  void unqueue(RequestId request, std::span<const PageKey> keys);
  // Of those that are known, to at least this: as for the nodes of the index.
  void raise_priority(std::span<const PageKey> keys, std::int32_t priority);
  // Pages that have been read, by one request.
  void touch(std::span<const PageKey> keys);
  // A pinned page, and so what lies above it, isn't a victim. Counted.
  void pin(const PageKey& key);
  void unpin(const PageKey& key);

  // It isn't there any more. What is on its way stays so.
  void forget(const PageKey& key);

  void check_invariants() const;

 private:
  enum class State : std::uint8_t { named, coming, there };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Entry {
    PageKey key;
    std::uint64_t last_access = 0, inserted = 0, arrived = 0;
    std::uint32_t parent = kNone;
    std::uint32_t children = 0;  // known or named
    std::uint32_t pins = 0;
    std::uint32_t hits = 0;
    std::uint32_t depth = 0;  // pages from its chain's start; 0 if what lies above isn't known
    std::int32_t priority = 0;
    State state = State::named;
    PolicyMarks marks{};
  };

  std::uint32_t find(const PageKey& key) const;
  std::uint32_t name(const PageKey& key);
  void attach(std::uint32_t child, std::uint32_t parent);
  void drop_name(std::uint32_t id);
  void lose(std::uint32_t id);
  void refresh(std::uint32_t id);
  void reoffer(std::span<const PageKey> keys);
  std::uint32_t depth_below(std::uint32_t parent) const;
  static NodeFacts facts(const Entry& entry);
  // Calls `call` with the entry as a policy sees it.
  template <typename Call>
  void with_node(std::uint32_t id, Call call);
  // The same, with the policy's LearnsFromVisits first; doesn't call if the policy has none.
  template <typename Call>
  void notify_learner(std::uint32_t id, Call call);

  const Pages capacity_;
  InstalledPolicy policy_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<PageKey, std::uint32_t, PageKeyHash> by_key_;
  std::uint64_t stamp_ = 0, insertions_ = 0, arrivals_ = 0;
  std::int32_t least_priority_ = 0;  // no entry's is below it; 0 is that of adopted ones
  Pages used_ = 0, used_max_ = 0;
};

}  // namespace kvtwin

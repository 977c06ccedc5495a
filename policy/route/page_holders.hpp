// Which engines have which pages, on which tiers: one index for all engines.
//
// A page has a list of its holders. Memory: about 72 bytes per page that an engine has, and 16 per further holder.
// Cost: O(1) per page and holder of this page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

class PageHolders {
 public:
  static constexpr std::uint8_t bit(Tier tier) { return static_cast<std::uint8_t>(1U << static_cast<unsigned>(tier)); }

  void add(std::size_t engine, Tier tier, const PageKey& key) {
    std::uint32_t& first = first_of_.try_emplace(key, kNone).first->second;
    for (std::uint32_t at = first; at != kNone; at = holders_[at].next) {
      if (holders_[at].engine != engine) continue;
      holders_[at].tiers |= bit(tier);
      return;
    }
    const Holder holder{static_cast<std::uint32_t>(engine), first, bit(tier)};
    if (free_ == kNone) {
      first = static_cast<std::uint32_t>(holders_.size());
      holders_.push_back(holder);
    } else {
      first = free_;
      free_ = holders_[first].next;
      holders_[first] = holder;
    }
  }

  // Does nothing if the engine does not have the page on this tier.
  void remove(std::size_t engine, Tier tier, const PageKey& key) {
    const auto page = first_of_.find(key);
    if (page == first_of_.end()) return;
    for (std::uint32_t* at = &page->second; *at != kNone; at = &holders_[*at].next) {
      Holder& holder = holders_[*at];
      if (holder.engine != engine) continue;
      holder.tiers = static_cast<std::uint8_t>(holder.tiers & ~bit(tier));
      if (holder.tiers != 0) return;
      const std::uint32_t unused = *at;
      *at = holder.next;
      holders_[unused].next = free_;
      free_ = unused;
      if (page->second == kNone) first_of_.erase(page);
      return;
    }
  }

  // Calls visit(engine, tiers) for each engine that has the page; `tiers` are bits of bit(). In no fixed order.
  template <typename Visit>
  void each_holder(const PageKey& key, Visit visit) const {
    const auto page = first_of_.find(key);
    if (page == first_of_.end()) return;
    for (std::uint32_t at = page->second; at != kNone; at = holders_[at].next) {
      visit(std::size_t{holders_[at].engine}, holders_[at].tiers);
    }
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Holder {
    std::uint32_t engine = 0;
    std::uint32_t next = kNone;  // the next holder of the page, or the next free entry
    std::uint8_t tiers = 0;
  };

  std::unordered_map<PageKey, std::uint32_t, PageKeyHash> first_of_;  // looked up only, never iterated
  std::vector<Holder> holders_;
  std::uint32_t free_ = kNone;
};

}  // namespace kvtwin

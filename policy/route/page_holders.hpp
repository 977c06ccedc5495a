// Which engines have which pages, on which tiers: one index for all engines.
//
// Most pages have one holder, which stands with the page's key. A page with several has a list of them, and a page with
// many a table of all engines. Memory: about 45 bytes per block key that an engine has, and 12 per further holder.
// Cost: O(1) per page and holder of this page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/base/types.hpp"
#include "policy/index/keyed_list.hpp"
#include "policy/index/node_table.hpp"

namespace kvtwin {

class PageHolders {
 public:
  static constexpr std::uint8_t bit(Tier tier) { return static_cast<std::uint8_t>(1U << static_cast<unsigned>(tier)); }

  void add(std::size_t engine, Tier tier, const PageKey& key) {
    std::uint32_t& of = pages_[page_of(key)];
    if (of == kNone) {
      of = single(engine, bit(tier));
    } else if (is_single(of) && engine_of(of) == engine) {
      of |= bit(tier);
    } else if (is_table(of)) {
      Table& table = tables_[of - kTable];
      table.set(engine, static_cast<std::uint8_t>(table.at(engine) | bit(tier)));
    } else {
      add_to_list(engine, tier, of);
    }
  }

  // Does nothing if the engine does not have the page on this tier.
  void remove(std::size_t engine, Tier tier, const PageKey& key) {
    const std::uint32_t page = find(key);
    if (page == kNone) return;
    std::uint32_t& of = pages_[page];
    if (is_single(of)) {
      if (engine_of(of) != engine) return;
      of &= ~std::uint32_t{bit(tier)};
      if (tiers_of(of) == 0) of = kNone;
    } else if (is_table(of)) {
      Table& table = tables_[of - kTable];
      table.set(engine, static_cast<std::uint8_t>(table.at(engine) & ~bit(tier)));
      if (table.holders == 0) {
        free_tables_.push_back(of - kTable);
        of = kNone;
      }
    } else {
      remove_from_list(engine, tier, of);
    }
    if (of != kNone) return;
    by_key_.erase(key, NodeId{page});
    free_pages_.push_back(page);
  }

  // Calls visit(engine, tiers) for each engine that has the page; `tiers` are bits of bit(). In no fixed order.
  template <typename Visit>
  void each_holder(const PageKey& key, Visit visit) const {
    const std::uint32_t page = find(key);
    if (page == kNone) return;
    const std::uint32_t of = pages_[page];
    if (is_single(of)) return visit(engine_of(of), tiers_of(of));
    if (is_table(of)) {
      const std::vector<std::uint8_t>& tiers = tables_[of - kTable].tiers;
      for (std::size_t engine = 0; engine < tiers.size(); ++engine) {
        if (tiers[engine] != 0) visit(engine, tiers[engine]);
      }
      return;
    }
    for (std::uint32_t at = of; at != kNone; at = listed_[at].next) {
      visit(std::size_t{listed_[at].engine}, listed_[at].tiers);
    }
  }

 private:
  static constexpr auto kNone = static_cast<std::uint32_t>(NodeId::none);
  // What stands with a page: the number of its first holder in listed_, kTable + the number of a table, or kSingle and
  // the one holder: 8 bits of tiers, above them 22 of the engine.
  static constexpr std::uint32_t kTable = std::uint32_t{1} << 30, kSingle = std::uint32_t{1} << 31;
  static constexpr std::size_t kMaxListed = 8, kMaxEngines = (std::size_t{1} << 22) - 1;
  struct Holder {
    std::uint32_t engine = 0;
    std::uint32_t next = kNone;  // the next holder of the page, or the next free entry
    std::uint8_t tiers = 0;
  };
  // The holders of a page that many engines have, such as those of a shared system prompt.
  struct Table {
    std::vector<std::uint8_t> tiers;  // by engine
    std::size_t holders = 0;          // with a tier

    std::uint8_t at(std::size_t engine) const { return engine < tiers.size() ? tiers[engine] : 0; }
    void set(std::size_t engine, std::uint8_t now) {
      if (engine >= tiers.size()) tiers.resize(engine + 1);
      holders = holders + (now != 0 ? 1 : 0) - (tiers[engine] != 0 ? 1 : 0);
      tiers[engine] = now;
    }
  };

  static std::uint32_t single(std::size_t engine, std::uint8_t tiers) {
    KV_CHECK(engine < kMaxEngines, "a router has a number for every engine");
    return kSingle | static_cast<std::uint32_t>(engine) << 8 | tiers;
  }
  static bool is_single(std::uint32_t of) { return of != kNone && of >= kSingle; }
  static bool is_table(std::uint32_t of) { return of >= kTable && of < kSingle; }
  static std::size_t engine_of(std::uint32_t of) { return (of & ~kSingle) >> 8; }
  static std::uint8_t tiers_of(std::uint32_t of) { return static_cast<std::uint8_t>(of); }
  auto key_of() const {
    return [this](NodeId page) { return pages_.key(static_cast<std::size_t>(page)); };
  }
  std::uint32_t find(const PageKey& key) const { return static_cast<std::uint32_t>(by_key_.find(key, key_of())); }
  // Returns the number of the page. A new page has no holder yet.
  std::uint32_t page_of(const PageKey& key) {
    std::uint32_t page = find(key);
    if (page != kNone) return page;
    if (free_pages_.empty()) {
      KV_CHECK(pages_.size() < kNone, "a router has a number for every page");
      page = static_cast<std::uint32_t>(pages_.size());
      pages_.grow();
    } else {
      page = free_pages_.back();
      free_pages_.pop_back();
    }
    pages_.set_key(page, key);
    pages_[page] = kNone;
    KV_CHECK(by_key_.insert(key, NodeId{page}, key_of()), "a page has one number");
    return page;
  }

  // `of`: a list, or a single holder that is another engine.
  void add_to_list(std::size_t engine, Tier tier, std::uint32_t& of) {
    if (is_single(of)) {
      const std::uint32_t before = of;
      of = kNone;
      put_first(engine_of(before), tiers_of(before), of);
    }
    std::size_t holders = 0;
    for (std::uint32_t at = of; at != kNone; at = listed_[at].next, ++holders) {
      if (listed_[at].engine != engine) continue;
      listed_[at].tiers |= bit(tier);
      return;
    }
    put_first(engine, bit(tier), of);
    if (holders == kMaxListed) make_table(of);
  }
  void remove_from_list(std::size_t engine, Tier tier, std::uint32_t& of) {
    for (std::uint32_t* at = &of; *at != kNone; at = &listed_[*at].next) {
      Holder& holder = listed_[*at];
      if (holder.engine != engine) continue;
      holder.tiers = static_cast<std::uint8_t>(holder.tiers & ~bit(tier));
      if (holder.tiers == 0) unlist(*at);
      return;
    }
  }
  void put_first(std::size_t engine, std::uint8_t tiers, std::uint32_t& list) {
    const Holder holder{static_cast<std::uint32_t>(engine), list, tiers};
    if (free_ == kNone) {
      KV_CHECK(listed_.size() < kTable, "a router has a number for every holder");
      list = static_cast<std::uint32_t>(listed_.size());
      listed_.push_back(holder);
    } else {
      list = free_;
      free_ = listed_[list].next;
      listed_[list] = holder;
    }
  }
  // Removes the holder from its list. `at`: what names the holder in the list.
  void unlist(std::uint32_t& at) {
    const std::uint32_t unused = at;
    at = listed_[unused].next;
    listed_[unused].next = free_;
    free_ = unused;
  }
  // Moves the holders of a list to a table.
  void make_table(std::uint32_t& of) {
    std::uint32_t number = static_cast<std::uint32_t>(tables_.size());
    if (free_tables_.empty()) {
      tables_.emplace_back();
    } else {
      number = free_tables_.back();
      free_tables_.pop_back();
    }
    while (of != kNone) {
      tables_[number].set(listed_[of].engine, listed_[of].tiers);
      unlist(of);
    }
    of = kTable + number;
  }

  NodeTable by_key_;
  KeyedList<std::uint32_t> pages_;  // by number of the page: its holders
  std::vector<std::uint32_t> free_pages_;
  std::vector<Holder> listed_;
  std::uint32_t free_ = kNone;
  std::vector<Table> tables_;
  std::vector<std::uint32_t> free_tables_;
};

}  // namespace kvtwin

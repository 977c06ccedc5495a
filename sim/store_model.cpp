#include "sim/store_model.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {

StoreModel::StoreModel(Pages capacity, StoreRules rules)
    : capacity_(capacity * std::max<Bytes>(1, rules.page_bytes)), rules_(std::move(rules)), table_(64, kNone) {
  drive_capacity_ = rules_.drive_pages * std::max<Bytes>(1, rules_.page_bytes);
  KV_CHECK(capacity > 0, "a store has room for a page");
  KV_CHECK(rules_.nodes > 0, "a store has a node");
  std::ranges::stable_sort(rules_.downs, {}, [](const NodeDown& down) { return down.span.begin; });
}

void StoreModel::advance_to(TimeNs now) {
  now_ = now;
  for (; next_down_ < rules_.downs.size() && rules_.downs[next_down_].span.begin <= now; ++next_down_) {
    lose_node(rules_.downs[next_down_].node);
  }
}

bool StoreModel::is_down(const StoreKey& key) const {
  return std::ranges::any_of(rules_.downs,
                             [&](const NodeDown& down) { return down.span.has(now_) && down.node == node_of(key); });
}

bool StoreModel::lost_since(const StoreKey& key, TimeNs time) const {
  return std::ranges::any_of(rules_.downs, [&](const NodeDown& down) {
    return down.span.begin > time && down.span.begin <= now_ && down.node == node_of(key);
  });
}

void StoreModel::lose_node(std::uint32_t node) {
  for (std::uint32_t entry : {memory_.oldest, drives_.oldest}) {
    while (entry != kNone) {
      const std::uint32_t next = entries_[entry].newer;
      const StoreKey key = entries_[entry].key;
      if (node_of(key) == node) erase_cell(find(key));
      entry = next;
    }
  }
}

double StoreModel::drive_share(std::span<const StoreKey> keys) const {
  if (drives_.size == 0) return 0.0;
  Bytes all = 0, there = 0;
  for (const StoreKey& key : keys) {
    const Entry& entry = entries_[table_[find(key)]];
    all += entry.units;
    if (entry.on_drives) there += entry.units;
  }
  return all == 0 ? 0.0 : static_cast<double>(there) / static_cast<double>(all);
}

void StoreModel::renew_leases(std::span<const StoreKey> keys) {
  if (rules_.lease_ns == 0) return;
  for (const StoreKey& key : keys) touch(key);
}

Pages StoreModel::leading(std::span<const StoreKey> keys) const {
  Pages count = 0;
  while (count < keys.size() && contains(keys[count]) && !is_down(keys[count])) ++count;
  return count;
}

bool StoreModel::touch(const StoreKey& key) {
  const std::uint32_t entry = table_[find(key)];
  if (entry == kNone) return false;
  if (entry != memory_.newest && !entries_[entry].on_drives) {
    unlink(entry);
    link_newest(entry);
  }
  if (rules_.lease_ns != 0) leased_until_[entry] = now_ + rules_.lease_ns;
  return true;
}

bool StoreModel::add(const StoreKey& key, Bytes bytes) {
  if (touch(key)) return true;
  const Bytes units = units_of(bytes);
  if (units > capacity_) return false;
  if (!make_room(units)) return false;
  if (2 * (entries_.size() + 1) > table_.size()) grow();
  std::uint32_t entry = free_;
  if (entry == kNone) {
    KV_CHECK(entries_.size() < kNone, "a store holds fewer than 2^32 pages");
    entry = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    free_ = entries_[entry].older;
  }
  entries_[entry].key = key;
  entries_[entry].units = units;
  entries_[entry].on_drives = false;
  if (drive_capacity_ != 0) {
    const Bytes of_page = std::max<Bytes>(1, rules_.page_bytes);
    const auto ps =
        static_cast<double>(rules_.drive_write_ps) * static_cast<double>(units) / static_cast<double>(of_page);
    drives_busy_until_ = std::max(drives_busy_until_, now_) + static_cast<TimeNs>(ps / 1000.0);
    entries_[entry].written = drives_busy_until_;
  }
  if (rules_.lease_ns != 0) {
    leased_until_.resize(entries_.size());
    leased_until_[entry] = now_;
  }
  link_newest(entry);
  table_[find(key)] = entry;
  memory_.size += units;
  size_ += units;
  size_max_ = std::max(size_max_, size_);
  return true;
}

// Makes room in memory. Returns false if it cannot.
bool StoreModel::make_room(Bytes units) {
  while (capacity_ - memory_.size < units) {
    if (!rules_.evicts_itself) return false;
    std::uint32_t victim = memory_.oldest;
    while (victim != kNone && (is_leased(victim) || entries_[victim].written > now_)) victim = entries_[victim].newer;
    if (victim == kNone) return false;
    if (move_to_drives(victim)) continue;
    erase_cell(find(entries_[victim].key));
    ++evicted_;
  }
  return true;
}

// Returns false if the drives have no room for the page.
bool StoreModel::move_to_drives(std::uint32_t entry) {
  const Bytes units = entries_[entry].units;
  if (units > drive_capacity_) return false;
  while (drive_capacity_ - drives_.size < units) {
    std::uint32_t first = drives_.oldest;
    while (first != kNone && is_leased(first)) first = entries_[first].newer;
    if (first == kNone) return false;
    erase_cell(find(entries_[first].key));
    ++evicted_;
  }
  unlink(entry);
  memory_.size -= units;
  entries_[entry].on_drives = true;
  link_newest(entry);
  drives_.size += units;
  return true;
}

bool StoreModel::remove(const StoreKey& key) {
  const std::size_t cell = find(key);
  if (table_[cell] == kNone) return false;
  erase_cell(cell);
  return true;
}

std::size_t StoreModel::find(const StoreKey& key) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t cell = home(key);
  while (table_[cell] != kNone && entries_[table_[cell]].key != key) cell = (cell + 1) & mask;
  return cell;
}

void StoreModel::grow() {
  std::vector<std::uint32_t> old(2 * table_.size(), kNone);
  old.swap(table_);
  for (const std::uint32_t entry : old) {
    if (entry != kNone) table_[find(entries_[entry].key)] = entry;
  }
}

void StoreModel::unlink(std::uint32_t entry) {
  const Entry& e = entries_[entry];
  Medium& medium = medium_of(entry);
  (e.older == kNone ? medium.oldest : entries_[e.older].newer) = e.newer;
  (e.newer == kNone ? medium.newest : entries_[e.newer].older) = e.older;
}

void StoreModel::link_newest(std::uint32_t entry) {
  Medium& medium = medium_of(entry);
  entries_[entry].older = medium.newest;
  entries_[entry].newer = kNone;
  (medium.newest == kNone ? medium.oldest : entries_[medium.newest].newer) = entry;
  medium.newest = entry;
}

void StoreModel::erase_cell(std::size_t cell) {
  const std::uint32_t entry = table_[cell];
  unlink(entry);
  medium_of(entry).size -= entries_[entry].units;
  entries_[entry].older = free_;
  free_ = entry;
  size_ -= entries_[entry].units;
  // Backward shift instead of tombstones.
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = cell;
  for (std::size_t i = (hole + 1) & mask; table_[i] != kNone; i = (i + 1) & mask) {
    const std::size_t distance = (i - home(entries_[table_[i]].key)) & mask;
    if (distance < ((i - hole) & mask)) continue;
    table_[hole] = table_[i];
    hole = i;
  }
  table_[hole] = kNone;
}

}  // namespace kvtwin

#include "impl/disk/segment_index.hpp"

#include <algorithm>
#include <chrono>

#include "policy/base/check.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {

PageName page_name(const PageKey& space, const PageKey& key) {
  const PageKey name = storage_page_key(space, key);
  return {name.words[0], name.words[1]};
}

namespace {

// The catalog of an eviction policy knows a page by its name.
PageKey key_of(const PageName& name) { return {{name.low, name.high, 0, 0}}; }
PageName name_of(const PageKey& key) { return {key.words[0], key.words[1]}; }

}  // namespace

SegmentIndex::SegmentIndex(Pages capacity, std::unique_ptr<EvictionPolicy> eviction) : capacity_(capacity) {
  if (eviction) catalog_.emplace(capacity, std::move(eviction));
}

// Tells the policy that a request begins, which uses the page.
void SegmentIndex::visit(const PageName& name) {
  const PageKey key = key_of(name);
  const TimeNs now = std::chrono::steady_clock::now().time_since_epoch().count();
  catalog_->visit({.request = ++visits_, .time = now, .keys = {&key, 1}});
}

void SegmentIndex::use(const PageName& name) {
  visit(name);
  const PageKey key = key_of(name);
  catalog_->touch({&key, 1});
}

void SegmentIndex::add_segment(std::shared_ptr<Segment> segment) {
  const std::lock_guard lock(mutex_);
  slots_ += segment->slots;
  const FileNumber number = segment->number;
  segments_.emplace(number, std::move(segment));
}

void SegmentIndex::add_found(const PageName& name, const Place& place) {
  const std::lock_guard lock(mutex_);
  Segment& segment = *place.segment;
  segment.used_.at(place.slot) = true;
  segment.order_.emplace_back(place.slot, name);
  Entry entry{&segment, place.slot, evicts(), false, place.summed};
  const auto at = entries_.find(name);
  if (at != entries_.end()) {
    if (evicts()) --at->second.segment->claimed_, ++segment.claimed_;
    spares_.emplace(name, at->second);
    at->second = entry;
  } else if (evicts()) {
    evict_until(1);
    const PageKey key = key_of(name);
    catalog_->adopt(nullptr, {&key, 1});
    entries_.emplace(name, entry);
    ++segment.claimed_;
    ++claimed_;
  } else {
    entries_.emplace(name, entry);
    ++unclaimed_;
  }
  oldest_.emplace_back(name, segment.number);
}

void SegmentIndex::add_damaged(const Place& place) { begin_write(place); }

std::optional<Place> SegmentIndex::find(const PageName& name) const {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(name);
  if (at == entries_.end()) return std::nullopt;
  return Place{segments_.at(at->second.segment->number), at->second.slot, at->second.summed};
}

SegmentIndex::Standing SegmentIndex::claim(const PageName& name, Place& place) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(name);
  if (at == entries_.end()) return Standing::absent;
  Entry& entry = at->second;
  if (!entry.verified) {
    place = {segments_.at(entry.segment->number), entry.slot, entry.summed};
    return Standing::unverified;
  }
  if (entry.claimed) {
    if (evicts()) use(name);
    return Standing::claimed;
  }
  if (claimed_ + reserved_ >= capacity_) return Standing::no_room;
  entry.claimed = true;
  ++entry.segment->claimed_;
  ++claimed_;
  --unclaimed_;
  return Standing::claimed;
}

bool SegmentIndex::reserve(const PageName& name) {
  const std::lock_guard lock(mutex_);
  if (evicts()) {
    evict_until(1);
    if (claimed_ + reserved_ >= capacity_) return false;
    const PageKey key = key_of(name);
    visit(name);
    catalog_->begin_write(nullptr, {&key, 1}, 0);
  } else {
    if (claimed_ + reserved_ >= capacity_) return false;
    while (claimed_ + reserved_ + unclaimed_ >= capacity_ && evict_oldest()) continue;
  }
  ++reserved_;
  return true;
}

void SegmentIndex::unreserve(const PageName& name) {
  const std::lock_guard lock(mutex_);
  const PageKey key = key_of(name);
  if (evicts()) catalog_->end_write({&key, 1}, 0);
  --reserved_;
}

// Evicts the policy's victims until there is room for `free` pages.
void SegmentIndex::evict_until(Pages free) {
  victims_.clear();
  catalog_->take_victims(free + catalog_->capacity() - capacity_, victims_);
  for (const PageKey& key : victims_) {
    forget(entries_.find(name_of(key)), true);
    ++evicted_;
  }
}

void SegmentIndex::set_capacity(Pages capacity) {
  const std::lock_guard lock(mutex_);
  capacity_ = std::min(catalog_->capacity(), capacity);
  evict_until(0);
}

void SegmentIndex::begin_write(const Place& place) {
  const std::lock_guard lock(mutex_);
  place.segment->used_.at(place.slot) = true;
}

void SegmentIndex::written(const PageName& name, const Place& place) {
  const std::lock_guard lock(mutex_);
  Segment& segment = *place.segment;
  segment.order_.emplace_back(place.slot, name);
  const auto [at, fresh] = entries_.try_emplace(name, Entry{&segment, place.slot, true, true, place.summed});
  KV_CHECK(fresh, "a page that is there isn't written again");
  const PageKey key = key_of(name);
  if (evicts()) catalog_->end_write({&key, 1}, 1);
  ++segment.claimed_;
  --reserved_;
  ++claimed_;
}

void SegmentIndex::verified(const PageName& name, const Place& place) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(name);
  if (at == entries_.end() || !lies_at(at->second, *place.segment, place.slot)) return;
  at->second.verified = true;
  spares_.erase(name);
  if (evicts()) use(name);
}

bool SegmentIndex::drop(const PageName& name, const Place& place) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(name);
  if (at == entries_.end()) return false;
  if (!lies_at(at->second, *place.segment, place.slot)) return true;  // the page was moved in the meantime
  return !forget(at, false);
}

void SegmentIndex::erase(const PageName& name) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(name);
  if (at != entries_.end()) forget(at, true);
}

// Returns true if the page is gone. False: its youngest spare has replaced it.
bool SegmentIndex::forget(Entries::iterator at, bool spares_too) {
  const PageName name = at->first;
  Entry& entry = at->second;
  if (entry.claimed) --entry.segment->claimed_;
  const auto [first, last] = spares_.equal_range(name);
  if (!spares_too && first != last) {
    auto youngest = first;
    for (auto it = first; it != last; ++it) {
      const Entry& a = it->second;
      const Entry& b = youngest->second;
      if (std::pair(a.segment->number, a.slot) > std::pair(b.segment->number, b.slot)) youngest = it;
    }
    const bool claimed = entry.claimed;
    entry = youngest->second;
    entry.claimed = claimed;
    if (claimed) {
      ++entry.segment->claimed_;
    } else {
      oldest_.emplace_front(name, entry.segment->number);  // its place in the order of eviction may have passed
    }
    spares_.erase(youngest);
    return false;
  }
  spares_.erase(first, last);
  if (evicts()) catalog_->forget(key_of(name));
  --(entry.claimed ? claimed_ : unclaimed_);
  entries_.erase(at);
  return true;
}

bool SegmentIndex::evict_oldest() {
  for (; !oldest_.empty(); oldest_.pop_front()) {
    const auto& [name, number] = oldest_.front();
    const auto at = entries_.find(name);
    // A page with several copies is evicted at the place of its youngest copy.
    if (at == entries_.end() || at->second.claimed || at->second.segment->number > number) continue;
    forget(at, true);
    ++evicted_;
    oldest_.pop_front();
    return true;
  }
  return false;
}

std::vector<SegmentIndex::Copy> SegmentIndex::unsettled() const {
  const std::lock_guard lock(mutex_);
  std::vector<Copy> copies;
  for (auto it = spares_.begin(); it != spares_.end(); it = spares_.equal_range(it->first).second) {
    const Entry& youngest = entries_.at(it->first);
    copies.push_back({it->first, {segments_.at(youngest.segment->number), youngest.slot, youngest.summed}});
  }
  return copies;
}

std::vector<Place> SegmentIndex::dead_slots() const {
  const std::lock_guard lock(mutex_);
  std::unordered_map<const Segment*, std::vector<bool>> dead;
  for (const auto& [number, segment] : segments_) dead.emplace(segment.get(), segment->used_);
  for (const auto& [name, entry] : entries_) dead.at(entry.segment).at(entry.slot) = false;
  std::vector<Place> places;
  for (const auto& [number, segment] : segments_) {
    const std::vector<bool>& slots = dead.at(segment.get());
    for (std::uint32_t slot = 0; slot < segment->slots; ++slot) {
      if (slots[slot]) places.push_back({segment, slot});
    }
  }
  return places;
}

std::vector<SegmentIndex::Unsynced> SegmentIndex::unsynced() const {
  const std::lock_guard lock(mutex_);
  std::vector<Unsynced> all;
  for (const auto& [number, segment] : segments_) {
    if (const Unsynced it = unsynced_now(segment); it.any) all.push_back(it);
  }
  return all;
}

SegmentIndex::Unsynced SegmentIndex::unsynced_of(const std::shared_ptr<Segment>& segment) const {
  const std::lock_guard lock(mutex_);
  return unsynced_now(segment);
}

SegmentIndex::Unsynced SegmentIndex::unsynced_now(const std::shared_ptr<Segment>& segment) {
  const bool any = segment->durable_ < segment->order_.size() || !segment->listed_;
  return {segment, segment->order_.size(), segment->losses_, segment->listed_, any};
}

void SegmentIndex::synced(const Unsynced& what) {
  const std::lock_guard lock(mutex_);
  if (what.segment->losses_ != what.losses) return;
  what.segment->durable_ = std::max(what.segment->durable_, what.until);
  what.segment->listed_ = true;
}

Pages SegmentIndex::lost(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  Pages pages = 0;
  for (std::size_t i = segment->durable_; i < segment->order_.size(); ++i) {
    const auto& [slot, name] = segment->order_[i];
    const auto [first, last] = spares_.equal_range(name);
    for (auto it = first; it != last;) it = lies_at(it->second, *segment, slot) ? spares_.erase(it) : std::next(it);
    const auto at = entries_.find(name);
    if (at == entries_.end() || !lies_at(at->second, *segment, slot)) continue;
    forget(at, false);
    ++pages;
  }
  segment->order_.resize(segment->durable_);
  ++segment->losses_;
  return pages;
}

std::shared_ptr<Segment> SegmentIndex::victim(const Segment* head, std::uint64_t& claimed,
                                              std::uint32_t min_slots) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Segment> best;
  for (const auto& [number, segment] : segments_) {
    if (segment->slots < min_slots) continue;
    if (segment.get() != head && (!best || segment->claimed_ < best->claimed_)) best = segment;
  }
  if (best) claimed = best->claimed_;
  return best;
}

std::shared_ptr<Segment> SegmentIndex::most_dead(const Segment* head) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Segment> best;
  const auto dead = [](const Segment& segment) { return segment.slots - segment.claimed_; };
  for (const auto& [number, segment] : segments_) {
    if (segment.get() == head || dead(*segment) == 0) continue;
    const bool better =
        !best || dead(*segment) > dead(*best) || (dead(*segment) == dead(*best) && segment->claimed_ < best->claimed_);
    if (better) best = segment;
  }
  return best;
}

std::vector<SegmentIndex::Move> SegmentIndex::claimed_of(const Segment& segment) const {
  const std::lock_guard lock(mutex_);
  std::vector<Move> moves;
  for (const auto& [slot, name] : segment.order_) {
    const auto at = entries_.find(name);
    if (at != entries_.end() && lies_at(at->second, segment, slot) && at->second.claimed)
      moves.push_back({name, slot, {}});
  }
  return moves;
}

void SegmentIndex::copied(Move& move, const Place& place) {
  const std::lock_guard lock(mutex_);
  Segment& segment = *place.segment;
  segment.order_.emplace_back(place.slot, move.name);
  move.to = place;
  move.until = segment.order_.size();
  move.losses = segment.losses_;
}

bool SegmentIndex::retire(const std::shared_ptr<Segment>& victim, const std::vector<Move>& moves) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, from, to, until, losses] : moves) {
    if (to.segment && (losses != to.segment->losses_ || until > to.segment->durable_)) return false;
  }
  for (const Move& move : moves) {
    const auto at = entries_.find(move.name);
    if (!move.to.segment || at == entries_.end() || !lies_at(at->second, *victim, move.from)) continue;
    Entry& entry = at->second;
    if (entry.claimed) {
      --victim->claimed_;
      ++move.to.segment->claimed_;
    }
    entry.segment = move.to.segment.get();
    entry.slot = move.to.slot;
    entry.summed = move.to.summed;
  }
  for (const auto& [slot, name] : victim->order_) {
    const auto [first, last] = spares_.equal_range(name);
    for (auto it = first; it != last;) it = it->second.segment == victim.get() ? spares_.erase(it) : std::next(it);
    const auto at = entries_.find(name);
    // A page is evicted with its spares, which may be copies that were removed.
    if (at != entries_.end() && lies_at(at->second, *victim, slot) && forget(at, true)) ++evicted_;
  }
  slots_ -= victim->slots;
  segments_.erase(victim->number);
  return true;
}

SegmentIndex::Totals SegmentIndex::totals() const {
  const std::lock_guard lock(mutex_);
  return {claimed_, unclaimed_, reserved_, evicted_, capacity_, slots_, segments_.size()};
}

void SegmentIndex::check_invariants() const {
  const std::lock_guard lock(mutex_);
  KV_CHECK(claimed_ + reserved_ <= capacity_, "the capacity is never exceeded");
  KV_CHECK(entries_.size() == claimed_ + unclaimed_, "each page is claimed or not");
  if (evicts()) {
    catalog_->check_invariants();
    KV_CHECK(catalog_->used() == claimed_ + reserved_ && unclaimed_ == 0, "the policy sees each page");
  }
  std::map<const Segment*, std::uint64_t> claimed;
  Pages all = 0;
  for (const auto& [name, entry] : entries_) {
    const auto at = segments_.find(entry.segment->number);
    KV_CHECK(at != segments_.end() && at->second.get() == entry.segment, "a page lies in a segment that is there");
    KV_CHECK(entry.slot < entry.segment->slots, "a page lies in one of its segment's slots");
    KV_CHECK(std::ranges::count(entry.segment->order_, std::pair(entry.slot, name)) == 1,
             "a segment knows what lies in it");
    if (entry.claimed) ++claimed[entry.segment], ++all;
  }
  KV_CHECK(all == claimed_, "claimed pages are counted");
  for (const auto& [number, segment] : segments_) {
    KV_CHECK(segment->claimed_ == claimed[segment.get()], "a segment's claimed pages are counted");
    KV_CHECK(segment->durable_ <= segment->order_.size(), "what is durable was written");
  }
}

}  // namespace kvtwin

// The sessions that are pinned by a hint. A pin protects the path of the session's last record until the pin expires or
// unpin() is called. Pins protect a fifth of the tier at most. A pin that would exceed this share is dropped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>

#include "policy/base/types.hpp"
#include "policy/eviction/tide/returns.hpp"

namespace kvtwin {

class TidePins {
 public:
  static constexpr TimeNs kForever = std::numeric_limits<TimeNs>::max();

  explicit TidePins(Pages capacity) : max_pages_(capacity / kTierShare) {}

  // Pins the session, whose last record has a path of `pages` pages. Replaces an earlier pin.
  void pin(std::uint64_t session, RecordId record, Pages pages, TimeNs until) {
    unpin(session);
    next_expiry_ = std::min(next_expiry_, until);
    move(pins_.try_emplace(session, Pin{kNoRecord, until, 0}).first, record, pages);
  }
  void unpin(std::uint64_t session) {
    if (const auto pin = pins_.find(session); pin != pins_.end()) drop(pin);
  }
  // If the session is pinned, the pin protects the path of this record from now on.
  void follow(std::uint64_t session, RecordId record, Pages pages) {
    if (const auto pin = pins_.find(session); pin != pins_.end()) move(pin, record, pages);
  }
  void expire(TimeNs now) {
    if (now < next_expiry_) return;
    next_expiry_ = kForever;
    for (auto pin = pins_.begin(); pin != pins_.end();) {
      const auto at = pin++;
      if (at->second.until <= now) {
        drop(at);
      } else {
        next_expiry_ = std::min(next_expiry_, at->second.until);
      }
    }
  }

  Pages pages() const { return pages_; }  // of all pins
  bool holds(RecordId record, TimeNs now) const {
    if (until_.empty()) return false;
    const auto pin = until_.find(record);
    return pin != until_.end() && pin->second > now;
  }

 private:
  static constexpr Pages kTierShare = 5;  // pins get 1/kTierShare of the tier
  struct Pin {
    RecordId record = kNoRecord;
    TimeNs until = 0;
    Pages pages = 0;
  };
  using At = std::map<std::uint64_t, Pin>::iterator;

  void drop(At pin) {
    pages_ -= pin->second.pages;
    until_.erase(pin->second.record);
    pins_.erase(pin);
  }
  void move(At pin, RecordId record, Pages pages) {
    Pin& moved = pin->second;
    until_.erase(moved.record);
    pages_ -= moved.pages;
    moved.record = record;
    moved.pages = pages;
    pages_ += pages;
    if (pages == 0 || pages_ > max_pages_) return drop(pin);
    until_[record] = moved.until;
  }

  const Pages max_pages_;
  std::map<std::uint64_t, Pin> pins_;  // by session; each pin has pages
  std::map<RecordId, TimeNs> until_;   // the same pins by record
  Pages pages_ = 0;
  TimeNs next_expiry_ = kForever;
};

}  // namespace kvtwin

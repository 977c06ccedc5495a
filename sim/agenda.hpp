// The future events of one seat, ordered by (time, operation id): a binary heap of plain entries.
//
// No entry is removed early. To move an event, push a new entry with a new `ticket`. The caller recognises the old
// entry as stale at the top of the heap: its `ticket` differs from the operation's current ticket.
// Cost: push and pop are O(log entries). Thread: single-threaded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

struct AgendaEntry {
  TimeNs time = 0;
  OperationId id = OperationId::none;
  std::uint32_t slot = 0;
  std::uint32_t ticket = 0;
};

class Agenda {
 public:
  bool empty() const { return entries_.empty(); }
  const AgendaEntry& top() const { return entries_.front(); }

  void push(const AgendaEntry& entry) {
    entries_.push_back(entry);
    std::push_heap(entries_.begin(), entries_.end(), later);
  }

  AgendaEntry pop() {
    std::pop_heap(entries_.begin(), entries_.end(), later);
    const AgendaEntry entry = entries_.back();
    entries_.pop_back();
    return entry;
  }

 private:
  static bool later(const AgendaEntry& a, const AgendaEntry& b) {
    return a.time != b.time ? a.time > b.time : a.id > b.id;
  }

  std::vector<AgendaEntry> entries_;
};

}  // namespace kvtwin

// What a world has still to do, ordered by (time, operation id). A binary heap of plain entries. An entry is
// never taken out early: whoever changes an operation's plans pushes a new entry, and the old one is
// recognised as stale (its `ticket` is no longer the operation's) when it comes up.
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

// What tide stores with a node, packed into PolicyMarks: the record that used the node last, the expected return of its
// conversation, and the number of different continuations.
#pragma once

#include <cstdint>

#include "policy/eviction.hpp"

namespace kvtwin {

struct TideMark {
  std::uint64_t record = 0;  // 40 bits
  std::uint64_t next = 0;    // 24 bits of the key of the next page, on the last path that continued
  std::uint64_t time = 0;    // of the last use, in 2^20 ns; 40 bits
  std::uint64_t ways = 0;    // number of different continuations; 8 bits
  std::uint64_t chance = 0, gap_class = 0;
  bool partial = false;  // the last page is not full

  static TideMark of(const PolicyMarks& marks) {
    return {marks.first >> 24,        marks.first & 0xffffff, marks.second >> 24,        marks.second >> 16 & 0xff,
            marks.second >> 8 & 0x3f, marks.second & 0xf,     (marks.second & 0x10) != 0};
  }
  PolicyMarks packed() const {
    return {record << 24 | next, time << 24 | ways << 16 | chance << 8 | (partial ? 0x10U : 0U) | gap_class};
  }
};

}  // namespace kvtwin

// The recent accesses to each byte of a memory, to find accesses that are not ordered (races).
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace kvtwin::gpu_sim {

// A thread of the grid, and its clock at the access (clocks.hpp).
struct Access {
  std::uint32_t thread = 0;  // number in the grid + 1; 0 = none
  std::uint32_t clock = 0;
  std::uint16_t line = 0;
  bool strong = false;  // atomic, relaxed or volatile
};

// The last weak write, and since then the last atomic (strong) write and two reads. A third read that is not ordered
// after these two replaces the second one, so a race with such a read can stay unseen in one schedule.
struct Cell {
  Access write, atomic, read[2];
};

// The cells of a memory, in pages. The cells of a page have the size of the smallest access to the page.
class Shadow {
 public:
  // Calls act(cell) for each cell of [at, at + bytes). Requires: the size divides the address, or is a multiple of 16
  // and 16 divides the address.
  template <typename Act>
  void for_cells(std::uint64_t at, std::uint32_t bytes, const Act& act) {
    std::uint32_t shift = 4;
    while ((bytes | at) & ((1u << shift) - 1)) --shift;
    for (std::uint64_t end = at + bytes; at < end;) {
      const std::uint64_t page_end = (at / kPage + 1) * kPage, stop = end < page_end ? end : page_end;
      Page& page = page_of(at / kPage, shift);
      for (std::uint64_t i = at % kPage >> page.shift; i <= (stop - 1) % kPage >> page.shift; ++i) act(page.cells[i]);
      at = stop;
    }
  }

  // The same, for the cells of pages that have been accessed.
  template <typename Act>
  void for_known_cells(std::uint64_t at, std::uint32_t bytes, const Act& act) {
    for (std::uint64_t number = at / kPage; number <= (at + bytes - 1) / kPage && !pages_.empty(); ++number) {
      if (pages_.count(number) == 0) continue;
      const std::uint64_t begin = std::max(at, number * kPage), end = std::min(at + bytes, (number + 1) * kPage);
      for_cells(begin, static_cast<std::uint32_t>(end - begin), act);
    }
  }

 private:
  static constexpr std::uint64_t kPage = 1024;
  struct Page {
    std::uint32_t shift = 0;
    std::vector<Cell> cells;
  };
  Page& page_of(std::uint64_t number, std::uint32_t shift) {
    if (number != last_number_ || last_ == nullptr) {
      last_ = &pages_[number];
      last_number_ = number;
    }
    if (last_->cells.empty()) {
      last_->shift = shift;
      last_->cells.resize(kPage >> shift);
    } else if (shift < last_->shift) {
      std::vector<Cell> finer(kPage >> shift);
      for (std::size_t i = 0; i < finer.size(); ++i) finer[i] = last_->cells[i >> (last_->shift - shift)];
      last_->cells = std::move(finer);
      last_->shift = shift;
    }
    return *last_;
  }

  std::unordered_map<std::uint64_t, Page> pages_;
  std::uint64_t last_number_ = 0;
  Page* last_ = nullptr;
};

}  // namespace kvtwin::gpu_sim

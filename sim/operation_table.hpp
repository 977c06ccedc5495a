// Maps the OperationId of an operation in flight to a slot of the world's slab.
//
// Open addressing on the id itself: ids are consecutive, so operations of nearby times lie near each other in the
// table. find() returns kNoSlotIndex for an operation that has completed or never existed. No allocation in steady
// state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

constexpr std::uint32_t kNoSlotIndex = ~std::uint32_t{0};

class OperationTable {
 public:
  OperationTable() : cells_(64) {}

  std::uint32_t find(OperationId id) const {
    for (std::size_t i = home(id);; i = next(i)) {
      if (cells_[i].id == id) return cells_[i].slot;
      if (cells_[i].id == OperationId::none) return kNoSlotIndex;
    }
  }

  void insert(OperationId id, std::uint32_t slot) {
    if (2 * (used_ + 1) > cells_.size()) grow();
    place(id, slot);
    ++used_;
  }

  void erase(OperationId id) {
    std::size_t hole = home(id);
    while (cells_[hole].id != id) {
      if (cells_[hole].id == OperationId::none) return;
      hole = next(hole);
    }
    // Backward shift instead of tombstones, so that long runs stay as fast as short runs.
    for (std::size_t i = next(hole); cells_[i].id != OperationId::none; i = next(i)) {
      const std::size_t distance = (i - home(cells_[i].id)) & (cells_.size() - 1);
      if (distance < ((i - hole) & (cells_.size() - 1))) continue;
      cells_[hole] = cells_[i];
      hole = i;
    }
    cells_[hole] = Cell{};
    --used_;
  }

  std::size_t size() const { return used_; }

 private:
  struct Cell {
    OperationId id = OperationId::none;
    std::uint32_t slot = kNoSlotIndex;
  };

  std::size_t home(OperationId id) const { return static_cast<std::size_t>(id) & (cells_.size() - 1); }
  std::size_t next(std::size_t i) const { return (i + 1) & (cells_.size() - 1); }

  void place(OperationId id, std::uint32_t slot) {
    std::size_t i = home(id);
    while (cells_[i].id != OperationId::none) i = next(i);
    cells_[i] = Cell{id, slot};
  }

  void grow() {
    std::vector<Cell> old(2 * cells_.size());
    old.swap(cells_);
    for (const Cell& cell : old) {
      if (cell.id != OperationId::none) place(cell.id, cell.slot);
    }
  }

  std::vector<Cell> cells_;
  std::size_t used_ = 0;
};

}  // namespace kvtwin

// The seat whose next step comes first: a winner tree over the seats' next times. Equal times: the first seat.
// Cost: mark() O(1); refresh() O(log seats) per marked seat. Memory: about 20 bytes per seat. Thread: single-threaded.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/agenda.hpp"

namespace kvtwin {

class NextSteps {
 public:
  // Requires: at least one seat. The time of each seat is kNever until it is refreshed.
  explicit NextSteps(std::size_t seats)
      : first_leaf_(std::bit_ceil(seats)), dues_(first_leaf_, kNever), winners_(first_leaf_), marked_(seats, 0) {
    for (std::size_t node = 1; node < first_leaf_; ++node) winners_[node] = leftmost_seat(node);
    marks_.reserve(seats);
  }

  std::size_t seats() const { return marked_.size(); }
  // The next time of the seat may have changed.
  void mark(std::size_t seat) {
    if (marked_[seat] != 0) return;
    marked_[seat] = 1;
    marks_.push_back(static_cast<std::uint32_t>(seat));
  }
  // Sets the time of each marked seat to time_of(seat). Requires: time_of() marks no seat.
  template <typename TimeOf>
  void refresh(TimeOf time_of) {
    for (const std::uint32_t seat : marks_) {
      marked_[seat] = 0;
      set(seat, time_of(seat));
    }
    marks_.clear();
  }

  // The first seat, and its time.
  std::size_t seat() const { return first_leaf_ == 1 ? 0 : winners_[1]; }
  TimeNs due() const { return dues_[seat()]; }

 private:
  std::uint32_t leftmost_seat(std::size_t node) const {
    while (node < first_leaf_) node *= 2;
    return static_cast<std::uint32_t>(node - first_leaf_);
  }
  std::uint32_t winner_of(std::size_t node) const {
    return node < first_leaf_ ? winners_[node] : static_cast<std::uint32_t>(node - first_leaf_);
  }

  void set(std::uint32_t seat, TimeNs due) {
    if (dues_[seat] == due) return;
    dues_[seat] = due;
    for (std::size_t node = (first_leaf_ + seat) / 2; node > 0; node /= 2) {
      const std::uint32_t left = winner_of(2 * node), right = winner_of(2 * node + 1);
      const std::uint32_t winner = dues_[right] < dues_[left] ? right : left;
      if (winners_[node] == winner && winner != seat) return;  // the seat neither won nor wins here
      winners_[node] = winner;
    }
  }

  std::size_t first_leaf_;              // nodes 1 to first_leaf_ - 1; leaf of a seat: first_leaf_ + seat
  std::vector<TimeNs> dues_;            // by seat; kNever behind the last seat
  std::vector<std::uint32_t> winners_;  // by node
  std::vector<std::uint8_t> marked_;    // by seat
  std::vector<std::uint32_t> marks_;    // the marked seats
};

}  // namespace kvtwin

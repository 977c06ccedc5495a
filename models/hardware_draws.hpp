// Machines that a machine may as well be: its numbers, moved within what is known of them. For what follows from not
// knowing them exactly.
//
// A number lies, with 95 % confidence, between the file's "low" and "high". A rate, time, frequency or share without
// those lies between value / (1 + spread) and value * (1 + spread): 0 = it is exact. Sizes and counts without them are
// exact.
//
// Numbers are drawn independently, though those of one fit hang together: what follows is rather too uncertain than
// too sure. A draw moves a number of one name alike whatever machine and experiment it belongs to, so that settings
// under the same draw can be held against each other. + - * / only: the same draws on all machines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/hardware.hpp"

namespace kvtwin {

struct UncertainNumber {
  std::string key;
  double low = 0, value = 0, high = 0;  // in HardwareSpec's units; low < high
};

// In the file's order.
std::vector<UncertainNumber> uncertain_numbers(const HardwareSpec& hardware, double spread);

// Moves each of them, as the draw has it: half of the draws above the value, one in 20 beyond the interval.
void move_to_draw(HardwareSpec& hardware, std::uint64_t draw, double spread);

// Moves one of them to an end of its interval. False: it isn't uncertain.
bool move_to_end(HardwareSpec& hardware, std::string_view key, bool high, double spread);

}  // namespace kvtwin

// Variants of a machine: its numbers, moved within their uncertainty. A simulation of several variants shows the effect
// of not knowing the numbers exactly.
//
// The 95 % interval of a number is "low" to "high" of the file. Without these, the interval of a rate, time, frequency
// or share is value / (1 + spread) to value * (1 + spread); spread 0 = exact. Sizes and counts without them are exact.
//
// The numbers of a draw are independent, although the numbers of one fit are correlated. So the result is rather too
// uncertain than too certain. A draw moves a number of a given name by the same deviation for every machine and
// experiment, so that settings under one draw can be compared. Only + - * / are used: equal draws on all machines.
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

// Returns the numbers in the order of the file.
std::vector<UncertainNumber> uncertain_numbers(const HardwareSpec& hardware, double spread);

// Moves each uncertain number. Half of the draws are above the value, and one in 20 is outside the interval.
void move_to_draw(HardwareSpec& hardware, std::uint64_t draw, double spread);

// Moves one number to an end of its interval. Returns false if the number is exact.
bool move_to_end(HardwareSpec& hardware, std::string_view key, bool high, double spread);

}  // namespace kvtwin

// Mixes the bits of a number: the finaliser of splitmix64 (G. Steele and others, "Fast splittable pseudorandom number
// generators", 2014). Equal on every machine.
#pragma once

#include <cstdint>

namespace kvtwin {

constexpr std::uint64_t kGoldenRatio64 = 0x9E3779B97F4A7C15U;  // what a sequence of splitmix64 adds before each number

constexpr std::uint64_t mixed_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace kvtwin

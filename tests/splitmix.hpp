// Random numbers for tests: splitmix64, the same on every machine.
#pragma once

#include <cstdint>

namespace kvtwin::test {

constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Splitmix {
 public:
  // The seed is mixed: otherwise seed + 1 would give the stream of `seed` without its first number.
  explicit Splitmix(std::uint64_t seed) : state_(mix(seed)) {}
  std::uint64_t next() { return mix(state_++); }
  // Returns 0 .. bound - 1. The remainder is slightly biased; tests accept the bias.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }
  bool chance(std::uint64_t percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

}  // namespace kvtwin::test

// The tests' random numbers: splitmix64, the same on every machine.
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
  // Mixed, or neighbouring seeds would give one stream, a number apart.
  explicit Splitmix(std::uint64_t seed) : state_(mix(seed)) {}
  std::uint64_t next() { return mix(state_++); }
  // 0 .. bound - 1. The bias of the remainder is of no matter to a test.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }
  bool chance(std::uint64_t percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

}  // namespace kvtwin::test

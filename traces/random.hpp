// Random numbers that are bit-identical on every machine. SplitMix64 makes integers; uniform, exponential, normal,
// log-normal, Gamma and Weibull doubles are computed from these integers with + - * / and sqrt only. IEEE 754 defines
// the rounding of these operations exactly. The code uses no <random> distribution and no libm, and the build forbids
// fused multiply-add.
//
// The error of exp_of() and log_of() is at most 4 units in the last place in the ranges below. uniform() has 53 random
// bits. So the largest value of exponential() is 36.7 times the mean, and the largest value of normal() is 12.
#pragma once

#include <cstdint>

#include "policy/base/wide.hpp"

namespace kvtwin {

// Mixes 64 bits; different inputs give different outputs.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Returns the integer of [0, largest] that 64 random bits select, by integer arithmetic only. All are equally likely,
// with an error of (largest + 1) / 2^64.
constexpr std::uint64_t integer_from(std::uint64_t bits, std::uint64_t largest) {
  return static_cast<std::uint64_t>((UnsignedWide{bits} * (UnsignedWide{largest} + 1)) >> 64);
}

double exp_of(double x);  // -700 .. 700
double log_of(double x);  // a positive normal number

// A random stream of 8 bytes, small enough for one stream per live session.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  bool chance(double p) { return uniform() < p; }
  // Returns an integer of [least, largest]. All are equally likely, with an error of 2^-53.
  std::uint64_t integer(std::uint64_t least, std::uint64_t largest);
  double exponential(double mean);
  double normal();  // mean 0, standard deviation 1
  // Gamma with scale 1, so the mean is `shape`. Requires: shape >= 0.01. Below 1, draws too small for a double are 0.
  double gamma(double shape);
  double weibull(double shape);  // scale 1. Requires: shape >= 0.1
  double lognormal(double mu, double sigma) { return exp_of(mu + sigma * normal()); }

 private:
  std::uint64_t state_;
};

}  // namespace kvtwin

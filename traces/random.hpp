// Random numbers that are the same bytes on every machine: integers by SplitMix64, and from them uniform,
// exponential, normal, log-normal, Gamma and Weibull doubles made of + - * / and sqrt only, which IEEE 754 rounds the
// same everywhere (no <random> distribution, no libm; the build forbids fused multiply-add).
//
// exp_of and log_of are within 4 units in the last place of the true value over the ranges named below. uniform() has
// 53 bits; exponential() ends at 36.7 means and normal() at 12, the most that 53 bits reach.
#pragma once

#include <cstdint>

namespace kvtwin {

// A bijective mix of 64 bits.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

double exp_of(double x);  // -700 .. 700
double log_of(double x);  // a positive normal number

// 8 bytes, so that every live session can have its own stream.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  bool chance(double p) { return uniform() < p; }
  // An integer of [least, largest], all equally likely up to 2^-53.
  std::uint64_t integer(std::uint64_t least, std::uint64_t largest);
  double exponential(double mean);
  double normal();  // mean 0, deviation 1
  // Gamma of mean `shape`, which is 0.01 or more; below 1 many draws are so small that they are 0.
  double gamma(double shape);
  double weibull(double shape);  // of scale 1; shape 0.1 or more
  double lognormal(double mu, double sigma) { return exp_of(mu + sigma * normal()); }

 private:
  std::uint64_t state_;
};

}  // namespace kvtwin

#include "traces/random.hpp"

#include <bit>
#include <cmath>

namespace kvtwin {
namespace {

// ln 2 as the sum of two parts. The high part ends with 21 zero bits, so its product with a small integer is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

double power_of_two(int exponent) {  // -1022 .. 1023
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

}  // namespace

// x = k ln 2 + r with |r| <= ln 2 / 2. The power series gives e^r; the 15th term is below 2^-60.
double exp_of(double x) {
  const double k = static_cast<double>(static_cast<int>(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5)));
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double tail = 0.0;  // (e^r - 1 - r) / r, summed from the smallest term
  for (int n = 15; n >= 2; --n) tail = (tail + 1.0) * r / n;
  return (1.0 + (r + tail * r)) * power_of_two(static_cast<int>(k));
}

// x = 2^k m with m in [sqrt 1/2, sqrt 2). The power series of artanh gives ln m = 2 artanh((m - 1) / (m + 1)).
double log_of(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int k = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++k;
  }
  const double s = (m - 1.0) / (m + 1.0);  // |s| < 0.1716: s^24 is below 2^-60
  const double s2 = s * s;
  double tail = 0.0;
  for (int n = 25; n >= 3; n -= 2) tail = (tail + 1.0 / n) * s2;
  return k * kLn2High + (k * kLn2Low + 2.0 * (s + s * tail));
}

std::uint64_t Random::integer(std::uint64_t least, std::uint64_t largest) {
  return least + static_cast<std::uint64_t>(uniform() * static_cast<double>(largest - least + 1));
}

double Random::exponential(double mean) { return -mean * log_of(1.0 - uniform()); }

// Marsaglia's polar method with a random point of the unit disc. The method gives two normal values; the second one is
// dropped, so that the generator needs no state besides the 8 bytes.
double Random::normal() {
  while (true) {
    const double u = 2.0 * uniform() - 1.0;
    const double v = 2.0 * uniform() - 1.0;
    const double s = u * u + v * v;
    if (s > 0.0 && s < 1.0) return u * std::sqrt(-2.0 * log_of(s) / s);
  }
}

namespace {

// Returns x^(1 / shape), or 0 if the result is too small for exp_of().
double root(double x, double shape) {
  if (!(x > 0.0)) return 0.0;
  const double exponent = log_of(x) / shape;
  return exponent < -700.0 ? 0.0 : exp_of(exponent);
}

}  // namespace

// Marsaglia and Tsang's method: cubes a normal value, and accepts nearly every draw. For a shape below 1, a draw of
// shape + 1 is multiplied by uniform()^(1 / shape).
double Random::gamma(double shape) {
  if (shape < 1.0) {
    const double above = gamma(shape + 1.0);
    return above * root(uniform(), shape);
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = normal();
    const double base = 1.0 + c * x;
    if (!(base > 0.0)) continue;
    const double v = base * base * base;
    const double u = 1.0 - uniform();
    if (log_of(u) < 0.5 * x * x + d - d * v + d * log_of(v)) return d * v;
  }
}

double Random::weibull(double shape) { return root(exponential(1.0), shape); }

}  // namespace kvtwin

#include "policy/offload/store_pressure.hpp"

#include <algorithm>
#include <array>

#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

constexpr std::uint32_t kFastCopies = 10;        // so many in a row: no further check
constexpr std::uint64_t kAverageOfFailures = 4;  // times `high`
constexpr std::uint64_t kOne = std::uint64_t{1} << 62;
constexpr std::uint64_t kWholeCopy = std::uint64_t{1} << 32;
constexpr std::uint64_t kMostPsPerMib = std::uint64_t{1} << 60;  // 12 days: sums stay within 64 bits

constexpr std::uint64_t root(UnsignedWide of) {
  std::uint64_t result = 0;
  for (int bit = 62; bit >= 0; --bit) {
    const std::uint64_t more = result | std::uint64_t{1} << bit;
    if (UnsignedWide{more} * more <= of) result = more;
  }
  return result;
}

// 2^-(1/2), 2^-(1/4) and so on, in units of 2^-62.
constexpr std::array<std::uint64_t, 32> kHalvings = [] {
  std::array<std::uint64_t, 32> halvings{};
  std::uint64_t of = kOne / 2;
  for (std::uint64_t& next : halvings) next = of = root(UnsignedWide{of} * kOne);
  return halvings;
}();

// Returns value * 2^-(part/whole), rounded down.
std::uint64_t halved(std::uint64_t value, std::uint64_t part, std::uint64_t whole) {
  if (part / whole >= 64) return 0;
  std::uint64_t factor = kOne;
  UnsignedWide rest = part % whole;
  for (const std::uint64_t of : kHalvings) {
    rest *= 2;
    if (rest < whole) continue;
    rest -= whole;
    factor = static_cast<std::uint64_t>(UnsignedWide{factor} * of / kOne);
  }
  return static_cast<std::uint64_t>(UnsignedWide{value} * factor / kOne) >> (part / whole);
}

}  // namespace

void StorePressure::decay(TimeNs now) {
  if (now <= updated_ || config_.half_life <= 0) return;
  average_ =
      halved(average_, static_cast<std::uint64_t>(now - updated_), static_cast<std::uint64_t>(config_.half_life));
  updated_ = now;
}

void StorePressure::clear(TimeNs now) {
  under_pressure_ = by_failures_ = false;
  cleared_ = now;
  cooldown_copies_ = 0;
}

bool StorePressure::is_under_pressure(TimeNs now) {
  if (under_pressure_ && (copies_ >= config_.warm_up_copies || by_failures_)) {
    decay(now);
    if (average_ < config_.low_ps_per_mib) clear(now);
  }
  return under_pressure_;
}

void StorePressure::copied(TimeNs took, Bytes bytes, TimeNs now) {
  is_under_pressure(now);  // as vLLM asks before it counts the copy
  if (bytes == 0) return;
  constexpr UnsignedWide kPsPerNs = 1000, kMib = 1 << 20;
  const auto took_ns = static_cast<std::uint64_t>(std::max<TimeNs>(took, 0));
  const auto exact = UnsignedWide{took_ns} * kPsPerNs * kMib / bytes;
  const auto ps_per_mib = static_cast<std::uint64_t>(std::min<UnsignedWide>(exact, kMostPsPerMib));
  failures_ = 0;
  if (++copies_ <= config_.warm_up_copies) {
    warm_up_sum_ += std::min(ps_per_mib, kMostPsPerMib / config_.warm_up_copies);
    if (copies_ == config_.warm_up_copies) {
      average_ = warm_up_sum_ / copies_;
      updated_ = now;
    }
    return;
  }
  constexpr UnsignedWide kAll = 1'000'000;
  average_ = static_cast<std::uint64_t>(
      (UnsignedWide{ps_per_mib} * config_.newest_ppm + UnsignedWide{average_} * (kAll - config_.newest_ppm)) / kAll);
  updated_ = now;
  if (average_ > config_.high_ps_per_mib) {
    under_pressure_ = true;
    cleared_.reset();
    fast_copies_ = 0;
  } else if (average_ < config_.low_ps_per_mib) {
    if (under_pressure_) clear(now);
    by_failures_ = false;
    ++fast_copies_;
  } else {
    fast_copies_ = 0;
  }
}

void StorePressure::failed(TimeNs now) {
  is_under_pressure(now);
  if (config_.failures == 0) return;
  ++failures_;
  fast_copies_ = 0;
  if (failures_ < config_.failures) return;
  average_ = std::max(average_, kAverageOfFailures * config_.high_ps_per_mib);
  updated_ = now;
  under_pressure_ = by_failures_ = true;
  cleared_.reset();
}

bool StorePressure::admits(TimeNs now) {
  const bool under_pressure = is_under_pressure(now);
  if (!under_pressure && fast_copies_ >= kFastCopies) return true;
  if (!under_pressure && cleared_ && now - *cleared_ < config_.cooldown && ++cooldown_copies_ % 2 == 0) return false;
  return !under_pressure || admits_under_pressure();
}

bool StorePressure::admits_under_pressure() {
  const std::uint64_t high = config_.high_ps_per_mib;
  if (config_.action == PressureAction::drop || high == 0) return false;
  const std::uint64_t over = std::max(average_, high) - high;
  const UnsignedWide left_out = UnsignedWide{over} * kWholeCopy * 1024 / high / std::max(1U, config_.ramp_x1024);
  if (left_out >= kWholeCopy) return false;
  throttled_ += static_cast<std::uint64_t>(left_out);
  if (throttled_ < kWholeCopy) return true;
  throttled_ -= kWholeCopy;
  return false;
}

}  // namespace kvtwin

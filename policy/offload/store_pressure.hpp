// Decides whether vLLM still copies chunks to a further tier whose writes have become slow (back-pressure). The measure
// is a moving average of the time per MiB of the copies that have ended. Above `high` the tier is under pressure, until
// the average is below `low`; while no copy ends, the average halves every `half_life`. After that, every second copy
// is left out for the time `cooldown`. Several failures in a row count as pressure.
//
// Under pressure, `drop` leaves out every copy, and `throttle` a share that grows with the average: none at `high`, all
// at high * (1 + ramp). Rules: vLLM 0.33.0, v1/kv_offload/tiering/backpressure.py. Times are rounded to 1 ps per MiB.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

enum class PressureAction : std::uint8_t { throttle, drop };
constexpr std::string_view name_of(PressureAction action) {
  switch (action) {
    case PressureAction::throttle: return "throttle";
    case PressureAction::drop: return "drop";
  }
  return "";
}

struct StorePressureConfig {
  PressureAction action = PressureAction::throttle;
  std::uint64_t high_ps_per_mib = 10'000'000'000, low_ps_per_mib = 2'000'000'000;
  std::uint32_t newest_ppm = 150'000;  // share of the newest copy in the average
  std::uint32_t warm_up_copies = 10;   // whose mean is the first average
  TimeNs half_life = 2 * kNsPerSecond;
  TimeNs cooldown = kNsPerSecond;
  std::uint32_t failures = 3;  // in a row; 0: failures do not count
  std::uint32_t ramp_x1024 = 2 * 1024;
};

class StorePressure {
 public:
  explicit StorePressure(const StorePressureConfig& config) : config_(config) {}

  // Returns whether a copy may start now.
  bool admits(TimeNs now);
  void copied(TimeNs took, Bytes bytes, TimeNs now);
  void failed(TimeNs now);
  bool is_under_pressure(TimeNs now);

 private:
  void decay(TimeNs now);
  void clear(TimeNs now);
  bool admits_under_pressure();

  const StorePressureConfig config_;
  std::uint64_t average_ = 0;  // ps per MiB
  std::uint64_t warm_up_sum_ = 0;
  std::uint64_t copies_ = 0;
  TimeNs updated_ = 0;
  bool under_pressure_ = false;
  bool by_failures_ = false;
  std::uint32_t fast_copies_ = 0;  // in a row, with an average below `low`
  std::uint32_t failures_ = 0;     // in a row
  std::optional<TimeNs> cleared_;  // when the pressure ended
  std::uint32_t cooldown_copies_ = 0;
  std::uint64_t throttled_ = 0;  // part of a copy that is to be left out, in 2^-32
};

}  // namespace kvtwin

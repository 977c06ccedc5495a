#include "lab/report/warm_window.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "lab/formatted.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kBatches = 64, kLeastRequests = 4 * kBatches;
constexpr double kStandardErrors = 3, kHitTolerance = 0.01, kWaitTolerance = 0.05, kWaitTolerance_s = 0.01;
constexpr double kOverload = 0.05;  // seconds that the wait grows per second

struct Batch {
  std::uint64_t requests = 0;
  Tokens prompt = 0, hit = 0;
  TimeNs wait_ns = 0;
};

struct Mean {
  double value = 0, square_error = 0;  // square_error: of the value
};

Mean mean_of(std::span<const double> values) {
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const auto n = static_cast<double>(values.size());
  for (const double value : values) squares += (value - sum / n) * (value - sum / n);
  return {sum / n, squares / (n * n)};
}

// Returns how many values belong to the start.
std::size_t start_of(std::span<const double> values) {
  std::size_t best = 0;
  double least = 0;
  for (std::size_t d = 0; 2 * d <= values.size(); ++d) {
    const double error = mean_of(values.subspan(d)).square_error;
    if (d == 0 || error < least) {
      least = error;
      best = d;
    }
  }
  return best;
}

// Returns the means of both halves if they differ by more than chance, by more than `share` of the first one, and by
// more than `least`.
std::optional<std::array<double, 2>> drift(std::span<const double> values, double share, double least) {
  if (values.size() < 4) return std::nullopt;
  const Mean first = mean_of(values.first(values.size() / 2)), last = mean_of(values.subspan(values.size() / 2));
  const double error = std::sqrt(first.square_error + last.square_error);
  const double allowed = std::max({kStandardErrors * error, share * first.value, least});
  if (std::abs(last.value - first.value) <= allowed) return std::nullopt;
  return std::array{first.value, last.value};
}

}  // namespace

WarmWindow warm_window(const std::vector<WarmSample>& samples, TimeNs least_ns) {
  WarmWindow window;
  if (samples.empty()) {
    window.from = window.to = 0;
    window.not_flat = "no request has ended";
    return window;
  }
  const auto [first, last] = std::ranges::minmax_element(samples, {}, &WarmSample::arrival);
  window.from = first->arrival;
  window.to = last->arrival;
  const double length = std::max(1.0, static_cast<double>(window.to - window.from));
  std::array<Batch, kBatches> batches;
  for (const WarmSample& sample : samples) {
    const double place = static_cast<double>(sample.arrival - window.from) / length;
    Batch& batch = batches[std::min(kBatches - 1, static_cast<std::size_t>(place * kBatches))];
    ++batch.requests;
    batch.prompt += sample.prompt;
    batch.hit += sample.hit;
    batch.wait_ns += sample.wait_ns;
  }
  std::vector<double> hits, waits;   // of the batches that have requests
  std::vector<std::size_t> numbers;  // of these batches
  for (std::size_t number = 0; number < kBatches; ++number) {
    const Batch& batch = batches[number];
    if (batch.requests == 0 || batch.prompt == 0) continue;
    hits.push_back(static_cast<double>(batch.hit) / static_cast<double>(batch.prompt));
    waits.push_back(static_cast<double>(batch.wait_ns) / 1e9 / static_cast<double>(batch.requests));
    numbers.push_back(number);
  }
  const std::size_t start = std::max(start_of(hits), start_of(waits));
  const double from = static_cast<double>(numbers[start]) / kBatches;
  const TimeNs begin = window.from;
  window.from = begin + static_cast<TimeNs>(from * length);
  window.wait_s = mean_of(std::span(waits).subspan(start)).value;
  const auto waited = drift(std::span(waits).subspan(start), kWaitTolerance, kWaitTolerance_s);
  const std::string moves =
      waited ? formatted("the wait goes from %.2f s to %.2f s", (*waited)[0], (*waited)[1]) : std::string();
  if (waited && (*waited)[1] > (*waited)[0]) window.growth = moves;
  // The middles of the two halves are half of the window apart.
  const double apart = std::max(1.0, static_cast<double>(window.to - window.from)) / 2e9;
  window.overloaded =
      !window.growth.empty() && samples.size() >= kLeastRequests && ((*waited)[1] - (*waited)[0]) / apart >= kOverload;
  if (samples.size() < kLeastRequests) {
    window.not_flat = formatted("%zu requests are too few to tell", samples.size());
  } else if (window.overloaded) {
    window.not_flat = moves;
  } else if (window.to - window.from < least_ns) {
    window.not_flat =
        formatted("%.0f s are left after the start, and %.0f s are needed",
                  static_cast<double>(window.to - window.from) / 1e9, static_cast<double>(least_ns) / 1e9);
  } else if (const auto moved = drift(std::span(hits).subspan(start), 0, kHitTolerance)) {
    window.not_flat = formatted("the hit ratio goes from %.1f %% to %.1f %%", 100 * (*moved)[0], 100 * (*moved)[1]);
  } else {
    window.not_flat = moves;
  }
  return window;
}

}  // namespace kvtwin

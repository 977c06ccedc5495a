#include "traces/growing.hpp"

#include <algorithm>
#include <utility>

namespace kvtwin {

GrowingSource::GrowingSource(TraceSource& endless, const TrafficLength& length, TimeNs least, Enough enough)
    : endless_(endless), length_(length), least_(least), enough_(std::move(enough)) {}

bool GrowingSource::is_beyond(TimeNs arrival, std::uint64_t times) const {
  if (length_.requests != 0) return passed_ >= length_.requests * times;
  return arrival >= length_.duration * static_cast<TimeNs>(times);
}

bool GrowingSource::next(TraceRequest& request) {
  if (ended_ || !endless_.next(request)) return false;
  now_ = request.arrival;
  while (is_beyond(request.arrival, times_)) {
    ended_ = enough_() || (times_ >= kMostTimes && request.arrival >= least_);
    if (ended_) return false;
    times_ *= 2;
  }
  if (!request.is_hint) ++passed_;
  return true;
}

double GrowingSource::fraction_read() const {
  const double times = static_cast<double>(times_);
  const double read = length_.requests != 0
                          ? static_cast<double>(passed_) / (static_cast<double>(length_.requests) * times)
                          : static_cast<double>(now_) / (static_cast<double>(length_.duration) * times);
  return std::min(1.0, read);
}

}  // namespace kvtwin

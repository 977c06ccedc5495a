#include "traces/growing.hpp"

#include <algorithm>
#include <utility>

namespace kvtwin {

GrowingSource::GrowingSource(TraceSource& endless, const TrafficLength& length, TimeNs least, Enough enough)
    : endless_(endless), users_(endless.user_traffic()), length_(length), least_(least), enough_(std::move(enough)) {}

bool GrowingSource::is_beyond(TimeNs arrival, std::uint64_t times) const {
  if (length_.requests != 0) return passed_ >= length_.requests * times;
  return arrival >= length_.duration * static_cast<TimeNs>(times);
}

bool GrowingSource::ends_at(TimeNs time) {
  if (ended_) return true;
  now_ = time;
  while (!ended_ && is_beyond(time, times_)) {
    ended_ = enough_() || (times_ >= kMostTimes && time >= least_);
    if (!ended_) times_ *= 2;
  }
  return ended_;
}

bool GrowingSource::next(TraceRequest& request) {
  if (ended_ || !endless_.next(request) || ends_at(request.arrival)) return false;
  if (!request.is_hint) ++passed_;
  return true;
}

bool GrowingSource::next_of(std::uint64_t user, TraceRequest& request) {
  if (ended_ || !users_->next_of(user, request)) return false;
  ++passed_;
  return true;
}

void GrowingSource::reached(TimeNs time) {
  users_->reached(time);
  if (passed_ >= users_->users()) ends_at(time);  // before, the users send their first requests
}

double GrowingSource::fraction_read() const {
  const double times = static_cast<double>(times_);
  const double read = length_.requests != 0
                          ? static_cast<double>(passed_) / (static_cast<double>(length_.requests) * times)
                          : static_cast<double>(now_) / (static_cast<double>(length_.duration) * times);
  return std::min(1.0, read);
}

}  // namespace kvtwin

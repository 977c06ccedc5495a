// Cuts endless traffic where enough of it has been served: at its given length, or at twice, four times, ... that
// length. Whether it is enough is asked at each of these points, before the next request is passed on.
#pragma once

#include <cstdint>
#include <functional>

#include "traces/trace.hpp"

namespace kvtwin {

// The given length; one of both is not 0.
struct TrafficLength {
  std::uint64_t requests = 0;
  TimeNs duration = 0;
};

class GrowingSource final : public TraceSource, private UserTraffic {
 public:
  static constexpr std::uint64_t kMostTimes = 8;  // the given length
  using Enough = std::function<bool()>;

  // Requires: `endless` outlives this object. The traffic ends at kMostTimes the given length, but not before `least`.
  GrowingSource(TraceSource& endless, const TrafficLength& length, TimeNs least, Enough enough);

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return endless_.block_tokens(); }
  double fraction_read() const override;  // of the length that is asked about next
  std::vector<std::string> notes() const override { return endless_.notes(); }
  std::optional<DrawnTraffic> drawn() const override { return endless_.drawn(); }
  UserTraffic* user_traffic() override { return users_ == nullptr ? nullptr : this; }

  TimeNs cut_at() const { return now_; }          // the time at which the traffic was cut
  std::uint64_t times() const { return times_; }  // the traffic is so many times as long as given

 private:
  std::uint64_t users() const override { return users_->users(); }
  TimeNs first_of(std::uint64_t user) const override { return users_->first_of(user); }
  TimeNs end() const override { return 0; }
  bool next_of(std::uint64_t user, TraceRequest& request) override;
  void reached(TimeNs time) override;

  bool is_beyond(TimeNs arrival, std::uint64_t times) const;
  bool ends_at(TimeNs time);

  TraceSource& endless_;
  UserTraffic* users_;  // of endless_, or null
  TrafficLength length_;
  TimeNs least_, now_ = 0;
  Enough enough_;
  std::uint64_t times_ = 1, passed_ = 0;
  bool ended_ = false;
};

}  // namespace kvtwin

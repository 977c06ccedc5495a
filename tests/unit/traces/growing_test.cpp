// Endless traffic that is cut where enough of it has been served.
#include "traces/growing.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvtwin {
namespace {

// One request a second, for ever.
class Endless final : public TraceSource {
 public:
  bool next(TraceRequest& request) override {
    request.clear();
    request.arrival = static_cast<TimeNs>(number_++) * kNsPerSecond;
    request.input = request.output = 1;
    return true;
  }
  Tokens block_tokens() const override { return 1; }

 private:
  std::uint64_t number_ = 0;
};

// Returns how many requests pass if it is enough at the question of this number.
std::uint64_t passed(const TrafficLength& length, int enough_at, TimeNs least = 0) {
  Endless endless;
  int asked = 0;
  GrowingSource source(endless, length, least, [&] { return ++asked == enough_at; });
  TraceRequest request;
  std::uint64_t count = 0;
  while (source.next(request)) ++count;
  EXPECT_FALSE(source.next(request)) << "the end stays the end";
  EXPECT_EQ(source.fraction_read(), 1);
  return count;
}

TEST(Growing, EndsAtTheGivenLengthOrAtMultiples) {
  for (const TrafficLength& length : {TrafficLength{100, 0}, TrafficLength{0, 100 * kNsPerSecond}}) {
    EXPECT_EQ(passed(length, 1), 100U);
    EXPECT_EQ(passed(length, 2), 200U);
    EXPECT_EQ(passed(length, 3), 400U);
    EXPECT_EQ(passed(length, 4), 800U);
    EXPECT_EQ(passed(length, 0), 800U) << "never enough";
  }
}

TEST(Growing, IsNotCutBeforeTheLeastTime) {
  EXPECT_EQ(passed({100, 0}, 0, 1000 * kNsPerSecond), 1600U);
  EXPECT_EQ(passed({100, 0}, 2, 1000 * kNsPerSecond), 200U) << "it may be enough before";
}

}  // namespace
}  // namespace kvtwin

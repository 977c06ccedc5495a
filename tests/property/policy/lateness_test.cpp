// Compares Lateness with a model that keeps every batch, tries every time at which to give up, and computes in floating
// point.
#include "policy/prefetch/lateness.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kBins = 49;

struct Model {
  struct Batch {
    double ratio = 1;
    bool came = true;
  };
  std::vector<Batch> batches = std::vector<Batch>(8, Batch{});  // a new medium starts with batches that are on time

  static std::size_t bin_of(double ratio) {
    return static_cast<std::size_t>(std::clamp(std::floor(4 * std::log2(std::max(ratio, 1e-9))), 0.0, kBins - 1.0));
  }
  // Returns the expected cost of waiting until the beginning of bin `last` and then giving up.
  double cost(const Lateness::Stake& stake, std::size_t first, std::size_t last) const {
    const double unit = static_cast<double>(stake.unit), waiting = static_cast<double>(stake.waiting);
    double cost = 0, left = 1, at = static_cast<double>(stake.waited);
    for (std::size_t bin = first; bin < last; ++bin) {
      double came = 0, sum = 0, later = 0;
      for (const Batch& batch : batches) {
        const std::size_t of = bin_of(batch.ratio);
        if (of == bin && batch.came) ++came, sum += batch.ratio;
        if (of > bin) ++later;
      }
      const double comes = (came + 1 - std::sqrt(0.5)) / (came + later + 1);
      const double end = unit * std::exp2(static_cast<double>(bin + 1) / 4), usual = came > 0 ? sum / came * unit : 0;
      const double until = usual > at ? usual - at : (end - at) / 2;
      cost += left * comes * (until * waiting + static_cast<double>(stake.rest));
      cost += left * (1 - comes) * (end - at) * waiting;
      left *= 1 - comes;
      at = end;
    }
    return cost + left * static_cast<double>(stake.instead);
  }
};

TEST(LatenessModel, the_best_time_to_give_up_is_found) {
  int waited_on = 0, gave_up = 0;
  for (std::uint64_t seed = 0; seed < 3'000; ++seed) {
    test::Splitmix random(seed);
    Lateness lateness;
    Model model;
    const TimeNs unit = 1'000'000;
    for (std::uint64_t i = random.below(200); i > 0; --i) {
      // Never at the edge of a bin, where rounding would decide.
      const double quarter = static_cast<double>(random.chance(70) ? random.below(2) : random.below(40));
      const double ratio = std::exp2((quarter + 0.3 + 0.1 * static_cast<double>(random.below(5))) / 4);
      const TimeNs took = static_cast<TimeNs>(ratio * static_cast<double>(unit));
      const bool came = random.chance(90);
      came ? lateness.came(unit, took) : lateness.given_up(unit, took);
      model.batches.push_back({static_cast<double>(took) / static_cast<double>(unit), came});
    }
    Lateness::Stake stake;
    stake.unit = unit;
    stake.waited = random.chance(50) ? 0 : static_cast<TimeNs>(random.below(20'000'000));
    stake.waiting = static_cast<std::int64_t>(random.between(1, 5));
    stake.rest = static_cast<TimeNs>(random.below(10'000'000));
    stake.instead = static_cast<TimeNs>(random.below(200'000'000));
    const std::size_t first = Model::bin_of(static_cast<double>(stake.waited) / static_cast<double>(unit));
    double best = static_cast<double>(stake.instead);
    for (std::size_t last = first + 1; last < kBins; ++last) best = std::min(best, model.cost(stake, first, last));
    const Lateness::Outlook outlook = lateness.weigh(stake);
    EXPECT_NEAR(static_cast<double>(outlook.cost), best, 1'000 + best / 500) << seed;
    // The cost is also what the model computes for giving up at the returned time.
    const double when = static_cast<double>(outlook.give_up) / static_cast<double>(unit);
    const std::size_t last = outlook.give_up <= stake.waited ? first : Model::bin_of(when * 1.01);
    EXPECT_NEAR(model.cost(stake, first, last), best, 1'000 + best / 200) << seed;
    ++(outlook.give_up <= stake.waited ? gave_up : waited_on);
  }
  EXPECT_GT(waited_on, 300);
  EXPECT_GT(gave_up, 300);
}

}  // namespace
}  // namespace kvtwin

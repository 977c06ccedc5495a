#include "policy/prefetch/lateness.hpp"

#include <algorithm>

#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

constexpr std::uint32_t kBatch = 16;               // the count of one batch; a batch halves its count as it gets old
constexpr std::uint32_t kBatchesPerHalving = 256;  // batches until all counts are halved
constexpr std::uint32_t kBatchesAtStart = 8 * kBatch;  // eight batches on time: the start of a medium
constexpr std::uint64_t kRatioOne = 1024;              // the ratio of a batch on time
// The prior, with the weight of one batch: of the batches that last until a bin begins, 1 - 2^(-1/2) end in that bin.
// So one in four lasts twice as long, and the mean remaining time is the time that has passed.
constexpr Wide kProbabilityOne = 1 << 20, kPrior = 307'121;

TimeNs bin_start(std::size_t bin, TimeNs unit) {
  constexpr std::array<Wide, 4> kQuarter = {65'536, 77'936, 92'682, 110'218};
  return static_cast<TimeNs>(kQuarter[bin % 4] * (Wide{1} << (bin / 4)) * unit / 65'536);
}

}  // namespace

Lateness::Lateness() { bins_[0] = {kBatchesAtStart, 0, kBatchesAtStart * kRatioOne}; }

Lateness::Bin& Lateness::count(TimeNs unit, TimeNs took) {
  if (++counted_ == kBatchesPerHalving) {
    counted_ = 0;
    for (Bin& bin : bins_) bin = {bin.came / 2, bin.given_up / 2, bin.took / 2};
  }
  std::size_t bin = 0;
  while (bin + 1 < kBins && took >= bin_start(bin + 1, unit)) ++bin;
  return bins_[bin];
}

void Lateness::came(TimeNs unit, TimeNs took) {
  Bin& bin = count(unit, took);
  const Wide max_ratio = Wide{kRatioOne} << (kBins / 4);
  bin.came += kBatch;
  bin.took += kBatch * static_cast<std::uint64_t>(std::min(Wide{took} * kRatioOne / unit, max_ratio));
}

void Lateness::given_up(TimeNs unit, TimeNs waited) { count(unit, waited).given_up += kBatch; }

// Optimal stopping by backward induction, from the last bin to the bin that the batch has reached: in each bin the
// smaller cost of giving up and going on. After the last bin, waiting ends.
Lateness::Outlook Lateness::weigh(const Stake& stake) const {
  Outlook outlook{bin_start(kBins - 1, stake.unit), 0, stake.instead};
  Wide later = 0;  // count of the batches that came or were given up after the bin
  for (std::size_t i = kBins - 1; i-- > 0;) {
    later += bins_[i + 1].came + bins_[i + 1].given_up;
    const TimeNs end = bin_start(i + 1, stake.unit);
    if (end <= stake.waited) break;
    const Bin& bin = bins_[i];
    const TimeNs begin = i == 0 ? stake.waited : std::max(stake.waited, bin_start(i, stake.unit));
    const TimeNs width = end - begin;
    const TimeNs usual = bin.came == 0 ? 0 : static_cast<TimeNs>(Wide{bin.took} * stake.unit / bin.came / kRatioOne);
    const TimeNs until = usual > begin ? usual - begin : width / 2;
    const Wide comes = (Wide{bin.came} * kProbabilityOne + kBatch * kPrior) / (bin.came + later + kBatch);
    const auto mean = [comes](Wide if_it_comes, Wide if_not) {
      return static_cast<TimeNs>((comes * if_it_comes + (kProbabilityOne - comes) * if_not) / kProbabilityOne);
    };
    const TimeNs cost = mean(Wide{until} * stake.waiting + stake.rest, Wide{width} * stake.waiting + outlook.cost);
    if (cost < stake.instead) {
      outlook.wait = mean(until, Wide{width} + outlook.wait);
      outlook.cost = cost;
    } else {
      outlook = {begin, 0, stake.instead};
    }
  }
  return outlook;
}

}  // namespace kvtwin

#include "policy/prefetch/lateness.hpp"

#include <algorithm>

#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

constexpr std::uint32_t kOne = 16;           // a batch, of which half counts once it is old
constexpr std::uint32_t kRemembered = 256;   // batches
constexpr std::uint32_t kOnTime = 8 * kOne;  // of a medium that nobody has seen yet
constexpr std::uint64_t kSame = 1024;        // as long as it should
// Of what has lasted until a bin begins, 1 - 2^(-1/2) end in it: the odds to last twice as long are one in four, and
// the mean of what is to come is what has been. Weighs as much as one batch.
constexpr Wide kUnit = 1 << 20, kPrior = 307'121;

TimeNs edge(std::size_t bin, TimeNs unit) {
  constexpr std::array<Wide, 4> kQuarter = {65'536, 77'936, 92'682, 110'218};
  return static_cast<TimeNs>(kQuarter[bin % 4] * (Wide{1} << (bin / 4)) * unit / 65'536);
}

}  // namespace

Lateness::Lateness() { bins_[0] = {kOnTime, 0, kOnTime * kSame}; }

Lateness::Bin& Lateness::count(TimeNs unit, TimeNs took) {
  if (++counted_ == kRemembered) {
    counted_ = 0;
    for (Bin& bin : bins_) bin = {bin.came / 2, bin.given_up / 2, bin.took / 2};
  }
  std::size_t bin = 0;
  while (bin + 1 < kBins && took >= edge(bin + 1, unit)) ++bin;
  return bins_[bin];
}

void Lateness::came(TimeNs unit, TimeNs took) {
  Bin& bin = count(unit, took);
  const Wide most = Wide{kSame} << (kBins / 4);
  bin.came += kOne;
  bin.took += kOne * static_cast<std::uint64_t>(std::min(Wide{took} * kSame / unit, most));
}

void Lateness::given_up(TimeNs unit, TimeNs waited) { count(unit, waited).given_up += kOne; }

// From the last bin back to the one that the batch has reached: what is better in each, giving up or going on? Past the
// last one nobody waits.
Lateness::Outlook Lateness::weigh(const Stake& stake) const {
  Outlook outlook{edge(kBins - 1, stake.unit), 0, stake.instead};
  Wide later = 0;  // batches that came or were given up after the bin
  for (std::size_t i = kBins - 1; i-- > 0;) {
    later += bins_[i + 1].came + bins_[i + 1].given_up;
    const TimeNs end = edge(i + 1, stake.unit);
    if (end <= stake.waited) break;
    const Bin& bin = bins_[i];
    const TimeNs begin = i == 0 ? stake.waited : std::max(stake.waited, edge(i, stake.unit));
    const TimeNs width = end - begin;
    const TimeNs usual = bin.came == 0 ? 0 : static_cast<TimeNs>(Wide{bin.took} * stake.unit / bin.came / kSame);
    const TimeNs until = usual > begin ? usual - begin : width / 2;
    const Wide comes = (Wide{bin.came} * kUnit + kOne * kPrior) / (bin.came + later + kOne);
    const auto mean = [comes](Wide if_it_comes, Wide if_not) {
      return static_cast<TimeNs>((comes * if_it_comes + (kUnit - comes) * if_not) / kUnit);
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

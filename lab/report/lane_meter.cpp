#include "lab/report/lane_meter.hpp"

#include <algorithm>
#include <utility>

#include "sim/world.hpp"

namespace kvtwin {
void Histogram::add(std::span<const double> bounds, double value) {
  counts.resize(bounds.size() + 1);
  ++counts[static_cast<std::size_t>(std::ranges::lower_bound(bounds, value) - bounds.begin())];
  sum += value;
}

// Adds or merges windows until one window contains `time`.
void LaneMeter::reach(TimeNs time) {
  while (time / use_.window_ns >= static_cast<TimeNs>(kMaxWindows)) {
    const std::size_t merged = (use_.window_busy_ns.size() + 1) / 2;
    for (std::size_t i = 0; i < merged; ++i) {
      const bool pair = 2 * i + 1 < use_.window_busy_ns.size();
      use_.window_busy_ns[i] = use_.window_busy_ns[2 * i] + (pair ? use_.window_busy_ns[2 * i + 1] : 0);
      use_.window_bytes[i] = use_.window_bytes[2 * i] + (pair ? use_.window_bytes[2 * i + 1] : 0);
    }
    use_.window_busy_ns.resize(merged);
    use_.window_bytes.resize(merged);
    use_.window_ns *= 2;
  }
  const auto needed = static_cast<std::size_t>(time / use_.window_ns) + 1;
  if (needed > use_.window_busy_ns.size()) {
    use_.window_busy_ns.resize(needed);
    use_.window_bytes.resize(needed);
  }
}

void LaneMeter::add_busy(TimeNs from, TimeNs to) {
  from = std::max(from, busy_until_);
  if (to <= from) return;
  busy_until_ = to;
  use_.busy_ns += to - from;
  reach(to - 1);
  for (TimeNs at = from; at < to;) {
    const TimeNs window = at / use_.window_ns;
    const TimeNs stop = std::min(to, (window + 1) * use_.window_ns);
    use_.window_busy_ns[static_cast<std::size_t>(window)] += stop - at;
    at = stop;
  }
}

void LaneMeter::add_bytes(TimeNs from, TimeNs to, Bytes bytes) {
  use_.bytes += bytes;
  reach(std::max(from, to - 1));
  Bytes left = bytes;
  TimeNs at = from;
  while (left > 0) {
    const TimeNs window = at / use_.window_ns;
    const TimeNs stop = std::min(to, (window + 1) * use_.window_ns);
    // The last window takes the rest, so that the sum of the windows is exactly the total.
    Bytes part = left;
    if (stop < to) {
      const double share = static_cast<double>(stop - at) / static_cast<double>(to - from);
      part = std::min(left, static_cast<Bytes>(share * static_cast<double>(bytes)));
    }
    use_.window_bytes[static_cast<std::size_t>(window)] += part;
    left -= part;
    if (stop >= to) break;
    at = stop;
  }
}

void LaneMeter::busy_by_rate(std::uint64_t bytes_per_second) {
  use_.busy_ns = 0;
  for (std::size_t i = 0; i < use_.window_bytes.size(); ++i) {
    const double busy = static_cast<double>(use_.window_bytes[i]) * 1e9 / static_cast<double>(bytes_per_second);
    use_.window_busy_ns[i] = std::min(use_.window_ns, static_cast<TimeNs>(busy + 0.5));
    use_.busy_ns += use_.window_busy_ns[i];
  }
}

void LaneMeter::add_to_histograms(TimeNs time, Bytes bytes, Bytes page_bytes) {
  if (time <= 0 || bytes == 0) return;
  use_.seconds.add(kSecondsBounds, static_cast<double>(time) * 1e-9);
  use_.gigabytes_per_second.add(kGigabytesPerSecondBounds, static_cast<double>(bytes) / static_cast<double>(time));
  if (page_bytes != 0) use_.pages.add(kPagesBounds, static_cast<double>(bytes / page_bytes));
}

LaneUse LaneMeter::use(std::string name, TimeNs end) const {
  LaneMeter copy = *this;
  if (end > 0) copy.reach(end - 1);
  copy.use_.name = std::move(name);
  return std::move(copy.use_);
}

void LaneMeters::on_lane(const LaneSpan& span) {
  LaneMeter& meter = meters_[span.lane];
  if (span.staged && dram_rate_ != 0) {  // from the GPU and to the NIC, or the other way
    dram_.add_bytes(span.flowing, span.end, 2 * span.bytes);
    if (span.status == Status::done) dram_.count_transfer();
  }
  if (span.received) return;
  if (span.lane == Lane::compute) {
    if (span.steps == 0) return;
    // The times of the stalls within the pass are not known. The busy time is counted at the end of the pass.
    meter.add_busy(span.begin + span.stalled_ns, span.end);
    meter.count_transfer();
    return;
  }
  meter.add_busy(span.begin + (span.lane == Lane::peer ? span.stalled_ns : 0), span.end);
  meter.add_bytes(span.flowing, span.end, span.bytes);
  if (const std::uint32_t crossings = dram_crossings(span.lane); crossings != 0 && dram_rate_ != 0) {
    const bool one_rank = spec_of(span.lane).kind == LaneKind::copy;
    dram_.add_bytes(span.flowing, span.end, span.bytes * crossings * (one_rank ? ranks_ : 1));
    if (span.status == Status::done) dram_.count_transfer();
  }
  if (span.status != Status::done) return;
  meter.count_transfer();
  meter.add_to_histograms(span.end - span.begin, span.bytes,
                          spec_of(span.lane).kind == LaneKind::copy || span.lane == Lane::peer ? 0 : page_bytes_);
}

std::vector<LaneUse> LaneMeters::uses(TimeNs end) const {
  const auto use = [&](Lane lane, std::string name) { return meters_[lane].use(std::move(name), end); };
  std::vector<LaneUse> uses;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const std::string gpu = "gpu" + std::to_string(rank);
    uses.push_back(use(Lane::h2d, gpu + ".h2d"));
    uses.push_back(use(Lane::d2h, gpu + ".d2h"));
  }
  uses.push_back(use(Lane::compute, "compute"));
  const auto has = [&](Tier tier) { return std::ranges::find(storage_, tier) != storage_.end(); };
  for (const TierSpec& spec : kStorageSpecs) {
    if (!has(spec.tier)) continue;
    for (const Lane lane : {spec.read, spec.write}) uses.push_back(use(lane, std::string(spec_of(lane).name)));
  }
  for (const LaneSpec& spec : kLaneSpecs) {
    if (spec.kind != LaneKind::direct || storage_.empty()) continue;
    uses.push_back(use(spec.lane, std::string(spec.name)));
  }
  if (hands_over_) uses.push_back(use(Lane::peer, std::string(spec_of(Lane::peer).name)));
  if (dram_rate_ != 0) {
    LaneMeter dram = dram_;
    dram.busy_by_rate(dram_rate_);
    uses.push_back(dram.use(std::string(kDramLane), end));
  }
  return uses;
}

}  // namespace kvtwin

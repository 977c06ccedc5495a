#include "models/calibration.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "models/json.hpp"
#include "models/presets.hpp"
#include "models/roofline.hpp"
#include "models/tier_media.hpp"

namespace kvtwin {
namespace {

using H = HardwareSpec;

constexpr double kUs = 1e-6, kGb = 1e9;
constexpr std::size_t kMaxSamplesPerGroup = 2500;  // per group; more samples do not improve the fit

struct Knob {
  std::string_view key;
  double HardwareSpec::*member;
  std::string_view unit;
  double factor;       // value of one unit
  double least, most;  // range of the fit
  double start = 0;    // start value if the base has none
};

constexpr std::array<Knob, 12> kCopies{{
    {"host_to_device", &H::host_to_device, "GB/s", kGb, 1e6, 1e12},
    {"device_to_host", &H::device_to_host, "GB/s", kGb, 1e6, 1e12},
    {"copy_call", &H::copy_call, "us", kUs, 1e-9, 0.1},
    {"descriptor_gap", &H::descriptor_gap, "us", kUs, 1e-12, 1e-3, 1e-8},
    {"descriptor_h2d", &H::descriptor_h2d, "us", kUs, 1e-12, 1e-2},
    {"descriptor_d2h", &H::descriptor_d2h, "us", kUs, 1e-12, 1e-2},
    {"box_row", &H::box_row, "us", kUs, 1e-12, 1e-2, 1e-8},
    {"kernel_launch", &H::kernel_launch, "us", kUs, 1e-9, 0.1},
    {"kernel_read", &H::kernel_read, "GB/s", kGb, 1e6, 1e12},
    {"kernel_write", &H::kernel_write, "GB/s", kGb, 1e6, 1e12},
    {"ring_rate", &H::ring_rate, "GB/s", kGb, 1e6, 1e12, 1e10},
    {"scatter_rate", &H::scatter_rate, "GB/s", kGb, 1e6, 20e12},
}};
constexpr std::array<Knob, 1> kBoth{{{"bidirectional_factor", &H::bidirectional_factor, "fraction", 1, 0.05, 1}}};
constexpr std::array<Knob, 3> kNic{{
    {"nic_bandwidth", &H::nic_bandwidth, "GB/s", kGb, 1e6, 200e9},
    {"nic_latency", &H::nic_latency, "us", kUs, 1e-9, 0.1},
    {"nic_object", &H::nic_object, "us", kUs, 1e-12, 0.1},
}};
constexpr std::array<Knob, 5> kRemote{{
    {"pool_bandwidth", &H::pool_bandwidth, "GB/s", kGb, 1e5, 100e12},
    {"pool_latency", &H::pool_latency, "us", kUs, 1e-9, 1},
    {"pool_look_up", &H::pool_look_up, "us", kUs, 1e-9, 1},
    {"nic_latency", &H::nic_latency, "us", kUs, 1e-9, 0.1},
    {"nic_object", &H::nic_object, "us", kUs, 1e-12, 0.1},
}};
constexpr std::array<Knob, 9> kDisk{{
    {"drive_read_bandwidth", &H::drive_read_bandwidth, "GB/s", kGb, 1e5, 32e9},
    {"drive_write_bandwidth", &H::drive_write_bandwidth, "GB/s", kGb, 1e5, 32e9},
    {"drive_read_iops", &H::drive_read_iops, "IOPS", 1, 1, 20e6},
    {"drive_write_iops", &H::drive_write_iops, "IOPS", 1, 1, 20e6},
    {"drive_read_latency", &H::drive_read_latency, "us", kUs, 1e-9, 0.1},
    {"drive_write_latency", &H::drive_write_latency, "us", kUs, 1e-9, 0.1},
    {"disk_look_up", &H::disk_look_up, "us", kUs, 1e-9, 1},
    {"gpudirect_bandwidth", &H::gpudirect_bandwidth, "GB/s", kGb, 1e5, 1e12},
    {"gpudirect_object", &H::gpudirect_object, "us", kUs, 1e-12, 0.1},
}};
// normalise() later handles fractions above 1.
constexpr std::array<Knob, 5> kForward{{
    {"gemm_fraction", &H::gemm_fraction, "fraction", 1, 1e-5, 1e3},
    {"attention_fraction", &H::attention_fraction, "fraction", 1, 1e-5, 1e3},
    {"memory_fraction", &H::memory_fraction, "fraction", 1, 1e-5, 1e3},
    {"attention_serial", &H::attention_serial, "fraction", 1, 1e-5, 1, 0.1},
    {"pass_overhead", &H::pass_overhead, "us", kUs, 1e-9, 1},
}};
// Numbers that follow from others; needed here for their units.
constexpr std::array<Knob, 7> kDerived{{
    {"kernel_block_rate", &H::kernel_block_rate, "GB/s", kGb, 0, 0},
    {"nic_bandwidth", &H::nic_bandwidth, "GB/s", kGb, 0, 0},
    {"dram_bandwidth", &H::dram_bandwidth, "GB/s", kGb, 0, 0},
    {"peak_bf16", &H::peak_bf16, "GFLOP/s", 1e9, 0, 0},
    {"memory_bandwidth", &H::memory_bandwidth, "GB/s", kGb, 0, 0},
    {"peak_fp8", &H::peak_fp8, "GFLOP/s", 1e9, 0, 0},
    {"peak_fp4", &H::peak_fp4, "GFLOP/s", 1e9, 0, 0},
}};

struct Group {
  std::string_view name;
  std::span<const Knob> knobs;
  bool (*has)(const Measurement&);
};
template <Tier kTier>
bool is_stored(const Measurement& m) {
  return m.what == Measured::storage && m.work.tier == kTier;
}
constexpr std::array<Group, 6> kGroups{{
    {"copies", kCopies, [](const Measurement& m) { return m.what == Measured::transfer; }},
    {"both", kBoth, [](const Measurement& m) { return m.what == Measured::both; }},
    {"nic", kNic, [](const Measurement& m) { return m.what == Measured::nic; }},
    {"remote", kRemote, is_stored<Tier::remote>},
    {"disk", kDisk, is_stored<Tier::disk>},
    {"forward", kForward, [](const Measurement& m) { return m.what == Measured::forward; }},
}};

// ---- predictions ---------------------------------------------------------------------------------------

// The cost models of one machine, by model and ranks.
class Costs {
 public:
  Costs(const Measurements& all, const HardwareSpec& hw) : all_(all), hw_(hw) {}

  double seconds(const Measurement& one) {
    switch (one.what) {
      case Measured::transfer: return transfer(one.plan);
      case Measured::both: return both(one.plan);
      case Measured::forward: return static_cast<double>(of(one.model, one.tp).forward_ns(one.shape, one.steps)) * 1e-9;
      case Measured::storage: return storage(one.work);
      case Measured::nic: {
        const double flows = static_cast<double>(one.bytes) / hw_.nic_bandwidth;
        return one.stream ? std::max(flows, hw_.nic_object) : flows + hw_.nic_latency;
      }
      case Measured::interference:
      case Measured::probe: break;
    }
    return one.alone_seconds;
  }

 private:
  double link(Direction direction) const {
    return direction == Direction::host_to_device ? hw_.host_to_device : hw_.device_to_host;
  }
  // As in the worlds: the latency, then bytes at the lower of the link's rate and the path's rate.
  double flow(const TransferCost& cost, double most) const {
    const auto own = static_cast<double>(cost.bytes_per_second);
    return static_cast<double>(cost.bytes) / (own > 0 && own < most ? own : most);
  }
  double transfer(const Plan& plan) {
    const TransferCost cost = any().transfer(plan);
    return static_cast<double>(cost.latency_ns) * 1e-9 + flow(cost, link(plan.direction));
  }
  double both(Plan plan) {
    plan.direction = Direction::host_to_device;
    const double up = transfer(plan);
    plan.direction = Direction::device_to_host;
    const double down = transfer(plan);
    const double most = hw_.bidirectional_factor * (hw_.host_to_device + hw_.device_to_host);
    return std::max({up, down, 2 * static_cast<double>(plan.bytes) / most});
  }
  double storage(const StorageWork& work) {
    const TransferCost cost = any().storage(work);
    const double most = medium_of(work.tier).rate(hw_, work.verb);
    return static_cast<double>(cost.latency_ns) * 1e-9 + (cost.bytes == 0 ? 0 : flow(cost, most));
  }
  const RooflineCost& of(std::size_t model, std::uint32_t tp) {
    auto& cost = by_model_[{model, tp}];
    if (!cost) cost = std::make_unique<RooflineCost>(all_.models[model].geometry, hw_, tp);
    return *cost;
  }
  const RooflineCost& any() {  // copies and storage do not depend on the model
    static const ModelGeometry tiny = model_preset("tiny");
    if (!any_) any_ = std::make_unique<RooflineCost>(tiny, hw_, 1);
    return *any_;
  }

  const Measurements& all_;
  const HardwareSpec& hw_;
  std::map<std::pair<std::size_t, std::uint32_t>, std::unique_ptr<RooflineCost>> by_model_;
  std::unique_ptr<RooflineCost> any_;
};

// ---- fits ----------------------------------------------------------------------------------------------

struct Sample {
  const Measurement* work = nullptr;
  double seconds = 0;
};

// Returns one sample per distinct work, in the order of first occurrence, with the median of its times.
std::vector<Sample> distinct_work(const Measurements& all, const Group& group, CalibratedGroup& found) {
  std::vector<Sample> samples;
  std::vector<std::vector<double>> times;
  std::map<std::string, std::size_t, std::less<>> known;
  for (const Measurement& one : all.list) {
    if (!group.has(one)) continue;
    ++found.measurements;
    const auto [at, fresh] = known.try_emplace(features_of(all, one), samples.size());
    if (fresh) {
      samples.push_back({&one, 0});
      times.emplace_back();
    }
    times[at->second].push_back(one.seconds);
  }
  constexpr std::size_t kMinRepeats = 4;  // fewer repeats have no quartiles
  std::vector<double> spreads;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::ranges::sort(times[i]);
    samples[i].seconds = quantile_of(times[i], 0.5);
    if (times[i].size() < kMinRepeats) continue;
    spreads.push_back((quantile_of(times[i], 0.75) - quantile_of(times[i], 0.25)) / samples[i].seconds);
  }
  std::ranges::sort(spreads);
  if (!spreads.empty()) found.repeat_spread = quantile_of(spreads, 0.5);
  if (samples.size() <= kMaxSamplesPerGroup) return samples;
  std::vector<Sample> fewer;
  for (std::size_t i = 0; i < kMaxSamplesPerGroup; ++i)
    fewer.push_back(samples[i * samples.size() / kMaxSamplesPerGroup]);
  return fewer;
}

bool is_measured(const Calibration& c, std::string_view key) {
  return std::ranges::find(c.numbers, key, &CalibratedNumber::key) != c.numbers.end();
}

// Sets the numbers that depend on fitted ones, before each prediction.
void set_dependent_numbers(HardwareSpec& hw, std::string_view group, bool nic_is_known) {
  if (group == "copies") {
    hw.kernel_block_rate = std::max(hw.kernel_block_rate, std::max(hw.kernel_read, hw.kernel_write) / hw.kernel_blocks);
  }
  if (group == "remote" && !nic_is_known) hw.nic_bandwidth = hw.pool_bandwidth / hw.nic_count;
}

// A prediction is never 0.
constexpr double kMinSeconds = 1e-10;

void add_derived_numbers(Calibration& c, const HardwareSpec& before, std::string_view group) {
  for (const Knob& knob : kDerived) {
    const double now = c.hardware.*knob.member;
    if (now == before.*knob.member || is_measured(c, knob.key)) continue;
    c.numbers.push_back({std::string(knob.key), std::string(group), now, 0, 0});
  }
}

void fit_group(const Measurements& all, const Group& group, Calibration& c) {
  CalibratedGroup found;
  found.name = group.name;
  const std::vector<Sample> samples = distinct_work(all, group, found);
  found.distinct = samples.size();
  if (samples.empty()) return;
  std::vector<const Knob*> knobs;
  for (const Knob& knob : group.knobs) {
    if (!is_measured(c, knob.key)) knobs.push_back(&knob);
  }
  const bool nic_is_known = is_measured(c, "nic_bandwidth");
  FitTask task;
  for (const Knob* knob : knobs) {
    const double base = c.hardware.*(knob->member);
    task.start.push_back(base > 0 ? base : std::max(knob->start, knob->least));
    task.least.push_back(knob->least);
    task.most.push_back(knob->most);
  }
  for (const Sample& sample : samples) task.measured.push_back(sample.seconds);
  const HardwareSpec before = c.hardware;
  const auto with = [&](std::span<const double> values) {
    HardwareSpec hw = before;
    for (std::size_t i = 0; i < knobs.size(); ++i) hw.*(knobs[i]->member) = values[i];
    set_dependent_numbers(hw, group.name, nic_is_known);
    return hw;
  };
  task.predict = [&](std::span<const double> values, std::span<double> predicted) {
    const HardwareSpec hw = with(values);
    Costs costs(all, hw);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      predicted[i] = std::max(kMinSeconds, costs.seconds(*samples[i].work));
    }
  };
  const Fit fit = fit_numbers(task);
  std::vector<double> values;
  for (std::size_t i = 0; i < knobs.size(); ++i) {
    const FittedNumber& number = fit.numbers[i];
    values.push_back(number.informed ? number.value : before.*(knobs[i]->member));
    if (!number.informed) continue;
    c.numbers.push_back({std::string(knobs[i]->key), found.name, number.value, number.low,
                         std::min(number.high, std::max(number.value, knobs[i]->most))});
  }
  c.hardware = with(values);
  add_derived_numbers(c, before, group.name);
  found.errors = fit.errors;
  c.groups.push_back(std::move(found));
}

// A delayed pass counts at most this many times its prediction.
constexpr double kMaxSlowdown = 10;

// Scales all passes by the recorded ones; see calibration.hpp. Requires: before normalise().
void match_level(const Measurements& all, Calibration& c) {
  const auto group = std::ranges::find(c.groups, "forward", &CalibratedGroup::name);
  if (group == c.groups.end()) return;
  Costs costs(all, c.hardware);
  double predicted = 0, measured = 0;
  for (const Measurement& one : all.list) {
    if (one.what != Measured::forward || !one.recorded) continue;
    const double seconds = costs.seconds(one);
    predicted += seconds;
    measured += std::min(one.seconds, kMaxSlowdown * seconds);
  }
  if (!(predicted > 0)) return;
  group->level = measured / predicted;
  const auto scale = [&](double H::*member, std::string_view key, double by) {
    c.hardware.*member *= by;
    if (!is_measured(c, key)) c.numbers.push_back({std::string(key), "forward", c.hardware.*member / by, 0, 0});
    for (CalibratedNumber& number : c.numbers) {
      if (number.key != key) continue;
      number.value *= by;
      number.low *= by;
      number.high *= by;
    }
  };
  scale(&H::gemm_fraction, "gemm_fraction", 1 / group->level);
  scale(&H::attention_fraction, "attention_fraction", 1 / group->level);
  scale(&H::memory_fraction, "memory_fraction", 1 / group->level);
  scale(&H::pass_overhead, "pass_overhead", group->level);
}

// Limits fractions to 1: the excess goes to the peak.
void normalise(Calibration& c) {
  HardwareSpec& hw = c.hardware;
  const HardwareSpec before = hw;
  const auto scale = [&](std::initializer_list<double HardwareSpec::*> fractions,
                         std::initializer_list<double HardwareSpec::*> peaks) {
    const auto of = [&](const CalibratedNumber& number) {
      return std::ranges::any_of(kForward, [&](const Knob& knob) {
        return knob.key == number.key && std::ranges::find(fractions, knob.member) != fractions.end();
      });
    };
    // Uses the upper ends of the intervals, which would otherwise be cut off. Very uncertain upper ends are cut off.
    constexpr double kMaxHighFactor = 4;
    constexpr double kMinFraction = 1e-6;  // of a hardware file
    double most = 1;
    for (const auto fraction : fractions) most = std::max(most, hw.*fraction);
    for (const CalibratedNumber& number : c.numbers) {
      if (of(number)) most = std::max(most, std::min(number.high, kMaxHighFactor * number.value));
    }
    if (most == 1) return;
    for (const auto fraction : fractions) hw.*fraction /= most;
    for (const auto peak : peaks) hw.*peak *= most;
    for (CalibratedNumber& number : c.numbers) {
      if (!of(number)) continue;
      number.value /= most;
      if (number.low > 0) number.low = std::max(number.low / most, kMinFraction);  // 0: it follows from others
      number.high = std::max(number.value, std::min(1.0, number.high / most));
    }
  };
  scale({&H::gemm_fraction, &H::attention_fraction}, {&H::peak_bf16, &H::peak_fp8, &H::peak_fp4});
  scale({&H::memory_fraction}, {&H::memory_bandwidth});
  add_derived_numbers(c, before, "forward");
}

// The memory is at least as fast as the measured copies.
void raise_dram_bandwidth(Calibration& c) {
  const HardwareSpec before = c.hardware;
  const bool copied = std::ranges::find(c.groups, "copies", &CalibratedGroup::name) != c.groups.end();
  const double seen = c.hardware.bidirectional_factor * (c.hardware.host_to_device + c.hardware.device_to_host);
  if (copied)
    c.hardware.dram_bandwidth =
        std::max({c.hardware.dram_bandwidth, seen, c.hardware.host_to_device, c.hardware.device_to_host});
  add_derived_numbers(c, before, "copies");
}

void add_ranges(const Measurements& all, WorkRanges& ranges) {
  for (const Measurement& one : all.list) {
    if (one.what == Measured::transfer) ranges.add(one.plan);
    if (one.what == Measured::forward) ranges.add(one.shape);
    if (one.what == Measured::storage) ranges.add(one.work);
  }
}

void add_interference(const Measurements& all, Calibration& c) {
  std::map<std::pair<std::string, std::string>, std::vector<double>> factors;
  for (const Measurement& one : all.list) {
    if (one.what == Measured::interference) factors[{one.lane, one.beside}].push_back(one.seconds / one.alone_seconds);
  }
  for (auto& [pair, values] : factors) {
    std::ranges::sort(values);
    c.interference.push_back({pair.first, pair.second, quantile_of(values, 0.5), values.size()});
  }
}

void check_base_has_devices(const Measurements& all, const HardwareSpec& base) {
  const auto lacks = [&](bool has, std::string_view what, std::string_view measured) {
    if (!has) {
      throw ModelError(base.name + " has no " + std::string(what) + ", and " + std::string(measured) +
                       " was measured; begin with a preset that has one, e.g. --base cpu-host");
    }
  };
  for (const Measurement& one : all.list) {
    if (one.what == Measured::nic) lacks(base.has_pool(), "NIC", "a NIC");
    if (one.what != Measured::storage) continue;
    const TierMedium& medium = medium_of(one.work.tier);
    lacks(medium.is_there(base), medium.devices, medium.measured);
    if (one.work.memory == Tier::device) lacks(base.has_gpudirect(), "GPUDirect", "a way past host memory");
  }
}

double rounded(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

const Knob& knob_of(std::string_view key) {
  for (const Group& group : kGroups) {
    for (const Knob& knob : group.knobs) {
      if (knob.key == key) return knob;
    }
  }
  return *std::ranges::find(kDerived, key, &Knob::key);
}

std::string machine_text(const Measurements& all) {
  return all.machine ? all.machine->text() : "a machine that the measurements don't name";
}

Json number_json(const CalibratedNumber& number, const Calibration& c, const std::string& machine,
                 const CalibrationTerms& terms) {
  const Knob& knob = knob_of(number.key);
  Json json{{"value", rounded(number.value / knob.factor)}, {"unit", knob.unit}};
  if (number.low > 0) {
    json["low"] = rounded(number.low / knob.factor);
    json["high"] = rounded(number.high / knob.factor);
  }
  const auto group = std::ranges::find(c.groups, number.group, &CalibratedGroup::name);
  const std::string count = std::to_string(group->measurements);
  json["source"] = number.low > 0
                       ? "measured: kvtwin calibrate, " + count + " measurements (" + number.group + ") on " + machine
                       : "follows from what kvtwin calibrate measured (" + number.group + ") on " + machine;
  json["date"] = terms.date;
  return json;
}

Json calibration_json(const Calibration& c, const Measurements& all, const CalibrationTerms& terms) {
  Json json;
  if (all.machine) {
    json["machine"] = {{"cpu", all.machine->cpu},
                       {"cores", all.machine->cores},
                       {"kernel", all.machine->kernel},
                       {"device", all.machine->device}};
    if (const auto& load = all.machine->load) {
      json["machine"]["load_average"] = {load->before, load->after};
      json["machine"]["steal_share"] = rounded(load->steal_share);
    }
  }
  json["date"] = terms.date;
  json["kvtwin_version"] = terms.version;
  json["git_commit"] = terms.commit;
  json["command"] = terms.command;
  json["base"] = terms.base;
  for (const CalibratedGroup& group : c.groups) {
    json["fits"][group.name] = {{"measurements", group.measurements},
                                {"distinct", group.distinct},
                                {"error_median", rounded(quantile_of(group.errors, 0.5))},
                                {"error_p90", rounded(quantile_of(group.errors, 0.9))},
                                {"repeat_spread", rounded(group.repeat_spread)},
                                {"level", rounded(group.level)}};
  }
  if (!c.notes.empty()) json["notes"] = c.notes;
  json["not_measured"] = c.not_measured;
  json["ranges"] = Json::object();
  for (const auto& [lane, quantities] : c.ranges.lanes()) {
    for (const auto& [quantity, range] : quantities) json["ranges"][lane][quantity] = {range.least, range.most};
  }
  for (const Calibration::Probe& probe : c.probes) json["probes"][probe.of] = probe.seconds;
  if (!terms.probe_disk.empty()) json["probe_disk"] = terms.probe_disk;
  for (const auto& it : c.interference) {
    json["interference"].push_back(
        {{"lane", it.lane}, {"beside", it.beside}, {"factor", rounded(it.factor)}, {"measurements", it.measurements}});
  }
  return json;
}

// Collects the probes, and widens the intervals of the groups whose probes disagree.
void apply_probes(const Measurements& all, Calibration& c) {
  for (const Measurement& one : all.list) {
    if (one.what != Measured::probe) continue;
    auto at = std::ranges::find(c.probes, one.of, &Calibration::Probe::of);
    if (at == c.probes.end()) at = c.probes.insert(at, {one.of, {}});
    at->seconds.push_back(one.seconds);
  }
  for (const Calibration::Probe& probe : c.probes) {
    const auto [least, most] = std::ranges::minmax(probe.seconds);
    const double ratio = most / least;
    if (ratio <= kMaxProbeRatio) continue;
    for (CalibratedNumber& number : c.numbers) {
      const bool of_copies = probe.of == "copies" && number.group == "both";
      if (number.low == 0 || (number.group != probe.of && !of_copies)) continue;
      const Knob& knob = knob_of(number.key);
      number.low = std::max(number.low / ratio, std::min(number.value, knob.least));
      number.high = std::min(number.high * ratio, std::max(number.value, knob.most));
    }
    std::string times;
    for (const double seconds : probe.seconds) {
      char text[40];
      std::snprintf(text, sizeof text, "%s%.4g", times.empty() ? "" : ", ", 1e3 * seconds);
      times += text;
    }
    char text[120];
    std::snprintf(text, sizeof text, "): the longest is %.2f times the shortest, so the intervals of ", ratio);
    c.notes.push_back("The machine changed while it was measured: equal work of " + probe.of + " took " + times +
                      " ms (in order of time" + text + probe.of +
                      " are wider by this factor; measure again on an idle machine");
  }
}

// Adds notes about disturbed measurements.
void add_notes(const Measurements& all, Calibration& c) {
  constexpr double kMaxRepeatSpread = 0.2;
  if (all.machine) {
    if (std::string sentence = all.machine->load_sentence(); !sentence.empty()) c.notes.push_back(std::move(sentence));
  }
  for (const CalibratedGroup& group : c.groups) {
    if (group.repeat_spread <= kMaxRepeatSpread) continue;
    char text[200];
    std::snprintf(text, sizeof text,
                  "Repeats of equal work disagree (%s): the middle half of their times spans %.0f %% of the median, so "
                  "its figures are no surer than that; measure again on an idle machine",
                  group.name.c_str(), 100 * group.repeat_spread);
    c.notes.emplace_back(text);
  }
}

}  // namespace

double predicted_seconds(const Measurements& all, const Measurement& one, const HardwareSpec& hardware) {
  return Costs(all, hardware).seconds(one);
}

Calibration calibrate(const Measurements& measurements, const CalibrationTerms& terms) {
  Calibration c;
  c.hardware = hardware_preset(terms.base);
  check_base_has_devices(measurements, c.hardware);
  for (const Group& group : kGroups) fit_group(measurements, group, c);
  match_level(measurements, c);
  apply_probes(measurements, c);
  normalise(c);
  raise_dram_bandwidth(c);
  for (const Group& group : kGroups) {
    for (const Knob& knob : group.knobs) {
      const bool listed = std::ranges::find(c.not_measured, knob.key) != c.not_measured.end();
      if (!listed && !is_measured(c, knob.key)) c.not_measured.emplace_back(knob.key);
    }
  }
  add_ranges(measurements, c.ranges);
  add_interference(measurements, c);
  add_notes(measurements, c);
  return c;
}

std::string hardware_json(const Calibration& c, const Measurements& measurements, const CalibrationTerms& terms) {
  Json file = Json::parse(hardware_preset_text(terms.base));
  const std::string machine = machine_text(measurements);
  file["description"] = "Calibrated: " + machine + "; what wasn't measured is " + terms.base + "'s";
  for (const CalibratedNumber& number : c.numbers) {
    file["numbers"][number.key] = number_json(number, c, machine, terms);
  }
  const auto set = [&](const char* key, const auto& value, const char* unit, const std::string& from) {
    if (!value) return;
    file["numbers"][key] = {{"value", *value}, {"unit", unit}, {"source", "measured: " + from}, {"date", terms.date}};
  };
  set("copy_engine_min_h2d", terms.limits.copy_engine_min_h2d, "B", terms.limits_from);
  set("copy_engine_min_d2h", terms.limits.copy_engine_min_d2h, "B", terms.limits_from);
  set("box_min", terms.limits.box_min, "B", terms.limits_from);
  set("kernel_min_pieces", terms.limits.kernel_min_pieces, "count", terms.limits_from);
  set("kernel_blocks", terms.sizes.kernel_blocks, "count", terms.sizes_from);
  set("ring_blocks", terms.sizes.ring_blocks, "count", terms.sizes_from);
  set("ring_stages", terms.sizes.ring_stages, "count", terms.sizes_from);
  set("staging_bytes", terms.sizes.staging_bytes, "B", terms.sizes_from);
  file["calibration"] = calibration_json(c, measurements, terms);
  const std::string text = file.dump(2, Json::BadBytes::replace) + "\n";
  static_cast<void>(parse_hardware(text, "the calibrated hardware file"));
  return text;
}

std::string calibration_text(const Calibration& c, const CalibrationTerms& terms) {
  const HardwareSpec base = hardware_preset(terms.base);
  std::string text;
  char line[256];
  std::snprintf(line, sizeof line, "%-22s %12s %12s %12s %-8s %12s\n", "number", "value", "low", "high", "unit",
                terms.base.c_str());
  text += line;
  for (const CalibratedNumber& number : c.numbers) {
    const Knob& knob = knob_of(number.key);
    char interval[64];
    std::snprintf(interval, sizeof interval, "%12.4g %12.4g", number.low / knob.factor, number.high / knob.factor);
    if (number.low == 0) std::snprintf(interval, sizeof interval, "%12s %12s", "", "follows");
    std::snprintf(line, sizeof line, "%-22s %12.4g %s %-8s %12.4g\n", number.key.c_str(), number.value / knob.factor,
                  interval, std::string(knob.unit).c_str(), base.*knob.member / knob.factor);
    text += line;
  }
  for (const CalibratedGroup& group : c.groups) {
    std::snprintf(line, sizeof line, "%-10s %6zu measurements, %5zu distinct; off by %.1f %% (median), %.1f %% (p90)\n",
                  group.name.c_str(), group.measurements, group.distinct, 100 * quantile_of(group.errors, 0.5),
                  100 * quantile_of(group.errors, 0.9));
    text += line;
    if (std::abs(group.level - 1) < 0.005) continue;
    std::snprintf(line, sizeof line,
                  "%-10s recorded passes took %.2f times as long in all, and all are scaled by that\n",
                  group.name.c_str(), group.level);
    text += line;
  }
  for (const auto& it : c.interference) {
    std::snprintf(line, sizeof line, "%s beside %s takes %.2f times as long (not in the model)\n", it.lane.c_str(),
                  it.beside.c_str(), it.factor);
    text += line;
  }
  text += "not measured, as of " + terms.base + ":";
  for (const std::string& key : c.not_measured) text += " " + key;
  text += "\n";
  for (const Calibration::Probe& probe : c.probes) {
    const auto [least, most] = std::ranges::minmax(probe.seconds);
    std::snprintf(line, sizeof line, "probe      %s: %zu times, %.4g to %.4g ms\n", probe.of.c_str(),
                  probe.seconds.size(), 1e3 * least, 1e3 * most);
    text += line;
  }
  for (const std::string& note : c.notes) text += "note       " + note + "\n";
  return text;
}

}  // namespace kvtwin

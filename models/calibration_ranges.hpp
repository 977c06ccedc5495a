// The ranges of work that a calibration measured, and the parts of a simulation outside these ranges, where the cost
// model extrapolates.
//
// A calibrated hardware file has {"calibration": {"ranges": {"h2d": {"bytes": [least, most], ...}, ...}}}: per lane
// (h2d, d2h, prefill, decode, disk_read, disk_write, remote_read, remote_write) the quantities that determine its cost.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

struct MeasuredRange {
  std::uint64_t least = 0, most = 0;
  bool has(std::uint64_t value) const { return value >= least && value <= most; }
  friend bool operator==(const MeasuredRange&, const MeasuredRange&) = default;
};

// Ranges by lane and quantity.
class WorkRanges {
 public:
  using Quantities = std::map<std::string, MeasuredRange, std::less<>>;

  void add(const Plan& plan);
  void add(const ForwardShape& shape);
  void add(const StorageWork& work);

  void widen(const std::string& lane, const std::string& quantity, std::uint64_t value);
  void set(const std::string& lane, const std::string& quantity, MeasuredRange range) {
    lanes_[lane][quantity] = range;
  }
  const std::map<std::string, Quantities, std::less<>>& lanes() const { return lanes_; }
  bool empty() const { return lanes_.empty(); }

 private:
  std::map<std::string, Quantities, std::less<>> lanes_;
};

// Returns the ranges of a hardware file; empty if it was not calibrated. Errors: ModelError if the ranges have a wrong
// form.
WorkRanges measured_ranges(std::string_view hardware_json, const std::string& file);

// Passes queries to another cost model and records their ranges.
class RangedCost final : public CostModel {
 public:
  explicit RangedCost(const CostModel& cost) : cost_(cost) {}
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override;
  TimeNs joint_step_ns(std::span<const ForwardShape> groups) const override;
  TransferCost transfer(const Plan& plan) const override;
  TransferCost storage(const StorageWork& work) const override;
  const WorkRanges& asked() const { return asked_; }

 private:
  const CostModel& cost_;
  mutable WorkRanges asked_;
};

// Returns a sentence for each lane with queries outside the measured ranges, or without measurements.
std::vector<std::string> extrapolations(const WorkRanges& measured, const WorkRanges& asked,
                                        const std::string& machine);

}  // namespace kvtwin

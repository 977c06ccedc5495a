// How far a machine's figures were measured, and what of a simulation lies beyond: where a fit extrapolates.
//
// A hardware file that was calibrated says {"calibration": {"ranges": {"h2d": {"bytes": [least, most], ...}, ...}}}: by
// lane (h2d, d2h, prefill, decode, disk_read, disk_write, remote_read, remote_write), by what its cost hangs on.
#pragma once

#include <cstdint>
#include <map>
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

// By lane and quantity.
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

// Of a hardware file; empty if it wasn't calibrated. ModelError for ranges that aren't as above.
WorkRanges measured_ranges(std::string_view hardware_json, const std::string& file);

// Asks another cost model, and notes what it was asked.
class RangedCost final : public CostModel {
 public:
  explicit RangedCost(const CostModel& cost) : cost_(cost) {}
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override;
  TransferCost transfer(const Plan& plan) const override;
  TransferCost storage(const StorageWork& work) const override;
  const WorkRanges& asked() const { return asked_; }

 private:
  const CostModel& cost_;
  mutable WorkRanges asked_;
};

// A sentence for each lane that was asked beyond what was measured, or of which nothing was.
std::vector<std::string> extrapolations(const WorkRanges& measured, const WorkRanges& asked,
                                        const std::string& machine);

}  // namespace kvtwin

#include "models/calibration_ranges.hpp"

#include <algorithm>

#include "models/config_reader.hpp"
#include "models/json.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

void WorkRanges::widen(const std::string& lane, const std::string& quantity, std::uint64_t value) {
  const auto [at, fresh] = lanes_[lane].try_emplace(quantity, MeasuredRange{value, value});
  if (fresh) return;
  at->second.least = std::min(at->second.least, value);
  at->second.most = std::max(at->second.most, value);
}

void WorkRanges::add(const Plan& plan) {
  const std::string lane(name_of(plan.direction));
  widen(lane, "bytes", plan.bytes);
  widen(lane, "piece_bytes", plan.piece_bytes);
}

void WorkRanges::add(const ForwardShape& shape) {
  if (shape.prefill_tokens != 0) {
    widen("prefill", "tokens", shape.prefill_tokens);
    widen("prefill", "context_tokens", shape.prefill_context_tokens);
  }
  if (shape.decode_sequences != 0) {
    widen("decode", "sequences", shape.decode_sequences);
    widen("decode", "context_tokens", shape.decode_context_tokens / shape.decode_sequences);
  }
}

void WorkRanges::add(const StorageWork& work) {
  if (work.verb == StorageVerb::look_up || work.verb == StorageVerb::remove) return;
  const std::string lane(spec_of(lane_of(work)).name);
  widen(lane, "page_bytes", work.page_bytes);
  widen(lane, "pages", work.pages);
}

WorkRanges measured_ranges(std::string_view hardware_json, const std::string& file) {
  const Json object = parse_object(hardware_json, file);
  WorkRanges ranges;
  const auto calibration = object.find("calibration");
  if (calibration == object.end() || !calibration->is_object() || !calibration->contains("ranges")) return ranges;
  const auto fail = [&](const std::string& place) {
    throw ModelError(file + ": calibration.ranges" + place +
                     " must be an object of lanes, each with quantities that are [least, most] in whole numbers");
  };
  const Json& lanes = calibration->at("ranges");
  if (!lanes.is_object()) fail("");
  for (const auto& [lane, quantities] : lanes.items()) {
    if (!quantities.is_object()) fail("." + lane);
    for (const auto& [quantity, range] : quantities.items()) {
      const bool pair = range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
                        range[1].is_number_unsigned() && range[0] <= range[1];
      if (!pair) fail("." + lane + "." + quantity);
      ranges.set(lane, quantity, {range[0].get<std::uint64_t>(), range[1].get<std::uint64_t>()});
    }
  }
  return ranges;
}

TimeNs RangedCost::forward_ns(const ForwardShape& shape, std::uint64_t steps) const {
  asked_.add(shape);
  return cost_.forward_ns(shape, steps);
}

TimeNs RangedCost::joint_step_ns(std::span<const ForwardShape> groups) const {
  for (const ForwardShape& shape : groups) asked_.add(shape);
  return cost_.joint_step_ns(groups);
}

TransferCost RangedCost::transfer(const Plan& plan) const {
  asked_.add(plan);
  return cost_.transfer(plan);
}

TransferCost RangedCost::storage(const StorageWork& work) const {
  asked_.add(work);
  return cost_.storage(work);
}

std::vector<std::string> extrapolations(const WorkRanges& measured, const WorkRanges& asked,
                                        const std::string& machine) {
  std::vector<std::string> notes;
  const auto text = [](const MeasuredRange& range) {
    return std::to_string(range.least) + (range.least == range.most ? "" : " to " + std::to_string(range.most));
  };
  for (const auto& [lane, quantities] : asked.lanes()) {
    const auto known = measured.lanes().find(lane);
    if (known == measured.lanes().end()) {
      notes.push_back(lane + ": nothing of it was measured in the calibration of " + machine +
                      "; its figures are those of the preset that began it");
      continue;
    }
    std::string beyond;
    for (const auto& [quantity, range] : quantities) {
      const auto of = known->second.find(quantity);
      if (of == known->second.end() || (of->second.has(range.least) && of->second.has(range.most))) continue;
      beyond += (beyond.empty() ? "" : "; ") + quantity + " " + text(range) + ", measured " + text(of->second);
    }
    if (!beyond.empty()) notes.push_back(lane + ": extrapolates the calibration of " + machine + ": " + beyond);
  }
  return notes;
}

}  // namespace kvtwin

// Numbers with a unit and a source, as in hardware files and store files: how a field is declared and read. Private to
// models/*.cpp.
//
//   "memory_bandwidth": {"value": 4.8, "unit": "TB/s", "source": "...", "date": "..."}
//
// Errors: ModelError with file, key and a valid value.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config_reader.hpp"
#include "models/hardware.hpp"
#include "models/json.hpp"
#include "models/names.hpp"

namespace kvtwin {

enum class Dimension : std::uint8_t { bytes, rate, flops, time, fraction, count, frequency };

struct NumberUnit {
  std::string_view name;
  Dimension dimension;
  double factor;
};
constexpr std::array<NumberUnit, 24> kUnits{
    {{"B", Dimension::bytes, 1},          {"KiB", Dimension::bytes, 1024},
     {"MiB", Dimension::bytes, 1048576},  {"GiB", Dimension::bytes, 1073741824},
     {"MB", Dimension::bytes, 1e6},       {"GB", Dimension::bytes, 1e9},
     {"B/s", Dimension::rate, 1},         {"MB/s", Dimension::rate, 1e6},
     {"GB/s", Dimension::rate, 1e9},      {"GiB/s", Dimension::rate, 1073741824},
     {"TB/s", Dimension::rate, 1e12},     {"FLOP/s", Dimension::flops, 1},
     {"GFLOP/s", Dimension::flops, 1e9},  {"TFLOP/s", Dimension::flops, 1e12},
     {"PFLOP/s", Dimension::flops, 1e15}, {"s", Dimension::time, 1},
     {"ms", Dimension::time, 1e-3},       {"us", Dimension::time, 1e-6},
     {"ns", Dimension::time, 1e-9},       {"fraction", Dimension::fraction, 1},
     {"count", Dimension::count, 1},      {"accelerators", Dimension::count, 1},
     {"IOPS", Dimension::frequency, 1},   {"MIOPS", Dimension::frequency, 1e6}}};

// A number of a file, and the member of Spec that it sets, in base units.
template <typename Spec>
struct FieldOf {
  std::string_view key;
  Dimension dimension;
  double Spec::*member;
  double most;  // no machine exceeds this value
  std::string_view most_text;
  bool required = true;  // otherwise 0 means "not present"
};

inline std::string units_of(Dimension dimension) {
  std::string names;
  for (const NumberUnit& unit : kUnits) {
    if (unit.dimension == dimension) names.append(names.empty() ? "" : ", ").append(unit.name);
  }
  return names;
}

inline double factor_of(const ConfigReader& number, Dimension dimension) {
  const std::string name = number.text("unit", "");
  for (const NumberUnit& unit : kUnits) {
    if (unit.name == name && unit.dimension == dimension) return unit.factor;
  }
  number.fail("unit", "one of " + units_of(dimension));
}

// The smallest allowed value. A smaller value would round to 0, because costs are in whole bytes, nanoseconds or
// requests.
struct LowerBound {
  double si;
  std::string_view text;
};
inline LowerBound lower_bound_of(Dimension dimension) {
  switch (dimension) {
    case Dimension::bytes: return {1, "1 B"};
    case Dimension::rate: return {1e3, "1000 B/s"};
    case Dimension::flops: return {1e6, "1000000 FLOP/s"};
    case Dimension::time: return {1e-15, "0.000001 ns"};
    case Dimension::fraction: return {1e-6, "0.000001"};
    case Dimension::count: return {1, "1"};
    case Dimension::frequency: return {1, "1 IOPS"};
  }
  return {0, ""};
}

// Reads one number of a file into the field's member.
template <typename Spec>
HardwareNumber read_number(Spec& spec, const FieldOf<Spec>& field, const Json& object, const std::string& file) {
  const ConfigReader number(object, file + ": " + std::string(field.key));
  number.only({"value", "unit", "source", "date", "low", "high"});
  const Json* value = number.find("value");
  if (value == nullptr || !value->is_number()) number.fail("value", "a number");
  const double si = value->get<double>() * factor_of(number, field.dimension);
  const LowerBound lower = lower_bound_of(field.dimension);
  const std::string at_least = "at least " + std::string(lower.text);
  // This form also fails for NaN.
  if (!(si >= lower.si)) {
    number.fail("value", at_least + "; leave the key out where the machine has no such thing");
  }
  if (!(si <= field.most)) {
    number.fail("value", "at most " + std::string(field.most_text) + ", which no machine of today exceeds");
  }
  spec.*field.member = si;
  HardwareNumber read{std::string(field.key),      value->dump(),          number.text("unit", ""), 0, 0,
                      number.text("source", file), number.text("date", "")};
  const Json *const low = number.find("low"), *const high = number.find("high");
  if (low == nullptr && high == nullptr) return read;
  const double factor = factor_of(number, field.dimension);
  if (low == nullptr || !low->is_number() ||
      !(low->get<double>() * factor >= lower.si && low->get<double>() <= value->get<double>())) {
    number.fail("low", "a number of " + at_least + " and at most the value, as there is a high");
  }
  if (high == nullptr || !high->is_number() ||
      !(high->get<double>() >= value->get<double>() && high->get<double>() < 1e300)) {
    number.fail("high", "a number of at least the value, as there is a low");
  }
  read.low = low->get<double>();
  read.high = high->get<double>();
  return read;
}

template <typename Spec>
const FieldOf<Spec>& find_field(std::span<const FieldOf<Spec>> known, const std::string& key, const std::string& file) {
  for (const FieldOf<Spec>& field : known) {
    if (field.key == key) return field;
  }
  std::vector<std::string> names;
  for (const FieldOf<Spec>& field : known) names.emplace_back(field.key);
  throw ModelError(file + ": " + unknown_name("number", key, names));
}

}  // namespace kvtwin

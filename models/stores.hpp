// The figures of a remote store (Redis, Mooncake Store, S3, files by NIXL): what its look-ups, gets and sets take
// beyond the machine's network. From a preset (models/presets/stores), or from a JSON file of this form:
//
//   {"description": "...", "evicts": true, "numbers": {"get_call": {"value": 200, "unit": "us",
//   "source": "...", "date": "..."}, ...}}
//
// `evicts`: a full store drops the least recently used page; otherwise it
// refuses new pages. kvtwin calibrate --remote writes such a file (models/store_fit.hpp).
//
// Errors: ModelError, as for hardware files (models/hardware.hpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/hardware.hpp"

namespace kvtwin {

struct StoreSpec {
  std::string name;  // preset name or file
  std::string description;
  bool evicts = true;
  std::vector<HardwareNumber> numbers;  // in the order of the file
  StoreFigures figures;
};

StoreSpec parse_store(std::string_view json, const std::string& file);
StoreSpec store_from_file(const std::string& path);
StoreSpec store_preset(std::string_view name);

}  // namespace kvtwin

// The models, machines, remote stores and operator tables known by name. Their files (models/presets) are compiled in,
// so the program needs no install path. Model files have the keys of a Hugging Face config.json. Each number of a
// hardware or store file has a unit, a source and a date. An operator table names its source.
//
// Errors: ModelError with the known names and the nearest one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"

namespace kvtwin {

std::vector<std::string> model_preset_names();      // sorted
std::vector<std::string> hardware_preset_names();   // sorted, without aliases
std::vector<std::string> store_preset_names();      // sorted
std::vector<std::string> operators_preset_names();  // sorted; for example "h100-sxm/sglang"

// Returns the preset that an alias names, for example "h100-sxm" for "h100-pcie5". All other names are returned as they
// are.
std::string_view hardware_preset_name(std::string_view name);
// Returns a GPU's name as presets write it: operator tables have "h100_sxm" for h100-sxm, and files may have an alias.
std::string gpu_name(std::string_view name);

std::string_view model_preset_text(std::string_view name);
std::string_view hardware_preset_text(std::string_view name);  // also by alias
std::string_view store_preset_text(std::string_view name);
std::string_view operators_preset_bytes(std::string_view name);  // compressed
std::string_view prices_preset_text();                           // lab/prices/price_list.hpp
std::string_view errors_preset_text();                           // lab/plan/confidence.hpp

// One number of one preset, for `kvtwin presets`.
struct PresetRow {
  std::string kind;    // "model", "hardware", "store" or "operators"
  std::string preset;  // its name
  std::string number;  // name of the number, for example "memory_bandwidth"
  std::string value;   // as written; integers in full
  std::string unit;
  std::string source;
  std::string date;
};

// Returns the rows, sorted by kind (models, hardware, stores, operators) and preset.
std::vector<PresetRow> preset_rows();

}  // namespace kvtwin

// The contents of the preset files (of operators: bytes), sorted by name. models/CMakeLists.txt generates the
// definitions. Private to models/presets.cpp.
#pragma once

#include <string_view>
#include <vector>

namespace kvtwin {

struct PresetFile {
  std::string_view name;
  std::string_view text;
};

const std::vector<PresetFile>& models_preset_files();
const std::vector<PresetFile>& hardware_preset_files();
const std::vector<PresetFile>& stores_preset_files();
const std::vector<PresetFile>& operators_preset_files();
const std::vector<PresetFile>& prices_preset_files();
const std::vector<PresetFile>& errors_preset_files();

}  // namespace kvtwin

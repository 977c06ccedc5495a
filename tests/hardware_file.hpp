// Writes a hardware file: a preset machine with some numbers changed, for the key `hardware.file`.
#pragma once

#include <functional>
#include <string>

#include "tests/paths.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {

// Multiplies every number of the preset by `factor(key, unit)`. The file names no GPU, so that no table of operators
// takes the place of its figures. Returns the setting that names the file.
inline std::string hardware_setting(const Folder& folder, const std::string& preset, const std::string& name,
                                    const std::function<double(const std::string&, const std::string&)>& factor) {
  Json machine = Json::parse(text_of(fs::path(kSourceFolder) / "models/presets/hardware" / (preset + ".json")));
  machine.erase("gpu");
  for (auto& [key, number] : machine.at("numbers").items()) {
    const double by = factor(key, number.at("unit").get<std::string>());
    if (by != 1.0) number["value"] = number.at("value").get<double>() * by;
  }
  write_text(folder / name, machine.dump());
  return "hardware.file=" + (folder / name);
}

}  // namespace kvtwin::test

// An experiment of an empty file, or of a file's text, with settings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/experiment.hpp"

namespace kvtwin::test {

inline Experiment with_settings(const std::vector<std::string>& settings, std::string_view file = "") {
  Experiment experiment = Experiment::from_text(file, "x.toml");
  for (const std::string& one : settings) experiment.set(one);
  return experiment;
}

}  // namespace kvtwin::test

// The input is an experiment file, followed by one text per option: for --set, or for --from-sglang-flags if it starts
// with '-', or for --from-sglang-server-info if it starts with '{'. A zero byte separates these parts. Any input must
// give an experiment or an InputError, and the resolved form of an experiment must read back as the same experiment.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/sglang/sglang_flags.hpp"

namespace {

// Compares the values only: the comments of the resolved form, which name the origin of each value, differ.
bool equal_values(const kvtwin::Experiment& a, const kvtwin::Experiment& b) {
  for (const kvtwin::ExperimentKey& key : kvtwin::experiment_keys()) {
    switch (key.fallback.index()) {
      case 0:
        // Paths become absolute.
        if (a.path(key.name).is_absolute() == b.path(key.name).is_absolute() && a.text(key.name) != b.text(key.name))
          return false;
        break;
      case 1:
        if (a.integer(key.name) != b.integer(key.name)) return false;
        break;
      case 2:
        if (a.number(key.name) != b.number(key.name)) return false;
        break;
      default:
        if (a.flag(key.name) != b.flag(key.name)) return false;
    }
  }
  return true;
}

std::string_view take_part(std::string_view& rest) {
  const std::size_t end = rest.find('\0');
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::optional<kvtwin::Experiment> experiment;
  try {
    experiment = kvtwin::Experiment::from_text(take_part(rest), "experiment");
    while (!rest.empty()) {
      const std::string_view part = take_part(rest);
      if (part.starts_with('-')) {
        kvtwin::apply_sglang_flags(*experiment, part);
      } else if (part.starts_with('{')) {
        kvtwin::apply_sglang_server_info_text(*experiment, part, "info");
      } else {
        experiment->set(part);
      }
    }
  } catch (const kvtwin::InputError&) {
    return 0;
  }
  // Outside of the try block, because this must not fail.
  const kvtwin::Experiment again = kvtwin::Experiment::from_text(experiment->resolved(), "resolved");
  if (!equal_values(*experiment, again)) std::abort();
  return 0;
}

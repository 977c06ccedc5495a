#include "lab/experiment/trace_format.hpp"

#include <vector>

#include "lab/error.hpp"
#include "models/names.hpp"

namespace kvtwin {

TraceFormat trace_format_named(std::string_view name, const std::string& where) {
  std::vector<std::string> names;
  for (const std::string_view known : trace_format_names()) {
    if (known == name) return static_cast<TraceFormat>(names.size());
    names.emplace_back(known);
  }
  throw InputError(where + ": " + unknown_name("format", std::string(name), names));
}

}  // namespace kvtwin

// A trace format by its name.
#pragma once

#include <string>
#include <string_view>

#include "traces/trace.hpp"

namespace kvtwin {

// By its name, which stands at `where`; InputError.
TraceFormat trace_format_named(std::string_view name, const std::string& where);

}  // namespace kvtwin

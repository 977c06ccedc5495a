// Named workloads: figures of workload.generate.* (kind = sessions) for common kinds of traffic, each with its source.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvtwin {

struct WorkloadFigure {
  std::string_view key, value;  // of workload.generate
  std::string_view source;      // begins with "assumed" where nobody published a figure
};

struct NamedWorkload {
  std::string_view name, help;
  std::span<const WorkloadFigure> figures;
};

// The workload whose figures a closed loop of users has where neither an option nor a name gives them.
inline constexpr std::string_view kDefaultWorkload = "coding-agent";

std::span<const NamedWorkload> named_workloads();
// Errors: InputError for an unknown name.
const NamedWorkload& named_workload(const std::string& name);

}  // namespace kvtwin

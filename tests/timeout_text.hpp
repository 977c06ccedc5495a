// The text of the termination policy `timeout` with its parameters in nanoseconds.
#pragma once

#include <string>

#include "policy/base/types.hpp"

namespace kvtwin::test {

inline std::string timeout_text(TimeNs base, TimeNs per_ki_token = kNsPerSecond / 4, TimeNs most = 0) {
  return "timeout(base=" + std::to_string(base) + "ns, per_ki_token=" + std::to_string(per_ki_token) +
         "ns, most=" + std::to_string(most) + "ns)";
}

}  // namespace kvtwin::test

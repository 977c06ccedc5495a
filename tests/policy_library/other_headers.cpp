// A library as another version of kvtwin would make it.
#include "policy/policy_library.hpp"

namespace kvtwin {
std::unique_ptr<EvictionPolicy> make_other_headers(const EvictionSetup&) { return nullptr; }
}  // namespace kvtwin
KVTWIN_POLICY_LIBRARY(other_headers, "0123456789ab")

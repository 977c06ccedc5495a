// Loads eviction policies from shared libraries (policy/policy_library.hpp).
#pragma once

namespace kvtwin {

// From now on, make_eviction() and facts_of_policy() take paths of policy libraries. Calling it again changes nothing.
// A loaded library stays loaded until the process ends. Thread: any.
void install_policy_loader();

}  // namespace kvtwin

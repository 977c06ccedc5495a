// All that depends on SimGrid's version (3.32 here; newer option names are handled): the solver's
// declarations, the exact options, and a silent engine. Included by simgrid_world.cpp only.
#pragma once
#if __has_include(<simgrid/forward.h>)  // else the build has no SimGrid world
#include <simgrid/forward.h>

#include <cstddef>
#include <memory>
#include <simgrid/kernel/resource/Action.hpp>
#include <simgrid/kernel/resource/Model.hpp>
#include <string_view>

// The max-min solver is exported by libsimgrid but its header is not installed. These are its non-virtual
// members that we call, by pointer only, so that no layout is assumed; a mismatch is a link error, which
// CMake looks for (see sim/CMakeLists.txt).
namespace simgrid::kernel::lmm {
class System {
 public:
  static System* build(std::string_view solver, bool selective_update);
  Constraint* constraint_new(resource::Resource* id, double bound);
  Variable* variable_new(resource::Action* id, double penalty, double bound, std::size_t max_constraints);
  void expand(Constraint* constraint, Variable* variable, double weight, bool force);
};
}  // namespace simgrid::kernel::lmm

namespace kvtwin::simgrid_compat {

// Makes the process's one engine, silent and with every approximation off, and registers `model` before all
// others, so that it is asked first for its next event.
void start_engine(const std::shared_ptr<simgrid::kernel::resource::Model>& model);

// Returns when no model has an event left.
void run_engine();

}  // namespace kvtwin::simgrid_compat
#endif

// All code that depends on SimGrid's version (3.32; newer option names are handled): the declarations of the solver,
// the exact options, and a silent engine. Only simgrid_world.cpp includes this file.
#pragma once
#if __has_include(<simgrid/forward.h>)  // otherwise the build has no SimGrid world
#include <simgrid/forward.h>

#include <cstddef>
#include <memory>
#include <simgrid/kernel/resource/Action.hpp>
#include <simgrid/kernel/resource/Model.hpp>
#include <string_view>

// libsimgrid exports the max-min solver, but its header is not installed. These are the non-virtual members that kvtwin
// calls. kvtwin holds pointers only, so the declaration assumes no layout. A mismatch is a link error, which CMake
// looks for (see sim/CMakeLists.txt).
namespace simgrid::kernel::lmm {
class System {
 public:
  static System* build(std::string_view solver, bool selective_update);
  Constraint* constraint_new(resource::Resource* id, double bound);
  void update_constraint_bound(Constraint* constraint, double bound);
  Variable* variable_new(resource::Action* id, double penalty, double bound, std::size_t max_constraints);
  void expand(Constraint* constraint, Variable* variable, double weight, bool force);
};
}  // namespace simgrid::kernel::lmm

namespace kvtwin::simgrid_compat {

// Creates the one engine of the process: silent, and with every approximation off. Registers `model` before all other
// models, so that SimGrid asks `model` first for its next event.
void start_engine(const std::shared_ptr<simgrid::kernel::resource::Model>& model);

// Returns when no model has an event.
void run_engine();

}  // namespace kvtwin::simgrid_compat
#endif

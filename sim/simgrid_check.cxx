// CMake compiles and links this file, to find out whether SimGrid exports the solver that simgrid_compat.hpp declares.
#include "sim/simgrid_compat.hpp"

int main(int argc, char**) {
  using simgrid::kernel::lmm::System;
  System* system = argc > 1 ? System::build("maxmin", true) : nullptr;
  if (system == nullptr) return 0;
  auto* variable = system->variable_new(nullptr, 1.0, -1.0, 1);
  auto* constraint = system->constraint_new(nullptr, 1.0);
  system->expand(constraint, variable, 1.0, false);
  system->update_constraint_bound(constraint, 2.0);
  return 0;
}

// The parts of the module kvtwin._core; each adds its classes and functions.
#pragma once

#include <nanobind/nanobind.h>

namespace kvtwin::python {

void add_store(nanobind::module_& module);
void add_lab(nanobind::module_& module);

}  // namespace kvtwin::python

// The parts of the module kvtwin._core; each adds its classes and functions.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace kvtwin::python {

void add_store(nanobind::module_& module);
void add_traces(nanobind::module_& module);
void add_policy(nanobind::module_& module);

// Raises an exception of kvtwin.errors, for example raise("InputError", "...").
[[noreturn]] void raise(const char* name, const std::string& sentence);

}  // namespace kvtwin::python

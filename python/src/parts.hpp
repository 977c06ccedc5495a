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

// Returns the text for the C interface, where a text ends at its first zero byte. Raises InputError if the text has
// such a byte: two names that differ behind it would be one. `name`: of the argument. Valid as long as `text`.
const char* c_text(const std::string& text, const char* name);

}  // namespace kvtwin::python

// The module kvtwin._core of the Python package. The package's Python code checks arguments and has the documentation.
#include "kvtwin/base.h"
#include "python/src/parts.hpp"

namespace kvtwin::python {

void raise(const char* name, const std::string& sentence) {
  const nanobind::object type = nanobind::module_::import_("kvtwin.errors").attr(name);
  PyErr_SetString(type.ptr(), sentence.c_str());
  throw nanobind::python_error();
}

const char* c_text(const std::string& text, const char* name) {
  if (text.find('\0') != std::string::npos) {
    raise("InputError", std::string(name) + " contains a zero byte (\\0), which no name may have; leave it out");
  }
  return text.c_str();
}

}  // namespace kvtwin::python

NB_MODULE(_core, module) {
  module.attr("__version__") = kvtwin_version();
  kvtwin::python::add_store(module);
  kvtwin::python::add_traces(module);
  kvtwin::python::add_policy(module);
}

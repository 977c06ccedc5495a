#include "kvtwin/base.h"
#include "python/src/parts.hpp"

NB_MODULE(_core, module) {
  module.attr("__version__") = kvtwin_version();
  kvtwin::python::add_store(module);
  kvtwin::python::add_lab(module);
}

// The stand-in for NIXL's library, loaded once.
#pragma once

#include <string>

#include "impl/runtime/shared_library.hpp"
#include "tests/nixl_stand_in/nixl_stand_in.hpp"
#include "tests/paths.hpp"

namespace kvtwin::test {

inline std::string nixl_stand_in_library() { return built("libnixl_stand_in.so"); }

inline NixlStandIn& nixl() {
  static const SharedLibrary library("the stand-in", {nixl_stand_in_library()}, "build it");
  static NixlStandIn& one = *library.find<NixlStandIn*>("kvtwin_nixl_stand_in");
  return one;
}

}  // namespace kvtwin::test

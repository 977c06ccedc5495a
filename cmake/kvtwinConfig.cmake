# find_package(kvtwin) gives kvtwin::policy; include its headers as "policy/engine.hpp".
include(CMakeFindDependencyMacro)
find_dependency(OpenSSL COMPONENTS Crypto)
find_dependency(PkgConfig)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
include(${CMAKE_CURRENT_LIST_DIR}/kvtwinTargets.cmake)

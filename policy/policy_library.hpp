// Eviction policies in shared libraries, which are no part of the program. A policy file (policy/eviction.hpp) becomes
// NAME.so with the CMake function kvtwin_add_policy (docs/policies.md). Wherever a user writes the name of an eviction
// policy, the path of such a file is a name too: "build/role_age.so(system=3)".
//
// The library has one symbol, kvtwin_policy_library: a table in C. The program reads the table before it calls
// anything, and refuses a library that was built against other headers or another C++ library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "policy/eviction.hpp"

namespace kvtwin {

using MakeEviction = std::unique_ptr<EvictionPolicy>(const EvictionSetup&);

// What the layout of the classes depends on, besides the headers.
#if defined(_LIBCPP_VERSION)
#define KVTWIN_CXX_LIBRARY "libc++"
#elif defined(_GLIBCXX_DEBUG)
#define KVTWIN_CXX_LIBRARY "libstdc++ with _GLIBCXX_DEBUG"
#elif defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#define KVTWIN_CXX_LIBRARY "libstdc++ with its old ABI"
#else
#define KVTWIN_CXX_LIBRARY "libstdc++"
#endif

struct PolicyLibraryTable {
  std::uint32_t struct_size;
  const char* interface_id;  // hash of the headers that the classes are in (cmake/PolicyLibrary.cmake)
  const char* cxx_library;   // KVTWIN_CXX_LIBRARY
  MakeEviction* make;
};

// A name is the path of a policy library if it ends with ".so".
constexpr bool is_policy_library(std::string_view name) { return name.ends_with(".so"); }

struct LoadedEviction {
  MakeEviction* make = nullptr;
  std::string error;  // one sentence, if `make` is null
};
// Loads a policy library. Loading the same file again returns the same function.
using EvictionLoader = LoadedEviction (*)(std::string_view path);
// The program installs a loader, because the policy does no I/O. Without one, no library is loaded.
// Thread: before any thread makes a policy.
void set_eviction_loader(EvictionLoader loader);

}  // namespace kvtwin

// Defines the table of the library of the policy `name`. kvtwin_add_policy writes it.
#define KVTWIN_POLICY_LIBRARY(name, id)                                                                     \
  namespace kvtwin {                                                                                        \
  MakeEviction make_##name;                                                                                 \
  }                                                                                                         \
  extern "C" __attribute__((visibility("default"))) const kvtwin::PolicyLibraryTable kvtwin_policy_library; \
  const kvtwin::PolicyLibraryTable kvtwin_policy_library = {sizeof(kvtwin::PolicyLibraryTable), id,         \
                                                            KVTWIN_CXX_LIBRARY, kvtwin::make_##name};

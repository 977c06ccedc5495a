// Mooncake Store's client as a table of functions, found at run time. Either a library with Mooncake's C interface
// (store_c.h; only builds from source have one), or Mooncake's Python package. For the package, kvtwin uses the Python
// interpreter that runs in this process; if there is none, kvtwin starts one and keeps it until the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "policy/base/types.hpp"

namespace kvtwin {

// The functions have the arguments and results of Mooncake's C interface: 0 or a count is success, a negative number is
// Mooncake's error code. Thread: any thread. The functions of the Python package wait for the interpreter's lock.
struct MooncakeFunctions {
  using Store = void*;
  Store (*create)() = nullptr;
  void (*destroy)(Store) = nullptr;
  int (*setup)(Store, const char* local_host, const char* metadata_server, std::uint64_t segment_bytes,
               std::uint64_t buffer_bytes, const char* protocol, const char* device,
               const char* master_address) = nullptr;
  int (*register_buffer)(Store, void* buffer, std::size_t bytes) = nullptr;
  int (*unregister_buffer)(Store, void* buffer) = nullptr;
  int (*batch_is_exist)(Store, const char** keys, std::size_t count, int* results) = nullptr;
  int (*batch_put_from)(Store, const char** keys, void** buffers, const std::size_t* bytes, std::size_t count,
                        const void* replicas, int* results) = nullptr;
  int (*batch_get_into)(Store, const char** keys, void** buffers, const std::size_t* bytes, std::size_t count,
                        std::int64_t* results) = nullptr;
  std::int64_t (*get_size)(Store, const char* key) = nullptr;
  int (*remove)(Store, const char* key, int force) = nullptr;
};

// Returns the functions of `place`: a file (the C interface), or a folder that has the Python package `mooncake`
// (site-packages). Empty: the package of the running interpreter, or libmooncake_store.so. Valid until the process
// ends. Thread: any thread. Errors: std::runtime_error, one sentence that says what would help.
MooncakeFunctions load_mooncake(const std::string& place, TimeNs timeout);

}  // namespace kvtwin

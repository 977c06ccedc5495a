// The environment variables that the libraries of remote stores read.
#pragma once

#include <string>

#include "policy/base/types.hpp"

namespace kvtwin {

// Sets the variables for Mooncake's library. Variables that the user has set stay as they are.
//   MC_RPC_TIMEOUT_MS, MC_RPC_CONNECT_TIMEOUT_MS  from `timeout`
//   MC_STORE_CLIENT_SETUP_RETRIES                 1; kvtwin itself tries again
//   MC_LOG_LEVEL                                  ERROR: no messages about each client
// Call before the library is loaded. Thread: no other thread reads the environment at this time.
void set_mooncake_variables(TimeNs timeout);

// The same for NIXL's library.
//   NIXL_PLUGIN_DIR  `plugins`: the folder with NIXL's plugins
//   NIXL_LOG_LEVEL   FATAL: a missing object is an error for NIXL
void set_nixl_variables(const std::string& plugins);

// The same for UCX, which NIXL's plugin UCX uses. Call before the first agent is made.
//   UCX_TLS            `transports`, unless empty: the transports that UCX may use
//   UCX_LOG_LEVEL      FATAL: a peer that is gone is an error for UCX
//   UCX_HANDLE_ERRORS  none: UCX leaves the signals of a crash alone
//   UCX_MODULES        ^efa: without Amazon's EFA, whose libefa loads the system's libnl and libibverbs beside those of
//                      NIXL's wheel; with both, the process crashes at its end
void set_ucx_variables(const std::string& transports);

}  // namespace kvtwin

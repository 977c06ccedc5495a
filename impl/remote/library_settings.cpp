#include "impl/remote/library_settings.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace kvtwin {
namespace {

void set_if_absent(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 0); }

}  // namespace

void set_mooncake_variables(TimeNs timeout) {
  const std::string milliseconds = std::to_string(std::max<TimeNs>(timeout / 1'000'000, 1));
  set_if_absent("MC_RPC_TIMEOUT_MS", milliseconds);
  set_if_absent("MC_RPC_CONNECT_TIMEOUT_MS", milliseconds);
  set_if_absent("MC_STORE_CLIENT_SETUP_RETRIES", "1");
  set_if_absent("MC_LOG_LEVEL", "ERROR");
}

void set_nixl_variables(const std::string& plugins) {
  set_if_absent("NIXL_PLUGIN_DIR", plugins);
  set_if_absent("NIXL_LOG_LEVEL", "FATAL");
}

void set_ucx_variables(const std::string& transports) {
  if (!transports.empty()) set_if_absent("UCX_TLS", transports);
  set_if_absent("UCX_LOG_LEVEL", "FATAL");
  set_if_absent("UCX_HANDLE_ERRORS", "none");
  set_if_absent("UCX_MODULES", "^efa");
}

}  // namespace kvtwin

// NVIDIA's NIXL as a table of functions, found at run time in libnixl_capi.so, and the calls that delete objects of S3,
// which NIXL lacks, found in libcurl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvtwin {

// The functions of NIXL's C interface that kvtwin calls. Handles are opaque. A result of 0 is success, 1 is "in
// progress", a negative number is an error. Thread: see NIXL; an agent with thread_sync = kNixlStrict may be used by
// any thread.
struct NixlFunctions {
  using Handle = void*;
  struct AgentConfig {
    bool progress_thread = false, listen_thread = false;
    int listen_port = 0;
    int thread_sync = 0;
    unsigned workers = 0;
    std::uint64_t progress_delay_us = 0, listen_delay_us = 0;
    bool telemetry = false;
  };

  int (*create_configured_agent)(const char* name, const AgentConfig*, Handle* agent) = nullptr;
  int (*destroy_agent)(Handle agent) = nullptr;
  int (*get_plugin_params)(Handle agent, const char* plugin, Handle* memories, Handle* params) = nullptr;
  int (*destroy_mem_list)(Handle memories) = nullptr;
  int (*params_add)(Handle params, const char* key, const char* value) = nullptr;
  int (*destroy_params)(Handle params) = nullptr;
  int (*create_backend)(Handle agent, const char* plugin, Handle params, Handle* backend) = nullptr;
  int (*destroy_backend)(Handle backend) = nullptr;
  int (*create_opt_args)(Handle* arguments) = nullptr;
  int (*opt_args_add_backend)(Handle arguments, Handle backend) = nullptr;
  int (*destroy_opt_args)(Handle arguments) = nullptr;
  int (*create_reg_dlist)(int memory, Handle* list) = nullptr;
  int (*reg_dlist_add_desc)(Handle list, std::uintptr_t address, std::size_t bytes, std::uint64_t device,
                            const void* text, std::size_t text_bytes) = nullptr;
  int (*destroy_reg_dlist)(Handle list) = nullptr;
  int (*register_mem)(Handle agent, Handle list, Handle arguments) = nullptr;
  int (*deregister_mem)(Handle agent, Handle list, Handle arguments) = nullptr;
  int (*create_xfer_dlist)(int memory, Handle* list) = nullptr;
  int (*xfer_dlist_add_desc)(Handle list, std::uintptr_t address, std::size_t bytes, std::uint64_t device) = nullptr;
  int (*destroy_xfer_dlist)(Handle list) = nullptr;
  int (*create_xfer_req)(Handle agent, int operation, Handle local, Handle remote, const char* remote_agent,
                         Handle* request, Handle arguments) = nullptr;
  int (*post_xfer_req)(Handle agent, Handle request, Handle arguments) = nullptr;
  int (*get_xfer_status)(Handle agent, Handle request) = nullptr;
  int (*release_xfer_req)(Handle agent, Handle request) = nullptr;
  int (*destroy_xfer_req)(Handle request) = nullptr;
  int (*create_query_resp_list)(Handle* list) = nullptr;
  int (*query_resp_list_has_value)(Handle list, std::size_t index, bool* has_value) = nullptr;
  int (*destroy_query_resp_list)(Handle list) = nullptr;
  int (*query_mem)(Handle agent, Handle descriptions, Handle answers, Handle arguments) = nullptr;
  // The caller frees the bytes, and the name, by free().
  int (*get_local_md)(Handle agent, void** description, std::size_t* bytes) = nullptr;
  int (*load_remote_md)(Handle agent, const void* description, std::size_t bytes, char** name) = nullptr;
};
constexpr int kNixlStrict = 1;                                // of AgentConfig::thread_sync
constexpr int kNixlDram = 0, kNixlObject = 3, kNixlFile = 4;  // kinds of memory
constexpr int kNixlRead = 0, kNixlWrite = 1, kNixlInProgress = 1;

// `place`: the file libnixl_capi.so, or a folder that has NIXL's Python package (site-packages); empty: the system's
// libnixl_capi.so. Sets NIXL_PLUGIN_DIR if the plugins lie beside the library. Valid until the process ends.
// Thread: any thread. Errors: std::runtime_error, one sentence that says what would help.
NixlFunctions load_nixl(const std::string& place);

// An account of an S3 server.
struct S3Account {
  std::string endpoint, bucket, region, access_key, secret_key;
};
// Sends a request without a body for an object, or for the bucket (no name), by libcurl: "DELETE", "GET", "PUT".
// Returns HTTP's status, or 0 if there is no answer within `timeout_ms`. Errors: std::runtime_error if libcurl cannot
// be loaded.
long request_s3(const S3Account& account, const std::string& method, const std::string& name, long timeout_ms);

}  // namespace kvtwin

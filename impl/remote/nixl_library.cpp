#include "impl/remote/nixl_library.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <type_traits>

#include "impl/remote/library_settings.hpp"
#include "impl/runtime/shared_library.hpp"

namespace kvtwin {
namespace {

constexpr const char* kNixlAdvice =
    "install NIXL (pip install --no-deps nixl-cu12) and give the folder of the Python packages (site-packages), or the "
    "file libnixl_capi.so, as library=... in the URL of a tier, or as real.nixl_library for hand-overs";

// Returns the library of a Python package: .nixl_cu12.mesonpy.libs/libnixl_capi.so, with any number behind cu.
std::filesystem::path library_in(const std::filesystem::path& packages) {
  for (const auto& entry : std::filesystem::directory_iterator(packages)) {
    const std::string name = entry.path().filename().string();
    const std::filesystem::path file = entry.path() / "libnixl_capi.so";
    if (name.starts_with(".nixl") && std::filesystem::exists(file)) return file;
  }
  throw std::runtime_error("There is no NIXL in " + packages.string() + "; " + kNixlAdvice + ".");
}

NixlFunctions functions_of_nixl(const std::string& place) {
  const std::filesystem::path file = place.empty()                          ? "libnixl_capi.so"
                                     : std::filesystem::is_directory(place) ? library_in(place)
                                                                            : std::filesystem::path(place);
  const std::filesystem::path plugins = file.parent_path() / "plugins";
  if (file.has_parent_path() && std::filesystem::is_directory(plugins)) set_nixl_variables(plugins.string());
  const SharedLibrary library("NIXL", {file.string()}, kNixlAdvice);
  NixlFunctions functions;
  const auto find = [&library](auto& function, const std::string& name) {
    function = library.find<std::remove_reference_t<decltype(function)>>(("nixl_capi_" + name).c_str());
  };
  find(functions.create_configured_agent, "create_configured_agent");
  find(functions.destroy_agent, "destroy_agent");
  find(functions.get_plugin_params, "get_plugin_params");
  find(functions.destroy_mem_list, "destroy_mem_list");
  find(functions.params_add, "params_add");
  find(functions.destroy_params, "destroy_params");
  find(functions.create_backend, "create_backend");
  find(functions.destroy_backend, "destroy_backend");
  find(functions.create_opt_args, "create_opt_args");
  find(functions.opt_args_add_backend, "opt_args_add_backend");
  find(functions.destroy_opt_args, "destroy_opt_args");
  find(functions.create_reg_dlist, "create_reg_dlist");
  find(functions.reg_dlist_add_desc, "reg_dlist_add_desc");
  find(functions.destroy_reg_dlist, "destroy_reg_dlist");
  find(functions.register_mem, "register_mem");
  find(functions.deregister_mem, "deregister_mem");
  find(functions.create_xfer_dlist, "create_xfer_dlist");
  find(functions.xfer_dlist_add_desc, "xfer_dlist_add_desc");
  find(functions.destroy_xfer_dlist, "destroy_xfer_dlist");
  find(functions.create_xfer_req, "create_xfer_req");
  find(functions.post_xfer_req, "post_xfer_req");
  find(functions.get_xfer_status, "get_xfer_status");
  find(functions.release_xfer_req, "release_xfer_req");
  find(functions.destroy_xfer_req, "destroy_xfer_req");
  find(functions.create_query_resp_list, "create_query_resp_list");
  find(functions.query_resp_list_has_value, "query_resp_list_has_value");
  find(functions.destroy_query_resp_list, "destroy_query_resp_list");
  find(functions.query_mem, "query_mem");
  find(functions.get_local_md, "get_local_md");
  find(functions.load_remote_md, "load_remote_md");
  return functions;
}

// The part of libcurl that signs and sends a request. The numbers are those of curl/curl.h, which never change.
struct Curl {
  enum Option : int {
    kUrl = 10002,
    kUserPassword = 10005,
    kCustomRequest = 10036,
    kWriteFunction = 20011,
    kNoSignal = 99,
    kTimeoutMs = 155,
    kAwsSigV4 = 10305
  };
  static constexpr int kResponseCode = 0x200002;

  Curl() : library("libcurl", {"libcurl.so.4"}, "install it (Debian: apt-get install libcurl4)") {
    create = library.find<void* (*)()>("curl_easy_init");
    set = library.find<int (*)(void*, int, ...)>("curl_easy_setopt");
    perform = library.find<int (*)(void*)>("curl_easy_perform");
    get = library.find<int (*)(void*, int, ...)>("curl_easy_getinfo");
    destroy = library.find<void (*)(void*)>("curl_easy_cleanup");
  }
  const SharedLibrary library;
  void* (*create)();
  int (*set)(void*, int, ...);
  int (*perform)(void*);
  int (*get)(void*, int, ...);
  void (*destroy)(void*);
};

std::size_t ignore_answer(char*, std::size_t size, std::size_t count, void*) { return size * count; }

}  // namespace

NixlFunctions load_nixl(const std::string& place) {
  static std::mutex mutex;
  static std::map<std::string, NixlFunctions> loaded;
  const std::lock_guard lock(mutex);
  const auto found = loaded.find(place);
  return found == loaded.end() ? loaded[place] = functions_of_nixl(place) : found->second;
}

long request_s3(const S3Account& account, const std::string& method, const std::string& name, long timeout_ms) {
  static const Curl& curl = *new Curl;  // never unloaded: late calls may outlive main()
  const std::unique_ptr<void, void (*)(void*)> request(curl.create(), curl.destroy);
  if (!request) return 0;
  // The signature is that of the encoded path; names of pages have one character to encode.
  std::string url = account.endpoint + "/" + account.bucket + (name.empty() ? "" : "/");
  for (const char character : name) url += character == ':' ? "%3A" : std::string(1, character);
  const std::string user = account.access_key + ":" + account.secret_key;
  const std::string signature = "aws:amz:" + account.region + ":s3";
  curl.set(request.get(), Curl::kUrl, url.c_str());
  curl.set(request.get(), Curl::kUserPassword, user.c_str());
  curl.set(request.get(), Curl::kAwsSigV4, signature.c_str());
  curl.set(request.get(), Curl::kCustomRequest, method.c_str());
  curl.set(request.get(), Curl::kWriteFunction, ignore_answer);
  curl.set(request.get(), Curl::kNoSignal, 1L);
  curl.set(request.get(), Curl::kTimeoutMs, timeout_ms);
  long status = 0;
  if (curl.perform(request.get()) != 0 || curl.get(request.get(), Curl::kResponseCode, &status) != 0) return 0;
  return status;
}

}  // namespace kvtwin

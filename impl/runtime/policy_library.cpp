#include "impl/runtime/policy_library.hpp"

#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>

#include "impl/runtime/shared_library.hpp"
#include "policy/policy_library.hpp"

namespace kvtwin {
namespace {

constexpr const char* kAdvice = "docs/policies.md says how a policy library is built";

LoadedEviction failed(const std::string& path, const std::string& what) { return {nullptr, path + ": " + what}; }

LoadedEviction read_table(const std::string& path, const SharedLibrary& library) {
  const auto* const table = library.find_optional<const PolicyLibraryTable*>("kvtwin_policy_library");
  if (table == nullptr)
    return failed(path, std::string("is no policy library: it has no kvtwin_policy_library; ") + kAdvice);
  if (table->struct_size < sizeof(PolicyLibraryTable))
    return failed(path, "was built for another kvtwin; build it again");
  if (std::string_view(table->interface_id) != KVTWIN_POLICY_INTERFACE) {
    return failed(path, std::string("was built for another kvtwin: its policy headers are ") + table->interface_id +
                            ", those of this program " + KVTWIN_POLICY_INTERFACE +
                            "; build it again with the headers of this kvtwin");
  }
  if (std::string_view(table->cxx_library) != KVTWIN_CXX_LIBRARY) {
    return failed(path, std::string("was built with ") + table->cxx_library + ", and this program with " +
                            KVTWIN_CXX_LIBRARY + "; build it with the same C++ library");
  }
  return {table->make, ""};
}

LoadedEviction load(std::string_view text) {
  static std::mutex mutex;
  static std::map<std::string, LoadedEviction, std::less<>> loaded;
  const std::lock_guard lock(mutex);
  const std::string path(text);
  std::error_code error;
  const std::string whole = std::filesystem::weakly_canonical(path, error).string();
  if (error || !std::filesystem::is_regular_file(whole, error)) {
    return failed(path, std::string("there is no such file; give the path of a policy library; ") + kAdvice);
  }
  const auto known = loaded.find(whole);
  if (known != loaded.end()) return known->second;
  try {
    const SharedLibrary library("the policy library " + path, {whole}, kAdvice);
    return loaded[whole] = read_table(path, library);
  } catch (const std::exception& wrong) {
    return {nullptr, wrong.what()};
  }
}

}  // namespace

void install_policy_loader() { set_eviction_loader(load); }

}  // namespace kvtwin

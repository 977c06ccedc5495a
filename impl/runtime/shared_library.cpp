#include "impl/runtime/shared_library.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <utility>

namespace kvtwin {

SharedLibrary::SharedLibrary(std::string product, const std::vector<std::string>& places, const std::string& advice,
                             bool shares_symbols)
    : product_(std::move(product)) {
  std::string tried;
  for (const std::string& place : places) {
    // Never unloaded, because such libraries have threads and exit handlers of their own.
    file_ = dlopen(place.c_str(), RTLD_NOW | RTLD_NODELETE | (shares_symbols ? RTLD_GLOBAL : RTLD_LOCAL));
    if (file_ != nullptr) {
      name_ = place;
      return;
    }
    const char* text = dlerror();
    tried += (tried.empty() ? "" : "; ") + std::string(text == nullptr ? "unknown" : text);
  }
  throw std::runtime_error(product_ + " can't be loaded (" + tried + "); " + advice);
}

SharedLibrary::~SharedLibrary() { dlclose(file_); }

void* SharedLibrary::address(const char* symbol) const { return dlsym(file_, symbol); }

void* SharedLibrary::required_address(const char* symbol) const {
  void* found = address(symbol);
  if (found == nullptr) {
    throw std::runtime_error(name_ + " has no " + symbol + ": it isn't the " + product_ + " we know");
  }
  return found;
}

}  // namespace kvtwin

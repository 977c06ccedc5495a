// A library that a machine may lack. It is opened at its first use, never at the start of the program.
#pragma once

#include <string>
#include <vector>

namespace kvtwin {

class SharedLibrary {
 public:
  // Opens the first of `places` (names for dlopen) that can be opened. `product`: the library's common name. `advice`:
  // what the user can do if the library is missing.
  // `shares_symbols`: libraries that are loaded later find the symbols of this one.
  // Errors: std::runtime_error, one sentence: product, attempts, advice.
  SharedLibrary(std::string product, const std::vector<std::string>& places, const std::string& advice,
                bool shares_symbols = false);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  // Returns the place of the opened file.
  const std::string& name() const { return name_; }

  // `Function`: pointer to the type of the symbol, which is not checked. Valid until the process ends.
  // Errors: std::runtime_error with library and symbol if the symbol is missing.
  template <typename Function>
  Function find(const char* symbol) const {
    return reinterpret_cast<Function>(required_address(symbol));
  }
  // Returns null if the symbol is missing.
  template <typename Function>
  Function find_optional(const char* symbol) const {
    return reinterpret_cast<Function>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;
  void* required_address(const char* symbol) const;

  std::string product_, name_;
  void* file_ = nullptr;
};

}  // namespace kvtwin

// A library that a machine may lack: opened when it is first wanted, never when the program starts.
#pragma once

#include <string>
#include <vector>

namespace kvtwin {

class SharedLibrary {
 public:
  // The first of `places` (as dlopen takes them) that can be opened. `product`: what people call it; `advice`: what one
  // may do where it is missing. std::runtime_error, one sentence: the product, what was tried, the advice.
  SharedLibrary(std::string product, const std::vector<std::string>& places, const std::string& advice);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  // The place it was opened at.
  const std::string& name() const { return name_; }

  // `Function`: a pointer to the symbol's type, which nobody checks. Valid for the process's life.
  // std::runtime_error naming library and symbol if it has none.
  template <typename Function>
  Function find(const char* symbol) const {
    return reinterpret_cast<Function>(required_address(symbol));
  }
  // Null if it has none.
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

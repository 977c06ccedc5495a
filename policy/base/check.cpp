#include "policy/base/check.hpp"

#include <cstdlib>

namespace kvtwin {
namespace {
CheckHandler installed_handler = nullptr;
}  // namespace

void set_check_handler(CheckHandler handler) { installed_handler = handler; }

void check_failed(const char* condition, const char* sentence, const char* file, int line) {
  if (installed_handler != nullptr) installed_handler(condition, sentence, file, line);
  std::abort();
}

}  // namespace kvtwin

// A library with Mooncake Store's C interface, and a store in the memory of this process. Tests load it as users load
// Mooncake's own library, and change its behaviour through kvtwin_mooncake_stand_in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace kvtwin::test {

struct MooncakeStandIn {
  std::mutex mutex;  // guards the members up to the next comment
  std::map<std::string, std::vector<std::byte>> values;
  std::map<std::string, int> errors;  // of gets and puts of these keys
  std::set<std::string> busy;         // a removal of these keys is refused, also with force
  std::size_t capacity = SIZE_MAX;    // values
  int clients = 0;                    // that exist
  int setups = 0;                     // ever
  int misuses = 0;                    // wrong use of the interface
  std::string last_setup;             // its arguments
  std::function<void()> on_destroyed = [] {};

  // Set these before the library is called. Called first of all in each function; may block.
  std::function<void(const std::string& function)> on_call = [](const std::string&) {};
  std::atomic<int> setup_error = 0;
  std::atomic<int> call_error = 0;  // for all keys of all calls

  // Forgets everything. Requires: no client exists.
  void reset() {
    const std::lock_guard lock(mutex);
    values.clear();
    errors.clear();
    busy.clear();
    capacity = SIZE_MAX;
    setups = misuses = 0;
    last_setup.clear();
    on_destroyed = [] {};
    on_call = [](const std::string&) {};
    setup_error = call_error = 0;
  }
};

}  // namespace kvtwin::test

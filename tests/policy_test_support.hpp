// Helpers of the tests of policy/: failed KV_CHECKs as exceptions, and functions that make page keys and slots.
#pragma once

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/base/types.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

struct BrokenPromise : std::logic_error {
  using std::logic_error::logic_error;
};

// While an object of this class exists, a failed KV_CHECK throws BrokenPromise instead of aborting.
class ThrowingChecks {
 public:
  ThrowingChecks() {
    set_check_handler([](const char*, const char* sentence, const char* file, int line) {
      throw BrokenPromise(std::string(file) + ":" + std::to_string(line) + ": " + sentence);
    });
  }
  ThrowingChecks(const ThrowingChecks&) = delete;
  ThrowingChecks& operator=(const ThrowingChecks&) = delete;
  ~ThrowingChecks() { set_check_handler(nullptr); }
};

inline PageKey chain_key(const PageKey& prior, std::uint64_t token) {
  PageKey key;
  std::uint64_t state = token;
  for (const std::uint64_t word : prior.words) state = mix(state ^ word);
  for (std::uint64_t& word : key.words) word = state = mix(state);
  return key;
}

inline std::vector<PageKey> chain(const std::vector<std::uint64_t>& tokens) {
  std::vector<PageKey> keys;
  PageKey prior;
  for (const std::uint64_t token : tokens) keys.push_back(prior = chain_key(prior, token));
  return keys;
}

inline std::vector<SlotId> slots(SlotId first, std::size_t count) {
  std::vector<SlotId> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

}  // namespace kvtwin::test

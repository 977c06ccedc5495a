// Opens stores of the C interface, and closes them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "kvtwin/store.h"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

struct Closer {
  void operator()(kvtwin_store* store) const { kvtwin_store_close(store); }
};
using Store = std::unique_ptr<kvtwin_store, Closer>;

inline Store opened(const kvtwin_store_config& config) {
  kvtwin_store* store = nullptr;
  char text[512] = "";
  EXPECT_EQ(kvtwin_store_open(&config, &store, {text, sizeof text}), KVTWIN_OK) << text;
  EXPECT_NE(store, nullptr);
  return Store(store);
}

inline std::string refusal(const kvtwin_store_config& config, kvtwin_status expected = KVTWIN_BAD_ARGUMENT) {
  kvtwin_store* store = nullptr;
  char text[512] = "";
  EXPECT_EQ(kvtwin_store_open(&config, &store, {text, sizeof text}), expected);
  EXPECT_EQ(store, nullptr);
  return text;
}

inline kvtwin_key key_of(std::uint64_t number) {
  kvtwin_key key;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t word = mix(number * 4 + i);
    std::memcpy(key.bytes + 8 * i, &word, 8);
  }
  return key;
}

}  // namespace kvtwin::test

#include "policy/base/names.hpp"

#include <gtest/gtest.h>

#include <string_view>

#include "policy/config.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {
namespace {

template <typename E>
void expect_named(std::initializer_list<std::string_view> names) {
  ASSERT_EQ(names_of<E>().size(), names.size());
  std::size_t value = 0;
  for (const std::string_view name : names) {
    EXPECT_EQ(name_of(static_cast<E>(value)), name);
    EXPECT_EQ(value_named<E>(name), static_cast<E>(value)) << name;
    ++value;
  }
  EXPECT_EQ(name_of(static_cast<E>(value)), "") << "no value";
  EXPECT_FALSE(value_named<E>("none_of_them"));
  EXPECT_FALSE(value_named<E>(""));
}

TEST(Names, each_value_is_found_by_its_name) {
  expect_named<Layout>({"layer_first", "page_first", "page_first_direct", "page_head"});
  expect_named<IoBackend>({"kernel", "direct", "auto"});
  expect_named<Direction>({"h2d", "d2h"});
  expect_named<TransferPath>({"copy_engine", "boxes", "kernel", "ring", "staged"});
  expect_named<StorageVerb>({"look_up", "get", "set", "remove"});
  expect_named<CachePath>({"via_host", "direct", "auto"});
  expect_named<Tiering>({"inclusive", "exclusive"});
  expect_named<EvictUnit>({"page", "node"});
}

}  // namespace
}  // namespace kvtwin

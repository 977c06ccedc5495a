#include "impl/remote/call_thread.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

constexpr TimeNs kLong = 60 * kNsPerSecond, kShort = 1'000'000;

TEST(CallThread, a_call_has_ended_with_all_that_it_owned) {
  CallThread thread;
  for (int i = 0; i < 3; ++i) {
    auto owned = std::make_shared<int>(0);
    ASSERT_TRUE(thread.run([owned] { ++*owned; }, kLong));
    EXPECT_EQ(*owned, 1);
    EXPECT_EQ(owned.use_count(), 1);
    EXPECT_FALSE(thread.busy());
  }
}

TEST(CallThread, an_exception_ends_the_call_only) {
  CallThread thread;
  EXPECT_TRUE(thread.run([] { throw std::runtime_error("no"); }, kLong));
  EXPECT_TRUE(thread.run([] {}, kLong));
}

TEST(CallThread, a_late_call_goes_on) {
  auto go = std::make_shared<Gate>(), gone = std::make_shared<Gate>();
  CallThread thread;
  EXPECT_FALSE(thread.run([go] { go->pass(); }, kShort));
  EXPECT_TRUE(thread.busy());
  go->open();
  while (thread.busy()) std::this_thread::yield();
  {
    CallThread other;
    EXPECT_FALSE(other.run(
        [go, gone] {
          go->pass();
          gone->open();
        },
        kShort));
  }
  go->open();
  gone->pass();
}

// What was registered before, as a library's destructors are, is left out.
TEST(CallThread, the_process_ends_in_spite_of_a_late_call) {
  const auto end = [](bool is_late) {
    std::atexit([] { std::_Exit(1); });
    CallThread thread;
    const auto go = std::make_shared<Gate>();
    thread.run(
        [go, is_late] {
          if (is_late) go->pass();
        },
        is_late ? kShort : kLong);
    std::exit(7);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(end(true), testing::ExitedWithCode(7), "");
  EXPECT_EXIT(end(false), testing::ExitedWithCode(1), "");
}

}  // namespace
}  // namespace kvtwin::test

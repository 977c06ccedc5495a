// The servers that tests start: what a test says if there is none.
#include "tests/server_process.hpp"

#include <gtest/gtest.h>

namespace kvtwin::test {
namespace {

TEST(ServerProcess, OneThatIsMissingHasAReason) {
  ServerProcess server;
  EXPECT_FALSE(server.start({"/nowhere/bin/weed", "server"}, "ready"));
  EXPECT_EQ(server.output(), "/nowhere/bin/weed: No such file or directory\n");
  EXPECT_FALSE(server.start({"/bin/sh", "-c", "echo no room >&2; exit 3"}, "ready"));
  EXPECT_EQ(server.output(), "no room\n");
}

}  // namespace
}  // namespace kvtwin::test

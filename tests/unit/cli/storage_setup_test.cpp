// Storage tiers of a real run that the program refuses.
#include <gtest/gtest.h>

#include <string>

#include "tests/paths.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

TEST(StorageSetup, ARealRunAsksWhereItIs) {
  Surroundings around;
  around.folder = kSourceFolder;
  const Outcome outcome =
      run({"run", "experiments/quickstart.toml", "--device", "host", "--set", "tiers.remote.gib=1"}, around);
  EXPECT_EQ(outcome.exit_code, 2);
  const char* sentence = KVTWIN_TEST_REAL ? "tiers.remote.url (default): is empty; a real run needs"
                                          : "this build is without the real world";
  EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace kvtwin::test

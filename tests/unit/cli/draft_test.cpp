// A draft model in runs of the program.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/paths.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

using Settings = std::vector<std::string>;

// ---- runs --------------------------------------------------------------------------------------------------

Surroundings in_source() {
  Surroundings around;
  around.folder = kSourceFolder;
  return around;
}

Json report_of(const Settings& settings) {
  std::vector<std::string> arguments = {"simulate", "experiments/quickstart.toml", "--json", "--world", "events"};
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  return run(arguments, in_source()).json();
}

TEST(DraftRun, kv_that_does_not_come_back_costs_decode_steps) {
  const Settings base = {"workload.limit=200", "model.draft.config=tiny", "model.draft.accept_length=3.2",
                         "tiers.device.tokens=16384"};
  const auto with = [&](Settings more) {
    more.insert(more.begin(), base.begin(), base.end());
    return report_of(more);
  };
  const Json none = with({"model.draft.kind=none"});
  EXPECT_FALSE(none.contains("components"));
  const Json pool = with({"model.draft.kind=side_pool"});
  const Json lost = with({"model.draft.kind=side_pool", "model.draft.restore=false"});
  EXPECT_EQ(pool["tokens"]["output"], none["tokens"]["output"]);
  EXPECT_LT(pool["passes"]["decode_steps"], none["passes"]["decode_steps"]);
  EXPECT_LT(pool["passes"]["decode_steps"], lost["passes"]["decode_steps"]);
  const Json& parts = pool["components"];
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1]["name"], "draft");
  EXPECT_EQ(parts[0]["hit_pages"], parts[1]["hit_pages"]);
  EXPECT_GT(parts[1]["bytes"], 0);
  EXPECT_EQ(lost["components"][1]["bytes"], 0);
  EXPECT_GT(lost["components"][1]["dropped"].value("not_restored", 0), 0);
}

}  // namespace
}  // namespace kvtwin::test

// A draft model in an experiment: the configuration of the engine and its tiers, what is refused, and the report.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lab/experiment/setup.hpp"

namespace kvtwin::test {
namespace {

using Settings = std::vector<std::string>;

kvtwin::Setup setup_of(const Settings& settings) {
  Experiment experiment = Experiment::from_text("[tiers.host]\ngib = 8\n", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return make_setup(experiment);
}

Settings drafted(const std::string& kind, Settings more = {}) {
  more.insert(more.end(), {"model.draft.kind=" + kind, "model.draft.accept_length=3.2"});
  return more;
}

// llama-3.1-8b has 32 layers with 8 heads of 256 bytes; tiny has 4 layers with 2 heads of 32 bytes.
TEST(DraftSetup, a_pool_of_its_own) {
  const kvtwin::Setup setup = setup_of(drafted("side_pool", {"model.draft.config=tiny", "tiers.device.gib=4"}));
  EXPECT_EQ(setup.engine.shape.layers, 32U);
  ASSERT_EQ(setup.engine.beside.size(), 1U);
  EXPECT_EQ(setup.engine.beside.front().layers, 4U);
  EXPECT_EQ(setup.engine.beside.front().page_tokens, 64U);
  EXPECT_EQ(setup.engine.draft_tokens, 4U);
  EXPECT_EQ(setup.engine.accept_x1024, 3277U);
  EXPECT_EQ(setup.engine.accept_without_x1024, 1024U);
  EXPECT_TRUE(setup.engine.draft_restored);
  const Bytes page = 64 * (32 * 2 * 8 * 256 + 4 * 2 * 2 * 32);
  EXPECT_EQ(setup.page_bytes(), page);
  EXPECT_EQ(setup.engine.device_pages, (Bytes{4} << 30) / page);
  EXPECT_EQ(setup.engine.host_pages, (Bytes{8} << 30) / page);
  EXPECT_EQ(setup.engine.storage_objects, 2U);
}

TEST(DraftSetup, packed_into_the_targets_pages) {
  const kvtwin::Setup setup = setup_of(drafted("packed", {"model.name=tiny", "model.draft.config=tiny"}));
  EXPECT_EQ(setup.engine.shape.layers, 8U);
  EXPECT_TRUE(setup.engine.beside.empty());
  EXPECT_EQ(setup.target.layers, 4U);
  EXPECT_EQ(setup.engine.storage_objects, 1U);
}

TEST(DraftSetup, without_a_host_tier_the_index_knows_which_pages_lack_their_kv) {
  const kvtwin::Setup setup =
      setup_of(drafted("side_pool", {"model.name=tiny", "model.draft.config=tiny", "model.draft.restore=false",
                                     "model.draft.accept_length_without_kv=1.1", "cache.rules.private_loads=true",
                                     "tiers.disk.gib=1", "cache.path=direct", "tiers.host.tokens=0"}));
  EXPECT_FALSE(setup.engine.private_loads);
  EXPECT_EQ(std::ranges::count_if(setup.notes,
                                  [](const std::string& note) {
                                    return note.starts_with("cache.rules.private_loads (--set) has no effect: storage");
                                  }),
            1);
}

// Such KV takes space only on the device.
TEST(DraftSetup, kv_that_is_not_restored_takes_no_room_elsewhere) {
  const Settings tiny = {"model.name=tiny", "model.draft.config=tiny", "tiers.device.gib=0.25",
                         "model.draft.restore=false", "model.draft.accept_length_without_kv=1.1"};
  for (const char* kind : {"packed", "side_pool"}) {
    const kvtwin::Setup setup = setup_of(drafted(kind, tiny));
    EXPECT_EQ(setup.engine.shape.layers, 4U);
    EXPECT_TRUE(setup.engine.beside.empty());
    EXPECT_FALSE(setup.engine.draft_restored);
    EXPECT_EQ(setup.engine.accept_without_x1024, 1126U);
    EXPECT_EQ(setup.engine.device_pages, (Bytes{1} << 28) / (64 * 1024));
    EXPECT_EQ(setup.engine.host_pages, (Bytes{8} << 30) / (64 * 512));
  }
}

TEST(DraftSetup, its_weights_leave_less_room_and_its_pages_are_others) {
  const kvtwin::Setup alone = setup_of({}), with = setup_of(drafted("side_pool", {"model.draft.config=llama-3.1-8b"}));
  EXPECT_GT(alone.engine.device_pages, 2 * with.engine.device_pages);
  EXPECT_NE(alone.engine.storage_space, with.engine.storage_space);
  const kvtwin::Setup none = setup_of(drafted("none", {"model.draft.config=llama-3.1-8b"}));
  EXPECT_EQ(none.engine.storage_space, alone.engine.storage_space);
  EXPECT_EQ(none.engine.device_pages, alone.engine.device_pages);
  EXPECT_FALSE(none.draft);
}

void expect_refused(const Settings& settings, const Settings& parts) {
  try {
    setup_of(settings);
  } catch (const std::runtime_error& error) {
    const std::string sentence = error.what();
    for (const std::string& part : parts) EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
    return;
  }
  ADD_FAILURE() << "not refused: " << parts.front();
}

TEST(DraftSetup, Refusals) {
  expect_refused({"model.draft.config=tiny"}, {"model.draft.config (--set): is given, and model.draft.kind isn't"});
  expect_refused({"model.draft.kind=side_poll"}, {"model.draft.kind (--set)", "\"side_poll\"", "side_pool"});
  expect_refused(drafted("packed"), {"model.draft.config (default): names no draft model"});
  expect_refused(drafted("packed", {"model.draft.config=tiny"}),
                 {"model.draft.kind (--set)", "2 x 2 heads of 32 bytes in bf16 instead of 2 x 8 heads of 256 bytes",
                  "set it to side_pool"});
  expect_refused({"model.draft.kind=side_pool", "model.draft.config=tiny"},
                 {"model.draft.accept_length (default): must be given"});
  expect_refused(drafted("side_pool", {"model.draft.config=tiny", "model.draft.tokens=1"}),
                 {"model.draft.accept_length (--set)", "more than the 2 tokens"});
  expect_refused(drafted("side_pool", {"model.draft.config=tiny", "model.draft.accept_length_without_kv=7"}),
                 {"model.draft.accept_length_without_kv (--set)", "more than the 5 tokens"});
  expect_refused(drafted("side_pool", {"model.draft.config=/nowhere/config.json"}), {"/nowhere/config.json"});
}

}  // namespace
}  // namespace kvtwin::test

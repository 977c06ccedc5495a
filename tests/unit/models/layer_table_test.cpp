#include "models/layer_table.hpp"

#include <gtest/gtest.h>

#include "models/json.hpp"
#include "tests/small_config.hpp"

namespace kvtwin::test {
namespace {

TEST(LayerTable, HasARowForEachKind) {
  const auto table = layer_table(model_preset("gpt-oss-120b"));
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(table[0].kind, "window");
  EXPECT_EQ(table[0].layers, 18U);
  EXPECT_EQ(table[0].bytes_per_token, 0);
  EXPECT_EQ(table[0].window, 128U);
  EXPECT_EQ(table[0].window_bytes_per_token, 36'864U);
  EXPECT_EQ(table[0].bytes_per_sequence, 128U * 36'864);
  EXPECT_EQ(table[1].kind, "full");
  EXPECT_EQ(table[1].bytes_per_token, 36'864);
  EXPECT_EQ(table[1].bytes_per_sequence, 0U);
  EXPECT_TRUE(has_several_kinds(table));
  EXPECT_FALSE(has_several_kinds(layer_table(model_preset("llama-3.1-8b"))));

  const auto states = layer_table(model_preset("qwen3.5-397b-a17b"));
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].kind, "state");
  EXPECT_EQ(states[0].bytes_per_sequence, 192'061'440U);
  EXPECT_EQ(states[1].bytes_per_token, 30'720);
}

TEST(LayerTable, LayersOfOneKindWithOtherRowsAreOtherRows) {
  const auto sparse = layer_table(model_preset("glm-5.3"));
  ASSERT_EQ(sparse.size(), 2U);
  EXPECT_EQ(sparse[0].layers, 21U) << "with an indexer";
  EXPECT_EQ(sparse[1].layers, 57U);
  const auto compressed = layer_table(model_preset("deepseek-v4-flash"));
  ASSERT_EQ(compressed.size(), 3U) << "windows alone, groups of 4 and of 128";
  double token = 0;
  for (const LayerRow& row : compressed) token += row.bytes_per_token;
  EXPECT_EQ(token, 21 * 716 / 4.0 + 20 * 584 / 128.0);
}

TEST(LayerTable, PagedWindowsCountAsTokens) {
  ModelGeometry m = model_preset("gpt-oss-120b");
  ASSERT_TRUE(m.page_windows());
  const auto table = layer_table(m);
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(table[0].bytes_per_token, 36'864);
  EXPECT_EQ(table[0].window, 0U);
}

TEST(LayerTable, TheUsersFiguresAreOneRow) {
  const ModelGeometry m =
      parse_model(llama().dump(), "config.json", KvDtype::automatic, WeightChoice::automatic, {1000, 50});
  const auto table = layer_table(m);
  ASSERT_EQ(table.size(), 1U);
  EXPECT_EQ(table[0].kind, "given");
  EXPECT_EQ(table[0].bytes_per_token, 1000);
  EXPECT_EQ(table[0].bytes_per_sequence, 50U);
}

TEST(LayerTable, IsTextAndJson) {
  const auto table = layer_table(model_preset("gpt-oss-120b"));
  const std::string text = layer_table_text(table, "  ");
  EXPECT_NE(text.find("  kind "), std::string::npos) << text;
  EXPECT_NE(text.find("36864 x 128"), std::string::npos) << text;
  const auto json = layer_table_json(table);
  EXPECT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["kind"], "window");
  EXPECT_EQ(json[0]["window_tokens"], 128);
  EXPECT_EQ(json[1]["bytes_per_token"], 36864.0);
}

}  // namespace
}  // namespace kvtwin::test

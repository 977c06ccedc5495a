// Json: what is written, read back, compared and refused.
#include "models/json.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <map>

namespace kvtwin {
namespace {

TEST(Json, WritesEachKindOfValue) {
  const Json json{{"null", nullptr},
                  {"true", true},
                  {"texts", {"a", std::string("b\n\"\\"), std::string_view("\xC3\xA9")}},
                  {"numbers", {1, -1, 1U, 0.5, 1.0, -0.0, 1e16, 1e-7, 1.7976931348623157e308}},
                  {"most", std::numeric_limits<std::uint64_t>::max()},
                  {"no number", std::numeric_limits<double>::infinity()},
                  {"empty", {Json::object(), Json::array()}},
                  {"map", std::map<std::string, int>{{"y", 2}, {"x", 1}}},
                  {"pairs", std::vector<std::pair<std::string, double>>{{"p", 0.25}}}};
  EXPECT_EQ(json.dump(),
            "{\"null\":null,\"true\":true,\"texts\":[\"a\",\"b\\n\\\"\\\\\",\"\xC3\xA9\"],"
            "\"numbers\":[1,-1,1,0.5,1.0,-0.0,1e+16,1e-07,1.7976931348623157e+308],"
            "\"most\":18446744073709551615,\"no number\":null,\"empty\":[{},[]],"
            "\"map\":{\"x\":1,\"y\":2},\"pairs\":[[\"p\",0.25]]}");
  EXPECT_EQ(Json::parse(json.dump()).dump(), json.dump());
  EXPECT_EQ(Json({{"a", {1, Json::object()}}, {"b", Json::array()}}).dump(2),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

TEST(Json, BytesThatAreNotUtf8AreRefusedOrReplaced) {
  const Json json("a\xFFz");
  EXPECT_THROW(json.dump(), Json::type_error);
  EXPECT_EQ(json.dump(-1, Json::BadBytes::replace), "\"a\xEF\xBF\xBDz\"");
}

TEST(Json, AnObjectKeepsItsOrderUntilItIsSorted) {
  Json json = Json::parse(R"({"b":{"d":1,"c":[{"f":2,"e":3}]},"a":4})");
  json["0"] = 5;
  EXPECT_EQ(json.dump(), R"({"b":{"d":1,"c":[{"f":2,"e":3}]},"a":4,"0":5})");
  json.sort_keys();
  EXPECT_EQ(json.dump(), R"({"0":5,"a":4,"b":{"c":[{"e":3,"f":2}],"d":1}})");
  EXPECT_EQ(json.erase("a"), 1U);
  EXPECT_EQ(json.erase("a"), 0U);
  EXPECT_EQ(json.find("a"), json.end());
}

TEST(Json, TheLastValueOfARepeatedKeyCountsAtItsFirstPlace) {
  std::string repeated;
  EXPECT_EQ(parse_json(R"({"a":1,"b":2,"a":3,"c":4,"a":5,"b":6})", repeated).dump(), R"({"a":5,"b":6,"c":4})");
  EXPECT_EQ(repeated, "a");
  EXPECT_EQ(json_shape(R"([{"a":[[]],"b":1},{"b":1}])").depth, 4U);
  EXPECT_EQ(json_shape(R"([{"a":1,"b":1},{"b":1}])").repeated, "");
}

TEST(Json, SaysWhereATextIsWrong) {
  try {
    Json::parse("{\"a\": ]}");
    FAIL();
  } catch (const Json::parse_error& error) {
    EXPECT_EQ(error.byte, 7U);
  }
  EXPECT_THROW(Json::parse("1e999"), Json::out_of_range);
  EXPECT_THROW(Json::parse("1 2"), Json::parse_error);
  for (const char* text : {"", "{", "1e999", "\"\xFF\"", "[1,]", "{\"a\":1,}", "nul"}) {
    EXPECT_TRUE(Json::parse_or_discard(text).is_discarded()) << text;
  }
  EXPECT_TRUE(Json::parse_or_discard("[[1]]", 1).is_discarded());
  EXPECT_EQ(Json::parse_or_discard("[[1]]", 2).dump(), "[[1]]");
}

TEST(Json, ValuesInEachOtherDoNotUseUpTheStack) {
  constexpr std::size_t kDepth = 1'000'000;
  Json json = Json::parse(std::string(kDepth, '[') + std::string(kDepth, ']'));
  json.sort_keys();
  std::string objects;
  for (std::size_t i = 0; i < kDepth; ++i) objects += "{\"\":";
  EXPECT_TRUE(Json::parse_or_discard(objects).is_discarded());
}

TEST(Json, NumbersCompareByTheirValues) {
  EXPECT_EQ(Json(1), Json(1U));
  EXPECT_EQ(Json(1), Json(1.0));
  EXPECT_NE(Json(-1), Json(std::numeric_limits<std::uint64_t>::max()));
  EXPECT_LT(Json(-1), Json(std::numeric_limits<std::uint64_t>::max()));
  EXPECT_GT(Json(std::numeric_limits<std::uint64_t>::max()), Json(std::numeric_limits<std::int64_t>::max()));
  EXPECT_LT(Json(-2), Json(-1));
  EXPECT_LE(Json(1), 1.5);
  EXPECT_FALSE(Json("1") == Json(1));
  EXPECT_FALSE(Json(true) == Json(1));
  EXPECT_FALSE(Json(nullptr) <= 0);
}

TEST(Json, RefusesValuesOfAnotherKind) {
  Json json = Json::parse(R"({"text":"a","list":[1,2],"number":7,"none":null})");
  EXPECT_THROW(json.at("text").get<int>(), Json::type_error);
  EXPECT_THROW(json.at("number").get<bool>(), Json::type_error);
  EXPECT_THROW(json.at("number").get<std::string>(), Json::type_error);
  EXPECT_THROW(json.at("number").at("x"), Json::type_error);
  EXPECT_THROW(json.at("missing"), Json::out_of_range);
  EXPECT_THROW(json.at("list").at(2), Json::out_of_range);
}

TEST(Json, FindsValues) {
  Json json = Json::parse(R"({"tiers":[{"name":"disk"}],"share":0.5})");
  EXPECT_EQ(json.at_path("/tiers/0/name"), "disk");
  EXPECT_EQ(json.find_path("/tiers/1"), nullptr);
  EXPECT_EQ(json.find_path("/share/x"), nullptr);
  EXPECT_THROW(json.at_path("/tiers/0/size"), Json::out_of_range);
  EXPECT_EQ(json.value("share", 1.0), 0.5);
  EXPECT_EQ(json.value("price", "none"), "none");
  EXPECT_EQ(json.value("other", Json::array()), Json::array());
  json["new"]["inner"].push_back({{"a", 1}});
  EXPECT_EQ(json.at("new").dump(), R"({"inner":[{"a":1}]})");
  json.update({{"share", 1}, {"last", 2}});
  EXPECT_EQ(json.at("share"), 1);
  EXPECT_EQ(json.items().back().key, "last");
  std::string names;
  for (const auto& [name, value] : json.items()) names += name + " ";
  EXPECT_EQ(names, "tiers share new last ");
}

TEST(Json, CopiesAndMoves) {
  Json json{{"a", {1, "two"}}};
  Json copy = json;
  copy["a"][0] = 3;
  EXPECT_EQ(json.dump(), R"({"a":[1,"two"]})");
  const Json moved = std::move(copy);
  EXPECT_EQ(moved.dump(), R"({"a":[3,"two"]})");
  json = Json(json.at("a"));
  EXPECT_EQ(json.get<std::vector<Json>>().size(), 2U);
}

}  // namespace
}  // namespace kvtwin

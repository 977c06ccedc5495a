#include "tests/measured.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/folder.hpp"

namespace kvtwin::test {
namespace {

TEST(Measured, SpreadsAreQuantilesBetweenTheNearestValues) {
  const Spread one = spread_of({7});
  EXPECT_EQ(one.median, 7);
  EXPECT_EQ(one.p10, 7);
  EXPECT_EQ(one.p90, 7);
  EXPECT_EQ(one.count, 1u);
  const Spread many = spread_of({10, 0, 5, 20, 15, 25, 30, 35, 40, 45, 50});
  EXPECT_DOUBLE_EQ(many.median, 25);
  EXPECT_DOUBLE_EQ(many.p10, 5);
  EXPECT_DOUBLE_EQ(many.p90, 45);
  EXPECT_DOUBLE_EQ(spread_of({1, 2}).median, 1.5);
  EXPECT_DOUBLE_EQ(spread_of({1, 2}).p90, 1.9);
  EXPECT_THROW(spread_of({}), std::invalid_argument);
}

// A clock that each measurement moves on by its own duration.
struct Clock {
  double time = 0;
  std::string order;
};

TEST(Measured, PairsAreTakenInTurnAndInBothOrders) {
  Clock clock;
  const auto first = [&] { return clock.order += 'a', clock.time += 1, 1.0; };
  const auto second = [&] { return clock.order += 'b', clock.time += 2, 2.0; };
  const auto now = [&] { return clock.time; };
  const auto pairs = in_pairs({.least = 3, .most = 4, .seconds = 1e9}, first, second, now);
  EXPECT_EQ(clock.order,
            "ab"
            "ab"
            "ba"
            "ab"
            "ba");  // the first pair isn't counted
  ASSERT_EQ(pairs.size(), 4u);
  for (const auto& [a, b] : pairs) {
    EXPECT_EQ(a, 1);
    EXPECT_EQ(b, 2);
  }
}

TEST(Measured, RepeatsEndWithTheTimeButNotBeforeTheLeast) {
  Clock clock;
  const auto one = [&] { return clock.time += 1; };
  const auto now = [&] { return clock.time; };
  EXPECT_EQ(repeated({.least = 3, .most = 100, .seconds = 0}, one, now).size(), 3u);
  EXPECT_EQ(repeated({.least = 3, .most = 100, .seconds = 10}, one, now).size(), 10u);
  EXPECT_EQ(repeated({.least = 3, .most = 5, .seconds = 10}, one, now).size(), 5u);
  EXPECT_EQ(in_pairs({.least = 2, .most = 9, .seconds = 0}, one, one, now).size(), 2u);
}

TEST(Measured, TablesAreWholeRowsUnderTheirColumns) {
  const Folder folder;
  const std::string path = folder / "table.csv";
  Table table(path, {"gpu: none", "date: today"}, {"path", "bytes", "rate"});
  table.row({"boxes", std::uint64_t{1} << 40, 0.25});
  EXPECT_THROW(table.row({"boxes"}), std::invalid_argument);
  EXPECT_THROW(table.row({"a,b", 1u, 1.0}), std::invalid_argument);
  EXPECT_THROW(table.row({"boxes", 1u, 1.0 / 0.0}), std::invalid_argument);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "# gpu: none\n# date: today\npath,bytes,rate\nboxes,1099511627776,0.25\n");
  EXPECT_THROW(Table(folder / "no/such", {}, {"a"}), std::runtime_error);
}

}  // namespace
}  // namespace kvtwin::test

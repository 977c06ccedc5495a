#include "lab/csv_cell.hpp"

#include <gtest/gtest.h>

namespace kvtwin::test {
namespace {

TEST(CsvCell, NoTextIsAFormulaOfASpreadsheet) {
  for (const char* text :
       {"=cmd|' /C calc'!A0", "+1+cmd", "-2+3+cmd", "@SUM(A1)", "\tx", "=", "-", "+", "+-1", "--1"}) {
    const std::string cell = csv_cell(text);
    EXPECT_EQ(cell.find('\''), 0U) << cell;
    EXPECT_EQ(cell, std::string("'") + text);
  }
  EXPECT_EQ(csv_cell("=a,b"), "\"'=a,b\"");
  EXPECT_EQ(csv_cell("\r=1"), "\"'\r=1\"");
}

TEST(CsvCell, NumbersAndOtherTextsStay) {
  for (const char* text :
       {"", "-1", "+1", "-0.5", "+2.5e-3", "-1e300", "lru", "a=b", "x-1", "5@2", "slru(protected=2)"}) {
    EXPECT_EQ(csv_cell(text), text);
  }
  EXPECT_EQ(csv_cell("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_cell("say \"x\""), "\"say \"\"x\"\"\"");
  EXPECT_EQ(csv_cell("two\nlines"), "\"two\nlines\"");
}

}  // namespace
}  // namespace kvtwin::test

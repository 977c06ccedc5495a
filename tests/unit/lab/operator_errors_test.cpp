#include "lab/operator_errors.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/error.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

const OperatorTable& table() {
  static const OperatorTable table = parse_operators(
      "kvtwin-operators 1\ngpu g\nengine e\nsource s\ndate 2026-11-25\ntable gemm bf16\naxis x 10 20\naxis y 1 3\n"
      "ns 100 200\nns 300 500\n",
      "table.txt");
  return table;
}

std::vector<OperatorErrors> errors_at(const std::string& rows) {
  const Folder folder;
  write_text(folder / "rows.csv", rows);
  return operator_errors(table(), folder / "rows.csv");
}

TEST(OperatorErrors, AreOfTheRowsWhoseLatticeIsThere) {
  const auto errors = errors_at("gemm bf16,10/1,100\ngemm bf16,20/3,500\ngemm bf16,20/1,600\ngemm fp8,1/1,5\n");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].family, "gemm bf16");
  EXPECT_EQ(errors[0].rows, 3U);
  EXPECT_DOUBLE_EQ(errors[0].median_percent, 0);
  EXPECT_DOUBLE_EQ(errors[0].p90_percent, 50);
  EXPECT_DOUBLE_EQ(errors[0].p99_percent, 50);
}

TEST(OperatorErrors, RefuseARowThatIsNone) {
  for (const std::string row : {"x", "gemm bf16,10/1", "gemm bf16,10/0,5", "gemm bf16,10/1,5x", "gemm bf16,1/2/3/4,5",
                                "gemm bf16,a,5", "gemm bf16,10/1,-5"}) {
    try {
      errors_at("gemm bf16,10/1,100\n" + row + "\n");
      ADD_FAILURE() << row;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("rows.csv: line 2: must be as"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace kvtwin::test

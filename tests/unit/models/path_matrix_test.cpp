#include "models/path_matrix.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <sstream>

namespace kvtwin::test {
namespace {

constexpr Bytes kChunks[] = {512, 2048, 8192, 16384, 28672, 32768, 65536};
constexpr std::uint64_t kCounts[] = {16, 64, 1024};

// A function that returns the rate of a path in one cell of the table, or 0 if it wasn't measured.
using Rate = std::function<double(const std::string& path, bool to_device, Bytes chunk, std::uint64_t chunks)>;

std::string table_of(const Rate& rate) {
  std::ostringstream csv;
  csv << "# gpu: made up\nseed,path,direction,chunk_bytes,chunks,r_median,wrong_bytes\n";
  for (const char* path : {"copy_loop", "batch", "boxes", "kernel", "ring", "staged", "warp_per_row"}) {
    for (const bool to_device : {true, false}) {
      for (const Bytes chunk : kChunks) {
        for (const std::uint64_t count : kCounts) {
          const double r = rate(path, to_device, chunk, count);
          if (r > 0)
            csv << "1," << path << ',' << (to_device ? "h2d" : "d2h") << ',' << chunk << ',' << count << ',' << r
                << ",0\n";
        }
      }
    }
  }
  return csv.str();
}

std::vector<PathRate> matrix_of(const Rate& rate) { return parse_path_matrix(table_of(rate), "matrix.csv"); }

// Batches are good from 28 KiB on to the device and from 16 KiB on to the host, boxes from 8 KiB and 2 KiB on. The ring
// is faster than batches from 64 small pieces on. The baselines are the fastest, but they must not be considered.
double ordinary(const std::string& path, bool to_device, Bytes chunk, std::uint64_t chunks) {
  if (path == "batch") return chunk >= (to_device ? 28672u : 16384u) ? 0.92 : 0.1;
  if (path == "boxes") return chunk >= (to_device ? 8192u : 2048u) ? 0.93 : 0.3;
  if (path == "ring") return chunks >= 64 ? 0.9 : 0.05;
  if (path == "kernel") return 0.04;
  if (path == "staged") return 0.94;
  return 1;
}

TEST(PathMatrix, ReadsTheColumnsThatItNeeds) {
  const auto matrix = parse_path_matrix(
      "# gpu: made up\nr_median,path,x,direction,chunks,chunk_bytes\r\n0.5,boxes,9,d2h,32768,1152\r\n", "m.csv");
  ASSERT_EQ(matrix.size(), 1u);
  EXPECT_EQ(matrix[0].path, "boxes");
  EXPECT_EQ(matrix[0].direction, Direction::device_to_host);
  EXPECT_EQ(matrix[0].chunk, 1152u);
  EXPECT_EQ(matrix[0].chunks, 32768u);
  EXPECT_EQ(matrix[0].rate, 0.5);
}

TEST(PathMatrix, RefusesWhatIsNoTable) {
  const std::string head = "path,direction,chunk_bytes,chunks,r_median\n";
  const std::pair<std::string, std::string> kBad[] = {
      {"", "no line of column names"},
      {"# only: this\n", "no line of column names"},
      {"path,direction,chunk_bytes,chunks\n", "m.csv:1: no column r_median; a matrix.csv"},
      {head + "boxes,h2d,512,16\n", "m.csv:2: 4 fields under 5 columns"},
      {head + "boxes,up,512,16,1\n", "direction `up`"},
      {head + "boxes,h2d,512,16,fast\n", "`fast` where a number"},
      {head + "boxes,h2d,512,16,nan\n", "`nan` where a number"},
      {head + "boxes,h2d,512,16,inf\n", "`inf` where a number"},
      {head + "boxes,h2d,512,16,-1\n", "`-1` where a number"},
      {head + "boxes,h2d,-1,16,1\n", "`-1` where a whole number"},
      {head + "boxes,h2d,0,16,1\n", "`0` where a whole number"},
      {head + "boxes,h2d,512,1e9,1\n", "m.csv:2: `1e9` where a whole number"},
      {head + "boxes,h2d,99999999999999,16,1\n", "where a whole number from 1 to 2^40"},
      {"path,direction,chunk_bytes,chunks,r_median,wrong_bytes\nboxes,h2d,512,16,1,7\n",
       "m.csv:2: wrong_bytes is 7, so this path did not copy"},
      {"# a\n{\"numbers\": {}}\n", "m.csv:2: no column path"},
  };
  for (const auto& [csv, sentence] : kBad) {
    try {
      parse_path_matrix(csv, "m.csv");
      FAIL() << csv;
    } catch (const ModelError& e) {
      EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
    }
  }
}

// For example rows of two seeds.
TEST(PathMatrix, OfSeveralRowsOfACellTheFastestCounts) {
  const std::string head = "path,direction,chunk_bytes,chunks,r_median\n";
  const std::string fast = "batch,h2d,4096,16,1\n", slow = "batch,h2d,4096,16,0.1\n", other = "boxes,h2d,4096,16,1\n";
  const auto from = [&](const std::string& rows) {
    return limits_from(parse_path_matrix(head + rows, "m.csv")).copy_engine_min_h2d;
  };
  EXPECT_EQ(from(fast + slow + other), 4096U);
  EXPECT_EQ(from(slow + fast + other), 4096U);
  EXPECT_EQ(from(slow + other), 8192U);
}

TEST(PathMatrix, ThresholdsAreWhereAPathBecomesAsGoodAsAny) {
  const MeasuredLimits limits = limits_from(matrix_of(ordinary));
  EXPECT_EQ(limits.copy_engine_min_h2d, 28672u);
  EXPECT_EQ(limits.copy_engine_min_d2h, 16384u);
  EXPECT_EQ(limits.box_min, 8192u);  // the limit of the slower direction
  EXPECT_EQ(limits.kernel_min_pieces, 64u);
}

TEST(PathMatrix, APathThatIsAlwaysOrNeverGoodSaysSo) {
  const MeasuredLimits always = limits_from(
      matrix_of([](const std::string& path, bool, Bytes, std::uint64_t) { return path == "batch" ? 0.96 : 0.9; }));
  EXPECT_EQ(always.copy_engine_min_h2d, 512u);
  EXPECT_EQ(always.copy_engine_min_d2h, 512u);
  EXPECT_EQ(always.box_min, 131072u);                 // 0.9 isn't within 5 % of 0.96
  EXPECT_EQ(always.kernel_min_pieces, std::nullopt);  // no piece is too small for a batch
}

TEST(PathMatrix, OneGoodCellBelowABadOneCountsForNothing) {
  const MeasuredLimits limits =
      limits_from(matrix_of([](const std::string& path, bool, Bytes chunk, std::uint64_t chunks) {
        if (path == "batch") return chunk == 2048 || chunk > 32768 ? 0.97 : 0.2;
        if (path == "kernel") return chunks == 64 ? 0.1 : 0.9;
        return 0.0;
      }));
  EXPECT_EQ(limits.copy_engine_min_h2d, 65536u);
  EXPECT_EQ(limits.kernel_min_pieces, 1024u);
}

TEST(PathMatrix, WhatWasNotMeasuredIsNotTold) {
  EXPECT_FALSE(limits_from({}).any());
  const auto matrix = matrix_of([](const std::string& path, bool to_device, Bytes, std::uint64_t) {
    return to_device && (path == "batch" || path == "copy_loop") ? 0.9 : 0.0;
  });
  const MeasuredLimits limits = limits_from(matrix);
  EXPECT_TRUE(limits.any());
  EXPECT_EQ(limits.copy_engine_min_h2d, 512u);
  EXPECT_EQ(limits.copy_engine_min_d2h, std::nullopt);
  EXPECT_EQ(limits.box_min, std::nullopt);
}

}  // namespace
}  // namespace kvtwin::test

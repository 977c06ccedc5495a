#include "models/copy_sizes.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvtwin::test {
namespace {

constexpr const char* kTable =
    "# gpu: made up\n"
    "kind,direction,bytes,ctas,stages,portion_bytes,node,gbps\n"
    "copy,h2d,4096,0,0,0,0,not read\n"
    "kernel,h2d,1000,1,0,0,0,20\r\nkernel,h2d,1000,2,0,0,0,39\nkernel,h2d,1000,4,0,0,0,50\nkernel,h2d,1000,8,0,0,0,52\n"
    "kernel,d2h,1000,1,0,0,0,20\nkernel,d2h,1000,2,0,0,0,40\nkernel,d2h,1000,4,0,0,0,41\n"
    "ring,h2d,1000,1,0,0,0,30\nring,h2d,1000,2,0,0,0,50\nring,d2h,1000,1,0,0,0,45\nring,d2h,1000,2,0,0,0,46\n"
    "ring_stages,h2d,1000,2,2,0,0,40\nring_stages,h2d,1000,2,3,0,0,49\nring_stages,h2d,1000,2,4,0,0,50\n"
    "staged,h2d,1000,4,0,1048576,0,30\nstaged,h2d,1000,4,0,8388608,0,50\nstaged,h2d,1000,4,0,16777216,0,51\n";

// 95 % of the best rate, in the slower of both directions.
TEST(CopySizes, AreTheSmallestThatAreFast) {
  const MeasuredSizes sizes = sizes_from(parse_copy_rates(kTable, "link.csv"));
  EXPECT_EQ(sizes.kernel_blocks, 4U);
  EXPECT_EQ(sizes.ring_blocks, 2U);
  EXPECT_EQ(sizes.ring_stages, 3U);
  EXPECT_EQ(sizes.staging_bytes, 8388608U);
}

// Tables from before 2026-11-26 have neither stages nor portions; other tables have no copy kernels.
TEST(CopySizes, NeedRows) {
  const MeasuredSizes old =
      sizes_from(parse_copy_rates("kind,direction,bytes,ctas,gbps\nring,h2d,9,4,50\nring,h2d,9,8,51\n", "link.csv"));
  EXPECT_EQ(old.ring_blocks, 4U);
  EXPECT_FALSE(old.kernel_blocks || old.ring_stages || old.staging_bytes);
  const MeasuredSizes none = sizes_from(parse_copy_rates("path,direction,gbps\nboxes,h2d,9\n", "matrix.csv"));
  EXPECT_FALSE(none.kernel_blocks || none.ring_blocks || none.ring_stages || none.staging_bytes);
}

TEST(CopySizes, RefuseWhatIsNoTable) {
  const auto refusal = [](const std::string& row) {
    try {
      static_cast<void>(parse_copy_rates("kind,direction,ctas,gbps\n" + row + "\n", "link.csv"));
    } catch (const ModelError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("ring,h2d,4"), "link.csv:2: 3 fields under 4 columns");
  EXPECT_EQ(refusal("ring,up,4,9"), "link.csv:2: direction `up`; there are h2d and d2h");
  EXPECT_EQ(refusal("ring,h2d,4,fast"), "link.csv:2: `fast` where a number of 0 or more belongs (gbps)");
  EXPECT_EQ(refusal("ring,h2d,-4,9"), "link.csv:2: `-4` where a number of 0 or more belongs (ctas)");
}

}  // namespace
}  // namespace kvtwin::test

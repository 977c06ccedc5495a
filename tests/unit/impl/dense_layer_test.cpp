#include "impl/device/dense_layer.hpp"

#include <gtest/gtest.h>

namespace kvtwin::test {
namespace {

// Before, inputs vanished after some hundred products, and each product then took up to a hundred times as long. So
// kvtwin calibrate measured passes that no run had.
TEST(DenseLayer, ItsNumbersNeverVanish) {
  for (const std::uint32_t width : {16U, 64U, 200U}) {
    DenseLayer layer(64, width, 8, 1);
    for (int pass = 0; pass < 1000; ++pass) layer.run(128, 256);
    EXPECT_GT(layer.largest_input(), 0.1F) << width;
    EXPECT_LE(layer.largest_input(), 1.0F) << width;
  }
}

}  // namespace
}  // namespace kvtwin::test

#include "sim/operation_table.hpp"

#include <gtest/gtest.h>

#include <map>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

// A few old operations stay in the table while thousands of newer ones are added and removed.
TEST(OperationTable, MatchesAMap) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    test::Splitmix rng(test::mix(seed));
    OperationTable table;
    std::map<std::uint64_t, std::uint32_t> model;
    std::uint64_t last = 0;
    for (int i = 0; i < 5000; ++i) {
      if (model.empty() || rng.chance(model.size() < 100 ? 60 : 40)) {
        const auto slot = static_cast<std::uint32_t>(rng.below(1000));
        table.insert(OperationId{++last}, slot);
        model[last] = slot;
      } else {
        auto gone = model.end();
        for (std::uint64_t back = 1 + rng.below(model.size() < 8 ? model.size() : 8); back > 0; --back) --gone;
        table.erase(OperationId{gone->first});
        model.erase(gone);
      }
      const std::uint64_t probe = 1 + rng.below(last);
      const auto found = model.find(probe);
      ASSERT_EQ(table.find(OperationId{probe}), found == model.end() ? kNoSlotIndex : found->second);
      ASSERT_EQ(table.size(), model.size());
    }
  }
}

}  // namespace
}  // namespace kvtwin

// KeyedList against a vector: keys with and without the words that take memory only if needed.
#include "policy/index/keyed_list.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

TEST(KeyedList, KeepsWholeKeys) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    test::Splitmix random(seed);
    const std::uint64_t long_keys = seed % 4 == 0 ? 0 : random.below(20);  // of 1000
    KeyedList<int> list;
    std::vector<PageKey> model;
    std::vector<int> values;
    for (int step = 0; step < 2'000; ++step) {
      PageKey key{{random.next(), random.next(), 0, 0}};
      if (random.below(1'000) < long_keys) key.words[2 + random.below(2)] = random.next();
      if (model.empty() || random.chance(60)) {
        list.grow();
        model.emplace_back();
        values.emplace_back();
      }
      const std::size_t at = random.chance(50) ? model.size() - 1 : random.below(model.size());
      list.set_key(at, key);
      list[at] = values[at] = step;
      model[at] = key;
    }
    ASSERT_EQ(list.size(), model.size());
    for (std::size_t i = 0; i < model.size(); ++i) {
      ASSERT_EQ(list.key(i), model[i]) << seed << " " << i;
      ASSERT_EQ(list[i], values[i]) << seed << " " << i;
    }
  }
}

}  // namespace
}  // namespace kvtwin

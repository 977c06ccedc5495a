// PageStates against a map, with chains of pages that come in order, in parts and out of order.
#include "lab/report/page_states.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <unordered_map>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kChains = 400, kMaxLength = 60;

std::uint64_t page_of(std::uint64_t chain, std::uint64_t place) {
  return PageStates::fingerprint(test::mix(chain * kMaxLength + place + 1));
}

TEST(PageStates, FindsWhatAMapFinds) {
  test::Splitmix random(7);
  PageStates states;
  std::array<PageStates::Cursor, 2> cursors;
  std::unordered_map<std::uint64_t, std::uint64_t> model;  // the state, by fingerprint
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t chain = random.below(kChains), first = random.below(kMaxLength);
    const std::uint64_t end = first + 1 + random.below(kMaxLength - first);
    PageStates::Cursor& cursor = cursors[random.below(2)];
    const bool adds = random.chance(30);
    for (std::uint64_t place = first; place < end; ++place) {
      const std::uint64_t page = page_of(chain, place);
      const auto known = model.find(page);
      if (!adds) {
        const std::uint64_t* const word = states.find(page, cursor);
        ASSERT_EQ(word != nullptr, known != model.end());
        if (word != nullptr) {
          ASSERT_EQ(*word, page | known->second);
        }
        continue;
      }
      const auto [word, is_new] = states.add(page, cursor);
      ASSERT_EQ(is_new, known == model.end());
      ASSERT_EQ(*word, page | (is_new ? 0 : known->second));
      const std::uint64_t state = random.below(PageStates::kStateBits + 1);
      *word = page | state;
      model[page] = state;
    }
  }
  EXPECT_GT(model.size(), 10'000U);  // the table has grown several times
}

TEST(PageStates, KeepsPagesOfOnePlaceApart) {
  PageStates states;
  PageStates::Cursor cursor;
  // Equal upper halves: all of them belong into one cell. Each four of them have equal tags.
  const auto page = [](std::uint64_t i) {
    return PageStates::fingerprint((std::uint64_t{5} << 32) + (i / 4 << 12) + (i % 4 << 30));
  };
  for (std::uint64_t i = 0; i < 3'000; ++i) EXPECT_TRUE(states.add(page(i * 7 % 3'000), cursor).second);
  for (std::uint64_t i = 0; i < 3'000; ++i) EXPECT_FALSE(states.add(page(i), cursor).second);
  EXPECT_EQ(states.find(page(3'000), cursor), nullptr);
}

}  // namespace
}  // namespace kvtwin

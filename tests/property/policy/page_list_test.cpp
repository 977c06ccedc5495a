// Compares PageList with std::vector, over random sequences of the operations that the index uses.
#include "policy/base/page_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policy/base/types.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

SlotId make(std::uint64_t number, SlotId) { return static_cast<SlotId>(number); }
PageKey make(std::uint64_t number, const PageKey&) { return {{number, ~number, number << 7, 1}}; }

template <typename T>
class Lists : public ::testing::Test {
 protected:
  struct Pair {
    PageList<T> list;
    std::vector<T> model;
  };

  std::vector<T> some(std::size_t count) {
    std::vector<T> elements;
    for (std::size_t i = 0; i < count; ++i) elements.push_back(make(random_.next(), T{}));
    return elements;
  }

  void step(std::uint64_t action) {
    Pair& pair = pairs_[random_.below(pairs_.size())];
    Pair& other = pairs_[random_.below(pairs_.size())];
    const std::size_t size = pair.model.size();
    if (action == 0) {
      const std::vector<T> more = some(random_.chance(50) ? random_.below(4) : random_.below(300));
      pair.list.append(more);
      pair.model.insert(pair.model.end(), more.begin(), more.end());
    } else if (action == 1) {
      const std::size_t count =
          random_.chance(70) ? std::min<std::size_t>(size, random_.below(3)) : random_.below(size + 1);
      pair.list.drop_tail(count);
      pair.model.resize(size - count);
    } else if (action == 2 && &pair != &other) {
      const std::size_t count = random_.below(size + 1);
      other.list = pair.list.cut(count);
      const auto middle = pair.model.begin() + static_cast<std::ptrdiff_t>(count);
      other.model.assign(pair.model.begin(), middle);
      pair.model.erase(pair.model.begin(), middle);
    } else if (action == 3 && &pair != &other && size + other.model.size() < 2000) {
      pair.list.join(std::move(other.list));
      pair.model.insert(pair.model.end(), other.model.begin(), other.model.end());
      other.list = {};
      other.model.clear();
    } else if (action == 4) {
      PageList<T> moved(std::move(pair.list));
      pair.list = std::move(moved);
    }
  }

  test::Splitmix random_{11};
  std::vector<Pair> pairs_ = std::vector<Pair>(5);
};

using Elements = ::testing::Types<SlotId, PageKey>;
TYPED_TEST_SUITE(Lists, Elements);

TYPED_TEST(Lists, HoldWhatVectorsDo) {
  bool few = false, many = false;
  for (int i = 0; i < 20'000; ++i) {
    this->step(this->random_.below(5));
    for (const auto& [list, model] : this->pairs_) {
      ASSERT_EQ(list, std::span(model)) << i;
      ASSERT_EQ(list.empty(), model.empty());
      few |= model.size() == 1;
      many |= model.size() > 500;
    }
  }
  EXPECT_TRUE(few && many);
}

// Cuts the list at every position and joins it again.
TYPED_TEST(Lists, ArePutTogetherAgain) {
  const auto all = this->some(64);
  PageList<TypeParam> list{std::span<const TypeParam>(all)};
  for (std::size_t at = 0; at <= all.size(); ++at) {
    PageList<TypeParam> upper = list.cut(at);
    EXPECT_EQ(upper, std::span(all).first(at));
    EXPECT_EQ(list, std::span(all).subspan(at));
    upper.join(std::move(list));
    list = std::move(upper);
    EXPECT_EQ(list, std::span(all));
  }
}

}  // namespace
}  // namespace kvtwin

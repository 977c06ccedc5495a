// A slot of the medium may be damaged in every way: a read returns the stored page or nothing.
#include "tests/adversary/page_store.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "tests/policy_test_support.hpp"

namespace kvtwin::test {
namespace {

const PageKey kSpace = chain({77}).front();
const PageKey kOtherSpace = chain({78}).front();

Cause put(PageStore& store, const PageKey& key, MediumFault fault = MediumFault::none, std::uint64_t seed = 1) {
  Chance chance(seed);
  return store.put(kSpace, key, image_of(key), fault, chance);
}

struct Got {
  Cause cause = Cause::none;
  bool right = false;
};
Got get(PageStore& store, const PageKey& key, MediumFault fault = MediumFault::none, std::uint64_t seed = 1,
        const PageKey& space = kSpace) {
  Chance chance(seed);
  PageImage image{};
  Got got;
  got.cause = store.get(space, key, fault, chance, image);
  got.right = image == image_of(key);
  return got;
}

TEST(PageStore, gives_back_what_was_stored) {
  PageStore store(4, false);
  const auto keys = chain({1, 2, 3});
  for (const PageKey& key : keys) EXPECT_EQ(put(store, key), Cause::none);
  EXPECT_EQ(store.used(), 3U);
  for (const PageKey& key : keys) EXPECT_TRUE(get(store, key).right);
  store.remove(kSpace, keys[1]);
  EXPECT_FALSE(store.contains(kSpace, keys[1]));
  EXPECT_EQ(get(store, keys[1]).cause, Cause::missing);
  EXPECT_TRUE(get(store, keys[2]).right);
  store.clear();
  EXPECT_EQ(store.used(), 0U);
}

TEST(PageStore, keeps_spaces_apart) {
  PageStore store(4, false);
  const PageKey key = chain({1}).front();
  put(store, key);
  EXPECT_EQ(get(store, key, MediumFault::none, 1, kOtherSpace).cause, Cause::missing);
}

TEST(PageStore, refuses_when_full_or_drops_what_was_used_least_recently) {
  const auto keys = chain({1, 2, 3, 4});
  for (const bool evicts : {false, true}) {
    PageStore store(2, evicts);
    put(store, keys[0]);
    put(store, keys[1]);
    get(store, keys[0]);
    EXPECT_EQ(put(store, keys[1]), Cause::none) << "it is there already";
    get(store, keys[0]);
    EXPECT_EQ(put(store, keys[2]), evicts ? Cause::none : Cause::full);
    EXPECT_EQ(store.contains(kSpace, keys[1]), !evicts);
    EXPECT_TRUE(store.contains(kSpace, keys[0]));
    EXPECT_EQ(store.evicted(), evicts ? 1U : 0U);
    EXPECT_EQ(store.used(), 2U);
  }
}

// Returns how often a get ended with each cause, for a page that was written with this fault, over many seeds and on a
// medium that was used before.
std::map<Cause, int> after_writing(MediumFault fault, bool verifies = true, int* wrong = nullptr) {
  std::map<Cause, int> causes;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    PageStore store(3, false);
    if (!verifies) store.trust_the_medium();
    const auto before = chain({1, 2, 3}), keys = chain({4, 5, 6});
    for (const PageKey& key : before) put(store, key);
    for (const PageKey& key : before) store.remove(kSpace, key);
    put(store, keys[0]);
    put(store, keys[1], fault, seed);
    for (const PageKey& key : keys) {
      const Got got = get(store, key);
      if (got.cause == Cause::none && !got.right) {
        EXPECT_TRUE(!verifies) << "wrong bytes, seed " << seed;
        if (wrong != nullptr) ++*wrong;
      }
      if (got.cause == Cause::corrupt) {
        EXPECT_FALSE(store.contains(kSpace, key)) << "quarantined";
      }
    }
    ++causes[store.quarantined() > 0 ? Cause::corrupt : store.contains(kSpace, keys[1]) ? Cause::none : Cause::missing];
  }
  return causes;
}

TEST(PageStore, finds_every_damage_of_a_write) {
  using enum MediumFault;
  for (const MediumFault fault : {flipped_payload, flipped_header, flipped_key, torn_write, misdirected_write}) {
    const auto causes = after_writing(fault);
    EXPECT_EQ(causes.size(), 1U) << static_cast<int>(fault);
    EXPECT_EQ(causes.begin()->first, Cause::corrupt);
  }
  EXPECT_EQ(after_writing(lost_write).begin()->first, Cause::missing);
  EXPECT_EQ(after_writing(write_error).begin()->first, Cause::missing);
  EXPECT_EQ(after_writing(none).begin()->first, Cause::none);
}

TEST(PageStore, unverified_would_give_wrong_bytes) {
  using enum MediumFault;
  for (const MediumFault fault : {flipped_payload, torn_write, misdirected_write}) {
    int wrong = 0;
    after_writing(fault, false, &wrong);
    EXPECT_GT(wrong, 100) << static_cast<int>(fault);
  }
}

TEST(PageStore, finds_every_damage_of_a_read) {
  const auto keys = chain({1, 2});
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    PageStore store(2, false);
    put(store, keys[0]);
    put(store, keys[1]);
    EXPECT_EQ(get(store, keys[0], MediumFault::read_error, seed).cause, Cause::io_error);
    EXPECT_EQ(get(store, keys[0], MediumFault::short_read, seed).cause, Cause::io_error);
    EXPECT_TRUE(get(store, keys[0]).right) << "the medium has it still";
    EXPECT_EQ(get(store, keys[0], MediumFault::misdirected_read, seed).cause, Cause::corrupt);
    EXPECT_EQ(get(store, keys[0]).cause, Cause::missing) << "quarantined";
    EXPECT_TRUE(get(store, keys[1]).right);
  }
}

TEST(PageStore, says_that_there_is_no_room_or_an_error) {
  PageStore store(2, true);
  const PageKey key = chain({1}).front();
  EXPECT_EQ(put(store, key, MediumFault::no_room), Cause::full);
  EXPECT_EQ(put(store, key, MediumFault::write_error), Cause::io_error);
  EXPECT_EQ(store.used(), 0U);
  EXPECT_EQ(put(store, key, MediumFault::lost_write), Cause::none) << "so it says";
  EXPECT_EQ(get(store, key).cause, Cause::missing);
  EXPECT_EQ(put(store, key), Cause::none);
  EXPECT_TRUE(get(store, key).right);
}

}  // namespace
}  // namespace kvtwin::test

// Stores with pools beside the pages: windows, states, keys of an indexer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvtwin/store.h"
#include "models/json.hpp"
#include "policy/base/types.hpp"
#include "tests/folder.hpp"
#include "tests/redis_server.hpp"
#include "tests/splitmix.hpp"
#include "tests/unit/capi/opened_store.hpp"

namespace kvtwin::test {
namespace {

constexpr std::size_t kPageBytes = 2 * 2 * 2 * 64 * 16;
constexpr std::size_t kWindowBytes = kPageBytes / 2;
constexpr std::size_t kStateBytes = 50'001;  // no multiple of anything
constexpr std::size_t kBytes[] = {kPageBytes, kWindowBytes, kStateBytes};
constexpr std::size_t kWindow = 1, kState = 2;

std::vector<kvtwin_pool> pools_of() {
  std::vector<kvtwin_pool> pools(2);
  pools[0] = {sizeof(kvtwin_pool), "window", {sizeof(kvtwin_page_form), 1, 2, 2, 64, 16, "layer_first"}, 0, nullptr};
  pools[1] = {sizeof(kvtwin_pool), "state", {}, kStateBytes, "float32"};
  return pools;
}

kvtwin_store_config config_of(const char* kind, const std::string& location, const std::vector<kvtwin_pool>& pools) {
  kvtwin_store_config config{};
  config.struct_size = sizeof config;
  config.kind = kind;
  config.location = location.c_str();
  config.form = {sizeof config.form, 2, 2, 2, 64, 16, "layer_first"};
  config.identity = {sizeof config.identity, "tiny", "1", "bfloat16", 1, 1, 0, nullptr};
  config.timeout_ms = 60'000;  // the machine may be busy
  config.pools = pools.data();
  config.pool_count = pools.size();
  config.capacity_bytes = std::strcmp(kind, "remote") == 0 ? 0 : Bytes{8} << 20;
  return config;
}

std::vector<kvtwin_key> keys_of(std::uint64_t first, std::size_t count) {
  std::vector<kvtwin_key> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(key_of(first + i));
  return keys;
}

// The bytes of an object of this pool and number.
std::vector<unsigned char> bytes_of(std::size_t pool, std::uint64_t number) {
  std::vector<unsigned char> bytes(kBytes[pool]);
  Splitmix random(number * 3 + pool);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random.next());
  return bytes;
}

std::uint8_t put(const Store& store, std::size_t pool, std::uint64_t number) {
  std::vector<unsigned char> bytes = bytes_of(pool, number);
  const void* const address = bytes.data();
  const std::size_t length = bytes.size();
  const kvtwin_key key = key_of(number);
  std::uint8_t status = 255;
  EXPECT_EQ(kvtwin_store_put_objects(store.get(), pool, &key, 1, &address, &length, 1, &status), KVTWIN_OK);
  return status;
}

// Gets an object in two pieces, and checks its bytes.
std::uint8_t get(const Store& store, std::size_t pool, std::uint64_t number) {
  std::vector<unsigned char> bytes(kBytes[pool]);
  void* const addresses[] = {bytes.data(), bytes.data() + 1'000};
  const std::size_t lengths[] = {1'000, bytes.size() - 1'000};
  const kvtwin_key key = key_of(number);
  std::uint8_t status = 255;
  EXPECT_EQ(kvtwin_store_get_objects(store.get(), pool, &key, 1, addresses, lengths, 2, &status), KVTWIN_OK);
  if (status == KVTWIN_OK) {
    EXPECT_EQ(bytes, bytes_of(pool, number)) << "wrong bytes";
  }
  return status;
}

kvtwin_need need_of(std::uint32_t pool, std::uint64_t trailing, bool from_start) {
  return {sizeof(kvtwin_need), pool, trailing, from_start, 99};
}

// The usable lengths of a look-up, as a text: one digit for each key.
std::string usable(const Store& store, std::uint64_t first, std::size_t count, std::vector<kvtwin_need>& needs,
                   std::size_t expected_pages) {
  std::vector<std::uint8_t> lengths(count, 7);
  std::size_t pages = 99;
  EXPECT_EQ(kvtwin_store_look_up_usable(store.get(), keys_of(first, count).data(), count, needs.data(), needs.size(),
                                        lengths.data(), &pages),
            KVTWIN_OK);
  EXPECT_EQ(pages, expected_pages);
  std::string text;
  for (const std::uint8_t length : lengths) text += static_cast<char>('0' + length);
  return text;
}

Json stats(const Store& store) {
  std::string text(1 << 16, '\0');
  std::size_t needed = 0;
  EXPECT_EQ(kvtwin_store_stats(store.get(), text.data(), text.size(), &needed), KVTWIN_OK);
  return Json::parse(text.c_str());
}

class PoolsOfKind : public testing::TestWithParam<const char*> {
 protected:
  PoolsOfKind() : pools_(pools_of()) {
    location_ = folder_ / "store";
    if (std::string(GetParam()) == "remote") {
      server_ = std::make_unique<RedisProcess>();
      location_ = server_->url();
    }
  }
  kvtwin_store_config config() const { return config_of(GetParam(), location_, pools_); }

  Folder folder_;
  std::unique_ptr<RedisProcess> server_;
  std::string location_;
  std::vector<kvtwin_pool> pools_;
};

TEST_P(PoolsOfKind, EachPoolGivesBackWhatWasPut) {
  const Store store = opened(config());
  for (std::size_t pool = 0; pool < 3; ++pool) {
    EXPECT_EQ(kvtwin_store_object_bytes(store.get(), pool), kBytes[pool]);
    EXPECT_EQ(get(store, pool, 5), KVTWIN_MISSING);
    EXPECT_EQ(put(store, pool, 5), KVTWIN_OK);
    EXPECT_EQ(get(store, pool, 5), KVTWIN_OK);
    for (std::size_t later = pool + 1; later < 3; ++later) EXPECT_EQ(get(store, later, 5), KVTWIN_MISSING);
  }
  std::uint8_t status = 255;
  const kvtwin_key key = key_of(5);
  EXPECT_EQ(kvtwin_store_remove_objects(store.get(), kWindow, &key, 1, &status), KVTWIN_OK);
  EXPECT_EQ(get(store, 0, 5), KVTWIN_OK);
  EXPECT_EQ(get(store, kWindow, 5), KVTWIN_MISSING);
  EXPECT_EQ(get(store, kState, 5), KVTWIN_OK);
}

TEST_P(PoolsOfKind, ALookUpSaysWhichLengthsAreUsable) {
  const Store store = opened(config());
  for (std::uint64_t page = 0; page < 10; ++page) EXPECT_EQ(put(store, 0, page), KVTWIN_OK);
  for (const std::uint64_t page : {2U, 3U, 4U, 8U, 9U}) EXPECT_EQ(put(store, kWindow, page), KVTWIN_OK);
  for (const std::uint64_t page : {3U, 7U}) EXPECT_EQ(put(store, kState, page), KVTWIN_OK);
  std::vector<kvtwin_need> none, window{need_of(kWindow, 2, false)}, state{need_of(kState, 1, false)};
  std::vector<kvtwin_need> both{need_of(kWindow, 2, false), need_of(kState, 1, true)};
  EXPECT_EQ(usable(store, 0, 12, none, 10), "111111111100");
  EXPECT_EQ(usable(store, 0, 12, window, 10), "000110000100");
  EXPECT_EQ(window[0].longest, 10U);
  EXPECT_EQ(usable(store, 0, 12, state, 10), "000100010000");
  EXPECT_EQ(state[0].longest, 8U);
  EXPECT_EQ(usable(store, 0, 12, both, 10), "000100000000");
  EXPECT_EQ(both[0].longest, 10U);
  EXPECT_EQ(both[1].longest, 8U);
  std::vector<kvtwin_need> short_prefix{need_of(kWindow, 2, true)}, all{need_of(kWindow, 0, false)};
  EXPECT_EQ(usable(store, 2, 8, short_prefix, 8), "11100001") << "the first key is the start";
  EXPECT_EQ(usable(store, 2, 8, all, 8), "11100000");
  EXPECT_EQ(all[0].longest, 3U);
  EXPECT_EQ(usable(store, 20, 3, both, 0), "000");
  std::vector<kvtwin_need> wrong{need_of(3, 1, false)};
  std::uint8_t byte = 0;
  std::size_t pages = 0;
  const kvtwin_key key = key_of(0);
  for (const std::uint32_t pool : {0U, 3U}) {
    wrong[0].pool = pool;
    EXPECT_EQ(kvtwin_store_look_up_usable(store.get(), &key, 1, wrong.data(), 1, &byte, &pages), KVTWIN_BAD_ARGUMENT);
  }
}

TEST_P(PoolsOfKind, PoolsAreFoundAgainByTheirNames) {
  {
    const Store store = opened(config());
    for (std::size_t pool = 0; pool < 3; ++pool) EXPECT_EQ(put(store, pool, 1), KVTWIN_OK);
  }
  std::swap(pools_[0], pools_[1]);  // another order
  const Store store = opened(config());
  std::vector<kvtwin_need> needs{need_of(1, 1, false), need_of(2, 1, false)};
  EXPECT_EQ(kvtwin_store_object_bytes(store.get(), 1), kStateBytes);
  EXPECT_EQ(usable(store, 1, 1, needs, 1), "1");
}

TEST_P(PoolsOfKind, ObjectsOfAnotherNameOrSizeAreNotMixed) {
  {
    const Store store = opened(config());
    EXPECT_EQ(put(store, kState, 1), KVTWIN_OK);
  }
  pools_[1].name = "other";
  EXPECT_EQ(get(opened(config()), kState, 1), KVTWIN_MISSING);
  pools_[1].name = "state", pools_[1].identity = "bfloat16";
  EXPECT_EQ(get(opened(config()), kState, 1), KVTWIN_MISSING);
  pools_[1].identity = "float32";
  EXPECT_EQ(get(opened(config()), kState, 1), KVTWIN_OK);
  pools_[1].object_bytes = kStateBytes + 1;
  const Store store = opened(config());
  std::vector<unsigned char> bytes(kStateBytes + 1);
  void* const address = bytes.data();
  const std::size_t length = bytes.size();
  std::uint8_t status = 255;
  const kvtwin_key key = key_of(1);
  EXPECT_EQ(kvtwin_store_get_objects(store.get(), kState, &key, 1, &address, &length, 1, &status), KVTWIN_OK);
  EXPECT_EQ(status, KVTWIN_MISSING);
}

// Pages that a store without pools has put, as every store of an earlier version.
TEST_P(PoolsOfKind, PagesOfAStoreWithoutPoolsAreThere) {
  kvtwin_store_config plain = config();
  plain.pools = nullptr, plain.pool_count = 0;
  plain.struct_size = offsetof(kvtwin_store_config, pools);
  plain.capacity_pages = plain.capacity_bytes == 0 ? 0 : 64;
  EXPECT_EQ(put(opened(plain), 0, 3), KVTWIN_OK);
  {
    const Store store = opened(config());
    EXPECT_EQ(get(store, 0, 3), KVTWIN_OK);
    EXPECT_EQ(put(store, kState, 3), KVTWIN_OK);
  }
  EXPECT_EQ(get(opened(plain), 0, 3), KVTWIN_OK) << "and the other way";
  EXPECT_EQ(get(opened(config()), kState, 3), KVTWIN_OK);
}

TEST_P(PoolsOfKind, CountsByPool) {
  const Store store = opened(config());
  put(store, 0, 1), put(store, kWindow, 1), put(store, kWindow, 2), get(store, kState, 1);
  const Json counted = stats(store);
  EXPECT_EQ(counted["puts"]["ok"], 1);
  ASSERT_EQ(counted["pools"].size(), 2U);
  EXPECT_EQ(counted["pools"][0]["name"], "window");
  EXPECT_EQ(counted["pools"][0]["puts"]["bytes"], 2 * kWindowBytes);
  EXPECT_EQ(counted["pools"][1]["object_bytes"], kStateBytes);
  EXPECT_EQ(counted["pools"][1]["gets"]["missing"], 1);
  EXPECT_FALSE(counted["pools"][1]["medium"].empty());
}

// Objects of random pools, more than the store holds. Whatever is read is right, and the latest objects are there.
TEST_P(PoolsOfKind, AFullStoreServesAllPools) {
  const Store store = opened(config());
  Splitmix random(7);
  std::uint64_t number = 0;
  for (std::uint64_t page = 0; page < 400; ++page) EXPECT_EQ(put(store, 0, number++), KVTWIN_OK);
  for (int round = 0; round < 400; ++round) {
    const std::size_t pool = random.below(3);
    EXPECT_EQ(put(store, pool, ++number), KVTWIN_OK) << "pool " << pool << ", round " << round;
    EXPECT_EQ(get(store, pool, number), KVTWIN_OK) << "pool " << pool << ", round " << round;
    get(store, random.below(3), random.below(number));
  }
  if (server_) return;
  const Json counted = stats(store);
  std::uint64_t evicted = 0;
  for (const Json& pool : {counted, counted["pools"][0], counted["pools"][1]}) {
    evicted += pool["medium"].value("pages_evicted", 0U) + pool["medium"].value("evicted_pages", 0U);
    EXPECT_EQ(pool["gets"]["corrupt"], 0);
  }
  EXPECT_GT(evicted, 100U);
}

// What is there already takes no room from others.
TEST_P(PoolsOfKind, PutsOfWhatIsThereEvictNothing) {
  if (server_) return;  // it has its own limit
  const Store store = opened(config());
  for (std::uint64_t number = 0; number < 200; ++number) {
    EXPECT_EQ(put(store, number % 3, number), KVTWIN_OK);
  }
  const auto evicted = [&] {
    std::uint64_t all = 0;
    const Json counted = stats(store);
    for (const Json& pool : {counted, counted["pools"][0], counted["pools"][1]}) {
      all += pool["medium"].value("pages_evicted", 0U) + pool["medium"].value("evicted_pages", 0U);
    }
    return all;
  };
  const std::uint64_t before = evicted();
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t number = 180; number < 200; ++number) EXPECT_EQ(put(store, number % 3, number), KVTWIN_OK);
  }
  EXPECT_EQ(evicted(), before);
}

// What is on the medium stays near the capacity, whatever the mix was before.
TEST_P(PoolsOfKind, TheCapacityHoldsForAllPoolsTogether) {
  if (server_) return;  // it has its own limit
  kvtwin_store_config small = config();
  small.capacity_bytes = Bytes{4} << 20;
  const auto on_medium = [&] {
    Bytes bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(location_)) {
      if (entry.is_regular_file()) bytes += entry.file_size();
    }
    return bytes;
  };
  std::uint64_t number = 0;
  Bytes most = 0;
  for (int round = 0; round < 3; ++round) {
    const Store store = opened(small);
    for (const std::size_t pool : {0U, 2U, 1U, 0U}) {
      for (Bytes put_bytes = 0; put_bytes < small.capacity_bytes; put_bytes += kBytes[pool]) {
        EXPECT_EQ(put(store, pool, ++number), KVTWIN_OK);
      }
      EXPECT_EQ(get(store, pool, number), KVTWIN_OK);
      most = std::max(most, on_medium());
    }
  }
  // Of a disk, an eighth more for segments that are rewritten, and two segments of a sixteenth more for each pool.
  EXPECT_LE(most, std::string(GetParam()) == "disk" ? small.capacity_bytes * 13 / 8 : small.capacity_bytes * 17 / 16);
}

TEST_P(PoolsOfKind, ADamagedObjectIsCorruptThenMissing) {
  if (server_) return;
  {
    const Store store = opened(config());
    for (std::size_t pool = 0; pool < 3; ++pool) EXPECT_EQ(put(store, pool, 1), KVTWIN_OK);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(location_)) {
    if (!entry.is_regular_file() || entry.file_size() < kWindowBytes) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = std::string(GetParam()) == "disk" ? 2 * 4096 + 2'000 : 2'000;
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
  const Store store = opened(config());
  for (std::size_t pool = 0; pool < 3; ++pool) {
    EXPECT_EQ(get(store, pool, 1), KVTWIN_CORRUPT) << pool;
    EXPECT_EQ(get(store, pool, 1), KVTWIN_MISSING) << pool;
    EXPECT_EQ(put(store, pool, 1), KVTWIN_OK) << pool;
    EXPECT_EQ(get(store, pool, 1), KVTWIN_OK) << pool;
  }
}

TEST_P(PoolsOfKind, ThreadsMayUseAllPoolsAtTheSameTime) {
  const Store store = opened(config());
  std::atomic<std::uint64_t> right = 0;
  std::vector<std::thread> threads;
  for (unsigned me = 0; me < 6; ++me) {
    threads.emplace_back([&, me] {
      Splitmix random(me);
      for (int round = 0; round < 60; ++round) {
        const std::uint64_t number = random.below(30);
        if (random.below(3) == 0) {
          put(store, me % 3, number);
        } else if (random.below(3) == 0) {
          std::vector<kvtwin_need> needs{need_of(kWindow, 3, true), need_of(kState, 1, false)};
          std::vector<std::uint8_t> lengths(8);
          std::size_t pages = 0;
          EXPECT_EQ(kvtwin_store_look_up_usable(store.get(), keys_of(number, 8).data(), 8, needs.data(), 2,
                                                lengths.data(), &pages),
                    KVTWIN_OK);
        } else if (get(store, random.below(3), number) == KVTWIN_OK) {
          ++right;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(right, 0U);
}

std::string name_of_kind(const testing::TestParamInfo<const char*>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(CInterface, PoolsOfKind, testing::Values("disk", "shared_fs"), name_of_kind);
#if KVTWIN_HAVE_REDIS
INSTANTIATE_TEST_SUITE_P(CInterfaceRemote, PoolsOfKind, testing::Values("remote"), name_of_kind);
#endif

TEST(CInterface, RefusesBadPoolsWithASentence) {
  const Folder folder;
  const std::string location = folder / "store";
  struct Bad {
    void (*change)(kvtwin_store_config&, std::vector<kvtwin_pool>&);
    const char* text;
  };
  const std::vector<Bad> cases{
      {[](auto& c, auto&) { c.pools = nullptr; }, "pools is NULL"},
      {[](auto& c, auto&) { c.pool_count = 32; }, "pool_count is above 31"},
      {[](auto& c, auto&) { c.capacity_bytes = 0; },
       "capacity_bytes is 0; set it to the bytes that the pages and pools"},
      {[](auto& c, auto&) { c.capacity_pages = 7; }, "capacity_pages and capacity_bytes are set"},
      {[](auto& c, auto&) { c.capacity_bytes = kStateBytes; },
       "less than an object of pool \"state\" with its header, 57344"},
      {[](auto&, auto& p) { p[0].struct_size = 8; }, "pools[0].struct_size is 8"},
      {[](auto&, auto& p) { p[1].name = "window"; }, "two pools are named \"window\""},
      {[](auto&, auto& p) { p[1].name = ""; }, "the name of a pool is empty"},
      {[](auto&, auto& p) { p[1].name = "../state"; }, "a name has 1 to 48 of a-z"},
      {[](auto&, auto& p) { p[0].object_bytes = 5; }, "pool \"window\": give a form, or object_bytes"},
      {[](auto&, auto& p) { p[1].object_bytes = 0; }, "pool \"state\": give a form, or object_bytes"},
      {[](auto&, auto& p) { p[1].object_bytes = 1ULL << 31; }, "at most 2047 MiB"},
      {[](auto&, auto& p) { p[0].form.planes = 3; }, "pool \"window\": form.planes is 3"},
  };
  for (const Bad& bad : cases) {
    std::vector<kvtwin_pool> pools = pools_of();
    kvtwin_store_config config = config_of("disk", location, pools);
    bad.change(config, pools);
    EXPECT_NE(refusal(config).find(bad.text), std::string::npos) << bad.text << " <> " << refusal(config);
  }
  EXPECT_FALSE(std::filesystem::exists(location)) << "a refused configuration leaves nothing behind";
}

// A state of 300 MiB: a segment of its own, which goes with it.
TEST(CInterface, LargeStatesTakeTheirOwnRoom) {
  constexpr std::size_t kLarge = std::size_t{300} << 20;
  const Folder folder;
  std::vector<kvtwin_pool> pools = pools_of();
  pools[1].object_bytes = kLarge;
  for (const char* kind : {"disk", "shared_fs"}) {
    const std::string location = folder / kind;
    kvtwin_store_config config = config_of(kind, location, pools);
    config.capacity_bytes = kLarge + (Bytes{8} << 20);
    const Store store = opened(config);
    std::vector<unsigned char> bytes(kLarge);
    void* const address = bytes.data();
    for (std::uint64_t number = 0; number < 3; ++number) {
      bytes[kLarge / 2] = static_cast<unsigned char>(number + 1);
      const kvtwin_key key = key_of(number);
      std::uint8_t status = 255;
      EXPECT_EQ(kvtwin_store_put_objects(store.get(), kState, &key, 1, &address, &kLarge, 1, &status), KVTWIN_OK);
      EXPECT_EQ(status, KVTWIN_OK) << kind << number;
      bytes[kLarge / 2] = 0;
      EXPECT_EQ(kvtwin_store_get_objects(store.get(), kState, &key, 1, &address, &kLarge, 1, &status), KVTWIN_OK);
      EXPECT_EQ(status, KVTWIN_OK) << kind << number;
      EXPECT_EQ(bytes[kLarge / 2], number + 1);
    }
    EXPECT_EQ(put(store, 0, 1), KVTWIN_OK);
    Bytes on_medium = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(location)) {
      if (entry.is_regular_file()) on_medium += entry.file_size();
    }
    EXPECT_LE(on_medium, 4 * kLarge) << kind;
  }
}

}  // namespace
}  // namespace kvtwin::test

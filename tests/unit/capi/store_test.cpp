#include "kvtwin/store.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "models/json.hpp"
#include "tests/folder.hpp"
#include "tests/redis_server.hpp"
#include "tests/splitmix.hpp"
#include "tests/unit/capi/opened_store.hpp"

namespace {
thread_local std::size_t max_allocation = ~std::size_t{0};  // larger ones fail on this thread
}
void* operator new(std::size_t bytes) {
  void* const memory = bytes > max_allocation ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Sanitizers have their own, which does not call the one above.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return bytes > max_allocation ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace kvtwin::test {
namespace {

constexpr std::size_t kPieces = 4;  // 2 planes of 2 layers
constexpr std::size_t kPageBytes = 2 * 2 * 2 * 64 * 16;

kvtwin_store_config config_of(const char* kind, const std::string& location) {
  kvtwin_store_config config{};
  config.struct_size = sizeof config;
  config.kind = kind;
  config.location = location.c_str();
  config.form = {sizeof config.form, 2, 2, 2, 64, 16, "layer_first"};
  config.identity = {sizeof config.identity, "tiny", "1", "bfloat16", 2, 1, 1, nullptr};
  config.capacity_pages = std::strcmp(kind, "remote") == 0 ? 0 : 64;
  config.timeout_ms = 60'000;  // the machine may be busy
  return config;
}

// Memory of pages, each in pieces that do not lie beside each other.
class PageBuffers {
 public:
  explicit PageBuffers(std::size_t pages, std::size_t pieces = kPieces) : pieces_(pieces), bytes_(pages * kPageBytes) {
    const std::size_t piece_bytes = kPageBytes / pieces;
    for (std::size_t page = 0; page < pages; ++page) {
      for (std::size_t piece = 0; piece < pieces; ++piece) {
        addresses_.push_back(bytes_.data() + (piece * pages + page) * piece_bytes);
        lengths_.push_back(piece_bytes);
      }
    }
  }
  void fill(std::size_t page, std::uint64_t number) {
    for_each(page, [&](unsigned char* byte, std::size_t i) { *byte = byte_of(number, i); });
  }
  bool holds(std::size_t page, std::uint64_t number) const {
    bool right = true;
    for_each(page, [&](const unsigned char* byte, std::size_t i) { right = right && *byte == byte_of(number, i); });
    return right;
  }
  void clear() { std::ranges::fill(bytes_, static_cast<unsigned char>(0)); }

  void** addresses() { return addresses_.data(); }
  std::size_t* lengths() { return lengths_.data(); }
  std::size_t pieces() const { return pieces_; }

 private:
  static unsigned char byte_of(std::uint64_t number, std::size_t i) {
    return static_cast<unsigned char>(mix(number + i / 8) >> (8 * (i % 8)));
  }
  template <class Use>
  void for_each(std::size_t page, Use use) const {
    std::size_t at = 0;
    for (std::size_t piece = page * pieces_; piece < (page + 1) * pieces_; ++piece) {
      auto* bytes = static_cast<unsigned char*>(addresses_[piece]);
      for (std::size_t i = 0; i < lengths_[piece]; ++i, ++at) use(bytes + i, at);
    }
  }

  std::size_t pieces_;
  std::vector<unsigned char> bytes_;
  std::vector<void*> addresses_;
  std::vector<std::size_t> lengths_;
};

std::vector<kvtwin_key> keys_of(std::uint64_t first, std::size_t count) {
  std::vector<kvtwin_key> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(key_of(first + i));
  return keys;
}

std::vector<std::uint8_t> put(kvtwin_store* store, std::uint64_t first, std::size_t count) {
  PageBuffers pages(count);
  for (std::size_t i = 0; i < count; ++i) pages.fill(i, first + i);
  std::vector<std::uint8_t> status(count, 255);
  EXPECT_EQ(kvtwin_store_put(store, keys_of(first, count).data(), count, pages.addresses(), pages.lengths(),
                             pages.pieces(), status.data()),
            KVTWIN_OK);
  return status;
}

// Gets pages and checks that each page with the status OK has its bytes.
std::vector<std::uint8_t> get(kvtwin_store* store, std::uint64_t first, std::size_t count,
                              std::size_t pieces = kPieces) {
  PageBuffers pages(count, pieces);
  std::vector<std::uint8_t> status(count, 255);
  EXPECT_EQ(kvtwin_store_get(store, keys_of(first, count).data(), count, pages.addresses(), pages.lengths(),
                             pages.pieces(), status.data()),
            KVTWIN_OK);
  for (std::size_t i = 0; i < count; ++i) {
    if (status[i] == KVTWIN_OK) {
      EXPECT_TRUE(pages.holds(i, first + i)) << "wrong bytes of page " << first + i;
    }
  }
  return status;
}

std::size_t look_up(kvtwin_store* store, std::uint64_t first, std::size_t count) {
  std::size_t pages = 99;
  EXPECT_EQ(kvtwin_store_look_up(store, keys_of(first, count).data(), count, &pages), KVTWIN_OK);
  return pages;
}

Json stats(kvtwin_store* store) {
  std::string text;
  std::size_t needed = 0;
  EXPECT_EQ(kvtwin_store_stats(store, nullptr, 0, &needed), KVTWIN_OK);
  while (text.size() < needed) {  // other threads may make the text longer
    text.resize(needed);
    EXPECT_EQ(kvtwin_store_stats(store, text.data(), text.size(), &needed), KVTWIN_OK);
  }
  return Json::parse(text.c_str());
}

const std::vector<std::uint8_t> kAllOk3(3, KVTWIN_OK), kAllMissing3(3, KVTWIN_MISSING);

struct StoreKind {
  const char* kind;
  bool needs_server;
};

class StoreOfKind : public testing::TestWithParam<StoreKind> {
 protected:
  StoreOfKind() {
    if (GetParam().needs_server) server_ = std::make_unique<RedisProcess>();
    location_ = server_ ? server_->url() : folder_ / "store";
  }
  kvtwin_store_config config() const { return config_of(GetParam().kind, location_); }

 private:
  Folder folder_;
  std::unique_ptr<RedisProcess> server_;
  std::string location_;
};

TEST_P(StoreOfKind, GivesBackWhatWasPut) {
  const Store store = opened(config());
  EXPECT_EQ(kvtwin_store_page_bytes(store.get()), kPageBytes);
  EXPECT_EQ(look_up(store.get(), 0, 3), 0);
  EXPECT_EQ(get(store.get(), 0, 3), kAllMissing3);
  EXPECT_EQ(put(store.get(), 0, 3), kAllOk3);
  EXPECT_EQ(look_up(store.get(), 0, 5), 3);
  EXPECT_EQ(get(store.get(), 0, 3), kAllOk3);
  for (const std::size_t pieces : {std::size_t{1}, std::size_t{2}, std::size_t{8}, kPageBytes}) {
    EXPECT_EQ(get(store.get(), 0, 3, pieces), kAllOk3);
  }
  EXPECT_EQ(put(store.get(), 0, 3), kAllOk3) << "a page that is there counts as stored";
}

TEST_P(StoreOfKind, FindsPagesOfAnEarlierStore) {
  EXPECT_EQ(put(opened(config()).get(), 0, 3), kAllOk3);
  const Store store = opened(config());
  EXPECT_EQ(look_up(store.get(), 0, 5), 3);
  EXPECT_EQ(get(store.get(), 0, 3), kAllOk3);
}

TEST_P(StoreOfKind, RemovedPagesAreMissing) {
  const Store store = opened(config());
  EXPECT_EQ(put(store.get(), 0, 4), std::vector<std::uint8_t>(4, KVTWIN_OK));
  std::uint8_t status[2] = {255, 255};
  const std::vector<kvtwin_key> keys{key_of(1), key_of(77)};
  EXPECT_EQ(kvtwin_store_remove(store.get(), keys.data(), 2, status), KVTWIN_OK);
  EXPECT_EQ(status[0], KVTWIN_OK);
  EXPECT_EQ(status[1], KVTWIN_OK) << "a page that is not there";
  EXPECT_EQ(look_up(store.get(), 0, 4), 1);
  EXPECT_EQ(get(store.get(), 0, 3), (std::vector<std::uint8_t>{KVTWIN_OK, KVTWIN_MISSING, KVTWIN_OK}));
}

// Also a page that was put again with other bytes, and also after the store was closed.
TEST_P(StoreOfKind, RemovedPagesStayMissingAfterAClose) {
  std::uint8_t status = 255;
  {
    const Store store = opened(config());
    EXPECT_EQ(put(store.get(), 0, 3), kAllOk3);
    const kvtwin_key key = key_of(1);
    EXPECT_EQ(kvtwin_store_remove(store.get(), &key, 1, &status), KVTWIN_OK);
  }
  EXPECT_EQ(get(opened(config()).get(), 0, 3), (std::vector<std::uint8_t>{KVTWIN_OK, KVTWIN_MISSING, KVTWIN_OK}));
}

// Another dtype of the same size, another rank, another model, another namespace: the same form and the same keys.
TEST_P(StoreOfKind, StoresOfOtherIdentitiesSeeNothing) {
  EXPECT_EQ(put(opened(config()).get(), 0, 3), kAllOk3);
  std::vector<kvtwin_store_config> others(13, config());
  others[0].identity.kv_dtype = "float16";
  others[1].identity.rank = 0;
  others[2].identity.model = "another";
  others[3].identity.name_space = "tenant";
  others[4].identity.revision = "2";
  others[5].form.layout = "page_first";
  others[6].identity.tp = 4;
  others[7].identity.pp = 2;
  others[8].form.layers = 4, others[8].form.heads = 1;
  others[9].form.layers = 4, others[9].form.planes = 1;
  others[10].form.heads = 4, others[10].form.head_bytes = 32;
  others[11].form.heads = 1, others[11].form.head_bytes = 128;
  others[12].form.head_bytes = 128, others[12].form.page_tokens = 8;
  for (const kvtwin_store_config& other : others) {
    const Store store = opened(other);
    EXPECT_EQ(look_up(store.get(), 0, 3), 0);
    EXPECT_EQ(get(store.get(), 0, 3), kAllMissing3);
  }
}

// Pages of equal size with the same identity and key, in one place. In a folder of segments, a store of another form
// may need the room of the first one's pages.
TEST_P(StoreOfKind, StoresOfOtherFormsLeaveEachOthersPages) {
  std::vector<kvtwin_store_config> forms(4, config());
  forms[1].form.layers = 4, forms[1].form.heads = 1;
  forms[2].form.heads = 4, forms[2].form.head_bytes = 32;
  forms[3].form.layout = "page_head";
  for (int round = 0; round < 2; ++round) {
    for (const kvtwin_store_config& form : forms) {
      const Store store = opened(form);
      EXPECT_EQ(get(store.get(), 0, 3), round == 0 ? kAllMissing3 : kAllOk3);
      EXPECT_EQ(put(store.get(), 0, 3), kAllOk3);
      EXPECT_EQ(stats(store.get())["gets"]["corrupt"], 0);
    }
  }
}

TEST_P(StoreOfKind, AForkedChildCannotDisturbItsParent) {
  kvtwin_store* store = opened(config()).release();
  EXPECT_EQ(put(store, 0, 3), kAllOk3);
  const pid_t child = fork();
  if (child == 0) {
    const kvtwin_key key = key_of(0);
    std::size_t count = 0;
    std::uint8_t status = 0;
    const bool refused = kvtwin_store_look_up(store, &key, 1, &count) == KVTWIN_FAILED &&
                         kvtwin_store_remove(store, &key, 1, &status) == KVTWIN_FAILED &&
                         kvtwin_store_stats(store, nullptr, 0, &count) == KVTWIN_FAILED;
    kvtwin_store_close(store);
    _exit(refused ? 7 : 1);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 7) << ended;
  EXPECT_EQ(get(store, 0, 3), kAllOk3);
  EXPECT_EQ(put(store, 3, 3), kAllOk3);
  EXPECT_EQ(look_up(store, 0, 9), 6);
  kvtwin_store_close(store);
}

TEST_P(StoreOfKind, ASecretHidesPages) {
  kvtwin_store_config secret = config();
  secret.secret = "sixteen letters.";
  EXPECT_EQ(put(opened(secret).get(), 0, 3), kAllOk3);
  EXPECT_EQ(get(opened(config()).get(), 0, 3), kAllMissing3);
  EXPECT_EQ(get(opened(secret).get(), 0, 3), kAllOk3);
}

TEST_P(StoreOfKind, CountsItsCalls) {
  const auto begin = std::chrono::steady_clock::now();
  const Store store = opened(config());
  put(store.get(), 0, 3);
  get(store.get(), 1, 3);
  look_up(store.get(), 0, 5);
  const Json counted = stats(store.get());
  EXPECT_EQ(counted["kind"], GetParam().kind);
  EXPECT_EQ(counted["puts"]["pages"], 3);
  EXPECT_EQ(counted["puts"]["ok"], 3);
  EXPECT_EQ(counted["puts"]["bytes"], 3 * kPageBytes);
  EXPECT_EQ(counted["gets"]["ok"], 2);
  EXPECT_EQ(counted["gets"]["missing"], 1);
  EXPECT_EQ(counted["look_ups"]["pages"], 5);
  EXPECT_EQ(counted["look_ups"]["found"], 3);
  EXPECT_EQ(counted["gets"]["bytes"], 2 * kPageBytes);
  EXPECT_EQ(counted["look_ups"]["calls"], 1);
  EXPECT_FALSE(counted["medium"].empty());
  std::vector<std::uint8_t> status(2);
  EXPECT_EQ(kvtwin_store_remove(store.get(), keys_of(0, 2).data(), 2, status.data()), KVTWIN_OK);
  const Json removed = stats(store.get())["removes"];
  EXPECT_EQ(removed["calls"], 1);
  EXPECT_EQ(removed["pages"], 2);
  EXPECT_EQ(removed["ok"], 2);
  EXPECT_EQ(removed["bytes"], 0);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  double seconds = 0;
  for (const char* call : {"look_ups", "gets", "puts"}) {
    EXPECT_GT(counted[call]["seconds"], 0.0) << call;
    seconds += counted[call]["seconds"].get<double>();
  }
  EXPECT_LE(seconds, elapsed.count());
}

// Threads that put, get, look up and remove pages of one store: each page that is read is right.
TEST_P(StoreOfKind, EightThreadsMayCallAtTheSameTime) {
  const Store store = opened(config());
  std::atomic<std::uint64_t> right = 0, other = 0;
  std::vector<std::thread> threads;
  for (unsigned me = 0; me < 8; ++me) {
    threads.emplace_back([&, me] {
      Splitmix random(me);
      for (int round = 0; round < 40; ++round) {
        const std::uint64_t first = random.below(40);
        const std::size_t count = random.between(1, 6);
        switch ((me + static_cast<unsigned>(round)) % 4) {
          case 0: put(store.get(), first, count); break;
          case 1:
            for (const std::uint8_t status : get(store.get(), first, count)) ++(status == KVTWIN_OK ? right : other);
            break;
          case 2: look_up(store.get(), first, count); break;
          default: {
            std::vector<std::uint8_t> status(count);
            kvtwin_store_remove(store.get(), keys_of(first, count).data(), count, status.data());
            stats(store.get());
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Json counted = stats(store.get());
  EXPECT_EQ(counted["gets"]["ok"], right.load());
  EXPECT_EQ(counted["gets"]["missing"], other.load());
  EXPECT_EQ(counted["gets"]["corrupt"], 0);
}

std::string name_of_kind(const testing::TestParamInfo<StoreKind>& info) { return info.param.kind; }
INSTANTIATE_TEST_SUITE_P(CInterface, StoreOfKind,
                         testing::Values(StoreKind{"disk", false}, StoreKind{"shared_fs", false}), name_of_kind);
#if KVTWIN_HAVE_REDIS
INSTANTIATE_TEST_SUITE_P(CInterfaceRemote, StoreOfKind, testing::Values(StoreKind{"remote", true}), name_of_kind);

TEST(CInterface, AServerThatIsGoneIsUnreachableAndNothingElse) {
  auto server = std::make_unique<RedisProcess>();
  const std::string location = server->url();
  const Store store = opened(config_of("remote", location));
  EXPECT_EQ(put(store.get(), 0, 3), kAllOk3);
  server.reset();
  EXPECT_EQ(get(store.get(), 0, 3), std::vector<std::uint8_t>(3, KVTWIN_UNREACHABLE));
  std::size_t pages = 99;
  EXPECT_EQ(kvtwin_store_look_up(store.get(), keys_of(0, 3).data(), 3, &pages), KVTWIN_UNREACHABLE);
  EXPECT_EQ(pages, 0);
  EXPECT_EQ(stats(store.get())["gets"]["unreachable"], 3);
}
#endif

TEST_P(StoreOfKind, AFullStoreEvictsWhatWasUsedLongestAgo) {
  if (GetParam().needs_server) return;  // its server evicts
  kvtwin_store_config small = config();
  small.capacity_pages = 16;
  const Store store = opened(small);
  for (std::uint64_t page = 0; page < 64; ++page) {
    EXPECT_EQ(put(store.get(), page, 1), std::vector<std::uint8_t>(1, KVTWIN_OK)) << page;
  }
  EXPECT_EQ(look_up(store.get(), 52, 20), 12) << "the newest pages";
  EXPECT_EQ(look_up(store.get(), 0, 1), 0) << "the oldest page";
  const Json counted = stats(store.get());
  EXPECT_EQ(counted["puts"]["full"], 0);
  EXPECT_EQ(counted["medium"].value("pages_evicted", 0) + counted["medium"].value("evicted_pages", 0), 48);
  EXPECT_EQ(put(store.get(), 100, 40), std::vector<std::uint8_t>(40, KVTWIN_OK)) << "more pages than the capacity";
}

// "No limit", as a user may write it.
TEST_P(StoreOfKind, AVeryLargeCapacityEvictsNothing) {
  if (GetParam().needs_server || std::strcmp(config().kind, "disk") == 0) return;  // a disk has room for its index
  kvtwin_store_config large = config();
  large.capacity_pages = std::uint64_t{1} << 60;
  const Store store = opened(large);
  EXPECT_EQ(put(store.get(), 0, 20), std::vector<std::uint8_t>(20, KVTWIN_OK));
  EXPECT_EQ(look_up(store.get(), 0, 20), 20);
}

TEST(CInterface, TheEvictionOfADiskHasAName) {
  const Folder folder;
  const std::string location = folder / "store";
  kvtwin_store_config config = config_of("disk", location);
  config.capacity_pages = 2;
  for (const char* eviction : {"lru", "fifo"}) {
    config.eviction = eviction;
    const Store store = opened(config);
    put(store.get(), 0, 2);
    get(store.get(), 0, 1);
    put(store.get(), 2, 1);
    const bool lru = std::strcmp(eviction, "lru") == 0;
    EXPECT_EQ(look_up(store.get(), 0, 1), lru ? 1U : 0U) << eviction;
    EXPECT_EQ(look_up(store.get(), 1, 1), lru ? 0U : 1U) << eviction;
    std::vector<std::uint8_t> status(3);
    kvtwin_store_remove(store.get(), keys_of(0, 3).data(), 3, status.data());
  }
}

// A program that was compiled with an earlier version passes a structure without the eviction (1.0), or without the
// pools (1.1).
TEST(CInterface, TakesTheConfigurationsOfEarlierVersions) {
  const Folder folder;
  const std::string location = folder / "store";
  kvtwin_store_config config = config_of("disk", location);
  config.capacity_pages = 2;
  config.capacity_bytes = 1, config.pool_count = 1, config.pools = nullptr;  // memory behind the older structure
  config.struct_size = offsetof(kvtwin_store_config, pools);
  EXPECT_EQ(put(opened(config).get(), 0, 3), kAllOk3);
  config.eviction = "no such policy";
  config.struct_size = offsetof(kvtwin_store_config, eviction);
  EXPECT_EQ(put(opened(config).get(), 0, 3), kAllOk3);
}

// Flips one bit in the middle of each file of the store.
void flip_a_bit_of_every_file(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.file_size() < kPageBytes) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(4096 + 4096 + kPageBytes / 2);
    const auto place = static_cast<std::uintmax_t>(at) < entry.file_size() ? at : std::streamoff{kPageBytes / 2};
    file.seekg(place);
    const int byte = file.get();
    file.seekp(place);
    file.put(static_cast<char>(byte ^ 1));
  }
}

TEST(CInterface, ADamagedPageIsCorruptThenMissing) {
  for (const char* kind : {"disk", "shared_fs"}) {
    const Folder folder;
    const std::string location = folder / "store";
    EXPECT_EQ(put(opened(config_of(kind, location)).get(), 0, 1), std::vector<std::uint8_t>(1, KVTWIN_OK));
    flip_a_bit_of_every_file(location);
    const Store store = opened(config_of(kind, location));
    EXPECT_EQ(get(store.get(), 0, 1), std::vector<std::uint8_t>(1, KVTWIN_CORRUPT)) << kind;
    EXPECT_EQ(get(store.get(), 0, 1), std::vector<std::uint8_t>(1, KVTWIN_MISSING)) << kind;
    EXPECT_EQ(put(store.get(), 0, 1), std::vector<std::uint8_t>(1, KVTWIN_OK)) << kind;
    EXPECT_EQ(get(store.get(), 0, 1), std::vector<std::uint8_t>(1, KVTWIN_OK)) << kind;
  }
}

// The list of a page's pieces is the largest allocation of a call.
TEST(CInterface, WithoutMemoryEachPageSaysSo) {
  const Folder folder;
  const std::string location = folder / "store";
  const Store store = opened(config_of("shared_fs", location));
  PageBuffers pages(2, kPageBytes / 2);
  for (const bool puts : {true, false}) {
    std::vector<std::uint8_t> status(2, KVTWIN_OK);
    const std::vector<kvtwin_key> keys = keys_of(0, 2);
    put(store.get(), 0, puts ? 0 : 2);
    max_allocation = 16 << 10;
    const kvtwin_status result = puts ? kvtwin_store_put(store.get(), keys.data(), 2, pages.addresses(),
                                                         pages.lengths(), pages.pieces(), status.data())
                                      : kvtwin_store_get(store.get(), keys.data(), 2, pages.addresses(),
                                                         pages.lengths(), pages.pieces(), status.data());
    max_allocation = ~std::size_t{0};
    EXPECT_EQ(result, KVTWIN_NO_MEMORY);
    EXPECT_EQ(status, std::vector<std::uint8_t>(2, KVTWIN_NO_MEMORY));
  }
  EXPECT_EQ(get(store.get(), 0, 2), std::vector<std::uint8_t>(2, KVTWIN_OK));
}

TEST(CInterface, ADiskFolderHasOneStoreAtATime) {
  const Folder folder;
  const std::string location = folder / "store";
  const Store store = opened(config_of("disk", location));
  EXPECT_NE(refusal(config_of("disk", location), KVTWIN_FAILED), "");
}

TEST(CInterface, RefusesBadConfigurationsWithASentence) {
  const Folder folder;
  const std::string location = folder / "store";
  const kvtwin_store_config good = config_of("disk", location);
  struct Bad {
    void (*change)(kvtwin_store_config&);
    const char* text;
  };
  const std::vector<Bad> cases{
      {[](auto& c) { c.struct_size = 0; }, "config.struct_size is 0; set it to sizeof(config)"},
      {[](auto& c) { c.struct_size = sizeof c + 8; }, "config.struct_size is"},
      {[](auto& c) { c.form.struct_size = 3; }, "form.struct_size is 3"},
      {[](auto& c) { c.kind = nullptr; }, "kind is empty"},
      {[](auto& c) { c.kind = "tape"; }, "kind is \"tape\"; the kinds are disk, shared_fs and remote"},
      {[](auto& c) { c.location = ""; }, "location is empty"},
      {[](auto& c) { c.capacity_pages = 0; }, "capacity_pages is 0"},
      {[](auto& c) { c.form.layers = 0; }, "form.layers is 0; it must be at least 1"},
      {[](auto& c) { c.form.planes = 3; }, "form.planes is 3"},
      {[](auto& c) { c.form.page_tokens = ~0U; }, "more than 1 GiB"},
      {[](auto& c) { c.form.layout = "page_last"; }, "form.layout is \"page_last\""},
      {[](auto& c) { c.identity.model = nullptr; }, "identity.model is empty"},
      {[](auto& c) { c.identity.kv_dtype = ""; }, "identity.kv_dtype is empty"},
      {[](auto& c) { c.identity.revision = nullptr; }, "identity.revision is empty; set it, for example to the commit"},
      {[](auto& c) { c.identity.revision = ""; }, "or to \"fixed\""},
      {[](auto& c) { c.identity.tp = 0; }, "identity.tp"},
      {[](auto& c) { c.identity.rank = 2; }, "identity.rank is 2; it must be below tp * pp"},
      {[](auto& c) { c.secret = "fifteen letters"; }, "secret has fewer than 16 bytes"},
      {[](auto& c) { c.eviction = "best"; }, "eviction is \"best\"; kvtwin_policy_names() lists the policies"},
      {[](auto& c) { c.kind = "shared_fs", c.eviction = "lru"; }, "eviction is set, and only a store of kind disk"},
      {[](auto& c) { c.kind = "remote", c.location = "http://x", c.capacity_pages = 0; }, "location: "},
      {[](auto& c) { c.kind = "remote", c.location = "redis://127.0.0.1:1"; }, "capacity_pages is set"},
  };
  for (const Bad& bad : cases) {
    kvtwin_store_config config = good;
    bad.change(config);
    EXPECT_NE(refusal(config).find(bad.text), std::string::npos) << bad.text << " <> " << refusal(config);
  }
  EXPECT_FALSE(std::filesystem::exists(location)) << "a refused configuration leaves nothing behind";
  kvtwin_store* store = nullptr;
  char text[16] = "";
  EXPECT_EQ(kvtwin_store_open(nullptr, &store, {text, sizeof text}), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(std::string(text), "config is NULL;") << "a text that is cut ends with a zero";
  EXPECT_EQ(kvtwin_store_open(&good, nullptr, {}), KVTWIN_BAD_ARGUMENT);
}

TEST(CInterface, RefusesBadPagesAndTouchesNothing) {
  const Folder folder;
  const std::string location = folder / "store";
  const Store store = opened(config_of("disk", location));
  PageBuffers pages(2);
  const std::vector<kvtwin_key> keys = keys_of(0, 2);
  std::vector<std::uint8_t> status(2, 77);
  const auto put_with = [&](const kvtwin_key* k, void** a, std::size_t* l, std::size_t n, std::uint8_t* s) {
    return kvtwin_store_put(store.get(), k, 2, a, l, n, s);
  };
  pages.lengths()[5] -= 1;
  EXPECT_EQ(put_with(keys.data(), pages.addresses(), pages.lengths(), kPieces, status.data()), KVTWIN_BAD_ARGUMENT);
  pages.lengths()[5] = ~std::size_t{0};
  EXPECT_EQ(put_with(keys.data(), pages.addresses(), pages.lengths(), kPieces, status.data()), KVTWIN_BAD_ARGUMENT);
  pages.lengths()[5] = pages.lengths()[4];
  EXPECT_EQ(put_with(nullptr, pages.addresses(), pages.lengths(), kPieces, status.data()), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(put_with(keys.data(), nullptr, pages.lengths(), kPieces, status.data()), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(put_with(keys.data(), pages.addresses(), nullptr, kPieces, status.data()), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(put_with(keys.data(), pages.addresses(), pages.lengths(), 0, status.data()), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(put_with(keys.data(), pages.addresses(), pages.lengths(), ~std::size_t{0}, status.data()),
            KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(put_with(keys.data(), pages.addresses(), pages.lengths(), kPieces, nullptr), KVTWIN_BAD_ARGUMENT);
  pages.addresses()[7] = nullptr;
  EXPECT_EQ(put_with(keys.data(), pages.addresses(), pages.lengths(), kPieces, status.data()), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(status, std::vector<std::uint8_t>(2, 77));
  EXPECT_EQ(stats(store.get())["puts"]["calls"], 0);
  EXPECT_EQ(kvtwin_store_put(nullptr, keys.data(), 2, pages.addresses(), pages.lengths(), kPieces, status.data()),
            KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_store_put(store.get(), nullptr, 0, nullptr, nullptr, 0, nullptr), KVTWIN_OK) << "no pages";
  std::size_t found = 0;
  EXPECT_EQ(kvtwin_store_look_up(store.get(), nullptr, 1, &found), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_store_look_up(store.get(), keys.data(), 1, nullptr), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_store_stats(store.get(), nullptr, 8, &found), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_store_page_bytes(nullptr), 0);
  kvtwin_store_close(nullptr);
}

// A size between two fields would cut a pointer in half.
TEST(CInterface, RefusesEveryOtherSizeOfAStructure) {
  const Folder folder;
  const std::string location = folder / "store";
  kvtwin_store_config config = config_of("disk", location);
  for (std::uint32_t size = 0; size < 2 * sizeof config; ++size) {
    const bool is_known = size == offsetof(kvtwin_store_config, eviction) ||
                          size == offsetof(kvtwin_store_config, pools) || size == sizeof config;
    if (is_known) continue;
    config.struct_size = size;
    EXPECT_NE(refusal(config).find("config.struct_size is " + std::to_string(size)), std::string::npos);
  }
}

TEST(CInterface, NamesTheWeightsOfACheckpoint) {
  const Folder folder;
  char text[64] = "", sentence[256] = "";
  const std::string place = folder / ".";
  EXPECT_EQ(kvtwin_weights_fingerprint(place.c_str(), text, sizeof text, {sentence, sizeof sentence}),
            KVTWIN_BAD_ARGUMENT);
  EXPECT_NE(std::string(sentence).find("has no weights; give the folder of a checkpoint"), std::string::npos);
  std::ofstream(folder / "model.safetensors") << "weights";
  EXPECT_EQ(kvtwin_weights_fingerprint(place.c_str(), text, sizeof text, {}), KVTWIN_OK);
  EXPECT_EQ(std::string(text).substr(0, 8), "weights-");
  EXPECT_EQ(std::strlen(text), 40);
  EXPECT_EQ(kvtwin_weights_fingerprint(place.c_str(), text, 40, {}), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_weights_fingerprint(nullptr, text, sizeof text, {}), KVTWIN_BAD_ARGUMENT);
}

TEST(CInterface, NamesItsStatusesAndVersion) {
  EXPECT_EQ(kvtwin_abi_version(), 1002);
  EXPECT_STRNE(kvtwin_version(), "");
  const std::vector<std::string> names{"ok",   "missing",      "corrupt",   "io_error", "unreachable",
                                       "full", "bad_argument", "no_memory", "failed"};
  std::vector<std::string> given;
  for (int status = KVTWIN_OK; status <= KVTWIN_FULL; ++status) given.emplace_back(kvtwin_status_name(status));
  EXPECT_STREQ(kvtwin_status_name(KVTWIN_FULL + 1), "unknown");
  for (int status = KVTWIN_BAD_ARGUMENT; status <= KVTWIN_FAILED; ++status) {
    given.emplace_back(kvtwin_status_name(status));
  }
  EXPECT_EQ(given, names);
  EXPECT_STREQ(kvtwin_status_name(-1), "unknown");
  EXPECT_STREQ(kvtwin_status_name(KVTWIN_FAILED + 1), "unknown");
}

std::size_t open_files() {
  std::size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Leaks of memory are found by AddressSanitizer.
TEST(CInterface, TenThousandStoresLeaveNoFileOpen) {
  const Folder folder;
  const std::string disk = folder / "disk", files = folder / "files";
  opened(config_of("disk", disk));
  const std::size_t before = open_files();
  for (int i = 0; i < 5'000; ++i) {
    opened(config_of("disk", disk));
    opened(config_of("shared_fs", files));
  }
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace kvtwin::test

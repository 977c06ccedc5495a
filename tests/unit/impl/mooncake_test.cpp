// Tests the Mooncake back end with a library that is full, fails, blocks, or is no such library. The test sets the
// clock of the back-offs.
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "impl/remote/mooncake_library.hpp"
#include "impl/remote/remote_name.hpp"
#include "policy/index/page_key.hpp"
#include "tests/folder.hpp"
#include "tests/mooncake_stand_in_rig.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

constexpr TimeNs kMs = 1'000'000;

// A function of the library blocks from hold() to release().
class Blockade {
 public:
  void hold(const std::string& function) {
    const std::lock_guard lock(mutex_);
    held_ = function;
  }
  void release() {
    hold("");
    changed_.notify_all();
  }
  void pass(const std::string& function) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_ != function; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string held_;
};

class Mooncake : public testing::Test {
 protected:
  Mooncake() {
    library_.reset();
    library_.on_call = [this](const std::string& function) { blockade_.pass(function); };
    config_ = master_.config();
    config_.now = [this] { return now_.load(); };
  }
  ~Mooncake() override {
    blockade_.release();
    library_.on_call = [](const std::string&) {};
    EXPECT_EQ(library_.misuses, 0);
  }
  std::unique_ptr<StagedBackend> open() { return make_mooncake_backend(config_, kSmallForm); }
  static std::string name(const PageKey& key) { return remote_name_of(stored_page_key(kSmallForm, kSpace, key)); }
  static void expect(const Completion& completion, Pages pages, Cause cause) {
    EXPECT_EQ(completion.pages, pages);
    EXPECT_EQ(name_of(completion.cause), name_of(cause));
  }
  // Waits until all clients have ended: late calls keep theirs.
  void wait_for_no_client() {
    Gate none;
    {
      const std::lock_guard lock(library_.mutex);
      if (library_.clients == 0) return;
      library_.on_destroyed = [&] {
        if (library_.clients == 0) none.open();
      };
    }
    none.pass();
    const std::lock_guard lock(library_.mutex);
    library_.on_destroyed = [] {};
  }

  MooncakeStandIn& library_ = mooncake_stand_in();
  MooncakePort master_;
  Blockade blockade_;
  std::atomic<TimeNs> now_ = 0;
  MooncakeConfig config_;
};

// ---- URLs and libraries

TEST(MooncakeUrl, names_master_protocol_device_and_memory) {
  auto config = std::get<MooncakeConfig>(parse_mooncake_url("mooncake://kv.example"));
  EXPECT_EQ(config.master(), "kv.example:50051");
  EXPECT_FALSE(config.rdma);
  EXPECT_EQ(config.segment_bytes, 0u);
  EXPECT_EQ(config.metadata, "P2PHANDSHAKE");
  config = std::get<MooncakeConfig>(parse_mooncake_url(
      "mooncake://10.0.0.1:7?protocol=rdma&device=mlx5_0,mlx5_1&segment_mib=4096&metadata=etcd://m:2379&library=/a/b"));
  EXPECT_EQ(config.master(), "10.0.0.1:7");
  EXPECT_TRUE(config.rdma);
  EXPECT_EQ(config.device, "mlx5_0,mlx5_1");
  EXPECT_EQ(config.segment_bytes, Bytes{4} << 30);
  EXPECT_EQ(config.metadata, "etcd://m:2379");
  EXPECT_EQ(config.library, "/a/b");
}

TEST(MooncakeUrl, what_is_wrong_is_one_sentence_that_does_not_repeat_it) {
  for (const char* url : {"mooncake://", "mooncake://secret:0", "mooncake://secret:70000", "mooncake://secret:",
                          "mooncake://se cret", "mooncake://secret?", "mooncake://secret?protocol",
                          "mooncake://secret?protocol=", "mooncake://secret?protocol=udp", "mooncake://secret?device=a",
                          "mooncake://secret?segment_mib=1", "mooncake://secret?segment_mib=-1",
                          "mooncake://secret?segment_mib=secret", "mooncake://secret?protocol=tcp&protocol=tcp",
                          "mooncake://secret?port=1", "mooncake://secret/1", "mooncake://@secret", "secret"}) {
    const auto parsed = parse_mooncake_url(url);
    ASSERT_TRUE(std::holds_alternative<std::string>(parsed)) << url;
    const std::string& sentence = std::get<std::string>(parsed);
    EXPECT_TRUE(sentence.ends_with('.') || sentence.ends_with(')')) << sentence;
    EXPECT_EQ(sentence.find("secret"), std::string::npos) << sentence;
  }
}

std::string error_of_library(const std::string& place) {
  try {
    load_mooncake(place, kNsPerSecond);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(MooncakeLibrary, one_that_is_no_such_library_is_refused_with_what_would_help) {
  const Folder folder;
  const std::string absent = error_of_library(folder / "libmooncake_store.so");
  EXPECT_NE(absent.find("can't be loaded"), std::string::npos) << absent;
  EXPECT_NE(absent.find("library="), std::string::npos) << absent;
  const std::string other = error_of_library("libm.so.6");
  EXPECT_NE(other.find("mooncake_store_create"), std::string::npos) << other;
  const std::string no_packages = error_of_library(folder.path().string());
  EXPECT_NE(no_packages.find("site-packages"), std::string::npos) << no_packages;
}

// ---- the client

TEST_F(Mooncake, is_set_up_with_the_terms_of_the_url) {
  master_.answer();
  config_.rdma = true;
  config_.device = "mlx5_0";
  config_.segment_bytes = 1 << 24;
  EXPECT_EQ(open()->check(), "");
  EXPECT_EQ(library_.last_setup,
            "127.0.0.1 P2PHANDSHAKE 16777216 0 rdma 'mlx5_0' 127.0.0.1:" + std::to_string(master_.number()));
}

TEST_F(Mooncake, without_a_master_pages_are_unreachable_until_there_is_one) {
  auto backend = open();
  EXPECT_NE(backend->check().find("No Mooncake master answers at 127.0.0.1:"), std::string::npos);
  StoreRig rig(std::move(backend));
  const std::vector<PageKey> keys = keys_of(3);
  expect(rig.set(keys), 0, Cause::unreachable);
  expect(rig.get(keys), 0, Cause::unreachable);
  EXPECT_EQ(rig.look_up(keys), 0u);
  EXPECT_EQ(library_.setups, 0) << "a library that waits for a master is not called";
  master_.answer();
  expect(rig.set(keys), 0, Cause::unreachable);
  now_ += config_.back_off.first;
  expect(rig.set(keys), 3, Cause::none);
  expect(rig.get(keys), 3, Cause::none);
  rig.finish();
  EXPECT_EQ(rig.counter("unreachable_not_opened"), 2u) << "by check() and by the first set";
  EXPECT_EQ(library_.clients, 0);
}

TEST_F(Mooncake, a_client_that_is_not_set_up_is_tried_again) {
  master_.answer();
  library_.setup_error = -900;
  auto backend = open();
  EXPECT_NE(backend->check().find("-900"), std::string::npos);
  library_.setup_error = 0;
  EXPECT_EQ(backend->check(), "");
  EXPECT_EQ(library_.setups, 2);
}

TEST_F(Mooncake, a_set_up_that_is_late_serves_later) {
  master_.answer();
  config_.timeout = 30 * kMs;
  blockade_.hold("setup");
  auto backend = open();
  EXPECT_EQ(backend->check(), "The store does not answer in time.");
  EXPECT_EQ(backend->check(), "The store does not answer in time.");
  blockade_.release();
  while (!backend->check().empty()) std::this_thread::yield();
  EXPECT_EQ(library_.setups, 1);
}

// ---- answers

TEST_F(Mooncake, a_store_without_room_is_full) {
  master_.answer();
  library_.capacity = 2;
  StoreRig rig(open());
  expect(rig.set(keys_of(3)), 2, Cause::full);
  rig.finish();
  EXPECT_EQ(rig.counter("full_pages"), 1u);
}

TEST_F(Mooncake, pages_whose_node_is_gone_are_unreachable_and_the_others_are_served) {
  master_.answer();
  StoreRig rig(open());
  const std::vector<PageKey> keys = keys_of(3);
  expect(rig.set(keys), 3, Cause::none);
  library_.errors[name(keys[1])] = -800;
  expect(rig.get(keys), 1, Cause::unreachable);
  expect(rig.get({keys[2]}), 1, Cause::none);
  rig.finish();
  EXPECT_EQ(rig.counter("lost_pages"), 1u);
  EXPECT_EQ(rig.counter("unreachable_failed"), 0u);
}

TEST_F(Mooncake, a_store_that_fails_is_left_alone_for_a_while) {
  master_.answer();
  StoreRig rig(open());
  const std::vector<PageKey> keys = keys_of(3);
  expect(rig.set(keys), 3, Cause::none);
  library_.call_error = -900;
  expect(rig.get(keys), 0, Cause::unreachable);
  library_.call_error = 0;
  expect(rig.get(keys), 0, Cause::unreachable);
  EXPECT_EQ(rig.look_up(keys), 0u);
  now_ += config_.back_off.first;
  expect(rig.get(keys), 3, Cause::none);
  rig.finish();
  EXPECT_EQ(rig.counter("unreachable_failed"), 1u);
  EXPECT_EQ(rig.counter("pages_not_asked_for_in_back_off"), 6u);
}

TEST_F(Mooncake, a_page_whose_lease_ends_is_a_miss) {
  master_.answer();
  StoreRig rig(open());
  const std::vector<PageKey> keys = keys_of(2);
  expect(rig.set(keys), 2, Cause::none);
  library_.errors[name(keys[1])] = -707;
  expect(rig.get(keys), 1, Cause::lease);
  rig.finish();
  EXPECT_EQ(rig.counter("leased_pages"), 1u);
}

TEST_F(Mooncake, a_removal_that_is_refused_leaves_the_page) {
  master_.answer();
  StoreRig rig(open());
  const std::vector<PageKey> keys = keys_of(2);
  expect(rig.set(keys), 2, Cause::none);
  library_.busy.insert(name(keys[0]));
  expect(rig.remove(keys), 0, Cause::io_error);
  EXPECT_TRUE(rig.has(keys[0]));
  EXPECT_FALSE(rig.has(keys[1]));
  // A damaged page that can't be removed now is removed later.
  library_.values[name(keys[0])].back() ^= std::byte{1};
  expect(rig.get({keys[0]}), 0, Cause::corrupt);
  library_.busy.clear();
  expect(rig.get({keys[0]}), 0, Cause::corrupt);
  expect(rig.get({keys[0]}), 0, Cause::missing);
  rig.finish();
  EXPECT_EQ(rig.counter("leased_pages"), 2u);
  EXPECT_EQ(rig.counter("corrupt_pages"), 2u);
}

// ---- calls that are late

TEST_F(Mooncake, a_late_get_writes_into_no_slot) {
  master_.answer();
  config_.timeout = 30 * kMs;
  auto backend = open();
  ASSERT_EQ(backend->check(), "");
  StoreRig rig(std::move(backend));
  const std::vector<PageKey> keys = keys_of(3), others = keys_of(3, 2);
  // A slow machine may be late with any call.
  const auto until_done = [&](auto call) {
    while (call().status != Status::done) now_ += config_.back_off.longest;
  };
  until_done([&] { return rig.set(keys); });
  until_done([&] { return rig.set(others); });
  blockade_.hold("get");
  expect(rig.get(keys), 0, Cause::unreachable);  // the rig checks that the slots hold nothing else
  now_ += config_.back_off.longest;
  expect(rig.get(others), 0, Cause::unreachable);  // the late call goes on
  EXPECT_EQ(rig.look_up(others), 3u) << "other threads are served";
  blockade_.release();
  until_done([&] { return rig.get(others); });
  until_done([&] { return rig.get(keys); });
  rig.finish();
  EXPECT_GE(rig.counter("unreachable_slow"), 1u);
}

TEST_F(Mooncake, ends_while_calls_are_late) {
  master_.answer();
  config_.timeout = config_.close_timeout = 30 * kMs;
  for (const char* function : {"setup", "exist", "get", "put", "remove", "destroy"}) {
    SCOPED_TRACE(function);
    blockade_.hold(function);
    {
      StoreRig rig(open());
      const std::vector<PageKey> keys = keys_of(3);
      rig.set(keys);
      rig.look_up(keys);
      now_ += config_.back_off.longest;
      rig.get(keys);
      now_ += config_.back_off.longest;
      rig.remove(keys);
    }
    blockade_.release();
    wait_for_no_client();
  }
}

}  // namespace
}  // namespace kvtwin::test

// Tests the Redis back end with servers that are full, evict, die, freeze, deny access, or send invalid replies. The
// test sets the clock of the back-offs.
#if KVTWIN_HAVE_REDIS
#include <poll.h>

#include <atomic>
#include <latch>
#include <thread>

#include "impl/remote/redis_backend.hpp"
#include "impl/remote/remote_name.hpp"
#include "policy/index/page_key.hpp"
#include "tests/redis_server.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr TimeNs kLongTimeout = 60 * kNsPerSecond;

// A configuration with servers on this machine, and the clock of its back-offs.
struct Setting {
  explicit Setting(const std::vector<int>& ports) {
    for (const int port : ports) config.servers.push_back({"127.0.0.1", port});
    config.connect_timeout = config.command_timeout = kLongTimeout;
    config.now = [time = time] { return time->load(); };
  }
  std::unique_ptr<StorageBackend> open(const PageForm& form = kSmallForm) const {
    return make_redis_backend(config, form);
  }
  void pass(TimeNs duration) const { *time += duration; }

  std::shared_ptr<std::atomic<TimeNs>> time = std::make_shared<std::atomic<TimeNs>>(0);
  RedisConfig config;
};

std::vector<PageKey> keys_on(const RedisConfig& config, std::size_t server, std::size_t count) {
  std::vector<PageKey> result;
  for (const PageKey& key : keys_of(1000, 77)) {
    const bool its = redis_server_of(config.servers, stored_page_key(kSmallForm, kSpace, key)) == server;
    if (its && result.size() < count) result.push_back(key);
  }
  return result;
}

void expect_done(const Completion& completion) { EXPECT_EQ(completion.status, Status::done) << completion.pages; }
void expect_cause(const Completion& completion, Cause cause) {
  EXPECT_EQ(completion.status, Status::failed);
  EXPECT_EQ(name_of(completion.cause), name_of(cause));
}

// ---- URLs and names

TEST(RedisUrl, names_servers_user_database_and_tls) {
  const auto config = std::get<RedisConfig>(parse_redis_url("redis://kv_twin@a.example:7000,b:7001,[::1]:7002,c/3"));
  ASSERT_EQ(config.servers.size(), 4u);
  EXPECT_EQ(config.servers[0].name(), "a.example:7000");
  EXPECT_EQ(config.servers[1].name(), "b:7001");
  EXPECT_EQ(config.servers[2].host, "::1");
  EXPECT_EQ(config.servers[2].port, 7002);
  EXPECT_EQ(config.servers[3].name(), "c:6379");
  EXPECT_EQ(config.user, "kv_twin");
  EXPECT_EQ(config.database, 3);
  EXPECT_FALSE(config.tls);
  EXPECT_TRUE(config.password.empty());
  EXPECT_TRUE(std::get<RedisConfig>(parse_redis_url("rediss://a")).tls);
  EXPECT_EQ(std::get<RedisConfig>(parse_redis_url("redis://a:1/")).database, 0);
}

TEST(RedisUrl, what_is_wrong_is_one_sentence_that_does_not_repeat_it) {
  for (const char* url : {"",
                          "http://secret",
                          "redis://",
                          "redis://secret:0",
                          "redis://secret:70000",
                          "redis://secret:x",
                          "redis://secret:1,",
                          "redis://,secret:1",
                          "redis://secret:1/x",
                          "redis://secret:1/-1",
                          "redis://secret:1,secret:1",
                          "redis://[::1",
                          "redis://[secret]:1",
                          "redis://[::1]1",
                          "redis://se cret:1",
                          "redis://se\ncret",
                          "redis://@secret",
                          "redis://se%20cret@a:1",
                          "redis://a:1/1/2",
                          "redis://secret:1:2",
                          "redis://secret:",
                          "redis://a:99999999999999999999"}) {
    const auto parsed = parse_redis_url(url);
    ASSERT_TRUE(std::holds_alternative<std::string>(parsed)) << url;
    const std::string& sentence = std::get<std::string>(parsed);
    EXPECT_TRUE(sentence.ends_with('.')) << sentence;
    EXPECT_EQ(sentence.find("secret"), std::string::npos) << sentence;
  }
}

TEST(RedisUrl, a_password_belongs_into_the_environment) {
  for (const char* url : {"redis://me:secret@a:1", "redis://:secret@a:1", "rediss://me:se@cret@a:1/2"}) {
    const auto parsed = parse_redis_url(url);
    ASSERT_TRUE(std::holds_alternative<std::string>(parsed)) << url;
    EXPECT_NE(std::get<std::string>(parsed).find("KVTWIN_REDIS_PASSWORD"), std::string::npos);
    EXPECT_EQ(std::get<std::string>(parsed).find("secret"), std::string::npos);
  }
}

TEST(RedisNames, are_hexadecimal_digits) {
  const PageKey key = storage_page_key(kSpace, keys_of(1)[0]);
  const std::string name = remote_name_of(key);
  ASSERT_EQ(name.size(), 7u + 32u);
  EXPECT_EQ(name.substr(0, 7), "kvtwin:");
  EXPECT_EQ(name.find_first_not_of("0123456789abcdef", 7), std::string::npos);
  EXPECT_EQ(remote_name_of({{0x0123456789abcdef, 0xf0, 2, 0}}), "kvtwin:0123456789abcdef00000000000000f0");
}

TEST(RedisNames, a_server_less_moves_only_its_own_pages) {
  const std::vector<RedisServer> all = {{"a", 1}, {"b", 1}, {"c", 2}, {"d", 1}, {"e", 9}};
  std::vector<RedisServer> fewer = all, turned(all.rbegin(), all.rend());
  fewer.erase(fewer.begin() + 2);
  std::vector<int> pages(all.size());
  for (const PageKey& key : keys_of(5000)) {
    const PageKey stored_as = storage_page_key(kSpace, key);
    const std::string before = all[redis_server_of(all, stored_as)].name();
    const std::string after = fewer[redis_server_of(fewer, stored_as)].name();
    if (before != "c:2") {
      EXPECT_EQ(before, after);
    }
    EXPECT_EQ(before, turned[redis_server_of(turned, stored_as)].name()) << "the order of servers doesn't matter";
    ++pages[redis_server_of(all, stored_as)];
  }
  for (const int count : pages) EXPECT_NEAR(count, 1000, 150);
}

// The placement must be the same on every machine and in every version. Otherwise other clients do not find the pages.
TEST(RedisNames, placement_never_changes) {
  const std::vector<RedisServer> servers = {{"a", 1}, {"b", 1}, {"c", 2}};
  std::string placed;
  for (std::uint64_t i = 0; i < 24; ++i) placed += servers[redis_server_of(servers, {{i, i * i, 2, 0}})].host;
  EXPECT_EQ(placed, "cbaaacabcaacaaacccbbabbb");
}

// ---- memory

TEST(Redis, a_server_without_room_is_full) {
  RedisProcess server({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  const Setting setting({server.port()});
  const PageForm form{{4, 2, 4, 128, 16}, Layout::page_first};  // 64 KiB
  StoreRig rig(setting.open(form), {.form = form});
  const std::vector<PageKey> keys = keys_of(200);
  const Completion filled = rig.set(keys);
  expect_cause(filled, Cause::full);
  ASSERT_GT(filled.pages, 0u);
  const std::vector<PageKey> there(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(filled.pages));
  EXPECT_EQ(rig.look_up(keys), filled.pages);
  expect_done(rig.get(there));
  expect_done(rig.set(there));
  expect_done(rig.remove(there));
  expect_done(rig.set({keys[199]}));
  rig.finish();
  EXPECT_GT(rig.counter("full_pages"), 0u);
}

TEST(Redis, what_the_server_evicts_is_missing) {
  RedisProcess server({"--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"});
  const Setting setting({server.port()});
  const PageForm form{{4, 2, 4, 128, 16}, Layout::page_first};
  StoreRig rig(setting.open(form), {.form = form});
  const std::vector<PageKey> keys = keys_of(200);
  expect_done(rig.set(keys));
  std::size_t found = 0;
  for (const PageKey& key : keys) {
    const Completion got = rig.get({key});
    if (got.pages == 1) {
      ++found;
    } else {
      expect_cause(got, Cause::missing);
    }
  }
  EXPECT_GT(found, 0u);
  EXPECT_LT(found, 200u);
}

// ---- servers that go and come

TEST(Redis, a_dead_server_is_left_alone_for_a_while_and_the_other_serves) {
  RedisProcess first, second;
  const Setting setting({first.port(), second.port()});
  StoreRig rig(setting.open());
  const std::vector<PageKey> on_first = keys_on(setting.config, 0, 20), on_second = keys_on(setting.config, 1, 20);
  expect_done(rig.set(on_first));
  expect_done(rig.set(on_second));
  first.kill();
  expect_cause(rig.get(on_first), Cause::unreachable);
  expect_done(rig.get(on_second));
  EXPECT_EQ(rig.answer(rig.begin(StorageVerb::look_up, on_first)).cause, Cause::unreachable);
  EXPECT_EQ(rig.look_up(on_second), 20u);
  expect_cause(rig.set(on_first), Cause::unreachable);
  expect_cause(rig.remove(on_first), Cause::unreachable);
  // The server runs again, but the back-off is not over.
  first.restart();
  setting.pass(99 * kMs);
  expect_cause(rig.get(on_first), Cause::unreachable);
  setting.pass(kMs);
  expect_cause(rig.get(on_first), Cause::missing);  // the new server is empty
  expect_done(rig.set(on_first));
  expect_done(rig.get(on_first));
  EXPECT_EQ(rig.look_up(on_first), 20u);
  rig.finish();
  EXPECT_GT(rig.counter("pages_not_asked_for_in_back_off"), 0u);
}

// A server that never answers is tried again after 100, 200, 400 ms and so on, up to 10 s.
TEST(Redis, back_offs_double_up_to_ten_seconds) {
  const FreePort nobody;  // bound, but not listening
  const Setting setting({nobody.number()});
  StoreRig rig(setting.open());
  const std::vector<PageKey> keys = keys_of(1);
  std::uint64_t asked = 0;
  std::vector<TimeNs> times;
  setting.pass(kLongTimeout);
  for (int i = 0; i < 500; ++i) {
    expect_cause(rig.get(keys), Cause::unreachable);
    const std::uint64_t now = rig.counter("unreachable_refused");
    if (now != asked) times.push_back(setting.time->load());
    asked = now;
    setting.pass(100 * kMs);
  }
  std::vector<TimeNs> waits;
  for (std::size_t i = 1; i < times.size(); ++i) waits.push_back((times[i] - times[i - 1]) / kMs);
  EXPECT_EQ(waits, (std::vector<TimeNs>{100, 200, 400, 800, 1600, 3200, 6400, 10'000, 10'000, 10'000}));
}

// A look-up and a get connect at the same time and both fail. This counts as one failure of the server.
TEST(Redis, attempts_that_fail_together_count_once_in_the_back_off) {
  Setting setting({1});
  std::latch both(2);
  std::atomic<int> dialled = 0;
  setting.config.dial = [&](const RedisServer&) {
    if (++dialled <= 2) both.arrive_and_wait();
    return -1;
  };
  StoreRig rig(setting.open());
  const OperationId look_up = rig.begin(StorageVerb::look_up, keys_of(1)),
                    get = rig.begin(StorageVerb::get, keys_of(1));
  expect_cause(rig.answer(look_up), Cause::unreachable);
  expect_cause(rig.answer(get), Cause::unreachable);
  ASSERT_EQ(dialled, 2);
  setting.pass(setting.config.back_off.first - 1);
  expect_cause(rig.get(keys_of(1)), Cause::unreachable);
  EXPECT_EQ(dialled, 2) << "in the back-off";
  setting.pass(1);
  expect_cause(rig.get(keys_of(1)), Cause::unreachable);
  EXPECT_EQ(dialled, 3) << "after one back-off's time, not two";
}

TEST(Redis, a_restarted_server_that_was_not_missed_is_no_failure) {
  RedisProcess server;
  const Setting setting({server.port()});
  StoreRig rig(setting.open());
  expect_done(rig.set(keys_of(5)));
  expect_done(rig.remove(keys_of(5)));
  server.restart();
  expect_done(rig.set(keys_of(5)));
  expect_done(rig.set(keys_of(9)));
}

TEST(Redis, a_server_killed_in_the_middle_of_a_batch) {
  for (int page = 1; page <= 30; page += 7) {
    RedisProcess server;
    Setting setting({server.port()});
    setting.config.bytes_in_flight = 10 * 288;
    std::atomic<int> pages_to_go = page;
    StoreRig rig(setting.open());
    rig.memory.before_read = [&] {
      if (--pages_to_go == 0) server.kill();
    };
    const std::vector<PageKey> keys = keys_of(60);
    const Completion cut = rig.set(keys);
    expect_cause(cut, Cause::unreachable);
    EXPECT_LT(cut.pages, static_cast<Pages>(page));
    server.restart();
    setting.pass(10 * kNsPerSecond);
    expect_done(rig.set(keys));
    pages_to_go = page;
    rig.memory.before_write = rig.memory.before_read;
    const Completion got = rig.get(keys);
    // A get that had received all pages before the server died succeeds.
    if (got.status != Status::done) expect_cause(got, Cause::unreachable);
    server.restart();
    setting.pass(10 * kNsPerSecond);
    expect_cause(rig.get(keys), Cause::missing);
  }
}

TEST(Redis, a_frozen_server_is_slow_and_then_left_alone) {
  RedisProcess frozen, other;
  Setting setting({frozen.port(), other.port()});
  StoreRig healthy(setting.open());
  setting.config.command_timeout = 50 * kMs;
  const std::vector<PageKey> its = keys_on(setting.config, 0, 9), others = keys_on(setting.config, 1, 9);
  expect_done(healthy.set(its));
  expect_done(healthy.set(others));
  StoreRig rig(setting.open());
  frozen.stop();
  expect_cause(rig.get(its), Cause::unreachable);
  expect_cause(rig.set(its), Cause::unreachable);
  EXPECT_EQ(rig.answer(rig.begin(StorageVerb::look_up, its)).cause, Cause::unreachable);
  EXPECT_EQ(rig.counter("unreachable_slow"), 1u) << "the others found it in its back-off";
  frozen.go_on();
  expect_done(healthy.get(its));  // with a longer timeout
  expect_done(healthy.get(others));
}

// ---- who is let in

TEST(Redis, passwords_and_users) {
  RedisProcess server({"--requirepass", "open sesame", "--user", "kv", "on", ">secret", "~kvtwin:*", "+@all"});
  Setting setting({server.port()});
  const std::vector<PageKey> keys = keys_of(3);
  const auto denied = [&](const char* user, const char* password) {
    setting.config.user = user;
    setting.config.password = password;
    StoreRig rig(setting.open());
    const Completion set = rig.set(keys);
    rig.finish();
    if (set.status == Status::done) return false;
    expect_cause(set, Cause::unreachable);
    EXPECT_EQ(rig.counter("unreachable_denied"), 1u);
    EXPECT_NE(check_redis_servers(setting.config).find("denies"), std::string::npos);
    return true;
  };
  EXPECT_FALSE(denied("", "open sesame"));
  EXPECT_EQ(check_redis_servers(setting.config), "");
  EXPECT_FALSE(denied("kv", "secret"));
  EXPECT_FALSE(denied("default", "open sesame"));
  EXPECT_TRUE(denied("", ""));
  EXPECT_TRUE(denied("", "wrong"));
  EXPECT_TRUE(denied("kv", "wrong"));
  EXPECT_TRUE(denied("kv", ""));
  EXPECT_TRUE(denied("nobody", "secret"));
}

TEST(Redis, databases_do_not_mix) {
  RedisProcess server;
  Setting setting({server.port()});
  StoreRig first(setting.open());
  setting.config.database = 5;
  StoreRig second(setting.open());
  expect_done(first.set(keys_of(3)));
  EXPECT_EQ(second.look_up(keys_of(3)), 0u);
  setting.config.database = 12'345;  // the server has 16 databases
  StoreRig none(setting.open());
  expect_cause(none.get(keys_of(3)), Cause::unreachable);
}

TEST(Redis, a_replica_does_not_take_pages) {
  RedisProcess server({"--replicaof", "127.0.0.1", "1", "--replica-serve-stale-data", "yes"});
  const Setting setting({server.port()});
  StoreRig rig(setting.open());
  expect_cause(rig.set(keys_of(3)), Cause::unreachable);
  EXPECT_EQ(rig.counter("unreachable_read_only"), 1u);
}

TEST(Redis, checks_say_what_is_wrong) {
  const FreePort nobody;
  EXPECT_NE(check_redis_servers(Setting({nobody.number()}).config).find("can't be connected to."), std::string::npos);
  EXPECT_THROW(make_redis_backend(RedisConfig{}, kSmallForm), std::runtime_error);
}

// ---- servers that aren't

// Accepts connections, and answers any input once with the same bytes. Then it closes the connection or stays silent.
class FakeRedis {
 public:
  FakeRedis(std::string answer, bool closes) : answer_(std::move(answer)), closes_(closes) {
    if (::listen(port_.socket(), 16) != 0 || ::pipe(wake_) != 0) throw std::runtime_error("no fake server");
    thread_ = std::thread([this] { serve(); });
  }
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;
  ~FakeRedis() {
    ::close(wake_[1]);
    thread_.join();
    ::close(wake_[0]);
  }
  int port() const { return port_.number(); }

 private:
  // Serves one connection after another, until the pipe is closed.
  void serve() {
    std::vector<int> taken;
    for (;;) {
      pollfd waiting[] = {{wake_[0], POLLIN, 0}, {port_.socket(), POLLIN, 0}};
      ::poll(waiting, 2, -1);
      if (waiting[0].revents != 0) break;
      const int connection = ::accept(port_.socket(), nullptr, nullptr);
      if (connection < 0) continue;
      char asked[4096];
      if (::recv(connection, asked, sizeof asked, 0) > 0) {
        for (std::size_t at = 0; at < answer_.size();) {
          const ssize_t sent = ::send(connection, answer_.data() + at, answer_.size() - at, MSG_NOSIGNAL);
          if (sent <= 0) break;
          at += static_cast<std::size_t>(sent);
        }
      }
      if (closes_) {
        ::close(connection);
      } else {
        taken.push_back(connection);
      }
    }
    for (const int connection : taken) ::close(connection);
  }

  FreePort port_;
  std::string answer_;
  bool closes_;
  int wake_[2];
  std::thread thread_;
};

struct Nonsense {
  const char* what;
  std::string answer;
};

std::vector<Nonsense> nonsense() {
  const std::string page(288, 'x');
  return {
      {"nothing", ""},
      {"no Redis", "HTTP/1.1 400 Bad Request\r\n\r\n"},
      {"zeros", std::string(1000, '\0')},
      {"a status", "+PONG\r\n+PONG\r\n+PONG\r\n"},
      {"an integer that is none", ":twelve\r\n"},
      {"an integer past all", ":99999999999999999999999\r\n"},
      {"an array", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"},
      {"an array without end", "*2147483647\r\n"},
      {"arrays in arrays", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"},
      {"a map", "%1\r\n+a\r\n+b\r\n"},
      {"a string of no length", "$\r\n"},
      {"a string of negative length", "$-7\r\n"},
      {"a string past all memory", "$9223372036854775807\r\nxx"},
      {"more than was asked for", "$5000000\r\n" + std::string(5'000'000, 'x') + "\r\n"},
      {"a page cut short", "$288\r\n" + page.substr(0, 100)},
      {"an error", "-ERR what\r\n"},
      {"an error without words", "-\r\n"},
      {"half an error", "-ER"},
      {"it is loading", "-LOADING Redis is loading the dataset in memory\r\n"},
  };
}

TEST(Redis, nonsense_serves_nothing_and_harms_nothing) {
  for (const Nonsense& one : nonsense()) {
    for (const bool closes : {true, false}) {
      SCOPED_TRACE(std::string(one.what) + (closes ? ", then the end" : ", then silence"));
      const FakeRedis fake(one.answer, closes);
      Setting setting({fake.port()});
      // A silent server makes the client wait, so the timeout is short. A timeout within a reply looks the same.
      setting.config.command_timeout = setting.config.connect_timeout = closes ? kLongTimeout : 20 * kMs;
      StoreRig rig(setting.open());
      for (const StorageVerb verb : {StorageVerb::look_up, StorageVerb::get, StorageVerb::set, StorageVerb::remove}) {
        const Completion completion = rig.answer(rig.begin(verb, keys_of(4)));
        EXPECT_EQ(completion.pages, 0u);
        expect_cause(completion, Cause::unreachable);
        setting.pass(kLongTimeout);
      }
      rig.finish();
    }
  }
}

// Replies with a correct form, but to other commands: they never become a page.
TEST(Redis, a_page_that_is_not_asked_for_is_never_served) {
  const std::string page(288, 'x');
  std::string answer;
  for (int i = 0; i < 4; ++i) answer += "$288\r\n" + page + "\r\n";
  const FakeRedis fake(answer, true);
  const Setting setting({fake.port()});
  StoreRig rig(setting.open());
  const Completion completion = rig.get(keys_of(4));
  EXPECT_EQ(completion.pages, 0u);
  expect_cause(completion, Cause::corrupt);
  EXPECT_EQ(rig.counter("corrupt_pages"), 4u);
}

// One reply more than commands: the connection is out of step, so the next batch opens a new connection.
TEST(Redis, a_connection_out_of_step_is_given_up) {
  const FakeRedis fake(":0\r\n:0\r\n:0\r\n", false);
  const Setting setting({fake.port()});
  StoreRig rig(setting.open());
  EXPECT_EQ(rig.look_up(keys_of(1)), 0u);
  EXPECT_EQ(rig.counter("unreachable_garbled"), 1u);
}

TEST(Redis, a_value_of_another_length_is_no_hit) {
  for (const auto& [length, pages] : {std::pair("287", 0U), std::pair("288", 1U), std::pair("289", 0U)}) {
    const FakeRedis fake(":" + std::string(length) + "\r\n", true);
    const Setting setting({fake.port()});
    StoreRig rig(setting.open());
    EXPECT_EQ(rig.look_up(keys_of(1)), pages) << length;
  }
}

TEST(Redis, a_value_longer_than_a_page_is_corrupt) {
  const FakeRedis fake("$289\r\n" + std::string(289, 'x') + "\r\n", true);
  const Setting setting({fake.port()});
  StoreRig rig(setting.open());
  expect_cause(rig.get(keys_of(1)), Cause::corrupt);
}

// The server sends half a million bytes, one at a time. Each read succeeds, but the reply never ends.
TEST(Redis, a_server_that_drips_is_slow) {
  constexpr int kBytes = 500'000;
  const PageForm form{{4, 2, 4, 128, 256}, Layout::page_first};  // 1 MiB
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::thread server([descriptor = ends[1]] {
    char asked[4096];
    if (::recv(descriptor, asked, sizeof asked, 0) > 0) {
      const std::string length = "$1048576\r\n";
      bool taken = ::send(descriptor, length.data(), length.size(), MSG_NOSIGNAL) > 0;
      for (int i = 0; i < kBytes && taken; ++i) taken = ::send(descriptor, "x", 1, MSG_NOSIGNAL) == 1;
    }
    ::close(descriptor);
  });
  Setting setting({1});
  setting.config.command_timeout = 20 * kMs;
  setting.config.dial = [&](const RedisServer&) { return std::exchange(ends[0], -1); };
  {
    StoreRig rig(setting.open(form), {.form = form});
    expect_cause(rig.get(keys_of(1)), Cause::unreachable);
    EXPECT_EQ(rig.counter("unreachable_slow"), 1U);
    EXPECT_EQ(rig.counter("unreachable_closed"), 0U);
  }
  server.join();
}

// The values that CMake sets if it does not find the program.
TEST(Redis, a_test_without_a_server_names_the_package) {
  for (const char* program : {"", "KVTWIN_REDIS_SERVER-NOTFOUND", "/nowhere/redis-server"}) {
    try {
      require_redis_server(program);
      ADD_FAILURE() << "'" << program << "' passes for a server";
    } catch (const std::runtime_error& missing) {
      EXPECT_NE(std::string(missing.what()).find("apt-get install redis-server"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
#endif

// A Redis server stops in the middle of a real run and comes back, empty or with its pages. Meanwhile its pages are
// misses and the run continues; later the run uses the server again. The test waits for the state of the server and of
// the journal, never for a fixed time.
#include <gtest/gtest.h>

#include <string>

#include "tests/fed_run.hpp"

#if KVTWIN_TEST_REAL && KVTWIN_HAVE_REDIS
#include "tests/redis_server.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kMinStoredPages = 60;

Settings remote(const std::string& url) {
  return {"tiers.remote.tokens=1000000", "tiers.remote.url=" + url, "tiers.remote.timeout_s=0.05"};
}

void expect_misses(const Json& report) {
  ASSERT_TRUE(report.is_object());
  EXPECT_GT(count_of(report.at("storage").at("fell_short"), "unreachable"), 0U) << report.at("storage");
  const Json& counters = report.at("real").at("storage").at("remote");
  EXPECT_GT(unreachable_in(counters), 0U) << counters;
  EXPECT_GT(count_of(counters, "set_pages"), 0U) << counters;
  EXPECT_GT(report.at("tokens").at("hit_remote"), 0);
}

TEST(RedisRestart, ComesBackEmpty) {
  const Folder folder;
  RedisProcess server;
  FedRun real(folder, fed_settings(folder) + remote(server.url()));
  real.feed_until([&] { return server.keys() > kMinStoredPages; });
  server.kill();
  real.feed_and_see_progress();
  server.restart();
  real.feed_until([&] { return server.keys() > kMinStoredPages; });
  expect_misses(expect_served(folder, real.end(), real.fed()));
}

TEST(RedisRestart, ComesBackAgainAndAgain) {
  const Folder folder;
  RedisProcess server;
  FedRun real(folder, fed_settings(folder) + remote(server.url()));
  for (int life = 0; life < 3; ++life) {
    real.feed_until([&] { return server.keys() > kMinStoredPages; });
    server.restart();
  }
  real.feed_until([&] { return server.keys() > kMinStoredPages; });
  const Json report = expect_served(folder, real.end(), real.fed());
  ASSERT_TRUE(report.is_object());
  EXPECT_GT(count_of(report.at("real").at("storage").at("remote"), "set_pages"), 4 * kMinStoredPages);
}

// The server process is stopped: it doesn't answer for a while. When it continues, it also answers old requests whose
// senders have given up.
TEST(RedisRestart, IsStoppedAndGoesOn) {
  const Folder folder;
  RedisProcess server;
  FedRun real(folder, fed_settings(folder) + remote(server.url()));
  real.feed_until([&] { return server.keys() > kMinStoredPages; });
  const std::uint64_t before = server.keys();
  server.stop();
  real.feed_and_see_progress();
  server.go_on();
  real.feed_until([&] { return server.keys() > before + kMinStoredPages; });
  const Json report = expect_served(folder, real.end(), real.fed());
  expect_misses(report);
  EXPECT_GT(count_of(report.at("real").at("storage").at("remote"), "unreachable_slow"), 0U);
}

TEST(RedisRestart, OneOfTwoServers) {
  const Folder folder;
  RedisProcess stays, goes;
  FedRun real(folder, fed_settings(folder) + remote(stays.url() + ",127.0.0.1:" + std::to_string(goes.port())));
  real.feed_until([&] { return stays.keys() > kMinStoredPages && goes.keys() > kMinStoredPages; });
  goes.kill();
  const std::uint64_t before = stays.keys();
  real.feed_and_see_progress();
  real.feed_until([&] { return stays.keys() > before + kMinStoredPages; });
  goes.restart();
  real.feed_until([&] { return goes.keys() > kMinStoredPages; });
  expect_misses(expect_served(folder, real.end(), real.fed()));
}

}  // namespace
}  // namespace kvtwin::test
#endif

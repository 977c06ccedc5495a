// S3 servers that stop, die, or refuse NIXL's pages, and real runs on NIXL. The tests wait for the state of the server,
// never for a fixed time.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <string>

#include "impl/remote/remote_name.hpp"
#include "policy/index/page_key.hpp"
#include "tests/fed_run.hpp"
#include "tests/remote/nixl_stores.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

constexpr TimeNs kMs = 1'000'000;

// Whose clock of back-offs passes each time that it is asked for.
NixlConfig impatient(NixlConfig config, TimeNs timeout) {
  config.timeout = timeout;
  config.now = [time = std::make_shared<std::atomic<TimeNs>>(0), step = config.back_off.longest] {
    return *time += step;
  };
  return config;
}

TEST(NixlFailures, AStoppedServerIsUnreachableUntilItGoesOn) {
  S3Server server;
  StoreRig rig(make_nixl_backend(impatient(server.new_bucket(), 300 * kMs), kSmallForm));
  const std::vector<PageKey> keys = keys_of(5);
  while (rig.set(keys).status != Status::done) continue;
  server.process().stop();
  EXPECT_EQ(name_of(rig.get(keys).cause), name_of(Cause::unreachable));
  EXPECT_EQ(name_of(rig.set(keys).cause), name_of(Cause::unreachable));
  EXPECT_EQ(name_of(rig.remove(keys).cause), name_of(Cause::unreachable));
  EXPECT_EQ(rig.look_up(keys), 0u);
  server.process().go_on();
  while (rig.get(keys).status != Status::done) continue;
  rig.finish();
  EXPECT_GT(rig.counter("unreachable_slow"), 0u);
}

TEST(NixlFailures, ADeadServerIsUnreachable) {
  S3Server server;
  StoreRig rig(make_nixl_backend(impatient(server.new_bucket(), 300 * kMs), kSmallForm));
  const std::vector<PageKey> keys = keys_of(5);
  while (rig.set(keys).status != Status::done) continue;
  server.process().kill();
  EXPECT_EQ(name_of(rig.get(keys).cause), name_of(Cause::unreachable));
  EXPECT_EQ(name_of(rig.set(keys).cause), name_of(Cause::unreachable));
  EXPECT_EQ(rig.look_up(keys), 0u);
}

TEST(NixlFailures, ChecksSayWhatIsWrong) {
  S3Server server;
  NixlConfig config = server.new_bucket();
  const auto check = [&] { return make_nixl_backend(config, kSmallForm)->check(); };
  EXPECT_EQ(check(), "");
  config.s3.bucket = "absent";
  EXPECT_EQ(check(), "The S3 server " + config.s3.endpoint + " has no such bucket.");
  config.s3.secret_key = "wrong";
  EXPECT_EQ(check(), "The S3 server " + config.s3.endpoint + " refuses these keys.");
  server.process().kill();
  EXPECT_EQ(check(), "The S3 server " + config.s3.endpoint + " doesn't answer.");
}

// A process may have few files of the needed size: as on a full disk, no room can be reserved.
TEST(NixlFailures, AFileThatCanNotBeWrittenLeavesNothingBehind) {
  const Folder folder;
  StoreRig rig(make_nixl_backend(nixl_files(folder / "pages"), kSmallForm));
  const std::vector<PageKey> keys = keys_of(5);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const Completion refused = rig.set(keys);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(refused.pages, 0u);
  EXPECT_EQ(name_of(refused.cause), name_of(Cause::full));
  EXPECT_TRUE(fs::is_empty(folder / "pages"));
}

// Process numbers come back: a process that was killed may have left unfinished files, and another machine may write
// with the same number.
TEST(NixlFailures, UnfinishedFilesOfOthersDoNotHinderWrites) {
  const Folder folder;
  StoreRig rig(make_nixl_backend(nixl_files(folder / "pages"), kSmallForm));
  const std::vector<PageKey> keys = keys_of(5);
  for (const PageKey& key : keys) {
    for (int write = 1; write <= 5; ++write) {
      std::ofstream(folder / "pages/" + remote_name_of(stored_page_key(kSmallForm, kSpace, key)) + "." +
                    std::to_string(::getpid()) + "." + std::to_string(write) + ".tmp");
    }
  }
  EXPECT_EQ(rig.set(keys).status, Status::done);
  EXPECT_EQ(rig.get(keys).status, Status::done);
}

void serve(const std::string& url) {
  const Folder folder;
  const Settings remote{"tiers.remote.tokens=1000000", "tiers.remote.url=" + url, "tiers.remote.timeout_s=10"};
  const Json report = serve_twice(folder, fed_settings(folder) + remote, 150);
  ASSERT_TRUE(report.is_object());
  EXPECT_GT(report.at("tokens").at("hit_remote"), 0) << report.at("tokens");
  const Json& counters = report.at("real").at("storage").at("remote");
  EXPECT_GT(count_of(counters, "got_pages"), 0u);
  EXPECT_EQ(count_of(counters, "corrupt_pages") + unreachable_in(counters), 0u) << counters;
}

TEST(NixlRun, ServesFromFiles) {
  const Folder folder;
  serve("nixl+posix://" + (folder / "pages") + "?library=" + remote_packages().string());
}

TEST(NixlRun, ServesFromObjects) {
  S3Server server;
  const NixlConfig config = server.new_bucket();
  ::setenv("AWS_ACCESS_KEY_ID", config.s3.access_key.c_str(), 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", config.s3.secret_key.c_str(), 1);
  serve("nixl+obj://" + config.s3.bucket + "?endpoint=" + config.s3.endpoint +
        "&library=" + remote_packages().string());
  ::unsetenv("AWS_ACCESS_KEY_ID");
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
}

}  // namespace
}  // namespace kvtwin::test

// The requests that a watch keeps.
#include "lab/watch/request_keeper.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "lab/watch/recording.hpp"
#include "lab/watch/watch_run.hpp"
#include "tests/program.hpp"
#include "tests/trace_files.hpp"

namespace kvtwin {
namespace {

TEST(RequestKeeper, FilesAreBoundedAndReadable) {
  const test::Folder folder;
  RequestKeeper keeper(folder / "out", 1, 100'000);
  TraceRequest request;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    request.arrival = static_cast<TimeNs>(i) * kNsPerSecond;
    request.input = 160;
    request.output = 1;
    request.blocks.clear();
    for (std::uint64_t block = 0; block < 10; ++block) request.blocks.push_back(i * 10 + block);
    keeper.write(0, request, 16);
  }
  keeper.flush();
  EXPECT_LT(keeper.bytes(), 130'000U) << "the limit, and the file that is being written";
  EXPECT_GT(keeper.bytes(), 70'000U);
  const std::vector<std::filesystem::path> files = request_files(std::filesystem::path(folder / "out") / "engine-0");
  EXPECT_GT(files.size(), 5U);
  WatchArguments arguments;
  arguments.sources = {folder / "out"};
  const std::atomic<bool> stop = false;
  const Json json = play_recordings(arguments, stop, {}, {}).json;
  EXPECT_GT(json.at("requests").get<int>(), 600);
  EXPECT_EQ(json.at("seconds").get<double>(), json.at("requests").get<double>() - 1) << "the times are those of before";
  EXPECT_THROW(RequestKeeper(folder / "out", 2, 1000), InputError);
  const std::string workload = test::text_of(files[0].parent_path() / "workload.toml");
  EXPECT_NE(workload.find("block_tokens = 16"), std::string::npos) << workload;
}

TEST(RequestKeeper, AShortWatchHasAWorkloadAndARestartKeepsTheLimit) {
  const test::Folder folder;
  const std::filesystem::path engine = std::filesystem::path(folder / "out") / "engine-0";
  TraceRequest request;
  request.input = 16;
  request.output = 1;
  request.blocks = {1};
  for (int i = 0; i < 3; ++i) {
    RequestKeeper keeper(folder / "out", 1, 100'000);
    request.arrival = (i + 1) * 1000 * kNsPerSecond;
    keeper.write(0, request, 16);
    keeper.end();
    EXPECT_NE(test::text_of(engine / "workload.toml").find("block_tokens = 16"), std::string::npos);
  }
  EXPECT_EQ(request_files(engine).size(), 3U);
  const std::uint64_t all = RequestKeeper(folder / "out", 1, 100'000).bytes();
  EXPECT_LT(RequestKeeper(folder / "out", 1, all - 1).bytes(), all);
}

#if KVTWIN_TEST_ZMQ
// The pool of all engines depends on the order of their requests.
TEST(RequestKeeper, ARestartTakesTheRequestsOfAllEnginesByTime) {
  const test::Folder folder;
  {
    RequestKeeper keeper(folder / "out", 2, 100'000);
    const auto write = [&](std::size_t engine, TimeNs second, std::uint64_t first) {
      TraceRequest request;
      request.arrival = second * kNsPerSecond;
      request.input = 64;
      request.output = 1;
      for (std::uint64_t block = 0; block < 4; ++block) request.blocks.push_back(first + block);
      keeper.write(engine, request, 16);
    };
    write(0, 1, 100);
    write(1, 2, 200);
    write(0, 3, 100);  // hits in a pool of 8, as 200 was between; one engine after the other, in a pool of 4
    write(1, 4, 200);
    keeper.end();
    for (const char* log : {"a", "b"}) test::write_text(folder / log, "");
  }
  const std::atomic<bool> stop = true;
  WatchArguments arguments;
  arguments.request_logs = {folder / "a", folder / "b"};
  arguments.out = folder / "out";
  arguments.settings.device_blocks = 2;
  const Json json = watch_engines(arguments, stop, {}, {}).json;
  EXPECT_EQ(json.at("requests").get<int>(), 4);
  const auto hits_of = [&](std::uint64_t blocks) {
    for (const Json& row : json.at("shared_pool")) {
      if (row.at("blocks").get<std::uint64_t>() == blocks) return row.at("hit_blocks").get<int>();
    }
    return -1;
  };
  EXPECT_EQ(hits_of(4), 0) << json.at("shared_pool").dump();
  EXPECT_EQ(hits_of(8), 8);
}
#endif

}  // namespace
}  // namespace kvtwin

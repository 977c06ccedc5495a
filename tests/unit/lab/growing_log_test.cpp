// Logs that their servers go on writing.
#include "lab/watch/growing_log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lab/error.hpp"
#include "tests/program.hpp"
#include "tests/trace_files.hpp"
#include "tests/unit/lab/sglang_lines.hpp"

namespace kvtwin {
namespace {

using test::sglang_lines;

void append_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

TEST(GrowingLog, ReturnsWhatIsWrittenAndEnds) {
  const test::Folder folder;
  const std::string text = test::text_of(test::fixture("vllm/requests.log"));
  const std::string path = folder / "server.log";
  const std::size_t half = text.find('\n', text.size() / 2) - 3;
  test::write_text(path, text.substr(0, half));
  GrowingLog log(path, 32);
  std::vector<TraceRequest> requests;
  const auto take = [&] {
    GrowingLog::Read read = log.take();
    for (TraceRequest& request : read.requests) requests.push_back(std::move(request));
    std::this_thread::yield();
    return read.fault;
  };
  while (requests.empty()) EXPECT_EQ(take(), "");
  append_text(path, text.substr(half));
  log.end();
  while (take().empty()) {
  }
  TraceOptions options;
  options.block_tokens = 32;
  TraceReader reader(path, options);
  std::size_t count = 0;
  for (TraceRequest request; reader.next(request); ++count) {
    ASSERT_LT(count, requests.size());
    EXPECT_EQ(request.blocks, requests[count].blocks);
  }
  EXPECT_EQ(count, requests.size());
}

constexpr std::chrono::milliseconds kNever{1'000'000}, kAtOnce{0};

// Takes requests until there are `count`.
std::vector<TraceRequest> requests_of(GrowingLog& log, std::size_t count) {
  std::vector<TraceRequest> requests;
  while (requests.size() < count) {
    GrowingLog::Read read = log.take();
    for (TraceRequest& request : read.requests) requests.push_back(std::move(request));
    if (!read.fault.empty()) break;
    std::this_thread::yield();
  }
  EXPECT_GE(requests.size(), count);
  return requests;
}

TEST(GrowingLog, IsAtMostTenSecondsBehindTheLog) {
  const test::Folder folder;
  const std::string path = folder / "log";
  test::write_text(path, sglang_lines(0, 100));
  GrowingLog log(path, 2, kNever);
  const std::vector<TraceRequest> requests = requests_of(log, 90);  // the log ends at 100 s
  EXPECT_EQ(requests.size(), 90U);
  EXPECT_EQ(requests.back().arrival, 89 * kNsPerSecond);
}

TEST(GrowingLog, ALongRequestCountsWhenItEnds) {
  const test::Folder folder;
  const std::string path = folder / "log";
  const std::string slow = sglang_lines(0, 1, 50);
  const std::size_t cut = slow.find('\n') + 1;
  test::write_text(path, slow.substr(0, cut) + sglang_lines(1, 50) + slow.substr(cut) + sglang_lines(51, 80));
  GrowingLog log(path, 2, kNever);
  log.end();
  const std::vector<TraceRequest> requests = requests_of(log, 79);
  const auto at = std::ranges::find(requests, 50 * kNsPerSecond, &TraceRequest::measured_latency);
  ASSERT_NE(at, requests.end());
  EXPECT_EQ(at->arrival, std::prev(at)->arrival) << "not before those that were returned";
  EXPECT_GT(at->arrival, 30 * kNsPerSecond);
}

TEST(GrowingLog, ASilentLogKeepsNothing) {
  const test::Folder folder;
  const std::string path = folder / "log";
  const std::string more = sglang_lines(5, 8);
  test::write_text(path, sglang_lines(0, 5) + more.substr(0, 20));
  GrowingLog log(path, 2, kAtOnce);
  EXPECT_EQ(requests_of(log, 5).back().arrival, 4 * kNsPerSecond);
  append_text(path, more.substr(20));  // the rest of the line that was being written
  EXPECT_EQ(requests_of(log, 3).back().arrival, 7 * kNsPerSecond);
  log.end();
  std::string fault;
  while ((fault = log.take().fault).empty()) std::this_thread::yield();
  EXPECT_EQ(fault, "has ended");
}

TEST(GrowingLog, FollowsANewFile) {
  const test::Folder folder;
  const std::string path = folder / "log";
  test::write_text(path, sglang_lines(0, 5));
  GrowingLog log(path, 2, kAtOnce);
  requests_of(log, 5);
  EXPECT_EQ(log.take().new_files, 0U);
  std::filesystem::rename(path, folder / "log.1");
  append_text(folder / "log.1", sglang_lines(5, 7) + "half of a li");
  test::write_text(path, sglang_lines(7, 10));
  EXPECT_EQ(requests_of(log, 5).back().arrival, 9 * kNsPerSecond);
  EXPECT_EQ(log.take().new_files, 1U);
  std::filesystem::resize_file(path, 0);
  append_text(path, sglang_lines(10, 12));
  EXPECT_EQ(requests_of(log, 2).back().arrival, 11 * kNsPerSecond);
  EXPECT_EQ(log.take().new_files, 2U);
}

TEST(GrowingLog, ABrokenLineIsCountedNamedAndPassedOver) {
  const test::Folder folder;
  const std::string path = folder / "log";
  const std::string slow = sglang_lines(0, 1, 20);
  const std::size_t cut = slow.find('\n') + 1;
  // The request that is being sorted has ended behind both broken lines.
  test::write_text(path, slow.substr(0, cut) + sglang_lines(1, 3) + "{\"event\": \"request.fin\n" + sglang_lines(3, 5) +
                             R"({"timestamp": "yesterday", "event": "request.received", "rid": "x"})" + "\n" +
                             slow.substr(cut) + sglang_lines(5, 6));
  GrowingLog log(path, 2, kAtOnce);
  EXPECT_EQ(requests_of(log, 6).front().arrival, 0);
  const GrowingLog::Read read = log.take();
  EXPECT_EQ(read.bad_lines, 2U);
  EXPECT_NE(read.first_bad_line.find(path + "\", line 6: not one whole JSON object"), std::string::npos)
      << read.first_bad_line;
  EXPECT_EQ(read.fault, "");
}

TEST(GrowingLog, ABrokenFirstLineIsOneOfThem) {
  const test::Folder folder;
  test::write_text(folder / "log", "{\"timestamp\": \"20\n" + sglang_lines(0, 3));
  GrowingLog log(folder / "log", 2, kAtOnce);
  EXPECT_EQ(requests_of(log, 3).size(), 3U);
  EXPECT_EQ(log.take().bad_lines, 1U);
  EXPECT_NE(log.take().first_bad_line.find("line 1: "), std::string::npos);
}

TEST(GrowingLog, ABrokenLineOfVllm) {
  const test::Folder folder;
  std::string text = test::text_of(test::fixture("vllm/requests.log"));
  const std::string ids = "prompt_token_ids: [";
  const std::size_t at = text.find(ids, text.size() / 2);
  ASSERT_NE(at, std::string::npos);
  TraceOptions options;
  options.block_tokens = 32;
  std::size_t all = 0;
  test::write_text(folder / "whole", text);
  TraceReader reader(folder / "whole", options);
  for (TraceRequest request; reader.next(request);) ++all;
  text.insert(at + ids.size(), "x, ");
  test::write_text(folder / "log", text);
  GrowingLog log(folder / "log", 32, kAtOnce);
  EXPECT_EQ(requests_of(log, all - 1).size(), all - 1);
  EXPECT_EQ(log.take().bad_lines, 1U);
}

std::string end_of(GrowingLog& log, bool& is_refused) {
  for (;;) {
    const GrowingLog::Read read = log.take();
    is_refused = read.is_refused;
    if (!read.fault.empty()) return read.fault;
    std::this_thread::yield();
  }
}

TEST(GrowingLog, AFileOfAnotherKindIsRefused) {
  const test::Folder folder;
  std::string text_only, csv;
  for (int i = 0; i < 200; ++i) {
    text_only += R"({"timestamp": "2026-11-29T10:00:00", "event": "request.finished", "rid": "a", )"
                 R"("obj": {"text": "t"}, "out": {"meta_info": {"completion_tokens": 1, "e2e_latency": 1}}})"
                 "\n";
  }
  for (int i = 0; i < 1100; ++i) csv += "a line of something else\n";
  for (const auto& [text, why] : {std::pair{std::string("{\"level\": \"info\"}\n"), "line 1: key \"timestamp\""},
                                  std::pair{text_only, "line 1: key \"obj.input_ids\" is missing"},
                                  std::pair{csv, "line 1: is no trace that kvtwin knows"}}) {
    test::write_text(folder / "log", text);
    GrowingLog log(folder / "log", 2, kAtOnce);
    bool is_refused = false;
    const std::string fault = end_of(log, is_refused);
    EXPECT_NE(fault.find(why), std::string::npos) << fault;
    EXPECT_TRUE(is_refused);
  }
}

TEST(GrowingLog, DatesWithoutAZoneAreOfTheGivenOne) {
  const test::Folder folder;
  const auto begin_of = [&](const std::string& text, TimeNs zone) {
    test::write_text(folder / "log", text);
    GrowingLog log(folder / "log", 2, kAtOnce, zone);
    GrowingLog::Read read;
    while ((read = log.take()).requests.empty()) std::this_thread::yield();
    return std::pair(read.begin, read.has_local_dates);
  };
  const std::string local = sglang_lines(0, 3);
  std::string zoned = local;
  for (std::size_t at = 0; (at = zoned.find("T10:", at)) != std::string::npos; at += 4) zoned.insert(at + 9, "+05:30");
  constexpr TimeNs kHour = 3600 * kNsPerSecond;
  const auto [utc, is_local] = begin_of(local, 0);
  EXPECT_TRUE(is_local);
  EXPECT_EQ(begin_of(local, 2 * kHour), std::pair(utc - 2 * kHour, true));
  EXPECT_EQ(begin_of(zoned, 2 * kHour), std::pair(utc - 5 * kHour - kHour / 2, false));
}

TEST(GrowingLog, SaysThatItWaitsForALog) {
  const test::Folder folder;
  test::write_text(folder / "log", "a line of something else\n");
  GrowingLog log(folder / "log", 2, kAtOnce);
  while (!log.take().is_waiting) std::this_thread::yield();
  append_text(folder / "log", sglang_lines(0, 1));
  EXPECT_EQ(requests_of(log, 1).size(), 1U);
  EXPECT_FALSE(log.take().is_waiting);
}

TEST(GrowingLog, SaysWhyNoMoreComes) {
  const test::Folder folder;
  test::write_text(folder / "log", "no log at all\nanother line\n");
  GrowingLog log(folder / "log", 0);
  log.end();
  std::string fault;
  while ((fault = log.take().fault).empty()) std::this_thread::yield();
  EXPECT_NE(fault.find("no trace that kvtwin knows"), std::string::npos) << fault;
  EXPECT_THROW(GrowingLog(folder / "absent", 0), InputError);
}

}  // namespace
}  // namespace kvtwin

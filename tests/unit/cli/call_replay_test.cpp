// Journals of cache calls: kvtwin replay, explain and calibrate --from. The fixture was recorded in SGLang 0.5.23's own
// cache, with kvtwin's tree core and tide (tools/sglang-shadow --journal).
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "policy/hosted/call_journal.hpp"
#include "tests/journal_test_support.hpp"
#include "tests/paths.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

const std::string kRecorded = in_source("tests/fixtures/sglang/shadow_tide.kvc");

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in " << text;
}

TEST(CallReplay, ARealSGLangIsDecidedAgain) {
  const Json replay = run({"replay", kRecorded, "--json"}).json();
  EXPECT_EQ(replay.at("verdict"), "equal");
  EXPECT_EQ(replay.at("host"), "sglang 0.5.23");
  EXPECT_EQ(replay.at("eviction"), "tide");
  EXPECT_GT(replay.at("victims").get<int>(), 10);
  EXPECT_EQ(replay.at("victims"), replay.at("equal_victims"));
  EXPECT_EQ(replay.at("other_evictions"), 0);
  const Outcome text = run({"replay", kRecorded});
  EXPECT_EQ(text.exit_code, 0);
  expect_part(text.out, "calls of sglang 0.5.23");
  expect_part(text.out, ": equal");
}

TEST(CallReplay, AnotherPolicyChoosesOtherVictims) {
  const Outcome other = run({"replay", kRecorded, "--set", "cache.eviction=mru"});
  EXPECT_EQ(other.exit_code, 3) << other.err;
  expect_part(other.out, "diverged");
  EXPECT_TRUE(
      std::regex_search(other.out, std::regex("first +record [0-9]+ \\(victim of the device\\): recorded node")))
      << other.out;
  const Outcome wrong = run({"replay", kRecorded, "--set", "cache.eviction=best"});
  EXPECT_EQ(wrong.exit_code, 2);
  expect_part(wrong.err, "no policy has this name");
  const Outcome key = run({"replay", kRecorded, "--set", "tiers.host.gib=1"});
  EXPECT_EQ(key.exit_code, 2);
  expect_part(key.err, "only cache.eviction can be set");
}

TEST(CallReplay, CutAndDamagedJournalsAreRefused) {
  const Folder folder;
  const std::string bytes = text_of(kRecorded);
  write_text(folder / "cut.kvc", bytes.substr(0, bytes.size() / 2));
  const Outcome cut = run({"replay", folder / "cut.kvc"});
  EXPECT_EQ(cut.exit_code, 2);
  expect_part(cut.err, "is truncated at record");
  std::string damaged = bytes;
  damaged[bytes.size() / 2] ^= 1;
  write_text(folder / "damaged.kvc", damaged);
  const Outcome corrupt = run({"replay", folder / "damaged.kvc"});
  EXPECT_EQ(corrupt.exit_code, 2);
  expect_part(corrupt.err, "is corrupt at record");
}

TEST(CallReplay, ExplainsARequest) {
  const Json story = run({"explain", kRecorded, "--request", "18", "--json"}).json();
  EXPECT_EQ(story.at("request"), 18);
  EXPECT_EQ(story.at("eviction"), "tide");
  EXPECT_GT(story.at("inserted_pages").get<int>(), 0);
  ASSERT_FALSE(story.at("evictions").empty());
  for (const auto& gone : story.at("evictions")) EXPECT_EQ(gone.at("by"), "policy");
  const Outcome text = run({"explain", kRecorded, "--request", "18"});
  EXPECT_EQ(text.exit_code, 0);
  expect_part(text.out, "matched     ");
  expect_part(text.out, "the victim of tide");
  const Outcome none = run({"explain", kRecorded, "--request", "9999"});
  EXPECT_EQ(none.exit_code, 2);
  expect_part(none.err, "has no visit of request 9999");
}

// A disk of 100 us and 1 GB/s. Calls that lack pages do not count.
TEST(CallReplay, StorageTimesCalibrateADisk) {
  const Folder folder;
  ByteVector bytes;
  CallJournalWriter writer(bytes, "a host");
  for (std::uint64_t i = 0; i < 240; ++i) {
    const std::uint64_t pages = 1 + i % 24, page = 1 << 20;
    HostStorageCall call;
    call.verb = i / 24 % 2 == 0 ? StorageVerb::get : StorageVerb::set;
    call.pages = pages;
    call.done = i % 24 == 5 ? 0 : pages;
    call.bytes = call.done * page;
    call.duration = call.done == 0 ? 1 : static_cast<TimeNs>(100'000 + pages * page);
    writer.append(call);
  }
  writer.finish();
  std::ofstream(folder / "storage.kvc", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.bytes.data()), static_cast<std::streamsize>(bytes.bytes.size()));
  const Outcome fitted =
      run({"calibrate", "--from", folder / "storage.kvc", "--base", "cpu-host", "--out", folder / "fitted"});
  ASSERT_EQ(fitted.exit_code, 0) << fitted.err;
  const Json hardware = Json::parse(text_of(folder / "fitted/hardware.json"));
  EXPECT_NEAR(hardware.at("numbers").at("drive_read_bandwidth").at("value").get<double>(), 1.0, 0.15);
  EXPECT_NEAR(hardware.at("numbers").at("drive_write_bandwidth").at("value").get<double>(), 1.0, 0.15);

  const Outcome without = run({"calibrate", "--from", kRecorded, "--out", folder / "none"});
  EXPECT_EQ(without.exit_code, 2);
  expect_part(without.err, "has no storage call");
}

}  // namespace
}  // namespace kvtwin::test

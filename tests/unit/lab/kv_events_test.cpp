// KV events: what SGLang's publisher sent is read, written and read again; nothing that comes over the wire crashes.
#include "lab/capture/kv_events.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "tests/folder.hpp"
#include "tests/unit/lab/kv_messages.hpp"

namespace kvtwin {
namespace {

using test::KvMessage;
using Bytes = std::vector<std::uint8_t>;
using Packed = nlohmann::ordered_json;  // writes MessagePack

std::vector<KvEvent> read_all(const std::filesystem::path& path, bool* cut = nullptr) {
  KvEventReader reader(path);
  std::vector<KvEvent> events;
  for (KvEvent event; reader.next(event);) events.push_back(event);
  if (cut != nullptr) *cut = reader.is_cut();
  return events;
}

Bytes pack(const Packed& json) { return Packed::to_msgpack(json); }

Packed stored(const Packed& hashes, const Packed& parent, const Packed& tokens) {
  return {{"type", "BlockStored"}, {"block_hashes", hashes}, {"parent_block_hash", parent},
          {"token_ids", tokens},   {"block_size", 2},        {"lora_id", nullptr},
          {"medium", "GPU"}};
}

TEST(KvEvents, AreReadAsSglangSendsThem) {
  const test::Folder folder;
  KvEventWriter writer(folder.path(), "tcp://127.0.0.1:5557", "kv", false);
  for (const KvMessage& message : test::sglang_messages()) writer.write(message.seq, message.payload);
  const KvEventCounts& counts = writer.counts();
  EXPECT_EQ(counts.messages, test::sglang_messages().size());
  EXPECT_EQ(counts.bad, 0U);
  EXPECT_EQ(counts.missing, 0U);
  EXPECT_EQ(counts.cleared, 1U);
  std::uint64_t stored_blocks = 0, removed_blocks = 0, on_host = 0;
  const std::vector<KvEvent> events = read_all(folder.path());
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front().kind, KvEvent::Kind::cleared);
  for (const KvEvent& event : events) {
    if (event.kind == KvEvent::Kind::removed) removed_blocks += event.hashes.size();
    if (event.kind != KvEvent::Kind::stored) continue;
    stored_blocks += event.hashes.size();
    on_host += event.medium == "CPU_PINNED" ? 1 : 0;
    EXPECT_EQ(event.block_size, 16U);
    EXPECT_EQ(event.tokens.size(), 16 * event.hashes.size());
  }
  EXPECT_EQ(counts.stored_blocks, stored_blocks);
  EXPECT_EQ(counts.removed_blocks, removed_blocks);
  EXPECT_GT(removed_blocks, 100U);
  EXPECT_GT(on_host, 10U);
}

TEST(KvEvents, GapsAndRestartsAreCountedAndWritten) {
  const test::Folder folder;
  KvEventWriter writer(folder.path(), "e", "", false);
  const Bytes batch = pack({1.5, Packed::array({{{"type", "AllBlocksCleared"}}}), nullptr});
  EXPECT_FALSE(writer.missing_before(7)) << "the first message may have any number";
  for (const std::uint64_t seq : {7U, 8U, 11U, 3U}) writer.write(seq, batch);
  EXPECT_EQ(writer.counts().missing, 2U);
  EXPECT_EQ(writer.counts().restarts, 1U);
  const std::vector<KvEvent> events = read_all(folder.path());
  ASSERT_EQ(events.size(), 6U);
  EXPECT_EQ(events[2].kind, KvEvent::Kind::missing);
  EXPECT_EQ(events[2].seq, 9U);
  EXPECT_EQ(events[2].count, 2U);
  EXPECT_EQ(events[4].kind, KvEvent::Kind::restart);
}

TEST(KvEvents, OlderVllmSendsListsAndBytes) {
  const Packed hash = Packed::binary({0x01, 0xff});
  const Packed event = Packed::array({"BlockStored", Packed::array({hash, -5}), hash, {1, 2, 3, 4}, 2, nullptr, "GPU"});
  const Packed gone = Packed::array({"BlockRemoved", Packed::array({18446744073709551615U}), "GPU"});
  const test::Folder folder;
  KvEventWriter writer(folder.path(), "e", "", false);
  writer.write(0, pack(Packed::array({1, Packed::array({event, gone})})));
  EXPECT_EQ(writer.counts().first_problem, "");
  const std::vector<KvEvent> events = read_all(folder.path());
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].hashes, (std::vector<std::string>{"0x01ff", "-5"}));
  EXPECT_EQ(events[0].parent, "0x01ff");
  EXPECT_EQ(events[0].medium, "GPU");
  EXPECT_EQ(events[1].hashes, std::vector<std::string>{"18446744073709551615"});
}

std::string problem(const Bytes& payload) {
  PassedOver passed_over;
  const auto fail = [](const KvEventLine& event) { ADD_FAILURE() << event.json; };
  std::string why = decode_kv_events(payload, {}, passed_over);
  if (!why.empty()) decode_kv_events(payload, fail, passed_over);  // an event before the bad one is not given either
  return why;
}

// The bytes of a head of MessagePack that declares `count` entries or bytes, and `behind` it.
Bytes declared(std::uint8_t type, std::uint32_t count, const Bytes& behind = {}) {
  Bytes bytes{0x93, 0x01, type};
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(count >> shift));
  bytes.insert(bytes.end(), behind.begin(), behind.end());
  return bytes;
}

// The largest resident size of this process so far.
std::size_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) << 10;
}

TEST(KvEvents, LengthsThatAreNotThereCostNothing) {
  constexpr std::uint8_t kTypes[] = {0xc6, 0xc9, 0xdb, 0xdd, 0xdf};
  for (const std::uint8_t type : kTypes) {
    for (const std::uint32_t count : {0x10U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
      EXPECT_NE(problem(declared(type, count)), "") << int{type} << " " << count;
      EXPECT_NE(problem(declared(type, count, {0xc0})), "") << int{type} << " " << count;
    }
  }
}

TEST(KvEvents, AMessageOfSmallEntriesTakesNoMemoryPerEntry) {
  constexpr std::uint32_t kEntries = 2'000'000;
  constexpr std::uint8_t kSmall[] = {0xc0, 0x90, 0x80, 0x05, 0xa0};
  for (const std::uint8_t entry : kSmall) {
    const Bytes list = declared(0xdd, kEntries, Bytes(kEntries + 1, entry));
    Bytes inside{0x92, 0x01, 0x91, 0x81, 0xa1, 'x', 0xdd};  // the value of an unknown key of an event
    inside.insert(inside.end(), list.begin() + 3, list.end() - 1);
    const std::size_t before = peak_bytes();
    EXPECT_NE(problem(list), "");
    EXPECT_NE(problem(inside), "");
    EXPECT_LT(peak_bytes() - before, std::size_t{16} << 20) << "of 2 MB that arrived, beside their copies";
  }
}

TEST(KvEvents, KeysThatAreNotReadAreNamed) {
  const test::Folder folder;
  KvEventWriter writer(folder.path(), "e", "", false);
  Packed event = stored({1}, nullptr, {1, 2});
  event["locality"] = "LOCAL";
  event["nothing"] = nullptr;
  const Packed removed{{"type", "BlockRemoved"}, {"block_hashes", {1}}, {"session_id", "s"}, {"locality", "LOCAL"}};
  const Packed list = Packed::array({"AllBlocksCleared", 7});
  writer.write(0, pack(Packed::array({1, Packed::array({event, removed, list}), nullptr, 9})));
  EXPECT_EQ(writer.counts().first_problem, "");
  EXPECT_EQ(writer.counts().passed_over.text(),
            "entries of a batch behind the rank (1), locality (2), session_id (1), entry 1 of AllBlocksCleared (1)");
}

// As vLLM 0.32 writes them for a model with sliding windows.
TEST(KvEvents, GroupsOfLayersAndExtraKeysAreKept) {
  Packed event = stored({1, 2}, nullptr, {1, 2, 3, 4});
  event["group_idx"] = 3;
  event["kv_cache_spec_kind"] = "sliding_window";
  event["kv_cache_spec_sliding_window"] = 128;
  event["extra_keys"] = Packed::array({nullptr, Packed::array({"adapter", Packed::array({"image", 7})})});
  const Packed removed{{"type", "BlockRemoved"}, {"block_hashes", {1}}, {"group_idx", 1}};
  const Bytes message = pack(Packed::array({1, Packed::array({event, removed}), nullptr}));
  std::vector<std::string> lines;
  PassedOver passed_over;
  const auto take = [&](const KvEventLine& one) { lines.emplace_back(one.json); };
  EXPECT_EQ(decode_kv_events(message, take, passed_over), "");
  EXPECT_EQ(decode_kv_events(message, take, passed_over, false), "");
  EXPECT_EQ(passed_over.text(), "");
  ASSERT_EQ(lines.size(), 4U);
  const std::string groups =
      R"("group_idx":3,"kv_cache_spec_kind":"sliding_window","kv_cache_spec_sliding_window":128)";
  EXPECT_NE(lines[0].find(groups + R"(,"extra_keys":[null,["adapter",["image",7]]]})"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("token_ids"), std::string::npos);
  EXPECT_NE(lines[1].find(R"("group_idx":1})"), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find(groups + "}"), std::string::npos) << lines[2];
  EXPECT_EQ(lines[2].find("token_ids"), std::string::npos) << "nothing of the prompts";
  KvEvent read;
  parse_kv_event(R"({"seq":1,)" + lines[2].substr(1), "t", read);
  EXPECT_EQ(read.group, 3U);
  EXPECT_EQ(read.group_kind, "sliding_window");
  EXPECT_TRUE(read.tokens.empty());
}

TEST(KvEvents, CountsOfLostMessagesDoNotWrap) {
  const test::Folder folder;
  KvEventWriter writer(folder.path(), "e", "", false);
  writer.expect_from_zero();
  const Bytes batch = pack({1.5, Packed::array(), nullptr});
  constexpr std::uint64_t kLast = ~std::uint64_t{0};
  for (const std::uint64_t seq : {kLast - 1, std::uint64_t{0}, kLast - 1}) writer.write(seq, batch);
  EXPECT_EQ(writer.counts().missing, kLast);
  KvEvent event;
  parse_kv_event(R"({"type": "missing", "from": 0, "to": 18446744073709551615})", "here", event);
  EXPECT_EQ(event.count, kLast);
}

TEST(KvEvents, WhatIsNoBatchIsNamed) {
  const auto of_event = [&](const Packed& event) {
    return problem(pack(Packed::array({1.0, Packed::array({event})})));
  };
  EXPECT_NE(problem({}), "");
  EXPECT_NE(problem({0xc1}), "");
  EXPECT_NE(problem(Bytes(1'000'000, 0x91)), "") << "a million lists in each other";
  EXPECT_NE(problem({0xdd, 0xff, 0xff, 0xff, 0xff}), "") << "a list of 2^32 - 1 entries that aren't there";
  EXPECT_NE(problem(pack({{"a", 1}})).find("no batch"), std::string::npos);
  EXPECT_NE(problem(pack(Packed::array({"now", Packed::array()}))), "");
  for (const double time : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(problem(pack(Packed::array({time, Packed::array()}))), "has no finite time");
  }
  EXPECT_EQ(of_event(stored({1, 2}, nullptr, {1, 2, 3, 4})), "");
  EXPECT_EQ(of_event(stored({1}, nullptr, Packed::array({{1, 2}, {2, 3}}))), "") << "a draft model's pairs";
  EXPECT_NE(of_event(stored({"x"}, nullptr, {1, 2})), "");
  EXPECT_NE(of_event(stored({1}, 1.5, {1, 2})), "");
  EXPECT_NE(of_event(stored({1}, nullptr, {-1, 2})), "");
  EXPECT_NE(of_event({{"type", "BlockRemoved"}}), "");
  EXPECT_NE(of_event({{"type", "BlockMoved"}}).find("BlockMoved"), std::string::npos);
  EXPECT_NE(of_event(7), "");
}

TEST(KvEvents, ABadMessageIsWrittenDown) {
  const test::Folder folder;
  KvEventWriter writer(folder.path(), "e", "", false);
  writer.write(0, Bytes{0xc1});
  EXPECT_EQ(writer.counts().bad, 1U);
  EXPECT_NE(writer.counts().first_problem.find("message 0 is no MessagePack"), std::string::npos);
  const std::vector<KvEvent> events = read_all(folder.path());
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, KvEvent::Kind::bad);
}

TEST(KvEvents, ARecordingThatWasKilledIsReadUpToItsLastWholeLine) {
  const test::Folder folder;
  {
    KvEventWriter writer(folder.path(), "e", "", false);
    for (std::size_t i = 0; i < 3; ++i) writer.write(i, test::sglang_messages()[i].payload);
  }
  const std::filesystem::path file = folder.path() / "kv_events.jsonl";
  const std::size_t whole = read_all(file).size();
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  bool cut = false;
  EXPECT_EQ(read_all(file, &cut).size(), whole - 1);
  EXPECT_TRUE(cut);
}

TEST(KvEvents, ARecordingIsReplacedByForceOnly) {
  const test::Folder folder;
  { const KvEventWriter writer(folder.path(), "e", "", false); }
  EXPECT_THROW(KvEventWriter(folder.path(), "e", "", false), InputError);
  EXPECT_NO_THROW(KvEventWriter(folder.path(), "e", "", true));
}

TEST(KvEvents, WhatIsNoRecordingIsRefused) {
  const test::Folder folder;
  const auto refused = [&](const std::string& text) -> std::string {
    std::ofstream(folder.path() / "kv_events.jsonl") << text;
    try {
      read_all(folder.path());
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const std::string header = R"({"type": "header", "version": 1, "endpoint": "e", "topic": ""})"
                             "\n";
  EXPECT_EQ(refused(header), "");
  EXPECT_NE(refused("").find("no recording"), std::string::npos);
  EXPECT_NE(refused(R"({"type": "header", "version": 2})"
                    "\n")
                .find("version 2"),
            std::string::npos);
  EXPECT_NE(refused(header + "{}\n").find(":2: type"), std::string::npos);
  EXPECT_NE(refused(header + "[\n").find(":2: is no JSON object"), std::string::npos);
  EXPECT_NE(refused(header + R"({"seq": 0, "type": "BlockStored"})"
                             "\n")
                .find("block_hashes"),
            std::string::npos);
  EXPECT_NE(refused(header + R"({"from": 3, "to": 2, "type": "missing"})"
                             "\n")
                .find("less than from"),
            std::string::npos);
  EXPECT_THROW(KvEventReader(folder.path() / "none"), InputError);
}

}  // namespace
}  // namespace kvtwin

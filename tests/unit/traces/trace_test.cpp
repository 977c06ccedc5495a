#include "traces/trace.hpp"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/trace_files.hpp"

namespace kvtwin {
namespace {

const std::string kLine = R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]})";

std::vector<TraceRequest> read_all(const std::string& bytes, const TraceOptions& options = {}) {
  TraceReader reader("t.jsonl", bytes, options);
  std::vector<TraceRequest> all;
  TraceRequest request;
  while (reader.next(request)) all.push_back(request);
  return all;
}

// The message that reading ends with; empty if it doesn't fail.
std::string error_of(const std::string& bytes, const TraceOptions& options = {}) {
  try {
    read_all(bytes, options);
    return {};
  } catch (const TraceError& error) {
    return error.what();
  }
}

void expect_error(const std::string& bytes, std::initializer_list<std::string> parts,
                  const TraceOptions& options = {}) {
  const std::string message = error_of(bytes, options);
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
  }
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0);
  EXPECT_TRUE(message.ends_with('.')) << message;
}

std::string line(const std::string& timestamp, const std::string& more = "") {
  return "{\"timestamp\": " + timestamp + ", \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [7]" + more +
         "}\n";
}

std::string zstd_of(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  if (window_log > 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  }
  std::string out(ZSTD_compressBound(text.size()), '\0');
  // Streaming without a known size keeps the wide window in the frame's header.
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer o{out.data(), out.size(), 0};
  ZSTD_compressStream2(context, &o, &in, ZSTD_e_continue);
  EXPECT_EQ(ZSTD_compressStream2(context, &o, &in, ZSTD_e_end), 0U);
  ZSTD_freeCCtx(context);
  out.resize(o.pos);
  return out;
}

std::string gzip_of(const std::string& text) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string in = text, out(text.size() + 1'000, '\0');
  z.next_in = reinterpret_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

TEST(TraceReader, ReadsAllFields) {
  const auto all = read_all(
      kLine + "\n" +
      R"({"hash_ids": [18446744073709551615], "session": 3, "turn": 2, "tenant": 9, "priority": -4, "type": 5, "system_length": 512,)"
      R"( "timestamp": 1500, "input_length": 512, "output_length": 0})"
      "\n");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].arrival, 0);
  EXPECT_EQ(all[0].input, 600U);
  EXPECT_EQ(all[0].output, 5U);
  EXPECT_EQ(all[0].blocks, (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(all[0].session, 0U);
  EXPECT_EQ(all[1].arrival, 1'500'000'000);
  EXPECT_EQ(all[1].output, 1U) << "an output of 0 is served as 1";
  EXPECT_EQ(all[1].blocks, (std::vector<std::uint64_t>{~std::uint64_t{0}}));
  EXPECT_EQ(all[1].session, 3U);
  EXPECT_EQ(all[1].turn, 2U);
  EXPECT_EQ(all[1].tenant, 9U);
  EXPECT_EQ(all[1].priority, -4);
  EXPECT_EQ(all[1].type, 5U);
  EXPECT_EQ(all[0].system, 0U);
  EXPECT_EQ(all[1].system, 512U);
}

TEST(TraceReader, ReadsDecimalTimesToTheNanosecond) {
  const auto all =
      read_all(line("0") + line("0.000001") + line("1.5") + line("2.0000004") + line("1e3") + line("86400000.123456"));
  ASSERT_EQ(all.size(), 6U);
  EXPECT_EQ(all[1].arrival, 1);
  EXPECT_EQ(all[2].arrival, 1'500'000);
  EXPECT_EQ(all[3].arrival, 2'000'000);
  EXPECT_EQ(all[4].arrival, 1'000'000'000);
  EXPECT_EQ(all[5].arrival, 86'400'000'123'456);
}

TEST(TraceReader, CountsTimesFromTheFirstRequest) {
  const auto since_1970 = read_all(line("1763959332000") + line("1763959332001") + line("1764961572000"));
  ASSERT_EQ(since_1970.size(), 3U);
  EXPECT_EQ(since_1970[0].arrival, 0);
  EXPECT_EQ(since_1970[1].arrival, 1'000'000);
  EXPECT_EQ(since_1970[2].arrival, 1'002'240 * kNsPerSecond) << "11.6 days";
  const auto hint_first = read_all(R"({"timestamp": 1763959332000, "hint": "pin", "session": 1})"
                                   "\n" +
                                   line("1763959332001"));
  ASSERT_EQ(hint_first.size(), 2U);
  EXPECT_EQ(hint_first[0].arrival, 0);
  EXPECT_EQ(hint_first[1].arrival, 1'000'000);
}

TEST(TraceReader, ReadsNames) {
  const auto all = read_all(line("0", R"(, "session": "a", "tenant": "x", "type": "s")") +
                            line("0", R"(, "session": "b", "tenant": "x", "type": "n")") +
                            line("0", R"(, "session": "a", "tenant": 0)") + line("0", R"(, "session": 0)"));
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].session, all[2].session);
  EXPECT_NE(all[0].session, all[1].session);
  EXPECT_GT(all[0].session, kSessionZero);
  EXPECT_EQ(all[0].tenant, all[1].tenant);
  EXPECT_NE(all[0].type, all[1].type);
  EXPECT_EQ(all[2].tenant, 0U);
  EXPECT_EQ(all[3].session, kSessionZero) << "session 0 is a session; 0 here means none";
}

TEST(TraceReader, ReadsHints) {
  const auto all = read_all(line("1", R"(, "session": 4)") +
                            R"({"timestamp": 2, "hint": "tool_call_pending", "session": 4, "value": 30})"
                            "\n"
                            R"({"timestamp": 2, "hint": "session_end", "session": 0})"
                            "\n"
                            R"({"timestamp": 3, "hint": "pin", "session": 4})"
                            "\n"
                            R"({"timestamp": 3, "hint": "unpin", "session": 4})"
                            "\n" +
                            line("3"));
  ASSERT_EQ(all.size(), 6U);
  EXPECT_FALSE(all[0].is_hint);
  EXPECT_TRUE(all[1].is_hint);
  EXPECT_EQ(all[1].arrival, 1'000'000);
  EXPECT_EQ(all[1].hint.kind, HintKind::tool_call_pending);
  EXPECT_EQ(all[1].hint.subject, 4U);
  EXPECT_EQ(all[1].hint.value, 30);
  EXPECT_EQ(all[1].blocks.size(), 0U);
  EXPECT_EQ(all[2].hint.kind, HintKind::session_end);
  EXPECT_EQ(all[2].hint.subject, kSessionZero);
  EXPECT_EQ(all[2].hint.value, 0);
  EXPECT_EQ(all[3].hint.kind, HintKind::pin);
  EXPECT_EQ(all[4].hint.kind, HintKind::unpin);
  EXPECT_FALSE(all[5].is_hint);
}

TEST(TraceReader, CountsOtherKeys) {
  const std::string text = line("0", R"(, "model": {"a": [1, {}]}, "value": 3, "x": null)") + line("0");
  TraceReader reader("t", text);
  TraceRequest request;
  EXPECT_TRUE(reader.next(request));
  EXPECT_EQ(reader.ignored_keys(), 3U);
  EXPECT_EQ(request.hint.value, 0);
  EXPECT_EQ(reader.line(), 1U);
}

TEST(TraceReader, TakesLineEndsAsTheyCome) {
  EXPECT_EQ(read_all("").size(), 0U);
  EXPECT_EQ(read_all("\n \n\t\r\n").size(), 0U);
  EXPECT_EQ(read_all(kLine).size(), 1U);
  EXPECT_EQ(read_all("\xEF\xBB\xBF" + kLine + "\r\n\n" + kLine + "\r\n").size(), 2U);
}

TEST(TraceReader, KeepsMemoryBetweenCalls) {
  const std::string text = kLine + "\n" + kLine + "\n";
  TraceReader reader("t", text);
  TraceRequest request;
  request.blocks.reserve(100);
  const auto* const before = request.blocks.data();
  while (reader.next(request)) EXPECT_EQ(request.blocks.data(), before);
}

TEST(TraceReader, ChecksEveryField) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = kLine;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    return kLine + "\n" + text.replace(at, from.size(), to) + "\n";
  };
  expect_error(with("\"timestamp\": 0, ", ""), {"t.jsonl", "line 2", "\"timestamp\"", "missing"});
  expect_error(with("\"timestamp\": 0", "\"timestamp\": -1"), {"line 2", "\"timestamp\"", ">= 0"});
  expect_error(with("\"timestamp\": 0", "\"timestamp\": \"0\""), {"line 2", "\"timestamp\"", "milliseconds"});
  expect_error(with("\"timestamp\": 0", "\"timestamp\": -0.5"), {"line 2", "\"timestamp\""});
  expect_error(with("\"timestamp\": 0", "\"timestamp\": 1e300"), {"line 2", "\"timestamp\"", "too large"});
  expect_error(with("\"timestamp\": 0", "\"timestamp\": 9223372036854775807"),
               {"line 2", "\"timestamp\"", "too large"});
  expect_error(with("\"input_length\": 600, ", ""), {"line 2", "\"input_length\"", "missing"});
  expect_error(with("600", "0"), {"line 2", "\"input_length\"", "at least 1"});
  expect_error(with("600", "-600"), {"line 2", "\"input_length\"", "integer from 0"});
  expect_error(with("600", "600.0"), {"line 2", "\"input_length\"", "integer"});
  expect_error(with("600", "1000000001"), {"line 2", "\"input_length\"", "1000000000"});
  expect_error(with("\"output_length\": 5, ", ""), {"line 2", "\"output_length\"", "missing"});
  expect_error(with(": 5", ": null"), {"line 2", "\"output_length\"", "integer"});
  expect_error(with(", \"hash_ids\": [0, 1]", ""), {"line 2", "\"hash_ids\"", "missing"});
  expect_error(with("[0, 1]", "{}"), {"line 2", "\"hash_ids\"", "array"});
  expect_error(with("[0, 1]", "[0, -1]"), {"line 2", "\"hash_ids\"", "entry 1"});
  expect_error(with("[0, 1]", "[0]"), {"line 2", "\"hash_ids\"", "1 ids", "600", "2 blocks of 512"});
  expect_error(with("[0, 1]", "[0, 1, 2]"), {"line 2", "\"hash_ids\"", "3 ids", "2 blocks"});
  expect_error(with("[0, 1]", "[0, 1], \"turn\": -1"), {"line 2", "\"turn\""});
  expect_error(with("[0, 1]", "[0, 1], \"session\": -1"), {"line 2", "\"session\"", "string"});
  expect_error(with("[0, 1]", "[0, 1], \"priority\": 3000000000"), {"line 2", "\"priority\"", "2147483647"});
  expect_error(with("[0, 1]", "[0, 1], \"system_length\": 601"),
               {"line 2", "\"system_length\"", "601", "input of 600 tokens"});
  expect_error(with("[0, 1]", "[0, 1], \"timestamp\": 0"), {"line 2", "\"timestamp\"", "twice"});
}

TEST(TraceReader, ReadsHintsThatMovePages) {
  const auto all = read_all(R"({"timestamp": 1, "hint": "demote", "session": 4})"
                            "\n"
                            R"({"timestamp": 2, "hint": "prefetch", "session": 4})"
                            "\n"
                            R"({"timestamp": 2, "hint": "share", "session": 4, "value": 9})");
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[2].hint.kind, HintKind::share);
  EXPECT_EQ(all[2].hint.value, 9);
  EXPECT_EQ(all[0].hint.kind, HintKind::demote);
  EXPECT_EQ(all[1].hint.kind, HintKind::prefetch);
}

TEST(TraceReader, ReadsTheHintsOfARequestBehindIt) {
  const std::string envelope =
      R"(, "session": 4, "kv_hints": {"protocol_version": "0.1", "message_id": "m", "actions": [)"
      R"({"action_id": "a", "action_type": "pin", "action_version": "1", "payload": {"value": 30}}]})";
  const auto all = read_all(line("1", envelope) + line("2"));
  ASSERT_EQ(all.size(), 3U);
  EXPECT_FALSE(all[0].is_hint);
  ASSERT_TRUE(all[1].is_hint);
  EXPECT_EQ(all[1].arrival, all[0].arrival);
  EXPECT_EQ(all[1].hint.kind, HintKind::pin);
  EXPECT_EQ(all[1].hint.subject, 4U);
  EXPECT_EQ(all[1].hint.value, 30);
  EXPECT_FALSE(all[2].is_hint);
  expect_error(line("1", R"(, "kv_hints": {"actions": 5})"), {"line 1", "\"kv_hints\"", "actions"});
}

TEST(TraceReader, ChecksHints) {
  expect_error(R"({"timestamp": 1, "hint": "abort", "session": 1})", {"line 1", "\"hint\"", "demote", "prefetch"});
  expect_error(R"({"timestamp": 1, "hint": "sleep", "session": 1})", {"line 1", "\"hint\"", "session_end", "unpin"});
  expect_error(R"({"timestamp": 1, "hint": 3, "session": 1})", {"line 1", "\"hint\""});
  expect_error(R"({"timestamp": 1, "hint": "pin"})", {"line 1", "\"session\"", "missing"});
  expect_error(R"({"hint": "pin", "session": 1})", {"line 1", "\"timestamp\"", "missing"});
  expect_error(R"({"timestamp": 1, "hint": "pin", "session": 1, "value": 1.5})", {"line 1", "\"value\""});
  for (const char* kind : {"pin", "share", "unpin"}) {
    expect_error(R"({"timestamp": 1, "hint": ")" + std::string(kind) + R"(", "session": 1, "value": -1})",
                 {"line 1", "\"value\"", "is -1", "from 0 on"});
  }
  expect_error(R"({"timestamp": 1, "hint": "pin", "session": 1, "value": "x"})", {"line 1", "\"value\""});
  expect_error(line("1", R"(, "hint": "pin", "session": 1)"), {"line 1", "\"hint\"", "a request or a hint"});
}

TEST(TraceReader, RefusesTimeGoingBack) {
  expect_error(line("5") + line("5") + "\n" + line("4.999"), {"line 4", "\"timestamp\"", "earlier"});
  expect_error(line("5") + R"({"timestamp": 4, "hint": "pin", "session": 1})", {"line 2", "\"timestamp\""});
}

TEST(TraceReader, RefusesBrokenJson) {
  std::string six;
  for (int i = 0; i < 6; ++i) six += kLine + "\n";
  expect_error(six + R"({"timestamp": 0, "input_length": 600, "output_len)" + "\n" + kLine, {"line 7", "JSON"});
  expect_error(six + "[1, 2]\n", {"line 7", "object"});
  expect_error(six + kLine + " " + kLine + "\n", {"line 7", "JSON"});
  expect_error(six + "{\"timestamp\": 0, \"x\": \"\xFF\"}\n", {"line 7", "JSON"});
  expect_error(std::string(100, '\0'), {"line 1", "JSON"});
  expect_error(std::string(5'000, '['), {"line 1", "JSON"});
}

TEST(TraceReader, RefusesLongLinesAndBadOptions) {
  TraceOptions options;
  options.max_line_bytes = 200;
  EXPECT_EQ(read_all(kLine + "\n" + kLine + "\n", options).size(), 2U);
  expect_error(kLine + "\n" + kLine + std::string(200, ' ') + "\n", {"line 2", "longer than the 200 bytes"}, options);
  const std::string three =
      kLine + "\n" + kLine + std::string(200'000, ' ') + "\n" + kLine + std::string(200, ' ') + "\n" + kLine + "\n";
  TraceReader reader("test", std::span(three), options);
  TraceRequest request;
  EXPECT_TRUE(reader.next(request));
  EXPECT_THROW(reader.next(request), TraceLineError);
  EXPECT_THROW(reader.next(request), TraceLineError);
  EXPECT_TRUE(reader.next(request)) << "behind the long lines";
  EXPECT_EQ(reader.line(), 4U);
  EXPECT_FALSE(reader.next(request));
  options.max_line_bytes = 1 << 20;
  const std::string padded = kLine + std::string(1 << 19, ' ') + "\n";
  EXPECT_EQ(read_all(padded + padded + padded, options).size(), 3U);
  expect_error(std::string((1 << 20) + 1, ' '), {"line 1", "longer"}, options);
  options.block_tokens = (Tokens{1} << 31) + 1;
  expect_error(kLine, {"block_tokens"}, options);
  options.block_tokens = 600;
  expect_error(kLine, {"\"hash_ids\"", "1 blocks of 600"}, options);
}

TEST(TraceReader, ReadsCompressedWhateverTheName) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += line(std::to_string(i));
  EXPECT_EQ(read_all(text).size(), 20'000U);
  EXPECT_EQ(read_all(gzip_of(text)).size(), 20'000U);
  EXPECT_EQ(read_all(zstd_of(text)).size(), 20'000U);
  EXPECT_EQ(read_all(zstd_of(text, 27)).size(), 20'000U);
  EXPECT_EQ(read_all(gzip_of(line("1")) + gzip_of(line("2") + line("3"))).size(), 3U) << "members in a row";
  EXPECT_EQ(read_all(zstd_of(line("1")) + zstd_of("") + zstd_of(line("2"))).size(), 2U) << "frames in a row";
  const std::string skippable("\x5A\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  EXPECT_EQ(read_all(skippable + zstd_of(line("2"))).size(), 1U);
}

TEST(TraceReader, ReadsWideWindows) {
  const std::string frame = zstd_of(line("1"), 30);  // 31 would need 2 GiB on the writing side as well
  EXPECT_EQ(read_all(frame).size(), 1U);
  TraceOptions options;
  options.max_window_log = 20;
  expect_error(frame, {"t.jsonl", "zstd"}, options);
}

TEST(TraceReader, NoticesEveryTruncation) {
  const std::string text = line("1") + line("2") + line("3");
  for (const std::string& whole : {gzip_of(text), zstd_of(text)}) {
    for (std::size_t size = 4; size < whole.size(); ++size) {
      EXPECT_NE(error_of(whole.substr(0, size)), "") << size << " of " << whole.size();
    }
  }
  expect_error(zstd_of(text).substr(0, 30), {"t.jsonl", "cut off", "zstd"});
  expect_error(gzip_of(text).substr(0, 30), {"t.jsonl", "cut off", "gzip"});
  std::string many;
  for (int i = 0; i < 50'000; ++i) many += line(std::to_string(i * 7919LL));
  const std::string frame = zstd_of(many);
  expect_error(frame.substr(0, frame.size() / 2), {"t.jsonl", "after line ", "cut off"});
}

TEST(TraceReader, NoticesCorruption) {
  std::string many;
  for (int i = 0; i < 1'000; ++i) many += line(std::to_string(i * 7919LL));
  for (std::string bytes : {gzip_of(many), zstd_of(many)}) {
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
    EXPECT_NE(error_of(bytes), "");
  }
  expect_error(gzip_of(many) + "junk", {"gzip"});
  expect_error(zstd_of(many) + "junk!", {"zstd"});
}

TEST(TraceReader, SaysWhyAFileCannotBeRead) {
  const auto message = [](const std::string& path) -> std::string {
    try {
      TraceReader reader(path);
      TraceRequest request;
      reader.next(request);
      return {};
    } catch (const TraceError& error) {
      return error.what();
    }
  };
  EXPECT_NE(message("/no/such/file").find("/no/such/file\" cannot be opened: No such file"), std::string::npos);
  EXPECT_NE(message("/").find("cannot be read"), std::string::npos);
}

class TraceWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) /
                 ("kvtwin_writer_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_;
};

TEST_F(TraceWriterTest, WritesWhatTheReaderReads) {
  const std::string text = line("0", R"(, "session": 0, "turn": 1)") +
                           line("1.5", R"(, "session": "abc", "tenant": "t", "type": 3)") +
                           R"({"timestamp": 2, "hint": "tool_call_pending", "session": 0, "value": 30})" + "\n" +
                           R"({"timestamp": 2.000001, "hint": "pin", "session": 8})" + "\n" +
                           line("3", R"(, "priority": -7, "system_length": 1)");
  const auto before = read_all(text);
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst"}) {
    const std::string path = directory_ / name;
    TraceWriter writer(path);
    for (const TraceRequest& request : before) writer.write(request);
    writer.finish();
    TraceReader reader(path);
    TraceRequest after;
    for (const TraceRequest& request : before) {
      ASSERT_TRUE(reader.next(after));
      EXPECT_EQ(after.arrival, request.arrival);
      EXPECT_EQ(after.blocks, request.blocks);
      EXPECT_EQ(after.session, request.session);
      EXPECT_EQ(after.turn, request.turn);
      EXPECT_EQ(after.tenant, request.tenant);
      EXPECT_EQ(after.priority, request.priority);
      EXPECT_EQ(after.type, request.type);
      EXPECT_EQ(after.system, request.system);
      EXPECT_EQ(after.is_hint, request.is_hint);
      EXPECT_EQ(after.hint.kind, request.hint.kind);
      EXPECT_EQ(after.hint.subject, request.hint.subject);
      EXPECT_EQ(after.hint.value, request.hint.value);
    }
    EXPECT_FALSE(reader.next(after));
    std::ifstream file(path, std::ios::binary);
    const int first = file.get();
    EXPECT_EQ(first, std::string(name).ends_with(".gz") ? 0x1F : std::string(name).ends_with(".zst") ? 0x28 : '{');
  }
}

TEST_F(TraceWriterTest, CompressesMoreThanABuffer) {
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst"}) {
    const std::string path = directory_ / name;
    TraceWriter writer(path);
    TraceRequest request;
    request.output = 1;
    std::uint64_t random = 1;
    for (int i = 0; i < 600; ++i) {
      request.arrival = i;
      request.blocks.clear();
      for (int k = 0; k < 20; ++k)
        request.blocks.push_back(random = random * 6364136223846793005ULL + 1442695040888963407ULL);
      request.input = 20 * 512;
      writer.write(request);
    }
    writer.finish();
    TraceReader reader(path);
    int n = 0;
    while (reader.next(request)) EXPECT_EQ(request.arrival, n++);
    EXPECT_EQ(n, 600);
    EXPECT_EQ(request.blocks.back(), random);
  }
}

TEST_F(TraceWriterTest, ReportsFullDisksAndBadPaths) {
  EXPECT_THROW(TraceWriter("/no/such/directory/a.jsonl"), TraceError);
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here; the bad path was checked";
  TraceWriter writer("/dev/full");
  writer.write(read_all(kLine).front());
  EXPECT_THROW(writer.finish(), TraceError);
}

TEST(TraceFiles, HoldWhatTheySay) {
  const auto count = [](const std::string& path) {
    TraceReader reader(path);
    TraceRequest request;
    std::uint64_t requests = 0, blocks = 0;
    while (reader.next(request)) ++requests, blocks += request.blocks.size();
    EXPECT_EQ(reader.ignored_keys(), 0U);
    return std::pair(requests, blocks);
  };
  EXPECT_EQ(count(test::bundled_trace()), std::pair(std::uint64_t{11'849}, std::uint64_t{278'111}));
  if (const auto path = test::conversation_trace()) {
    EXPECT_EQ(count(*path), std::pair(std::uint64_t{12'031}, std::uint64_t{288'500}));
  }
  if (const auto path = test::agentic_trace()) {
    EXPECT_EQ(count(*path), std::pair(std::uint64_t{9'284}, std::uint64_t{1'524'696}));
  }
}

}  // namespace
}  // namespace kvtwin

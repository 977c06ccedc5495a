// Trace formats other than Mooncake's: how the first line identifies them, how each field is read, and errors that name
// the line and the key.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/trace_files.hpp"
#include "traces/info.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

using Blocks = std::vector<std::uint64_t>;

struct Read {
  std::string format;
  Tokens block_tokens = 0;
  std::vector<TraceRequest> requests;
  std::string notes;  // all notes joined
};

Read read_all(const std::string& bytes, const TraceOptions& options = {}) {
  TraceReader reader("t", bytes, options);
  Read all{std::string(reader.format()), reader.block_tokens(), {}, {}};
  TraceRequest request;
  while (reader.next(request)) all.requests.push_back(request);
  for (const std::string& note : reader.notes()) all.notes += note + "; ";
  return all;
}

void expect_error(const std::string& bytes, const std::vector<std::string>& parts, const TraceOptions& options = {}) {
  std::string message;
  try {
    read_all(bytes, options);
  } catch (const TraceError& error) {
    message = error.what();
  }
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
  }
  EXPECT_TRUE(message.ends_with('.')) << message;
}

// AIPerf's form of Mooncake's format: session_id, and a delay in place of the timestamp from the second turn on.
std::string turn(const std::string& session, const std::string& when, std::uint64_t blocks,
                 const std::string& more = "") {
  std::string ids;
  for (std::uint64_t i = 1; i <= blocks; ++i) ids += (i == 1 ? "" : ",") + std::to_string(i);
  return R"({"session_id": ")" + session + R"(", )" + when + R"(, "input_length": )" + std::to_string(512 * blocks) +
         R"(, "output_length": 9, "hash_ids": [)" + ids + "]" + more + "}\n";
}

TEST(MooncakeTrace, ReadsSessionsAndDelays) {
  const std::string at_0 = R"("timestamp": 0)", at_500 = R"("timestamp": 500, "delay": null)";
  const Read read = read_all(turn("a", at_0, 1) + turn("a", R"("delay": 2000)", 2) + turn("b", at_500, 3) +
                             turn("b", R"("delay": 100.5)", 4));
  ASSERT_EQ(read.requests.size(), 4U);
  std::vector<TimeNs> arrivals, thinks;
  std::vector<std::size_t> blocks;
  for (const TraceRequest& request : read.requests) {
    arrivals.push_back(request.arrival / 1000);
    thinks.push_back(request.think);
    blocks.push_back(request.blocks.size());
  }
  EXPECT_EQ(arrivals, (std::vector<TimeNs>{0, 500'000, 600'500, 2'000'000})) << "sorted";
  EXPECT_EQ(thinks, (std::vector<TimeNs>{-1, -1, 100'500'000, 2'000'000'000}));
  EXPECT_EQ(blocks, (std::vector<std::size_t>{1, 3, 4, 2}));
  EXPECT_EQ(read.requests[0].session, read.requests[3].session);
  EXPECT_NE(read.requests[0].session, read.requests[1].session);
  EXPECT_NE(read.notes.find("2 requests have a delay after the answer before, and no timestamp"), std::string::npos);
  expect_error(turn("a", R"("delay": 5)", 1), {"line 1", "\"delay\"", "first turn has a timestamp"});
  expect_error(turn("a", at_0, 1) + turn("a", R"("turn": 1)", 2), {"line 2", "\"timestamp\" is missing, as delay is"});
  expect_error(turn("a", at_0, 1, R"(, "session": 1)"), {"\"session\" is given twice"});
}

TEST(MooncakeTrace, NamesTheBlockSizeThatFitsEveryLine) {
  const auto request = [](Tokens input, std::uint64_t ids) {
    std::string text;
    for (std::uint64_t i = 0; i < ids; ++i) text += (i == 0 ? "" : ",") + std::to_string(i);
    return R"({"timestamp": 0, "output_length": 1, "input_length": )" + std::to_string(input) + R"(, "hash_ids": [)" +
           text + "]}\n";
  };
  expect_error(request(320, 20), {"line 1", "20 ids", "16 tokens fit every line", "--block-tokens 16",
                                  "--trace-block-tokens", "workload.block_tokens=16"});
  expect_error(request(1, 1) + request(1000, 16) + request(9, 1), {"line 2", "64 tokens fit every line"});
  expect_error(request(1000, 16) + request(128, 2), {"line 1", "64 tokens fit every line"});
  expect_error(request(90, 3), {"32 tokens fit every line"});
  expect_error(request(2000, 1), {"2000 to 2147483648 tokens fit every line", "e.g. --block-tokens 2048"});
  expect_error(request(1000, 16) + request(1000, 32), {"no block size fits every line"});
}

TEST(TraceFormats, NameTheKeysThatTheyDoNotRead) {
  const std::string keys = ", \"foo\": 1, \"bar\": null}\n";
  const auto with = [&](const std::string& line) { return line.substr(0, line.rfind('}')) + keys; };
  const std::string named = "keys that kvtwin does not read were passed over: foo (2), bar (2)";
  for (const std::string& line :
       {turn("a", R"("timestamp": 0)", 1), std::string(R"({"input_ids": [1, 2], "output_length": 1})"),
        std::string(R"({"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 16, "output_length": 1, )"
                    R"("hash_ids": [1]})"),
        std::string(R"({"block_size": 64, "requests": []})"),
        std::string(R"({"timestamp": 1, "request_id": "", "model_name": "m", "chunk_size": 4, "seq_len": 4, )"
                    R"("chunk_hashes": ["0x1"]})")}) {
    const Read read = read_all(with(line) + with(line));
    EXPECT_NE(read.notes.find(named), std::string::npos) << read.format << ": " << read.notes;
  }
  const Read csv =
      read_all("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n1,m,5,6,11,\n2,m,5,6,11,\n");
  EXPECT_NE(csv.notes.find("passed over: Total tokens (2)"), std::string::npos) << csv.notes;
  EXPECT_EQ(csv.notes.find("Log Type"), std::string::npos) << "a column without a value says nothing";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string list(std::uint64_t first, std::uint64_t count) {
  std::string text;
  for (std::uint64_t i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + std::to_string(first + i);
  return "[" + text + "]";
}

// ---- which one ---------------------------------------------------------------------------------------------

TEST(TraceFormats, AreToldByTheFirstLine) {
  EXPECT_EQ(read_all("").format, "mooncake");
  EXPECT_EQ(read_all(R"({"timestamp": 1, "hint": "pin", "session": 1})").format, "mooncake");
  EXPECT_EQ(read_all("\xEF\xBB\xBF \n\n"
                     R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]})")
                .format,
            "mooncake");
  expect_error("a,b,c\n1,2,3\n", {"line 1", "no trace that kvtwin knows", "Azure", "SGLang"});
  expect_error("[]\n", {"line 1", "no trace that kvtwin knows"});
  expect_error("{\n", {"line 1", "not one whole JSON object"});
  TraceOptions options;
  options.format = "azure";
  expect_error("a,b,c\n1,2,3\n", {"line 1", "no column \"TIMESTAMP\"", "ContextTokens"}, options);
  options.format = "aZure";
  expect_error("a,b,c\n1,2,3\n", {"format is \"aZure\", which is none"}, options);
}

TEST(TraceFormats, AreToldByTheKeysThatTheFewestOthersHave) {
  const std::pair<const char*, const char*> kFiles[] = {
      {R"({"event": 1, "rid": 1, "hash_ids": [1], "chat_id": 1})", "sglang"},
      {R"({"event": 1, "hash_ids": [1], "chat_id": 1, "input_ids": [1]})", "qwen"},
      {R"({"hint": 1, "chat_id": 1})", "qwen"},
      {R"({"chunk_hashes": [], "chunk_size": 256, "model_name": "m", "input_ids": [1]})", "lmcache"},
      {R"({"hint": 1, "input_ids": [1], "requests": []})", "mooncake"},
      {R"({"hash_ids": [1], "prompt_token_ids": [1]})", "mooncake"},
      {R"({"input_ids": [1], "requests": []})", "token_ids"},
      {R"({"chat_id": 1, "ContextTokens": 1, "Request tokens": 1})", "mooncake"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens,Request tokens", "azure"},
      {"Timestamp,Request tokens,Response tokens", "burstgpt"},
      {"[2026-11-24 04:42:12] TIMESTAMP,ContextTokens,GeneratedTokens", "sglang"},
  };
  for (const auto& [text, format] : kFiles) {
    EXPECT_EQ(TraceReader("t", std::span(text, std::strlen(text))).format(), format) << text;
  }
}

// ---- Qwen-Bailian ------------------------------------------------------------------------------------------

std::string chat(int id, int parent, const std::string& seconds, const std::string& ids, int input, int turn) {
  return R"({"chat_id": )" + std::to_string(id) + R"(, "parent_chat_id": )" + std::to_string(parent) +
         R"(, "timestamp": )" + seconds + R"(, "input_length": )" + std::to_string(input) +
         R"(, "output_length": 7, "type": "text", "turn": )" + std::to_string(turn) + R"(, "hash_ids": )" + ids +
         R"(, "extra": {"a": 1}})" + "\n";
}

TEST(QwenTrace, SessionsAreChainsOfChats) {
  const Read read = read_all(chat(3, -1, "0.5", "[1,2]", 32, 1) + chat(0, -1, "1", "[1,3]", 20, 1) +
                             chat(4, 3, "2.25", "[1,2,9]", 33, 2) + chat(5, 4, "3", "[1,2,9]", 48, 3) +
                             chat(6, 0, "3", "[1]", 17, 2) + chat(8, 7, "4", "[5]", 1, 4));
  EXPECT_EQ(read.format, "qwen");
  EXPECT_EQ(read.block_tokens, 16U);
  ASSERT_EQ(read.requests.size(), 6U);
  EXPECT_EQ(read.requests[0].arrival, 0);
  EXPECT_EQ(read.requests[2].arrival, 1'750'000'000) << "since the first";
  EXPECT_EQ(read.requests[0].session, 3U);
  EXPECT_EQ(read.requests[1].session, kSessionZero);
  EXPECT_EQ(read.requests[2].session, 3U);
  EXPECT_EQ(read.requests[3].session, 3U) << "by the root, not the parent";
  EXPECT_EQ(read.requests[4].session, kSessionZero);
  EXPECT_EQ(read.requests[5].session, 7U) << "a parent from before the trace";
  EXPECT_EQ(read.requests[3].turn, 3U);
  EXPECT_NE(read.requests[3].type, 0U);
  EXPECT_EQ(read.requests[3].blocks, (Blocks{1, 2, 9}));
  ASSERT_EQ(read.requests[4].blocks.size(), 2U) << "a partial block without an id gets one of its own";
  EXPECT_GE(read.requests[4].blocks[1], std::uint64_t{1} << 63);
  EXPECT_NE(read.notes.find("1 requests continue a chat"), std::string::npos) << read.notes;
}

TEST(QwenTrace, JoinsBlocks) {
  TraceOptions options;
  options.block_tokens = 32;
  const Read read = read_all(chat(1, -1, "0", "[1,2,3]", 48, 1) + chat(2, -1, "1", "[1,2,3,4]", 64, 1) +
                                 chat(3, -1, "2", "[1,5,3,4]", 64, 1) + chat(4, -1, "3", "[1,2,3]", 48, 1),
                             options);
  EXPECT_EQ(read.block_tokens, 32U);
  ASSERT_EQ(read.requests[0].blocks.size(), 2U);
  EXPECT_EQ(read.requests[0].blocks[0], read.requests[1].blocks[0]);
  EXPECT_NE(read.requests[0].blocks[1], read.requests[1].blocks[1]) << "half a block is not the whole one";
  EXPECT_NE(read.requests[0].blocks[0], read.requests[2].blocks[0]);
  EXPECT_EQ(read.requests[0].blocks, read.requests[3].blocks);
  options.block_tokens = 40;
  expect_error(chat(1, -1, "0", "[1]", 16, 1), {"blocks are of 16 tokens", "multiple", "40"}, options);
}

TEST(QwenTrace, RefusesWhatIsWrong) {
  const std::string good = chat(1, -1, "0", "[1,2]", 32, 1), bad = chat(2, -1, "1", "[1,2]", 32, 1);
  const auto with = [&](const std::string& from, const std::string& to) { return good + replaced(bad, from, to); };
  expect_error(with("[1,2]", "[1]"), {"line 2", "\"hash_ids\"", "1 ids", "2 blocks of 16"});
  expect_error(with("[1,2]", "[1,-2]"), {"line 2", "\"hash_ids\"", "entry 1"});
  expect_error(with("\"timestamp\": 1", "\"timestamp\": -1"), {"line 2", "\"timestamp\"", "seconds"});
  expect_error(with("\"parent_chat_id\": -1, ", ""), {"line 2", "\"parent_chat_id\"", "missing"});
  expect_error(with("\"input_length\": 32", "\"input_length\": 0"), {"line 2", "\"input_length\"", "at least 1"});
  expect_error(good + good.substr(0, 30) + "\n", {"line 2", "not one whole JSON"});
  expect_error(chat(1, -1, "1", "[1]", 1, 1) + good, {"line 2", "\"timestamp\"", "earlier"});
}

// ---- lengths -----------------------------------------------------------------------------------------------

TEST(AzureTrace, HoldsTimesAndLengths) {
  const Read read = read_all(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-12-31 23:59:59.9000001,130,44\r\n"
      "2024-01-01 00:00:00.0000000,64,1\r\n2024-03-01 00:00:00+00:00,1,2");
  EXPECT_EQ(read.format, "azure");
  ASSERT_EQ(read.requests.size(), 3U);
  EXPECT_EQ(read.requests[0].arrival, 0);
  EXPECT_EQ(read.requests[1].arrival, 99'999'900);
  EXPECT_EQ(read.requests[2].arrival, (60 * 86'400LL * kNsPerSecond) + 99'999'900) << "2024 has a 29th of February";
  EXPECT_EQ(read.requests[0].input, 130U);
  EXPECT_EQ(read.requests[0].output, 44U);
  std::set<std::uint64_t> ids;
  for (const TraceRequest& request : read.requests) ids.insert(request.blocks.begin(), request.blocks.end());
  EXPECT_EQ(ids.size(), 3U + 1U + 1U) << "nothing is shared";
  EXPECT_NE(read.notes.find("made up: none does"), std::string::npos) << read.notes;
}

TEST(AzureTrace, SharesAHeadIfTold) {
  TraceOptions options;
  options.block_tokens = 10;
  options.shared_tokens = 29;
  const Read read = read_all(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,55,1\n2023-01-01 00:00:00,25,1\n"
      "2023-01-01 00:00:00,5,1\n",
      options);
  ASSERT_EQ(read.requests.size(), 3U);
  EXPECT_EQ(read.requests[0].blocks.size(), 6U);
  EXPECT_EQ(read.requests[0].blocks[1], read.requests[1].blocks[1]);
  EXPECT_NE(read.requests[0].blocks[2], read.requests[1].blocks[2]) << "29 tokens are two whole blocks";
  EXPECT_NE(read.requests[2].blocks[0], read.requests[1].blocks[0]) << "a partial block is never shared";
  EXPECT_NE(read.notes.find("the same 20 tokens"), std::string::npos) << read.notes;
}

TEST(AzureTrace, RefusesWhatIsWrong) {
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,5,5\n";
  for (const char* date : {"2023-11-16", "2023-13-16 18:15:46", "2023-02-29 00:00:00", "2023-11-16 24:00:00",
                           "2023-11-16 18:15:46.", "2023-11-16 18:15:46 UTC", "1969-01-01 00:00:00", ""}) {
    expect_error(head + date + ",5,5\n", {"line 3", "\"TIMESTAMP\"", "like 2023-11-16 18:15:46.6805900"});
  }
  expect_error(head + "2023-11-16 18:15:46,5,5\n", {"line 3", "\"timestamp\"", "earlier"});
  expect_error(head + "2023-11-16 18:15:47,5\n", {"line 3", "2 fields", "3"});
  expect_error(head + "2023-11-16 18:15:47,x,5\n", {"line 3", "\"ContextTokens\"", "integer"});
  expect_error(head + "2023-11-16 18:15:47,5,1.5\n", {"line 3", "\"GeneratedTokens\"", "integer"});
  expect_error(head + "2023-11-16 18:15:47,5,\n", {"line 3", "\"GeneratedTokens\"", "integer"});
}

TEST(BurstGptTrace, PassesFailuresOver) {
  const std::string rows =
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n45.5,ChatGPT,1087,0,1087,API log\n118,GPT-4,417.0,276,693,API log\n";
  const Read read = read_all(rows);
  EXPECT_EQ(read.format, "burstgpt");
  ASSERT_EQ(read.requests.size(), 2U);
  EXPECT_EQ(read.requests[0].arrival, 0);
  EXPECT_EQ(read.requests[1].arrival, 113 * kNsPerSecond);
  EXPECT_EQ(read.requests[1].input, 417U);
  EXPECT_NE(read.requests[0].type, read.requests[1].type);
  EXPECT_EQ(read.requests[0].session, 0U);
  EXPECT_NE(read.notes.find("1 rows of 0 prompt or 0 answer"), std::string::npos) << read.notes;
  const Read sessions = read_all(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,a,1.0,M,4,1,5,x\n6,b,1.0,M,4,1,5,x\n7,a,1.0,M,4,1,5,x\n8,,1.0,M,4,1,5,x\n");
  ASSERT_EQ(sessions.requests.size(), 4U);
  EXPECT_EQ(sessions.requests[0].session, sessions.requests[2].session);
  EXPECT_NE(sessions.requests[0].session, sessions.requests[1].session);
  EXPECT_EQ(sessions.requests[3].session, 0U);
  expect_error(rows + "-1,M,1,1,2,x\n", {"line 5", "\"Timestamp\"", "seconds"});
}

// ---- agents ------------------------------------------------------------------------------------------------

std::string agent(const std::string& requests, const std::string& scope = "local") {
  return R"({"id":"x","models":["m"],"block_size":64,"hash_id_scope":")" + scope + R"(","requests":[)" + requests +
         "]}\n";
}
std::string step(const std::string& t, int in, const std::string& hashes) {
  return R"({"t":)" + t + R"(,"type":"n","in":)" + std::to_string(in) + R"(,"out":5,"think_time":1.0,)" + hashes + "}";
}

TEST(AgenticTrace, SessionsAndTheirAgentsAreSessions) {
  const std::string first =
      agent(step("0.0", 200, R"("hash_runs":[[1,2],[7,1]])") + "," +
            R"({"t":10.5,"type":"subagent","agent_id":"a","requests":[)" + step("0", 64, R"("hash_ids":[9])") + "," +
            step("2", 130, R"("hash_ids":[9,10])") + "]}," + step("11.0", 264, R"("hash_ids":[1,2,7,8])"));
  const Read read = read_all(first + agent(step("0", 128, R"("hash_runs":[[1,2]])")));
  EXPECT_EQ(read.format, "agentic");
  EXPECT_EQ(read.block_tokens, 64U);
  ASSERT_EQ(read.requests.size(), 5U);
  std::vector<const TraceRequest*> main, sub, other;
  for (const TraceRequest& r : read.requests) (r.session == 1 ? main : r.session == 2 ? sub : other).push_back(&r);
  ASSERT_EQ(main.size(), 2U);
  ASSERT_EQ(sub.size(), 2U);
  ASSERT_EQ(other.size(), 1U);
  EXPECT_EQ(main[0]->arrival, 0);
  EXPECT_EQ(main[1]->arrival, 11 * kNsPerSecond);
  EXPECT_EQ(main[1]->turn, 2U);
  EXPECT_EQ(sub[0]->arrival, 10'500'000'000);
  EXPECT_EQ(sub[1]->arrival, 12'500'000'000);
  ASSERT_EQ(main[0]->blocks.size(), 4U);
  ASSERT_EQ(main[1]->blocks.size(), 5U);
  EXPECT_TRUE(std::equal(main[0]->blocks.begin(), main[0]->blocks.begin() + 3, main[1]->blocks.begin()));
  EXPECT_NE(main[0]->blocks[3], main[1]->blocks[4]) << "the rest of a prompt is its own";
  EXPECT_EQ(sub[0]->blocks.size(), 1U) << "no rest";
  EXPECT_EQ(sub[0]->blocks[0], sub[1]->blocks[0]);
  EXPECT_NE(other[0]->blocks[0], main[0]->blocks[0]) << "ids are local";
  EXPECT_GT(other[0]->arrival, 0);
  EXPECT_NE(read.notes.find("drawn"), std::string::npos) << read.notes;
  const Read global = read_all(agent(step("0", 64, R"("hash_ids":[4])"), "global") +
                               agent(step("0", 64, R"("hash_ids":[4])"), "global"));
  EXPECT_EQ(global.requests[0].blocks, (Blocks{4}));
  EXPECT_EQ(global.requests[1].blocks, (Blocks{4}));
}

TEST(AgenticTrace, StartsAreDrawn) {
  std::string text;
  for (int i = 0; i < 2'000; ++i) text += agent(step("0", 64, R"("hash_ids":[4])"));
  TraceOptions options;
  const auto last = [&] { return read_all(text, options).requests.back().arrival; };
  const TimeNs as_told = last();
  EXPECT_NEAR(static_cast<double>(as_told) / 1e9, 1'999 * 30.0, 6'000.0);
  EXPECT_EQ(last(), as_told);
  options.seed = 2;
  EXPECT_NE(last(), as_told);
  options.session_gap_seconds = 3;
  EXPECT_NEAR(static_cast<double>(last()) / 1e9, 1'999 * 3.0, 600.0);
  options.session_gap_seconds = 0;
  expect_error(text, {"session_gap_seconds"}, options);
}

TEST(AgenticTrace, RefusesWhatIsWrong) {
  const std::string good = step("5", 128, R"("hash_ids":[1,2])");
  const auto wrong = [&](const std::string& request, const std::vector<std::string>& parts) {
    std::vector<std::string> all = parts;
    all.emplace_back("line 2");
    expect_error(agent(good) + agent(good + "," + request), all);
  };
  wrong(step("4", 128, R"("hash_ids":[1,2])"), {"requests[1].t", "earlier"});
  wrong(step("6", 128, R"("hash_ids":[1])"), {"requests[1].hash_ids", "1 ids", "2 full blocks of 64"});
  wrong(step("6", 128, R"("hash_runs":[[1,1]])"), {"requests[1].hash_runs", "1 ids"});
  wrong(step("6", 128, R"("hash_runs":[[1,2,3]])"), {"requests[1].hash_runs", "pairs"});
  wrong(step("6", 128, R"("hash_runs":[[4294967295,2]])"), {"requests[1].hash_runs", "0 to 4294967295"});
  wrong(step("6", 0, R"("hash_ids":[])"), {"requests[1].in", "at least 1"});
  wrong(step("6", 2'000'000'000, R"("hash_runs":[[0,31250000]])"), {"requests[1].in", "16777216"});
  wrong(R"({"t":6,"type":"subagent"})", {"requests[1].requests", "missing"});
  wrong("3", {"requests[1]", "object"});
  expect_error(agent(good) + replaced(agent(good), "64", "32"), {"line 2", "\"block_size\"", "64"});
}

TEST(AgenticTrace, IsAsMeasured) {
  const auto path = test::shared_trace("kv_cache_tester_agentic_runs.jsonl.zst");
  if (!path) return;
  TraceReader reader(*path);
  const TraceInfo info = trace_info(reader, 4'000);
  EXPECT_EQ(info.block_tokens, 64U);
  EXPECT_NEAR(info.ideal_block_hit_ratio, 0.94, 0.02);
  EXPECT_NEAR(static_cast<double>(info.output.p50), 216.0, 40.0);
}

TEST(AzureTrace, IsAsMeasured) {
  const auto path = test::shared_trace("AzureLLMInferenceTrace_code.csv.zst");
  if (!path) return;
  TraceReader reader(*path);
  const TraceInfo info = trace_info(reader);
  EXPECT_EQ(info.requests, 8'819U);
  EXPECT_NEAR(info.duration_seconds, 3'436, 0.5);
  EXPECT_NEAR(info.input.mean, 2'048, 0.5);
  EXPECT_EQ(info.output.p50, 13U);
  EXPECT_EQ(info.output.max, 1'899U);
}

// ---- token ids ---------------------------------------------------------------------------------------------

TEST(TokenIdTrace, KeepsHashesOfPrefixes) {
  TraceOptions options;
  options.block_tokens = 4;
  const std::string text = R"({"timestamp": 5, "input_ids": [1,2,3,4,5,6,7,8,9], "output_length": 3, "session": "s"})"
                           "\n"
                           R"({"timestamp": 6.5, "prompt_token_ids": [1,2,3,4,5,6,7,9], "output_ids": [7,7], "x": 1})"
                           "\n"
                           R"({"timestamp": 7, "input_ids": [5,6,7,8], "output_length": 0, "tenant": "t"})";
  const Read read = read_all(text, options);
  EXPECT_EQ(read.format, "token_ids");
  ASSERT_EQ(read.requests.size(), 3U);
  const TraceRequest &a = read.requests[0], &b = read.requests[1], &c = read.requests[2];
  EXPECT_EQ(a.arrival, 0);
  EXPECT_EQ(b.arrival, 1'500'000);
  EXPECT_EQ(a.input, 9U);
  EXPECT_EQ(b.output, 2U);
  EXPECT_EQ(c.output, 1U);
  EXPECT_NE(a.session, 0U);
  EXPECT_NE(c.tenant, 0U);
  ASSERT_EQ(a.blocks.size(), 3U);
  ASSERT_EQ(b.blocks.size(), 2U);
  EXPECT_EQ(a.blocks[0], b.blocks[0]);
  EXPECT_NE(a.blocks[1], b.blocks[1]);
  EXPECT_NE(a.blocks[1], c.blocks[0]) << "the same tokens behind another prefix";
  EXPECT_NE(read.notes.find("salt"), std::string::npos) << read.notes;
  options.salt = "secret";
  const Read salted = read_all(text, options);
  EXPECT_NE(salted.requests[0].blocks[0], a.blocks[0]);
  EXPECT_EQ(salted.requests[0].blocks[0], salted.requests[1].blocks[0]);
  EXPECT_EQ(salted.notes.find("default salt"), std::string::npos);
  EXPECT_EQ(read_all(text).block_tokens, 64U);
}

TEST(TokenIdTrace, MayLackTimes) {
  const std::string line = R"({"input_ids": [1,2,3], "output_length": 3})"
                           "\n";
  const Read read = read_all(line + line + line);
  EXPECT_EQ(read.requests[2].arrival, 2 * kNsPerSecond);
  EXPECT_NE(read.notes.find("a second apart"), std::string::npos) << read.notes;
  expect_error(line + R"({"timestamp": 1, "input_ids": [1], "output_length": 3})", {"line 2", "\"timestamp\"", "all"});
  expect_error(R"({"timestamp": 1, "input_ids": [1], "output_length": 3})"
               "\n" +
                   line,
               {"line 2", "\"timestamp\"", "missing"});
}

TEST(TokenIdTrace, RefusesWhatIsWrong) {
  expect_error(R"({"input_ids": [], "output_length": 3})", {"line 1", "\"input_ids\"", "empty"});
  expect_error(R"({"input_ids": [1, 4294967296], "output_length": 3})", {"line 1", "\"input_ids\"", "entry 1"});
  expect_error(R"({"input_ids": "hello", "output_length": 3})", {"line 1", "\"input_ids\"", "array"});
  expect_error(R"({"input_ids": [1]})", {"line 1", "\"output_length\"", "output_ids"});
  expect_error(R"({"input_ids": [1], "output_length": 3})"
               "\n"
               R"({"text": "hello"})",
               {"line 2", "\"input_ids\""});
}

// ---- SGLang's log ------------------------------------------------------------------------------------------

std::string date(int ms) {
  const std::string text = std::to_string(1'000 + ms % 1'000);
  return "2026-01-02T10:00:" + std::to_string(10 + ms / 1'000) + "." + text.substr(1);
}
std::string received(int ms, const std::string& rid, const std::string& ids) {
  return R"({"timestamp": ")" + date(ms) + R"(", "event": "request.received", "rid": ")" + rid +
         R"(", "obj": {"rid": ")" + rid + R"(", "text": null, "input_ids": )" + ids + "}}\n";
}
std::string finished(int ms, const std::string& rid, const std::string& ids, double latency,
                     const std::string& more = "") {
  return R"({"timestamp": ")" + date(ms) + R"(", "event": "request.finished", "rid": ")" + rid +
         R"(", "obj": {"text": "hello", "input_ids": )" + ids + R"(, "sampling_params": {"max_new_tokens": 99}, )" +
         R"("stream": true)" + more + R"(}, "out": {"text": "x", "output_ids": [1], "meta_info": {"id": "r", )" +
         R"("prompt_tokens": 64, "completion_tokens": 12, "cached_tokens": 32, "e2e_latency": )" +
         std::to_string(latency) + "}}}\n";
}

TEST(SglangLog, RequestsComeInTheOrderOfArrival) {
  const std::string a = list(0, 100), b = list(0, 64), c = list(7, 70);
  const Read read =
      read_all(received(0, "a", a) + "INFO: not JSON\n" + received(100, "b", b) +
               R"({"timestamp": "x", "event": "other", "rid": "q"})"
               "\n" +
               finished(900, "b", b, 0.8, R"(, "extra_key": "k", "session_params": {"id": "s"}, "priority": -3)") +
               received(950, "never", c) + finished(1'500, "a", a, 1.5) + finished(1'600, "early", c, 1.55));
  EXPECT_EQ(read.format, "sglang");
  ASSERT_EQ(read.requests.size(), 3U);
  EXPECT_EQ(read.requests[0].arrival, 0);
  EXPECT_EQ(read.requests[0].input, 100U);
  EXPECT_EQ(read.requests[0].output, 12U);
  EXPECT_EQ(read.requests[1].input, 70U) << "its arrival is its end less its latency";
  EXPECT_EQ(read.requests[1].arrival, 50'000'000);
  EXPECT_EQ(read.requests[2].arrival, 100'000'000);
  EXPECT_NE(read.requests[2].tenant, 0U);
  EXPECT_NE(read.requests[2].session, 0U);
  EXPECT_EQ(read.requests[2].priority, -3);
  EXPECT_EQ(read.requests[0].blocks[0], read.requests[2].blocks[0]);
  for (const char* part : {"1 requests that the log", "2 lines that are no", "cached 96 of 234 prompt"}) {
    EXPECT_NE(read.notes.find(part), std::string::npos) << read.notes;
  }
}

TEST(SglangLog, ImagesSetTheNamespace) {
  const std::string ids = list(0, 64);
  const Read read = read_all(finished(100, "a", ids, 0.1, R"(, "image_data": ["x.png"])") +
                             finished(200, "b", ids, 0.1, R"(, "image_data": [ "x.png" ])") +
                             finished(300, "c", ids, 0.1, R"(, "image_data": ["y.png"])") +
                             finished(400, "d", ids, 0.1, R"(, "image_data": [], "audio_data": null)"));
  ASSERT_EQ(read.requests.size(), 4U);
  EXPECT_NE(read.requests[0].tenant, 0U);
  EXPECT_EQ(read.requests[0].tenant, read.requests[1].tenant);
  EXPECT_NE(read.requests[0].tenant, read.requests[2].tenant);
  EXPECT_EQ(read.requests[3].tenant, 0U);
  EXPECT_NE(read.notes.find("3 requests have images"), std::string::npos) << read.notes;
}

TEST(SglangLog, RefusesWhatItCantRead) {
  const std::string ids = list(0, 10), good = finished(900, "a", ids, 0.5);
  const auto with = [&](const std::string& from, const std::string& to) { return good + replaced(good, from, to); };
  expect_error(with("\"input_ids\": " + ids, "\"input_ids\": null"), {"line 2", "text only", "no tokenizer"});
  expect_error(with(R"("text": "hello", "input_ids": )" + ids + ", ", ""), {"line 2", "--log-requests-level 3"});
  std::string cut = list(0, 1024);
  cut = cut.substr(0, cut.size() - 1) + ",\"...\"," + list(9, 1024).substr(1);
  expect_error(with(ids, cut), {"line 2", "obj.input_ids", "cut short", "--log-requests-level 3"});
  expect_error(with(ids, "[[1],[2]]"), {"line 2", "obj.input_ids", "entry 0"});
  expect_error(with("\"completion_tokens\": 12, ", ""), {"line 2", "completion_tokens", "missing"});
  expect_error(with("\"e2e_latency\": 0.5", "\"e2e_latency\": -1"), {"line 2", "e2e_latency"});
  expect_error(with("2026-01-02T", "yesterday "), {"line 2", "\"timestamp\"", "date"});
}

// request_log.jsonl and server_output.log hold the same requests. SGLang wrote them (see make_request_logs.py in the
// same folder).
TEST(SglangLog, IsReadAsSglangWritesIt) {
  for (const std::string name : {"request_log.jsonl", "server_output.log"}) {
    SCOPED_TRACE(name);
    TraceReader reader(test::sglang_fixture(name));
    EXPECT_EQ(reader.format(), "sglang");
    std::vector<TraceRequest> all(11);
    for (TraceRequest& request : all) ASSERT_TRUE(reader.next(request));
    TraceRequest more;
    EXPECT_FALSE(reader.next(more));
    const TraceRequest &plain = all[0], &turn1 = all[1], &turn2 = all[2], &talk1 = all[3], &talk2 = all[4],
                       &params = all[5], &alice1 = all[6], &alice2 = all[7], &bob = all[8], &extra = all[9],
                       &adapter = all[10];
    EXPECT_EQ(plain.input, 300U);
    EXPECT_EQ(plain.output, 5U);
    EXPECT_EQ(turn2.input, 385U);
    EXPECT_EQ(turn2.blocks[3], turn1.blocks[3]);
    EXPECT_EQ(talk2.priority, 3);
    EXPECT_EQ(plain.session, 0U);
    EXPECT_NE(turn1.session, 0U);
    EXPECT_EQ(turn2.session, turn1.session);
    EXPECT_EQ(talk2.session, talk1.session);
    EXPECT_EQ((std::set<std::uint64_t>{turn1.session, talk1.session, params.session, 0}).size(), 4U);
    EXPECT_EQ(turn1.tenant, 0U);
    EXPECT_EQ(alice1.tenant, alice2.tenant);
    EXPECT_EQ((std::set<std::uint64_t>{0, alice1.tenant, bob.tenant, extra.tenant, adapter.tenant}).size(), 5U);
    EXPECT_EQ(bob.blocks, plain.blocks) << "the same prompt, in another namespace";
    TimeNs last = 0;
    for (const TraceRequest& request : all) {
      EXPECT_GE(request.arrival, last);
      last = request.arrival;
    }
    EXPECT_EQ(plain.arrival, 0);
    std::string notes;
    for (const std::string& note : reader.notes()) notes += note + "; ";
    EXPECT_NE(notes.find("1 requests that the log doesn't say to have finished"), std::string::npos) << notes;
    EXPECT_NE(notes.find(name == "request_log.jsonl" ? "trace: 1 lines that" : "trace: 14 lines that"),
              std::string::npos)
        << notes;
  }
}

TEST(SglangLog, LoggersWriteAPrefix) {
  const std::string line = finished(900, "a", "[1]", 0.5);
  for (const std::string prefix : {"", "[2026-11-24 04:42:12] ", "[2026-11-24 04:42:12.345 DP0 TP1] "}) {
    const Read read = read_all(prefix + line + prefix + "{'a': 1}\n" + prefix + "\n[INFO] {\n");
    EXPECT_EQ(read.format, "sglang") << prefix;
    EXPECT_EQ(read.requests.size(), 1U) << prefix;
  }
  EXPECT_EQ(read_all("[2026-11-24 04:42:12] server_args=ServerArgs(...)\n" + line).requests.size(), 1U);
  expect_error("[2026-11-24 04:42:12] " + line.substr(0, 80) + "\n", {"line 1", "not one whole JSON"});
  for (const std::string prefix : {"[2026-11-24 04:42] ", "2026-11-24 04:42:12 ", "[2026-11-24 04:42:12"}) {
    expect_error(prefix + line, {"line 1", "no trace that kvtwin knows", "[2026-11-24 04:42:12]"});
  }
}

TEST(SglangLog, WithoutARequestIsRefused) {
  TraceOptions options;
  options.format = "sglang";
  expect_error("", {"\"t\" holds no request", "--log-requests-format json"}, options);
  expect_error("INFO: a\nb\n", {"\"t\" holds no request", "none of its 2 lines", "--log-requests-level 3"}, options);
  expect_error("[2026-11-24 04:42:12] Receive: obj=GenerateReqInput(...)\n",
               {"holds no request", "none of its 1 lines"});
  expect_error(received(0, "a", "[1]") + received(1, "b", "[1]"),
               {"2 requests that were received", "none that finished"});
}

TEST(SglangLog, IsSortedWithinAWindow) {
  std::string text;
  for (int i = 0; i < 5'000; ++i) text += finished(10'000 + i, std::to_string(i), "[1]", 0.001);
  EXPECT_EQ(read_all(text + finished(20'000, "late", "[1]", 5.1)).requests.size(), 5'001U) << "of 4,096 at most";
  expect_error(text + finished(20'000, "too late", "[1]", 9.9), {"line 5001", "arrived before", "4096"});
}

// engine_requests.jsonl: SGLang's cache served the requests, and its logger wrote what the cache found
// (capture_engine.py).
TEST(SglangLog, HasWhatTheServerMeasured) {
  TraceOptions options;
  options.block_tokens = 16;
  TraceReader reader(test::sglang_fixture("engine_requests.jsonl"), options);
  TraceInputOptions inputs;
  inputs.page_tokens = 16;
  ArrivalMaker maker(16, inputs);
  std::vector<TraceRequest> all;
  MeasuredHits sum;
  Tokens prompts = 0;
  for (TraceRequest request; reader.next(request);) {
    ASSERT_TRUE(request.measured_hits);
    EXPECT_TRUE(request.measured_hits->by_tier);
    EXPECT_LT(request.measured_hits->total, request.input);
    EXPECT_GT(request.measured_latency, 0);
    sum.device += request.measured_hits->device;
    sum.host += request.measured_hits->host;
    sum.storage += request.measured_hits->storage;
    prompts += request.input;
    EXPECT_EQ(request.answer_blocks.size(), (request.input + request.output) / 16 - request.input / 16);
    Input input;
    maker.make(request, all.size(), input);
    EXPECT_EQ(std::get<Arrival>(input.what).keys.size(), (request.input + request.output) / 16);
    all.push_back(request);
  }
  EXPECT_EQ(all.size(), 48U);
  EXPECT_EQ(prompts, 13'296U);
  EXPECT_EQ(sum.device, 5'824U);
  EXPECT_EQ(sum.host, 3'600U);
  EXPECT_EQ(sum.storage, 0U);
  // A follow-up's prompt begins with the prompt and the answer of the turn before it.
  std::size_t follow_ups = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto next = std::find_if(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end(),
                                   [&](const TraceRequest& other) { return other.session == all[i].session; });
    if (next == all.end() || next->input < all[i].input + all[i].output) continue;
    const std::size_t whole = all[i].input / 16;
    for (std::size_t at = 0; at < all[i].answer_blocks.size(); ++at) {
      EXPECT_EQ(next->blocks[whole + at], all[i].answer_blocks[at]);
    }
    ++follow_ups;
  }
  EXPECT_GT(follow_ups, 20U);
}

TEST(SglangLog, AnAnswerOfAnotherLengthIsNotKnown) {
  const std::string log = finished(900, "a", list(0, 70), 0.5);
  const Read read = read_all(log);  // one id, and completion_tokens are 12
  EXPECT_TRUE(read.requests[0].answer_blocks.empty());
  EXPECT_FALSE(read.requests[0].measured_hits->by_tier) << "cached_tokens without details";
  EXPECT_EQ(read.requests[0].measured_hits->total, 32U);
}

// ---- LMCache's log of look-ups -----------------------------------------------------------------------------

std::string looked_up(const std::string& time, const std::string& request, int tokens, const std::string& hashes) {
  return R"({"timestamp": )" + time + R"(, "request_id": ")" + request +
         R"(", "model_name": "m", "chunk_size": 256, "seq_len": )" + std::to_string(tokens) +
         R"(, "dtypes": ["torch.bfloat16"], "shapes": [[2, 32, 256, 1024]], "chunk_hashes": )" + hashes + "}\n";
}

// LMCache wrote lookup_hashes.jsonl (see make_lookup_log.py in the same folder).
TEST(LmcacheLog, IsReadAsLmcacheWritesIt) {
  TraceReader reader(test::fixture("lmcache/lookup_hashes.jsonl"));
  EXPECT_EQ(reader.format(), "lmcache");
  EXPECT_EQ(reader.block_tokens(), 256U);
  std::vector<TraceRequest> all(5);
  for (TraceRequest& request : all) ASSERT_TRUE(reader.next(request));
  TraceRequest more;
  EXPECT_FALSE(reader.next(more));
  const TraceRequest &plain = all[0], &again = all[1], &follow_up = all[2], &whole = all[3], &other = all[4];
  EXPECT_EQ(plain.arrival, 0);
  EXPECT_EQ(plain.input, 700U);
  EXPECT_EQ(plain.output, 1U);
  ASSERT_EQ(plain.blocks.size(), 3U);
  ASSERT_EQ(follow_up.blocks.size(), 5U);
  ASSERT_EQ(whole.blocks.size(), 2U) << "LMCache looked up the first chunk only";
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_LT(plain.blocks[i], std::uint64_t{1} << 63);
    EXPECT_EQ(again.blocks[i], plain.blocks[i]);
    EXPECT_EQ(follow_up.blocks[i], plain.blocks[i]);
  }
  EXPECT_EQ(whole.blocks[0], plain.blocks[0]);
  EXPECT_EQ((std::set<std::uint64_t>{plain.blocks[2], again.blocks[2], whole.blocks[1]}).size(), 3U)
      << "what has no hash is nobody else's";
  EXPECT_EQ(plain.tenant, 0U);
  EXPECT_NE(other.tenant, 0U);
  std::string notes;
  for (const std::string& note : reader.notes()) notes += note + "; ";
  for (const char* part : {"1 token each", "1 look-ups of a request", "1 requests are of other models"}) {
    EXPECT_NE(notes.find(part), std::string::npos) << notes;
  }
}

TEST(LmcacheLog, JoinsChunksAndEvensSmallStepsBack) {
  TraceOptions options;
  options.block_tokens = 512;
  const std::string log = looked_up("1711929600.5", "a", 1'024, R"(["0x1", "0x2", "0x3", "0x4"])") +
                          looked_up("1711929600.25", "b", 600, R"(["0x1", "0x2"])");
  const Read read = read_all(log, options);
  ASSERT_EQ(read.requests.size(), 2U);
  EXPECT_EQ(read.block_tokens, 512U);
  EXPECT_EQ(read.requests[0].blocks.size(), 2U);
  EXPECT_EQ(read.requests[1].blocks[0], read.requests[0].blocks[0]);
  EXPECT_EQ(read.requests[1].arrival, 0);
  EXPECT_NE(read.notes.find("1 look-ups are up to a second earlier"), std::string::npos) << read.notes;
  expect_error(log + looked_up("1711929599", "c", 300, "[]"), {"line 3", "\"timestamp\"", "earlier"});
}

TEST(LmcacheLog, RefusesWhatItCantRead) {
  const std::string good = looked_up("1.5", "a", 600, R"(["0x1", "0x2"])"), next = looked_up("2", "b", 300, "[]");
  const auto with = [&](const std::string& from, const std::string& to) { return good + replaced(next, from, to); };
  EXPECT_EQ(read_all(good + next).requests.size(), 2U);
  expect_error(with("\"seq_len\": 300", "\"seq_len\": 0"), {"line 2", "\"seq_len\"", "at least 1"});
  expect_error(with("\"seq_len\": 300, ", ""), {"line 2", "\"seq_len\"", "missing"});
  expect_error(with("\"chunk_size\": 256", "\"chunk_size\": 128"), {"line 2", "chunk_size", "was 256"});
  expect_error(with("[]}", "[\"0x1\", \"0x2\"]}"), {"line 2", "2 hashes", "1 whole chunks of 256"});
  expect_error(with("[]}", "[7]}"), {"line 2", "chunk_hashes", "entry 0"});
  expect_error(with("\"timestamp\": 2", "\"timestamp\": \"now\""), {"line 2", "\"timestamp\"", "seconds"});
  expect_error(with("\"request_id\": \"b\"", "\"request_id\": 1"), {"line 2", "request_id", "string"});
  expect_error(replaced(good, "\"chunk_size\": 256", "\"chunk_size\": 0"), {"line 1", "chunk_size", "at least 1"});
  TraceOptions options;
  options.format = "lmcache";
  expect_error("", {"\"t\" holds no request", "--lookup-hash-log-dir"}, options);
}

}  // namespace
}  // namespace kvtwin

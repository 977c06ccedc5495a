// Workloads from a vLLM server. The files of tests/fixtures/vllm are of vLLM 0.32.0 on a CPU (tools/engine-server),
// which served 64 requests of vllm bench serve three times: bench.json is the benchmark's result without texts,
// requests.log the lines of the first 8 requests, kv_events.jsonl a recording without token ids, and
// kv_events_groups.jsonl the beginning of one of a model with sliding windows.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/trace_files.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

struct Read {
  std::string format;
  Tokens block_tokens = 0;
  std::vector<TraceRequest> requests;
  std::string notes;  // all notes joined
};

Read read_all(TraceReader&& reader) {
  Read all{std::string(reader.format()), reader.block_tokens(), {}, {}};
  TraceRequest request;
  while (reader.next(request)) all.requests.push_back(request);
  for (const std::string& note : reader.notes()) all.notes += note + "; ";
  return all;
}
Read read_file(const std::string& name, const TraceOptions& options = {}) {
  return read_all(TraceReader(test::fixture("vllm/" + name), options));
}
Read read_text(const std::string& text, const TraceOptions& options = {}) {
  return read_all(TraceReader("t", text, options));
}

std::string error_of(const std::string& text, const TraceOptions& options = {}) {
  try {
    read_text(text, options);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "";
}

bool has(const Read& read, const std::string& part) { return read.notes.find(part) != std::string::npos; }

// ---- the benchmark's result ------------------------------------------------------------------------------

TEST(VllmBench, HasTimesAndLengths) {
  const Read read = read_file("bench.json");
  EXPECT_EQ(read.format, "vllm_bench");
  ASSERT_EQ(read.requests.size(), 64U);
  EXPECT_EQ(read.requests[0].arrival, 0);
  EXPECT_EQ(read.requests[1].input, 233U);
  EXPECT_EQ(read.requests[1].output, 2U);
  EXPECT_NEAR(static_cast<double>(read.requests[1].arrival) / 1e9, 1.25, 0.02);
  EXPECT_NE(read.requests[0].blocks[0], read.requests[1].blocks[0]);
  EXPECT_TRUE(has(read, "share no prefix here")) << read.notes;
}

TEST(VllmBench, IsRefusedWithoutItsLists) {
  const std::string head = R"({"num_prompts": 2, "request_throughput": 1.5)";
  EXPECT_NE(error_of(head + "}")
                .find("key \"start_times\" is missing; vllm bench serve writes it with --save-result "
                      "--save-detailed"),
            std::string::npos);
  const std::string lists = head + R"(, "start_times": [5, 4], "input_lens": [7, 8], "output_lens": [1, 0])";
  EXPECT_NE(error_of(lists + "}\n{}\n").find("begins a second result"), std::string::npos);
  const Read read = read_text(lists + R"(, "errors": ["", "timeout"]})");
  ASSERT_EQ(read.requests.size(), 1U) << "the one that was served";
  EXPECT_EQ(read.requests[0].input, 7U);
  EXPECT_TRUE(has(read, "1 failed requests were passed over"));
  EXPECT_EQ(read_text(lists + "}").requests[0].input, 8U) << "by time";
}

// ---- the server's log ------------------------------------------------------------------------------------

TEST(VllmLog, HasTheRequestsOfADebugLog) {
  TraceOptions options;
  options.block_tokens = 32;
  const Read read = read_file("requests.log", options), sent = read_file("bench.json");
  EXPECT_EQ(read.format, "vllm");
  ASSERT_EQ(read.requests.size(), 8U);
  for (std::size_t i = 0; i < read.requests.size(); ++i) {
    EXPECT_EQ(read.requests[i].input, sent.requests[i].input) << i;
    EXPECT_EQ(read.requests[i].output, sent.requests[i].output) << i;
    EXPECT_NEAR(static_cast<double>(read.requests[i].arrival), static_cast<double>(sent.requests[i].arrival), 1e9) << i;
    EXPECT_EQ(read.requests[i].blocks[3], read.requests[0].blocks[3]) << "all begin with the same 128 tokens";
  }
  EXPECT_NE(read.requests[1].blocks[4], read.requests[0].blocks[4]);
  EXPECT_EQ(read.requests[1].arrival, kNsPerSecond);
  EXPECT_EQ(read.requests[2].arrival, kNsPerSecond * 3 / 2) << "the second one of its second";
  EXPECT_TRUE(has(read, "times to the second")) << read.notes;
  EXPECT_FALSE(has(read, "max_tokens")) << "ignore_eos: " << read.notes;
}

std::string line(const std::string& time, const std::string& text) {
  return "(APIServer pid=7) DEBUG 12-31 " + time + " [entrypoints/.../utils/request_logger.py:74] " + text + "\n";
}
std::string details(const std::string& id, const std::string& time, const std::string& ids) {
  return line(time, "Request " + id + R"( details: prompt: 'a, prompt_token_ids: [9]', prompt_token_ids: )" + ids +
                        ", prompt_embeds shape: None.");
}
std::string received(const std::string& id, const std::string& time, const std::string& lora = "None") {
  return line(time, "Received request " + id + ": params: SamplingParams(n=1, ignore_eos=False, max_tokens=500, " +
                        "min_tokens=0), lora_request: " + lora + ".");
}

TEST(VllmLog, AnswersAreThoseThatItHas) {
  const std::string text =
      details("a", "23:59:58", "[1, 2, 3]") + received("a", "23:59:58") + details("b", "23:59:59", "[1, 2]") +
      received("b", "23:59:59", "LoRARequest(lora_name='x', lora_int_id=1)") +
      line("23:59:59", "Generated response a (streaming delta) details: output_token_ids: [5, 6]") +
      line("23:59:59", "Generated response a (streaming delta): output: 'hi', finish_reason: None") +
      line("23:59:59", "Generated response a (streaming delta) details: output_token_ids: [7]") +
      line("23:59:59", "Generated response a: output: 'hi', finish_reason: stop");
  const Read read = read_text(text);
  ASSERT_EQ(read.requests.size(), 2U);
  EXPECT_EQ(read.requests[0].input, 3U) << "the list behind the prompt's text";
  EXPECT_EQ(read.requests[0].output, 3U);
  EXPECT_EQ(read.requests[1].output, 500U);
  EXPECT_NE(read.requests[1].tenant, 0U);
  EXPECT_TRUE(has(read, "1 answers are not in the log, and are taken to have max_tokens tokens")) << read.notes;
}

TEST(VllmLog, TheYearMayEnd) {
  std::string text = details("a", "23:59:58", "[1]") + received("a", "23:59:58") + details("b", "00:00:01", "[1]") +
                     received("b", "00:00:01");
  const std::size_t second = text.find("12-31 00:00:01");
  for (std::size_t at = second; at != std::string::npos; at = text.find("12-31 00:00:01")) text.replace(at, 5, "01-01");
  const Read read = read_text(text);
  ASSERT_EQ(read.requests.size(), 2U);
  EXPECT_EQ(read.requests[1].arrival, 3 * kNsPerSecond);
}

TEST(VllmLog, IsRefusedWithoutTokenIds) {
  EXPECT_EQ(error_of(received("a", "10:00:00") + received("b", "10:00:01")),
            "trace \"t\" has 2 requests of a vLLM server, without their token ids; start the server with "
            "--enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG, or record its KV events (kvtwin record).");
  EXPECT_NE(error_of(line("10:00:00", "non-default args: {'model': 'm'}"))
                .find("--from-server-log reads the server's arguments"),
            std::string::npos);
  EXPECT_NE(error_of(line("10:00:00", "non-default args: {'max_log_len': 3, 'model': 'm'}") +
                     details("a", "10:00:00", "[1, 2, 3]") + received("a", "10:00:00"))
                .find("is cut short by the server's --max-log-len"),
            std::string::npos);
  EXPECT_NE(error_of("W1129 a warning\nanother line\n").find("line 1: is no trace that kvtwin knows"),
            std::string::npos);
}

// ---- KV events -------------------------------------------------------------------------------------------

// A prompt is known up to its last whole block; the first block of an answer may count as the prompt's end.
void expect_requests(const Read& read, std::size_t count) {
  const Read sent = read_file("bench.json");
  EXPECT_EQ(read.format, "kv_events");
  EXPECT_EQ(read.block_tokens, 32U);
  ASSERT_EQ(read.requests.size(), count);
  Tokens longer = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const TraceRequest &found = read.requests[i], &truth = sent.requests[i];
    longer += found.input / 32 - truth.input / 32;
    EXPECT_EQ(found.blocks.size(), found.input / 32 + 1) << i;
    EXPECT_NEAR(static_cast<double>(found.output), static_cast<double>(truth.output), 32) << i;
    EXPECT_NEAR(static_cast<double>(found.arrival), static_cast<double>(truth.arrival), 1e9) << i;
    EXPECT_EQ(found.blocks[3], read.requests[0].blocks[3]) << "the 128 tokens that all share";
  }
  EXPECT_LE(longer, 1U) << "blocks of all requests";
}

TEST(KvEventTrace, HasTheRequestsOfARecordingWithoutTokenIds) {
  const Read read = read_file("kv_events.jsonl");
  expect_requests(read, 64);
  EXPECT_TRUE(has(read, "64 requests are inferred from stores of KV blocks")) << read.notes;
  EXPECT_TRUE(has(read, "48 answers filled no block")) << read.notes;
}

TEST(KvEventTrace, TakesTheGroupWithFullAttention) { expect_requests(read_file("kv_events_groups.jsonl"), 29); }

std::string header() {
  return R"({"type":"header","version":1,"endpoint":"tcp://h:1","topic":""})"
         "\n";
}
std::string stored(double time, const std::string& hashes, const std::string& parent, const std::string& more = "") {
  return R"({"seq":1,"ts":)" + std::to_string(time) + R"(,"rank":0,"type":"BlockStored","block_hashes":)" + hashes +
         (parent.empty() ? "" : R"(,"parent_block_hash":)" + parent) + R"(,"block_size":16,"medium":"GPU")" + more +
         "}\n";
}
std::string removed(double time, const std::string& hashes) {
  return R"({"seq":1,"ts":)" + std::to_string(time) + R"(,"rank":0,"type":"BlockRemoved","block_hashes":)" + hashes +
         R"(,"medium":"GPU"})"
         "\n";
}

TEST(KvEventTrace, StoresBecomeRequests) {
  const Read read = read_text(header() + stored(10, "[1,2,3,4]", "") + stored(10.5, "[5]", "4") +  // the prompt's end
                              stored(11, "[6]", "5") + stored(11.4, "[7]", "6") +                  // the answer
                              stored(30, "[8,9]", "7") +                                           // the next turn
                              stored(31, "[10]", "2") + stored(31.5, R"(["0xab"])", "99"));
  ASSERT_EQ(read.requests.size(), 4U);
  EXPECT_EQ(read.requests[0].input, 5 * 16U + 8);
  EXPECT_EQ(read.requests[0].output, 2 * 16U);
  EXPECT_EQ(read.requests[0].answer_blocks.size(), 2U);
  EXPECT_EQ(read.requests[1].arrival, 20 * kNsPerSecond);
  EXPECT_EQ(read.requests[1].input, 9 * 16U + 8) << "with the first turn and its answer";
  EXPECT_EQ(read.requests[1].blocks[5], read.requests[0].answer_blocks[0]);
  EXPECT_EQ(read.requests[2].input, 3 * 16U + 8) << "another end of the first prompt";
  EXPECT_EQ(read.requests[2].blocks[1], read.requests[0].blocks[1]);
  EXPECT_EQ(read.requests[3].input, 2 * 16U + 8);
  EXPECT_TRUE(has(read, "1 requests continue a prefix that was stored before the recording began")) << read.notes;
}

TEST(KvEventTrace, AReportOfReuseIsARequest) {
  const Read read =
      read_text(header() + stored(1, "[1,2,3]", "") + stored(9, "[1,2,3]", "") + stored(9.1, "[4,5]", "3"));
  ASSERT_EQ(read.requests.size(), 2U);
  EXPECT_EQ(read.requests[1].input, 5 * 16U + 8);
  EXPECT_TRUE(has(read, "unless the server reported its reuse (1 reports)")) << read.notes;
}

TEST(KvEventTrace, RemovedBlocksAreForgottenAndMayReturn) {
  const Read read = read_text(header() + stored(1, "[1,2,3]", "") + removed(2, "[3,2]") + removed(2, "[77]") +
                              stored(8, "[2,3]", "1") +
                              R"({"type":"missing","from":3,"to":4})"
                              "\n" +
                              R"({"type":"restart","seq":0})"
                              "\n" +
                              stored(20, "[3]", "2"));
  ASSERT_EQ(read.requests.size(), 3U);
  EXPECT_EQ(read.requests[1].blocks[2], read.requests[0].blocks[2]);
  EXPECT_EQ(read.requests[2].input, 2 * 16U + 8) << "after the restart nothing is known";
  EXPECT_TRUE(has(read, "2 messages are missing in the recording")) << read.notes;
  EXPECT_TRUE(has(read, "restarted 1 times")) << read.notes;
}

TEST(KvEventTrace, SessionsAndAdaptersAreTold) {
  const Read read =
      read_text(header() + stored(1, "[1]", "", R"(,"session_id":"a")") +
                stored(1.5, "[2]", "1", R"(,"session_id":"b")") + stored(3, "[7]", "", R"(,"lora_name":"x")"));
  ASSERT_EQ(read.requests.size(), 3U) << "of two sessions, however soon";
  EXPECT_NE(read.requests[0].session, read.requests[1].session);
  EXPECT_NE(read.requests[2].tenant, 0U);
}

TEST(KvEventTrace, RefusesWhatIsWrong) {
  EXPECT_NE(error_of(header()).find("holds no stored block of a GPU"), std::string::npos);
  EXPECT_NE(error_of(header() + stored(1, "[1.5]", "")).find("key \"block_hashes\" must hold hashes"),
            std::string::npos);
  std::string other = stored(2, "[2]", "");
  other.replace(other.find(":16"), 3, ":32");
  EXPECT_NE(error_of(header() + stored(1, "[1]", "") + other).find("is 32, and was 16 before"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin

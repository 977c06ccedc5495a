// kvtwin watch against publishers in this process, and its page.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lab/error.hpp"
#include "lab/watch/growing_log.hpp"
#include "lab/watch/http.hpp"
#include "lab/watch/recording.hpp"
#include "lab/watch/request_keeper.hpp"
#include "lab/watch/watch_page.hpp"
#include "lab/watch/watch_run.hpp"
#include "tests/program.hpp"
#include "tests/trace_files.hpp"
#include "tests/unit/lab/kv_messages.hpp"

#if KVTWIN_TEST_ZMQ
#include "lab/capture/kv_events.hpp"
#include "tests/unit/lab/bound_socket.hpp"
#endif
#if KVTWIN_TEST_HTTP
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#endif

namespace kvtwin {
namespace {

// A log of SGLang with one request per second; request i has the block i.
std::string sglang_lines(int from, int to, int latency_s = 1) {
  std::string text;
  for (int i = from; i < to; ++i) {
    const auto date = [](int second) {
      char out[32];
      std::snprintf(out, sizeof out, "2026-11-29T10:%02d:%02d", second / 60, second % 60);
      return std::string(out);
    };
    const std::string rid = "r" + std::to_string(i);
    text += R"({"timestamp": ")" + date(i) + R"(", "event": "request.received", "rid": ")" + rid + "\", \"obj\": {}}\n";
    text += R"({"timestamp": ")" + date(i + latency_s) + R"(", "event": "request.finished", "rid": ")" + rid +
            R"(", "obj": {"input_ids": [)" + std::to_string(i) +
            R"(, 1]}, "out": {"meta_info": {"completion_tokens": 1, "e2e_latency": )" + std::to_string(latency_s) +
            "}}}\n";
  }
  return text;
}

#if KVTWIN_TEST_ZMQ

using Bytes = std::vector<std::uint8_t>;

// A publisher in this process, and a watch of it.
class LiveWatchTest : public testing::Test {
 protected:
  // Runs the watch while `engine` publishes; its last message must be end().
  WatchResult watch(const std::function<void()>& engine) {
    arguments_.sources = {publisher_.endpoint};
    arguments_.replays = {replay_.endpoint};
    stop_ = false;
    std::thread thread([&] {
      publisher_.receive();  // the subscription has arrived
      engine();
    });
    Listener listener;
    listener.note = [this](const std::string& sentence) { notes_ += sentence + "\n", ++note_count_; };
    WatchResult result = watch_engines(arguments_, stop_, {}, listener);
    thread.join();
    publisher_.receive();  // the end of the subscription
    return result;
  }

  void publish(std::uint64_t seq, const Bytes& payload) {
    publisher_.send(std::string("kv"), true);
    publisher_.send(test::big_endian(seq), true);
    publisher_.send(payload, false);
  }

  // A message after a gap: when the watch asks for what is missing, all before has been read.
  void end(std::uint64_t seq, const Bytes& payload) {
    publish(seq, payload);
    const Bytes client = replay_.receive();
    replay_.receive();
    replay_.receive();
    stop_ = true;
    replay_.send(client, true);
    replay_.send(std::string(), true);
    replay_.send(test::big_endian(~std::uint64_t{0}), true);
    replay_.send(std::string(), false);
  }

  std::unique_ptr<void, int (*)(void*)> context_{zmq_ctx_new(), zmq_ctx_term};
  test::BoundSocket publisher_{context_.get(), ZMQ_XPUB}, replay_{context_.get(), ZMQ_ROUTER};
  std::atomic<bool> stop_ = false;
  WatchArguments arguments_;
  std::string notes_;
  std::atomic<int> note_count_ = 0;
};

const Bytes kNothing{0x92, 0x01, 0x90};  // [1, []]

TEST_F(LiveWatchTest, TheFiguresAreThoseOfTheRecording) {
  const std::vector<test::KvMessage>& messages = test::sglang_messages();
  const test::Folder folder;
  {
    KvEventWriter writer(folder / "events", "e", "", false, false);
    for (const test::KvMessage& message : messages) writer.write(message.seq, message.payload);
    writer.finish();
  }
  const std::uint64_t last = messages.back().seq;
  const WatchResult live = watch([&] {
    for (const test::KvMessage& message : messages) publish(message.seq, message.payload);
    end(last + 3, kNothing);
  });
  WatchArguments recorded;
  recorded.sources = {folder / "events"};
  const WatchResult played = play_recordings(recorded, stop_ = false, {}, {});
  EXPECT_GT(played.json.at("requests").get<int>(), 10);
  for (const char* key : {"requests", "lookup_blocks", "sizes", "curve", "device_blocks", "prefixes"}) {
    EXPECT_EQ(live.json.at(key).dump(), played.json.at(key).dump()) << key;
  }
  EXPECT_EQ(live.json.at("events").at("lost_messages").get<int>(), 2);
  EXPECT_NE(live.text.find("of a core"), std::string::npos);
}

TEST_F(LiveWatchTest, ARestartGoesOnWithTheKeptRequests) {
  const std::vector<test::KvMessage>& messages = test::sglang_messages();
  const test::Folder folder;
  arguments_.out = folder / "out";
  const std::size_t half = messages.size() / 2;
  const Json before = watch([&] {
                        for (std::size_t i = 0; i < half; ++i) publish(i, messages[i].payload);
                        end(half + 5, kNothing);
                      }).json;
  const Json after = watch([&] {
                       for (std::size_t i = half; i < messages.size(); ++i) publish(i + 6, messages[i].payload);
                       end(messages.size() + 8, kNothing);
                     }).json;
  EXPECT_NE(notes_.find("goes on after"), std::string::npos) << notes_;
  EXPECT_GT(after.at("requests").get<int>(), before.at("requests").get<int>());
  EXPECT_EQ(after.at("events").at("lost_messages").get<int>(), 2) << "the numbers go on, too";
  EXPECT_EQ(after.at("events").at("restarts").get<int>(), 0);
  // The workload of both is a recording of its own.
  WatchArguments kept;
  kept.sources = {folder / "out"};
  const Json played = play_recordings(kept, stop_ = false, {}, {}).json;
  EXPECT_EQ(played.at("requests").get<int>(), after.at("requests").get<int>());
  EXPECT_EQ(played.at("lookup_blocks").get<int>(), after.at("lookup_blocks").get<int>());
  EXPECT_EQ(played.at("curve").dump(), after.at("curve").dump());
}

// MessagePack of a batch with one event, of its head and its keys and values.
Bytes batch(const std::string& time, const std::string& event, const std::string& rank = "\xc0") {
  const std::string text = "\x93" + time + "\x91" + event + rank;
  return {text.begin(), text.end()};
}

std::string stored(const std::string& hashes, const std::string& size, const std::string& more = {}, int keys = 4) {
  return std::string(1, static_cast<char>(0x80 + keys)) +
         "\xa4type\xab"
         "BlockStored"
         "\xac"
         "block_hashes" +
         hashes +
         "\xa9token_ids\x90"
         "\xaa"
         "block_size" +
         size + more;
}

TEST_F(LiveWatchTest, HostileMessagesAreCountedAndNothingElse) {
  const std::string now("\xcb\x41\xdb\x00\x00\x00\x00\x00\x00", 9);
  const std::string bomb = "\xdd\xff\xff\xff\xff";
  const std::vector<Bytes> hostile{
      {},
      {0xc1},
      {0x91},
      Bytes(100'000, 0x91),
      Bytes(1000, 0xff),
      {0xdd, 0xff, 0xff, 0xff, 0xff},
      {0x92, 0x01},
      {0x92, 0xa1, 'x', 0x90},
      batch("\xcb\x7f\xf8" + std::string(6, '\0'), stored("\x91\x01", "\x10")),        // NaN
      batch("\xcb\xff\xf0" + std::string(6, '\0'), stored("\x91\x01", "\x10")),        // -infinity
      batch("\xcb\x7f\xe0" + std::string(6, '\0'), stored("\x91\x01", "\x10")),        // 1e308
      batch("\xff", stored("\x91\x01", "\x10")),                                       // -1
      batch(now, stored("\x91\x01", "\x10"), "\x63"),                                  // rank 99
      batch(now, stored("\x91\x01", "\x10"), "\xa1x"),                                 // rank "x"
      batch(now, stored("\x91\x01", std::string("\0", 1))),                            // blocks of 0 tokens
      batch(now, stored("\x91\x01", "\xcf\xff\xff\xff\xff\xff\xff\xff\xff")),          // of 2^64
      batch(now, stored("\x91\xc0", "\x10")),                                          // a hash of nil
      batch(now, stored("\xa1x", "\x10")),                                             // no list
      batch(now, stored("\x91\x01", "\x10", "\xa9group_idx\xce\xff\xff\xff\xff", 5)),  // group 2^32
      batch(now, stored("\x91\x01", "\x10", "\xb1parent_block_hash\xa1x", 5)),         // a parent "x"
      batch(now,
            "\x81\xa4type\xa7"
            "Unknown"),
      batch(now, "\x80"),
      batch(now, "\x90"),
      batch(now, "\x01"),
      batch(now, "\x82\x01\x02\x03\x04"),
      batch(now, stored(bomb, "\x10")),
  };
  const WatchResult result = watch([&] {
    publisher_.send(std::string("kv"), false);  // one frame
    for (std::uint64_t seq = 0; seq < hostile.size(); ++seq) publish(seq, hostile[seq]);
    publish(hostile.size(), batch(now, stored("\x93\x01\x02\x03", "\x10")));
    publish(hostile.size() + 1, batch(now, stored("\x91\x09", "\x20")));  // another size of blocks
    end(~std::uint64_t{0} - 1, kNothing);
  });
  const Json& events = result.json.at("events");
  EXPECT_EQ(events.at("not_read").get<std::size_t>(), hostile.size() + 1) << events.dump();
  EXPECT_EQ(events.at("stored_blocks").get<int>(), 3);
  EXPECT_EQ(result.json.at("requests").get<int>(), 1);
  EXPECT_NE(notes_.find("1 messages are not topic, number and payload"), std::string::npos) << notes_;
}

TEST_F(LiveWatchTest, SaysThatAnEngineIsSilent) {
  watch([&] { stop_ = true; });
  EXPECT_NE(notes_.find(arguments_.sources[0] + ": no message came"), std::string::npos) << notes_;
}

#if KVTWIN_TEST_HTTP
TEST_F(LiveWatchTest, CountersAlone) {
  HttpServer server({"127.0.0.1", 0}, "");
  const auto put = [&](int number) {
    server.put("/metrics", "text/plain",
               "vllm:prefix_cache_queries_total " + std::to_string(number) + "\n" + "vllm:prefix_cache_hits_total " +
                   std::to_string(number / 2) + "\n");
  };
  put(0);
  arguments_.metrics = {server.url() + "metrics"};
  arguments_.metrics_every_s = 1e-3;
  arguments_.settings.interval = 1;
  int lines = 0;
  WatchOutput output;
  output.interval = [&](const std::string&) {
    put(++lines * 100);
    stop_ = lines >= 3;
  };
  const WatchResult result = watch_engines(arguments_, stop_, output, {});
  EXPECT_TRUE(result.json.at("counters_alone").get<bool>());
  EXPECT_DOUBLE_EQ(result.json.at("measured").at("hit_ratio").get<double>(), 0.5);
}

TEST_F(LiveWatchTest, SaysThatAPageHasNoCounters) {
  HttpServer server({"127.0.0.1", 0}, "");
  server.put("/metrics", "text/plain", "up 1\n");
  arguments_.metrics = {server.url() + "metrics"};
  watch([&] {
    while (note_count_ == 0) std::this_thread::yield();
    stop_ = true;
  });
  EXPECT_NE(notes_.find("has no counter of prompt tokens"), std::string::npos) << notes_;
}
#endif

TEST_F(LiveWatchTest, ALogAlone) {
  const test::Folder folder;
  test::write_text(folder / "log", sglang_lines(0, 30));
  arguments_.request_logs = {folder / "log"};
  arguments_.block_tokens = 2;
  const WatchResult result = watch_engines(arguments_, stop_ = true, {}, {});
  EXPECT_EQ(result.json.at("requests").get<int>(), 30);
  EXPECT_TRUE(result.json.at("exact_requests").get<bool>());
}

TEST_F(LiveWatchTest, RefusesListsThatDoNotFit) {
  arguments_.sources = {publisher_.endpoint};
  for (const auto member : {&WatchArguments::replays, &WatchArguments::metrics, &WatchArguments::request_logs}) {
    WatchArguments wrong = arguments_;
    wrong.*member = {"http://127.0.0.1:1/", "http://127.0.0.1:2/"};
    EXPECT_THROW(watch_engines(wrong, stop_ = true, {}, {}), InputError);
  }
  WatchArguments wrong = arguments_;
  wrong.request_logs = {"/nowhere/log"};
  EXPECT_THROW(watch_engines(wrong, stop_ = true, {}, {}), InputError);
  wrong = arguments_;
  wrong.sources = {"tcp://"};
  EXPECT_THROW(watch_engines(wrong, stop_ = true, {}, {}), InputError);
}

#endif

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
    for (TraceRequest& request : log.take().requests) requests.push_back(std::move(request));
    std::this_thread::yield();
  }
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

TEST(HttpAddress, LoopbackAndOthers) {
  for (const char* text : {"127.0.0.1:1", "localhost:65535", "[::1]:80", "127.9.8.7:0"}) {
    EXPECT_TRUE(HttpAddress::parse(text, "--serve").is_loopback()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "10.0.0.1:2", "example.com:80", "127.evil.com:80", "[::]:80"}) {
    EXPECT_FALSE(HttpAddress::parse(text, "--serve").is_loopback()) << text;
  }
  for (const char* text : {"", "127.0.0.1", ":80", "a:b", "a:-1", "a:65536", "a b:1", "a/b:1", "u@h:1", "a:1x"}) {
    EXPECT_THROW(HttpAddress::parse(text, "--serve"), InputError) << text;
  }
  EXPECT_THROW(check_http_url("https://127.0.0.1/metrics", "--metrics"), InputError);
  EXPECT_THROW(check_http_url("127.0.0.1:8000", "--metrics"), InputError);
}

TEST(WatchReport, TextOfAnEngineEndsNoScript) {
  const std::string page = watch_report({{"pools", "</script><script>alert(1)</script>"}});
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>"), std::string::npos);
  EXPECT_EQ(page.find("http://"), page.find("http://www.w3.org/2000/svg")) << "nothing of another host";
  EXPECT_EQ(page.find("https://"), std::string::npos);
}

#if KVTWIN_TEST_HTTP

// `is_all`: says that no more comes, so that a server does not wait for the rest of a request.
std::string answer_to(const HttpServer& server, const std::string& request, bool is_all) {
  const std::string url = server.url();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(send(client, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  if (is_all) shutdown(client, SHUT_WR);
  std::string answer;
  char bytes[4096];
  for (ssize_t got = 0; (got = recv(client, bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<std::size_t>(got));
  close(client);
  return answer;
}

int status_of(const HttpServer& server, const std::string& line, const std::string& headers = "Host: localhost\r\n") {
  const std::string answer = answer_to(server, line + " HTTP/1.1\r\n" + headers + "Connection: close\r\n\r\n", false);
  return answer.size() < 12 ? 0 : std::stoi(answer.substr(9, 3));
}

TEST(HttpGet, EndsAtOnceIfThePageIsNoLongerWanted) {
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(silent, 1), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::string why;
  const std::string url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/metrics";
  EXPECT_EQ(http_get(url, why, [] { return false; }), std::nullopt);
  EXPECT_EQ(why, "is no longer wanted");
  close(silent);
}

TEST(HttpServer, ReadOnlyAndForThisMachine) {
  HttpServer server({"127.0.0.1", 0}, "");
  server.put("/", "text/plain", "hello");
  std::string why;
  EXPECT_EQ(http_get(server.url(), why), "hello") << why;
  EXPECT_EQ(http_get(server.url() + "other", why), std::nullopt);
  EXPECT_EQ(why, "answers 404");
  server.put("/", "text/plain", "later");
  EXPECT_EQ(http_get(server.url(), why), "later");
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
    EXPECT_EQ(status_of(server, std::string(method) + " /"), 405) << method;
  }
  EXPECT_EQ(status_of(server, "GET /", "Host: 127.0.0.1:80\r\n"), 200);
  EXPECT_EQ(status_of(server, "GET /", "Host: [::1]\r\n"), 200);
  EXPECT_EQ(status_of(server, "GET /", "Host: evil.example\r\n"), 403) << "a name that another site lets point here";
  EXPECT_EQ(status_of(server, "GET /", ""), 403);
  const std::string answer = answer_to(server, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", false);
  EXPECT_NE(answer.find("default-src 'none'"), std::string::npos) << answer;
  EXPECT_EQ(answer.find("Access-Control-Allow-Origin"), std::string::npos);
}

TEST(HttpServer, HostileRequestsDoNotEndIt) {
  HttpServer server({"127.0.0.1", 0}, "");
  server.put("/", "text/plain", "hello");
  for (const std::string& request :
       {std::string("\0\1\2", 3), std::string("GET"), std::string(100'000, 'A'), std::string("GET / HTTP/9\r\n\r\n"),
        "GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
        std::string("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: localhost\r\n" + std::string(9000, 'h') + ": x\r\n\r\n",
        std::string("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nx"),
        std::string("GET / HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-1,9999999999999999999999-\r\n\r\n"),
        std::string("GET /%zz%00 HTTP/1.1\r\nHost: localhost\r\n\r\n")}) {
    const std::string answer = answer_to(server, request, true);
    EXPECT_EQ(answer.find("root:"), std::string::npos);
  }
  std::string why;
  EXPECT_EQ(http_get(server.url(), why), "hello") << why;
}

TEST(HttpServer, ATokenIsNeededForOtherMachines) {
  EXPECT_THROW(HttpServer({"0.0.0.0", 0}, ""), InputError);
  EXPECT_THROW(HttpServer({"0.0.0.0", 0}, "short"), InputError);
  const std::string token = "0123456789abcdef";
  HttpServer server({"127.0.0.1", 0}, token);
  server.put("/", "text/plain", "hello");
  EXPECT_EQ(status_of(server, "GET /"), 401);
  EXPECT_EQ(status_of(server, "GET /?token=0123456789abcdeg"), 401);
  EXPECT_EQ(status_of(server, "GET /?token=" + token), 200);
  EXPECT_EQ(status_of(server, "GET /", "Host: localhost\r\nAuthorization: Bearer " + token + "\r\n"), 200);
  EXPECT_EQ(status_of(server, "GET /", "Host: localhost\r\nAuthorization: Bearer x" + token + "\r\n"), 401);
  const HttpServer second({"127.0.0.1", 0}, "");
  const std::string url = second.url();
  const int port = std::stoi(url.substr(url.rfind(':') + 1));
  EXPECT_THROW(HttpServer({"127.0.0.1", port}, ""), InputError);
}

#endif

}  // namespace
}  // namespace kvtwin

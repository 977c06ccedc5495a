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
#include "lab/watch/http.hpp"
#include "lab/watch/recording.hpp"
#include "lab/watch/request_keeper.hpp"
#include "lab/watch/watch_page.hpp"
#include "lab/watch/watch_run.hpp"
#include "tests/program.hpp"
#include "tests/trace_files.hpp"
#include "tests/unit/lab/kv_messages.hpp"
#include "tests/unit/lab/sglang_lines.hpp"
#if KVTWIN_TEST_HTTP
#include <sys/socket.h>

#include "tests/free_port.hpp"
#endif

#if KVTWIN_TEST_ZMQ
#include "lab/capture/kv_events.hpp"
#include "tests/unit/lab/bound_socket.hpp"
#endif

namespace kvtwin {
namespace {

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

TEST_F(LiveWatchTest, ManyEngines) {
  std::vector<std::unique_ptr<test::BoundSocket>> engines;
  for (int i = 0; i < 70; ++i) {
    engines.push_back(std::make_unique<test::BoundSocket>(context_.get(), ZMQ_XPUB));
    arguments_.sources.push_back(engines.back()->endpoint);
  }
  std::thread thread([&] {
    for (const auto& engine : engines) {
      engine->receive();
      engine->send(std::string("kv"), true);
      engine->send(test::big_endian(0), true);
      engine->send(batch(std::string("\xcb\x41\xdb\x00\x00\x00\x00\x00\x00", 9), stored("\x91\x01", "\x10")), false);
    }
  });
  WatchOutput output;
  output.screen = [&](const std::string& screen) { stop_ = screen.find("written   70 blocks") != std::string::npos; };
  const Json json = watch_engines(arguments_, stop_, output, {}).json;
  thread.join();
  EXPECT_EQ(json.at("engines").get<int>(), 70);
  EXPECT_EQ(json.at("requests").get<int>(), 70);
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

// The dead server comes first, and would delay the other one by 10 s for each page.
TEST_F(LiveWatchTest, NoServerWaitsForADeadOne) {
  HttpServer server({"127.0.0.1", 0}, "");
  const test::FreePort dead;
  ASSERT_EQ(listen(dead.socket(), 1), 0);
  int queries = 0;
  const auto put = [&] {
    server.put("/metrics", "text/plain", "vllm:prefix_cache_queries_total " + std::to_string(queries += 10) + "\n");
  };
  put();
  arguments_.metrics = {"http://127.0.0.1:" + std::to_string(dead.number()) + "/metrics", server.url() + "metrics"};
  arguments_.metrics_every_s = 1e-3;
  arguments_.settings.interval = 1;
  int lines = 0;
  WatchOutput output;
  output.interval = [&](const std::string&) {
    put();
    stop_ = ++lines >= 3;
  };
  const WatchResult result = watch_engines(arguments_, stop_, output, {});
  EXPECT_GT(result.json.at("measured").at("lookup_tokens").get<int>(), 0);
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
  test::write_text(folder / "log", test::sglang_lines(0, 30));
  arguments_.request_logs = {folder / "log"};
  arguments_.block_tokens = 2;
  const WatchResult result = watch_engines(arguments_, stop_ = true, {}, {});
  EXPECT_EQ(result.json.at("requests").get<int>(), 30);
  EXPECT_TRUE(result.json.at("exact_requests").get<bool>());
}

TEST_F(LiveWatchTest, ABrokenLineOfALogIsOnTheScreen) {
  const test::Folder folder;
  test::write_text(folder / "log", test::sglang_lines(0, 15) + "{\n" + test::sglang_lines(15, 30));
  arguments_.request_logs = {folder / "log"};
  arguments_.block_tokens = 2;
  const WatchResult result = watch_engines(arguments_, stop_ = true, {}, {});
  EXPECT_EQ(result.json.at("requests").get<int>(), 30);
  EXPECT_EQ(result.json.at("events").at("bad_lines").get<int>(), 1);
  EXPECT_NE(result.text.find("1 line of a request log not read"), std::string::npos) << result.text;
  EXPECT_NE(result.text.find((folder / "log") + "\", line 31: "), std::string::npos) << result.text;
}

TEST_F(LiveWatchTest, TheZoneOfALogIsOnTheScreen) {
  const test::Folder folder;
  test::write_text(folder / "log", test::sglang_lines(0, 3));
  arguments_.request_logs = {folder / "log"};
  arguments_.machine_zone_s = -5 * 3600 - 1800;
  EXPECT_NE(watch_engines(arguments_, stop_ = true, {}, {}).text.find("log zone  -05:30 (this machine's;"),
            std::string::npos);
  arguments_.log_zone = "+02:00";
  EXPECT_EQ(watch_engines(arguments_, stop_ = true, {}, {}).json.at("log_zone").get<std::string>(),
            "+02:00 (--log-zone)");
}

TEST_F(LiveWatchTest, AFileThatIsNoLogIsRefused) {
  const test::Folder folder;
  test::write_text(folder / "log", "{\"a\": 1}\n");
  arguments_.request_logs = {folder / "log"};
  EXPECT_THROW(watch_engines(arguments_, stop_ = false, {}, {}), InputError);
  EXPECT_THROW(watch_engines(arguments_, stop_ = true, {}, {}), InputError);
}

TEST_F(LiveWatchTest, RefusesListsThatDoNotFit) {
  arguments_.sources = {publisher_.endpoint};
  for (const auto member : {&WatchArguments::replays, &WatchArguments::metrics, &WatchArguments::request_logs}) {
    WatchArguments wrong = arguments_;
    wrong.*member = {"http://127.0.0.1:1/", "http://127.0.0.1:2/"};
    EXPECT_THROW(watch_engines(wrong, stop_ = true, {}, {}), InputError);
  }
  WatchArguments alone = arguments_;
  alone.sources.clear();
  alone.metrics = {"http://127.0.0.1:1/"};
  alone.replays = {"tcp://127.0.0.1:1"};
  EXPECT_THROW(watch_engines(alone, stop_ = true, {}, {}), InputError);
  WatchArguments wrong = arguments_;
  wrong.request_logs = {"/nowhere/log"};
  EXPECT_THROW(watch_engines(wrong, stop_ = true, {}, {}), InputError);
  wrong = arguments_;
  wrong.sources = {"tcp://"};
  EXPECT_THROW(watch_engines(wrong, stop_ = true, {}, {}), InputError);
}

#endif

TEST(WatchReport, TextOfAnEngineEndsNoScript) {
  const std::string page = watch_report({{"pools", "</script><script>alert(1)</script>"}});
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>"), std::string::npos);
  EXPECT_EQ(page.find("http://"), page.find("http://www.w3.org/2000/svg")) << "nothing of another host";
  EXPECT_EQ(page.find("https://"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "lab/capture/block_batch.hpp"
#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "lab/out_files.hpp"
#include "lab/watch/growing_log.hpp"
#include "lab/watch/http.hpp"
#include "lab/watch/recording.hpp"
#include "lab/watch/request_keeper.hpp"
#include "lab/watch/watch_page.hpp"
#include "lab/watch/watch_run.hpp"
#include "lab/watch/watch_session.hpp"
#if KVTWIN_HAVE_ZMQ
#include "lab/capture/kv_subscription.hpp"
#endif

namespace kvtwin {

#if !KVTWIN_HAVE_ZMQ

WatchResult watch_engines(const WatchArguments& /*arguments*/, const std::atomic<bool>& /*stop*/,
                          const WatchOutput& /*output*/, const Listener& /*listener*/) {
  throw InputError(
      "watch: this program has no libzmq, as that of the wheel; take the Debian package, or install libzmq3-dev and "
      "build from source");
}

#else

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{20};
constexpr std::chrono::milliseconds kTick{1000};
constexpr TimeNs kDay = TimeNs{24} * 3600 * kNsPerSecond;
constexpr int kMessagesInTurn = 256;                         // of one engine, before the next one
constexpr std::chrono::milliseconds kLongestReplay{10'000};  // the other engines wait
constexpr const char* kPositionFile = "position.json";

TimeNs wall_time() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// The messages of one engine.
class EngineSink final : public KvMessageSink {
 public:
  EngineSink(Watch& watch, std::size_t source) : watch_(watch), source_(source) {}

  void expect(std::uint64_t seq) { expected_ = seq; }
  std::optional<std::uint64_t> expected() const { return expected_; }
  const PassedOver& passed_over() const { return batch_.passed_over(); }
  // The engine's clock minus this machine's, at its last message.
  TimeNs clock_offset() const { return clock_offset_; }

  std::optional<std::array<std::uint64_t, 2> > missing_before(std::uint64_t seq) const override {
    if (!expected_ || seq <= *expected_) return std::nullopt;
    return std::array{*expected_, seq - 1};
  }
  void write(std::uint64_t seq, std::span<const std::uint8_t> payload) override {
    begin(seq);
    const std::string why = batch_.read(payload);
    if (!why.empty()) return watch_.count_bad(source_, "message " + std::to_string(seq) + " " + why);
    for (const BlockEvent& event : batch_.events()) watch_.take(source_, event);
    if (!batch_.events().empty()) clock_offset_ = batch_.events().back().time - wall_time();
  }
  void write_unread(std::uint64_t seq, const std::string& why) override {
    begin(seq);
    watch_.count_bad(source_, "message " + std::to_string(seq) + " " + why);
  }

 private:
  void begin(std::uint64_t seq) {
    BlockEvent event;
    if (const auto missing = missing_before(seq)) {
      event.kind = BlockEvent::Kind::missing;
      event.count = missing->back() - missing->front() + 1;
      watch_.take(source_, event);
    } else if (expected_ && seq < *expected_) {
      event.kind = BlockEvent::Kind::restart;
      watch_.take(source_, event);
    }
    expected_ = seq + (seq == ~std::uint64_t{0} ? 0 : 1);
  }

  Watch& watch_;
  const std::size_t source_;
  BlockBatch batch_;
  std::optional<std::uint64_t> expected_;
  TimeNs clock_offset_ = 0;
};

// Fetches the counters of one engine again and again, in a thread of its own: no other engine waits for this one.
class CounterThread {
 public:
  struct Page {
    TimeNs time = 0;
    std::string text, why;  // why: it could not be fetched
  };

  CounterThread(std::string url, double every_s) : url_(std::move(url)), every_(every_s), thread_([this] { run(); }) {}
  ~CounterThread() {
    end();
    thread_.join();
  }
  CounterThread(const CounterThread&) = delete;
  CounterThread& operator=(const CounterThread&) = delete;

  // Fetches no more, and does not wait for what is being fetched.
  void end() {
    {
      const std::scoped_lock lock(mutex_);
      is_over_ = true;
    }
    wake_.notify_all();
  }
  // The newest page since the last call.
  std::optional<Page> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(page_, std::nullopt);
  }

 private:
  void run() {
    for (std::unique_lock lock(mutex_); !is_over_;) {
      lock.unlock();
      Page page;
      if (auto text = http_get(url_, page.why, [this] { return !is_over_; })) page.text = std::move(*text);
      page.time = wall_time();
      lock.lock();
      page_ = std::move(page);
      wake_.wait_for(lock, std::chrono::duration<double>(every_), [this] { return is_over_.load(); });
    }
  }

  const std::string url_;
  const double every_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> is_over_ = false;
  std::optional<Page> page_;
  std::thread thread_;  // the last one: it uses all others
};

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

std::string zone_text(int seconds) {
  const int minutes = std::abs(seconds) / 60;
  return formatted("%c%02d:%02d", seconds < 0 ? '-' : '+', minutes / 60, minutes % 60);
}

// Names of the engines. Without endpoints, their logs or counters are watched alone.
const std::vector<std::string>& engines_of(const WatchArguments& arguments) {
  if (!arguments.sources.empty()) return arguments.sources;
  return arguments.request_logs.empty() ? arguments.metrics : arguments.request_logs;
}

void check_lists(const WatchArguments& arguments) {
  const std::size_t engines = engines_of(arguments).size();
  for (const auto& [list, option] : {std::pair{&arguments.replays, "--replay"},
                                     {&arguments.metrics, "--metrics"},
                                     {&arguments.request_logs, "--request-log"}}) {
    if (list->empty() || list->size() == engines) continue;
    throw InputError(std::string(option) + ": " + std::to_string(list->size()) + " are given for " +
                     std::to_string(engines) + " engines; give one for each, in their order");
  }
  if (arguments.sources.empty() && !arguments.replays.empty()) {
    throw InputError("--replay: is of KV events; give tcp://HOST:PORT of the engines, or leave it out");
  }
  for (const std::string& url : arguments.metrics) check_http_url(url, "--metrics");
  if (!(arguments.metrics_every_s > 0)) throw InputError("--metrics-every: must be above 0, e.g. 5s");
}

class LiveWatch {
 public:
  LiveWatch(const WatchArguments& arguments, const std::atomic<bool>& stop, const WatchOutput& output,
            const Listener& listener)
      : arguments_(arguments),
        stop_(stop),
        listener_(listener),
        server_(WatchedServer::make(arguments.server)),
        session_(arguments, engines_of(arguments), server_.get(), output, listener) {
    check_lists(arguments);
    if (!arguments.serve.empty()) {
      page_ = std::make_unique<WatchPage>(HttpAddress::parse(arguments.serve, "--serve"), arguments.token);
      listener_.begin("page " + page_->url());
    }
    keep_requests();
    for (std::size_t i = 0; i < engines_of(arguments).size(); ++i) {
      sinks_.push_back(std::make_unique<EngineSink>(session_.watch(), i));
      if (!arguments.sources.empty()) {
        subscribe(i);
      } else if (arguments.request_logs.empty()) {
        session_.watch().expect_counters_alone(i);
      }
    }
    const int zone_s = arguments.log_zone.empty() ? arguments.machine_zone_s : parse_zone(arguments.log_zone);
    log_zone_ =
        zone_text(zone_s) + (arguments.log_zone.empty() ? " (this machine's; else give --log-zone)" : " (--log-zone)");
    Tokens block_tokens = arguments.block_tokens;
    if (block_tokens == 0 && server_ != nullptr) block_tokens = server_->block_tokens();
    for (std::size_t i = 0; i < arguments.request_logs.size(); ++i) {
      session_.watch().expect_requests(i);
      logs_.push_back(std::make_unique<GrowingLog>(arguments.request_logs[i], block_tokens, GrowingLog::kSilence,
                                                   TimeNs{zone_s} * kNsPerSecond));
    }
    for (const std::string& url : arguments.metrics) {
      counters_.push_back(std::make_unique<CounterThread>(url, arguments.metrics_every_s));
    }
  }

  ~LiveWatch() {
    for (const auto& one : counters_) one->end();  // all at once
  }
  LiveWatch(const LiveWatch&) = delete;
  LiveWatch& operator=(const LiveWatch&) = delete;

  WatchResult run() {
    listener_.begin("watching " + std::to_string(sinks_.size()) + (sinks_.size() == 1 ? " engine" : " engines") +
                    (arguments_.for_seconds == 0 ? "; stop with Ctrl-C" : ""));
    for (Clock::time_point tick{}; !is_over();) {
      bool any = false;
      for (const auto& one : subscriptions_) {
        for (int i = 0; i < kMessagesInTurn && one->receive(std::chrono::milliseconds(0)); ++i) any = true;
      }
      if (subscriptions_.empty()) {
        // A signal handler, which sets `stop_`, can wake nobody.
        std::this_thread::sleep_for(kPoll);
      } else if (!any) {
        const auto wait = std::max(std::chrono::milliseconds(1), kPoll / static_cast<long>(sinks_.size()));
        subscriptions_[next_wait_++ % subscriptions_.size()]->receive(wait);
      }
      if (Clock::now() - tick < kTick) continue;
      tick = Clock::now();
      look_around();
    }
    for (const auto& log : logs_) log->end();
    for (bool is_left = !logs_.empty(); is_left;) is_left = !take_requests();
    look_around();
    WatchResult result = session_.end();
    if (keeper_ != nullptr) {
      keep_positions();
      keeper_->end();
    }
    result.text += cost_text();
    result.json["cost"] = {{"cpu_share", cpu_share()}, {"peak_rss_bytes", peak_bytes()}};
    tell_faults();
    return result;
  }

 private:
  bool is_over() const {
    const std::chrono::duration<double> limit(arguments_.for_seconds);
    return stop_ || (arguments_.for_seconds > 0 && Clock::now() - begin_ >= limit);
  }

  // Reads the requests of an earlier watch, then keeps the new ones.
  void keep_requests() {
    if (arguments_.out.empty()) return;
    keeper_ = std::make_unique<RequestKeeper>(arguments_.out, engines_of(arguments_).size(), arguments_.keep_mib << 20);
    std::uint64_t kept = 0;
    const std::vector<std::filesystem::path> folders = engine_folders(arguments_.out);
    std::map<std::size_t, std::unique_ptr<WatchedRecording> > recordings;
    for (std::size_t i = 0; i < folders.size(); ++i) {
      if (!request_files(folders[i]).empty()) recordings[i] = open_recording(folders[i].string(), 0);
    }
    // In the order of time, for the cache that all engines share.
    for (;; ++kept) {
      std::erase_if(recordings, [](const auto& one) { return !one.second->next_time(); });
      if (recordings.empty()) break;
      const auto next =
          std::ranges::min_element(recordings, {}, [](const auto& one) { return *one.second->next_time(); });
      next->second->deliver_kept(session_.watch(), next->first);
    }
    if (kept > 0) listener_.tell("watch: goes on after " + grouped(kept) + " requests that are kept in --out");
    session_.watch().on_request([this](std::size_t source, const TraceRequest& request, Tokens block_tokens) {
      keeper_->write(source, request, block_tokens);
    });
  }

  void subscribe(std::size_t i) {
    KvSubscriptionSettings settings;
    settings.endpoint = arguments_.sources[i];
    settings.replay = arguments_.replays.empty() ? "" : arguments_.replays[i];
    settings.topic = arguments_.topic;
    settings.max_message_mib = arguments_.max_message_mib;
    settings.max_queue_mib = arguments_.max_queue_mib;
    // Tracked blocks with those of the engines (twice for the shared pool) and of groups of layers, windows, and twins:
    // those of other sizes have as many blocks together as are tracked.
    const std::uint64_t block_bytes = server_ == nullptr ? 500 : 800;
    const std::uint64_t twin_blocks = server_ == nullptr ? 0 : server_->device_blocks() + server_->host_blocks();
    settings.own_mib = ((arguments_.settings.max_blocks * block_bytes +
                         arguments_.sources.size() * (arguments_.settings.window_blocks * 80 + twin_blocks * 400)) >>
                        20) +
                       256;
    settings.longest_replay = kLongestReplay;
    settings.option = "source";
    const std::optional<std::uint64_t> position = position_of(i);
    if (position) {
      sinks_.back()->expect(*position);
    } else if (!settings.replay.empty()) {
      sinks_.back()->expect(0);
    }
    subscriptions_.push_back(
        std::make_unique<KvSubscription>(settings, connections_, *sinks_.back(), [this] { return is_over(); }));
  }

  std::filesystem::path position_file(std::size_t i) const {
    return std::filesystem::path(arguments_.out) / ("engine-" + std::to_string(i)) / kPositionFile;
  }
  // The number of the next message after an earlier watch.
  std::optional<std::uint64_t> position_of(std::size_t i) const {
    if (keeper_ == nullptr) return std::nullopt;
    std::ifstream in(position_file(i), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const Json json = Json::parse_or_discard(text);
    if (!json.is_object() || !json.contains("next_seq") || !json.at("next_seq").is_number_unsigned()) {
      return std::nullopt;
    }
    return json.at("next_seq").get<std::uint64_t>();
  }
  void keep_positions() {
    for (std::size_t i = 0; i < sinks_.size(); ++i) {
      const auto next = sinks_[i]->expected();
      if (next)
        write_whole(position_file(i), Json{{"endpoint", arguments_.sources[i]}, {"next_seq", *next}}.dump() + "\n");
    }
    keeper_->flush();
  }

  // Takes what has come from the request logs. Returns true if no more comes.
  bool take_requests() {
    bool all_ended = true;
    bool any = false;
    for (std::size_t i = 0; i < logs_.size(); ++i) {
      const GrowingLog::Read read = logs_[i]->take();
      // A log whose clock tells no date, or another day's, counts from now.
      if (log_begin_[i] == 0 && read.begin != 0) {
        const TimeNs now = wall_time();
        log_begin_[i] = std::abs(now - read.begin) < kDay ? read.begin : now;
      }
      if (read.has_local_dates) session_.watch().tell_log_zone(log_zone_);
      for (TraceRequest request : read.requests) {
        request.arrival += log_begin_[i];
        session_.watch().take(i, request, read.block_tokens);
      }
      session_.watch().count_bad_lines(read.bad_lines - log_bad_lines_[i], read.first_bad_line);
      log_bad_lines_[i] = read.bad_lines;
      if (read.is_waiting && !std::exchange(waiting_told_, true)) {
        listener_.tell("--request-log " + arguments_.request_logs[i] +
                       ": no line so far is one of SGLang's or vLLM's request logs; it is waited for");
      }
      if (read.new_files > 0 && !std::exchange(new_log_told_, true)) {
        listener_.tell("--request-log " + arguments_.request_logs[i] +
                       ": the server has begun a new file, which is followed, as those after it");
      }
      any |= !read.requests.empty();
      all_ended &= !read.fault.empty();
      // At the end, the figures of other sources are worth more than this.
      if (read.is_refused && (!is_over() || session_.watch().figures().requests == 0)) {
        throw InputError("--request-log needs a log of requests, SGLang's or vLLM's at level DEBUG: " + read.fault);
      }
      log_has_requests_[i] = log_has_requests_[i] || !read.requests.empty();
      // At the end of the watch, a log has ended anyway.
      const bool is_news = !is_over() || (!log_has_requests_[i] && read.fault != GrowingLog::kHasEnded);
      if (!read.fault.empty() && is_news && !log_told_[i]) {
        listener_.tell("--request-log " + arguments_.request_logs[i] + ": no more requests are read: " + read.fault);
        log_told_[i] = true;
      }
    }
    // Several logs may have more, and a signal handler, which sets `stop_`, can wake nobody.
    if (!any && !all_ended) std::this_thread::sleep_for(kPoll);
    return all_ended && !any;
  }

  // The newest counters, in the order of the engines.
  void take_counters() {
    for (std::size_t i = 0; i < counters_.size(); ++i) {
      const std::optional<CounterThread::Page> page = counters_[i]->take();
      if (!page) continue;
      if (!page->why.empty()) {
        session_.watch().count_unreachable(i, page->why);
        if (unreachable_[i]++ == 0) {
          listener_.tell("--metrics " + arguments_.metrics[i] + ": " + page->why + "; it is tried again");
        }
        continue;
      }
      const ServerCounters counters = parse_server_counters(page->text, page->time + sinks_[i]->clock_offset());
      if (!counters.looked_up && !std::exchange(no_counters_told_, true)) {
        listener_.tell("--metrics " + arguments_.metrics[i] +
                       ": has no counter of prompt tokens of vLLM or SGLang; look whether the server counts "
                       "(SGLang: --enable-metrics)");
      }
      session_.watch().take(i, counters);
    }
  }

  // What happens once per second.
  void look_around() {
    if (!is_over() && !logs_.empty()) take_requests();
    take_counters();
    const TimeNs now = wall_time();
    TimeNs offset = 0;
    for (std::size_t i = 0; i < sinks_.size(); ++i) {
      session_.watch().advance(i, now + sinks_[i]->clock_offset());
      offset = std::max(offset, sinks_[i]->clock_offset());
    }
    session_.watch().advance(now + offset);
    if (keeper_ != nullptr) keep_positions();
    session_.refresh(cost_text());
    if (page_ != nullptr) session_.publish(*page_);
  }

  double cpu_share() const {
    const double wall = std::chrono::duration<double>(Clock::now() - begin_).count();
    return wall > 0 ? (cpu_seconds() - cpu_before_) / wall : 0;
  }
  static std::uint64_t peak_bytes() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return static_cast<std::uint64_t>(used.ru_maxrss) << 10;
  }
  std::string cost_text() const {
    return formatted("cost      %.2f %% of a core, %.0f MiB at most\n", 100 * cpu_share(),
                     static_cast<double>(peak_bytes()) / (1 << 20));
  }

  void tell_faults() const {
    for (std::size_t i = 0; i < subscriptions_.size(); ++i) {
      if (subscriptions_[i]->messages() == 0) {
        listener_.tell("watch: " + arguments_.sources[i] +
                       ": no message came; look whether the server serves requests, and publishes KV events there "
                       "(--kv-events-config)");
      }
      for (const std::string& fault : subscriptions_[i]->faults()) {
        listener_.tell("watch: " + arguments_.sources[i] + ": " + fault);
      }
      const PassedOver& passed = sinks_[i]->passed_over();
      if (!passed.empty()) {
        listener_.tell("watch: " + arguments_.sources[i] +
                       ": keys that are not read were passed over: " + passed.text());
      }
    }
    for (std::size_t i = 0; i < unreachable_.size(); ++i) {
      if (unreachable_[i] == 0) continue;
      listener_.tell("--metrics " + arguments_.metrics[i] + ": could not be fetched " + grouped(unreachable_[i]) +
                     (unreachable_[i] == 1 ? " time" : " times"));
    }
  }

  const WatchArguments& arguments_;
  const std::atomic<bool>& stop_;
  const Listener& listener_;
  const std::unique_ptr<WatchedServer> server_;
  WatchSession session_;
  std::unique_ptr<WatchPage> page_;
  std::unique_ptr<RequestKeeper> keeper_;
  KvConnections connections_;
  std::vector<std::unique_ptr<EngineSink> > sinks_;
  std::vector<std::unique_ptr<KvSubscription> > subscriptions_;
  std::vector<std::unique_ptr<GrowingLog> > logs_;
  std::string log_zone_;
  std::vector<TimeNs> log_begin_ = std::vector<TimeNs>(arguments_.request_logs.size());
  std::vector<std::uint64_t> log_bad_lines_ = std::vector<std::uint64_t>(arguments_.request_logs.size());
  std::vector<bool> log_told_ = std::vector<bool>(arguments_.request_logs.size());
  std::vector<bool> log_has_requests_ = log_told_;
  std::vector<std::unique_ptr<CounterThread> > counters_;
  std::size_t next_wait_ = 0;
  std::vector<std::uint64_t> unreachable_ = std::vector<std::uint64_t>(arguments_.metrics.size());
  bool no_counters_told_ = false, new_log_told_ = false, waiting_told_ = false;
  const Clock::time_point begin_ = Clock::now();
  const double cpu_before_ = cpu_seconds();
};

}  // namespace

WatchResult watch_engines(const WatchArguments& arguments, const std::atomic<bool>& stop, const WatchOutput& output,
                          const Listener& listener) {
  return LiveWatch(arguments, stop, output, listener).run();
}

#endif

}  // namespace kvtwin

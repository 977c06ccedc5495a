#include <algorithm>
#include <chrono>
#include <thread>

#include "lab/error.hpp"
#include "lab/watch/recording.hpp"
#include "lab/watch/watch_run.hpp"
#include "lab/watch/watch_session.hpp"

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kEventsBetweenLooks = 1024;  // at the clock, for the screen
constexpr std::chrono::milliseconds kLongestWait{100};

// Waits until the time of a recording has come, at a multiple of its speed.
class Pace {
 public:
  Pace(double speed, const std::atomic<bool>& stop) : speed_(speed), stop_(stop) {}

  void wait_for(TimeNs time, WatchSession& session) {
    if (speed_ <= 0) return;
    if (!has_first_) first_ = time;
    has_first_ = true;
    const std::chrono::duration<double> due(static_cast<double>(time - first_) * 1e-9 / speed_);
    for (;;) {
      const auto left = due - (Clock::now() - begin_);
      if (stop_ || left.count() <= 0) return;
      session.refresh();
      // The time itself is what is waited for, in pieces: a signal handler, which sets `stop_`, can wake nobody.
      std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(left, kLongestWait));
    }
  }

 private:
  const double speed_;
  const std::atomic<bool>& stop_;
  bool has_first_ = false;
  TimeNs first_ = 0;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace

bool is_endpoint(const std::string& source) { return source.find("://") != std::string::npos; }

WatchResult play_recordings(const WatchArguments& arguments, const std::atomic<bool>& stop, const WatchOutput& output,
                            const Listener& listener) {
  std::vector<std::string> names;
  std::vector<std::unique_ptr<WatchedRecording>> recordings;
  const std::unique_ptr<WatchedServer> server = WatchedServer::make(arguments.server);
  Tokens block_tokens = arguments.block_tokens;
  if (block_tokens == 0 && server != nullptr) block_tokens = server->block_tokens();
  for (const std::string& source : arguments.sources) {
    const std::vector<std::filesystem::path> engines = engine_folders(source);
    if (engines.empty()) {
      names.push_back(source);
      recordings.push_back(open_recording(source, block_tokens));
    }
    for (const std::filesystem::path& engine : engines) {
      names.push_back(engine.string());
      recordings.push_back(open_recording(engine.string(), block_tokens));
    }
  }
  const auto is_told = [](const auto& one) { return one->has_own_block_size(); };
  if (arguments.block_tokens != 0 && std::ranges::all_of(recordings, is_told)) {
    throw InputError("--block-tokens: " + arguments.sources.front() +
                     " says itself how many tokens a block has; leave it out");
  }
  WatchArguments of_recordings = arguments;
  of_recordings.settings.one_block_size = true;
  WatchSession session(of_recordings, names, server.get(), output, listener);
  Pace pace(arguments.speed, stop);
  std::optional<TimeNs> first;
  for (int events = 0; !stop; ++events) {
    // The earliest of all, and of equal ones the first.
    std::size_t next = recordings.size();
    std::optional<TimeNs> time;
    for (std::size_t i = 0; i < recordings.size(); ++i) {
      const std::optional<TimeNs> at = recordings[i]->next_time();
      if (!at || (time && *at >= *time)) continue;
      time = at;
      next = i;
    }
    if (!time) break;
    if (!first) first = time;
    if (arguments.for_seconds > 0 && static_cast<double>(*time - *first) * 1e-9 > arguments.for_seconds) break;
    pace.wait_for(*time, session);
    recordings[next]->deliver(session.watch(), next);
    if (events % kEventsBetweenLooks == 0) session.refresh();
  }
  if (!first && !stop) {
    throw InputError(arguments.sources.front() + ": holds no event and no request; give a recording with some");
  }
  return session.end();
}

}  // namespace kvtwin

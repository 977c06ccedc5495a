// kvtwin watch: recordings in fast motion, or engines that run, through a Watch to text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/listener.hpp"
#include "lab/watch/watch.hpp"
#include "lab/watch/watch_advice.hpp"
#include "models/json.hpp"

namespace kvtwin {

struct WatchArguments {
  // tcp://HOST:PORT of engines' publishers; or folders of `kvtwin record` and of --out, and traces. Not both. Empty:
  // the request logs, or the counters, of engines are watched alone.
  std::vector<std::string> sources;
  ServerDescription server;
  WatchSettings settings;
  Tokens block_tokens = 0;  // of a trace whose format leaves it open; 0: as the description or the format says
  double speed = 0;         // of recordings, times the speed at which they were made; 0: as fast as possible
  double for_seconds = 0;   // 0: to the end, or until `stop`
  std::string expect;       // hits=SHARE; empty: nothing
  std::string report;       // file for the page with the last figures; empty: none
  // Of engines that run; each list is empty, or has an entry for each engine.
  std::vector<std::string> replays;       // their replay sockets
  std::vector<std::string> metrics;       // http://HOST:PORT/metrics
  std::vector<std::string> request_logs;  // that their servers write
  // Of dates in request logs that have no zone: +02:00. Empty: this machine's.
  std::string log_zone;
  int machine_zone_s = 0;  // seconds east of UTC
  double metrics_every_s = 5;
  std::string topic;
  std::string out;               // folder that keeps the requests; empty: none
  std::uint64_t keep_mib = 256;  // of it
  std::uint64_t max_message_mib = 16, max_queue_mib = 1024;
  std::string serve, token;  // HOST:PORT of the page; empty: none
};

// Where the text goes. Each may be empty.
struct WatchOutput {
  std::function<void(const std::string& line)> interval;  // a line at the end of each interval
  // A screen with the figures so far: at each interval, and at most twice per second. Only called if this is set.
  std::function<void(const std::string& screen)> screen;
};

struct WatchResult {
  std::string text;  // the last screen
  Json json;
  std::string missed;  // why the deployment does not have the hits that --expect says; empty: it has them
};

// Plays recordings, in the order of time. The same recordings and settings give the same text. Errors: InputError,
// TraceError.
WatchResult play_recordings(const WatchArguments& arguments, const std::atomic<bool>& stop, const WatchOutput& output,
                            const Listener& listener);

// Subscribes to engines until `stop`, or for for_seconds. Waits for no engine, and sends it nothing but the
// subscription and requests for lost messages. With `out`, the requests of an earlier watch come first. Threads: one
// for each engine's counters, those of libzmq and of the page. Errors: InputError (also if this build lacks a library),
// WorkError.
WatchResult watch_engines(const WatchArguments& arguments, const std::atomic<bool>& stop, const WatchOutput& output,
                          const Listener& listener);

// Returns true if the source is an engine's endpoint.
bool is_endpoint(const std::string& source);

// Returns the zone of --log-zone, +hh:mm, -hh:mm or Z, in seconds east of UTC. Errors: InputError.
int parse_zone(const std::string& text);

// The expectation of --expect. Errors: InputError.
double expected_hits(const std::string& text);
// Returns why the hits are below `share`, or nothing. Uses measured hits if there are any, then the twin's.
std::string why_below(const WatchFigures& figures, double share);

}  // namespace kvtwin

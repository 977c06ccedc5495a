// The twin of servers that run: takes their events, counters and requests, in the order of time, and says at any moment
// what caches of other sizes would have hit. Without sockets, clock and files: the same inputs give the same figures.
//
// A source is one engine. Its requests are exact if they come from a request log, or are inferred from its events
// (traces/shown_requests.hpp).
//
// Memory: bounded by WatchSettings, whatever the sources send; WatchFigures says how much it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "lab/watch/block_counts.hpp"
#include "lab/watch/canary.hpp"
#include "lab/watch/hit_curve.hpp"
#include "lab/watch/pool_curves.hpp"
#include "lab/watch/prefix_table.hpp"
#include "lab/watch/server_counters.hpp"
#include "lab/watch/watch_intervals.hpp"
#include "lab/watch/watched_server.hpp"
#include "policy/base/types.hpp"
#include "traces/block_events.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// Sizes of larger tiers that the figures have, times the blocks of the largest present one.
inline constexpr std::array<std::uint64_t, 5> kLargerSizes = {2, 4, 8, 16, 32};

struct WatchSettings {
  std::size_t max_blocks = std::size_t{1} << 20;  // tracked by LRU's order, of all sources together
  std::uint64_t one_in = 1;                       // of a sample of the blocks
  TimeNs interval = 60 * kNsPerSecond;
  std::uint64_t window_blocks = 100'000;             // look-ups of a window of the optimum; 0: none
  std::uint64_t device_blocks = 0, host_blocks = 0;  // of an engine; 0: as the description, the counters or events say
  bool one_block_size = false;                       // a request or event of another size is an error, not bad
};

// With WatchSettings::one_block_size.
class OtherBlockSize : public InputError {
 public:
  using InputError::InputError;
};

struct WatchFigures {
  TimeNs begin = 0, now = 0;
  std::size_t sources = 0;
  bool exact_requests = false;  // no request is inferred from events
  std::uint64_t requests = 0, lookup_blocks = 0;
  Tokens lookup_tokens = 0, block_tokens = 0;
  std::uint64_t one_in = 1;

  std::uint64_t device_blocks = 0, host_blocks = 0;  // of an engine; 0: not known, or no host tier
  std::string device_from;                           // how the size is known

  // The largest size whose hits are known: larger ones may hit more than the figures say, because an engine's blocks
  // beyond its share of max_blocks were forgotten.
  static constexpr std::uint64_t kEverySize = ~std::uint64_t{0};
  std::uint64_t known_blocks = kEverySize;
  bool knows(std::uint64_t blocks) const { return blocks <= known_blocks; }

  struct Row {
    std::uint64_t blocks = 0;
    std::string name;
    HitCurve::Hits lru;
    bool is_least = false;                       // LRU's hits may be more, and those with the untold
    std::optional<double> best, lru_in_windows;  // ratios of blocks
    // Of tokens, by the engine's own rules: hits, and tokens that are there and of no use, as a window or a state
    // lacks.
    std::optional<double> own;
    double without_window = 0, without_state = 0;
    // Of tokens, with the prompts that counters have and events do not tell. These hit in a cache of at least the
    // present size: the engine stored nothing for them.
    std::optional<double> with_untold;
  };
  std::vector<Row> rows;   // sizes of each engine's own cache
  std::vector<Row> curve;  // the same, fine
  std::vector<Row> pool;   // one cache for all engines; empty for one engine
  std::uint64_t windows = 0;
  std::uint64_t enough_blocks = 0;  // more hit no more; at least so many if known_blocks is below kEverySize
  double prefill_seconds = 0;       // without a hit; 0 without a description

  // What the servers counted since the watch first saw their counters.
  struct Measured {
    Tokens looked_up = 0, device_hits = 0, host_hits = 0, storage_hits = 0, answer_tokens = 0;
    std::uint64_t requests = 0;
    double seconds = 0;  // the longest of the servers

    double hits() const { return Canary::ratio(device_hits + host_hits + storage_hits, looked_up); }
  };
  std::optional<Measured> measured;
  bool counters_alone = false;  // there are neither events nor requests
  bool has_counters = false;    // a page with a counter of prompt tokens has come
  std::optional<Canary> canary;
  std::optional<Canary> twin;  // the engine's rules, without counters
  std::vector<WatchInterval> intervals;

  struct SourcePools {
    std::string source;
    std::vector<BlockCounts::Pool> pools;
  };
  std::vector<SourcePools> pools;
  // Of groups of layers with windows or states, if the events name groups; with requests that are inferred from them.
  struct SourceCurves {
    std::string source;
    std::vector<PoolCurves::Curve> curves;
  };
  std::vector<SourceCurves> pool_curves;
  // A tier below the device that takes every stored block: bytes per day, and the life of one drive; with a
  // description.
  std::optional<double> written_per_day, drive_years;
  std::uint64_t events = 0, stored_blocks = 0, lost_messages = 0, bad = 0, restarts = 0, forgotten = 0;
  std::uint64_t below_unknown = 0, reports = 0;
  std::string first_problem;
  std::uint64_t bad_lines = 0;    // of request logs
  std::string first_bad_line;     // file, line and what is wrong
  std::uint64_t unreachable = 0;  // times that counters could not be fetched
  std::string first_unreachable;  // whose, and why
  std::string log_zone;  // of request logs whose dates have none: as +02:00 and from where; empty: there are none

  std::vector<WatchedPrefix> prefixes;  // that LRU at the present size has lost again and again

  std::uint64_t tracked_blocks = 0;
  std::size_t memory_bytes = 0;

  // Share of the events that were lost, if each lost message had one.
  double lost_share() const {
    const auto lost = static_cast<double>(lost_messages);
    return lost_messages == 0 ? 0 : lost / (lost + static_cast<double>(events));
  }
};

class Watch {
 public:
  // `server`: null without a description. Requires: it outlives this object.
  Watch(const WatchSettings& settings, std::vector<std::string> sources, const WatchedServer* server);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Errors: OtherBlockSize.
  void take(std::size_t source, const BlockEvent& event);
  // A request of a log. From the first one on, no request of this source is inferred. The first request of all tells
  // the block size; one of another size counts as bad. Errors: InputError if the description has another size;
  // OtherBlockSize.
  void take(std::size_t source, const TraceRequest& request, Tokens block_tokens);
  void take(std::size_t source, const ServerCounters& counters);
  // A message that could not be read.
  void count_bad(std::size_t source, const std::string& why);
  // Lines of a request log that could not be read. `first`: what is wrong with the first of them, with file and line.
  void count_bad_lines(std::uint64_t count, const std::string& first);
  // The requests of this source come from a log: none is inferred.
  void expect_requests(std::size_t source);
  // The counters of this source could not be fetched.
  void count_unreachable(std::size_t source, const std::string& why);
  // For the figures: the zone that the dates of a request log have been taken to have.
  void tell_log_zone(const std::string& zone);
  // Nothing but counters comes from this source.
  void expect_counters_alone(std::size_t source);
  // A request of an earlier watch, which counts as any other, and whose blocks may lie above those of later events.
  void take_kept(std::size_t source, const TraceRequest& request, Tokens block_tokens);
  // Time passes.
  void advance(TimeNs now);
  // No event of this source came until `now`, by the clock of its events: its last requests count as they are.
  void advance(std::size_t source, TimeNs now);
  // Takes the requests that have not ended as they are.
  void end();

  // Called with each request that counts, for a file.
  void on_request(std::function<void(std::size_t source, const TraceRequest&, Tokens block_tokens)> call);
  // Called at the end of each interval.
  void on_interval(std::function<void(const WatchInterval&)> call);

  WatchFigures figures() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin

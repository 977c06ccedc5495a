// Infers requests from the KV events of an engine. Internal to traces/ and to lab/watch.
//
// Events say which blocks a server stored and removed, not which requests came. What a request stored hangs below the
// prefix that it reused, so requests are inferred:
//   - A store whose parent is the last block of a request goes on with this request, if it comes soon (goes_on()). Any
//     other store begins a request; its prompt begins with the chain of its parent.
//   - A store of blocks that are there, from the first block of a prompt on, is a report of reuse (vLLM:
//     kv_cache_report_mode "full"). It begins a request, too.
//   - The first stores of a request are its prompt. Later ones of a single block are its answer, but for one that
//     follows a store of about the most blocks of any: this is the end of a prompt that was computed in parts.
//   - Arrival: the time of the first store, which is after the queue and the first pass.
//   - Tokens behind the last full block are not known: a prompt has half a block of them, and so has an answer that
//     fills no block.
// A request that stores no block and reports no reuse is not there. add_notes() counts and says all this.
//
// Only blocks on the GPU count; of several groups of layers the first one with full attention, or else the first one.
// Memory: the blocks that are cached, and those above them (known_blocks.hpp); kSortWindowRequests requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/base/types.hpp"
#include "traces/block_events.hpp"
#include "traces/format.hpp"
#include "traces/known_blocks.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class ShownRequests {
 public:
  static constexpr TimeNs kMostLate = 5 * kNsPerSecond;  // from an event's time until it is taken

  // Why an event can't be taken. `key`: of the recording.
  struct Fault {
    const char* key;
    std::string what;
  };
  struct Limits {
    std::size_t known_blocks = std::numeric_limits<std::size_t>::max();  // with more, all are forgotten
    std::size_t open_blocks = std::numeric_limits<std::size_t>::max();   // of requests that have not ended
  };

  ShownRequests() = default;
  explicit ShownRequests(const Limits& limits) : limits_(limits) {}

  // Takes events of all kinds.
  std::optional<Fault> take(const BlockEvent& event);

  // Keeps the blocks of a prompt that an earlier watch has seen as those above later ones. The engine need not have
  // them.
  void remember(const TraceRequest& request);

  // Returns true if a request has ended, which next() then returns. `now`: no event came until then, by the engine's
  // clock; a request that nothing has continued for kMostLate longer than it may pause has ended, too.
  bool has_next(TimeNs now = 0) const;
  // Fills `request` with the first request that has begun and was not returned yet, ended or not. Returns false if
  // there is none.
  bool next(TraceRequest& request);

  Tokens block_tokens() const { return block_; }  // 0: no block of the device was stored yet
  // Several groups of layers, and none of them has full attention so far.
  bool group_is_open() const { return group_ && !group_is_full_; }
  std::uint64_t requests() const { return requests_; }
  std::uint64_t reports() const { return reports_; }
  std::uint64_t stored_blocks() const { return stored_; }  // without reports
  std::uint64_t forgotten() const { return forgotten_; }   // times that all blocks were forgotten
  std::size_t known_blocks() const { return known_.size(); }
  std::size_t memory_bytes() const { return known_.memory_bytes(); }  // of the known blocks
  // Requests whose first blocks were stored before the first event.
  std::uint64_t below_unknown() const { return below_unknown_; }
  // Sentences about what was inferred, without a full stop.
  void add_notes(std::vector<std::string>& notes) const;

 private:
  // The last block of a request. Each rank has blocks of its own.
  struct Tail {
    std::uint64_t block = 0, rank = 0;
    bool operator==(const Tail&) const = default;
  };
  struct TailHash {
    std::size_t operator()(const Tail& tail) const;
  };
  // A request that the events show.
  struct Shown {
    TraceRequest request;
    std::vector<std::uint64_t> prompt, answer;  // whole blocks
    Tail tail;
    std::size_t last_blocks = 0;
    TimeNs last = 0, interval = 0;
    bool ended = false;
  };
  bool of_group(const BlockEvent& event);
  void take_stored(const BlockEvent& event);
  void take_removed(const BlockEvent& event);
  void forget_engine();
  void forget_all();
  TimeNs most_to_next(const Shown& shown) const;
  bool goes_on(const Shown& shown, const BlockEvent& event) const;
  Shown& begin(const BlockEvent& event);
  void keep(const BlockEvent& event);
  void append(std::vector<std::uint64_t>& list, const BlockEvent& event);
  void fill(Shown& shown, TraceRequest& request);

  const Limits limits_{};
  Tokens block_ = 0;
  KnownBlocks known_;
  std::deque<std::unique_ptr<Shown>> shown_;  // by arrival
  std::unordered_map<Tail, Shown*, TailHash> by_tail_;
  std::optional<std::uint64_t> group_;
  bool group_is_full_ = false;
  std::size_t largest_ = 0;  // blocks of one store
  std::size_t open_ = 0;     // blocks of shown_
  TimeNs now_ = 0;
  std::uint64_t next_private_ = kPrivateBlocks;
  std::uint64_t late_ = 0;  // blocks of answers that came after a pause
  std::uint64_t requests_ = 0, below_unknown_ = 0, without_answer_ = 0, reports_ = 0, other_media_ = 0, lora_ = 0;
  std::uint64_t forgotten_ = 0, stored_ = 0;
};

}  // namespace kvtwin

// The only interface between the policy and a world, simulated or real. docs/internals/the-seam.md has an overview.
//
// The policy calls Substrate. The world calls InputHandler with one stream of inputs. Thread: one. Nothing completes
// inside a call: every submit, call_at and reduce_min is answered by exactly one later input that has its OperationId,
// even after cancel. `now()` is constant while one input is handled. Inputs of equal time come in the order of their
// OperationIds, then notices, then arrivals of that time. A pass that counts completes after its gates.
// policy/seam/contract.hpp checks all of this.
//
// Ownership: spans and pointers in an Operation or an Input are borrowed for the call. Code that needs them later makes
// a copy.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/base/types.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/hint.hpp"
#include "policy/transfer/hand_over.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

// One page of a transfer.
struct PageMove {
  PageKey key;
  SlotId source = kNoSlot;
  SlotId target = kNoSlot;
};

// The tokens that decode steps write for a sequence: one a step, or with a draft model so many parts of 1024. Steps of
// which several make a whole token write it in the last of them.
struct StepYield {
  std::uint64_t each_x1024 = 1024;
  std::uint64_t before_x1024 = 0;  // what earlier steps have yielded of the next token; < 1024
  Tokens after(std::uint64_t steps) const { return (before_x1024 + steps * each_x1024) / 1024; }
};

// One sequence of a forward pass. Page i of the sequence is in device slot slots[i] and, once full, has the key
// keys[i]. Both spans cover context_tokens + new_tokens; the last page may be partly full. The pass reads the first
// context_tokens and writes the next new_tokens. A decode burst writes the yield of its steps, and no more than
// new_tokens. A cancelled burst has written the yield of the steps that are done.
struct SequenceWork {
  RequestId request = kNoRequest;
  Tokens context_tokens = 0;
  Tokens new_tokens = 0;
  std::span<const SlotId> slots;
  std::span<const PageKey> keys;
  StepYield yield = {};
};

// What a sequence of a pass has in a pool beside pool 0 (EngineConfig::pools). A pass that does not count changes no
// state: it may be submitted again.
struct SequencePart {
  // Of a window: page i of the sequence is in slots[i - first]; from the first page that a new token attends to, to the
  // last page.
  Pages first = 0;
  std::vector<SlotId> slots;
  // Of a state: the pass begins with the state at context_tokens, in `from`; none if it begins at the first token. It
  // leaves the state at its end in `running`. Other than `running`: a cached state, which stays as it is.
  SlotId from = kNoSlot, running = kNoSlot;
  struct Point {
    Tokens length = 0;  // of the sequence
    SlotId slot = kNoSlot;
  };
  std::vector<Point> points;  // states on the way that the pass leaves too, ascending; a slot may come again
};

// For worlds that move bytes; the others do not ask.
class SequenceParts {
 public:
  virtual ~SequenceParts() = default;
  // Sets `parts` to those of ForwardOperation::sequences[sequence], one for each pool beside pool 0, in their order.
  virtual void get(std::size_t sequence, std::vector<SequencePart>& parts) const = 0;
};

// Moves pages from L2 to L1 or back. Done when the last byte of the last rank has arrived. If there is a draft model's
// pool beside the target's, its pages have the same slots, and move by `side` in the same operation.
struct TransferOperation {
  Lane lane = Lane::h2d;
  Plan plan;
  std::span<const PageMove> pages;
  std::vector<Plan> beside = {};  // the same runs for each further shape in the same slots (a draft model's KV)
  // What moves of the pools beside pool 0: windows and states.
  struct Part {
    std::size_t pool = 0;  // of EngineConfig::pools
    Plan plan;
    std::span<const PageMove> moves;  // their keys: of the page, or of the last page before a state
  };
  std::vector<Part> parts = {};

  Bytes bytes() const {  // of one rank
    Bytes all = plan.bytes;
    for (const Plan& other : beside) all += other.bytes;
    for (const Part& part : parts) all += part.plan.bytes;
    return all;
  }
};

// A forward pass of `steps` steps over a batch: one if there is prefill, one or more for decode alone. The first
// shape.prefill_sequences sequences prefill, the others decode. Layer group i starts at
// max(end of group i - 1, arrival of its bytes by every gate). A cancel takes effect at the end of the running step.
// The completion then has the number of steps done.
struct ForwardOperation {
  ForwardShape shape;
  std::uint64_t steps = 1;
  std::span<const SequenceWork> sequences;
  std::span<const OperationId> gates;    // h2d transfers, and gets into L1, that were submitted before
  const SequenceParts* parts = nullptr;  // null: the engine has no pools beside pool 0
};

// A page of a storage operation. `slot`: target of a get, source of a set; else kNoSlot.
struct StoragePage {
  PageKey key;
  SlotId slot = kNoSlot;
};

// Consecutive pages of one chain in one storage tier (L3). The completion has the number of leading pages
// (Completion::pages) for which this is true:
//   look_up   the page is there now. A miss is no failure. With `needs`, the completion also has all usable lengths up
//             to that number (Completion::usable).
//   get       the page is in its slot and is what was stored under its key: the world has checked this.
//             Slots of other pages hold any bytes. Done if true for all pages.
//   set       the page is stored, or was there already. Done if true for all pages.
//   remove    the page will not be found any more. Done if true for all pages.
// Operations of one verb and tier end in the order of submission, except look-ups; a remove counts as a set here.
// A cancel does not stop pages that have begun to move, and ends the rest.
struct StorageOperation {
  StorageWork work;
  PageKey space;  // identity of the pages' KV (page_key.hpp); the store finds a page by space and key
  std::span<const StoragePage> pages;
  // Of get and set: the pool of the slots. 0, or 1 + index in EngineConfig::pools; then each key is one of
  // pool_page_key(), and an object by itself: a window of a page, or a state.
  std::size_t pool = 0;
  // Of look_up: what else must be there for a prefix to be usable.
  struct Need {
    std::size_t pool = 0;     // 1 + index in EngineConfig::pools
    Pages trailing = 1;       // objects of so many last pages of the prefix
    bool from_start = false;  // a prefix with fewer pages needs as many objects as it has; else it is not usable
  };
  std::span<const Need> needs = {};
};

// Returns the lengths in [1, pages] of the look-up's pages that are usable: has(pool, page) holds for all that they
// need. Ascending.
template <typename Has>
std::vector<Pages> usable_lengths(std::span<const StorageOperation::Need> needs, Pages pages, Has has) {
  std::vector<Pages> lengths;
  std::vector<Pages> run(needs.size(), 0);  // objects without a gap that end here
  for (Pages page = 0; page < pages; ++page) {
    bool usable = true;
    for (std::size_t at = 0; at < needs.size(); ++at) {
      run[at] = has(needs[at].pool, page) ? run[at] + 1 : 0;
      usable &= run[at] >= needs[at].trailing || (needs[at].from_start && run[at] == page + 1);
    }
    if (usable) lengths.push_back(page + 1);
  }
  return lengths;
}

// The lane where the operation queues. Look-ups do not queue, because an index answers them, not the medium.
constexpr Lane lane_of(const StorageWork& work) {
  const bool reads = work.verb == StorageVerb::look_up || work.verb == StorageVerb::get;
  if (work.memory == Tier::device) return reads ? Lane::direct_read : Lane::direct_write;
  return reads ? spec_of(work.tier).read : spec_of(work.tier).write;
}

// Writes pages of a request's prompt from this prefill engine's device slots (source) to slots that the decode engine
// `peer` has leased for the request (target); with them the KV of a draft model, if both engines have it in the same
// slots. One-sided: the decode engine takes no part. Done when the last byte of the last rank has landed. Starts after
// `pass`, or with `work.layer_groups` > 1 after each group of layers of `pass`. If the pass fails, ends gate_failed. On
// failure the targets hold any bytes. Operations of one request land in the order of submission. If one is not done,
// later ones of the request are not done either, until one begins at its first page or before. `last`: these are the
// last pages of the request that the decode engine lacks, and `parts` are its windows and states. If this operation is
// done on all ranks of this engine, the world gives the decode engine the notice `handed` when the pages have landed.
struct HandOverOperation {
  RequestId request = kNoRequest;
  std::uint32_t attempt = 0;
  std::uint32_t peer = 0;  // seat
  HandOverWork work;
  Pages first = 0;    // of the prompt; `pages` are the pages from here on
  Tokens tokens = 0;  // of the prompt, in `pages`; the last page may be partly full
  bool last = false;
  OperationId pass = OperationId::none;  // the pass in flight that computes some of the pages; none: all are computed
  std::span<const PageMove> pages;
  // Of each pool beside pool 0, in their order: the windows from first_window_page() on, or the state at the prompt's
  // end. Keys as in TransferOperation::Part.
  struct Part {
    std::size_t pool = 0;  // of EngineConfig::pools
    std::span<const PageMove> moves;
  };
  std::vector<Part> parts = {};
};

using Operation = std::variant<TransferOperation, ForwardOperation, StorageOperation, HandOverOperation>;

// Rank agreement: one vector per scheduler step. The elementwise minimum comes back. All ranks of an engine pass
// vectors of equal width.
constexpr std::size_t kHandOverReduceWidth = 3;  // the values that only an engine with a role has
constexpr std::size_t kMaxReduceWidth =
    8 + (4 + 2) * kStorageTiers + kHandOverReduceWidth;  // the largest of any configuration; see Engine

class ReduceVector {
 public:
  ReduceVector() = default;  // of no values
  explicit ReduceVector(std::size_t width) { resize(width); }
  ReduceVector(std::initializer_list<std::int64_t> values) : ReduceVector(values.size()) {
    std::copy(values.begin(), values.end(), begin());
  }
  void resize(std::size_t width) {
    KV_CHECK(width <= kMaxReduceWidth, "a reduction is no wider than any configuration needs");
    width_ = width;
  }

  std::size_t size() const { return width_; }
  std::int64_t* data() { return values_.data(); }
  const std::int64_t* data() const { return values_.data(); }
  std::int64_t& operator[](std::size_t at) { return values_[at]; }
  std::int64_t operator[](std::size_t at) const { return values_[at]; }
  std::int64_t* begin() { return data(); }
  std::int64_t* end() { return data() + width_; }
  const std::int64_t* begin() const { return data(); }
  const std::int64_t* end() const { return data() + width_; }
  friend bool operator==(const ReduceVector& a, const ReduceVector& b) { return std::ranges::equal(a, b); }

 private:
  std::array<std::int64_t, kMaxReduceWidth> values_{};  // zeros after the width
  std::size_t width_ = 0;
};

enum class NoticeKind : std::uint8_t {
  room,       // to the prefill engine: pages for the prompt are leased, and may be written
  cancel,     // to the prefill engine: the request is no longer wanted
  handed,     // to the decode engine: all pages have landed, and the first token has come
  withdrawn,  // to the decode engine: no more pages will be written
  peer_lost,  // to every engine, by the world: the engine `peer` is dead, and writes nothing any more
};

// A message of another engine about a request that both serve. Notices of one engine to another keep
// their order, except `handed`, which comes with the last byte. All ranks of an engine send the same notices in the
// same order, with the same slots, and each notice counts once. All ranks of an engine get the same notices in the same
// order, each rank at its own time, but after the arrival of the notice's request on that rank. The requests of a dead
// engine that are sent again arrive on each rank after its `peer_lost`.
struct Notice {
  NoticeKind kind = NoticeKind::room;
  RequestId request = kNoRequest;  // none with peer_lost
  std::uint32_t attempt = 0;
  std::uint32_t peer = 0;  // seat of the sender, which the world fills in; peer_lost: of the dead engine
  Pages first = 0;         // room: the decode engine has the pages before this one
  // Room: leased device slots of the pages from `first` to the end of the prompt; then of each pool beside pool 0 as
  // many as handed_slots() says.
  std::span<const SlotId> slots;
  // Room, for the world of the sender only: how many of the last slots are of each pool beside pool 0.
  std::span<const Pages> beside = {};
};

class Substrate {
 public:
  virtual ~Substrate() = default;
  virtual TimeNs now() const = 0;
  virtual OperationId submit(const Operation& operation) = 0;
  virtual OperationId call_at(TimeNs time) = 0;
  virtual OperationId reduce_min(const ReduceVector& values) = 0;
  // Requests a cancel. The operation's one completion (timer, reduction) still comes, with the part that was done.
  virtual void cancel(OperationId id) = 0;
  // Sends a notice to the engine in the seat `peer`. It has no id, and no completion.
  virtual void notify(std::uint32_t /*peer*/, const Notice&) { KV_CHECK(false, "this world has one engine"); }
};

// ---- inputs ------------------------------------------------------------------------------------------

// Which part of a request an engine serves. A split request arrives at a prefill engine (prefill) and in the same
// instant at a decode engine (decode).
enum class RequestPart : std::uint8_t { whole, prefill, decode };
constexpr std::string_view name_of(RequestPart part) {
  switch (part) {
    case RequestPart::whole: return "whole";
    case RequestPart::prefill: return "prefill";
    case RequestPart::decode: return "decode";
  }
  return "";
}

struct Arrival {
  RequestId request = kNoRequest;  // ordinal
  Tokens prompt_tokens = 0;        // >= 1
  Tokens output_tokens = 0;        // >= 1; always generated in full (like ignore_eos)
  std::int32_t priority = 0;       // larger matters more
  std::uint64_t session = 0;       // 0 = none
  // Keys of the prompt's full pages, then of as many output pages as the trace knows. Generated pages without a key get
  // one that is private to the request.
  std::span<const PageKey> keys;
  RequestPart part = RequestPart::whole;
  std::uint32_t peer = 0;     // of a part: seat of the engine that serves the other part
  std::uint32_t attempt = 0;  // larger if the request is sent again, because an engine has died
  Tokens system_tokens = 0;   // the prompt begins with a system prompt of this length; 0 = not known
};

enum class Status : std::uint8_t {
  done,
  cancelled,    // after a cancel; the part that was done counts
  failed,       // a transfer's target holds any bytes; a forward pass wrote nothing that counts
  gate_failed,  // a forward pass whose load failed; a hand-over whose pass failed
};

// Why a storage operation counts fewer pages than it was given.
enum class Cause : std::uint8_t {
  none,
  missing,      // not there
  corrupt,      // there, but other bytes than were stored: damage, a torn write, another page's bytes
  io_error,     // the medium reported an error, or returned too few bytes
  unreachable,  // no answer
  full,         // no room
  lease,        // a read outlasted the store's lease on the pages
};

std::string_view name_of(Cause cause);

struct Completion {
  OperationId id = OperationId::none;
  Status status = Status::done;
  Bytes bytes = 0;          // transfers, get, set, hand-overs: bytes moved, of all ranks together
  std::uint64_t steps = 0;  // forward passes: steps done
  TimeNs stalled_ns = 0;    // forward passes: time that the pass waited for gates
  Pages pages = 0;          // storage operations: the number of leading pages
  Cause cause = Cause::none;
  std::span<const Pages> usable = {};  // look-ups with needs: lengths in [1, pages] that are usable, ascending
};

struct TimerFired {
  OperationId id = OperationId::none;
};

struct Reduction {
  OperationId id = OperationId::none;
  ReduceVector values{};
};

struct Input {
  TimeNs now = 0;
  std::variant<Arrival, Hint, Completion, TimerFired, Reduction, Notice> what;
};

class InputHandler {
 public:
  virtual ~InputHandler() = default;
  virtual void handle(const Input& input) = 0;
};

// The source of a world's arrivals and hints, in order of time: a trace, a generator, a test.
class InputSource {
 public:
  virtual ~InputSource() = default;
  // Returns false at the end. `input` holds an Arrival or a Hint; its spans are valid until the next call.
  virtual bool next(Input& input) = 0;
};

}  // namespace kvtwin

// The only door between the policy and a world, simulated or real.
//
// The policy calls Substrate; the world calls InputHandler with one stream of inputs. One thread. Nothing
// ever completes inside a call: every submit, call_at and reduce_min is answered by exactly one later
// input that carries its OperationId, also after cancel. `now()` stands still while one input is handled.
// Inputs of equal time come in the order of their OperationIds; arrivals of that time come after them.
// A pass that counts completes after its gates have. policy/seam/contract.hpp checks all of this.
//
// Spans and pointers in an Operation or an Input are borrowed for the call: who needs them later copies.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <variant>

#include "policy/base/check.hpp"
#include "policy/base/types.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/hint.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

// One page of a transfer.
struct PageMove {
  PageKey key;
  SlotId source = kNoSlot;
  SlotId target = kNoSlot;
};

// One sequence of a forward pass. Page i of the sequence lies in device slot slots[i] and, once full, has
// key keys[i]; both cover context_tokens + new_tokens, the last page maybe in part. The pass reads the
// first context_tokens and writes the next new_tokens (of a decode burst: one a step, or with a draft model what its
// steps yield, which is at least that; a cancelled one has written what the steps done yield).
struct SequenceWork {
  RequestId request = kNoRequest;
  Tokens context_tokens = 0;
  Tokens new_tokens = 0;
  std::span<const SlotId> slots;
  std::span<const PageKey> keys;
};

// Pages of L2 to L1 or back. Done when the last byte of the last rank has landed. A draft model's pool beside the
// target's has its pages in the same slots: they move by `side`, in the same operation, or there is none of it.
struct TransferOperation {
  Lane lane = Lane::h2d;
  Plan plan;
  std::span<const PageMove> pages;
  Plan side = {};  // the same runs with the draft's shape; of no layers and no bytes where there is none

  bool has_side() const { return side.shape.layers != 0; }
  Bytes bytes() const { return plan.bytes + side.bytes; }  // of one rank
};

// A forward pass of `steps` steps over a batch: one for prefill, one or more for decode. Layer group i
// starts at max(end of group i - 1, arrival of its bytes by every gate). A cancel takes effect at the end
// of the step under way; the completion then reports the steps done.
struct ForwardOperation {
  ForwardShape shape;
  std::uint64_t steps = 1;
  std::span<const SequenceWork> sequences;
  std::span<const OperationId> gates;  // h2d transfers and gets into L1 submitted before
};

// A page of a storage operation. `slot`: where it goes to (get) or comes from (set); else kNoSlot.
struct StoragePage {
  PageKey key;
  SlotId slot = kNoSlot;
};

// Pages of one storage tier (L3), consecutive ones of one chain; the completion counts how many of the leading
// ones it is true for (Completion::pages):
//   look_up   they are there now. A miss is no failure.
//   get       they have landed in their slots and are what was stored under their keys: the world has checked.
//             The slots of the others hold anything. Done if all have.
//   set       they are stored, or were there already. Done if all are.
//   remove    they will not be found any more. Done if all are gone.
// Operations of one verb and tier end in the order in which they were submitted, look-ups apart; a remove takes
// its place among the sets. A cancel leaves alone what has begun to move, and ends the rest.
struct StorageOperation {
  StorageWork work;
  PageKey space;  // what the keys' pages are KV of (page_key.hpp); the store holds them under both
  std::span<const StoragePage> pages;
};

// Where it queues. Look-ups don't queue: they are answered by an index, not by the medium.
constexpr Lane lane_of(const StorageWork& work) {
  const bool reads = work.verb == StorageVerb::look_up || work.verb == StorageVerb::get;
  if (work.memory == Tier::device) return reads ? Lane::direct_read : Lane::direct_write;
  return reads ? spec_of(work.tier).read : spec_of(work.tier).write;
}

using Operation = std::variant<TransferOperation, ForwardOperation, StorageOperation>;

// Rank agreement: one fused vector per scheduler step, the elementwise minimum comes back. All ranks of an engine enter
// equally wide ones.
constexpr std::size_t kReduceWidthMost = 8 + 4 * kStorageTiers;  // of any configuration; see Engine

class ReduceVector {
 public:
  ReduceVector() = default;  // of no values
  explicit ReduceVector(std::size_t width) { resize(width); }
  ReduceVector(std::initializer_list<std::int64_t> values) : ReduceVector(values.size()) {
    std::copy(values.begin(), values.end(), begin());
  }
  void resize(std::size_t width) {
    KV_CHECK(width <= kReduceWidthMost, "a reduction is no wider than any configuration needs");
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
  std::array<std::int64_t, kReduceWidthMost> values_{};  // zeros behind the width
  std::size_t width_ = 0;
};

class Substrate {
 public:
  virtual ~Substrate() = default;
  virtual TimeNs now() const = 0;
  virtual OperationId submit(const Operation& operation) = 0;
  virtual OperationId call_at(TimeNs time) = 0;
  virtual OperationId reduce_min(const ReduceVector& values) = 0;
  // A request: the operation's one completion (timer, reduction) still comes, with what was done by then.
  virtual void cancel(OperationId id) = 0;
};

// ---- inputs ------------------------------------------------------------------------------------------

struct Arrival {
  RequestId request = kNoRequest;  // ordinal
  Tokens prompt_tokens = 0;        // >= 1
  Tokens output_tokens = 0;        // >= 1; served in full (the field's ignore_eos)
  std::int32_t priority = 0;       // larger matters more
  std::uint64_t session = 0;       // 0 = none
  // Keys of the prompt's full pages, then of as many output pages as the trace knows. Generated pages
  // without a key get one private to the request.
  std::span<const PageKey> keys;
};

enum class Status : std::uint8_t {
  done,
  cancelled,    // after cancel; what was done by then counts
  failed,       // a transfer's target holds anything; a forward pass wrote nothing that counts
  gate_failed,  // a forward pass whose load failed
};

// Why a storage operation counts fewer pages than it was given.
enum class Cause : std::uint8_t {
  none,
  missing,      // not there
  corrupt,      // there, but not what was stored: damage, a torn write, another page's bytes
  io_error,     // the medium said so, or gave less than asked
  unreachable,  // nobody answers
  full,         // no room
};

std::string_view name_of(Cause cause);

struct Completion {
  OperationId id = OperationId::none;
  Status status = Status::done;
  Bytes bytes = 0;          // transfers, get, set: moved, of all ranks together
  std::uint64_t steps = 0;  // forward passes: steps done
  TimeNs stalled_ns = 0;    // forward passes: part of the duration spent waiting for gates
  Pages pages = 0;          // storage operations: how many of the leading ones
  Cause cause = Cause::none;
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
  std::variant<Arrival, Hint, Completion, TimerFired, Reduction> what;
};

class InputHandler {
 public:
  virtual ~InputHandler() = default;
  virtual void handle(const Input& input) = 0;
};

// Where a world gets its arrivals and hints from, in order of time (a trace, a generator, a test).
class InputSource {
 public:
  virtual ~InputSource() = default;
  // False at the end. `input` holds an Arrival or a Hint; its spans live until the next call.
  virtual bool next(Input& input) = 0;
};

}  // namespace kvtwin

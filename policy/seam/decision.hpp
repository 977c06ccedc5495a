// The policy's decisions in order, and the 64-bit digest over them. Two runs with equal digests made the same
// decisions. A decision has no times, slots or pointers, so that runs of different worlds and machines can be compared.
#pragma once

#include <cstdint>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

enum class DecisionKind : std::uint8_t {
  admit,  // pages: of the reused prefix
  reject,
  prefill,       // pages: KV pages after the chunk
  load_back,     // pages loaded from L2
  backup,        // pages written to L2
  evict_device,  // key: of the first page that leaves
  evict_host,
  retract,
  finish,
  store,          // pages written to the first storage tier
  store_next,     // to the second
  evict_storage,  // pages removed from a storage tier that the engine owns
  prefetch,       // pages requested; with a reason: declined
  fetch,          // pages to fetch from L3, a part of the hit
  revoke,         // a prefetch that ends without a fetch; pages of the hit
  stop,           // a prefetch that takes too long; pages that have arrived
  commit,         // pages that a prefetch has brought to L2
  load_direct,    // pages loaded from L3 to L1
  abort,
  release,    // a waiting request gives its loaded prefix back; pages of the prefix
  expect,     // decode engine: leases the pages of a prompt that a prefill engine will write; pages leased
  receive,    // decode engine: all pages have landed; pages of the prompt
  fall_back,  // decode engine: computes the prompt itself, with the reason
  hand_over,  // prefill engine: all pages have landed; pages written
  withdraw,   // prefill engine: ends its part without a hand-over
  hold,       // a session's pages are evicted last from now on; key: of the last page; pages on L1 and L2 that become
              // held; with a reason: refused
  unhold,     // no longer; pages on L1 and L2 that are no longer held
};

enum class Reason : std::uint8_t {
  none,
  too_long,         // reject: prompt and output do not fit into L1
  queue_full,       // reject
  capacity,         // eviction to make room; a backup or load without room
  below_threshold,  // a load-back that is too short
  quota,            // of a load-back; of the states on a path
  demoted,          // evicted from L1, copy kept in L2
  lost,             // evicted without a copy
  transfer_failed,
  chunk,          // a prefill that leaves a part of the prompt for later
  retry,          // a failed backup is tried again
  shadowed,       // evicted from L2, copy kept in L1
  host_pressure,  // lost although write-back was to save it: L2 had no room
  backlog,        // not stored: too many pages are being written
  too_short,      // not prefetched
  rate_limited,   // not prefetched: prefetches already take too much of L2
  not_backed_up,  // not prefetched or not kept: the page above is not on L2
  miss,           // revoked: L3 has none of the pages
  stopped,        // revoked: the request did not wait
  aborted,
  anchor_lost,  // prefetched and not kept: the page above has gone
  duplicate,    // prefetched and not kept: another request has computed or fetched the page meanwhile
  too_slow,     // not prefetched or not loaded: computing is faster
  peer_lost,    // the engine of the other part is dead
  withdrawn,    // the prefill engine has given the request up
  expired,      // of a hold: its time is over
};

struct Decision {
  DecisionKind kind = DecisionKind::admit;
  Reason reason = Reason::none;
  RequestId request = kNoRequest;
  PageKey key;
  Pages pages = 0;
  std::uint8_t pool = 0;  // of evictions: 1 + the number of a pool beside pool 0; pages: its slots
};

std::string_view name_of(DecisionKind kind);
std::string_view name_of(Reason reason);

class DecisionSink {
 public:
  virtual ~DecisionSink() = default;
  virtual void decided(const Decision& decision) = 0;
};

// Counts the decisions and computes the digest. Passes each decision on to `next`, if there is one.
class DecisionLog {
 public:
  explicit DecisionLog(DecisionSink* next = nullptr) : next_(next) {}
  void add(const Decision& decision);
  std::uint64_t count() const { return count_; }
  std::uint64_t digest() const { return digest_; }

 private:
  DecisionSink* next_;
  std::uint64_t count_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace kvtwin

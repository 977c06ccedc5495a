// What the policy decided, in order, and the 64-bit digest over it. Two runs with equal digests made the
// same decisions. No times, slots or pointers in a decision, so that worlds and machines can be compared.
#pragma once

#include <cstdint>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

enum class DecisionKind : std::uint8_t {
  admit,  // pages: of the prefix that is reused
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
  evict_storage,  // pages removed from a storage tier of ours
  prefetch,       // pages asked for; a reason: declined
  fetch,          // pages fetched from L3, of the hit
  revoke,         // a prefetch that ends without a fetch; pages of the hit
  stop,           // a prefetch that takes too long; pages that have arrived
  commit,         // pages that a prefetch has brought to L2
  load_direct,    // pages loaded from L3 to L1
  abort,
};

enum class Reason : std::uint8_t {
  none,
  too_long,         // reject: prompt and output don't fit L1
  queue_full,       // reject
  capacity,         // eviction to make room; a backup or load without room
  below_threshold,  // a load-back not worth it
  quota,
  demoted,  // evicted from L1, copy kept in L2
  lost,     // evicted without a copy left
  transfer_failed,
  chunk,          // a prefill that leaves prompt to do
  retry,          // a backup that failed, once more
  shadowed,       // evicted from L2, copy kept in L1
  host_pressure,  // lost, though to be written back: L2 had no room
  backlog,        // not stored: too much is being written already
  too_short,      // not prefetched
  rate_limited,   // not prefetched: too much of L2 is taken by prefetches
  not_backed_up,  // not prefetched, or not kept: what lies above it isn't on L2
  miss,           // revoked: L3 has none of it
  stopped,        // revoked: the request didn't wait
  aborted,
  anchor_lost,  // prefetched and not kept: what lies above it has gone
  duplicate,    // prefetched and not kept: computed or fetched by another request meanwhile
  too_slow,     // not prefetched, or not loaded: computing it is faster
};

struct Decision {
  DecisionKind kind = DecisionKind::admit;
  Reason reason = Reason::none;
  RequestId request = kNoRequest;
  PageKey key;
  Pages pages = 0;
};

std::string_view name_of(DecisionKind kind);
std::string_view name_of(Reason reason);

class DecisionSink {
 public:
  virtual ~DecisionSink() = default;
  virtual void decided(const Decision& decision) = 0;
};

// Counts and digests; passes each decision on to `next` if there is one.
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

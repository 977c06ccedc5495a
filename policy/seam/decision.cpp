#include "policy/seam/decision.hpp"

#include <xxhash.h>

#include <array>
#include <cstddef>

#include "policy/base/byte_order.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

std::string_view name_of(DecisionKind kind) {
  switch (kind) {
    case DecisionKind::admit: return "admit";
    case DecisionKind::reject: return "reject";
    case DecisionKind::prefill: return "prefill";
    case DecisionKind::load_back: return "load_back";
    case DecisionKind::backup: return "backup";
    case DecisionKind::evict_device: return "evict_device";
    case DecisionKind::evict_host: return "evict_host";
    case DecisionKind::retract: return "retract";
    case DecisionKind::finish: return "finish";
    case DecisionKind::store: return "store";
    case DecisionKind::store_next: return "store_next";
    case DecisionKind::evict_storage: return "evict_storage";
    case DecisionKind::prefetch: return "prefetch";
    case DecisionKind::fetch: return "fetch";
    case DecisionKind::revoke: return "revoke";
    case DecisionKind::stop: return "stop";
    case DecisionKind::commit: return "commit";
    case DecisionKind::load_direct: return "load_direct";
    case DecisionKind::abort: return "abort";
    case DecisionKind::release: return "release";
    case DecisionKind::expect: return "expect";
    case DecisionKind::receive: return "receive";
    case DecisionKind::fall_back: return "fall_back";
    case DecisionKind::hand_over: return "hand_over";
    case DecisionKind::withdraw: return "withdraw";
    case DecisionKind::hold: return "hold";
    case DecisionKind::unhold: return "unhold";
  }
  return "unknown";
}

std::string_view name_of(Reason reason) {
  switch (reason) {
    case Reason::none: return "none";
    case Reason::too_long: return "too_long";
    case Reason::queue_full: return "queue_full";
    case Reason::capacity: return "capacity";
    case Reason::below_threshold: return "below_threshold";
    case Reason::quota: return "quota";
    case Reason::demoted: return "demoted";
    case Reason::lost: return "lost";
    case Reason::transfer_failed: return "transfer_failed";
    case Reason::chunk: return "chunk";
    case Reason::retry: return "retry";
    case Reason::shadowed: return "shadowed";
    case Reason::host_pressure: return "host_pressure";
    case Reason::backlog: return "backlog";
    case Reason::too_short: return "too_short";
    case Reason::rate_limited: return "rate_limited";
    case Reason::not_backed_up: return "not_backed_up";
    case Reason::miss: return "miss";
    case Reason::stopped: return "stopped";
    case Reason::aborted: return "aborted";
    case Reason::anchor_lost: return "anchor_lost";
    case Reason::duplicate: return "duplicate";
    case Reason::too_slow: return "too_slow";
    case Reason::peer_lost: return "peer_lost";
    case Reason::withdrawn: return "withdrawn";
    case Reason::expired: return "expired";
  }
  return "unknown";
}

std::string_view name_of(Cause cause) {
  switch (cause) {
    case Cause::none: return "none";
    case Cause::missing: return "missing";
    case Cause::corrupt: return "corrupt";
    case Cause::io_error: return "io_error";
    case Cause::unreachable: return "unreachable";
    case Cause::full: return "full";
    case Cause::lease: return "lease";
  }
  return "unknown";
}

// The format is fixed, because digests of other versions and machines are compared.
// kind, reason, pool, 5 zero bytes, request, key (4 words), pages; words are little-endian.
void DecisionLog::add(const Decision& decision) {
  std::array<std::byte, 56> record{};
  record[0] = static_cast<std::byte>(decision.kind);
  record[1] = static_cast<std::byte>(decision.reason);
  record[2] = static_cast<std::byte>(decision.pool);
  std::byte* to = store_le64(record.data() + 8, decision.request);
  for (const std::uint64_t word : decision.key.words) to = store_le64(to, word);
  store_le64(to, decision.pages);
  digest_ = XXH3_64bits_withSeed(record.data(), record.size(), digest_);
  ++count_;
  if (next_ != nullptr) next_->decided(decision);
}

}  // namespace kvtwin

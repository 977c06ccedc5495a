// Hints from outside about a session or a request. The scheduler handles an abort. All other hints go to the eviction
// policies, which need not believe them, and with EngineConfig::hints to the cache (policy/cache/holds.hpp), which
// obeys them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvtwin {

enum class HintKind : std::uint8_t {
  session_end,        // no further request of the session is expected
  tool_call_pending,  // the session's next request comes when a tool has answered
  pin,                // keep the pages that the session used last: for `value` ms, or if 0, until unpin
  unpin,
  abort,     // subject: a request whose client has gone; its results are no longer wanted
  demote,    // the pages that the session used last leave L1 now, if L2 has them
  prefetch,  // the pages that the session used last are wanted on L2 now
  share,     // other sessions will use the pages that the session used last: keep them for `value` ms, or if 0, until
             // the last session that uses them has ended; and write them to the storage tiers, for other engines
};
constexpr std::size_t kHintKinds = 8;

constexpr std::string_view name_of(HintKind kind) {
  constexpr std::string_view kNames[kHintKinds] = {"session_end", "tool_call_pending", "pin",  "unpin", "abort",
                                                   "demote",      "prefetch",          "share"};
  return kNames[static_cast<std::size_t>(kind)];
}

struct Hint {
  HintKind kind = HintKind::session_end;
  std::uint64_t subject = 0;  // a session; of an abort: a request
  std::int64_t value = 0;
};

}  // namespace kvtwin

// Hints from outside about a session or a request. The scheduler handles an abort. All other hints go to the eviction
// policies, which need not believe them.
#pragma once

#include <cstdint>

namespace kvtwin {

enum class HintKind : std::uint8_t {
  session_end,        // no further request of the session is expected
  tool_call_pending,  // the session's next request comes when a tool has answered
  pin,                // keep the pages that the session used last: for `value` ms, or if 0, until unpin
  unpin,
  abort,  // subject: a request whose client has gone; its results are no longer wanted
};

struct Hint {
  HintKind kind = HintKind::session_end;
  std::uint64_t subject = 0;  // a session; of an abort: a request
  std::int64_t value = 0;
};

}  // namespace kvtwin

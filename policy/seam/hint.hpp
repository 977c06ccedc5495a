// What somebody outside says of a session or a request. An abort is a matter of the scheduler's; the others are for the
// eviction policies, which need not believe them.
#pragma once

#include <cstdint>

namespace kvtwin {

enum class HintKind : std::uint8_t {
  session_end,        // nothing more is expected of the session
  tool_call_pending,  // its next request comes when a tool has answered
  pin,                // keep what it used last; for `value` ms, 0: until unpin
  unpin,
  abort,  // subject: a request whose client has gone; what it was to compute is no longer wanted
};

struct Hint {
  HintKind kind = HintKind::session_end;
  std::uint64_t subject = 0;  // a session (of an abort: a request)
  std::int64_t value = 0;
};

}  // namespace kvtwin

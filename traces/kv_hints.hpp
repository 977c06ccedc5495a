// The envelope `kv_hints` that routers attach to a request (SGLang, vLLM), as hints about the request's session:
//   {"protocol_version": V, "message_id": M, "actions": [{"action_id": A, "action_type": T, "action_version": V,
//    "payload": {...}}]}
// or the same as the text of a Python object, as SGLang's request log has it. Neither engine defines a type; T is one
// of ours, with or without "kv." in front: session_end, tool_call_pending, pin, retain (a pin), unpin, demote,
// prefetch, share. The time of a pin or a share is the payload's `value` or `ttl_ms` in milliseconds, or `ttl_s` in
// seconds; without one, it has no limit. Actions of other types, and with times that are no number from 0 on, are
// counted by their names.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/seam/hint.hpp"
#include "traces/fields.hpp"

namespace kvtwin {

class KvHints {
 public:
  // Returns the hints of an envelope about `session` (0: none, then there are no hints). Returns false, and does
  // nothing, if the value is no envelope.
  bool read(const JsonValue& envelope, std::uint64_t session, std::vector<Hint>& hints);
  void add_notes(std::vector<std::string>& notes) const;

 private:
  static constexpr std::size_t kMaxNames = 100;  // further unknown types count as "others"

  void add(std::string_view type, std::optional<std::int64_t> milliseconds, std::uint64_t session,
           std::vector<Hint>& hints);
  bool read_text(std::string_view text, std::uint64_t session, std::vector<Hint>& hints);

  std::map<std::string, std::uint64_t> unknown_;
  std::uint64_t taken_ = 0, without_session_ = 0;
};

}  // namespace kvtwin

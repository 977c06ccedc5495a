// What a server's /metrics page counts: requests, prompt tokens and those of them that hit, and tokens of answers.
// vLLM's and SGLang's names.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

struct ServerCounters {
  TimeNs time = 0;
  std::optional<Tokens> looked_up;  // prompt tokens; absent: the page has no such counter
  Tokens device_hits = 0, host_hits = 0, storage_hits = 0;
  std::uint64_t requests = 0;
  Tokens answer_tokens = 0;
  std::optional<Tokens> device_tokens;  // size of L1, if the page tells it

  Tokens hits() const { return device_hits + host_hits + storage_hits; }
};

// Reads a page in Prometheus' text form. Lines of other names, and lines that are none, are passed over. Counters of
// several engines behind one page are added.
ServerCounters parse_server_counters(std::string_view page, TimeNs time);

}  // namespace kvtwin

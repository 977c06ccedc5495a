// What a trace holds, in one pass.
//
// A block is (its parent, its id). Ideal hits are those of an infinite cache that serves one request after another in
// file order: the longest prefix of blocks that any earlier request had. A block counts block_tokens tokens, a
// request's last one what is left of its input. Counts are exact; percentiles are nearest-rank (the smallest value
// that at least p percent of the requests don't exceed). Tenants never share blocks.
//
// Memory: 32 to 64 bytes a distinct block (half as much again while growing), 8 bytes a request, 8 to 16 bytes a
// session.
#pragma once

#include <cstdint>
#include <string>

#include "policy/base/types.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct LengthStatistics {  // tokens
  double mean = 0.0;
  Tokens min = 0, p1 = 0, p10 = 0, p25 = 0, p50 = 0, p75 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
  std::uint64_t total = 0;
};

struct TraceInfo {
  std::uint64_t requests = 0, hints = 0;
  TimeNs first_ns = 0, last_ns = 0;  // arrivals of the first and last request
  double duration_seconds = 0.0;     // between them
  double requests_per_second = 0.0;  // requests / duration; 0 when the duration is 0
  LengthStatistics input, output;
  Tokens block_tokens = 0;
  std::uint64_t blocks = 0;  // look-ups: the requests' blocks added up
  std::uint64_t unique_blocks = 0;
  std::uint64_t blocks_used_once = 0;
  std::uint64_t ideal_hit_blocks = 0, ideal_hit_tokens = 0;
  double ideal_block_hit_ratio = 0.0, ideal_token_hit_ratio = 0.0;
  double mean_request_hit_fraction = 0.0;  // of a request's blocks
  std::uint64_t zero_hit_requests = 0;
  std::uint64_t sessions = 0;  // distinct ones; 0 when the trace names none
  std::uint64_t requests_with_session = 0;
  std::uint64_t tenants = 0;  // distinct ones, the default one included
};

// Reads the trace to its end; `limit` requests at most, 0 = all. TraceError as the trace's, and beyond 2^32 blocks.
TraceInfo trace_info(TraceSource& trace, std::uint64_t limit = 0);

// A table for people, lines ending in '\n'.
std::string trace_info_text(const TraceInfo& info);
// One JSON object on one line, keys as the fields above, no '\n'.
std::string trace_info_json(const TraceInfo& info);

}  // namespace kvtwin

// Computes statistics of a trace in one pass.
//
// Two blocks are equal if they have the same id and the same parent. Ideal hits are the hits of an infinite cache that
// serves the requests one after another in file order: the longest prefix of blocks that an earlier request had. A
// block counts as block_tokens tokens; the last block of a request counts as the rest of the input. All counts are
// exact. Percentiles are nearest-rank: the smallest value that at least p percent of the requests do not exceed.
// Tenants never share blocks.
//
// A request continues a conversation if its session has an earlier request. A request without a session continues one
// if its last hit block is not common. A block is common if it is in at least 1 % of all requests, and in at least 50.
//
// Memory: 44 to 76 bytes per distinct block (1.5 times as much while the table grows), 32 bytes per request, 16 to 32
// bytes per session.
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

// The figures of workload.generate.* with kind = sessions that describe this trace (SessionsConfig). A conversation
// that began before the trace counts as one that begins in the trace.
struct TraceAverages {
  double requests_per_second = 0.0;
  double prompt_tokens = 0.0, output_tokens = 0.0;
  double turns = 0.0;          // requests / requests that begin a conversation
  double think_s = 0.0;        // mean time from a request to the follow-up, minus service_s; 0 without follow-ups
  double prefix_tokens = 0.0;  // mean hit tokens of the requests that begin a conversation
  double length_spread = 0.0;  // of the new tokens of the requests that begin a conversation, from mean and median
  // The log-normal distribution with a least value (service_s) that has p10, p50 and p90 of the measured gaps.
  double think_spread = 0.0;
  double service_s = 0.0;
};

struct TraceInfo {
  std::uint64_t requests = 0, hints = 0;
  TimeNs first_ns = 0, last_ns = 0;  // arrivals of the first and last request
  double duration_seconds = 0.0;     // from first_ns to last_ns
  double requests_per_second = 0.0;  // requests / duration; 0 when the duration is 0
  LengthStatistics input, output;
  Tokens block_tokens = 0;
  std::uint64_t blocks = 0;  // sum over all requests: the number of look-ups
  std::uint64_t unique_blocks = 0;
  std::uint64_t blocks_used_once = 0;
  std::uint64_t ideal_hit_blocks = 0, ideal_hit_tokens = 0;
  double ideal_block_hit_ratio = 0.0, ideal_token_hit_ratio = 0.0;
  double mean_request_hit_fraction = 0.0;  // mean over requests of hit blocks / blocks
  std::uint64_t zero_hit_requests = 0;
  std::uint64_t sessions = 0;  // distinct sessions; 0 if the trace names none
  std::uint64_t requests_with_session = 0;
  std::uint64_t tenants = 0;  // distinct tenants, including the default tenant
  TraceAverages averages;     // all 0 for an empty trace
};

// Reads at most `limit` requests of the trace; 0 = all. Errors: TraceError of the trace, and for more than 2^32
// distinct blocks.
TraceInfo trace_info(TraceSource& trace, std::uint64_t limit = 0);

// Returns a table for people. Every line ends with '\n'.
std::string trace_info_text(const TraceInfo& info);
// Returns one JSON object on one line, without '\n'. The keys are the names of the fields above.
std::string trace_info_json(const TraceInfo& info);

}  // namespace kvtwin

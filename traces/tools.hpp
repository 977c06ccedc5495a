// Requests of applications and tools, shaped after published figures of Mooncake's tool-and-agent trace (6.67
// requests/s, 8.6k input tokens a request): three applications, two that ask single questions behind a long fixed head
// of 12 or 5 blocks, sent by bursty clients, and one that chats behind a head of one block. Same configuration, same
// bytes, on every machine.
//
// Memory: the chats under way, never the trace.
#pragma once

#include <cstdint>

#include "policy/base/types.hpp"
#include "traces/arrivals.hpp"
#include "traces/generate.hpp"
#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct ToolsConfig {
  std::uint64_t seed = 1;
  std::uint64_t requests = 0;              // ends after so many; 0 = no limit
  TimeNs duration = 3'600 * kNsPerSecond;  // ends before this time; 0 = no limit
  double requests_per_second = 6.67;       // of all together; 1e-3 .. 1e6
};

class ToolsGenerator final : public TraceSource {
 public:
  // TraceError on a figure out of range.
  explicit ToolsGenerator(const ToolsConfig& config);

  // Chats have a session and a turn, both from 1; the type is the application, from 1.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return chats_.block_tokens(); }
  double fraction_read() const override;

 private:
  void single(TraceRequest& request);

  ToolsConfig config_;
  ChatGenerator chats_;
  TraceRequest chat_;  // the next one
  bool has_chat_ = false;
  ClientArrivals arrivals_;
  Random random_;
  std::uint64_t emitted_ = 0, next_private_ = 0;
};

}  // namespace kvtwin

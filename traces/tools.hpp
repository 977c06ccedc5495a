// Generates the requests of applications and tools, with the published statistics of Mooncake's tool-and-agent trace
// (6.67 requests/s, 8.6k input tokens per request).
//
// There are three applications. Two applications send single questions after a long fixed head of 12 or 5 blocks, from
// bursty clients. The third application is a chat with a head of one block. The same configuration generates the same
// bytes on every machine.
//
// Memory: the live chats, never the whole trace.
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
  std::uint64_t requests = 0;              // number of requests in the trace; 0 = no limit
  TimeNs duration = 3'600 * kNsPerSecond;  // every request arrives before this time; 0 = no limit
  double requests_per_second = 6.67;       // of all applications together; 1e-3 .. 1e6
};

class ToolsGenerator final : public TraceSource {
 public:
  // Errors: FigureError (a TraceError) if a value of `config` is out of range.
  explicit ToolsGenerator(const ToolsConfig& config);

  // Chats have a session and a turn, both counted from 1. The type is the number of the application, counted from 1.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return chats_.block_tokens(); }
  double fraction_read() const override;

 private:
  void single(TraceRequest& request);

  ToolsConfig config_;
  ChatGenerator chats_;
  TraceRequest chat_;  // the next chat request, if has_chat_
  bool has_chat_ = false;
  ClientArrivals arrivals_;
  Random random_;
  std::uint64_t emitted_ = 0, next_private_ = 0;
};

}  // namespace kvtwin

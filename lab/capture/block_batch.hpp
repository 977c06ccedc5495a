// Reads a message of KV events (kv_events.hpp) into block events, without the text of a recording in between. The ids
// are those that the recording of the same message gives (traces/block_events.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "traces/block_events.hpp"
#include "traces/passed_over.hpp"

namespace kvtwin {

class BlockBatch {
 public:
  // Reads a payload. Returns why it is no batch; nothing if it is one. Any bytes are allowed. Memory: 8 bytes per hash
  // that the payload holds, and 150 per event.
  std::string read(std::span<const std::uint8_t> payload);

  // The events of the last payload; none if it was no batch. Valid until the next call of read(), and as long as the
  // payload.
  std::span<const BlockEvent> events() const { return events_; }
  // Keys that were not read, so far.
  const PassedOver& passed_over() const { return passed_over_; }

 private:
  std::vector<BlockEvent> events_;
  std::vector<std::uint64_t> hashes_;
  PassedOver passed_over_;
};

}  // namespace kvtwin

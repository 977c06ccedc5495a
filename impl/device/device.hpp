// What stands behind the real world's event loop: GPU memory with its copy engines and its compute stream, or
// what takes their place. Carries out operations in threads or streams of its own and answers each by exactly one
// Finished on the queue, a pass after its gates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "impl/runtime/completion_queue.hpp"
#include "impl/storage/page_memory.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// A page in which a byte was read that its key doesn't make.
struct WrongPage {
  // host: a page that was loaded, and its host copy is wrong too; it went wrong there, or before it was backed up.
  Tier tier = Tier::device;
  PageKey key;
  SlotId slot = kNoSlot;                                    // in that tier
  std::uint32_t layer = 0, plane = 0, token = 0, byte = 0;  // token within the page, byte within its row
  std::uint8_t expected = 0, got = 0;
  std::string found;  // by whom, for people
};

// What the device has checked. A page read in several steps counts in each.
struct Verification {
  std::uint64_t pages_read = 0;  // by passes
  Bytes bytes_read = 0;
  std::uint64_t pages_audited = 0;  // at the run's end: what was last written to each slot, partial pages too
  Bytes bytes_audited = 0;
  std::uint64_t wrong_reads = 0;  // by passes and the audit
  std::vector<WrongPage> wrong;   // the first 16 of them
  bool flipped = false;           // the bit of a test, if one was asked for
};

class Device {
 public:
  virtual ~Device() = default;

  // Threads begin; both outlive the device. May throw, and then leaves nothing behind.
  virtual void start(CompletionQueue& queue, const RunClock& clock) = 0;
  // Transfers and passes. Copies what it needs of the operation.
  virtual void submit(OperationId id, const Operation& operation) = 0;
  // A get into L1, which another carries out by memory(), may gate passes from now on ...
  virtual void expect(OperationId get) = 0;
  // ... and has been answered; called by any thread. `done`: its pages lie in their slots.
  virtual void landed(OperationId get, bool done) = 0;
  // For storage tiers. Lives as long as the device.
  virtual PageMemory& memory() = 0;
  // A request: the completion still comes.
  virtual void cancel(OperationId id) = 0;
  // The event loop has taken this operation's completion.
  virtual void retire(OperationId id) = 0;
  // Everything has been answered: threads end, what lies in the pools is audited.
  virtual Verification finish() = 0;
  // After finish(): what wasn't as it should be though the run went on, a sentence each.
  virtual std::vector<std::string> notes() const = 0;
};

}  // namespace kvtwin

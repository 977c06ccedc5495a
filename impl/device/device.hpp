// The interface behind the real world's event loop: GPU memory with copy engines and a compute stream, or a replacement
// without a GPU.
//
// A device executes operations in threads or streams of its own. Each operation is answered by exactly one Finished in
// the queue. A pass is answered after its gates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "impl/runtime/completion_queue.hpp"
#include "impl/storage/page_memory.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// A page with a byte that differs from the bytes that the page key generates.
struct WrongPage {
  // host: the page was loaded, and its host copy is wrong too. So the fault happened on the host, or before the backup.
  Tier tier = Tier::device;
  PageKey key;
  SlotId slot = kNoSlot;                                    // slot in that tier
  std::uint32_t layer = 0, plane = 0, token = 0, byte = 0;  // token within the page, byte within the token's row
  std::uint8_t expected = 0, got = 0;
  std::string found;  // for the user: the reader that found the fault
};

// The result of the device's checks. A page that several steps read counts once per step.
struct Verification {
  std::uint64_t pages_read = 0;  // by passes
  Bytes bytes_read = 0;
  Bytes bytes_checked = 0;          // of them, compared with their page keys; the others were only read
  std::uint64_t pages_audited = 0;  // at the end of the run: last content of each slot, partial pages too
  Bytes bytes_audited = 0;
  // Of these, in the draft model's pool beside the target's.
  std::uint64_t draft_pages_read = 0, draft_pages_audited = 0;
  Bytes draft_bytes_read = 0, draft_bytes_checked = 0, draft_bytes_audited = 0;
  // Pages of the context that the draft model did not read, because they came back to the device without its KV.
  std::uint64_t draft_pages_left_out = 0;
  // Of these, windows, and states, each of which counts as a page.
  struct Part {
    std::uint64_t read = 0, audited = 0;
    Bytes bytes_read = 0, bytes_checked = 0, bytes_audited = 0;
    Part& operator+=(const Part& other) {
      read += other.read;
      audited += other.audited;
      bytes_read += other.bytes_read;
      bytes_checked += other.bytes_checked;
      bytes_audited += other.bytes_audited;
      return *this;
    }
  } windows, states;
  std::uint64_t states_copied = 0;  // cached ones, within the device, for a request that continues from them
  std::uint64_t wrong_reads = 0;    // by passes and the audit
  std::vector<WrongPage> wrong;     // the first 16
  bool flipped = false;             // the bit of a test was flipped, if requested
};

// A device pool as memory of this process, in the layout layer_first. The memory exists as long as `owner`.
struct DevicePool {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> owner;
  KvShape shape;          // of a slot
  Pages pages = 0;        // slots
  std::size_t slots = 0;  // which slots: 0, or 1 + index in EngineConfig::pools. A draft model's pool has those of 0
};

class Device {
 public:
  virtual ~Device() = default;

  // Starts the threads. `queue` and `clock` outlive the device. Errors: may throw, and then leaves nothing behind.
  virtual void start(CompletionQueue& queue, const RunClock& clock) = 0;
  // Submits a transfer or a pass. Copies the operation as needed.
  virtual void submit(OperationId id, const Operation& operation) = 0;
  // Announces a get into L1 that a storage tier executes through memory() and draft_memory(). From now on, the get can
  // gate passes.
  virtual void announce_get(OperationId get, const StorageOperation& operation) = 0;
  // The get has been answered. `done`: its pages are in their slots. Thread: any thread.
  virtual void landed(OperationId get, bool done) = 0;
  // Returns the memory for storage tiers. Valid as long as the device.
  virtual PageMemory& memory() = 0;
  // The same for the draft model's pool; null if there is none, or if its KV stays on the device.
  virtual PageMemory* draft_memory() { return nullptr; }
  // The same for a pool beside pool 0, by its number from 1 on. Its keys are those of pool_page_key().
  // Requires: the pool is there.
  virtual PageMemory& pool_memory(std::size_t pool) = 0;
  // Returns the device pools, for one-sided writes of other processes: first that of full attention. Empty if they are
  // no memory of this process.
  virtual std::vector<DevicePool> pools() { return {}; }
  // Another engine may write into these slots from now on: first of pages, then of each pool of EngineConfig::pools as
  // many as `beside` says. A pass that reads them names their keys.
  virtual void expect_pages(std::span<const SlotId> slots, std::span<const Pages> beside) = 0;
  // Requests an early end. The operation is still answered.
  virtual void cancel(OperationId id) = 0;
  // The event loop has taken this operation's completion.
  virtual void retire(OperationId id) = 0;
  // Ends the threads, checks the content of the pools, and returns the result. Requires: all operations are answered.
  virtual Verification finish() = 0;
  // Returns problems that did not end the run, one sentence each. Requires: finish() has returned.
  virtual std::vector<std::string> notes() const = 0;
};

}  // namespace kvtwin

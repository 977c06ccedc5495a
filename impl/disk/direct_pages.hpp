// A way from files into L1 slots without host memory. Reads go into staging buffers in GPU memory. The GPU copies each
// page from there into its slot and computes its checksum. The CPU sees only the header block of each slot.
//
// One object per device. Thread: one at a time, the reader of the disk tier.
// Errors: only queue() throws. Each other call reports failure by its result, and the reader then reads through host
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "impl/disk/files.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class DirectPages {
 public:
  virtual ~DirectPages() = default;

  // Returns the number of staging buffers. Each has slot_bytes(form) bytes (slot_format.hpp): header block, then
  // payload.
  virtual std::uint32_t buffers() const = 0;
  // Returns a queue that reads into the staging buffers. Requires: no call of the queue's buffer(), because the CPU
  // cannot reach GPU memory; one queue at a time. Ownership: the queue is destroyed before this object; its files may
  // live longer.
  // Errors: an operation ends with -EOPNOTSUPP if the file cannot be read this way. std::runtime_error,
  // std::system_error if there is no such queue.
  virtual std::unique_ptr<BlockQueue> queue() = 0;

  // Copies the header blocks of `buffers`, one after another, into `blocks`. Returns false on failure.
  virtual bool read_headers(std::span<const std::uint32_t> buffers, std::span<std::byte> blocks) = 0;

  struct Landing {
    std::uint32_t buffer = 0;  // in
    SlotId slot = kNoSlot;
    PageKey key;
    std::uint64_t sum = 0;  // out: page_checksum (kernels/page_checksum.hpp) of the content of the slot
  };
  // Copies each buffer's payload into its slot, and returns after the copies. `sum` is computed from the slot, so the
  // sum also covers the copy. Returns false on failure; the slots are then undefined.
  virtual bool land(std::span<Landing> pages) = 0;
  // The slot now has the right page of this key. For implementations that keep a record of slots.
  virtual void landed(SlotId, const PageKey&) {}
};

}  // namespace kvtwin

// A way from files into L1 slots that doesn't lead through host memory: reads into staging buffers in GPU memory, from
// where the GPU lays pages out in their slots and checks them. The CPU sees each slot's header block only.
//
// One per device; for one thread at a time, the disk tier's reader. Nothing here throws but queue(). What can't be done
// is said so, and the reader takes the usual way.
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

  // How many there are, each of slot_bytes(form) (slot_format.hpp): a header block, then the payload.
  virtual std::uint32_t buffers() const = 0;
  // Reads into these buffers, which lie where the CPU doesn't reach: nobody asks the queue for them. An operation ends
  // with -EOPNOTSUPP where the file can't be read this way. One queue at a time, which goes before this does; its files
  // may outlive it. std::runtime_error, std::system_error if there is none to be had.
  virtual std::unique_ptr<BlockQueue> queue() = 0;

  // The header blocks of these buffers, one behind the other. False: they couldn't be had.
  virtual bool read_headers(std::span<const std::uint32_t> buffers, std::span<std::byte> blocks) = 0;

  struct Landing {
    std::uint32_t buffer = 0;  // in
    SlotId slot = kNoSlot;
    PageKey key;
    std::uint64_t sum = 0;  // out: page_checksum (kernels/page_checksum.hpp) of what lies in the slot now
  };
  // Lays each buffer's payload out in its slot, and returns when it lies there; `sum` is taken from the slot, so that
  // it covers the way there too. False: the slots may hold anything.
  virtual bool land(std::span<Landing> pages) = 0;
  // The page that was landed in this slot is right, and is that key's. For who keeps a record of slots.
  virtual void landed(SlotId, const PageKey&) {}
};

}  // namespace kvtwin

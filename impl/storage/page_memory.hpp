// The pages of L1 and L2, one page at a time, for code that stores or loads pages. A page has the bytes of a pool of
// one page in the host pool's layout.
//
// Thread: any thread, but at most one per slot. The policy's leases guarantee this: each handover of a slot goes
// through the event loop.
// Errors: an exception ends the run. Operations in progress must then be neither stored nor answered.
#pragma once

#include <cstddef>
#include <span>

#include "impl/storage/page_header.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class DirectPages;

class PageMemory {
 public:
  virtual ~PageMemory() = default;
  virtual PageForm form() const = 0;

  // ---- copies
  // Requires: `page` has form().bytes() bytes; `memory` is host or device.
  virtual void read_page(Tier memory, SlotId slot, std::span<std::byte> page) = 0;
  virtual void write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) = 0;

  // ---- in place
  // Appends the memory of the bytes [first, first + bytes) of the page. Returns false if the slot's memory cannot be
  // used in place. Requires: the range consists of whole objects (object_form()).
  virtual bool pieces(Tier, SlotId, Bytes /*first*/, Bytes /*bytes*/, Pieces&) { return false; }
  // The bytes of the slot are about to change, and may be wrong from now on. Call before a write into pieces.
  virtual void begin_write(Tier, SlotId) {}
  // All pieces of the slot now hold the page.
  virtual void written(Tier, SlotId, const PageKey&) {}

  // Returns the way from files into L1 without host memory (impl/disk/direct_pages.hpp), or null. Valid as long as this
  // object.
  virtual DirectPages* direct() { return nullptr; }
};

}  // namespace kvtwin

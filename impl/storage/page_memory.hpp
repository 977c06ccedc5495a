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
  // Requires: `page` has form().bytes() bytes; `memory` is host or device.
  virtual void read_page(Tier memory, SlotId slot, std::span<std::byte> page) = 0;
  virtual void write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) = 0;
  // Returns the way from files into L1 without host memory (impl/disk/direct_pages.hpp), or null. Valid as long as this
  // object.
  virtual DirectPages* direct() { return nullptr; }
};

}  // namespace kvtwin

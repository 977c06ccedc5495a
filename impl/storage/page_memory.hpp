// Where the pages of L1 and L2 lie, for whoever stores them or brings them back: one page at a time, as the bytes of a
// pool of one page in the host pool's layout. Any thread may call, no two for one slot: the policy's leases see to
// that, and what is handed over goes through the event loop.
// What throws has ended the run: nothing that is under way may be stored or answered any more.
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
  // `page`: form().bytes(). `memory`: host or device.
  virtual void read_page(Tier memory, SlotId slot, std::span<std::byte> page) = 0;
  virtual void write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) = 0;
  // A way from files into L1 that doesn't lead through host memory (impl/disk/direct_pages.hpp); null = none. Lives as
  // long as this.
  virtual DirectPages* direct() { return nullptr; }
};

}  // namespace kvtwin

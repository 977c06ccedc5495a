// Pages in the memory of several engines: each engine reads the pages that another one publishes, and writes pages into
// slots that another one grants to it. On peer_memory.hpp, by one-sided transfers.
//
//   owner    publish(slot) ---- any peer: list(), read() ----> own slot, checked
//   receiver grant(slot, peer) <-- the peer: write(); then its message "has ended" --> accept(slot): checked, published
//
// A pool of pages (a host pool, or the arena of the host device) has a table beside it with one page header per slot. A
// header proves which page its slot holds. The owner may change a published slot at any time, also while a peer reads
// it. The page then does not match the header that the peer has read, which is a miss. Therefore the order of the
// stores to header and page is of no importance.
//
// A slot is in use while a transfer may still change or read its bytes:
//
//   granted slot                   until the writer has reported the end, or has died
//   own slot of a late transfer    until the transfer ends
//   own slot of a failed transfer  as long as this object exists
//
// A slot in use is not published, withdrawn, granted or read into. Its bytes stay unchanged.
//
// Thread: any thread; one at a time per slot; one read or list, and one write, per peer at a time; one list at a time.
// Calls end in bounded time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "impl/remote/peer_memory.hpp"
#include "impl/storage/page_header.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// A pool of pages in memory. `owner` owns the memory, and is kept until no transfer can use it.
struct PeerPool {
  PageForm form;
  Pages pages = 0;
  std::byte* memory = nullptr;  // of pages * form.bytes() bytes
  std::shared_ptr<const void> owner;
};

// A page of a read or a write.
struct PeerPage {
  PageKey space, key;
  SlotId own = kNoSlot, theirs = kNoSlot;
};

class PeerPages {
 public:
  // `seal`: as for stored pages (page_seal.hpp); outlives this object. Errors: std::runtime_error, one sentence.
  PeerPages(const PeerConfig& config, PeerPool pool, const PageSeal* seal = nullptr);

  const std::vector<std::byte>& description() const { return memory_->description(); }
  // Adds the engine that is described. Returns one sentence if that is impossible: its pages have another form, or
  // another secret.
  std::variant<PeerId, std::string> add(std::span<const std::byte> description);
  Pages pages_of(PeerId peer) const;

  bool in_use(SlotId slot) const;

  // ---- the owner. Requires: the slot is not in use.
  // The slot holds the page, and peers may read it. Cost: reads the page once.
  void publish(SlotId slot, const PageKey& space, const PageKey& key);
  // The slot holds no page for peers, until the next publish or accept.
  void withdraw(SlotId slot);

  // ---- a receiver
  // The peer may write a page into the slot. Requires: the slot is not in use.
  void grant(SlotId slot, PeerId writer);
  // Ends a grant. Returns whether the slot holds the page, which then is published. Requires: the writer has reported
  // that its write into the slot has ended: write() has given `none`, or the writer's own slot is no longer in use.
  bool accept(SlotId slot, const PageKey& space, const PageKey& key);
  // Ends all grants to a peer, and returns their slots. Requires: the peer's process has ended.
  std::vector<SlotId> end_grants(PeerId writer);

  // ---- the peers' pages
  // Returns the slots and pages that a peer has published. A page of the list may be gone already. Empty: none, or the
  // peer does not answer.
  std::vector<PeerPage> list(PeerId peer);
  // Reads pages into own slots, and publishes them there. causes[i]: `none` if the page is in its slot; `missing` if
  // the peer's slot holds another page or changes; `unreachable`. Otherwise the slot may hold any bytes.
  void read(PeerId from, std::span<const PeerPage> pages, std::span<Cause> causes);
  // Writes published pages of own slots into slots that the peer has granted. `none`: the write has ended well.
  // `unreachable`: it may go on; the own slot is in use until it has ended.
  void write(PeerId to, std::span<const PeerPage> pages, std::span<Cause> causes);

  // Returns the number of pages by name. Requires: no other call is in progress.
  std::vector<std::pair<std::string, std::uint64_t>> counters() const;

 private:
  struct Shared;  // with transfers that are late
  using Count = std::atomic<std::uint64_t>;

  PeerAnswer move(bool is_write, PeerId peer, std::span<const PeerPage> pages);
  template <typename Done>
  void move_all(bool is_write, PeerId peer, std::span<const PeerPage> pages, std::span<Cause> causes, const Done& done);
  Pieces pieces(SlotId slot) const;
  std::span<std::byte, kPageHeaderBytes> header(SlotId slot) const;
  bool holds(SlotId slot, const PageKey& space, const PageKey& key) const;

  const PeerPool pool_;
  const PageSeal* const seal_;
  const Bytes bytes_in_flight_;
  std::shared_ptr<Shared> shared_;
  mutable std::mutex mutex_;     // guards granted_
  std::vector<PeerId> granted_;  // by slot
  Count got_ = 0, written_ = 0, stale_ = 0, accepted_ = 0, refused_ = 0, late_ = 0, failed_ = 0;
  std::unique_ptr<PeerMemory> memory_;  // last member
};

}  // namespace kvtwin

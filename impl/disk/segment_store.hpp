// The disk tier: pages in append-only segments of one folder, with an index in memory.
//
// A page is one slot of a segment (slot_format.hpp). A slot is written and read in one piece through aligned staging
// memory, many slots at a time. A full segment is sealed. If there are too many segments, the one with the fewest
// claimed pages is rewritten: its claimed pages are copied, the copies become durable, and the file is unlinked. After
// a crash, each page is either absent or exactly right: header block, place and payload are checked, and a page that
// fails is a miss.
//   stored        in the kernel: survives the end of the process (kill -9)
//   sync, finish  earlier stored pages survive a power loss; a sealed segment also does soon after
//   removed       not found again in this run, nor after a regular end (finish); may be found again after a crash, with
//                 the bytes that were stored. The same holds for evicted pages, and for the older of two copies
// A failed sync loses the pages that it covered, because the kernel may have dropped them.
//
// The capacity counts claimed pages: pages that were set in this run and not removed. Pages found at the start can be
// read, and are evicted, oldest first, when room is needed. Segments of other forms are removed before these pages.
// With SegmentStoreConfig::eviction, the store makes room by itself: it evicts any page, by the policy. If the medium
// has less room than the capacity, it stores what fits.
// Nothing else is removed: a folder with content but without the mark of a disk tier is refused, and a file that is no
// segment stays. Only one process may use a folder at a time.
// Thread: as StorageBackend; sync, description and counters: any thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "impl/disk/direct_pages.hpp"
#include "impl/disk/files.hpp"
#include "impl/storage/backend.hpp"

namespace kvtwin {

struct SegmentStoreConfig {
  std::filesystem::path folder;  // created if absent
  Pages capacity_pages = 0;
  PageForm form;
  // Name of the eviction policy (policy/eviction.hpp) of a store that makes room by itself. Empty: a set is refused if
  // all room is claimed, because the caller evicts by removes.
  std::string eviction = {};
  // The room is shared with stores of other pages, and the caller keeps all within it by removes: the segments take no
  // more than the present pages need. Else the store keeps the segments of its capacity.
  bool shares_room = false;
  std::uint32_t depth = 32;  // pages in progress, per direction
  Bytes segment_bytes = 0;   // 0 = chosen by segment_slots
  bool force_threads = false;
  // If set, gets into L1 go directly where possible, and written pages get a checksum for the GPU (slot_format.hpp).
  // Null: all gets go through host memory. Outlives the store.
  DirectPages* direct = nullptr;
  // If set, written pages carry this keyed check, and pages without it are misses. Null: pages carry the check without
  // a secret. Outlives the store. Not together with `direct`, because a GPU cannot compute the keyed check.
  const PageSeal* seal = nullptr;
  // For tests: a disk in place of the folder; FolderOptions::before.
  std::shared_ptr<Files> files = {};
  std::function<void(const char* step)> before = {};
};

// Returns the slots per segment: 1/16 of the capacity, so that a reclaim rewrites little; at least 8; at most 256 MiB.
// 256 MiB is about a tenth of a second of writing. The cost per segment (a sync, a file creation, an idle queue) is
// then small against the writes.
std::uint32_t segment_slots(const SegmentStoreConfig& config);

class SegmentStore final : public StorageBackend {
 public:
  explicit SegmentStore(SegmentStoreConfig config);
  ~SegmentStore() override;

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override;
  void read(PageWork& work) override;
  void write(PageWork& work) override;
  void finish() override;
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override;

  // Changes the number of pages that the store may hold, up to capacity_pages of the configuration. Evicts the pages
  // that are too many, and gives their room back. Requires: the store evicts. Thread: that of write().
  void resize(Pages pages);
  // Returns the number of pages that are there, or being written. Thread: any.
  Pages used() const;
  // Returns the number of pages that the store may hold now: less than resize() said if the medium is smaller.
  Pages capacity() const;

  // Returns true if all earlier stored pages survive a power loss.
  bool sync();
  const PageSeal* seal() const override;
  std::string description() const override;
  // Checks the index with KV_CHECK.
  void check_invariants() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin

// The disk tier: pages in append-only segments of one folder, an index of them in memory.
//
// A page is one slot of a segment (slot_format.hpp), written and read in one piece through aligned staging memory, many
// under way at a time. Segments are sealed when full; when they are too many, the one with the fewest claimed pages is
// rewritten and unlinked, after its copies survive the power. After a crash each page is absent or exactly right:
// header block, place and payload vouch for it, and whatever doesn't hold is a miss.
//   stored        in the kernel's hands: survives the process (kill -9)
//   sync, finish  what was stored before survives the machine's power; so does a sealed segment soon after
//   removed       not found any more in this life; may be found again after a crash, with right bytes
// A failed sync loses what it should have saved, since the kernel may have dropped it.
//
// The capacity counts pages that were set in this life and not removed ("claimed"). Pages found at open are readable
// and go, oldest first, when room is wanted. Segments of other forms in the folder go before them. Nothing else is
// removed: a folder with content that no disk tier has marked is refused, and a file that is no segment stays. One life
// at a time.
// Threads: StorageBackend's; sync, description and counters are for any.
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
  std::filesystem::path folder;  // made if it isn't there
  Pages capacity_pages = 0;
  PageForm form;
  std::uint32_t depth = 32;  // pages under way, each way
  Bytes segment_bytes = 0;   // 0: chosen (see segment_slots)
  bool force_threads = false;
  // Gets into L1 go this way where they can, and pages are written with what it takes (slot_format.hpp); null: through
  // host memory. Outlives the store.
  DirectPages* direct = nullptr;
  // Pages are written with its check, and others are misses; null: with the one that takes no secret. Outlives the
  // store. Not together with `direct`: a GPU can't check it.
  const PageSeal* seal = nullptr;
  // For tests. Another disk than the folder; FolderOptions::before.
  std::shared_ptr<Files> files = {};
  std::function<void(const char* step)> before = {};
};

// A sixteenth of the capacity, so that little is rewritten at a time; 8 slots at least; and 256 MiB at most, a tenth of
// a second's writing: by then what a segment costs once (a sync, a file's creation, an idle queue) is lost in the rest.
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

  // True: what was stored before the call survives the machine's power.
  bool sync();
  const PageSeal* seal() const override;
  std::string description() const override;
  // KV_CHECKs the index.
  void check_invariants() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin

#include "impl/disk/segment_store.hpp"

#include <algorithm>
#include <stdexcept>

#include "impl/disk/segment_core.hpp"
#include "impl/disk/segment_reader.hpp"
#include "impl/disk/segment_writer.hpp"

namespace kvtwin {

bool sync_segments(SegmentCore& core, std::span<const SegmentIndex::Unsynced> segments) {
  std::vector<SegmentIndex::Unsynced> written;
  bool all = true, listed = true;
  for (const SegmentIndex::Unsynced& it : segments) {
    if (!it.any) continue;
    if (core.files->sync(*it.segment->file) == 0) {
      written.push_back(it);
      listed = listed && it.listed;
    } else {
      lose_segment(core, it.segment);
      all = false;
    }
  }
  const bool folder = listed || core.files->sync_folder() == 0;
  for (const SegmentIndex::Unsynced& it : written) {
    if (it.listed || folder) {
      core.index.synced(it);
    } else {
      lose_segment(core, it.segment);
      all = false;
    }
  }
  return all;
}

void lose_segment(SegmentCore& core, const std::shared_ptr<Segment>& segment) {
  ++core.counters.failed_syncs;
  core.counters.pages_lost += core.index.lost(segment);
}

std::uint32_t segment_slots(const SegmentStoreConfig& config) {
  const Bytes slot = slot_bytes(config.form);
  if (config.segment_bytes != 0) {
    const Bytes slots = config.segment_bytes / slot;
    return static_cast<std::uint32_t>(std::clamp<Bytes>(slots, 1, UINT32_MAX));
  }
  constexpr Bytes kMaxSegmentBytes = Bytes{256} << 20;
  const Pages max_slots = std::max<Pages>(8, kMaxSegmentBytes / slot);
  return static_cast<std::uint32_t>(std::clamp<Pages>(config.capacity_pages / 16, 8, max_slots));
}

struct SegmentStore::State {
  State(const SegmentStoreConfig& config, std::shared_ptr<Files> files)
      : core(config.form, std::move(files), config.capacity_pages, eviction_of(config), config.depth,
             config.direct != nullptr, config.seal),
        read_queue(core.files->queue(SegmentReader::buffers(config.depth), slot_bytes(config.form))),
        write_queue(core.files->queue(config.depth, slot_bytes(config.form))),
        direct_queue(config.direct == nullptr ? nullptr : config.direct->queue()),
        reader(core, *read_queue, config.direct, direct_queue.get()),
        writer(core, *write_queue, segment_slots(config), config.capacity_pages, config.shares_room,
               open_at_start(core)) {}

  static std::unique_ptr<EvictionPolicy> eviction_of(const SegmentStoreConfig& config) {
    if (config.eviction.empty()) return nullptr;
    return make_eviction(
        config.eviction,
        {.capacity = config.capacity_pages, .page_tokens = config.form.shape.page_tokens, .follows_visits = false});
  }

  // Uses a queue of its own, because a ring belongs to one thread, and this is not the writer's thread. The buffers are
  // small, so they hardly count against the limit of locked memory.
  static std::vector<ForeignFile> open_at_start(SegmentCore& core) {
    const std::unique_ptr<BlockQueue> queue = core.files->queue(core.depth, kBlockBytes);
    return open_segments(core, *queue);
  }

  SegmentCore core;
  std::unique_ptr<BlockQueue> read_queue, write_queue, direct_queue;
  SegmentReader reader;
  SegmentWriter writer;
};

SegmentStore::SegmentStore(SegmentStoreConfig config) {
  if (config.depth == 0 || config.form.bytes() == 0) {
    throw std::runtime_error("The disk tier needs pages of some bytes, and a depth of one at least.");
  }
  if (config.direct != nullptr && config.seal != nullptr) {
    throw std::runtime_error("Pages with a keyed check can't go from the disk into GPU memory without the CPU.");
  }
  if (!config.eviction.empty() && make_eviction(config.eviction) == nullptr) {
    throw std::runtime_error("The disk tier knows no eviction policy \"" + config.eviction +
                             "\"; take lru, for example.");
  }
  std::shared_ptr<Files> files = config.files;
  if (!files) {
    FolderOptions options;
    options.force_threads = config.force_threads;
    options.before = config.before;
    files = make_folder_files(config.folder, options);
  }
  state_ = std::make_unique<State>(config, std::move(files));
}

SegmentStore::~SegmentStore() = default;

LookedUp SegmentStore::look_up(const PageKey& space, std::span<const PageKey> keys) {
  LookedUp found;
  for (const PageKey& key : keys) {
    if (!state_->core.index.find(page_name(space, key))) {
      found.cause = Cause::missing;
      break;
    }
    ++found.pages;
  }
  return found;
}

void SegmentStore::read(PageWork& work) { state_->reader.read(work); }
void SegmentStore::write(PageWork& work) { state_->writer.write(work); }
void SegmentStore::resize(Pages pages) { state_->writer.resize(pages); }
Pages SegmentStore::used() const {
  const SegmentIndex::Totals totals = state_->core.index.totals();
  return totals.claimed + totals.unclaimed + totals.reserved;
}
Pages SegmentStore::capacity() const { return state_->core.index.totals().capacity; }
void SegmentStore::finish() {
  sync();
  forget_for_good(state_->core);
}

bool SegmentStore::sync() {
  const std::vector<SegmentIndex::Unsynced> segments = state_->core.index.unsynced();
  return sync_segments(state_->core, segments);
}

std::vector<std::pair<std::string, std::uint64_t>> SegmentStore::counters() const {
  const SegmentCounters& c = state_->core.counters;
  const SegmentIndex::Totals totals = state_->core.index.totals();
  return {{"pages_written", c.pages_written},
          {"pages_read", c.pages_read},
          {"pages_already_there", c.pages_already_there},
          {"pages_removed", c.pages_removed},
          {"pages_found", c.pages_found},
          {"pages_claimed", totals.claimed},
          {"pages_unclaimed", totals.unclaimed},
          {"pages_evicted", totals.evicted},
          {"capacity_pages", totals.capacity},
          {"pages_moved", c.pages_moved},
          {"pages_lost", c.pages_lost},
          {"segments", totals.segments},
          {"segments_reclaimed", c.segments_reclaimed},
          {"damaged_segments", c.damaged_segments},
          {"foreign_segments", c.foreign_segments},
          {"foreign_reclaimed", c.foreign_reclaimed},
          {"strange_files", c.strange_files},
          {"pages_of_another_secret", c.other_secret},
          {"too_many_open_files", c.file_limit},
          {"corrupt_pages", c.corrupt},
          {"direct_pages", c.direct_pages},
          {"direct_unsummed", c.unsummed},
          {"direct_refused", c.direct_refused},
          {"direct_errors", c.direct_errors},
          {"missing", c.missing},
          {"io_errors", c.io_errors},
          {"full", c.full},
          {"failed_syncs", c.failed_syncs}};
}

const PageSeal* SegmentStore::seal() const { return state_->core.seal; }

std::string SegmentStore::description() const {
  const SegmentCounters& c = state_->core.counters;
  std::string text =
      "Disk tier: " + state_->read_queue->description() + ", " + state_->core.files->description() + " I/O";
  if (state_->direct_queue) text += "; into GPU memory " + state_->direct_queue->description();
  const auto add = [&text](std::uint64_t count, const char* what) {
    if (count > 0) text += "; " + std::to_string(count) + " " + what;
  };
  add(c.damaged_segments, "damaged segments removed");
  add(c.foreign_segments, "segments with pages of another form, removed when their room is wanted");
  add(c.strange_files, "files that are no segments, left alone");
  add(c.other_secret, "pages checked with another secret or none, which are misses");
  return text + ".";
}

void SegmentStore::check_invariants() const { state_->core.index.check_invariants(); }

}  // namespace kvtwin

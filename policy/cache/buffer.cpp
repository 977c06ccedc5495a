// Cache, a host tier that keeps pages only until storage has them (EngineConfig::host_mode).
//
// until_stored: the tree knows the pages of L2. After the last write of a page, and after a load of a page that every
// storage tier has, the page leaves L2.
//
// buffer: a copy belongs to the operation that needs it, and no request hits it (SGLang's buffer_only).
//
//   write   L1 --queue--> slots of the node, copy under way --> slots of the Store, write under way --> free
//   read    slots of the prefetch --admission--> slots of the node, load under way --> free
//
// The queue is in order of insertion. Its head waits for room. A node that L1 evicts meanwhile is not written.
#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

// HiCache's hit rule (back_up_path), for nodes that no longer have their copy on L2 after they were stored.
void Cache::back_up_unstored(NodeId end, Pages counted) {
  path_.clear();
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    const bool counts = tree_.node(id).facts.depth_pages > counted;
    if (counts && std::ranges::find(cut_off_, id) == cut_off_.end()) tree_.count_backup_hit(id);
    path_.push_back(id);
  }
  for (std::size_t i = path_.size(); i > 0; --i) {
    const NodeId id = path_[i - 1];
    const Node& node = tree_.node(id);
    if (node.backup_hits < write_threshold()) return;  // nor have the nodes below
    if (node.host.resident() || node.queued || storage_.knows_all(node.keys())) continue;
    if (!(config_.buffers() ? queue_for_buffer(id) : queue_backup(id))) return;
  }
}

// ---- until_stored ------------------------------------------------------------------------------------

bool Cache::leaves_when_stored(NodeId id) const {
  const Node& node = tree_.node(id);
  return config_.host_mode == HostMode::until_stored && node.host.resident() &&
         node.host.arriving == OperationId::none && node.device.arriving == OperationId::none &&
         node.host.leases == 0 && node.host_readers == 0 && storage_.has_all(node.keys());
}

// A write of the node has ended. Also takes the nodes above, which may have waited for this one.
void Cache::leave_host(NodeId end) {
  for (NodeId id = end; id != tree_.root() && tree_.node(id).host.leases == 0;) {
    const Node& node = tree_.node(id);
    const NodeId parent = node.parent;
    const bool on_device = node.device.resident();
    if (leaves_when_stored(id)) {
      if (on_device) {
        drop_shadowed_copy(id);
      } else if (node.children == 0 && node.device.leases == 0) {
        evict_host_node(id, node.facts.pages, Reason::demoted);
      }
    }
    id = parent;
  }
}

// ---- buffer: writes ----------------------------------------------------------------------------------

// Returns false if the nodes below must not be written: a part of the prefix would be missing above them.
bool Cache::queue_for_buffer(NodeId id) {
  const Pages pages = tree_.node(id).facts.pages;
  if (pages > config_.host_pages) {
    sink_.decide(DecisionKind::backup, Reason::capacity, tree_.node(id).keys().front(), pages);
    sink_.event({.kind = EventKind::backup_dropped, .tier = Tier::host, .reason = Reason::capacity, .pages = pages});
    return false;
  }
  tree_.set_queued(id, true);
  tree_.forget_backup_failures(id);
  queued_.push_back({id, pages});
  return true;
}

// A queued node goes. What splits have cut off above it takes its place in the queue, unless it has one of its own.
void Cache::leave_queue(NodeId id) {
  const NodeId parent = tree_.node(id).parent;
  if (parent != tree_.root() && tree_.node(parent).queued && !queued_.has(parent)) {
    return queued_.pass_on(id, parent, tree_.node(id).facts.pages);
  }
  const Pages lost = queued_.erase(id);
  if (lost > 0 && config_.buffers()) {
    sink_.event({.kind = EventKind::backup_dropped, .tier = Tier::host, .reason = Reason::lost, .pages = lost});
  }
}

// The index may join the node and its only child. Then the child's place in the queue is the node's.
std::vector<SlotId> Cache::clear_device(NodeId id) {
  const NodeId child = tree_.node(id).first_child;
  std::vector<SlotId> slots = tree_.clear(Tier::device, id);
  if (child != NodeId::none && !tree_.has(child)) queued_.pass_on(child, id, 0);
  return slots;
}

// Loads come first: the writes take what prefetches leave of the buffer, less a tenth, but a fifth of the buffer at
// least (SGLang's live_cap). `read_pages`: of prefetches.
void Cache::copy_queued(Pages read_pages) {
  const Pages whole = config_.host_pages, left = whole - std::min(whole, read_pages + whole / 10);
  const Pages most = std::max<Pages>({whole / 5, left, 1});
  while (!queued_.empty()) {
    const auto [end, pages] = queued_.front();
    path_.clear();  // upwards: the node, and what splits have cut off above it
    for (NodeId id = end; tree_.has(id) && tree_.node(id).queued; id = tree_.node(id).parent) path_.push_back(id);
    if (path_.empty()) {
      sink_.event({.kind = EventKind::backup_dropped, .tier = Tier::host, .reason = Reason::lost, .pages = pages});
    }
    for (std::size_t i = path_.size(); i > 0; --i) {
      const NodeId id = path_[i - 1];
      const Node& node = tree_.node(id);
      if (node.host.resident() || storage_.knows_all(node.keys())) {
        tree_.set_queued(id, false);
        continue;
      }
      if (writing_pages_ >= most || host_.available() < node.facts.pages) return;
      tree_.set_queued(id, false);
      writing_pages_ += node.facts.pages;
      sink_.decide(DecisionKind::backup, Reason::none, node.keys().front(), node.facts.pages);
      store(id);
    }
    queued_.pop_front();
  }
}

// The copy has arrived: it no longer belongs to the node, which L1 may evict.
void Cache::write_from_buffer(NodeId id) {
  Store made;
  made.slots = tree_.clear(Tier::host, id);
  const Node& node = tree_.node(id);
  const PageKey* prior = node.parent == tree_.root() ? nullptr : &tree_.node(node.parent).keys().back();
  const std::uint64_t store = ++last_store_;
  made.jobs = storage_.write(store, prior, node.keys(), made.slots, Tier::host, storage_.tiers(), node.facts.priority,
                             0, node.facts.parts);
  if (made.jobs == 0) return free_written(made.slots);
  stores_[store] = std::move(made);
}

void Cache::free_written(std::span<const SlotId> slots) {
  writing_pages_ -= slots.size();
  free_host(slots);
}

// ---- buffer: reads -----------------------------------------------------------------------------------

void Cache::load_staged(std::span<const PageKey> keys, Pages first, std::span<const SlotId> staged, RequestId request,
                        NodeId& end) {
  const std::span<const PageKey> loaded = keys.subspan(first, staged.size());
  sink_.decide(DecisionKind::load_back, Reason::none, loaded.front(), loaded.size(), request);
  std::vector<SlotId> slots;
  const bool room = allocate(loaded.size(), slots);
  KV_CHECK(room, "the admission has made room");
  end = tree_.insert(end, loaded, slots, staged, tree_.next_stamp(), 0);  // its request raises the priority
  sink_.keys(EventKind::pages_stored, Tier::device, loaded);
  for (std::size_t i = 0; i < loaded.size(); ++i) loads_.moves.push_back({loaded[i], staged[i], slots[i]});
  tree_.set_arriving(Tier::device, end, mark_of(loads_));
  if (!config_.draft_restored) tree_.set_incomplete(end);
  tree_.lease(Tier::device, end);
  loads_.queued.ends.push_back(end);
  loads_.queued.pages += loaded.size();
  sink_.event({.kind = EventKind::load_queued, .tier = Tier::device, .pages = loaded.size()});
  if (!counts_at_insert()) return;
  cut_off_.clear();  // in SGLang, the load is an insert that counts, besides the request's own
  tree_.count_touch(end, 0);
  back_up_unstored(end, 0);
}

// The load of the node has ended; if it failed, nothing remains of the node.
void Cache::end_staged_load(NodeId id, bool done) {
  if (done) return free_host(tree_.clear(Tier::host, id));
  sink_.keys(EventKind::pages_removed, Tier::device, tree_.node(id).keys());
  freed_device_.clear();
  freed_host_.clear();
  tree_.remove_tail(id, tree_.node(id).facts.pages, freed_device_, freed_host_);
  free(freed_device_);
  free_host(freed_host_);
}

}  // namespace kvtwin

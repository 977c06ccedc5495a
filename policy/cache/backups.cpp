// Cache, backups: which nodes are written from L1 to L2, or to the storage tiers if there is no L2.
#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

std::uint32_t Cache::write_threshold() const {
  if (config_.write_threshold != 0) return config_.write_threshold;
  return write_->writes_after_inserts();
}

// HiCache's hit rule: a request counts one hit on each node of its path, at the first complete insert that covers the
// node. At the threshold, the node is backed up, its ancestors first, so the copies on L2 stay prefix-closed.
void Cache::back_up_path(NodeId end, Pages counted) {
  if (config_.host_mode != HostMode::cache) return back_up_unstored(end, counted);
  path_.clear();
  for (NodeId id = end; id != tree_.root() && !tree_.node(id).host.resident(); id = tree_.node(id).parent) {
    const bool counts = tree_.node(id).facts.depth_pages > counted;
    if (counts && std::ranges::find(cut_off_, id) == cut_off_.end()) tree_.count_backup_hit(id);
    path_.push_back(id);
  }
  std::size_t deepest = path_.size();  // path_ runs upwards
  for (std::size_t i = 0; i < path_.size(); ++i) {
    // A failed copy is tried again only by an insert that counts.
    const bool counts = tree_.node(path_[i]).facts.depth_pages > counted;
    if (counts && tree_.node(path_[i]).backup_hits >= write_threshold()) {
      deepest = i;
      break;
    }
  }
  for (std::size_t i = path_.size(); i > deepest; --i) {
    if (!queue_backup(path_[i - 1])) return;  // deeper nodes need this copy
  }
}

// The same rule without L2: a node that reaches the threshold is written to the storage tiers once.
void Cache::store_by_hits(NodeId end, Pages counted) {
  path_.clear();
  for (NodeId id = end; tree_.node(id).facts.depth_pages > counted && tree_.node(id).backup_hits < write_threshold();
       id = tree_.node(id).parent) {
    tree_.count_backup_hit(id);
    if (tree_.node(id).backup_hits == write_threshold()) path_.push_back(id);
  }
  for (auto id = path_.rbegin(); id != path_.rend(); ++id) {
    store_node(*id, 0, tree_.node(*id).facts.pages, storage_.tiers());
  }
}

// Hints to share wait here for the end of the session's request, for loads under way, and for copies that have to
// arrive on L2 before storage has them.
void Cache::share_sessions() {
  if (holds_ == nullptr) return;
  for (const SessionHolds::Sharing& sharing : holds_->sharing()) {
    if (has_direct_load(sharing.end)) continue;
    holds_->shared(sharing.session, share(sharing.end, !sharing.is_further));
  }
}

// Writes the pages of the path that no lower tier has: to L2, from where they go on to the storage tiers, or to these,
// whatever the write policy waits for. `copies`: to L2 too. Returns false if it has to be tried again, without copies.
bool Cache::share(NodeId end, bool copies) {
  if (copies_evicted_) return true;  // there is no storage tier below, and L2 gets what is evicted
  path_.clear();
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) path_.push_back(id);
  const bool has_host = config_.host_pages != 0;
  const bool keeps = has_host && !config_.buffers();
  if (keeps) tree_.lease(Tier::host, end);  // room for a copy is not made on its own path
  bool is_complete = true;
  for (auto id = path_.rbegin(); id != path_.rend(); ++id) {
    const Node& node = tree_.node(*id);
    const bool is_stored = storage_.tiers() > 0 && storage_.knows_all(node.keys());
    if (!has_host) {
      if (!is_stored) store_node(*id, 0, node.facts.pages, storage_.tiers());
    } else if (node.host.resident()) {
      if (keeps && node.host.arriving == OperationId::none && !is_stored) store_shared(*id);
    } else if (copies && !node.queued && !(is_stored && config_.host_mode != HostMode::cache)) {
      copies = config_.buffers() ? queue_for_buffer(*id) : queue_backup(*id);  // deeper nodes need this copy
    }
    is_complete = is_complete && tree_.node(*id).host.arriving == OperationId::none;
  }
  if (keeps) tree_.release(Tier::host, end);
  if (config_.host_mode == HostMode::until_stored) leave_host(end);
  return is_complete || config_.host_clean_reserve == 0;  // other copies go on to storage when they arrive
}

// The node waits on L2 for its write (EngineConfig::host_clean_reserve), or storage has dropped that.
void Cache::store_shared(NodeId id) {
  if (tree_.node(id).queued) leave_queue(id);
  store_queued(id);
}

bool Cache::queue_backup(NodeId id) {
  const Pages pages = tree_.node(id).facts.pages;
  if (host_.available() < pages) {
    tree_.lease(Tier::host, id);  // so that the copies above, which this one needs, stay
    evict_host(pages - host_.available());
    tree_.release(Tier::host, id);
  }
  const bool room = host_.available() >= pages;
  sink_.decide(DecisionKind::backup, room ? Reason::none : Reason::capacity, tree_.node(id).keys().front(), pages);
  if (!room) {
    grow_host_reserve(pages - host_.available());
    sink_.event({.kind = EventKind::backup_dropped, .tier = Tier::host, .reason = Reason::capacity, .pages = pages});
    return false;
  }
  tree_.forget_backup_failures(id);
  if (!pools_.empty() && !make_host_room_beside(id)) {
    sink_.event({.kind = EventKind::backup_dropped, .tier = Tier::host, .reason = Reason::capacity, .pages = pages});
    return false;
  }
  store(id);
  if (!pools_.empty()) copy_beside(id);
  return true;
}

// Allocates host slots for the node and queues its transfer. Requires: L2 has the room.
void Cache::store(NodeId id) {
  const Pages pages = tree_.node(id).facts.pages;
  targets_.clear();
  const bool room = host_.allocate(pages, targets_);
  KV_CHECK(room, "the room was made before");
  host_used_max_ = std::max(host_used_max_, host_.used());
  sink_.slots(EventKind::slots_allocated, Tier::host, targets_);
  tree_.set_slots(Tier::host, id, targets_);
  queue_transfer(id);
}

// The mark protects the node against eviction and removal, so no lease is needed.
void Cache::queue_transfer(NodeId id) {
  const Node& node = tree_.node(id);
  const Pages pages = node.facts.pages;
  const std::span<const PageKey> keys = node.keys();
  const SlotId *const from = node.device.slots.data(), *const to = node.host.slots.data();
  for (std::size_t i = 0; i < pages; ++i) backups_.moves.push_back({keys[i], from[i], to[i]});
  tree_.set_arriving(Tier::host, id, mark_of(backups_));
  backups_.queued.ends.push_back(id);
  backups_.queued.pages += pages;
  sink_.event({.kind = EventKind::backup_queued, .tier = Tier::host, .pages = pages});
}

}  // namespace kvtwin

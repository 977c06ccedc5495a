// Cache, transfers between L1 and L2: submission, completion, commit by the step, acknowledgement.
#include <algorithm>
#include <utility>

#include "policy/cache.hpp"

namespace kvtwin {

void Cache::submit_loads() {
  if (loads_.empty()) return;
  report_held_slots();  // all copies may have been withdrawn
  submit(loads_, Direction::host_to_device, false);
  gates_.push_back(loads_.transfers.all().back().id);
}

void Cache::submit_backups(bool beside_a_pass) {
  if (!backups_.empty()) submit(backups_, Direction::device_to_host, beside_a_pass);
  report_held_slots();
}

// All moves that were queued in one step are one operation with one acknowledgement.
void Cache::submit(Lanes& lanes, Direction direction, bool busy) {
  if (blocks_ != nullptr) return submit_blocks(lanes, direction, busy);
  sources_.clear();
  targets_.clear();
  for (const PageMove& move : lanes.moves) {
    sources_.push_back(move.source);
    targets_.push_back(move.target);
  }
  join_runs(sources_, targets_, runs_);
  TransferOperation operation;
  operation.lane = direction == Direction::host_to_device ? Lane::h2d : Lane::d2h;
  PoolPair pools{config_.shape, config_.host_layout, config_.device_pages, config_.host_pages};
  if (lanes.moves.empty()) {  // windows and states alone
    operation.plan.direction = direction;
    operation.plan.host_layout = config_.host_layout;
    operation.plan.shape = config_.shape;
  } else {
    operation.plan = plan_transfer(runs_, direction, pools, config_.io, config_.planner, busy);
  }
  // One operation for all shapes, so that they always have the same fate.
  for (const KvShape& shape : config_.beside) {
    if (lanes.moves.empty()) break;
    pools.shape = shape;
    operation.beside.push_back(plan_transfer(runs_, direction, pools, config_.io, config_.planner, busy));
  }
  operation.pages = lanes.moves;
  std::vector<std::vector<PageRun>> runs(lanes.beside.size());
  for (std::size_t at = 0; at < lanes.beside.size(); ++at) {
    if (lanes.beside[at].empty()) continue;
    sources_.clear();
    targets_.clear();
    for (const PageMove& move : lanes.beside[at]) {
      sources_.push_back(move.source);
      targets_.push_back(move.target);
    }
    join_runs(sources_, targets_, runs[at]);
    const PoolConfig& pool = config_.pools[at];
    const PoolPair pair{pool.shape, config_.host_layout, pool.device_slots, pool.host_slots};
    operation.parts.push_back(
        {at, plan_transfer(runs[at], direction, pair, config_.io, config_.planner, busy), lanes.beside[at]});
  }
  lanes.queued.id = substrate_.submit(operation);
  sink_.event({.kind = EventKind::transfer_submitted,
               .tier = direction == Direction::host_to_device ? Tier::device : Tier::host,
               .pages = lanes.queued.pages,
               .operation = lanes.queued.id});
  lanes.queued.mark = mark_of(lanes);
  ++lanes.marks;
  if (copies_evicted_ && direction == Direction::device_to_host) {
    lanes.queued.moves = lanes.moves;
    lanes.queued.moves_beside = lanes.beside;
  }
  lanes.transfers.push(std::exchange(lanes.queued, Transfer{}));
  lanes.moves.clear();
  for (std::vector<PageMove>& moves : lanes.beside) moves.clear();
}

bool Cache::complete(const Completion& completion) {
  if (backups_.transfers.complete(completion)) return true;
  if (!loads_.transfers.complete(completion)) return false;
  std::erase(gates_, completion.id);
  return true;
}

// A transfer has failed if the ranks agreed that it has, whatever this rank saw.
bool Cache::commit(const Acknowledged& backups) {
  const bool more = backups_.transfers.acknowledge(backups, [this](Transfer&& transfer, bool done) {
    if (copies_evicted_ && !done) return copy_again(std::move(transfer));
    acknowledge_backup(transfer, done);
  });
  report_held_slots();
  return more;
}

bool Cache::commit(const Acknowledged& backups, const Acknowledged& loads) {
  const bool more_loads = loads_.transfers.acknowledge(
      loads, [this](Transfer&& transfer, bool done) { acknowledge_load(std::move(transfer), done); });
  const bool more_backups = commit(backups);
  return more_loads || more_backups;
}

// Returns the nodes that were queued, and the nodes that splits have cut off above them; parents before children.
std::vector<NodeId> Cache::marked_nodes(const Transfer& transfer, bool load) const {
  std::vector<NodeId> nodes;
  for (const NodeId end : transfer.ends) {
    for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
      if ((load ? tree_.node(id).device.arriving : tree_.node(id).host.arriving) != transfer.mark) break;
      nodes.push_back(id);
    }
  }
  const auto order = [this](NodeId id) { return std::pair(tree_.node(id).facts.depth_pages, id); };
  std::ranges::sort(nodes, {}, order);
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

void Cache::acknowledge_backup(const Transfer& transfer, bool done) {
  if (blocks_ != nullptr) return acknowledge_blocks(transfer, false, done);
  acknowledge_beside(transfer, Tier::host, done);
  Pages dropped = 0, retried = 0;
  for (const NodeId id : marked_nodes(transfer, false)) {
    tree_.set_arriving(Tier::host, id, OperationId::none);
    if (done && copy_reachable(id)) {
      tree_.forget_backup_failures(id);
      if (config_.buffers()) {
        write_from_buffer(id);
        continue;
      }
      sink_.keys(EventKind::pages_stored, Tier::host, tree_.node(id).keys());
      store_arrived(id);
      continue;
    }
    const Pages pages = tree_.node(id).facts.pages;
    tree_.count_backup_failure(id);
    if (can_retry(id)) {
      retried += pages;
      sink_.decide(DecisionKind::backup, Reason::retry, tree_.node(id).keys().front(), pages);
      queue_transfer(id);
    } else {
      dropped += pages;
      if (config_.buffers()) writing_pages_ -= pages;
      drop_host_copies(id);
    }
  }
  keep_host_reserve();
  const Pages kept = transfer.pages - dropped - retried;
  if (kept > 0)
    sink_.event({.kind = EventKind::backup_done, .tier = Tier::host, .pages = kept, .operation = transfer.id});
  if (retried > 0)
    sink_.event({.kind = EventKind::backup_retried,
                 .tier = Tier::host,
                 .reason = Reason::transfer_failed,
                 .pages = retried,
                 .operation = transfer.id});
  if (dropped > 0)
    sink_.event({.kind = EventKind::backup_dropped,
                 .tier = Tier::host,
                 .reason = Reason::transfer_failed,
                 .pages = dropped,
                 .operation = transfer.id});
}

// Returns whether a match finds the copy after the device copy has gone. Under write-back, pages above are written
// later. With gaps for another cause, the copy goes with the pages above.
bool Cache::copy_reachable(NodeId id) const {
  const NodeId parent = tree_.node(id).parent;
  if (writes_back_ || host_has_gaps() || parent == tree_.root()) return true;
  // A parent that is still being written failed before and was queued again, so the parent's copy is not there yet.
  return tree_.node(parent).host.resident() && tree_.node(parent).host.arriving == OperationId::none;
}

// The slots are still there. If the copy above failed too, it was queued again before this one.
bool Cache::can_retry(NodeId id) const {
  const NodeId parent = tree_.node(id).parent;
  const bool above = host_has_gaps() || parent == tree_.root() || tree_.node(parent).host.resident();
  return above && tree_.node(id).backup_failures <= config_.backup_retries;
}

// Drops a copy on L2 that has no valid content. If L2 has no gaps, also drops the copies below, which could not be
// reached any more. (With gaps, `top` is still on L1, so the copies below stay reachable.) Copies that are still
// being written are left to their own acknowledgement, which finds the parent's copy gone.
void Cache::drop_host_copies(NodeId top) {
  std::vector<NodeId> below{top};
  for (std::size_t i = 0; i < below.size() && !host_has_gaps(); ++i) {
    for (NodeId child = tree_.node(below[i]).first_child; child != NodeId::none;
         child = tree_.node(child).next_sibling) {
      if (tree_.node(child).host.resident() && tree_.node(child).host.arriving == OperationId::none)
        below.push_back(child);
    }
  }
  for (auto id = below.rbegin(); id != below.rend(); ++id) {
    const Node& node = tree_.node(*id);
    if (!node.host.resident()) continue;
    sink_.decide(DecisionKind::evict_host, Reason::transfer_failed, node.keys().front(), node.facts.pages);
    if (*id != top) sink_.keys(EventKind::pages_removed, Tier::host, node.keys());  // the copy of `top` never arrived
    freed_host_.clear();
    drop_beside(*id, Tier::host);
    if (node.device.resident()) {
      freed_host_ = tree_.discard_host(*id);
    } else {
      freed_device_.clear();
      tree_.remove_tail(*id, node.facts.pages, freed_device_, freed_host_);
    }
    host_.release(freed_host_);
    sink_.slots(EventKind::slots_released, Tier::host, freed_host_);
    if (*id != top)
      sink_.event(
          {.kind = EventKind::evicted, .tier = Tier::host, .reason = Reason::lost, .pages = freed_host_.size()});
  }
}

void Cache::acknowledge_load(Transfer transfer, bool done) {
  if (blocks_ != nullptr) return acknowledge_blocks(transfer, true, done);
  if (!done && !direct_loads_.empty()) {
    failed_loads_.push_back(std::move(transfer));
    return;
  }
  const std::vector<NodeId> nodes = marked_nodes(transfer, true);
  acknowledge_beside(transfer, Tier::device, done);
  for (const NodeId end : transfer.ends) {
    tree_.release(Tier::device, end);
    for (NodeId id = end; tree_.node(id).device.arriving == transfer.mark; id = tree_.node(id).parent) {
      tree_.set_arriving(Tier::device, id, OperationId::none);
    }
  }
  // No pass has read the pages of a failed load: the requests that it gated have already given the pages back.
  if (!done) {
    for (auto id = nodes.rbegin(); id != nodes.rend(); ++id) {
      drop_device_below(*id);
      if (config_.buffers()) {
        end_staged_load(*id, false);
        continue;
      }
      sink_.keys(EventKind::pages_removed, Tier::device, tree_.node(*id).keys());
      drop_beside(*id, Tier::device);
      free(clear_device(*id));
    }
  } else if (config_.tiering == Tiering::exclusive) {
    for (const NodeId id : nodes) {
      if (tree_.node(id).host.leases == 0) drop_shadowed_copy(id);
    }
  } else if (config_.host_mode != HostMode::cache) {
    for (const NodeId id : nodes) {
      if (config_.buffers()) {
        end_staged_load(id, true);
      } else if (leaves_when_stored(id)) {
        drop_shadowed_copy(id);
      }
    }
  }
  sink_.event({.kind = done ? EventKind::load_done : EventKind::load_failed,
               .tier = Tier::device,
               .reason = done ? Reason::none : Reason::transfer_failed,
               .pages = transfer.pages,
               .operation = transfer.id});
}

}  // namespace kvtwin

#include "policy/cache.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

std::unique_ptr<WritePolicy> write_policy_of(const EngineConfig& config) {
  std::unique_ptr<WritePolicy> policy = make_write_policy(config.write_policy);
  KV_CHECK(policy != nullptr, "a write policy is known by its name");
  KV_CHECK(policy->writes_after_inserts() > 0, "a page is inserted before it is written");
  return policy;
}

EvictionSetup setup_for(const EngineConfig& config, Tier tier) {
  const bool device = tier == Tier::device;
  return {.capacity = device ? config.device_pages : config.host_pages,
          .page_tokens = config.shape.page_tokens,
          .doubling_tokens = config.cost_doubling_tokens,
          .prefix_closed = device,
          .whole_nodes = config.evict_unit == EvictUnit::node};
}

}  // namespace

Cache::Cache(const EngineConfig& config, Substrate& substrate, Storage& storage, const EventSink& sink)
    : config_(config),
      substrate_(substrate),
      storage_(storage),
      sink_(sink),
      write_(write_policy_of(config)),
      load_back_admission_(make_load_back_admission(config.load_back_admission)),
      writes_back_(write_->writes_when_evicted() && config.host_pages != 0),
      copies_evicted_(writes_back_ && !config.pools.empty()),
      tree_(
          make_eviction(config.eviction, setup_for(config, Tier::device)),
          config.host_pages == 0 ? nullptr : make_eviction(config.eviction, setup_for(config, Tier::host)),
          writes_back_ && !copies_evicted_ ? make_eviction(config.eviction, setup_for(config, Tier::device)) : nullptr,
          config.reclaim_shadowed && config.host_pages != 0 && config.reclaim_order == ReclaimOrder::inserted
              ? make_eviction("fifo")
              : nullptr),
      device_(config.device_pages),
      host_(config.host_pages),
      reserve_pages_(config.device_pages * config.clean_reserve / 1024),
      host_reserve_(config.host_pages * config.host_clean_reserve / 1024) {
  KV_CHECK(load_back_admission_ != nullptr, "a load-back admission is known by its name");
  tree_.set_split_refreshes(config.split_refreshes);
  if (config.reclaim_shadowed && config.host_pages != 0 && config.reclaim_order == ReclaimOrder::shadowed) {
    tree_.order_shadowed_copies();
  }
  if (counts_at_insert()) tree_.set_first_hits(0);
  tree_.set_host_has_gaps(host_has_gaps());
  tree_.set_host_prefix_closed(!writes_back_ && config.host_mode == HostMode::cache);
  tree_.set_counts_clean(config.host_clean_reserve != 0 && config.host_mode == HostMode::cache);
  tree_.set_host_evicts_leaving(config.host_evicts_leaving && tree_.leaves_by_choice());
  for (const PoolConfig& pool : config.pools) {
    const Pages tail = (pool.window + config.shape.page_tokens - 1) / config.shape.page_tokens;
    pools_.push_back({&tree_.add_pool(pool.closure, pool.closure == Closure::tail ? tail : 0),
                      PagePool(pool.device_slots),
                      PagePool(pool.host_slots),
                      {}});
    KV_CHECK(pool.closure == Closure::point || pool.device_slots >= config.least_slots(pool),
             "a window pool has room for one request");
    if (pool.closure == Closure::point) {
      KV_CHECK(state_points_ == nullptr, "one pool has states");
      state_points_ = make_state_points(config);
      KV_CHECK(state_points_ != nullptr && !state_points_->of_blocks(), "the state points are those of a tree");
    }
  }
  if (config.hints == HintRule::obey) {
    KV_CHECK(config.block_groups.groups.empty(), "hints hold the pages, windows and states of a tree");
    holds_ = std::make_unique<SessionHolds>(config_, tree_, sink_);
  }
  if (config.session_radix) {
    KV_CHECK(config.block_groups.groups.empty(), "sessions refer to the pages of a tree");
    session_radix_.emplace(tree_);
  }
  if (!pools_.empty()) weigh_victims();
  KV_CHECK(config.host_mode == HostMode::cache ||
               (!writes_back_ && pools_.empty() && !config.storage.empty() && config.host_pages != 0 &&
                config.path == CachePath::via_host && config.block_groups.groups.empty()),
           "a host that keeps no pages is between L1 and a storage tier");
  KV_CHECK(!config.private_loads || (config.host_pages == 0 && config.draft_restored),
           "pages that are loaded straight belong to the request only without L2, and with a draft model's KV");
  KV_CHECK(config.host_clean_reserve == 0 || (config.host_pages != 0 && !config.storage.empty() && pools_.empty() &&
                                              !config.buffers() && config.block_groups.groups.empty()),
           "writes wait on L2 above a storage tier, without windows and states");
  KV_CHECK(pools_.empty() || config.evict_unit == EvictUnit::node, "with windows or states, whole nodes are evicted");
  KV_CHECK(pools_.empty() || config.storage.empty() || (config.host_pages != 0 && config.path == CachePath::via_host),
           "windows and states come from a storage tier through L2");
  if (config.block_groups.groups.empty()) return;
  KV_CHECK(pools_.empty(), "blocks are in one pool of L1");
  const bool of_pages =
      config.block_groups.groups.size() == 1 && config.block_groups.groups.front().blocks_per_page == 1;
  KV_CHECK(config.storage.empty() || (of_pages && config.host_pages != 0 && config.path == CachePath::via_host),
           "blocks that are pages have storage tiers, below a host tier");
  KV_CHECK((config.host_pages == 0) == (config.block_offload.host.chunks == 0), "a host tier has chunks");
  const std::unique_ptr<StatePoints> points = make_state_points(config);
  KV_CHECK(points != nullptr && points->of_blocks(), "the state points are those of blocks");
  BlockGroupsConfig groups = config.block_groups;
  groups.retention = points->retention();
  blocks_ = std::make_unique<BlockGroups>(groups, config.shape.page_tokens);
  if (config.block_offload.host.chunks != 0) begin_offload();
}

void Cache::weigh_victims() {
  pool_eviction_ = make_pool_eviction(config_);
  KV_CHECK(pool_eviction_ != nullptr, "a pool eviction is known by its name");
  if (pool_eviction_->by_use()) return;
  std::vector<PoolVictims::Pool> pools;
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    pools.push_back({pools_[at].index, config_.pools[at].shape.page_bytes()});
  }
  victims_.emplace(tree_, std::move(pools), config_.page_bytes(), config_.shape.page_tokens, *pool_eviction_);
}

void Cache::visit(const Visit& visit) {
  if (holds_ != nullptr) holds_->visit(visit);
  tree_.visit(visit);
  storage_.visit(visit);
}

PrefixMatch Cache::look_up(std::span<const PageKey> keys, RequestId request) {
  if (blocks_ != nullptr) return look_up_blocks(keys, request);
  if (!config_.look_ups_refresh) return match(keys);
  if (pools_.empty()) {
    refresh(keys, 0);
    return tree_.match(keys);
  }
  const PrefixMatch found = match(keys);
  use_path(found.end);
  return found;
}

void Cache::refresh(std::span<const PageKey> keys, Pages from) {
  const NodeId end = tree_.match(keys).end;
  const std::uint64_t stamp = tree_.next_stamp();
  for (NodeId id = end; id != tree_.root() && tree_.node(id).facts.depth_pages >= from; id = tree_.node(id).parent) {
    tree_.stamp(id, stamp);
  }
}

void Cache::hint(const Hint& hint, TimeNs step_time) {
  if (config_.hints == HintRule::ignore) return;
  if (session_radix_ && hint.kind == HintKind::session_end) session_radix_->close(hint.subject);
  if (holds_ != nullptr) holds_->take(hint, step_time);
  if (hint.kind == HintKind::demote || hint.kind == HintKind::prefetch || hint.kind == HintKind::share) return;
  tree_.hint(hint, step_time);
  storage_.hint(hint, step_time);
}

void Cache::begin_step(TimeNs step_time) {
  if (offload_ != nullptr) offload_->set_time(step_time);
  if (holds_ == nullptr) return;
  holds_->begin_step(step_time);
  demote_sessions();
}

void Cache::queue(RequestId request, std::span<const PageKey> keys) {
  tree_.queue(request, keys);
  storage_.queue(request, keys);
}

void Cache::unqueue(RequestId request, std::span<const PageKey> keys) {
  tree_.unqueue(request, keys);
  storage_.unqueue(request, keys);
}

void Cache::raise_priority(std::span<const PageKey> keys, std::int32_t priority) {
  const PrefixMatch found = tree_.match(keys);
  const Pages raised = tree_.raise_priority(found.end, priority);
  storage_.raise_priority(keys.first(found.device_pages + found.host_pages).last(raised), priority);
}

// ---- insert ------------------------------------------------------------------------------------------

NodeId Cache::insert(std::span<const PageKey> keys, std::span<SlotId> slots, Pages shared, bool chunked,
                     const Counted& counted, std::int32_t priority, std::vector<SlotId>* displaced,
                     RequestPools* pools) {
  cut_off_.clear();
  if (pools != nullptr && copies_evicted_) {  // as in SGLang: nodes are split from the top, and copies have that order
    const PrefixMatch above = tree_.peek(keys);
    const bool splits = above.host_pages == 0 && tree_.node(above.end).facts.depth_pages > above.device_pages;
    if (splits) give_windows(*pools, tree_.node(above.end).parent, shared, false);
  }
  const PrefixMatch found = tree_.match(keys);
  const std::uint64_t stamp = tree_.next_stamp();
  KV_CHECK(found.device_pages >= shared, "a request's leased prefix stays on the device");

  // Pages that two requests computed at once: the index keeps its own copy.
  freed_device_.clear();
  for (NodeId id = found.device_end; id != tree_.root() && tree_.node(id).facts.depth_pages > shared;
       id = tree_.node(id).parent) {
    const Node& node = tree_.node(id);
    const Pages first = node.facts.depth_pages - node.facts.pages;
    for (Pages page = std::max(first, shared); page < node.facts.depth_pages; ++page) {
      freed_device_.push_back(slots[page]);
      slots[page] = node.device.slots[page - first];
    }
  }
  if (displaced == nullptr) {
    free(freed_device_);
  } else {
    displaced->insert(displaced->end(), freed_device_.begin(), freed_device_.end());
  }

  if (pools != nullptr) give_windows(*pools, found.device_end, shared, false);

  // Pages that only L2 has: un-evict them with the request's new copy. Then both tiers have the page.
  path_.clear();
  for (NodeId id = found.end; id != found.device_end; id = tree_.node(id).parent) path_.push_back(id);
  while (!path_.empty()) {
    const NodeId id = path_.back();
    path_.pop_back();
    const Pages depth = tree_.node(id).facts.depth_pages, pages = tree_.node(id).facts.pages;
    tree_.set_slots(Tier::device, id, slots.subspan(depth - pages, pages));
    sink_.keys(EventKind::pages_stored, Tier::device, tree_.node(id).keys());
    if (config_.tiering == Tiering::exclusive && tree_.node(id).host.leases == 0) drop_shadowed_copy(id);
    if (leaves_when_stored(id)) drop_shadowed_copy(id);
    if (pools != nullptr) give_windows(*pools, id, depth - pages, false);
  }

  NodeId end = found.end;
  const Pages present = found.device_pages + found.host_pages;
  // With windows or states, as in SGLang: the nodes that were there are copied before the insert leaves a state.
  const bool backs_up = !chunked && config_.host_pages != 0 && !writes_back_;
  const bool in_two_steps = backs_up && !pools_.empty();
  if (in_two_steps) back_up_path(end, counted.backup_hits);
  const Pages raised = tree_.raise_priority(end, priority);
  storage_.raise_priority(keys.subspan(present - raised), priority);
  for (Pages at = present; at < keys.size();) {
    const Pages pages = tree_.shared_history_prefix(keys.subspan(at));
    const auto part = slots.subspan(at, pages);
    end = tree_.insert(end, keys.subspan(at, pages), part, {}, stamp, priority);
    sink_.keys(EventKind::pages_stored, Tier::device, keys.subspan(at, pages));
    if (pools != nullptr) give_windows(*pools, end, at, true);
    at += pages;
  }
  if (pools != nullptr) {
    for (std::size_t at = 0; at < pools_.size() && displaced == nullptr; ++at) {
      if (pools_[at].index->closure() == Closure::tail) free_windows(*pools, at, shared, keys.size());
    }
    give_states(*pools, end);
  }
  tree_.touch(end, stamp, RadixTree::Touch::recency_only);
  if (counts_at_insert() && !writes_back_) tree_.count_touch(end, counted.touches, cut_off_);
  if (backs_up && !in_two_steps) back_up_path(end, counted.backup_hits);
  if (in_two_steps && present < keys.size()) back_up_path(end, std::max(counted.backup_hits, present));
  if (backs_up && present == keys.size()) add_copies(end);
  if (!chunked && config_.host_pages == 0 && storage_.tiers() > 0) store_by_hits(end, counted.backup_hits);
  if (holds_ != nullptr && !chunked) holds_->used(end, keys);
  return end;
}

// ---- accounts ----------------------------------------------------------------------------------------

// If a copy on L2 has arrived, the pages above are on L2 too.
void Cache::check_copies_reachable() const {
  std::vector<NodeId> below{tree_.root()};
  for (std::size_t i = 0; i < below.size(); ++i) {
    const Node& node = tree_.node(below[i]);
    if (node.host.resident() && node.host.arriving == OperationId::none) {
      KV_CHECK(copy_reachable(below[i]), "without write-back, the host set is prefix-closed");
    }
    for (NodeId child = node.first_child; child != NodeId::none; child = tree_.node(child).next_sibling) {
      below.push_back(child);
    }
  }
}

void Cache::check_rest() const {
  KV_CHECK(blocks_ == nullptr || blocks_->busy_blocks() == 0, "at rest no block is in use");
  KV_CHECK(offload_ == nullptr || (offload_->host().is_at_rest() && !offload_->has_jobs()),
           "at rest no chunk is kept, and no request has one");
  const Node& root = tree_.node(tree_.root());
  KV_CHECK(tree_.unleased_device_pages() == tree_.pages(Tier::device), "at rest no page of L1 is leased");
  KV_CHECK(root.host.leases == 0, "at rest no page of L2 is leased");
  for (const Beside& pool : pools_) {
    KV_CHECK(pool.index->slots_leased(Tier::device) + pool.index->slots_leased(Tier::host) == 0,
             "at rest no window and no state is leased");
  }
  check_pools({}, {});
  KV_CHECK(tier_look_ups_.empty() && reading_.empty() && tier_copies_.empty(), "at rest no storage tier is used");
  KV_CHECK(stores_.empty() && direct_loads_.empty() && gates_.empty(), "at rest nothing is in flight");
  KV_CHECK((queued_.empty() || !config_.buffers()) && writing_pages_ == 0, "at rest no page waits for the buffer");
  KV_CHECK(tree_.pages(Tier::device) == device_.used() && tree_.pages(Tier::host) == host_.used(),
           "at rest only the index owns slots");
}

void Cache::check_invariants(Pages request_pages, Pages prefetch_pages, std::span<const RequestPools* const> requests,
                             std::span<const Pages> prefetch_beside) const {
  if (blocks_ != nullptr) {
    std::vector<const BlockTables*> tables;
    for (const RequestPools* const request : requests) tables.push_back(&request->tables);
    std::vector<BlockId> held;
    for (const Lanes* lanes : {&backups_, &loads_}) {
      const auto add = [&](const Transfer& transfer) {
        for (const BlockCopy& copy : transfer.copies) held.insert(held.end(), copy.blocks.begin(), copy.blocks.end());
      };
      for (const Transfer& transfer : lanes->transfers.all()) add(transfer);
      add(lanes->queued);
    }
    blocks_->check_invariants(tables, held);
    if (offload_ != nullptr) offload_->host().check_invariants();
    return storage_.check_invariants();
  }
  check_pools(requests, prefetch_beside);
  if (holds_ != nullptr) holds_->check_invariants();
  check_copies_reachable();
  tree_.check_invariants();
  device_.check_invariants();
  host_.check_invariants();
  KV_CHECK(tree_.pages(Tier::device) + request_pages + given_back_.size() == device_.used(),
           "each device page has exactly one owner");
  Pages stored_pages = 0;
  for (const auto& [number, store] : stores_) stored_pages += store.slots.size();
  KV_CHECK(tree_.pages(Tier::host) + prefetch_pages + stored_pages == host_.used(),
           "each host page has exactly one owner");
  KV_CHECK(stored_pages <= writing_pages_, "writes are part of the buffer");
  storage_.check_invariants();
  KV_CHECK(storage_.anything_in_flight() || stores_.empty(), "each hold for a write has a write in flight");
  for (const Lanes* lanes : {&backups_, &loads_}) {
    const bool load = lanes == &loads_;
    KV_CHECK(lanes->moves.size() == lanes->queued.pages, "each queued page has a move");
    if (copies_evicted_ && !load) continue;  // the index has changed already
    for (const Transfer& transfer : lanes->transfers.all()) {
      Pages marked = 0;
      for (const NodeId id : marked_nodes(transfer, load)) {
        const Node& node = tree_.node(id);
        KV_CHECK(node.alive && node.device.resident() && node.host.resident(), "a page in flight has both its places");
        KV_CHECK(!load || node.device.leases > 0, "a page that is being loaded is leased");
        marked += node.facts.pages;
      }
      KV_CHECK(marked == transfer.pages, "a transfer in flight covers the pages it was submitted with");
    }
  }
}

}  // namespace kvtwin

// Cache, vLLM's offloading for blocks of L1: which blocks are stored in the host tier, what a look-up finds, and which
// blocks are loaded. A chunk is one block of a group. TieredChunks has the chunks; cache/offload_tiers.cpp moves them
// between the host tier and the storage tiers.
//
// Stores: after each pass, the full blocks of the prompt that a later request is expected to need, with one call for
// each state and one for all others. What does not fit is offered again after the next pass.
// Look-ups: behind the prefix on L1, each kind of group by its closure, until all agree. A chunk that is still being
// stored makes the request wait; so does one that another request is loading.
// Rules: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py, with one block per chunk. A hit
// ends at a page, so that a prompt of whole pages loads a page less. Different: blocks that a copy reads are
// given to others only when it has ended, where vLLM lets the pass wait.
#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {
namespace {

std::size_t blocks_up(Tokens tokens, Tokens block) { return static_cast<std::size_t>((tokens + block - 1) / block); }

}  // namespace

void Cache::begin_offload() {
  const std::vector<BlockGroup>& groups = config_.block_groups.groups;
  TieredChunksConfig of{config_.block_offload.host, further_tiers(), config_.block_offload.shape.page_bytes()};
  offload_ = std::make_unique<TieredChunks>(of);
  for (std::uint32_t at = 0; at < groups.size(); ++at) look_up_order_.push_back(at);
  const auto reach = [&](std::uint32_t at) {  // the widest window first
    const BlockGroup& group = groups[at];
    if (group.closure == Closure::path) return ~std::size_t{0};
    return group.closure == Closure::point ? 1 : blocks_to_load(group, 0);
  };
  std::ranges::stable_sort(look_up_order_, std::ranges::greater{}, reach);
}

Chunk Cache::chunk_of(std::uint32_t group, std::span<const PageKey> keys, std::size_t block) const {
  const std::vector<BlockGroup>& groups = config_.block_groups.groups;
  const std::uint32_t parts = groups[group].blocks_per_page;
  const auto part = static_cast<std::uint32_t>(block % parts);
  Chunk chunk;
  chunk.key.key = keys[block / parts];
  chunk.key.group = group + part * static_cast<std::uint32_t>(groups.size());
  chunk.end = (block + 1) * (config_.shape.page_tokens / parts);
  return chunk;
}

// ---- look-ups --------------------------------------------------------------------------------------------------

// Returns how many blocks a group needs at the end of a prefix of `end` tokens.
std::size_t Cache::blocks_to_load(const BlockGroup& group, Tokens end) const {
  if (group.closure == Closure::point) return 1;
  const Tokens block = config_.shape.page_tokens / group.blocks_per_page;
  const Tokens beyond = (block - end % block) % block;
  return std::max(blocks_up(group.window, block), blocks_up(group.window - 1 + beyond, block));
}

// What a storage tier has comes to the host tier once for a request: if it has left again, the host tier is too small
// for the prefix. (vLLM reads it again and again then.)
Found Cache::look_up_chunk(const Chunk& chunk, RequestId request) {
  const bool was_read = offload_->host().look_up(chunk.key) == Found::miss && offload_->source_of(chunk.key, request);
  return was_read ? Found::miss : offload_->look_up(chunk, request);
}

// Return how many of the blocks [from, to) of the group can be loaded; none if that depends on what is under way.
std::optional<std::size_t> Cache::prefix_on_host(std::uint32_t group, std::span<const PageKey> keys, std::size_t from,
                                                 std::size_t to, RequestId request) {
  std::size_t found = 0;
  bool waits = false;
  for (; from + found < to; ++found) {
    const Found here = look_up_chunk(chunk_of(group, keys, from + found), request);
    if (here == Found::miss) break;
    waits |= here != Found::hit;
  }
  return waits ? std::nullopt : std::optional(found);
}

std::optional<std::size_t> Cache::window_on_host(std::uint32_t group, std::span<const PageKey> keys, std::size_t from,
                                                 std::size_t to, Tokens end, RequestId request) {
  const BlockGroup& of = config_.block_groups.groups[group];
  std::size_t needed = blocks_to_load(of, end), run = 0;
  bool waits = false;
  for (std::size_t at = to; at-- > from;) {
    const Found here = look_up_chunk(chunk_of(group, keys, at), request);
    run = here == Found::miss ? 0 : run + 1;
    waits = here == Found::miss ? false : waits || here == Found::pending;
    if (here == Found::miss) needed = blocks_to_load(of, 0);
    if (run == needed) return waits ? std::nullopt : std::optional(at - from + run);
  }
  return waits ? std::nullopt : std::optional(run);
}

// Returns how many tokens behind the first `computed` ones can be loaded; none if that depends on a transfer under way.
std::optional<Tokens> Cache::find_on_host(std::span<const PageKey> keys, Tokens computed, RequestId request) {
  const std::vector<BlockGroup>& groups = config_.block_groups.groups;
  const Tokens page = config_.shape.page_tokens;
  Tokens end = keys.size() * page, hit = 0;
  const auto windows =
      std::ranges::find_if(look_up_order_, [&](std::uint32_t group) { return groups[group].closure != Closure::path; });
  const auto all = look_up_order_.begin(), none = look_up_order_.end();
  auto next = all;
  bool waits = false;
  while (next != none) {
    const auto first = std::exchange(next, none);
    bool by_window = false;
    for (auto at = first; at != none; ++at) {
      const BlockGroup& group = groups[*at];
      const Tokens block = page / group.blocks_per_page;
      if (end < computed + block) return 0;
      const std::size_t from = computed / block, to = blocks_up(end, block);
      const bool is_path = group.closure == Closure::path;
      const auto found =
          is_path ? prefix_on_host(*at, keys, from, to, request) : window_on_host(*at, keys, from, to, end, request);
      if (found == std::size_t{0}) return 0;
      waits |= !found;
      if (found) end = std::min<Tokens>(end, block * (from + *found));
      if (end < computed + block) return 0;
      if (end - computed < hit) {
        if (std::exchange(waits, false)) {
          next = all;
        } else if (by_window && next == none) {
          next = windows;
        }
      }
      by_window |= !is_path;
      hit = end - computed;
    }
    if (next == none && !waits && end % page != 0) {  // blocks of different sizes
      end = end / page * page;
      next = all;
    }
  }
  if (waits) return std::nullopt;
  for (const std::uint32_t at : look_up_order_) {
    const Tokens block = page / groups[at].blocks_per_page;
    const std::size_t from = computed / block, to = end / block;
    const std::size_t needed = groups[at].closure == Closure::path ? to : blocks_to_load(groups[at], end);
    for (std::size_t of = std::max(from, to - std::min(to, needed)); of < to && !loading_.empty(); ++of) {
      if (loading_.contains(chunk_of(at, keys, of).key)) return std::nullopt;
    }
  }
  return hit;
}

PrefixMatch Cache::look_up_blocks(std::span<const PageKey> keys, RequestId request) {
  PrefixMatch match = match_blocks(keys);
  if (offload_ == nullptr) return match;
  offload_->begin(request);
  const Tokens page = config_.shape.page_tokens;
  const std::optional<Tokens> found = find_on_host(keys, match.device_pages * page, request);
  match.waits = !found;
  match.host_pages = found.value_or(0) / page;
  if (match.waits && storage_.tiers() > 0) asking_.emplace_back(request, std::vector(keys.begin(), keys.end()));
  count_unusable(keys, match);
  return match;
}

// ---- loads -----------------------------------------------------------------------------------------------------

void Cache::load_blocks(std::span<const PageKey> keys, const PrefixMatch& match, RequestId request,
                        RequestPools& pools) {
  const Pages end = match.device_pages + match.host_pages;
  sink_.decide(DecisionKind::load_back, Reason::none, keys[match.device_pages], match.host_pages, request);
  BlockCopy copy;
  copy.request = request;
  for (const BlockGroups::Held& held : blocks_->allocate_to_load(pools.tables, end * config_.shape.page_tokens)) {
    copy.chunks.push_back(chunk_of(held.group, keys, held.at));
    copy.blocks.push_back(held.block);
    loading_.insert(copy.chunks.back().key);
  }
  const std::vector<SlotId> slots = offload_->prepare_load(copy.chunks, request);
  std::vector<SlotId> own;
  append_slots(pools, end, own);
  sink_.slots(EventKind::slots_allocated, Tier::device, std::span(own).subspan(match.device_pages));
  report_blocks();
  pools.load = mark_of(loads_);
  add_copy(loads_, std::move(copy), slots, true);
  sink_.event({.kind = EventKind::load_queued, .tier = Tier::device, .pages = match.host_pages});
}

void Cache::loaded(RequestPools& pools, std::span<const PageKey> keys, Tokens tokens) {
  if (offload_ == nullptr) return;
  blocks_->publish(pools.tables, keys, tokens);
  report_blocks();
}

bool Cache::depends_on_load(const RequestPools& pools, std::uint64_t number) const {
  return pools.load != OperationId::none && loads_.transfers.has(number) &&
         loads_.transfers.numbered(number).mark == pools.load;
}

void Cache::request_ended(RequestId request) {
  if (offload_ == nullptr) return;
  offload_->begin(request);  // it may have looked nothing up
  offload_->finish(request);
}

// ---- stores ----------------------------------------------------------------------------------------------------

// `computed`: tokens that may be cached.
void Cache::offload(RequestPools& pools, std::span<const PageKey> keys, Tokens computed) {
  const Tokens page = config_.shape.page_tokens;
  Tokens tokens = std::min<Tokens>(computed, keys.size() * page);
  if (config_.block_offload.prompt_only) tokens = std::min(tokens, pools.tables.prompt);
  tokens = tokens / page * page;
  std::vector<BlockGroups::Held> others;
  for (const BlockGroups::Held& held : blocks_->unoffloaded(pools.tables, tokens)) {
    if (config_.block_groups.groups[held.group].closure == Closure::point) {
      offload(std::span(&held, 1), keys, pools.request);
    } else {
      others.push_back(held);
    }
  }
  blocks_->set_offloaded(pools.tables, tokens, true);
  if (others.empty() || offload(others, keys, pools.request)) blocks_->set_offloaded(pools.tables, tokens, false);
}

// Returns false, and stores nothing, if the host tier has no room.
bool Cache::offload(std::span<const BlockGroups::Held> blocks, std::span<const PageKey> keys, RequestId request) {
  std::vector<Chunk> offered;
  for (const BlockGroups::Held& held : blocks) offered.push_back(chunk_of(held.group, keys, held.at));
  offload_->begin(request);
  auto store = offload_->prepare_store(offered, request);
  const PageKey& key = offered.front().key.key;
  if (!store) {
    sink_.decide(DecisionKind::backup, Reason::capacity, key, offered.size(), request);
    sink_.event({.kind = EventKind::backup_dropped, .tier = Tier::host, .reason = Reason::capacity, .pages = 0});
    return false;
  }
  report_host_chunks();
  if (store->chunks.empty()) return true;
  sink_.decide(DecisionKind::backup, Reason::none, key, store->chunks.size(), request);
  sink_.slots(EventKind::slots_allocated, Tier::host, store->slots);
  BlockCopy copy;
  copy.request = request;
  for (std::size_t i = 0, at = 0; i < offered.size() && at < store->chunks.size(); ++i) {
    if (offered[i].key != store->chunks[at].key) continue;
    copy.blocks.push_back(blocks[i].block);
    const std::size_t page = blocks[i].at / config_.block_groups.groups[blocks[i].group].blocks_per_page;
    copy.priors.push_back(page == 0 ? PageKey{} : keys[page - 1]);
    ++at;
  }
  copy.chunks = std::move(store->chunks);
  add_copy(backups_, std::move(copy), store->slots, false);
  return true;
}

// What the host tier has evicted or not got after all.
void Cache::report_host_chunks() {
  for (const HostChunks::Change& change : offload_->take_changes()) {
    const bool came = change.kind == HostChunks::Change::Kind::stored;
    const bool evicted = change.kind == HostChunks::Change::Kind::evicted;
    std::vector<PageKey> pages;
    for (const ChunkKey& chunk : change.chunks) {
      if (is_page(chunk)) pages.push_back(chunk.key);
    }
    if (evicted) {
      sink_.decide(DecisionKind::evict_host, Reason::lost, change.chunks.front().key, change.chunks.size());
      sink_.event({.kind = EventKind::evicted, .tier = Tier::host, .reason = Reason::lost, .pages = pages.size()});
    }
    if (!change.slots.empty()) sink_.slots(EventKind::slots_released, Tier::host, change.slots);
    if (pages.empty() || (!came && !evicted)) continue;
    sink_.keys(came ? EventKind::pages_stored : EventKind::pages_removed, Tier::host, pages);
  }
}

// ---- transfers -------------------------------------------------------------------------------------------------

// `slots`: of the chunks on the host. The first block of a page is the page's slot on L1; the other blocks, and those
// of windows and states, move beside.
void Cache::add_copy(Lanes& lanes, BlockCopy copy, std::span<const SlotId> slots, bool to_device) {
  lanes.beside.resize(1);
  for (std::size_t i = 0; i < copy.chunks.size(); ++i) {
    const ChunkKey& key = copy.chunks[i].key;
    const BlockId block = copy.blocks[i];
    const PageMove move = to_device ? PageMove{key.key, slots[i], block} : PageMove{key.key, block, slots[i]};
    (is_page(key) ? lanes.moves : lanes.beside.front()).push_back(move);
    copy.pages += is_page(key) ? 1 : 0;
  }
  blocks_->hold(copy.blocks);
  lanes.queued.pages += copy.pages;
  const Pages pages = copy.pages;
  lanes.queued.copies.push_back(std::move(copy));
  if (!to_device) sink_.event({.kind = EventKind::backup_queued, .tier = Tier::host, .pages = pages});
}

void Cache::submit_blocks(Lanes& lanes, Direction direction, bool busy) {
  const BlockOffloadConfig& of = config_.block_offload;
  const PoolPair pools{of.shape, config_.host_layout, config_.device_slots(), of.host.chunks};
  TransferOperation operation;
  operation.lane = direction == Direction::host_to_device ? Lane::h2d : Lane::d2h;
  operation.plan.direction = direction;
  operation.plan.host_layout = config_.host_layout;
  operation.plan.shape = of.shape;
  const auto planned = [&](std::span<const PageMove> moves, std::vector<PageRun>& runs) {
    sources_.clear();
    targets_.clear();
    for (const PageMove& move : moves) {
      sources_.push_back(move.source);
      targets_.push_back(move.target);
    }
    join_runs(sources_, targets_, runs);
    return plan_transfer(runs, direction, pools, config_.io, config_.planner, busy);
  };
  std::vector<PageRun> beside;
  if (!lanes.moves.empty()) operation.plan = planned(lanes.moves, runs_);
  operation.pages = lanes.moves;
  if (!lanes.beside.front().empty()) {
    operation.parts.push_back({0, planned(lanes.beside.front(), beside), lanes.beside.front()});
  }
  lanes.queued.id = substrate_.submit(operation);
  sink_.event({.kind = EventKind::transfer_submitted,
               .tier = direction == Direction::host_to_device ? Tier::device : Tier::host,
               .pages = lanes.queued.pages,
               .operation = lanes.queued.id});
  lanes.queued.mark = mark_of(lanes);
  ++lanes.marks;
  lanes.transfers.push(std::exchange(lanes.queued, Transfer{}));
  lanes.moves.clear();
  lanes.beside.front().clear();
}

void Cache::acknowledge_blocks(const Transfer& transfer, bool to_device, bool done) {
  for (const BlockCopy& copy : transfer.copies) {
    blocks_->release_held(copy.blocks);
    if (to_device) {
      for (const Chunk& chunk : copy.chunks) loading_.erase(chunk.key);
      offload_->complete_load(copy.chunks);
    } else {
      offload_->complete_store(copy.chunks, copy.request, done);
      write_to_tiers(copy);
    }
  }
  report_host_chunks();
  if (to_device) settled_load_ = transfer.mark;
  EventKind kind = done ? EventKind::load_done : EventKind::load_failed;
  if (!to_device) kind = done ? EventKind::backup_done : EventKind::backup_dropped;
  sink_.event({.kind = kind,
               .tier = to_device ? Tier::device : Tier::host,
               .reason = done ? Reason::none : Reason::transfer_failed,
               .pages = transfer.pages,
               .operation = transfer.id});
}

}  // namespace kvtwin

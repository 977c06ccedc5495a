#include "policy/index/block_groups.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mix.hpp"

namespace kvtwin {
namespace {

std::size_t blocks_up(Tokens tokens, Tokens block) { return static_cast<std::size_t>((tokens + block - 1) / block); }

}  // namespace

BlockGroups::BlockGroups(const BlockGroupsConfig& config, Tokens page_tokens)
    : config_(config), page_tokens_(page_tokens), blocks_(kFirstBlock), fresh_(config.blocks - 1) {
  KV_CHECK(config.blocks > 1 && !config.groups.empty(), "a pool has a block beside the null block, and a group");
  for (std::uint32_t at = 0; at < config.groups.size(); ++at) {
    const BlockGroup& group = config.groups[at];
    const auto kind = std::ranges::find_if(kinds_, [&](const Kind& known) {
      return known.of.closure == group.closure && known.of.window == group.window &&
             known.of.blocks_per_page == group.blocks_per_page;
    });
    if (kind != kinds_.end()) {
      kind->groups.push_back(at);
    } else {
      kinds_.push_back({group, {at}});
    }
  }
  std::ranges::stable_sort(kinds_, {}, [](const Kind& kind) { return kind.of.closure != Closure::path; });
  table_.rebuild(1, [](const Place&) { return true; });
  link(kFresh, kNoBlock);
  free_ = capacity();
}

// ---- the queue of free blocks, and the blocks with a key -----------------------------------------------------

// Puts the block into the queue, behind `before`.
void BlockGroups::link(BlockId id, BlockId before) {
  const BlockId after = blocks_[before].after;
  blocks_[id].before = before;
  blocks_[id].after = after;
  blocks_[before].after = id;
  blocks_[after].before = id;
}

void BlockGroups::unlink(BlockId id) {
  blocks_[blocks_[id].before].after = blocks_[id].after;
  blocks_[blocks_[id].after].before = blocks_[id].before;
}

std::uint32_t BlockGroups::hash_of(const Name& name) {
  const std::uint64_t of_part = (std::uint64_t{name.group} << 32 | name.part) * kGoldenRatio64;
  return static_cast<std::uint32_t>(mixed_bits(name.key.words[0] + of_part) >> 32);
}

std::size_t BlockGroups::place_of(const Name& name) const {
  const std::uint32_t hash = hash_of(name);
  return table_.find(hash, [&](const Place& place) {
    const Block& block = blocks_[place.block];
    return place.hash == hash && block.group == name.group && block.part == name.part && block.key == name.key;
  });
}

void BlockGroups::put(BlockId id, const Name& name) {
  Block& block = blocks_[id];
  KV_CHECK(!block.known, "a full block is published once");
  block.known = true;
  block.group = name.group;
  block.part = name.part;
  block.key = name.key;
  block.next_same = kNoBlock;
  if (2 * known_ >= table_.places()) {
    table_.rebuild(2 * table_.lines(), [](const Place&) { return true; });
  }
  Place& place = table_.at(place_of(name));
  if (place.is_empty()) {
    place = {id, hash_of(name)};
    ++known_;
    if (ends_page(name.group, name.part)) changes_.came.push_back(name.key);
    return;
  }
  BlockId last = place.block;
  while (blocks_[last].next_same != kNoBlock) last = blocks_[last].next_same;
  blocks_[last].next_same = id;
}

void BlockGroups::forget(BlockId id) {
  Block& block = blocks_[id];
  if (!block.known) return;
  const std::size_t at = place_of({block.group, block.part, block.key});
  Place& place = table_.at(at);
  if (place.block != id) {
    BlockId before = place.block;
    while (blocks_[before].next_same != id) before = blocks_[before].next_same;
    blocks_[before].next_same = block.next_same;
  } else if (block.next_same != kNoBlock) {
    place.block = block.next_same;
  } else {
    table_.erase(at);
    --known_;
    if (ends_page(block.group, block.part)) changes_.went.push_back(block.key);
  }
  block.known = false;
  block.next_same = kNoBlock;
}

// Appends blocks from the front of the queue. Blocks that a transfer holds leave the queue, to wait for its end.
void BlockGroups::take(std::vector<BlockId>& blocks, std::size_t count) {
  KV_CHECK(count <= free_, "the blocks were counted before");
  for (std::size_t i = 0; i < count; ++i) {
    BlockId id = blocks_[kNoBlock].after;
    for (; id != kFresh && blocks_[id].held > 0; id = blocks_[kNoBlock].after) {
      unlink(id);
      blocks_[id].waits = true;
    }
    if (id == kFresh) {
      id = static_cast<BlockId>(blocks_.size());
      blocks_.emplace_back();
      if (--fresh_ == 0) unlink(kFresh);
    } else {
      unlink(id);
    }
    if (blocks_[id].known) {
      ++evicted_;
      changes_.evicted.push_back({blocks_[id].group, blocks_[id].key});
    } else {
      ++filled_;
    }
    forget(id);
    blocks_[id].uses = 1;
    blocks.push_back(id);
  }
  free_ -= static_cast<std::uint32_t>(count);
  filled_most_ = std::max(filled_most_, filled_);
}

void BlockGroups::use(BlockId id) {
  if (id == kNoBlock) return;
  Block& block = blocks_[id];
  if (block.uses == 0 && !std::exchange(block.waits, false)) unlink(id);
  if (is_free(id)) --free_;
  ++block.uses;
}

// Blocks without a key go to the front of the queue, in the order given, and blocks with one to its back.
void BlockGroups::give_back(std::span<const BlockId> blocks) {
  BlockId front = kNoBlock;
  for (const BlockId id : blocks) {
    if (id == kNoBlock || --blocks_[id].uses > 0) continue;
    if (blocks_[id].known) {
      link(id, blocks_[kNoBlock].before);
    } else {
      link(id, front);
      front = id;
    }
    count_free(id);
  }
}

// A block that nobody used has become free, unless a transfer still holds it.
void BlockGroups::count_free(BlockId id) {
  if (!is_free(id)) return;
  ++free_;
  if (!blocks_[id].known) --filled_;
}

void BlockGroups::hold(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    KV_CHECK(blocks_[id].uses > 0, "a transfer of a request's blocks begins");
    ++blocks_[id].held;
  }
}

void BlockGroups::release_held(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    if (--blocks_[id].held > 0) continue;
    if (std::exchange(blocks_[id].waits, false)) link(id, kNoBlock);
    count_free(id);
  }
}

// ---- which prefix a request can continue from ----------------------------------------------------------------

// Returns whether the pages of full attention are counted by blocks like this one.
bool BlockGroups::ends_page(std::uint32_t group, std::uint32_t part) const {
  const Kind& first = kinds_.front();
  return group == first.groups.front() && part + 1 == first.of.blocks_per_page && first.of.closure == Closure::path;
}

bool BlockGroups::has(const Kind& kind, std::span<const PageKey> keys, std::size_t block) const {
  return std::ranges::all_of(kind.groups,
                             [&](std::uint32_t group) { return cached(name_of(group, keys, block)) != kNoBlock; });
}

// Returns the longest prefix of at most `most` tokens that the kind accepts.
Tokens BlockGroups::longest(const Kind& kind, std::span<const PageKey> keys, Tokens most) const {
  const Tokens block = block_tokens(kind.of);
  std::size_t blocks = std::min<std::size_t>(most / block, keys.size() * kind.of.blocks_per_page);
  const auto aligned = [&](std::size_t count) { return count % kind.of.blocks_per_page == 0; };
  if (kind.of.closure == Closure::path) {
    std::size_t found = 0;
    while (found < blocks && has(kind, keys, found)) ++found;
    while (!aligned(found)) --found;
    return found * block;
  }
  if (kind.of.closure == Closure::point) {
    while (blocks > 0 && !(aligned(blocks) && has(kind, keys, blocks - 1))) --blocks;
    return blocks * block;
  }
  const std::size_t needed = blocks_up(kind.of.window - 1, block);
  std::size_t run = 0;
  for (std::size_t at = blocks; at-- > 0;) {
    if (!has(kind, keys, at)) {
      run = 0;
    } else if (run > 0 || aligned(at + 1)) {
      if (++run >= needed) return (at + run) * block;
    }
  }
  while (!aligned(run)) --run;  // from the first block on, shorter than a window
  return run * block;
}

BlockGroups::Hit BlockGroups::find(std::span<const PageKey> keys, Tokens most) const {
  Hit hit;
  Tokens length = most;
  std::optional<Tokens> full;
  const bool once = kinds_.size() == 2 && kinds_.front().of.closure == Closure::path;
  for (;;) {
    Tokens now = length;
    for (const Kind& kind : kinds_) {
      if (kind.of.closure == Closure::path && full) {
        now = std::min(now, *full);
        continue;
      }
      now = longest(kind, keys, now);
      if (kind.of.closure == Closure::path) full = now;
      hit.longest = std::max(hit.longest, now);
    }
    const bool settled = now >= length;
    length = std::min(length, now);
    if (settled || once || kinds_.size() == 1) break;
  }
  hit.tokens = length;
  hit.blocks.resize(config_.groups.size());
  for (std::uint32_t at = 0; at < config_.groups.size(); ++at) {
    const BlockGroup& group = config_.groups[at];
    const std::size_t count = length / block_tokens(group);
    std::size_t needed = count;
    if (group.closure == Closure::tail) needed = std::min(count, blocks_up(group.window - 1, block_tokens(group)));
    if (group.closure == Closure::point) needed = std::min<std::size_t>(count, 1);
    hit.blocks[at].assign(count, kNoBlock);
    for (std::size_t block = count - needed; block < count; ++block) {
      const BlockId id = cached(name_of(at, keys, block));
      hit.blocks[at][block] = id;
      if (is_free(id)) ++hit.free_blocks;
    }
  }
  return hit;
}

std::vector<Tokens> BlockGroups::longest_of_each(std::span<const PageKey> keys, Tokens most) const {
  std::vector<Tokens> lengths(config_.groups.size());
  for (const Kind& kind : kinds_) {
    for (const std::uint32_t group : kind.groups) lengths[group] = longest(kind, keys, most);
  }
  return lengths;
}

// ---- the blocks of a request ---------------------------------------------------------------------------------

Tokens BlockGroups::skipped_tokens(const BlockGroup& group, Tokens computed) const {
  if (group.closure == Closure::path) return 0;
  const Tokens needed = group.closure == Closure::tail ? group.window - 1 : 1;
  return computed > needed ? computed - needed : 0;
}

void BlockGroups::enter(BlockTables& request, const Hit& hit, Tokens prompt, Tokens to) {
  KV_CHECK(request.tables.empty(), "a request enters once");
  request.tables.resize(config_.groups.size());
  request.prompt = prompt;
  request.junction = hit.longest > hit.tokens ? hit.longest : 0;
  for (std::size_t at = 0; at < request.tables.size(); ++at) {
    BlockTables::Table& table = request.tables[at];
    table.blocks = hit.blocks[at];
    const Tokens skipped = skipped_tokens(config_.groups[at], std::max(hit.tokens, to));
    const auto first = std::min<std::size_t>(skipped / block_tokens(config_.groups[at]), table.blocks.size());
    std::fill_n(table.blocks.begin(), first, kNoBlock);
    for (const BlockId id : table.blocks) use(id);
    table.cached = table.blocks.size();
    if (config_.groups[at].closure == Closure::point) table.offloaded = table.cached;  // only new states are stored
  }
}

std::uint32_t BlockGroups::wanted(std::size_t held, const BlockGroup& group, Tokens to) const {
  const std::size_t needed = blocks_up(to, block_tokens(group));
  const std::size_t more = needed > held ? needed - held : 0;
  return static_cast<std::uint32_t>(group.closure == Closure::point ? std::min<std::size_t>(more, 1) : more);
}

std::uint32_t BlockGroups::wanted(const BlockTables& request, Tokens to) const {
  std::uint32_t all = 0;
  for (std::size_t at = 0; at < request.tables.size(); ++at) {
    all += wanted(request.tables[at].blocks.size(), config_.groups[at], to);
  }
  return all;
}

std::uint32_t BlockGroups::wanted(const Hit& hit, Tokens to) const {
  std::uint32_t all = hit.free_blocks;
  for (std::size_t at = 0; at < hit.blocks.size(); ++at) all += wanted(hit.blocks[at].size(), config_.groups[at], to);
  return all;
}

void BlockGroups::release(BlockTables::Table& table, const BlockGroup& group, Tokens computed) {
  if (group.closure == Closure::path) return;
  freed_.clear();
  const auto block = block_tokens(group);
  const auto last = std::min<std::size_t>(skipped_tokens(group, computed) / block, table.blocks.size());
  const auto drop = [&](std::size_t at) {
    if (table.blocks[at] != kNoBlock) freed_.push_back(std::exchange(table.blocks[at], kNoBlock));
  };
  if (group.closure == Closure::tail) {
    for (std::size_t at = last; at-- > 0 && table.blocks[at] != kNoBlock;) drop(at);
    return give_back(freed_);
  }
  for (std::size_t at = last; at > table.retired; --at) drop(at - 1);
  table.retired = std::max(table.retired, last);
  give_back(freed_);
}

void BlockGroups::release(BlockTables& request, Tokens computed) {
  for (std::size_t at = 0; at < request.tables.size(); ++at) {
    release(request.tables[at], config_.groups[at], computed);
  }
}

bool BlockGroups::allocate(BlockTables& request, Tokens from, Tokens to) {
  release(request, from);
  if (wanted(request, to) > free_) return false;
  for (std::size_t at = 0; at < request.tables.size(); ++at) {
    BlockTables::Table& table = request.tables[at];
    const BlockGroup& group = config_.groups[at];
    const std::size_t needed = blocks_up(to, block_tokens(group));
    if (group.closure == Closure::point && needed > table.blocks.size()) {
      table.blocks.resize(needed - 1, kNoBlock);  // the last state is copied into the new block; between lie none
    }
    if (needed > table.blocks.size()) take(table.blocks, needed - table.blocks.size());
  }
  return true;
}

// ---- room ----------------------------------------------------------------------------------------------------

std::uint64_t BlockGroups::blocks_of(Pages pages, Tokens chunk) const {
  const bool has_full = kinds_.front().of.closure == Closure::path;
  std::uint64_t all = 0;
  for (const BlockGroup& group : config_.groups) {
    const std::uint64_t blocks = pages * group.blocks_per_page;
    std::uint64_t most = blocks;
    if (group.closure == Closure::point) most = 2;  // the one that is copied, and the one of the pass
    if (group.closure == Closure::tail && has_full) most = blocks_up(group.window - 1 + chunk, block_tokens(group)) + 1;
    all += std::min(blocks, most);
  }
  return all;
}

Pages BlockGroups::pages_in(std::uint64_t blocks, Tokens chunk) const {
  Pages fits = 0, too_many = blocks + 1;  // a page takes a block at least
  while (too_many - fits > 1) {
    const Pages pages = fits + (too_many - fits) / 2;
    (blocks_of(pages, chunk) <= blocks ? fits : too_many) = pages;
  }
  return fits;
}

Pages BlockGroups::longest_request(std::uint64_t blocks, Tokens chunk) const {
  std::uint64_t of_hit = 0;  // blocks that blocks_of() does not count among those of full attention
  for (const BlockGroup& group : config_.groups) {
    if (group.closure == Closure::tail) of_hit += blocks_up(group.window - 1, block_tokens(group));
    if (group.closure == Closure::point) ++of_hit;
  }
  return blocks > of_hit ? pages_in(blocks - of_hit, chunk) : 0;
}

Pages BlockGroups::apart(Pages pages, bool beside, Tokens chunk) const {
  if (pages == 0) return 0;
  std::uint64_t of_page = 0, full = 0;
  for (const BlockGroup& group : config_.groups) {
    of_page += group.blocks_per_page;
    if (group.closure == Closure::path) full += group.blocks_per_page;
  }
  if (beside) return full == 0 ? pages * of_page : (pages * of_page + full - 1) / full;
  return pages_in(pages * of_page - 1, chunk) + 1;
}

// ---- what later requests can continue from -------------------------------------------------------------------

bool BlockGroups::keeps_all(const BlockGroup& group) const {
  if (group.closure == Closure::path) return true;
  const Tokens segment = config_.retention.value_or(group.closure == Closure::tail ? page_tokens_ : 0);
  if (!config_.retention && group.closure == Closure::point) return true;
  if (segment == 0) return false;
  const std::size_t blocks = segment / block_tokens(group);
  return group.closure == Closure::point ? blocks <= 1 : blocks_up(group.window - 1, block_tokens(group)) >= blocks;
}

// Returns which of the blocks [from, to) a later request is expected to need.
std::vector<bool> BlockGroups::reachable(const BlockGroup& group, std::size_t from, std::size_t to,
                                         std::span<const Tokens> boundaries) const {
  std::vector<bool> mask(to - from, keeps_all(group));
  if (keeps_all(group)) return mask;
  const Tokens block = block_tokens(group);
  const std::size_t needed = group.closure == Closure::point ? 1 : blocks_up(group.window - 1, block);
  const auto keep_before = [&](std::size_t end) {
    const std::size_t first = end > needed ? end - needed : 0;
    for (std::size_t at = std::max(first, from); at < std::min(end, to); ++at) mask[at - from] = true;
  };
  const Tokens segment = config_.retention.value_or(page_tokens_);
  if (segment != 0) {
    const std::size_t blocks = segment / block;
    for (std::size_t end = (from / blocks + 1) * blocks; end < to + blocks; end += blocks) keep_before(end);
  }
  if (!config_.retention) return mask;
  for (const Tokens boundary : boundaries) keep_before(boundary / page_tokens_ * page_tokens_ / block);
  return mask;
}

// Returns the lengths that a later request is expected to continue from.
std::vector<Tokens> BlockGroups::kept_positions(const BlockTables& request) const {
  std::vector<Tokens> positions = {request.prompt - 1};
  if (request.junction != 0) positions.push_back(request.junction);
  return positions;
}

void BlockGroups::publish(BlockTables& request, std::span<const PageKey> keys, Tokens tokens) {
  const std::vector<Tokens> boundaries = kept_positions(request);
  // Whole pages only: else a page could be found whose first block, which is its slot, holds a part of it.
  const Tokens cacheable = tokens / page_tokens_ * page_tokens_;
  for (std::uint32_t at = 0; at < request.tables.size(); ++at) {
    BlockTables::Table& table = request.tables[at];
    const BlockGroup& group = config_.groups[at];
    const Tokens known = std::min<Tokens>(cacheable, keys.size() * page_tokens_);
    const std::size_t full = std::min<std::size_t>(known / block_tokens(group), table.blocks.size());
    if (full <= table.cached) continue;
    const std::vector<bool> mask = reachable(group, table.cached, full, boundaries);
    for (std::size_t block = table.cached; block < full; ++block) {
      if (table.blocks[block] == kNoBlock || !mask[block - table.cached]) continue;
      put(table.blocks[block], name_of(at, keys, block));
    }
    table.cached = full;
  }
}

void BlockGroups::leave(BlockTables& request) {
  for (BlockTables::Table& table : request.tables) {
    freed_.assign(table.blocks.rbegin(), table.blocks.rend());
    give_back(freed_);
  }
  request = {};
}

// ---- a host tier ---------------------------------------------------------------------------------------------

std::uint32_t BlockGroups::wanted_to_load(const Hit& hit, Tokens to) const {
  std::uint32_t all = 0;
  for (std::size_t at = 0; at < hit.blocks.size(); ++at) {
    const BlockGroup& group = config_.groups[at];
    const std::size_t end = to / block_tokens(group), skipped = skipped_tokens(group, to) / block_tokens(group);
    const std::size_t held = hit.blocks[at].size(), first = std::max(held, skipped);
    all += static_cast<std::uint32_t>(end > first ? end - first : 0);
    const std::size_t used = group.closure == Closure::point ? 0 : std::min(held, skipped);
    for (std::size_t block = used; block < held; ++block) {
      const BlockId id = hit.blocks[at][block];
      if (id != kNoBlock && is_free(id)) ++all;
    }
  }
  return all;
}

std::vector<BlockGroups::Held> BlockGroups::allocate_to_load(BlockTables& request, Tokens to) {
  std::vector<Held> taken;
  for (std::uint32_t at = 0; at < request.tables.size(); ++at) {
    BlockTables::Table& table = request.tables[at];
    const BlockGroup& group = config_.groups[at];
    const std::size_t end = to / block_tokens(group), skipped = skipped_tokens(group, to) / block_tokens(group);
    if (skipped > table.blocks.size()) table.blocks.resize(skipped, kNoBlock);
    const std::size_t first = table.blocks.size();
    if (end > first) take(table.blocks, end - first);
    for (std::size_t block = first; block < end; ++block) taken.push_back({at, block, table.blocks[block]});
    table.offloaded = end;
  }
  return taken;
}

std::vector<BlockGroups::Held> BlockGroups::unoffloaded(const BlockTables& request, Tokens tokens) const {
  const std::vector<Tokens> boundaries = kept_positions(request);
  std::vector<Held> blocks;
  for (std::uint32_t at = 0; at < request.tables.size(); ++at) {
    const BlockTables::Table& table = request.tables[at];
    const BlockGroup& group = config_.groups[at];
    const std::size_t full = std::min<std::size_t>(tokens / block_tokens(group), table.blocks.size());
    if (full <= table.offloaded) continue;
    const std::vector<bool> mask = reachable(group, table.offloaded, full, boundaries);
    for (std::size_t block = table.offloaded; block < full; ++block) {
      const BlockId id = table.blocks[block];
      if (id == kNoBlock) continue;
      if (group.closure == Closure::point ? blocks_[id].known : mask[block - table.offloaded]) {
        blocks.push_back({at, block, id});
      }
    }
  }
  return blocks;
}

void BlockGroups::set_offloaded(BlockTables& request, Tokens tokens, bool states) const {
  for (std::size_t at = 0; at < request.tables.size(); ++at) {
    BlockTables::Table& table = request.tables[at];
    const BlockGroup& group = config_.groups[at];
    if ((group.closure == Closure::point) != states) continue;
    const std::size_t full = std::min<std::size_t>(tokens / block_tokens(group), table.blocks.size());
    table.offloaded = std::max(table.offloaded, full);
  }
}

Tokens BlockGroups::cut_chunk(const BlockTables& request, Tokens from, Tokens tokens, Tokens target,
                              Tokens most) const {
  const auto state = std::ranges::find(config_.groups, Closure::point, &BlockGroup::closure);
  if (state == config_.groups.end() || from >= target) return tokens;
  const Tokens block = block_tokens(*state);
  Tokens end = from + tokens;
  if (end < target) {
    const Tokens aligned = end / block * block;
    if (aligned > from || block <= most) end = aligned;
  }
  const Tokens junction = request.junction;
  const Tokens stops[] = {from % block != 0 ? (from / block + 1) * block : 0, (target - 1) / block * block,
                          from < junction && junction < end ? from + (junction - from) / block * block : 0};
  Tokens first = end;
  for (const Tokens stop : stops) {
    if (from < stop && stop < end) first = std::min(first, stop);
  }
  return first > from ? first - from : 0;
}

void BlockGroups::check_invariants(std::span<const BlockTables* const> requests, std::span<const BlockId> held) const {
  std::vector<std::uint32_t> uses(blocks_.size(), 0), holds(blocks_.size(), 0);
  for (const BlockId id : held) ++holds[id];
  for (const BlockTables* const request : requests) {
    for (const BlockTables::Table& table : request->tables) {
      for (const BlockId id : table.blocks) uses[id] += id == kNoBlock ? 0 : 1;
    }
  }
  std::uint32_t free = 0, known = 0, filled = 0;
  for (BlockId id = blocks_[kNoBlock].after, before = kNoBlock; id != kNoBlock; id = blocks_[id].after) {
    KV_CHECK(blocks_[id].before == before && blocks_[id].uses == 0, "the queue has the free blocks");
    before = id;
    if (id == kFresh) {
      free += fresh_;
    } else if (is_free(id)) {
      ++free;
    }
  }
  for (BlockId id = kFirstBlock; id < blocks_.size(); ++id) {
    KV_CHECK(blocks_[id].uses == uses[id] && blocks_[id].held == holds[id],
             "a block counts the requests and transfers that hold it");
    KV_CHECK(!blocks_[id].waits || (uses[id] == 0 && holds[id] > 0), "a block waits for a transfer");
    filled += blocks_[id].known || uses[id] > 0 || holds[id] > 0 ? 1 : 0;
    if (!blocks_[id].known) continue;
    const BlockId first = cached({blocks_[id].group, blocks_[id].part, blocks_[id].key});
    BlockId at = first;
    while (at != kNoBlock && at != id) at = blocks_[at].next_same;
    KV_CHECK(at == id, "a block with a key is found by the key");
    known += first == id ? 1 : 0;
  }
  KV_CHECK(free == free_ && known == known_ && filled == filled_, "counts of blocks and of keys");
}

}  // namespace kvtwin

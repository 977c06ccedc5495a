// Cache, pages that come to L1: load-back from L2, and direct loads from a storage tier.
#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

// ---- load-back ---------------------------------------------------------------------------------------

bool Cache::is_load_admitted(const PrefixMatch& match, Tokens beside) const {
  constexpr Wide kLongestLoad = Wide{1'000'000'000} * kNsPerSecond;  // so that no sum wraps
  const Tokens page = config_.shape.page_tokens;
  const Tokens from = match.device_pages * page, to = from + match.host_pages * page;
  Pages before = loads_.queued.pages;
  for (const Transfer& transfer : loads_.transfers.all())
    before += transfer.pages;  // the ranks have not agreed yet that these are done
  const Wide load = Wide{before * page + (to - from)} * config_.load_token_ps / 1000;
  return load_back_admission_->admits({.from = from,
                                       .to = to,
                                       .load_ns = static_cast<TimeNs>(std::min(load, kLongestLoad)),
                                       .compute_ns = config_.prefill_ns(from, to),
                                       .beside_ns = config_.prefill_ns(to, to + beside),
                                       .layers = std::max(1U, config_.shape.layers)});
}

Reason Cache::load_back(std::span<const PageKey> keys, const PrefixMatch& match, RequestId request, Tokens beside,
                        RequestPools* pools) {
  if (offload_ != nullptr) {
    load_blocks(keys, match, request, *pools);
    return Reason::none;
  }
  path_.clear();
  Pages pages = 0;
  for (NodeId id = match.end; id != match.device_end; id = tree_.node(id).parent) {
    if (tree_.node(id).device.resident()) continue;  // it lacks a window or a state only
    path_.push_back(id);
    pages += tree_.node(id).facts.pages;
  }
  Reason refused = Reason::none;
  const bool more = pools != nullptr && loads_beside(match);
  if (pages * config_.shape.page_tokens < std::max<Tokens>(config_.load_back_min_tokens, 1) && !more) {
    refused = Reason::below_threshold;
  } else if (config_.load_back_quota_pages != 0 && pages > config_.load_back_quota_pages) {
    refused = Reason::quota;
  } else if (!is_load_admitted(match, beside)) {
    refused = Reason::too_slow;
  }
  const NodeId first_loaded = path_.empty() ? match.end : path_.back();
  sink_.decide(DecisionKind::load_back, refused, tree_.node(first_loaded).keys().front(), pages, request);
  if (refused != Reason::none) {
    sink_.event({.kind = EventKind::load_declined, .tier = Tier::device, .reason = refused, .pages = pages});
    return refused;
  }

  // The lease comes first: making room must not evict the pages that are read or extended. The copies on L2 stay until
  // the load is acknowledged, because the nodes have its mark.
  tree_.lease(Tier::device, match.end);
  targets_.clear();
  if (pools != nullptr && !pools_.empty()) {
    const std::vector<NodeId> path = path_;
    if (!make_load_room(match, pages, *pools)) {
      tree_.release(Tier::device, match.end);
      sink_.event({.kind = EventKind::load_declined, .tier = Tier::device, .reason = Reason::capacity, .pages = pages});
      return Reason::capacity;
    }
    path_ = path;
  }
  if (pages > 0) take_pages(pages, targets_);
  std::size_t next = 0;
  for (auto id = path_.rbegin(); id != path_.rend(); ++id) {
    const Node& node = tree_.node(*id);
    const auto first = targets_.begin() + static_cast<std::ptrdiff_t>(next);
    for (std::size_t i = 0; i < node.facts.pages; ++i) {
      loads_.moves.push_back({node.keys()[i], node.host.slots[i], targets_[next + i]});
    }
    next += node.facts.pages;
    // The mark comes first: a copy on L2 that is read has no place among those that may be dropped yet.
    tree_.set_arriving(Tier::device, *id, mark_of(loads_));
    tree_.set_slots(Tier::device, *id,
                    std::vector<SlotId>(first, first + static_cast<std::ptrdiff_t>(node.facts.pages)));
    sink_.keys(EventKind::pages_stored, Tier::device, tree_.node(*id).keys());
    if (!config_.draft_restored) tree_.set_incomplete(*id);
  }
  if (more) load_beside(match, *pools);
  loads_.queued.ends.push_back(match.end);
  loads_.queued.pages += pages;
  sink_.event({.kind = EventKind::load_queued, .tier = Tier::device, .pages = pages});
  return Reason::none;
}

bool Cache::arriving(NodeId end) const {
  if (!loading() && loads_.empty()) return false;
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    if (arrives(id)) return true;
  }
  return false;
}

// Pages of the node, or its window or state.
bool Cache::arrives(NodeId id) const {
  if (tree_.node(id).device.arriving != OperationId::none) return true;
  return std::ranges::any_of(
      pools_, [id](const Beside& pool) { return pool.index->arriving(Tier::device, id) != OperationId::none; });
}

NodeId Cache::end_before_load(NodeId end) const {
  NodeId before = end;
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    if (arrives(id)) before = tree_.node(id).parent;
  }
  return before;
}

Pages Cache::pages_before_load(std::span<const PageKey> keys) const {
  Pages before = keys.size();
  if (!loading() && loads_.empty()) return before;
  for (NodeId id = tree_.peek(keys).end; id != tree_.root(); id = tree_.node(id).parent) {
    const NodeFacts& facts = tree_.node(id).facts;
    if (arrives(id)) before = std::min<Pages>(before, facts.depth_pages - facts.pages);
  }
  return before;
}

bool Cache::depends_on_load(NodeId end, std::uint64_t number) const {
  if (!loads_.transfers.has(number)) return false;  // only in a damaged journal
  const OperationId mark = loads_.transfers.numbered(number).mark;
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    if (tree_.node(id).device.arriving == mark) return true;
    const auto arrives = [&](const Beside& pool) { return pool.index->arriving(Tier::device, id) == mark; };
    if (std::ranges::any_of(pools_, arrives)) return true;
  }
  return false;
}

// ---- direct loads from a storage tier

void Cache::load_direct(std::span<const PageKey> keys, std::span<const FetchedRun> runs, RequestId request, NodeId& end,
                        std::vector<SlotId>& own) {
  Pages pages = 0;
  for (const FetchedRun& run : runs) pages += run.pages;
  if (pages == 0) return;
  sink_.decide(DecisionKind::load_direct, Reason::none, keys[runs.front().first], pages, request);
  std::vector<SlotId> slots;
  const bool room = allocate(pages, slots);
  KV_CHECK(room, "the admission has made room");
  const std::uint64_t stamp = tree_.next_stamp();
  const std::int32_t priority = tree_.node(end).facts.priority;
  storage_.raise_priority(keys.subspan(runs.front().first, pages), priority);
  std::span<const SlotId> rest = slots;
  for (const FetchedRun& run : runs) {
    for (Pages at = run.first; at < run.first + run.pages;) {
      const Pages count = std::min(run.first + run.pages - at, config_.storage_batch_pages);
      const std::span<const SlotId> part = rest.first(count);
      DirectLoad load;
      if (!config_.private_loads) {
        end = load.node = tree_.insert(end, keys.subspan(at, count), part, {}, stamp, priority);
        sink_.keys(EventKind::pages_stored, Tier::device, keys.subspan(at, count));
        load.mark = OperationId{++direct_marks_};
        tree_.set_arriving(Tier::device, load.node, load.mark);
        if (!config_.draft_restored) tree_.set_incomplete(load.node);
        tree_.lease(Tier::device, load.node);
      } else {
        load.slots.assign(part.begin(), part.end());
        mark_loading(load.slots, true);
      }
      load.get = storage_.get(run.tier, request, keys, at, part, Tier::device);
      gates_.push_back(load.get.id);
      direct_loads_.push_back(std::move(load));
      rest = rest.subspan(count);
      at += count;
    }
  }
  if (config_.private_loads) own.insert(own.end(), slots.begin(), slots.end());
}

void Cache::mark_loading(std::span<const SlotId> slots, bool loading) {
  if (slots.empty()) return;
  loading_slots_.resize(config_.device_pages);
  for (const SlotId slot : slots) loading_slots_[slot] = loading;
}

void Cache::take_direct(const StorageAnswer& answer) {
  const auto load = std::ranges::find(direct_loads_, answer.id, [](const DirectLoad& d) { return d.get.id; });
  KV_CHECK(load != direct_loads_.end(), "a load belongs to a request's admission");
  load->get = answer;
  load->answered = true;
  sink_.event({.kind = EventKind::load_direct_done,
               .tier = Tier::device,
               .reason = answer.done ? Reason::none : Reason::transfer_failed,
               .pages = answer.asked,
               .operation = answer.id});
  if (std::ranges::all_of(direct_loads_, &DirectLoad::answered)) settle_direct_loads();
}

// All direct loads of a step end together, because a failed one also drops the pages that were loaded below it. No pass
// has read any of them.
void Cache::settle_direct_loads() {
  std::vector<NodeId> failed;
  for (const DirectLoad& load : direct_loads_) {
    mark_loading(load.slots, false);
    if (load.node == NodeId::none) continue;  // if it failed, the request has given the pages back
    tree_.release(Tier::device, load.node);
    NodeId top = load.node;
    for (NodeId id = load.node; id != tree_.root() && tree_.node(id).device.arriving == load.mark;
         id = tree_.node(id).parent) {
      tree_.set_arriving(Tier::device, id, OperationId::none);
      top = id;
    }
    if (!load.get.done) failed.push_back(top);
  }
  direct_loads_.clear();
  free(std::exchange(given_back_, {}));
  for (auto top = failed.rbegin(); top != failed.rend(); ++top) {  // the deepest first
    drop_device_below(*top);
    drop_direct(*top);
  }
  for (Transfer& transfer : std::exchange(failed_loads_, {})) acknowledge_load(std::move(transfer), false);
}

void Cache::drop_device_below(NodeId top) {
  std::vector<NodeId> below{top};
  for (std::size_t i = 0; i < below.size(); ++i) {
    for (NodeId child = tree_.node(below[i]).first_child; child != NodeId::none;
         child = tree_.node(child).next_sibling) {
      if (tree_.node(child).device.resident()) below.push_back(child);
    }
  }
  for (; below.size() > 1; below.pop_back()) drop_direct(below.back());
}

void Cache::drop_direct(NodeId id) {
  freed_device_.clear();
  freed_host_.clear();
  sink_.keys(EventKind::pages_removed, Tier::device, tree_.node(id).keys());
  drop_beside(id, Tier::device);
  if (tree_.node(id).host.resident()) {
    freed_device_ = clear_device(id);
  } else {
    tree_.remove_tail(id, tree_.node(id).facts.pages, freed_device_, freed_host_);
  }
  free(freed_device_);
}

}  // namespace kvtwin

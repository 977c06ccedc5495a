#include "policy/cache.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"
#include "policy/base/wide.hpp"

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
  return {device ? config.device_pages : config.host_pages, config.shape.page_tokens, config.cost_doubling_tokens,
          device};
}

}  // namespace

Cache::Cache(const EngineConfig& config, Substrate& substrate, Storage& storage, const EventSink& sink)
    : config_(config),
      substrate_(substrate),
      storage_(storage),
      sink_(sink),
      write_(write_policy_of(config)),
      load_back_admission_(make_load_back_admission(config.load_back_admission)),
      tree_(make_eviction(config.eviction, setup_for(config, Tier::device)),
            config.host_pages == 0 ? nullptr : make_eviction(config.eviction, setup_for(config, Tier::host)),
            write_->writes_when_evicted() && config.host_pages != 0
                ? make_eviction(config.eviction, setup_for(config, Tier::device))
                : nullptr,
            config.reclaim_shadowed && config.host_pages != 0 ? make_eviction("fifo") : nullptr),
      device_(config.device_pages),
      host_(config.host_pages),
      reserve_pages_(config.device_pages * config.clean_reserve / 1024) {
  KV_CHECK(load_back_admission_ != nullptr, "a load-back admission is known by its name");
}

void Cache::visit(const Visit& visit) {
  tree_.visit(visit);
  storage_.visit(visit);
}

void Cache::hint(const Hint& hint, TimeNs step_time) {
  tree_.hint(hint, step_time);
  storage_.hint(hint, step_time);
}

void Cache::queue(RequestId request, std::span<const PageKey> keys) {
  tree_.queue(request, keys);
  storage_.queue(request, keys);
}

void Cache::unqueue(RequestId request, std::span<const PageKey> keys) {
  tree_.unqueue(request, keys);
  storage_.unqueue(request, keys);
}

// ---- room ----------------------------------------------------------------------------------------

bool Cache::allocate(Pages pages, std::vector<SlotId>& slots) {
  if (pages == 0) return true;
  if (pages > obtainable_pages()) return false;
  if (pages > device_.available()) evict_device(pages - device_.available());
  const std::size_t before = slots.size();
  const bool enough = device_.allocate(pages, slots);
  KV_CHECK(enough, "pages counted as evictable can be evicted");
  device_used_max_ = std::max(device_used_max_, device_.used());
  sink_.slots(EventKind::slots_allocated, Tier::device, std::span(slots).subspan(before));
  return true;
}

void Cache::free(std::span<const SlotId> slots) {
  if (slots.empty()) return;
  device_.release(slots);
  sink_.slots(EventKind::slots_released, Tier::device, slots);
}

void Cache::prepare(Pages pages) {
  if (tree_.leaves_by_choice()) choose_leaving(pages, false);
}

Room Cache::make_room(Pages pages, NodeId kept) {
  if (pages <= obtainable_pages()) return Room::now;
  if (pages > promised_pages()) return Room::never;
  tree_.lease_host(kept);
  choose_leaving(pages, false);
  if (pages > obtainable_pages() && !writes_under_way()) choose_leaving(pages, true);
  tree_.release_host(kept);
  if (pages <= obtainable_pages()) return Room::now;
  if (!writes_under_way()) return Room::never;  // held for a storage tier, and free when that has them
  sink_.event({.kind = EventKind::backup_awaited, .tier = Tier::device, .pages = pages - obtainable_pages()});
  return Room::later;
}

// What has a copy, and what can't be given one, only has to be chosen; the rest is written first. Each round
// settles a page or is the last.
void Cache::choose_leaving(Pages target, bool may_lose) {
  for (;;) {
    const Pages ready = device_.available() + tree_.settled_device_pages();
    const NodeId next = ready >= target ? NodeId::none : tree_.candidate();
    if (next == NodeId::none) return;
    const Node& node = tree_.node(next);
    const Pages all = node.facts.pages;
    Pages take = config_.evict_unit == EvictUnit::node ? all : std::min(all, target - ready);
    bool write = !node.on_host() && node.backup_failures <= config_.backup_retries;
    if (write) {
      const Pages writable = writable_pages(node, take);
      if (writable == 0 && !may_lose) return;
      write = writable > 0;
      if (write) take = writable;
    }
    if (take < all) tree_.split(next, all - take);
    if (write) {
      sink_.decide(DecisionKind::backup, Reason::none, tree_.node(next).keys().front(), take);
      store(next);
    }
    tree_.set_leaving(next);
  }
}

// How many of the last `wanted` pages of a node L2 has room for, after evicting there.
Pages Cache::writable_pages(const Node& node, Pages wanted) {
  const bool whole = config_.evict_unit == EvictUnit::node;
  if (whole && node.facts.pages > host_.capacity()) return 0;
  if (host_.available() < wanted) evict_host(wanted - host_.available());
  const Pages room = std::min(wanted, host_.available());
  return whole && room < wanted ? 0 : room;
}

Pages Cache::evict_device(Pages pages) {
  Pages evicted = 0;
  while (evicted < pages) {
    const NodeId victim = tree_.device_victim();
    if (victim == NodeId::none) break;
    const Node& node = tree_.node(victim);
    const Pages all = node.facts.pages;
    const Pages take = config_.evict_unit == EvictUnit::node ? all : std::min(all, pages - evicted);
    const bool demote = node.on_host();
    const Reason reason = demote ? Reason::demoted : loss_of(node);
    sink_.decide(DecisionKind::evict_device, reason, node.keys()[all - take], take);
    tree_.notify_evicted(PolicyRole::device, victim, take);
    freed_device_.clear();
    if (demote) {
      if (take < all) tree_.split(victim, all - take);
      freed_device_ = tree_.clear_device(victim);
    } else {
      drop_below(victim, reason);
      freed_host_.clear();
      tree_.remove_tail(victim, take, freed_device_, freed_host_);
    }
    free(freed_device_);
    sink_.event({.kind = EventKind::evicted, .tier = Tier::device, .reason = reason, .pages = take});
    evicted += take;
  }
  return evicted;
}

Reason Cache::loss_of(const Node& node) const {
  if (!tree_.leaves_by_choice()) return Reason::lost;
  return node.backup_failures > config_.backup_retries ? Reason::transfer_failed : Reason::host_pressure;
}

// All that only L2 has below a page that is lost could no longer be reached.
void Cache::drop_below(NodeId top, Reason reason) {
  if (tree_.node(top).children == 0) return;
  std::vector<NodeId> below{top};
  for (std::size_t i = 0; i < below.size(); ++i) {
    for (NodeId child = tree_.node(below[i]).first_child; child != NodeId::none;
         child = tree_.node(child).next_sibling) {
      below.push_back(child);
    }
  }
  for (; below.size() > 1; below.pop_back()) remove_host_copy(below.back(), reason);
}

// The node's only one: it goes with it.
void Cache::remove_host_copy(NodeId id, Reason reason) {
  const Node& node = tree_.node(id);
  const Pages pages = node.facts.pages;
  KV_CHECK(!node.on_device(), "below a device leaf there are only host pages");
  sink_.decide(DecisionKind::evict_host, reason, node.keys().front(), pages);
  std::vector<SlotId> none;
  freed_host_.clear();
  tree_.remove_tail(id, pages, none, freed_host_);
  host_.release(freed_host_);
  sink_.slots(EventKind::slots_released, Tier::host, freed_host_);
  sink_.event({.kind = EventKind::evicted, .tier = Tier::host, .reason = reason, .pages = pages});
}

// HiCache's order: first come, first reclaimed. Under write-back what is chosen to leave keeps its copy, or the
// reserve would eat itself up.
Pages Cache::reclaim_shadowed(Pages pages) {
  Pages reclaimed = 0;
  while (reclaimed < pages) {
    const NodeId victim = tree_.shadowed_victim();
    if (victim == NodeId::none) break;
    const Pages all = tree_.node(victim).facts.pages;
    const Pages take = config_.evict_unit == EvictUnit::node ? all : std::min(all, pages - reclaimed);
    if (take < all) tree_.split(victim, all - take);
    shed_copy(victim);
    reclaimed += take;
  }
  return reclaimed;
}

// L1 has the page too.
void Cache::shed_copy(NodeId id) {
  sink_.decide(DecisionKind::evict_host, Reason::shadowed, tree_.node(id).keys().front(), tree_.node(id).facts.pages);
  freed_host_ = tree_.clear_host(id);
  host_.release(freed_host_);
  sink_.slots(EventKind::slots_released, Tier::host, freed_host_);
  sink_.event(
      {.kind = EventKind::evicted, .tier = Tier::host, .reason = Reason::shadowed, .pages = freed_host_.size()});
}

Pages Cache::evict_host(Pages pages) {
  Pages evicted = reclaim_shadowed(pages);
  while (evicted < pages) {
    const NodeId victim = tree_.host_victim();
    if (victim == NodeId::none) break;
    const Node& node = tree_.node(victim);
    const Pages all = node.facts.pages;
    const Pages take = config_.evict_unit == EvictUnit::node ? all : std::min(all, pages - evicted);
    sink_.decide(DecisionKind::evict_host, Reason::lost, node.keys()[all - take], take);
    tree_.notify_evicted(PolicyRole::host, victim, take);
    freed_device_.clear();
    freed_host_.clear();
    tree_.remove_tail(victim, take, freed_device_, freed_host_);
    host_.release(freed_host_);
    sink_.slots(EventKind::slots_released, Tier::host, freed_host_);
    sink_.event({.kind = EventKind::evicted, .tier = Tier::host, .reason = Reason::lost, .pages = take});
    evicted += take;
  }
  return evicted;
}

void Cache::path_slots(NodeId end, std::vector<SlotId>& slots) const {
  const Pages depth = end == tree_.root() ? 0 : tree_.node(end).facts.depth_pages;
  slots.resize(depth);
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    const Node& node = tree_.node(id);
    std::ranges::copy(node.device,
                      slots.begin() + static_cast<std::ptrdiff_t>(node.facts.depth_pages - node.device.size()));
  }
}

Pages Cache::pages_without_draft(NodeId end) const {
  Pages pages = 0;
  if (config_.draft_restored) return pages;
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    if (tree_.node(id).lacks_draft) pages += tree_.node(id).facts.pages;
  }
  return pages;
}

// ---- load-back ---------------------------------------------------------------------------------------

bool Cache::loading_pays(const PrefixMatch& match, Tokens beside) const {
  constexpr Wide kLongestLoad = Wide{1'000'000'000} * kNsPerSecond;  // so that no sum wraps
  const Tokens page = config_.shape.page_tokens;
  const Tokens from = match.device_pages * page, to = from + match.host_pages * page;
  Pages before = loads_.queued.pages;
  for (const Transfer& transfer : loads_.transfers) before += transfer.pages;  // all ranks have yet to see them done
  const Wide load = Wide{before * page + (to - from)} * config_.load_token_ps / 1000;
  return load_back_admission_->admits({.from = from,
                                       .to = to,
                                       .load_ns = static_cast<TimeNs>(std::min(load, kLongestLoad)),
                                       .compute_ns = config_.prefill_ns(from, to),
                                       .beside_ns = config_.prefill_ns(to, to + beside),
                                       .layers = std::max(1U, config_.shape.layers)});
}

Reason Cache::load_back(const PrefixMatch& match, RequestId request, Tokens beside) {
  const Pages pages = match.host_pages;
  Reason refused = Reason::none;
  if (pages * config_.shape.page_tokens < config_.load_back_min_tokens) {
    refused = Reason::below_threshold;
  } else if (config_.load_back_quota_pages != 0 && pages > config_.load_back_quota_pages) {
    refused = Reason::quota;
  } else if (!loading_pays(match, beside)) {
    refused = Reason::too_slow;
  } else if (pages > obtainable_pages()) {
    refused = Reason::capacity;
  }
  path_.clear();
  for (NodeId id = match.end; id != match.device_end; id = tree_.node(id).parent) path_.push_back(id);
  sink_.decide(DecisionKind::load_back, refused, tree_.node(path_.back()).keys().front(), pages, request);
  if (refused != Reason::none) {
    sink_.event({.kind = EventKind::load_declined, .tier = Tier::device, .reason = refused, .pages = pages});
    return refused;
  }

  // The leases come first: making room must not take what is about to be read or extended.
  if (!KV_MUTANT(4)) tree_.lease_host(match.end);
  targets_.clear();
  const bool room = allocate(pages, targets_);
  KV_CHECK(room, "the room was counted before");
  std::size_t next = 0;
  for (auto id = path_.rbegin(); id != path_.rend(); ++id) {
    const Node& node = tree_.node(*id);
    const auto first = targets_.begin() + static_cast<std::ptrdiff_t>(next);
    for (std::size_t i = 0; i < node.facts.pages; ++i) {
      loads_.moves.push_back({node.keys()[i], node.host[i], targets_[next + i]});
    }
    next += node.facts.pages;
    tree_.set_device(*id, std::vector<SlotId>(first, first + static_cast<std::ptrdiff_t>(node.facts.pages)));
    tree_.set_load(*id, mark_of(loads_));
    if (!config_.draft_restored) tree_.set_lacks_draft(*id);
  }
  tree_.lease_device(match.end);
  loads_.queued.ends.push_back(match.end);
  loads_.queued.pages += pages;
  sink_.event({.kind = EventKind::load_queued, .tier = Tier::device, .pages = pages});
  return Reason::none;
}

// ---- loads past L2 -----------------------------------------------------------------------------------

Reason Cache::load_direct(std::span<const PageKey> keys, std::span<const FetchedRun> runs, RequestId request,
                          NodeId& end) {
  Pages pages = 0;
  for (const FetchedRun& run : runs) pages += run.pages;
  if (pages == 0) return Reason::none;
  const bool room = pages <= obtainable_pages();
  sink_.decide(DecisionKind::load_direct, room ? Reason::none : Reason::capacity, keys[runs.front().first], pages,
               request);
  if (!room) {
    sink_.event({.kind = EventKind::load_declined, .tier = Tier::device, .reason = Reason::capacity, .pages = pages});
    return Reason::capacity;
  }
  std::vector<SlotId> slots;
  allocate(pages, slots);
  const std::uint64_t stamp = tree_.next_stamp();
  const std::int32_t priority = tree_.node(end).facts.priority;
  storage_.raise_priority(keys.subspan(runs.front().first, pages), priority);
  std::span<const SlotId> rest = slots;
  for (const FetchedRun& run : runs) {
    for (Pages at = run.first; at < run.first + run.pages;) {
      const Pages count = std::min(run.first + run.pages - at, config_.storage_batch_pages);
      const std::span<const SlotId> part = rest.first(count);
      DirectLoad load;
      load.node = tree_.insert(end, keys.subspan(at, count), part, {}, stamp, priority);
      load.mark = OperationId{++direct_marks_};
      tree_.set_load(load.node, load.mark);
      if (!config_.draft_restored) tree_.set_lacks_draft(load.node);
      tree_.lease_device(load.node);
      load.get = storage_.get(run.tier, request, keys, at, part, Tier::device);
      gates_.push_back(load.get.id);
      end = load.node;
      directs_.push_back(load);
      rest = rest.subspan(count);
      at += count;
    }
  }
  return Reason::none;
}

void Cache::take_direct(const StorageAnswer& answer) {
  const auto load = std::ranges::find(directs_, answer.id, [](const DirectLoad& d) { return d.get.id; });
  KV_CHECK(load != directs_.end(), "a load belongs to a request's admission");
  load->get = answer;
  load->answered = true;
  sink_.event({.kind = EventKind::load_direct_done,
               .tier = Tier::device,
               .reason = answer.done ? Reason::none : Reason::transfer_failed,
               .pages = answer.asked,
               .operation = answer.id});
  if (std::ranges::all_of(directs_, &DirectLoad::answered)) settle_directs();
}

// Together, because what failed takes with it what was loaded below it. Nobody has read any of that.
void Cache::settle_directs() {
  std::vector<NodeId> failed;
  for (const DirectLoad& load : directs_) {
    tree_.release_device(load.node);
    NodeId top = load.node;
    for (NodeId id = load.node; id != tree_.root() && tree_.node(id).load == load.mark; id = tree_.node(id).parent) {
      tree_.set_load(id, OperationId::none);
      top = id;
    }
    if (!load.get.done) failed.push_back(top);
  }
  directs_.clear();
  for (auto top = failed.rbegin(); top != failed.rend(); ++top) {  // the deeper ones first
    drop_device_below(*top);
    drop_direct(*top);
  }
  for (Transfer& transfer : std::exchange(failed_loads_, {})) acknowledge_load(transfer);
}

void Cache::drop_device_below(NodeId top) {
  std::vector<NodeId> below{top};
  for (std::size_t i = 0; i < below.size(); ++i) {
    for (NodeId child = tree_.node(below[i]).first_child; child != NodeId::none;
         child = tree_.node(child).next_sibling) {
      if (tree_.node(child).on_device()) below.push_back(child);
    }
  }
  for (; below.size() > 1; below.pop_back()) drop_direct(below.back());
}

void Cache::drop_direct(NodeId id) {
  freed_device_.clear();
  freed_host_.clear();
  if (tree_.node(id).on_host()) {
    freed_device_ = tree_.clear_device(id);
  } else {
    tree_.remove_tail(id, tree_.node(id).facts.pages, freed_device_, freed_host_);
  }
  free(freed_device_);
}

// ---- L2 and the storage tiers ------------------------------------------------------------------------

bool Cache::can_extend_on_host(NodeId end) const {
  if (config_.host_pages == 0) return false;
  if (end == tree_.root() || tree_.leaves_by_choice()) return true;
  return tree_.node(end).on_host() && tree_.node(end).backup == OperationId::none;
}

// A part of the path is still on its way from a storage tier: should that fail, nothing may be left below it.
bool Cache::loaded_straight(NodeId end) const {
  for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
    if (tree_.node(id).load != OperationId::none && !tree_.node(id).on_host()) return true;
  }
  return false;
}

// A page that only L1 has above it could be lost, and it with that page: under write-back it is leased too.
Hold Cache::hold(NodeId end) {
  Hold hold;
  if (end == tree_.root() || !tree_.node(end).on_host()) return hold;
  hold.host_end = end;
  tree_.lease_host(end);
  NodeId above = end;  // a copy that is on its way may fail
  while (above != tree_.root() && tree_.node(above).on_host() && tree_.node(above).backup == OperationId::none) {
    above = tree_.node(above).parent;
  }
  if (above == tree_.root() || !tree_.leaves_by_choice()) return hold;
  hold.device_end = above;
  tree_.lease_device(above);
  return hold;
}

void Cache::unhold(const Hold& hold) {
  if (hold.host_end != NodeId::none) tree_.release_host(hold.host_end);
  if (hold.device_end != NodeId::none) tree_.release_device(hold.device_end);
}

Pages Cache::make_host_room(Pages pages) {
  if (host_.available() < pages) evict_host(pages - host_.available());
  return std::min(pages, host_.available());
}

void Cache::allocate_host(Pages pages, std::vector<SlotId>& slots) {
  const std::size_t before = slots.size();
  const bool room = host_.allocate(pages, slots);
  KV_CHECK(room, "the room was made before");
  host_used_max_ = std::max(host_used_max_, host_.used());
  sink_.slots(EventKind::slots_allocated, Tier::host, std::span(slots).subspan(before));
}

void Cache::free_host(std::span<const SlotId> slots) {
  if (slots.empty()) return;
  host_.release(slots);
  sink_.slots(EventKind::slots_released, Tier::host, slots);
}

Cache::Adoption Cache::adopt(std::span<const PageKey> keys, Pages first, std::span<const SlotId> slots) {
  const PrefixMatch found = tree_.match(keys);
  const Pages present = found.device_pages + found.host_pages;
  Adoption adoption;
  if (present < first) {
    adoption.refused = Reason::anchor_lost;
  } else if (!can_extend_on_host(found.end) || loaded_straight(found.end)) {
    adoption.refused = Reason::not_backed_up;
  } else if (present > first) {
    adoption.refused = Reason::duplicate;
  }
  const bool keep = present >= first && present < keys.size() && adoption.refused != Reason::not_backed_up;
  const Pages skipped = keep ? present - first : slots.size();
  free_host(slots.first(skipped));
  if (!keep) return adoption;
  const std::span<const SlotId> kept = slots.subspan(skipped);
  adoption.pages = kept.size();
  const std::int32_t priority = tree_.node(found.end).facts.priority;
  adoption.end = tree_.insert(found.end, keys.subspan(present), {}, kept, tree_.next_stamp(), priority);
  storage_.raise_priority(keys.subspan(present), priority);
  return adoption;
}

// The whole of what has arrived on L2 goes on to every storage tier.
void Cache::store_node(NodeId id, Pages first, Pages pages, std::size_t tiers_to) {
  if (tiers_to == 0 || pages == 0) return;
  Hold held = hold(id);
  if (config_.host_pages == 0) {
    held.device_end = id;
    tree_.lease_device(id);
  }
  const Node& node = tree_.node(id);
  const NodeId parent = node.parent;
  const PageKey* prior = first > 0                ? &node.keys()[first - 1]
                         : parent == tree_.root() ? nullptr
                                                  : &tree_.node(parent).keys().back();
  const std::span<const SlotId> slots = config_.host_pages != 0 ? node.host : node.device;
  const std::uint64_t store = ++last_store_;
  const std::uint32_t jobs =
      storage_.write(store, prior, std::span(node.keys()).subspan(first, pages), std::span(slots).subspan(first, pages),
                     config_.host_pages != 0 ? Tier::host : Tier::device, tiers_to, node.facts.priority);
  if (jobs == 0) {
    unhold(held);
  } else {
    stores_[store] = {held, jobs};
  }
}

void Cache::store_path(NodeId end, Pages from, Pages to, std::size_t tiers_to) {
  const NodeFacts& facts = tree_.node(end).facts;
  const Pages begins = facts.depth_pages - facts.pages;
  const Pages first = std::max(from, begins), last = std::min<Pages>(to, facts.depth_pages);
  if (first < last) store_node(end, first - begins, last - first, tiers_to);
}

void Cache::end_store(std::uint64_t hold) {
  const auto store = stores_.find(hold);
  KV_CHECK(store != stores_.end(), "a write ends once");
  if (--store->second.jobs > 0) return;
  unhold(store->second.hold);
  stores_.erase(store);
}

// ---- insert and backup -------------------------------------------------------------------------------

NodeId Cache::insert(std::span<const PageKey> keys, std::span<SlotId> slots, Pages shared, bool chunked, Pages counted,
                     std::int32_t priority) {
  const std::uint64_t stamp = tree_.next_stamp();
  const PrefixMatch found = tree_.match(keys);
  KV_CHECK(found.device_pages >= shared, "a request's leased prefix stays on the device");

  // Computed twice (two requests at once): the index's copy wins.
  freed_device_.clear();
  for (NodeId id = found.device_end; id != tree_.root() && tree_.node(id).facts.depth_pages > shared;
       id = tree_.node(id).parent) {
    const Node& node = tree_.node(id);
    const Pages first = node.facts.depth_pages - node.facts.pages;
    for (Pages page = std::max(first, shared); page < node.facts.depth_pages; ++page) {
      freed_device_.push_back(slots[page]);
      slots[page] = node.device[page - first];
    }
  }
  free(freed_device_);

  // On the host only: un-evict, i.e. take over the request's fresh copy; both now hold the page.
  path_.clear();
  for (NodeId id = found.end; id != found.device_end; id = tree_.node(id).parent) path_.push_back(id);
  for (auto id = path_.rbegin(); id != path_.rend(); ++id) {
    const Node& node = tree_.node(*id);
    const auto part = slots.subspan(node.facts.depth_pages - node.facts.pages, node.facts.pages);
    tree_.set_device(*id, part);
    if (config_.tiering == Tiering::exclusive && tree_.node(*id).host_leases == 0) shed_copy(*id);
  }

  NodeId end = found.end;
  const Pages present = found.device_pages + found.host_pages;
  const Pages raised = tree_.raise_priority(end, priority);
  storage_.raise_priority(keys.subspan(present - raised), priority);
  for (Pages at = present; at < keys.size();) {
    const Pages pages = tree_.shared_history_prefix(keys.subspan(at));
    const auto part = slots.subspan(at, pages);
    end = tree_.insert(end, keys.subspan(at, pages), part, {}, stamp, priority);
    at += pages;
  }
  tree_.touch(end, stamp, RadixTree::Touch::recency_only);
  if (!chunked && config_.host_pages != 0 && !tree_.leaves_by_choice()) back_up_path(end, counted);
  if (!chunked && config_.host_pages == 0 && storage_.tiers() > 0) store_by_hits(end, counted);
  return end;
}

std::uint32_t Cache::write_threshold() const {
  if (config_.write_threshold != 0) return config_.write_threshold;
  return write_->writes_after_inserts();
}

// HiCache's hit rule: a request counts one hit on each node of its path, at the first complete insert that covers the
// node; from the threshold on a node is backed up, its ancestors first so that the host's copies stay prefix-closed.
void Cache::back_up_path(NodeId end, Pages counted) {
  path_.clear();
  for (NodeId id = end; id != tree_.root() && !tree_.node(id).on_host(); id = tree_.node(id).parent) {
    if (tree_.node(id).facts.depth_pages > counted) tree_.count_backup_hit(id);
    path_.push_back(id);
  }
  std::size_t deepest = path_.size();  // path_ runs upwards
  for (std::size_t i = 0; i < path_.size(); ++i) {
    if (tree_.node(path_[i]).backup_hits >= write_threshold()) {
      deepest = i;
      break;
    }
  }
  for (std::size_t i = path_.size(); i > deepest; --i) {
    if (!queue_backup(path_[i - 1])) return;  // what lies deeper can't be backed up without it
  }
}

// The same rule where there is no L2: from the threshold on, once, a node is written straight to the storage tiers.
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

bool Cache::queue_backup(NodeId id) {
  const Pages pages = tree_.node(id).facts.pages;
  if (host_.available() < pages) {
    tree_.lease_host(id);  // the copies above are what this one needs
    evict_host(pages - host_.available());
    tree_.release_host(id);
  }
  const bool room = host_.available() >= pages;
  sink_.decide(DecisionKind::backup, room ? Reason::none : Reason::capacity, tree_.node(id).keys().front(), pages);
  if (!room) {
    sink_.event({.kind = EventKind::backup_dropped, .tier = Tier::host, .reason = Reason::capacity, .pages = pages});
    return false;
  }
  tree_.forget_backup_failures(id);
  store(id);
  return true;
}

// Host slots for the node, and its transfer queued. L2 has the room.
void Cache::store(NodeId id) {
  const Pages pages = tree_.node(id).facts.pages;
  targets_.clear();
  const bool room = host_.allocate(pages, targets_);
  KV_CHECK(room, "the room was made before");
  host_used_max_ = std::max(host_used_max_, host_.used());
  sink_.slots(EventKind::slots_allocated, Tier::host, targets_);
  tree_.set_host(id, targets_);
  queue_transfer(id);
}

// While its mark stands, the node is neither evicted nor removed: no lease is needed.
void Cache::queue_transfer(NodeId id) {
  const Node& node = tree_.node(id);
  const Pages pages = node.facts.pages;
  for (std::size_t i = 0; i < pages; ++i) backups_.moves.push_back({node.keys()[i], node.device[i], node.host[i]});
  tree_.set_backup(id, mark_of(backups_));
  backups_.queued.ends.push_back(id);
  backups_.queued.pages += pages;
  sink_.event({.kind = EventKind::backup_queued, .tier = Tier::host, .pages = pages});
}

// ---- transfers ---------------------------------------------------------------------------------------

void Cache::submit_loads() {
  if (loads_.moves.empty()) return;
  submit(loads_, Direction::host_to_device, false);
  gates_.push_back(loads_.transfers.back().id);
}

void Cache::submit_backups(bool beside_a_pass) {
  if (!backups_.moves.empty()) submit(backups_, Direction::device_to_host, beside_a_pass);
}

// All that was queued in one step is one operation, with one acknowledgement.
void Cache::submit(Lanes& lanes, Direction direction, bool busy) {
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
  operation.plan = plan_transfer(runs_, direction, pools, config_.io, config_.planner, busy);
  // One operation for both: what the target's pages and the draft's become can't differ.
  if (config_.draft.layers != 0) {
    pools.shape = config_.draft;
    operation.side = plan_transfer(runs_, direction, pools, config_.io, config_.planner, busy);
  }
  operation.pages = lanes.moves;
  lanes.queued.id = substrate_.submit(operation);
  sink_.event({.kind = EventKind::transfer_submitted,
               .tier = direction == Direction::host_to_device ? Tier::device : Tier::host,
               .pages = lanes.queued.pages,
               .operation = lanes.queued.id});
  lanes.queued.mark = mark_of(lanes);
  ++lanes.marks;
  lanes.transfers.push_back(std::exchange(lanes.queued, Transfer{}));
  lanes.moves.clear();
}

bool Cache::complete(const Completion& completion) {
  for (Lanes* lanes : {&backups_, &loads_}) {
    for (Transfer& transfer : lanes->transfers) {  // few are ever in flight
      if (transfer.id != completion.id) continue;
      transfer.complete = true;
      transfer.status = completion.status;
      std::uint64_t ready = 0;
      while (ready < lanes->transfers.size() && lanes->transfers[ready].complete) ++ready;
      lanes->complete_from_oldest = lanes->committed + ready;
      if (lanes == &loads_) std::erase(gates_, completion.id);
      return true;
    }
  }
  return false;
}

std::uint64_t Cache::first_failure(const Lanes& lanes) {
  for (std::size_t i = 0; i < lanes.transfers.size(); ++i) {
    const Transfer& transfer = lanes.transfers[i];
    if (transfer.complete && transfer.status != Status::done) return lanes.committed + i;
  }
  return kNoFailure;
}

// Whether a transfer failed is what the ranks agreed, not what this one saw.
bool Cache::commit(const Acknowledged& backups, const Acknowledged& loads) {
  bool more = false;
  const auto next = [&more](Lanes& lanes, const Acknowledged& agreed, Transfer& transfer) {
    if (lanes.committed >= agreed.total) return false;
    if (lanes.committed > agreed.failure) {
      more = true;
      return false;
    }
    transfer = std::move(lanes.transfers.front());
    lanes.transfers.pop_front();
    transfer.status = lanes.committed == agreed.failure ? Status::failed : Status::done;
    ++lanes.committed;
    return true;
  };
  Transfer transfer;
  while (next(loads_, loads, transfer)) acknowledge_load(transfer);
  while (next(backups_, backups, transfer)) acknowledge_backup(transfer);
  return more;
}

// The nodes that were queued and whatever splits have cut off above them since; parents before children.
std::vector<NodeId> Cache::marked_nodes(const Transfer& transfer, bool load) const {
  std::vector<NodeId> nodes;
  for (const NodeId end : transfer.ends) {
    for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
      if ((load ? tree_.node(id).load : tree_.node(id).backup) != transfer.mark) break;
      nodes.push_back(id);
    }
  }
  const auto order = [this](NodeId id) { return std::pair(tree_.node(id).facts.depth_pages, id); };
  std::ranges::sort(nodes, {}, order);
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

void Cache::acknowledge_backup(Transfer& transfer) {
  Pages dropped = 0, retried = 0;
  for (const NodeId id : marked_nodes(transfer, false)) {
    tree_.set_backup(id, OperationId::none);
    if (transfer.status == Status::done && copy_reachable(id)) {
      tree_.forget_backup_failures(id);
      store_node(id, 0, tree_.node(id).facts.pages, storage_.tiers());
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
      drop_host_copies(id);
    }
  }
  const Pages done = transfer.pages - dropped - retried;
  if (done > 0)
    sink_.event({.kind = EventKind::backup_done, .tier = Tier::host, .pages = done, .operation = transfer.id});
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

// Will a match find the copy once the device's is gone? Under write-back what is above is written later.
bool Cache::copy_reachable(NodeId id) const {
  const NodeId parent = tree_.node(id).parent;
  if (tree_.leaves_by_choice() || parent == tree_.root()) return true;
  // A parent that is still being written has been queued again after it failed: this copy outlived its own.
  return tree_.node(parent).on_host() && tree_.node(parent).backup == OperationId::none;
}

// The slots are still there. Where the copy above failed too, that one has been queued before this one.
bool Cache::can_retry(NodeId id) const {
  const NodeId parent = tree_.node(id).parent;
  const bool above = tree_.leaves_by_choice() || parent == tree_.root() || tree_.node(parent).on_host();
  return above && tree_.node(id).backup_failures <= config_.backup_retries;
}

// A host copy that holds nothing goes, and with it those below it, which could no longer be reached (under
// write-back they could: it is still on L1, and they are lost with it, or not at all).
// Copies still being written are left to their own acknowledgement, which finds the parent gone.
void Cache::drop_host_copies(NodeId top) {
  std::vector<NodeId> below{top};
  for (std::size_t i = 0; i < below.size() && !tree_.leaves_by_choice(); ++i) {
    for (NodeId child = tree_.node(below[i]).first_child; child != NodeId::none;
         child = tree_.node(child).next_sibling) {
      if (tree_.node(child).on_host() && tree_.node(child).backup == OperationId::none) below.push_back(child);
    }
  }
  for (auto id = below.rbegin(); id != below.rend(); ++id) {
    const Node& node = tree_.node(*id);
    if (!node.on_host()) continue;
    sink_.decide(DecisionKind::evict_host, Reason::transfer_failed, node.keys().front(), node.facts.pages);
    freed_host_.clear();
    if (node.on_device()) {
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

void Cache::acknowledge_load(Transfer& transfer) {
  const bool done = transfer.status == Status::done;
  if (!done && !directs_.empty()) {
    failed_loads_.push_back(std::move(transfer));
    return;
  }
  for (const NodeId end : transfer.ends) {
    tree_.release_device(end);
    if (!KV_MUTANT(4)) tree_.release_host(end);
  }
  std::vector<NodeId> nodes = marked_nodes(transfer, true);
  for (const NodeId id : nodes) tree_.set_load(id, OperationId::none);
  // Nobody read a failed load's pages: the requests it gated have let go of them already.
  if (!done) {
    for (auto id = nodes.rbegin(); id != nodes.rend(); ++id) {
      drop_device_below(*id);
      free(tree_.clear_device(*id));
    }
  } else if (config_.tiering == Tiering::exclusive) {
    for (const NodeId id : nodes) {
      if (tree_.node(id).host_leases == 0) shed_copy(id);
    }
  }
  sink_.event({.kind = done ? EventKind::load_done : EventKind::load_failed,
               .tier = Tier::device,
               .reason = done ? Reason::none : Reason::transfer_failed,
               .pages = transfer.pages,
               .operation = transfer.id});
}

// ---- accounts ----------------------------------------------------------------------------------------

// On L2, and not on its way there: so is what lies above it.
void Cache::check_copies_reachable() const {
  std::vector<NodeId> below{tree_.root()};
  for (std::size_t i = 0; i < below.size(); ++i) {
    const Node& node = tree_.node(below[i]);
    if (node.on_host() && node.backup == OperationId::none) {
      KV_CHECK(copy_reachable(below[i]), "the host set is prefix-closed, but for write-back");
    }
    for (NodeId child = node.first_child; child != NodeId::none; child = tree_.node(child).next_sibling) {
      below.push_back(child);
    }
  }
}

void Cache::check_rest() const {
  const Node& root = tree_.node(tree_.root());
  KV_CHECK(tree_.unleased_device_pages() == tree_.device_pages(), "at rest no page of L1 is leased");
  KV_CHECK(root.host_leases == 0, "at rest no page of L2 is leased");
  KV_CHECK(stores_.empty() && directs_.empty() && gates_.empty(), "at rest nothing is in flight");
  KV_CHECK(tree_.device_pages() == device_.used() && tree_.host_pages() == host_.used(), "at rest nobody owns a slot");
}

void Cache::check_invariants(Pages request_pages, Pages prefetch_pages) const {
  check_copies_reachable();
  tree_.check_invariants();
  device_.check_invariants();
  host_.check_invariants();
  KV_CHECK(tree_.device_pages() + request_pages == device_.used(), "each device page has exactly one owner");
  KV_CHECK(tree_.host_pages() + prefetch_pages == host_.used(), "each host page has exactly one owner");
  storage_.check_invariants();
  KV_CHECK(storage_.anything_in_flight() || stores_.empty(), "what is held for a write is being written");
  for (const Lanes* lanes : {&backups_, &loads_}) {
    const bool load = lanes == &loads_;
    KV_CHECK(lanes->moves.size() == lanes->queued.pages, "what is queued has its moves");
    for (const Transfer& transfer : lanes->transfers) {
      Pages marked = 0;
      for (const NodeId id : marked_nodes(transfer, load)) {
        const Node& node = tree_.node(id);
        KV_CHECK(node.alive && node.on_device() && node.on_host(), "a page in flight has both its places");
        KV_CHECK(!load || node.device_leases > 0, "a page that is being loaded is leased");
        marked += node.facts.pages;
      }
      KV_CHECK(marked == transfer.pages, "a transfer in flight covers the pages it was submitted with");
    }
  }
}

}  // namespace kvtwin

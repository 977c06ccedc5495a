#include "policy/storage/storage.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

// The guess at the content of a shared store need not be longer (HiCache's bounds, without and with buffer_only).
constexpr Pages kMaxGuessPages = 131072, kMaxGuessPagesOfBuffer = 524288;

Pages catalog_pages(const EngineConfig& config, const StorageTierConfig& tier) {
  return tier.owned ? tier.pages : std::min(tier.pages, config.buffers() ? kMaxGuessPagesOfBuffer : kMaxGuessPages);
}

EvictionSetup setup_for(const EngineConfig& config, const StorageTierConfig& tier) {
  return {.capacity = catalog_pages(config, tier),
          .page_tokens = config.shape.page_tokens,
          .doubling_tokens = config.cost_doubling_tokens,
          .follows_visits = false};
}

// The ranks' minimum of this less a length tells the largest length.
constexpr std::int64_t kMostPages = std::int64_t{1} << 40;

}  // namespace

Storage::Storage(const EngineConfig& config, Substrate& substrate, const EventSink& sink)
    : config_(config), substrate_(substrate), sink_(sink) {
  KV_CHECK(config.storage.size() <= kStorageTiers, "each storage tier is there once at most");
  std::vector<Pages> sizes{units_of_page()};
  for (std::size_t pool = 1; pool <= config.pools.size(); ++pool) {
    sizes.push_back(object_bytes(pool) * writers(pool));
  }
  for (const StorageTierConfig& tier : config.storage) {
    tiers_.push_back({Catalog(catalog_pages(config, tier) * units_of_page(),
                              make_eviction(tier.owned ? config.eviction : "lru", setup_for(config, tier)), sizes),
                      {},
                      {}});
  }
}

void Storage::visit(const Visit& visit) {
  for (auto& tier : tiers_) tier.catalog.visit(visit);
}

void Storage::hint(const Hint& hint, TimeNs step_time) {
  for (auto& tier : tiers_) tier.catalog.hint(hint, step_time);
}

void Storage::queue(RequestId request, std::span<const PageKey> keys) {
  for (auto& tier : tiers_) tier.catalog.queue(request, keys);
}

void Storage::unqueue(RequestId request, std::span<const PageKey> keys) {
  for (auto& tier : tiers_) tier.catalog.unqueue(request, keys);
}

// ---- operations ------------------------------------------------------------------------------------------

std::size_t Storage::queue_of(StorageVerb verb, Tier memory) {
  if (verb == StorageVerb::look_up) return 0;
  if (verb == StorageVerb::get) return memory == Tier::host ? 1 : 2;
  return 3;
}

OperationId Storage::submit(std::size_t tier, Job job, std::span<const PageKey> keys, std::span<const SlotId> slots) {
  pages_.clear();
  for (std::size_t i = 0; i < keys.size(); ++i) pages_.push_back({keys[i], slots.empty() ? kNoSlot : slots[i]});
  StorageOperation operation;
  operation.work.verb = job.answer.verb;
  operation.work.tier = config_.storage[tier].tier;
  operation.work.memory = job.answer.memory;
  operation.work.pages = keys.size();
  operation.work.page_bytes = object_bytes(job.answer.pool);
  operation.work.objects = is_state(job.answer.pool) ? 1 : config_.storage_objects;
  operation.work.ranks = job.answer.verb == StorageVerb::set ? writers(job.answer.pool) : config_.ranks;
  operation.space = config_.storage_space;
  operation.pool = job.answer.pool;
  operation.pages = pages_;
  operation.needs = job.needs;
  job.answer.tier = tier;
  job.answer.asked = keys.size();
  job.submitted = substrate_.now();
  job.answer.id = substrate_.submit(operation);
  const OperationId id = job.answer.id;
  tiers_[tier].queues[queue_of(job.answer.verb, job.answer.memory)].push_back(std::move(job));
  ++in_flight_;
  return id;
}

// The keys of what the pool has of these pages.
std::vector<PageKey> Storage::keys_in(std::size_t pool, std::span<const PageKey> pages) const {
  std::vector<PageKey> keys(pages.begin(), pages.end());
  for (PageKey& key : keys) key = pool == 0 ? key : pool_page_key(key, pool);
  return keys;
}

OperationId Storage::look_up(std::size_t tier, RequestId request, std::span<const PageKey> chain, Pages first,
                             std::span<const StorageOperation::Need> needs) {
  Job job;
  job.needs.assign(needs.begin(), needs.end());
  job.answer.verb = StorageVerb::look_up;
  job.answer.request = request;
  if (first > 0) job.prior = chain[first - 1];
  job.mark = tiers_[tier].catalog.mark();
  const std::span<const PageKey> keys = chain.subspan(first);
  job.keys.assign(keys.begin(), keys.end());
  return submit(tier, std::move(job), keys, {});
}

StorageAnswer Storage::get(std::size_t tier, RequestId request, std::span<const PageKey> chain, Pages first,
                           std::span<const SlotId> slots, Tier memory, std::size_t pool) {
  Job job;
  job.answer.verb = StorageVerb::get;
  job.answer.pool = pool;
  job.answer.memory = memory;
  job.answer.request = request;
  job.keys = keys_in(pool, chain.subspan(first, slots.size()));
  const std::vector<PageKey> keys = job.keys;
  tiers_[tier].catalog.touch(keys);
  for (const PageKey& key : pinned(job)) tiers_[tier].catalog.pin(key);
  StorageAnswer answer = job.answer;
  answer.tier = tier;
  answer.asked = keys.size();
  answer.id = submit(tier, std::move(job), keys, slots);
  return answer;
}

void Storage::cancel(const StorageAnswer& get) {
  for (Job& job : tiers_[get.tier].queues[queue_of(get.verb, get.memory)]) {
    if (job.answer.id == get.id) job.cancelled = true;
  }
  substrate_.cancel(get.id);
}

std::uint32_t Storage::write(std::uint64_t hold, const PageKey* prior, std::span<const PageKey> keys,
                             std::span<const SlotId> slots, Tier memory, std::size_t tiers_to, std::int32_t priority,
                             std::size_t pool, const PromptParts& parts) {
  std::uint32_t jobs = 0;
  for (std::size_t tier = 0; tier < tiers_to; ++tier) {
    jobs += write_to(tier, hold, prior, keys, slots, memory, priority, pool, parts);
  }
  return jobs;
}

std::uint32_t Storage::write_to(std::size_t tier, std::uint64_t hold, const PageKey* prior,
                                std::span<const PageKey> keys, std::span<const SlotId> slots, Tier memory,
                                std::int32_t priority, std::size_t pool, const PromptParts& parts) {
  std::uint32_t jobs = 0;
  const std::vector<PageKey> objects = pool == 0 ? std::vector<PageKey>{} : keys_in(pool, keys);
  const std::span<const PageKey> named = pool == 0 ? keys : std::span<const PageKey>(objects);
  Catalog& catalog = tiers_[tier].catalog;
  // Pages that the tier knows already are left alone. The others are written in runs.
  for (std::size_t at = 0; at < keys.size();) {
    const std::size_t first = at;
    const bool known = catalog.knows(named[at]);
    while (at < keys.size() && catalog.knows(named[at]) == known) ++at;
    if (known) {
      catalog.raise_priority(named.subspan(first, at - first), priority);
      catalog.touch(named.subspan(first, at - first));
      continue;
    }
    const PageKey* before = first == 0 ? prior : &keys[first - 1];
    jobs += write_run(tier, hold, before, keys.subspan(first, at - first), slots.subspan(first, at - first), memory,
                      priority, pool, parts);
  }
  return jobs;
}

// The pages of a run are one chain in the catalog. The objects of another pool are each below their page.
void Storage::begin_write(std::size_t tier, const Job& job) {
  Catalog& catalog = tiers_[tier].catalog;
  if (job.answer.pool == 0) {
    catalog.begin_write(job.prior ? &*job.prior : nullptr, job.keys, job.priority, 0, job.parts);
    return;
  }
  for (std::size_t i = 0; i < job.keys.size(); ++i) {
    catalog.begin_write(&job.pages[i], std::span(job.keys).subspan(i, 1), job.priority, job.answer.pool);
  }
}

std::uint32_t Storage::write_run(std::size_t tier, std::uint64_t hold, const PageKey* prior,
                                 std::span<const PageKey> keys, std::span<const SlotId> slots, Tier memory,
                                 std::int32_t priority, std::size_t pool, const PromptParts& parts) {
  std::uint32_t jobs = 0;
  while (!keys.empty()) {
    const Pages wanted = std::min<Pages>(keys.size(), config_.storage_batch_pages);
    if (!config_.buffers() && leaves_out(tier, wanted)) {  // a host buffer has limited its writes already
      drop(tier, keys, Reason::backlog, pool);
      return jobs;
    }
    const Pages room = make_room(tier, pool == 0 ? prior : &keys[wanted - 1], wanted, pool);
    if (room > 0) {
      Job job;
      job.answer.verb = StorageVerb::set;
      job.answer.memory = memory;
      job.answer.pool = pool;
      if (prior != nullptr) job.prior = *prior;
      job.keys = keys_in(pool, keys.first(room));
      if (pool != 0) job.pages.assign(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(room));
      job.slots.assign(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(room));
      job.hold = hold;
      job.priority = priority;
      job.parts = parts;
      begin_write(tier, job);
      writing_ += room;
      sink_.decide(tier == 0 ? DecisionKind::store : DecisionKind::store_next, Reason::none, keys.front(), room,
                   kNoRequest, static_cast<std::uint8_t>(pool));
      sink_.event({.kind = EventKind::store_queued,
                   .tier = config_.storage[tier].tier,
                   .pool = static_cast<std::uint8_t>(pool),
                   .pages = room});
      const std::vector<PageKey> named = job.keys;
      submit(tier, std::move(job), named, slots.first(room));
      ++jobs;
    }
    if (room < wanted) {
      drop(tier, keys.subspan(room), Reason::capacity, pool);
      return jobs;
    }
    prior = &keys[wanted - 1];
    keys = keys.subspan(wanted);
    slots = slots.subspan(wanted);
  }
  return jobs;
}

Pages Storage::write_limit() const {
  const Pages source_pages = config_.host_pages != 0 ? config_.host_pages : config_.device_pages;
  return std::max<Pages>(1, source_pages * config_.storage_write_share / 1024);
}

bool Storage::blocks_admission() const {
  return config_.storage_backlog == StorageBacklog::block && writing_ > write_limit();
}

// Returns whether a write of so many pages is dropped because of the writes in flight.
bool Storage::leaves_out(std::size_t tier, Pages pages) {
  const Pages limit = write_limit();
  switch (config_.storage_backlog) {
    case StorageBacklog::drop: return writing_ + pages > limit;
    case StorageBacklog::wait:
    case StorageBacklog::block: return false;
    case StorageBacklog::throttle: break;
  }
  if (writing_ + pages > limit) return true;
  if (2 * writing_ <= limit) return false;
  std::uint64_t& owed = tiers_[tier].left_out;  // parts of a write that are to be left out
  owed += 2 * writing_ - limit;
  if (owed < limit) return false;
  owed -= limit;
  return true;
}

bool Storage::has_all(std::span<const PageKey> keys) const {
  return std::ranges::all_of(tiers_, [keys](const TierState& tier) {
    return std::ranges::all_of(
        keys, [&](const PageKey& key) { return tier.catalog.is_there_since(key, tier.catalog.mark()); });
  });
}

bool Storage::knows_all(std::span<const PageKey> keys) const {
  return std::ranges::all_of(tiers_, [keys](const TierState& tier) {
    return std::ranges::all_of(keys, [&](const PageKey& key) { return tier.catalog.knows(key); });
  });
}

void Storage::raise_priority(std::span<const PageKey> keys, std::int32_t priority) {
  if (keys.empty()) return;
  for (auto& tier : tiers_) tier.catalog.raise_priority(keys, priority);
}

// Makes room: an owned tier removes the victims; of a shared store, the engine only forgets them.
Pages Storage::make_room(std::size_t tier, const PageKey* prior, Pages pages, std::size_t pool) {
  Catalog& catalog = tiers_[tier].catalog;
  victims_.clear();
  if (prior != nullptr) catalog.pin(*prior);
  const Pages room = catalog.take_victims(pages, victims_, pool);
  if (prior != nullptr) catalog.unpin(*prior);
  if (victims_.empty() || !config_.storage[tier].owned) return room;
  sink_.decide(DecisionKind::evict_storage, Reason::lost, victims_.front(), victims_.size());
  std::ranges::stable_sort(victims_, {}, pool_of);
  for (auto from = victims_.begin(); from != victims_.end();) {
    const std::size_t of = pool_of(*from);
    const auto to = std::find_if(from, victims_.end(), [of](const PageKey& key) { return pool_of(key) != of; });
    report({.kind = EventKind::evicted,
            .tier = config_.storage[tier].tier,
            .reason = Reason::lost,
            .pool = static_cast<std::uint8_t>(of),
            .keys = {from, to}});
    from = to;
  }
  remove(tier, victims_);
  return room;
}

// Reports `keys` of one pool. Events name pages of pool 0 only.
void Storage::report(Event event) const {
  event.pages = event.keys.size();
  if (event.pool != 0) event.keys = {};
  sink_.event(event);
}

// Removes in order with the sets: a set that needs the room comes later.
void Storage::remove(std::size_t tier, std::span<const PageKey> keys) {
  Job job;
  job.answer.verb = StorageVerb::remove;
  job.answer.memory = config_.host_pages != 0 ? Tier::host : Tier::device;
  job.keys.assign(keys.begin(), keys.end());
  for (const PageKey& key : keys) ++tiers_[tier].being_removed[key];
  submit(tier, std::move(job), keys, {});
}

// The pages are missing or unreadable. From an owned tier they are also removed, so they do not take up room that the
// catalog does not count.
void Storage::forget_lost(std::size_t tier, std::span<const PageKey> keys) {
  victims_.clear();
  for (const PageKey& key : keys) {
    tiers_[tier].catalog.forget(key);
    if (!tiers_[tier].catalog.knows(key)) victims_.push_back(key);  // otherwise the page is being written again
  }
  if (config_.storage[tier].owned && !victims_.empty()) remove(tier, victims_);
}

void Storage::drop(std::size_t tier, std::span<const PageKey> keys, Reason reason, std::size_t pool) {
  sink_.decide(tier == 0 ? DecisionKind::store : DecisionKind::store_next, reason, keys.front(), keys.size(),
               kNoRequest, static_cast<std::uint8_t>(pool));
  report({.kind = EventKind::store_dropped,
          .tier = config_.storage[tier].tier,
          .reason = reason,
          .pool = static_cast<std::uint8_t>(pool),
          .keys = keys});
}

// ---- answers ---------------------------------------------------------------------------------------------

bool Storage::complete(const Completion& completion) {
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    for (std::size_t q = 0; q < kStorageQueues; ++q) {
      std::deque<Job>& queue = tiers_[tier].queues[q];
      const auto job = std::ranges::lower_bound(queue, completion.id, {}, [](const Job& j) { return j.answer.id; });
      if (job == queue.end() || job->answer.id != completion.id) continue;
      if (job->complete) return false;
      job->complete = true;
      job->answer.done = completion.status == Status::done;
      job->answer.pages = completion.pages;
      job->usable.assign(completion.usable.begin(), completion.usable.end());
      job->bound = job->answer.asked;
      job->answer.answered = substrate_.now();
      if (completion.cause != Cause::none) {
        sink_.event({.kind = EventKind::storage_fell_short,
                     .tier = config_.storage[tier].tier,
                     .pages = job->answer.asked - completion.pages,
                     .duration_ns = substrate_.now() - job->submitted,
                     .cause = completion.cause,
                     .operation = completion.id});
      }
      return true;
    }
  }
  return false;
}

Pages Storage::largest_usable(const Job& job) {
  const auto above = std::ranges::upper_bound(job.usable, job.bound);
  return above == job.usable.begin() ? 0 : *std::prev(above);
}

StorageHeads Storage::heads() const {
  StorageHeads heads{};
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    for (std::size_t q = 0; q < kStorageQueues; ++q) {
      const std::deque<Job>& queue = tiers_[tier].queues[q];
      if (queue.empty() || !queue.front().complete) continue;
      const StorageAnswer& answer = queue.front().answer;
      heads[tier * kStorageQueues + q] = 1 + 2 * static_cast<std::int64_t>(answer.pages) + (answer.done ? 1 : 0);
      if (config_.pools.empty() || answer.verb != StorageVerb::look_up) continue;
      const std::size_t at = tiers_.size() * kStorageQueues + 2 * tier;
      heads[at] = static_cast<std::int64_t>(largest_usable(queue.front()));
      heads[at + 1] = kMostPages - heads[at];
    }
  }
  return heads;
}

bool Storage::answer_due() const {
  return std::ranges::any_of(heads(), [](std::int64_t head) { return head != 0; });
}

bool Storage::take(const StorageHeads& agreed) {
  answers_.clear();
  ended_.clear();
  bool any = false;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    for (std::size_t q = 0; q < kStorageQueues; ++q) {
      const std::int64_t said = agreed[tier * kStorageQueues + q];
      if (said == 0) continue;
      any = true;
      std::deque<Job>& queue = tiers_[tier].queues[q];
      if (const Job& head = queue.front(); !config_.pools.empty() && head.answer.verb == StorageVerb::look_up) {
        const std::size_t at = tiers_.size() * kStorageQueues + 2 * tier;
        const auto usable = static_cast<Pages>(agreed[at]);
        if (agreed[at] != kMostPages - agreed[at + 1]) {  // another round
          queue.front().bound = usable;
          continue;
        }
        queue.front().answer.usable = usable;
      }
      Job job = std::move(queue.front());
      queue.pop_front();
      --in_flight_;
      job.answer.pages = static_cast<Pages>(said - 1) / 2;
      job.answer.done = (said - 1) % 2 != 0;
      take(job);
    }
  }
  return any;
}

void Storage::take(Job& job) {
  switch (job.answer.verb) {
    case StorageVerb::look_up: take_look_up(job); break;
    case StorageVerb::get: take_get(job); break;
    case StorageVerb::set: take_set(job); break;
    case StorageVerb::remove: take_remove(job); break;
  }
}

void Storage::take_remove(Job& job) {
  auto& being_removed = tiers_[job.answer.tier].being_removed;
  for (const PageKey& key : job.keys) {
    const auto found = being_removed.find(key);
    if (--found->second == 0) being_removed.erase(found);
  }
}

// A page that was believed to be there and is missing is forgotten. Pages that are there without being known are added.
void Storage::take_look_up(Job& job) {
  Catalog& catalog = tiers_[job.answer.tier].catalog;
  const std::span<const PageKey> keys = job.keys;
  if (job.answer.done && job.answer.pages < keys.size() && catalog.is_there_since(keys[job.answer.pages], job.mark)) {
    forget_lost(job.answer.tier, keys.subspan(job.answer.pages, 1));
  }
  // The answer may be older than a remove that was submitted meanwhile.
  Pages stays = 0;
  while (stays < job.answer.pages && !tiers_[job.answer.tier].being_removed.contains(keys[stays])) ++stays;
  job.answer.pages = stays;
  catalog.adopt(job.prior ? &*job.prior : nullptr, keys.first(stays));
  if (job.needs.empty()) {
    job.answer.usable = stays;
  } else if (job.answer.usable > stays || removes_needed(job)) {
    job.answer.usable = 0;  // a shorter length may not be usable
  } else if (job.answer.done) {
    sync_objects(job);
  }
  answers_.push_back(job.answer);
}

// Calls visit(key) for each window and state that a prefix of this length needs, until one returns false; returns
// whether none did.
template <typename Visit>
bool Storage::each_needed(const Job& job, Pages length, Visit visit) {
  for (const StorageOperation::Need& need : job.needs) {
    for (Pages page = length - std::min(length, need.trailing); page < length; ++page) {
      if (!visit(need.pool, page)) return false;
    }
  }
  return true;
}

bool Storage::removes_needed(const Job& job) const {
  const auto& being_removed = tiers_[job.answer.tier].being_removed;
  return !each_needed(job, job.answer.usable, [&](std::size_t pool, Pages page) {
    return !being_removed.contains(pool_page_key(job.keys[page], pool));
  });
}

// The windows and states that the usable prefix needs are there. If a longer prefix was believed to be usable, one of
// its windows or states is missing. The answer does not name it, so all of that prefix are forgotten, and written again
// later.
void Storage::sync_objects(const Job& job) {
  Catalog& catalog = tiers_[job.answer.tier].catalog;
  each_needed(job, job.answer.usable, [&](std::size_t pool, Pages page) {
    const PageKey object = pool_page_key(job.keys[page], pool);
    catalog.adopt(&job.keys[page], {&object, 1}, pool);
    return true;
  });
  Pages least = 0;  // shorter lengths are not usable, whatever is there
  for (const StorageOperation::Need& need : job.needs) {
    if (!need.from_start) least = std::max(least, need.trailing);
  }
  for (Pages length = job.answer.pages; length > job.answer.usable && length >= least; --length) {
    const bool believed = each_needed(job, length, [&](std::size_t pool, Pages page) {
      return catalog.is_there_since(pool_page_key(job.keys[page], pool), job.mark);
    });
    if (!believed) continue;
    std::vector<PageKey> missing;
    each_needed(job, length, [&](std::size_t pool, Pages page) {
      missing.push_back(pool_page_key(job.keys[page], pool));
      return true;
    });
    forget_lost(job.answer.tier, missing);
  }
}

// Of a chain, the last page: it protects those above.
std::span<const PageKey> Storage::pinned(const Job& job) {
  return job.answer.pool == 0 ? std::span(job.keys).last(1) : std::span(job.keys);
}

void Storage::take_get(Job& job) {
  Catalog& catalog = tiers_[job.answer.tier].catalog;
  for (const PageKey& key : pinned(job)) catalog.unpin(key);
  const Pages pages = job.answer.pages;
  if (pages < job.answer.asked && !job.cancelled) forget_lost(job.answer.tier, std::span(job.keys).subspan(pages, 1));
  answers_.push_back(job.answer);
}

void Storage::take_set(Job& job) {
  const std::size_t tier = job.answer.tier;
  const std::span<const PageKey> keys = job.keys;
  const Pages stored = job.answer.pages;
  tiers_[tier].catalog.end_write(keys, stored);
  writing_ -= keys.size();
  if (stored > 0)
    report({.kind = EventKind::store_done,
            .tier = config_.storage[tier].tier,
            .pool = static_cast<std::uint8_t>(job.answer.pool),
            .operation = job.answer.id,
            .keys = keys.first(stored)});
  if (stored == keys.size()) {
    ended_.push_back({job.hold, true});
    return;
  }
  const std::span<const PageKey> rest = keys.subspan(stored);
  const PageKey* prior = stored > 0 ? &keys[stored - 1] : job.prior ? &*job.prior : nullptr;
  const bool again = job.attempts < config_.storage_retries;
  const std::size_t pool = job.answer.pool;
  if (pool != 0) prior = &job.pages.back();
  const Pages room = again ? make_room(tier, prior, rest.size(), pool) : 0;
  if (room < rest.size()) {
    drop(tier, pool == 0 ? rest : std::span<const PageKey>(job.pages).subspan(stored), Reason::transfer_failed, pool);
    if (config_.storage[tier].owned) remove(tier, rest);  // some of these pages may be there
    ended_.push_back({job.hold, false});
    return;
  }
  sink_.decide(tier == 0 ? DecisionKind::store : DecisionKind::store_next, Reason::retry,
               pool == 0 ? rest.front() : job.pages[stored], rest.size(), kNoRequest, static_cast<std::uint8_t>(pool));
  sink_.event({.kind = EventKind::store_retried,
               .tier = config_.storage[tier].tier,
               .reason = Reason::transfer_failed,
               .pool = static_cast<std::uint8_t>(pool),
               .pages = rest.size(),
               .operation = job.answer.id});
  Job next;
  next.answer.verb = StorageVerb::set;
  next.answer.pool = pool;
  if (pool != 0) next.pages.assign(job.pages.begin() + static_cast<std::ptrdiff_t>(stored), job.pages.end());
  next.answer.memory = job.answer.memory;
  if (prior != nullptr) next.prior = *prior;
  next.keys.assign(rest.begin(), rest.end());
  next.slots.assign(job.slots.begin() + static_cast<std::ptrdiff_t>(stored), job.slots.end());
  next.hold = job.hold;
  next.attempts = job.attempts + 1;
  next.priority = job.priority;
  begin_write(tier, next);
  writing_ += rest.size();
  const std::vector<SlotId> slots = next.slots;
  submit(tier, std::move(next), rest, slots);
}

// ---- accounts --------------------------------------------------------------------------------------------

void Storage::check_invariants() const {
  std::uint64_t jobs = 0;
  Pages writing = 0;
  for (const TierState& tier : tiers_) {
    tier.catalog.check_invariants();
    for (const std::deque<Job>& queue : tier.queues) {
      jobs += queue.size();
      for (const Job& job : queue) writing += job.answer.verb == StorageVerb::set ? job.keys.size() : 0;
    }
  }
  KV_CHECK(jobs == in_flight_, "operations in flight are counted");
  KV_CHECK(writing == writing_, "pages on their way are counted");
  for (const TierState& tier : tiers_) {
    KV_CHECK(jobs > 0 || tier.being_removed.empty(), "a page that is being removed has a remove in flight");
  }
}

}  // namespace kvtwin

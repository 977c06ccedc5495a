#include "policy/storage/storage.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

// The guess at the content of a shared store need not be longer (HiCache's bound).
constexpr Pages kMaxGuessPages = 131072;

Pages catalog_pages(const StorageTierConfig& tier) {
  return tier.owned ? tier.pages : std::min(tier.pages, kMaxGuessPages);
}

EvictionSetup setup_for(const EngineConfig& config, const StorageTierConfig& tier) {
  return {.capacity = catalog_pages(tier),
          .page_tokens = config.shape.page_tokens,
          .doubling_tokens = config.cost_doubling_tokens,
          .follows_visits = false};
}

}  // namespace

Storage::Storage(const EngineConfig& config, Substrate& substrate, const EventSink& sink)
    : config_(config), substrate_(substrate), sink_(sink) {
  KV_CHECK(config.storage.size() <= kStorageTiers, "each storage tier is there once at most");
  for (const StorageTierConfig& tier : config.storage) {
    tiers_.push_back(
        {Catalog(catalog_pages(tier), make_eviction(tier.owned ? config.eviction : "lru", setup_for(config, tier))),
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
  operation.work.page_bytes = config_.page_bytes();
  operation.work.objects = config_.storage_objects;
  operation.work.ranks = job.answer.verb == StorageVerb::set ? config_.storage_writers : config_.ranks;
  operation.space = config_.storage_space;
  operation.pages = pages_;
  job.answer.tier = tier;
  job.answer.asked = keys.size();
  job.submitted = substrate_.now();
  job.answer.id = substrate_.submit(operation);
  const OperationId id = job.answer.id;
  tiers_[tier].queues[queue_of(job.answer.verb, job.answer.memory)].push_back(std::move(job));
  ++in_flight_;
  return id;
}

OperationId Storage::look_up(std::size_t tier, RequestId request, std::span<const PageKey> chain, Pages first) {
  Job job;
  job.answer.verb = StorageVerb::look_up;
  job.answer.request = request;
  if (first > 0) job.prior = chain[first - 1];
  job.mark = tiers_[tier].catalog.mark();
  const std::span<const PageKey> keys = chain.subspan(first);
  job.keys.assign(keys.begin(), keys.end());
  return submit(tier, std::move(job), keys, {});
}

StorageAnswer Storage::get(std::size_t tier, RequestId request, std::span<const PageKey> chain, Pages first,
                           std::span<const SlotId> slots, Tier memory) {
  Job job;
  job.answer.verb = StorageVerb::get;
  job.answer.memory = memory;
  job.answer.request = request;
  const std::span<const PageKey> keys = chain.subspan(first, slots.size());
  job.keys.assign(keys.begin(), keys.end());
  tiers_[tier].catalog.touch(keys);
  tiers_[tier].catalog.pin(keys.back());
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
                             std::span<const SlotId> slots, Tier memory, std::size_t tiers_to, std::int32_t priority) {
  std::uint32_t jobs = 0;
  for (std::size_t tier = 0; tier < tiers_to; ++tier) {
    const Catalog& catalog = tiers_[tier].catalog;
    // Pages that the tier knows already are left alone. The others are written in runs.
    for (std::size_t at = 0; at < keys.size();) {
      const std::size_t first = at;
      const bool known = catalog.knows(keys[at]);
      while (at < keys.size() && catalog.knows(keys[at]) == known) ++at;
      if (known) {
        tiers_[tier].catalog.raise_priority(keys.subspan(first, at - first), priority);
        tiers_[tier].catalog.touch(keys.subspan(first, at - first));
        continue;
      }
      const PageKey* before = first == 0 ? prior : &keys[first - 1];
      jobs += write_to(tier, hold, before, keys.subspan(first, at - first), slots.subspan(first, at - first), memory,
                       priority);
    }
  }
  return jobs;
}

std::uint32_t Storage::write_to(std::size_t tier, std::uint64_t hold, const PageKey* prior,
                                std::span<const PageKey> keys, std::span<const SlotId> slots, Tier memory,
                                std::int32_t priority) {
  std::uint32_t jobs = 0;
  while (!keys.empty()) {
    const Pages wanted = std::min<Pages>(keys.size(), config_.storage_batch_pages);
    const Pages source_pages = memory == Tier::host ? config_.host_pages : config_.device_pages;
    if (writing_ + wanted > std::max<Pages>(1, source_pages * config_.storage_write_share / 1024)) {
      drop(tier, keys, Reason::backlog);
      return jobs;
    }
    const Pages room = make_room(tier, prior, wanted);
    if (room > 0) {
      Job job;
      job.answer.verb = StorageVerb::set;
      job.answer.memory = memory;
      if (prior != nullptr) job.prior = *prior;
      job.keys.assign(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(room));
      job.slots.assign(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(room));
      job.hold = hold;
      tiers_[tier].catalog.begin_write(prior, keys.first(room), priority);
      job.priority = priority;
      writing_ += room;
      sink_.decide(tier == 0 ? DecisionKind::store : DecisionKind::store_next, Reason::none, keys.front(), room);
      sink_.event({.kind = EventKind::store_queued, .tier = config_.storage[tier].tier, .pages = room});
      submit(tier, std::move(job), keys.first(room), slots.first(room));
      ++jobs;
    }
    if (room < wanted) {
      drop(tier, keys.subspan(room), Reason::capacity);
      return jobs;
    }
    prior = &keys[wanted - 1];
    keys = keys.subspan(wanted);
    slots = slots.subspan(wanted);
  }
  return jobs;
}

void Storage::raise_priority(std::span<const PageKey> keys, std::int32_t priority) {
  if (keys.empty()) return;
  for (auto& tier : tiers_) tier.catalog.raise_priority(keys, priority);
}

// Makes room: an owned tier removes the victims; of a shared store, the engine only forgets them.
Pages Storage::make_room(std::size_t tier, const PageKey* prior, Pages pages) {
  Catalog& catalog = tiers_[tier].catalog;
  victims_.clear();
  if (prior != nullptr) catalog.pin(*prior);
  const Pages room = catalog.take_victims(pages, victims_);
  if (prior != nullptr) catalog.unpin(*prior);
  if (victims_.empty() || !config_.storage[tier].owned) return room;
  sink_.decide(DecisionKind::evict_storage, Reason::lost, victims_.front(), victims_.size());
  sink_.event({.kind = EventKind::evicted,
               .tier = config_.storage[tier].tier,
               .reason = Reason::lost,
               .pages = victims_.size(),
               .keys = victims_});
  remove(tier, victims_);
  return room;
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

void Storage::drop(std::size_t tier, std::span<const PageKey> keys, Reason reason) {
  sink_.decide(tier == 0 ? DecisionKind::store : DecisionKind::store_next, reason, keys.front(), keys.size());
  sink_.event({.kind = EventKind::store_dropped,
               .tier = config_.storage[tier].tier,
               .reason = reason,
               .pages = keys.size(),
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

StorageHeads Storage::heads() const {
  StorageHeads heads{};
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    for (std::size_t q = 0; q < kStorageQueues; ++q) {
      const std::deque<Job>& queue = tiers_[tier].queues[q];
      if (queue.empty() || !queue.front().complete) continue;
      const StorageAnswer& answer = queue.front().answer;
      heads[tier * kStorageQueues + q] = 1 + 2 * static_cast<std::int64_t>(answer.pages) + (answer.done ? 1 : 0);
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
  answers_.push_back(job.answer);
}

void Storage::take_get(Job& job) {
  Catalog& catalog = tiers_[job.answer.tier].catalog;
  catalog.unpin(job.keys.back());
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
    sink_.event({.kind = EventKind::store_done,
                 .tier = config_.storage[tier].tier,
                 .pages = stored,
                 .operation = job.answer.id,
                 .keys = keys.first(stored)});
  if (stored == keys.size()) {
    ended_.push_back(job.hold);
    return;
  }
  const std::span<const PageKey> rest = keys.subspan(stored);
  const PageKey* prior = stored > 0 ? &keys[stored - 1] : job.prior ? &*job.prior : nullptr;
  const bool again = job.attempts < config_.storage_retries;
  const Pages room = again ? make_room(tier, prior, rest.size()) : 0;
  if (room < rest.size()) {
    drop(tier, rest, Reason::transfer_failed);
    if (config_.storage[tier].owned) remove(tier, rest);  // some of these pages may be there
    ended_.push_back(job.hold);
    return;
  }
  sink_.decide(tier == 0 ? DecisionKind::store : DecisionKind::store_next, Reason::retry, rest.front(), rest.size());
  sink_.event({.kind = EventKind::store_retried,
               .tier = config_.storage[tier].tier,
               .reason = Reason::transfer_failed,
               .pages = rest.size(),
               .operation = job.answer.id});
  Job next;
  next.answer.verb = StorageVerb::set;
  next.answer.memory = job.answer.memory;
  if (prior != nullptr) next.prior = *prior;
  next.keys.assign(rest.begin(), rest.end());
  next.slots.assign(job.slots.begin() + static_cast<std::ptrdiff_t>(stored), job.slots.end());
  next.hold = job.hold;
  next.attempts = job.attempts + 1;
  next.priority = job.priority;
  tiers_[tier].catalog.begin_write(prior, rest, next.priority);
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

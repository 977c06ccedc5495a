#include "sim/world_core.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mix.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kInputsPerTick = 1000;

// Returns the number of pages whose last byte has moved when `left` of `total` bytes remain. The tolerance 1e-6 is for
// a cut at the end of a page.
Pages whole_pages(double left, double total, Pages pages) {
  if (total <= 0.0) return 0;
  const double moved = (1.0 - left / total) * static_cast<double>(pages);
  return std::min(pages, static_cast<Pages>(std::max(0.0, std::floor(moved + 1e-6))));
}

}  // namespace

WorldCore::WorldCore(const WorldConfig& config, FlowBackend& backend, const SeatPlace& place)
    : config_(config),
      backend_(backend),
      seat_(place.seat),
      rank_(place.rank),
      machine_(place.machine),
      shared_(place.shared),
      now_(place.shared.now),
      next_steps_(place.next_steps),
      collective_(place.collective),
      passes_(place.passes),
      peers_(place.peers),
      links_(config),
      stores_(place.stores) {
  KV_CHECK(config.cost != nullptr, "a world needs a cost model");
  KV_CHECK(config.ranks > 0, "a world has at least one rank");
  KV_CHECK(config.h2d_bytes_per_second > 0 && config.d2h_bytes_per_second > 0, "a PCIe link has a rate");
  for (const StorageTier& tier : config.storage) {
    KV_CHECK(is_storage(tier.tier), "a storage tier is one of L3");
    KV_CHECK(links_.has_medium(tier.tier), "a storage tier has what it lies on");
    KV_CHECK(stores_[tier.tier] != nullptr, "a storage tier has a store");
  }
}

// ---- records and queues --------------------------------------------------------------------------------

std::uint32_t WorldCore::new_record(Kind kind) {
  std::uint32_t slot = 0;
  if (free_operations_.empty()) {
    slot = static_cast<std::uint32_t>(operations_.size());
    operations_.emplace_back();
  } else {
    slot = free_operations_.back();
    free_operations_.pop_back();
  }
  Record& record = operations_[slot];
  record.id = OperationId{++last_id_};
  record.kind = kind;
  record.stage = Stage::queued;
  record.completion = Completion{.id = record.id};
  record.before = record.after = kNoSlotIndex;
  table_.insert(record.id, slot);
  ++in_flight_;
  return slot;
}

void WorldCore::free_record(std::uint32_t slot) {
  table_.erase(operations_[slot].id);
  operations_[slot].id = OperationId::none;
  free_operations_.push_back(slot);
  --in_flight_;
}

void WorldCore::schedule(std::uint32_t slot, TimeNs time) {
  Record& record = operations_[slot];
  record.due = std::max(time, now_);
  next_steps_.mark(seat_);
  agenda_.push(AgendaEntry{record.due, record.id, slot, ++record.ticket});
}

WorldCore::Queue& WorldCore::queue_of(const Record& record) {
  return queues_[record.kind == Kind::forward ? Lane::compute : record.transfer.lane];
}

void WorldCore::enqueue(std::uint32_t slot) {
  Queue& queue = queue_of(operations_[slot]);
  operations_[slot].before = queue.tail;
  if (queue.tail != kNoSlotIndex) operations_[queue.tail].after = slot;
  queue.tail = slot;
  if (queue.head == kNoSlotIndex) {
    queue.head = slot;
    start_head(queue);
  }
}

// If `slot` holds the lane, the next operation starts.
void WorldCore::leave_queue(std::uint32_t slot) {
  const Record& record = operations_[slot];
  Queue& queue = queue_of(record);
  if (record.before != kNoSlotIndex) operations_[record.before].after = record.after;
  if (record.after != kNoSlotIndex) operations_[record.after].before = record.before;
  if (queue.tail == slot) queue.tail = record.before;
  if (queue.head == slot) {
    queue.head = record.after;
    start_head(queue);
  }
}

// Reports the stay of `slot` on its lane, which ends now.
void WorldCore::report_lane_span(std::uint32_t slot) {
  if (lanes_ == nullptr) return;
  const Record& record = operations_[slot];
  LaneSpan span;
  span.id = record.id;
  span.end = now_;
  span.status = record.completion.status;
  if (record.kind == Kind::forward) {
    span.begin = record.forward.started;
    span.stalled_ns = record.completion.stalled_ns;
    span.steps = record.completion.steps;
  } else {
    span.lane = record.transfer.lane;
    span.begin = record.transfer.lane_since;
    span.flowing = record.transfer.flow_since;
    const bool all_ranks = record.transfer.storage || record.kind == Kind::hand_over;
    span.bytes = all_ranks ? record.completion.bytes : record.completion.bytes / config_.ranks;
    const TimeNs moving = record.transfer.cost.latency_ns + record.hand_over.flowed_ns;
    if (record.kind == Kind::hand_over) span.stalled_ns = std::max<TimeNs>(0, span.end - span.begin - moving);
    span.staged = record.kind == Kind::hand_over && record.hand_over.staged;
  }
  lanes_->on_lane(span);
  if (!span.staged) return;
  span.received = true;
  peers_->staged_at(record.hand_over.peer, span);
}

void WorldCore::start_head(Queue& queue) {
  if (queue.head == kNoSlotIndex) return;
  Record& record = operations_[queue.head];
  if (record.kind == Kind::forward) {
    start_pass(queue.head);
    return;
  }
  if (record.kind == Kind::hand_over) {
    record.transfer.lane_since = record.transfer.flow_since = now_;
    begin_group(queue.head);
    return;
  }
  if (record.transfer.storage) plan_storage(queue.head);
  record.stage = Stage::latency;
  record.transfer.lane_since = now_;
  record.transfer.flow_since = now_;
  schedule(queue.head, now_ + record.transfer.cost.latency_ns);
}

// ---- the substrate -------------------------------------------------------------------------------------

OperationId WorldCore::submit(const Operation& operation) {
  if (const auto* transfer = std::get_if<TransferOperation>(&operation)) return submit_transfer(*transfer);
  if (const auto* storage = std::get_if<StorageOperation>(&operation)) return submit_storage(*storage);
  if (const auto* hand_over = std::get_if<HandOverOperation>(&operation)) return submit_hand_over(*hand_over);
  return submit_forward(std::get<ForwardOperation>(operation));
}

OperationId WorldCore::submit_transfer(const TransferOperation& operation) {
  KV_CHECK(spec_of(operation.lane).kind == LaneKind::copy, "a transfer is between host and device");
  const std::uint32_t slot = new_record(Kind::transfer);
  Record& record = operations_[slot];
  record.transfer = Transfer{};
  record.transfer.lane = operation.lane;
  if (operation.plan.pages > 0) record.transfer.cost = config_.cost->transfer(operation.plan);
  const bool up = operation.lane == Lane::h2d;
  const auto add = [&](const Plan& other) {
    record.transfer.cost = one_after_another(record.transfer.cost, config_.cost->transfer(other),
                                             up ? config_.h2d_bytes_per_second : config_.d2h_bytes_per_second);
  };
  for (const Plan& other : operation.beside) add(other);
  for (const TransferOperation::Part& part : operation.parts) add(part.plan);
  record.transfer.ranks = config_.ranks;
  record.transfer.layer_groups = operation.plan.layer_groups;
  record.transfer.pages = operation.plan.pages;
  record.transfer.page_bytes = operation.plan.pages == 0 ? 0 : operation.bytes() / operation.plan.pages;
  record.transfer.plan_bytes = operation.bytes();
  record.transfer.flow_bytes = static_cast<double>(record.transfer.cost.bytes);
  record.piece = FlowPiece{.start = {}, .left = record.transfer.flow_bytes, .rate = 0.0};
  const OperationId id = record.id;
  enqueue(slot);
  return id;
}

OperationId WorldCore::submit_forward(const ForwardOperation& operation) {
  KV_CHECK(operation.steps > 0, "a forward pass has at least one step");
  const std::uint32_t slot = new_record(Kind::forward);
  Record& record = operations_[slot];
  record.forward = Forward{};
  record.forward.shape = operation.shape;
  record.forward.steps = operation.steps;
  record.forward.submitted = now_;
  record.forward.total_ns = config_.cost->forward_ns(operation.shape, operation.steps);
  record.forward.ordinal = pass_count_++;
  record.completion.steps = operation.steps;
  record.forward.gated = !operation.gates.empty();
  if (record.forward.gated) watch_gates(slot, operation.gates);
  const OperationId id = record.id;
  enqueue(slot);
  return id;
}

OperationId WorldCore::call_at(TimeNs time) {
  const std::uint32_t slot = new_record(Kind::timer);
  operations_[slot].stage = Stage::ending;
  schedule(slot, time);
  return operations_[slot].id;
}

OperationId WorldCore::reduce_min(const ReduceVector& values) {
  const std::uint32_t slot = new_record(Kind::reduction);
  operations_[slot].stage = Stage::ending;
  operations_[slot].values = values;
  const OperationId id = operations_[slot].id;
  if (collective_ == nullptr) {
    schedule(slot, now_);
  } else {
    collective_->reduction_entered(seat_, slot);
  }
  return id;
}

void WorldCore::answer_reduction(std::uint32_t slot, const ReduceVector& values, TimeNs time) {
  operations_[slot].values = values;
  schedule(slot, time);
}

void WorldCore::cancel(OperationId id) {
  const std::uint32_t slot = table_.find(id);
  if (slot == kNoSlotIndex) return;
  const Record& record = operations_[slot];
  if (record.completion.status != Status::done) return;
  const bool ending = record.stage == Stage::landed || record.stage == Stage::ending;
  // The operation has ended; only the input is missing.
  if (record.stage == Stage::held || (ending && record.due <= now_)) return;
  switch (record.kind) {
    case Kind::transfer: cancel_transfer(slot); break;
    case Kind::look_up:
      operations_[slot].completion.status = Status::cancelled;
      schedule(slot, now_);
      break;
    case Kind::forward: cancel_forward(slot); break;
    case Kind::hand_over: cancel_hand_over(slot, Status::cancelled); break;
    case Kind::timer: schedule(slot, now_); break;
    case Kind::reduction: break;
  }
}

// ---- transfers -----------------------------------------------------------------------------------------

void WorldCore::start_flow(std::uint32_t slot) {
  Record& record = operations_[slot];
  const Transfer& transfer = record.transfer;
  record.stage = Stage::flowing;
  const bool further_group = record.kind == Kind::hand_over && record.hand_over.group > 0;
  if (!further_group) record.transfer.flow_since = now_;
  // A hand-over that waited for its pass did not use the lane until then.
  if (record.kind == Kind::hand_over && !further_group) {
    record.transfer.lane_since = now_ - record.transfer.cost.latency_ns;
  }
  record.hand_over.flow_begin = now_;
  record.piece.start = Instant{now_, 0.0};
  if (transfer.storage && transfer.flow_bytes == 0.0) {
    flow_ended(slot);  // a remove, or an operation that moves no bytes
    return;
  }
  const std::uint32_t movers = transfer.storage ? transfer.ranks : 1;  // the cost of a plan is already that of one rank
  Flow flow;
  flow.lane = transfer.lane;
  flow.tier = transfer.storage ? record.storage.work.tier : Tier::host;
  flow.ranks = transfer.ranks;
  flow.bytes = transfer.flow_bytes;
  flow.max_bytes_per_second = static_cast<double>(transfer.cost.bytes_per_second) / static_cast<double>(movers);
  if (transfer.storage) {
    flow.nodes = record.storage.nodes;
    flow.own_share = record.storage.own_share;
    flow.drive_share = record.storage.drive_share;
  }
  if (record.kind == Kind::hand_over) {
    flow.max_bytes_per_second /= transfer.ranks;
    flow.peer = record.hand_over.peer;
    flow.receivers = record.hand_over.receivers;
    flow.staged = record.hand_over.staged;
  }
  backend_.start_flow(seat_, slot, flow);
}

void WorldCore::flow_rate(std::uint32_t slot, const Instant& since, double bytes_per_ns) {
  FlowPiece& piece = operations_[slot].piece;
  if (bytes_per_ns == piece.rate) return;
  if (piece.rate > 0.0) {
    // SimGrid may solve the shares a fraction of a nanosecond after an end that was rounded down.
    const double elapsed = static_cast<double>(since.base - piece.start.base) + since.fraction - piece.start.fraction;
    if (elapsed > 0.0) {
      const double left = piece.left_at(since);
      fold_watches(slot, left, false);
      piece.start = since;
      piece.left = left;
    }
  }
  piece.rate = bytes_per_ns;
}

void WorldCore::flow_ended(std::uint32_t slot) {
  operations_[slot].stage = Stage::landed;
  schedule(slot, nearest_ns(operations_[slot].piece.end()));
}

void WorldCore::cancel_transfer(std::uint32_t slot) {
  Record& record = operations_[slot];
  const Stage stage = record.stage;
  record.stage = Stage::ending;
  record.completion.status = Status::cancelled;
  Transfer& transfer = record.transfer;
  const bool flows = stage == Stage::flowing || stage == Stage::landed;
  const double left = flows ? record.piece.left_at(Instant{now_, 0.0}) : 0.0;
  transfer.pages = flows ? whole_pages(left, transfer.flow_bytes, transfer.pages) : 0;
  if (stage == Stage::flowing) backend_.stop_flow(seat_, slot);
  if (stage == Stage::queued) leave_queue(slot);
  schedule(slot, now_);
}

// Returns the moved bytes of all ranks together.
Bytes WorldCore::moved_bytes(const Record& record) const {
  const Transfer& transfer = record.transfer;
  const bool whole = !transfer.storage && record.completion.status == Status::done;
  return (whole ? transfer.plan_bytes : transfer.pages * transfer.page_bytes) * transfer.ranks;
}

void WorldCore::end_transfer(std::uint32_t slot) {
  Record& record = operations_[slot];
  record.completion.bytes = moved_bytes(record);
  dram_bytes_ += record.completion.bytes * dram_crossings(record.transfer.lane);
  if (record.transfer.storage) {
    if (queue_of(record).head == slot) report_lane_span(slot);
    record.stage = Stage::held;
    if (end_order_of(record.storage.work).head == slot) end_storage(slot);
    return;
  }
  close_watches(slot, record.completion.status == Status::done);
  if (queue_of(record).head == slot) {
    report_lane_span(slot);
    leave_queue(slot);
  }
  const Completion completion = operations_[slot].completion;
  free_record(slot);
  deliver(Input{now_, completion});
}

// ---- storage -------------------------------------------------------------------------------------------

OperationId WorldCore::submit_storage(const StorageOperation& operation) {
  const StorageWork& work = operation.work;
  KV_CHECK(stores_[work.tier] != nullptr, "a storage operation is of a tier that there is");
  const bool is_look_up = work.verb == StorageVerb::look_up;
  const std::uint32_t slot = new_record(is_look_up ? Kind::look_up : Kind::transfer);
  Record& record = operations_[slot];
  record.storage.work = work;
  record.storage.keys.clear();  // keeps the capacity of the vector
  for (const StoragePage& page : operation.pages) record.storage.keys.push_back(store_key(operation.space, page.key));
  record.storage.needs.assign(operation.needs.begin(), operation.needs.end());
  record.storage.needed.clear();
  for (const StorageOperation::Need& need : operation.needs) {
    for (const StoragePage& page : operation.pages) {
      record.storage.needed.push_back(store_key(operation.space, pool_page_key(page.key, need.pool)));
    }
  }
  record.storage.leading = 0;
  record.storage.started = false;
  const OperationId id = record.id;
  if (is_look_up) {
    record.stage = Stage::ending;
    schedule(slot, now_ + config_.cost->storage(work).latency_ns);
    return id;
  }
  record.transfer = Transfer{};
  record.transfer.storage = true;
  record.transfer.lane = lane_of(work);
  record.transfer.ranks = work.ranks;
  record.transfer.page_bytes = work.page_bytes;
  record.piece = FlowPiece{};
  Queue& order = end_order_of(work);
  record.storage.before = order.tail;
  record.storage.after = kNoSlotIndex;
  if (order.tail != kNoSlotIndex) operations_[order.tail].storage.after = slot;
  if (order.head == kNoSlotIndex) order.head = slot;
  order.tail = slot;
  enqueue(slot);
  return id;
}

WorldCore::Queue& WorldCore::end_order_of(const StorageWork& work) {
  return end_orders_[work.tier][work.verb == StorageVerb::get ? 0 : 1];
}

// The operation holds its lane, so the pages to move are known now.
void WorldCore::plan_storage(std::uint32_t slot) {
  Record& record = operations_[slot];
  Storage& storage = record.storage;
  Transfer& transfer = record.transfer;
  const StoreModel& store = store_of(storage.work);
  storage.started = true;
  std::span<const StoreKey> moved;
  if (storage.work.verb == StorageVerb::get) {
    transfer.pages = storage.leading = store.leading(storage.keys);
    moved = std::span(storage.keys).first(transfer.pages);
  } else if (storage.work.verb == StorageVerb::set) {
    const Pages room = store.room(storage.work.page_bytes * storage.work.ranks);
    moved_.clear();
    for (const StoreKey& key : storage.keys) {
      if (store.is_down(key)) break;
      if (moved_.size() < room && !store.contains(key)) moved_.push_back(key);
    }
    transfer.pages = moved_.size();
    moved = moved_;
  }
  share_among_nodes(storage, moved);
  StorageWork work = storage.work;
  if (work.verb != StorageVerb::remove) work.pages = transfer.pages;
  transfer.cost = config_.cost->storage(work);
  transfer.flow_bytes = static_cast<double>(transfer.cost.bytes) / transfer.ranks;
  storage.drive_share = storage.work.verb == StorageVerb::get ? store.drive_share(moved) : 0.0;
  if (const double factor = slow_factor(record); factor > 1.0) {
    Flow flow{transfer.lane, work.tier,     transfer.ranks,    transfer.flow_bytes,
              0.0,           storage.nodes, storage.own_share, storage.drive_share};
    flow.max_bytes_per_second = static_cast<double>(transfer.cost.bytes_per_second) / transfer.ranks;
    const double slow = links_.unshared_rate(flow, now_) / factor * transfer.ranks;
    transfer.cost.bytes_per_second = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(slow));
    const double latency = static_cast<double>(transfer.cost.latency_ns) * factor;
    transfer.cost.latency_ns = static_cast<TimeNs>(latency);
  }
  record.piece.left = transfer.flow_bytes;
  for (std::uint32_t i = transfer.first_watch; i != kNoSlotIndex; i = watches_[i].next) {
    watches_[i].fold.total = transfer.flow_bytes;
  }
}

void WorldCore::share_among_nodes(Storage& storage, std::span<const StoreKey> moved) {
  storage.nodes.clear();
  storage.own_share = 0.0;
  const PoolNetwork& network = config_.network;
  if (network.nodes == 0 || !kTierLinks[storage.work.tier].pool || moved.empty()) return;
  std::vector<NodeShare>& nodes = storage.nodes;
  const double one = 1.0 / static_cast<double>(moved.size());
  for (const StoreKey& key : moved) {
    const std::uint32_t node = pool_node_of(key.a, key.b, network.nodes);
    if (network.peers && node == machine_) {
      storage.own_share += one;
      continue;
    }
    const auto at = std::ranges::lower_bound(nodes, node, {}, &NodeShare::node);
    if (at != nodes.end() && at->node == node) {
      at->share += one;
    } else {
      nodes.insert(at, NodeShare{node, one});
    }
  }
  if (nodes.empty()) storage.own_share = 1.0;  // without the rounding of the sum
}

// Returns how many times as long an operation takes that starts now.
double WorldCore::slow_factor(const Record& record) const {
  const StorageWork& work = record.storage.work;
  double factor = work.verb == StorageVerb::get && draws_stall(record.id) ? config_.storage_stall_factor : 1.0;
  if (kTierLinks[work.tier].reads.front() == Link::drives) {
    for (const SlowSpan& slow : config_.slow_drives) factor *= slow.at(now_);
  }
  return factor;
}

// Depends only on the id and the seed, so other events do not change the result.
bool WorldCore::draws_stall(OperationId id) const {
  if (config_.storage_stall_share <= 0.0) return false;
  const std::uint64_t x =
      mixed_bits(config_.seed * 0xD1B54A32D192ED03u + static_cast<std::uint64_t>(id) * kGoldenRatio64);
  return static_cast<double>(x >> 11) * 0x1.0p-53 < config_.storage_stall_share;
}

bool WorldCore::outlasts_lease(const StoreModel& store, const Record& record) const {
  return store.lease_ns() != 0 && now_ - record.transfer.lane_since > store.lease_ns();
}

// Changes the content of the store, and counts the leading pages for which the operation is true.
void WorldCore::apply_to_store(Record& record) {
  Storage& storage = record.storage;
  Completion& completion = record.completion;
  const bool cancelled = completion.status == Status::cancelled;
  if (cancelled && !storage.started) return;
  StoreModel& store = store_of(storage.work);
  Pages& count = completion.pages;
  switch (storage.work.verb) {
    case StorageVerb::look_up: break;
    case StorageVerb::get:
      count = cancelled ? record.transfer.pages : storage.leading;
      if (outlasts_lease(store, record)) count = 0;
      for (Pages i = 0; i < count; ++i) {
        if (store.lost_since(storage.keys[i], record.transfer.lane_since)) {
          count = i;  // the node went down during the transfer
        } else {
          store.touch(storage.keys[i]);
        }
      }
      if (!cancelled && count < storage.keys.size()) {
        const StoreKey& key = storage.keys[count];
        const bool gone = store.is_down(key) || store.lost_since(key, record.transfer.lane_since);
        completion.cause = gone ? Cause::unreachable : outlasts_lease(store, record) ? Cause::lease : Cause::missing;
      }
      break;
    case StorageVerb::set: {
      Pages moved = cancelled ? record.transfer.pages : storage.keys.size();
      for (; count < storage.keys.size(); ++count) {
        if (store.touch(storage.keys[count])) continue;
        if (store.is_down(storage.keys[count])) {
          if (!cancelled) completion.cause = Cause::unreachable;
          break;
        }
        if (moved == 0) break;
        --moved;
        if (store.add(storage.keys[count], storage.work.page_bytes * storage.work.ranks)) continue;
        if (!cancelled) completion.cause = Cause::full;
        break;
      }
      break;
    }
    case StorageVerb::remove:
      if (cancelled) return;
      for (const StoreKey& key : storage.keys) store.remove(key);
      count = storage.keys.size();
      break;
  }
  if (count == storage.keys.size()) {
    completion.status = Status::done;
  } else if (!cancelled) {
    completion.status = Status::failed;
  }
}

void WorldCore::leave_end_order(std::uint32_t slot) {
  const Storage& storage = operations_[slot].storage;
  Queue& order = end_order_of(storage.work);
  order.head = storage.after;
  if (order.head == kNoSlotIndex) {
    order.tail = kNoSlotIndex;
  } else {
    operations_[order.head].storage.before = kNoSlotIndex;
    if (operations_[order.head].stage == Stage::held) schedule(order.head, now_);
  }
}

// All operations that were submitted earlier have ended. The operation held its lane until now, so the plan of the next
// one sees the changed content of the store.
void WorldCore::end_storage(std::uint32_t slot) {
  apply_to_store(operations_[slot]);
  close_watches(slot, operations_[slot].completion.status == Status::done);
  if (queue_of(operations_[slot]).head == slot) leave_queue(slot);
  leave_end_order(slot);
  const Completion completion = operations_[slot].completion;
  free_record(slot);
  deliver(Input{now_, completion});
}

void WorldCore::end_look_up(std::uint32_t slot) {
  Record& record = operations_[slot];
  if (record.completion.status == Status::done) {
    StoreModel& store = store_of(record.storage.work);
    record.completion.pages = store.leading(record.storage.keys);
    store.renew_leases(std::span(record.storage.keys).first(record.completion.pages));
    if (record.completion.pages < record.storage.keys.size() &&
        store.is_down(record.storage.keys[record.completion.pages])) {
      record.completion.status = Status::failed;
      record.completion.cause = Cause::unreachable;
    }
    const std::span<const StoreKey> needed = record.storage.needed;
    const auto there = [&](std::size_t pool, Pages page) {
      const auto need = std::ranges::find(record.storage.needs, pool, &StorageOperation::Need::pool);
      const auto at = static_cast<std::size_t>(need - record.storage.needs.begin());
      const StoreKey& key = needed[at * record.storage.keys.size() + page];
      return store.contains(key) && !store.is_down(key);
    };
    usable_ = usable_lengths(record.storage.needs, record.storage.needs.empty() ? 0 : record.completion.pages, there);
    record.completion.usable = usable_;
    for (std::size_t at = 0; at < record.storage.needs.size() && !usable_.empty(); ++at) {
      const Pages last = usable_.back(), trailing = std::min(last, record.storage.needs[at].trailing);
      store.renew_leases(needed.subspan(at * record.storage.keys.size() + last - trailing, trailing));
    }
  }
  const Completion completion = record.completion;
  free_record(slot);
  deliver(Input{now_, completion});
}

// ---- hand-overs ------------------------------------------------------------------------------------------

OperationId WorldCore::submit_hand_over(const HandOverOperation& operation) {
  KV_CHECK(peers_ != nullptr, "a hand-over goes to another engine");
  const HandOverWork& work = operation.work;
  const std::uint32_t slot = new_record(Kind::hand_over);
  Record& record = operations_[slot];
  record.transfer = Transfer{};
  record.transfer.lane = Lane::peer;
  record.transfer.cost = config_.cost->hand_over(work);
  record.transfer.ranks = work.senders;
  record.transfer.pages = work.pages;
  record.transfer.plan_bytes = work.bytes;
  record.hand_over = HandOver{};
  record.hand_over.handed.kind = NoticeKind::handed;
  record.hand_over.handed.request = operation.request;
  record.hand_over.handed.attempt = operation.attempt;
  record.hand_over.first = operation.first;
  record.hand_over.number = ++handed_over_;
  record.hand_over.peer = operation.peer + rank_;
  record.hand_over.receivers = work.receivers;
  record.hand_over.last = operation.last;
  record.hand_over.staged = work.staged;
  record.hand_over.groups = work.layer_groups;
  record.transfer.flow_bytes = static_cast<double>(record.transfer.cost.bytes) / work.senders / work.layer_groups;
  record.piece = FlowPiece{};
  const std::uint32_t pass = operation.pass == OperationId::none ? kNoSlotIndex : table_.find(operation.pass);
  if (pass != kNoSlotIndex) {
    record.hand_over.pass = operation.pass;
    if (operations_[pass].stage == Stage::ending) {
      record.hand_over.pass_end = operations_[pass].due;
      record.hand_over.pass_ns = operations_[pass].forward.total_ns;
    }
  }
  const OperationId id = record.id;
  enqueue(slot);
  return id;
}

// The next group of layers moves once the pass has computed it. All groups take equal parts of the pass.
void WorldCore::begin_group(std::uint32_t slot) {
  Record& record = operations_[slot];
  const HandOver& hand_over = record.hand_over;
  record.stage = Stage::waiting;
  record.piece = FlowPiece{.start = {}, .left = record.transfer.flow_bytes, .rate = 0.0};
  TimeNs ready = now_;
  if (hand_over.pass != OperationId::none) {
    if (hand_over.pass_end < 0) return;  // until pass_resolved()
    const TimeNs left = hand_over.groups - 1 - hand_over.group;
    ready = std::max(now_, hand_over.pass_end - hand_over.pass_ns / hand_over.groups * left);
  }
  record.stage = Stage::latency;
  schedule(slot, ready + (hand_over.group == 0 ? record.transfer.cost.latency_ns : 0));
}

void WorldCore::end_group(std::uint32_t slot) {
  HandOver& hand_over = operations_[slot].hand_over;
  hand_over.flowed_ns += now_ - hand_over.flow_begin;
  const Bytes all = operations_[slot].transfer.plan_bytes;
  const Bytes landed = all * (hand_over.group + 1) / hand_over.groups - all * hand_over.group / hand_over.groups;
  const TimeNs copied = peers_->copied_at(hand_over.peer, landed, hand_over.receivers);
  if (++hand_over.group < hand_over.groups) {
    begin_group(slot);
  } else if (copied > now_) {
    operations_[slot].completion.bytes = all;
    operations_[slot].stage = Stage::held;
    schedule(slot, copied);
    leave_peer_lane(slot);
  } else {
    end_hand_over(slot);
  }
}

// Pages that are the same on all ranks come to one rank, which copies them to the others, one broadcast after another.
TimeNs WorldCore::copy_among_ranks(Bytes bytes, std::uint32_t receivers) {
  if (receivers >= config_.ranks) return now_;
  copied_until_ = std::max(copied_until_, now_) + config_.cost->broadcast_ns(bytes);
  return copied_until_;
}

// If `slot` holds the lane, the next hand-over starts.
void WorldCore::leave_peer_lane(std::uint32_t slot) {
  if (queue_of(operations_[slot]).head != slot) return;
  report_lane_span(slot);
  leave_queue(slot);
}

void WorldCore::end_hand_over(std::uint32_t slot) {
  Record& record = operations_[slot];
  Completion& completion = record.completion;
  const HandOver& hand_over = record.hand_over;
  const std::pair part{hand_over.handed.request, hand_over.handed.attempt};
  HandOverGap& gap = gaps_[part];
  if (completion.status == Status::done && (gap.is_before(hand_over.first) || peers_->is_dead(hand_over.peer))) {
    completion.status = Status::failed;
  }
  const bool done = completion.status == Status::done;
  if (done) {
    gap.written(hand_over.number);
  } else {
    gap.failed(hand_over.first, hand_over.number);
  }
  if (!gap.is_open()) gaps_.erase(part);
  completion.bytes = done ? record.transfer.plan_bytes : 0;
  if (done && hand_over.last) peers_->landed(seat_, hand_over.peer, hand_over.handed, hand_over.number);
  leave_peer_lane(slot);
  const Completion answer = operations_[slot].completion;
  free_record(slot);
  deliver(Input{now_, answer});
}

void WorldCore::cancel_hand_over(std::uint32_t slot, Status status) {
  Record& record = operations_[slot];
  const Stage stage = record.stage;
  record.stage = Stage::ending;
  record.completion.status = status;
  if (stage == Stage::flowing) backend_.stop_flow(seat_, slot);
  if (stage == Stage::queued) leave_queue(slot);
  schedule(slot, now_);
}

// The end of the pass is known. Only the first hand-over of the lane waits for that.
void WorldCore::pass_resolved(OperationId pass, TimeNs end, TimeNs duration) {
  for (std::uint32_t slot = queues_[Lane::peer].head; slot != kNoSlotIndex; slot = operations_[slot].after) {
    HandOver& hand_over = operations_[slot].hand_over;
    if (hand_over.pass != pass) continue;
    hand_over.pass_end = end;
    hand_over.pass_ns = duration;
    if (operations_[slot].stage == Stage::waiting) begin_group(slot);
  }
}

void WorldCore::pass_over(OperationId pass, bool counts) {
  std::uint32_t next = kNoSlotIndex;
  for (std::uint32_t slot = queues_[Lane::peer].head; slot != kNoSlotIndex; slot = next) {
    Record& record = operations_[slot];
    next = record.after;
    if (record.hand_over.pass != pass || record.completion.status != Status::done) continue;
    record.hand_over.pass = OperationId::none;
    if (!counts) {
      cancel_hand_over(slot, Status::gate_failed);
    } else if (record.stage == Stage::waiting) {
      begin_group(slot);
    }
  }
}

void WorldCore::notify(std::uint32_t peer, const Notice& notice) {
  KV_CHECK(peers_ != nullptr, "a notice goes to another engine");
  if (notice.kind == NoticeKind::withdrawn) gaps_.erase({notice.request, notice.attempt});
  peers_->post(seat_, peer, notice, config_.notice_ns);
}

void WorldCore::kill() {
  dead_ = true;
  for (std::uint32_t slot = 0; slot < operations_.size(); ++slot) {
    if (operations_[slot].id != OperationId::none && operations_[slot].stage == Stage::flowing) {
      backend_.stop_flow(seat_, slot);
    }
  }
  while (!agenda_.empty()) agenda_.pop();
  in_flight_ = 0;
  next_steps_.mark(seat_);
}

// ---- gates and passes ----------------------------------------------------------------------------------

void WorldCore::watch_gates(std::uint32_t slot, std::span<const OperationId> gates) {
  Forward& pass = operations_[slot].forward;
  pass.gates.first_step_ns = config_.cost->forward_ns(pass.shape, 1);
  for (const OperationId gate : gates) {
    const std::uint32_t gate_slot = table_.find(gate);
    if (gate_slot == kNoSlotIndex) continue;  // the gate has landed
    Record& load = operations_[gate_slot];
    KV_CHECK(load.kind == Kind::transfer, "only a transfer or a get can gate a forward pass");
    std::uint32_t index = static_cast<std::uint32_t>(watches_.size());
    if (free_watches_.empty()) {
      watches_.emplace_back();
    } else {
      index = free_watches_.back();
      free_watches_.pop_back();
    }
    Watch& watch = watches_[index];
    watch.pass = slot;
    watch.pass_id = operations_[slot].id;
    watch.next = load.transfer.first_watch;
    watch.fold = GateFold{.total = load.transfer.flow_bytes,
                          .group_ns = static_cast<double>(pass.gates.first_step_ns) / load.transfer.layer_groups,
                          .groups = load.transfer.layer_groups,
                          .origin = now_};
    if (load.piece.rate > 0.0) watch.fold.skip_to(load.piece.left_at(Instant{now_, 0.0}));
    load.transfer.first_watch = index;
    ++pass.open_gates;
  }
}

void WorldCore::fold_watches(std::uint32_t slot, double left, bool landed) {
  const Record& load = operations_[slot];
  for (std::uint32_t i = load.transfer.first_watch; i != kNoSlotIndex; i = watches_[i].next) {
    watches_[i].fold.fold(load.piece, left, landed);
  }
}

// The gate has landed (`landed`) or has failed.
void WorldCore::close_watches(std::uint32_t slot, bool landed) {
  if (operations_[slot].transfer.first_watch == kNoSlotIndex) return;
  if (landed) fold_watches(slot, 0.0, true);
  std::uint32_t index = std::exchange(operations_[slot].transfer.first_watch, kNoSlotIndex);
  while (index != kNoSlotIndex) {
    const Watch watch = watches_[index];
    free_watches_.push_back(index);
    index = watch.next;
    Record& pass = operations_[watch.pass];
    if (pass.id != watch.pass_id || pass.completion.status != Status::done) continue;
    --pass.forward.open_gates;
    if (!landed) pass.forward.gate_failed = true;
    pass.forward.gates.finish =
        std::max(pass.forward.gates.finish, watch.fold.origin + nearest_ns(watch.fold.finish_ns));
    if (pass.stage == Stage::waiting) resolve_pass(watch.pass);
  }
}

void WorldCore::start_pass(std::uint32_t slot) {
  operations_[slot].stage = Stage::waiting;
  operations_[slot].forward.started = now_;
  if (passes_ != nullptr) passes_->pass_started(seat_, operations_[slot].forward.ordinal, slot);
  if (operations_[slot].stage == Stage::waiting) resolve_pass(slot);
}

// The pass holds the compute lane. If all gates have landed, the end of the pass is known.
void WorldCore::resolve_pass(std::uint32_t slot) {
  const Forward& pass = operations_[slot].forward;
  if (passes_ != nullptr) {
    if (pass.gate_failed) {
      passes_->pass_failed(seat_, pass.ordinal);
    } else if (pass.open_gates == 0) {
      passes_->pass_ready(seat_, pass.ordinal);
    }
    return;
  }
  if (pass.gate_failed) {
    end_pass_at(slot, pass.started, PassEnd{Status::gate_failed, 0, now_ - pass.started, now_});
  } else if (pass.open_gates == 0) {
    end_pass_at(slot, pass.started, plan_pass(slot, pass.started, pass.gates, pass.cancel_time));
  }
}

void WorldCore::cancel_forward(std::uint32_t slot) {
  Record& record = operations_[slot];
  Forward& pass = record.forward;
  if (passes_ != nullptr) {
    if (pass.steps > 1) passes_->pass_cancelled(seat_, pass.ordinal);
    return;
  }
  if (record.stage == Stage::queued) {
    record.stage = Stage::ending;
    record.completion.status = Status::cancelled;
    record.completion.steps = 0;
    leave_queue(slot);
    schedule(slot, now_);
    return;
  }
  if (pass.steps == 1 || pass.cancel_time >= 0) return;
  pass.cancel_time = now_;
  if (record.stage == Stage::ending) resolve_pass(slot);
}

// A cancelled burst ends with the first step that ends at or after the cancel.
PassEnd WorldCore::plan_pass(std::uint32_t slot, TimeNs start, const PassGates& gates, TimeNs cancel_time) const {
  const Forward& pass = operations_[slot].forward;
  PassEnd end;
  end.steps = pass.steps;
  end.stalled_ns = std::max<TimeNs>(0, gates.finish - (start + gates.first_step_ns));
  start += end.stalled_ns;
  end.time = start + pass.total_ns;
  if (cancel_time < 0) return end;
  std::uint64_t low = 1, high = pass.steps;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (start + config_.cost->forward_ns(pass.shape, middle) >= cancel_time) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == pass.steps) return end;
  end.status = Status::cancelled;
  end.steps = low;
  end.time = start + config_.cost->forward_ns(pass.shape, low);
  return end;
}

void WorldCore::end_pass_at(std::uint32_t slot, TimeNs start, const PassEnd& end) {
  Record& record = operations_[slot];
  record.stage = Stage::ending;
  record.forward.started = start;
  // A gate of another rank has failed, and this rank's pass has no gates.
  const bool others = end.status == Status::gate_failed && !record.forward.gated;
  record.completion.status = others ? Status::failed : end.status;
  record.completion.steps = end.steps;
  record.completion.stalled_ns = end.stalled_ns;
  if (end.duration_ns >= 0) record.forward.total_ns = end.duration_ns;
  schedule(slot, end.time);
  if (peers_ != nullptr && end.steps > 0) pass_resolved(record.id, record.due, record.forward.total_ns);
}

void WorldCore::end_forward(std::uint32_t slot) {
  const Record& record = operations_[slot];
  Queue& queue = queue_of(record);
  if (queue.head == slot) {
    report_lane_span(slot);
    leave_queue(slot);
  }
  if (passes_ != nullptr) passes_->pass_ended(seat_, operations_[slot].forward.ordinal);
  const Completion completion = operations_[slot].completion;
  if (peers_ != nullptr) pass_over(completion.id, completion.steps > 0);
  free_record(slot);
  deliver(Input{now_, completion});
}

// ---- the stream of inputs ------------------------------------------------------------------------------

void WorldCore::drop_stale() {
  while (!agenda_.empty()) {
    const AgendaEntry& entry = agenda_.top();
    const Record& record = operations_[entry.slot];
    if (record.id == entry.id && record.ticket == entry.ticket) return;
    agenda_.pop();
  }
}

TimeNs WorldCore::next_time() {
  if (dead_) return kNever;
  drop_stale();
  return agenda_.empty() ? kNever : agenda_.top().time;
}

void WorldCore::step() {
  next_steps_.mark(seat_);
  handle_entry(agenda_.pop());
}

void WorldCore::handle_entry(const AgendaEntry& entry) {
  Record& record = operations_[entry.slot];
  switch (record.kind) {
    case Kind::transfer:
      if (record.stage == Stage::latency) {
        start_flow(entry.slot);
      } else if (record.stage == Stage::held) {
        end_storage(entry.slot);
      } else {
        end_transfer(entry.slot);
      }
      return;
    case Kind::hand_over:
      if (record.stage == Stage::latency) {
        start_flow(entry.slot);
      } else if (record.stage == Stage::landed) {
        end_group(entry.slot);
      } else {
        end_hand_over(entry.slot);
      }
      return;
    case Kind::look_up: end_look_up(entry.slot); return;
    case Kind::forward: end_forward(entry.slot); return;
    case Kind::timer:
      free_record(entry.slot);
      deliver(Input{now_, TimerFired{entry.id}});
      return;
    case Kind::reduction:
      const Reduction reduction{entry.id, record.values};
      free_record(entry.slot);
      deliver(Input{now_, reduction});
      return;
  }
}

void WorldCore::deliver(const Input& input) {
  if (dead_) return;
  if (++shared_.delivered % kInputsPerTick == 0 && shared_.tick != nullptr) shared_.tick(shared_.tick_context, now_);
  handler_->handle(input);
}

}  // namespace kvtwin

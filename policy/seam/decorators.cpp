#include "policy/seam/decorators.hpp"

#include <algorithm>
#include <variant>

#include "policy/base/check.hpp"
#include "policy/base/mix.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {

// ---- Recording --------------------------------------------------------------------------------------------

void Recording::handle(const Input& input) {
  inner_.handle(input);
  journal_.append(input, {decisions_.count(), decisions_.digest()});
}

// ---- Checking ---------------------------------------------------------------------------------------------

namespace {
void require_kept(BrokenTerm broken) { KV_CHECK(broken == nullptr, broken); }
}  // namespace

// One call into the world.
class Checking::Call {
 public:
  explicit Call(Checking& checking) : checking_(checking) {
    KV_CHECK(checking.handling_, "the policy acts only on an input");
    KV_CHECK(!checking.calling_, "a call into the world doesn't lead to another");
    checking.now();
    checking.calling_ = true;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { checking_.calling_ = false; }

 private:
  Checking& checking_;
};

TimeNs Checking::now() const {
  const TimeNs now = world_.now();
  KV_CHECK(!handling_ || now == now_, "the clock stands still while an input is handled");
  return now;
}

OperationId Checking::submit(const Operation& operation) {
  require_kept(contract_.judge(operation));
  const Call call(*this);
  const OperationId id = world_.submit(operation);
  require_kept(contract_.submitted(operation, id, now_));
  return id;
}

OperationId Checking::call_at(TimeNs time) {
  const Call call(*this);
  const OperationId id = world_.call_at(time);
  require_kept(contract_.timer_set(time, id));
  return id;
}

OperationId Checking::reduce_min(const ReduceVector& values) {
  const Call call(*this);
  const OperationId id = world_.reduce_min(values);
  require_kept(contract_.reduction_entered(values, id));
  return id;
}

void Checking::cancel(OperationId id) {
  require_kept(contract_.judge_cancel(id));
  const Call call(*this);
  contract_.cancelled(id);
  world_.cancel(id);
}

void Checking::notify(std::uint32_t peer, const Notice& notice) {
  require_kept(contract_.judge_notice(notice));
  const Call call(*this);
  contract_.notified(notice);
  world_.notify(peer, notice);
}

void Checking::handle(const Input& input) {
  KV_CHECK(handler_ != nullptr, "the handler is connected before the first input");
  KV_CHECK(!calling_, "no input comes during a call into the world");
  KV_CHECK(!handling_, "no input comes while another is handled");
  KV_CHECK(world_.now() == input.now, "an input carries the time that it comes at");
  require_kept(contract_.take(input));
  now_ = input.now;
  handling_ = true;
  handler_->handle(input);
  now();
  handling_ = false;
}

void Checking::finish() const { KV_CHECK(outstanding() == 0, "at the end everything has been answered"); }

// ---- Faulty -----------------------------------------------------------------------------------------------

// splitmix64, because random numbers of the standard library differ between machines, and equal seeds must give equal
// faults everywhere.
std::uint64_t Faulty::draw() { return mixed_bits(random_ += kGoldenRatio64); }

Faulty::Flight& Faulty::open(OperationId world_id) {
  Flight& flight = flights_.emplace_back();
  flight.engine_id = OperationId{++last_id_};
  flight.world_id = world_id;
  flight.since = world_.now();
  return flight;
}

Faulty::Flight* Faulty::find(OperationId engine_id) {
  const auto at = std::ranges::find(flights_, engine_id, &Flight::engine_id);
  return at == flights_.end() ? nullptr : &*at;
}

OperationId Faulty::call_at(TimeNs time) { return open(world_.call_at(time)).engine_id; }
OperationId Faulty::reduce_min(const ReduceVector& values) { return open(world_.reduce_min(values)).engine_id; }

// An operation that the world has answered cannot be cancelled, even if the engine has not received the answer yet.
void Faulty::cancel(OperationId id) {
  if (const Flight* const flight = find(id); flight != nullptr) world_.cancel(flight->world_id);
}

// Faults are drawn here and not at the completion, so a pass knows that its gate will fail, whichever completes first.
OperationId Faulty::submit(const Operation& operation) {
  if (const auto* storage = std::get_if<StorageOperation>(&operation)) return submit_storage(*storage);
  if (const auto* pass = std::get_if<ForwardOperation>(&operation)) return submit_pass(*pass);
  if (const auto* hand_over = std::get_if<HandOverOperation>(&operation)) return submit_hand_over(*hand_over);
  Flight& flight = open(world_.submit(operation));
  flight.will_fail = drawn(shares_.failed_transfers);
  draw_times(flight);
  return flight.engine_id;
}

OperationId Faulty::submit_pass(const ForwardOperation& pass) {
  std::vector<OperationId> gates;  // world ids; gates that the world has answered are left out
  bool will_fail = false, lost = false;
  for (const OperationId gate : pass.gates) {
    if (const Flight* const load = find(gate); load != nullptr) {
      gates.push_back(load->world_id);
      will_fail |= load->will_fail;
    } else if (const Held* const answered = held(gate); answered != nullptr) {
      lost |= answered->completion.status != Status::done;
    }
  }
  ForwardOperation below = pass;
  below.gates = gates;
  // The world would not know that it must not run this pass.
  Flight& flight = open(lost ? world_.call_at(world_.now()) : world_.submit(below));
  flight.will_fail = will_fail || lost;
  flight.stand_in = lost;
  flight.gates.assign(pass.gates.begin(), pass.gates.end());
  if (!flight.will_fail && pass.steps > 1 && drawn(shares_.cut_bursts)) {
    if (draw() % 2 == 0) {
      ++counts_.cut_bursts;
      world_.cancel(flight.world_id);
    } else {
      bursts_to_cut_.push_back(flight.engine_id);
    }
  }
  return flight.engine_id;
}

namespace {
std::uint8_t order_key(const StorageWork& work) {
  if (work.verb == StorageVerb::look_up) return 0;
  return static_cast<std::uint8_t>(1 + static_cast<int>(work.tier) * 4 + (work.verb == StorageVerb::get ? 0 : 2) +
                                   (work.memory == Tier::device ? 1 : 0));
}

// The name of the page in this tier only.
PageKey name_of(const StorageOperation& operation, const StoragePage& page) {
  PageKey name = storage_page_key(operation.space, page.key);
  name.words[3] = static_cast<std::uint64_t>(operation.work.tier);
  return name;
}
}  // namespace

OperationId Faulty::submit_storage(const StorageOperation& operation) {
  Flight& flight = open(world_.submit(operation));
  flight.stores = true;
  flight.order = order_key(operation.work);
  if (operation.work.verb == StorageVerb::set) {
    for (const StoragePage& page : operation.pages) flight.names.push_back(name_of(operation, page));
  }
  const auto there = [&](std::size_t pool, Pages page) {
    return !lost_.contains(name_of(operation, {pool_page_key(operation.pages[page].key, pool), kNoSlot}));
  };
  flight.found = usable_lengths(operation.needs, operation.needs.empty() ? 0 : operation.pages.size(), there);
  draw_fate(flight, operation);
  draw_times(flight);
  return flight.engine_id;
}

// The decode engine must not be told of pages that have not arrived: neither after this operation nor after a later
// one, if this one fails.
OperationId Faulty::submit_hand_over(const HandOverOperation& operation) {
  const std::pair part{operation.request, operation.attempt};
  HandOverGap& gap = gaps_[part];
  const std::uint64_t write = last_id_ + 1;
  HandOverOperation below = operation;
  bool gate_lost = false, will_fail = gap.is_before(operation.first);
  if (operation.pass != OperationId::none) {
    const Flight* const pass = find(operation.pass);
    const Held* const answered = held(operation.pass);
    gate_lost = pass != nullptr ? pass->will_fail : answered != nullptr && answered->completion.status != Status::done;
    below.pass = pass == nullptr || pass->stand_in ? OperationId::none : pass->world_id;
  }
  will_fail |= drawn(shares_.failed_hand_overs) || gate_lost;
  if (will_fail) {
    gap.failed(operation.first, write);
  } else {
    gap.written(write);
  }
  if (!gap.is_open()) gaps_.erase(part);
  below.last = operation.last && !will_fail;
  // The pages of a pass that fails may be freed at once, so the world must not read them.
  Flight& flight = open(gate_lost ? world_.call_at(world_.now()) : world_.submit(below));
  flight.hands_over = true;
  flight.will_fail = will_fail;
  flight.stand_in = gate_lost;
  if (operation.pass != OperationId::none) flight.gates.push_back(operation.pass);
  if (drawn(shares_.late)) flight.fate.late = static_cast<TimeNs>(1 + draw() % 1'000'000);
  return flight.engine_id;
}

void Faulty::draw_times(Flight& flight) {
  constexpr std::uint64_t max_slow_factor = 99, max_late_ns = 1'000'000;
  const auto up_to = [this](std::uint64_t max) { return static_cast<TimeNs>(1 + draw() % max); };
  if (flight.stores && drawn(shares_.slow)) flight.fate.slow = up_to(max_slow_factor);
  if (drawn(shares_.late)) flight.fate.late = up_to(max_late_ns);
  if (flight.stores && drawn(shares_.duplicates)) flight.fate.again = up_to(max_late_ns);
  if (drawn(shares_.cancels)) to_cancel_.push_back(flight.engine_id);
}

void Faulty::draw_fate(Flight& flight, const StorageOperation& operation) {
  Fate& fate = flight.fate;
  const Pages pages = operation.pages.size();
  const StorageVerb verb = operation.work.verb;
  if (verb == StorageVerb::get || verb == StorageVerb::look_up) find_lost(fate, operation);
  if (verb == StorageVerb::get) {
    draw_end(fate, &FaultCounts::read_errors, shares_.read_errors, Cause::io_error, pages);
    draw_end(fate, &FaultCounts::short_reads, shares_.short_reads, Cause::io_error, pages);
    draw_end(fate, &FaultCounts::corrupt_pages, shares_.corrupt_pages, Cause::corrupt, pages);
  }
  if (verb == StorageVerb::set) {
    draw_end(fate, &FaultCounts::write_errors, shares_.write_errors, Cause::io_error, pages);
    draw_end(fate, &FaultCounts::full, shares_.full, Cause::full, 1);
    fate.loses = drawn(shares_.lost_writes);
    if (fate.loses) fate.lost_from = draw() % pages;
  }
  if (spec_of(operation.work.tier).shared) draw_unreachable(fate);
  flight.will_fail = fate.ends_by != nullptr && verb == StorageVerb::get && operation.work.memory == Tier::device;
}

// Of several ends, the earliest one counts.
void Faulty::draw_end(Fate& fate, Count count, std::uint32_t share, Cause cause, Pages pages) {
  if (!drawn(share)) return;
  const Pages page = draw() % pages;
  if (fate.ends_by != nullptr && fate.page <= page) return;
  fate.ends_by = count;
  fate.cause = cause;
  fate.page = page;
}

void Faulty::draw_unreachable(Fate& fate) {
  node_dead_ |= drawn(shares_.dead_node);
  if (operations_down_ == 0 && drawn(shares_.link_down)) operations_down_ = 1 + draw() % 16;
  const bool down = operations_down_ > 0;
  if (down) --operations_down_;
  if (!node_dead_ && !down) return;
  fate.ends_by = node_dead_ ? &FaultCounts::dead_node : &FaultCounts::link_down;
  fate.cause = Cause::unreachable;
  fate.page = 0;
}

void Faulty::find_lost(Fate& fate, const StorageOperation& operation) {
  if (lost_.empty()) return;
  const auto is_lost = [&](const StoragePage& page) { return lost_.contains(name_of(operation, page)); };
  const auto first = std::ranges::find_if(operation.pages, is_lost);
  if (first == operation.pages.end()) return;
  fate.ends_by = &FaultCounts::lost_found;
  fate.cause = Cause::missing;
  fate.page = static_cast<Pages>(first - operation.pages.begin());
}

void Faulty::handle(const Input& input) {
  KV_CHECK(handler_ != nullptr, "the handler is connected before the first input");
  const auto world_id = [&input] {
    if (const auto* completion = std::get_if<Completion>(&input.what)) return completion->id;
    if (const auto* timer = std::get_if<TimerFired>(&input.what)) return timer->id;
    if (const auto* reduction = std::get_if<Reduction>(&input.what)) return reduction->id;
    return OperationId::none;
  }();
  const auto at = std::ranges::find(flights_, world_id, &Flight::world_id);
  const OperationId engine_id = at == flights_.end() ? OperationId::none : at->engine_id;
  cancel_some(engine_id);
  if (const auto* completion = std::get_if<Completion>(&input.what)) {
    take(*completion);
    deliver_due();
  } else if (at != flights_.end() && at->stand_in) {
    take(Completion{.id = world_id});
    deliver_due();
  } else if (const auto mine = std::ranges::find(held_, world_id, &Held::timer);
             world_id != OperationId::none && mine != held_.end()) {
    mine->timer = OperationId::none;
    deliver_due();
  } else {
    if (at != flights_.end()) flights_.erase(at);
    Input reported = input;
    if (std::holds_alternative<TimerFired>(input.what)) reported.what = TimerFired{engine_id};
    if (const auto* reduction = std::get_if<Reduction>(&input.what))
      reported.what = Reduction{engine_id, reduction->values};
    handler_->handle(reported);
  }
}

// A burst that is to be cut continues until the next input. Other operations may continue for longer.
void Faulty::cancel_some(OperationId completing) {
  std::erase(bursts_to_cut_, completing);
  for (const OperationId burst : bursts_to_cut_) {
    ++counts_.cut_bursts;
    cancel(burst);
  }
  bursts_to_cut_.clear();
  std::erase_if(to_cancel_, [&](OperationId id) {
    if (id == completing || find(id) == nullptr) return true;
    if (draw() % 4 != 0) return false;
    ++counts_.cancels;
    cancel(id);
    return true;
  });
}

void Faulty::take(const Completion& completion) {
  const auto at = std::ranges::find(flights_, completion.id, &Flight::world_id);
  KV_CHECK(at != flights_.end(), "a completion answers an operation in flight, once");
  const Flight flight = std::move(*at);
  flights_.erase(at);
  Held& next = held_.emplace_back();
  next.completion = distorted(flight, completion);
  for (const Pages length : next.completion.usable) {
    if (length <= next.completion.pages && std::ranges::binary_search(flight.found, length))
      next.usable.push_back(length);
  }
  next.order = flight.order;
  next.again = flight.fate.again;
  next.gates = flight.gates;
  if (flight.fate.slow == 0 && flight.fate.late == 0) return;
  counts_.slow += flight.fate.slow > 0 ? 1 : 0;
  counts_.late += flight.fate.late > 0 ? 1 : 0;
  const TimeNs now = world_.now();
  next.timer = world_.call_at(now + (now - flight.since) * flight.fate.slow + flight.fate.late);
}

Completion Faulty::distorted(const Flight& flight, const Completion& completion) {
  Completion reported = completion;
  reported.id = flight.engine_id;
  if (flight.stores) {
    const Fate& fate = flight.fate;
    const bool unreachable = fate.cause == Cause::unreachable;
    if (fate.ends_by != nullptr && (unreachable || reported.pages > fate.page))
      end_early(fate, flight.order == 0, reported);
    lose_pages(flight, reported);
  } else if (flight.hands_over) {
    if (!flight.will_fail || completion.status != Status::done) return reported;
    reported.status = flight.stand_in ? Status::gate_failed : Status::failed;
    reported.bytes = 0;
    ++counts_.failed_hand_overs;
  } else if (flight.gates.empty()) {
    if (!flight.will_fail || completion.status != Status::done) return reported;
    reported.status = Status::failed;
    reported.bytes = 0;
    ++counts_.failed_transfers;
  } else if (flight.will_fail && completion.status != Status::gate_failed) {
    reported.status = Status::gate_failed;
    reported.steps = 0;
    ++counts_.failed_gates;
  }
  return reported;
}

// A look-up that misses a page is done. All other operations that end early have failed.
void Faulty::end_early(const Fate& fate, bool look_up, Completion& reported) {
  ++(counts_.*fate.ends_by);
  reported.bytes = reported.pages == 0 ? 0 : reported.bytes / reported.pages * fate.page;
  reported.pages = fate.page;
  reported.status = look_up && fate.cause == Cause::missing ? Status::done : Status::failed;
  reported.cause = fate.cause;
}

// A page that a set has stored is found again, even if it was lost before, unless this set loses it.
void Faulty::lose_pages(const Flight& flight, const Completion& reported) {
  const std::size_t stored = std::min<std::size_t>(flight.names.size(), reported.pages);
  const std::size_t kept = flight.fate.loses ? std::min<std::size_t>(stored, flight.fate.lost_from) : stored;
  for (std::size_t i = 0; i < kept; ++i) lost_.erase(flight.names[i]);
  for (std::size_t i = kept; i < stored; ++i) lost_.insert(flight.names[i]);
  if (kept < stored) ++counts_.lost_writes;
}

const Faulty::Held* Faulty::held(OperationId engine_id) const {
  const auto is_it = [engine_id](const Held& held) { return held.completion.id == engine_id && !held.duplicate; };
  const auto at = std::ranges::find_if(held_, is_it);
  return at == held_.end() ? nullptr : &*at;
}

bool Faulty::due(std::size_t at) const {
  const Held& next = held_[at];
  if (next.timer != OperationId::none) return false;
  for (std::size_t i = 0; i < at && next.order != 0; ++i) {
    if (held_[i].order == next.order) return false;
  }
  return std::ranges::none_of(next.gates, [this](OperationId gate) { return held(gate) != nullptr; });
}

void Faulty::deliver_due() {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (!due(i)) continue;
    Held next = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    next.completion.usable = next.usable;
    if (next.again > 0) {
      ++counts_.duplicates;
      Held& again = held_.emplace_back();  // no order: the engine ignores a second answer
      again.completion = next.completion;
      again.usable = next.usable;
      again.timer = world_.call_at(world_.now() + next.again);
      again.duplicate = true;
    }
    handler_->handle({world_.now(), next.completion});
    i = ~std::size_t{0};  // completions that waited for this one may be due
  }
}

}  // namespace kvtwin

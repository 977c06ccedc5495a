#include "sim/seats.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

// The costs of a slow rank: transfers and storage operations take `factor` times as long. config_of() slows the links.
class SlowCost final : public CostModel {
 public:
  SlowCost(const CostModel& cost, double factor) : cost_(cost), factor_(factor) {}
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    return cost_.forward_ns(shape, steps);
  }
  TransferCost transfer(const Plan& plan) const override { return slowed(cost_.transfer(plan)); }
  TransferCost storage(const StorageWork& work) const override { return slowed(cost_.storage(work)); }
  TransferCost hand_over(const HandOverWork& work) const override { return slowed(cost_.hand_over(work)); }
  TimeNs broadcast_ns(Bytes bytes) const override { return cost_.broadcast_ns(bytes); }

 private:
  TransferCost slowed(TransferCost cost) const {
    cost.latency_ns = static_cast<TimeNs>(static_cast<double>(cost.latency_ns) * factor_);
    const double rate = static_cast<double>(cost.bytes_per_second) / factor_;
    if (cost.bytes_per_second != 0)
      cost.bytes_per_second = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rate));
    return cost;
  }

  const CostModel& cost_;
  double factor_;
};

}  // namespace

// ---- construction ----------------------------------------------------------------------------------------

Seats::Seats(const WorldConfig& config, FlowBackend& backend)
    : engines_(config.engines),
      ranks_(config.instances ? config.ranks : 1),
      reduce_ns_(config.reduce_ns),
      notice_ns_(config.notice_ns),
      next_steps_(std::max<std::size_t>(1, engines_ * ranks_)) {
  KV_CHECK(config.cost != nullptr, "a world needs a cost model");
  KV_CHECK(engines_ > 0 && ranks_ > 0, "a world has at least one seat");
  KV_CHECK(reduce_ns_ >= 1000, "ranks that see different news poll in time");
  make_stores(config);
  const std::size_t stores = config.storage.size();
  const bool has_groups = config.groups > 1 || (config.decode != nullptr && config.decode->groups > 1);
  for (std::size_t seat = 0; seat < next_steps_.seats(); ++seat) {
    const std::size_t engine = seat / ranks_, first = first_on_machine(config, engine);
    SharedSteps* const steps = shared_steps(config, engine);
    SeatPlace place{.seat = static_cast<std::uint32_t>(seat),
                    .rank = static_cast<std::uint32_t>(seat % ranks_),
                    .machine = static_cast<std::uint32_t>(machine_of(config, engine)),
                    .shared = shared_,
                    .next_steps = next_steps_,
                    .collective = config.instances ? this : nullptr,
                    .passes = config.instances ? this : static_cast<JointPasses*>(steps),
                    .peers = config.prefill_engines > 0 ? this : nullptr,
                    .stores = {}};
    // All seats share the store of a shared tier, and groups that of their machine. Any other store belongs to one
    // seat.
    for (std::size_t i = 0; i < stores; ++i) {
      const Tier tier = config.storage[i].tier;
      const std::size_t owner = spec_of(tier).shared ? 0 : first * ranks_ + seat % ranks_;
      place.stores[tier] = &stores_[owner * stores + i];
      if (spec_of(tier).shared ? seat == 0 : has_groups && seat == first)
        common_stores_[tier].push_back(place.stores[tier]);
    }
    cores_.push_back(std::make_unique<WorldCore>(own_config(config, seat), backend, place));
    if (steps != nullptr) steps->add(*cores_.back());
  }
  has_roles_ = config.prefill_engines > 0;
  detect_ns_ = config.detect_ns;
  if (!config.deaths.empty()) dead_.resize(engines_);
  for (const WorldConfig::Death& death : config.deaths) {
    KV_CHECK(death.engine < engines_, "an engine that dies is one of the world");
    posts_[{death.at, ++last_post_}] = {Post::Kind::death, death.engine, {}, {}};
  }
  if (!config.instances) return;
  groups_.resize(engines_);
  for (Group& group : groups_) {
    group.reductions.resize(ranks_);
    group.notices.resize(ranks_);
  }
  KV_CHECK(!has_roles_ || config.deaths.empty(), "an engine with a role and with ranks as instances doesn't die");
}

Seats::~Seats() = default;

// Null for an engine with a machine for itself.
SharedSteps* Seats::shared_steps(const WorldConfig& config, std::size_t engine) {
  const WorldConfig& own = config_of(config, engine);
  if (own.groups == 1) return nullptr;
  KV_CHECK(!config.instances, "groups of attention are not of ranks as instances");
  const std::size_t first = first_on_machine(config, engine);
  std::unique_ptr<SharedSteps>& steps = steps_[first];
  if (steps == nullptr) {
    steps = std::make_unique<SharedSteps>(*own.cost, shared_, [this, first](TimeNs time) {
      constexpr std::uint64_t kLast = std::uint64_t{1} << 63;  // behind all other posts of that time
      posts_[{time, kLast + ++last_post_}] = {Post::Kind::steps, static_cast<std::uint32_t>(first), {}, {}};
    });
  }
  return steps.get();
}

WorldConfig Seats::own_config(const WorldConfig& config, std::size_t seat) {
  WorldConfig own = config_of(config, seat / ranks_);
  // Seat 0 draws the same random numbers as a world with one seat.
  own.seed = config.seed + seat * 0x9E3779B97F4A7C15u;
  const std::size_t rank = seat % ranks_;
  const double factor = config.instances && rank < config.slower.size() ? config.slower[rank] : 1.0;
  if (factor == 1.0) return own;
  KV_CHECK(factor > 0.0, "a rank isn't slower by nothing");
  for (std::uint64_t* rate :
       {&own.h2d_bytes_per_second, &own.d2h_bytes_per_second, &own.both_ways_bytes_per_second,
        &own.dram_bytes_per_second, &own.root_bytes_per_second, &own.disk_read_bytes_per_second,
        &own.disk_write_bytes_per_second, &own.nic_bytes_per_second, &own.fabric_bytes_per_second,
        &own.shared_fs_read_bytes_per_second, &own.shared_fs_write_bytes_per_second, &own.store_drive_bytes_per_second,
        &own.network.node_bytes_per_second, &own.network.switch_bytes_per_second}) {
    if (*rate != 0) *rate = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(*rate) / factor));
  }
  slow_costs_.push_back(std::make_unique<SlowCost>(*config.cost, factor));
  own.cost = slow_costs_.back().get();
  return own;
}

// The capacity of a shared tier counts whole pages. With instances, each rank stores its part of a page by itself.
void Seats::make_stores(const WorldConfig& config) {
  for (std::size_t seat = 0; seat < next_steps_.seats(); ++seat) {
    for (const StorageTier& tier : config_of(config, seat / ranks_).storage) {
      const std::uint64_t parts = spec_of(tier.tier).shared ? ranks_ : 1;
      StoreRules rules{.evicts_itself = tier.evicts_itself,
                       .page_bytes = tier.page_bytes,
                       .lease_ns = tier.lease_ns,
                       .drive_pages = tier.drive_pages * parts,
                       .drive_write_ps = tier.drive_write_ps / parts};
      if (kTierLinks[tier.tier].pool && config.network.nodes != 0) {
        rules.nodes = config.network.nodes;
        rules.downs = config.node_downs;
      }
      stores_.emplace_back(tier.pages * parts, std::move(rules));
    }
  }
}

std::optional<Pages> Seats::sum_of_stores(Tier tier, Pages (StoreModel::*figure)() const) const {
  if (common_stores_[tier].empty()) return std::nullopt;
  Pages pages = 0;
  for (const StoreModel* store : common_stores_[tier]) pages += ((store->*figure)() + ranks_ - 1) / ranks_;
  return pages;
}

// ---- the stream of inputs --------------------------------------------------------------------------------

void Seats::begin(InputSource& source, std::span<InputHandler* const> handlers, InputRoute* route) {
  KV_CHECK(handlers.size() == cores_.size(), "each seat has a handler");
  KV_CHECK(engines_ == 1 || route != nullptr, "several engines need a route");
  source_ = &source;
  live_ = dynamic_cast<LiveSource*>(&source);
  route_ = route;
  for (std::size_t seat = 0; seat < cores_.size(); ++seat) cores_[seat]->begin(*handlers[seat]);
  has_arrival_ = source_->next(arrival_);
}

// Only changed seats are computed again.
TimeNs Seats::next_time() {
  next_steps_.refresh([this](std::size_t seat) { return cores_[seat]->next_time(); });
  const TimeNs due = std::min(next_steps_.due(), next_post_time());
  return has_arrival_ ? std::min(due, std::max(shared_.now, arrival_.now)) : due;
}

// The time of the next post. A death without anything left to do never comes.
TimeNs Seats::next_post_time() const {
  if (posts_.empty()) return kNever;
  const auto& [when, first] = *posts_.begin();
  if (first.kind != Post::Kind::death || has_arrival_ || next_steps_.due() != kNever || !all_answered())
    return when.first;
  for (const auto& [time, later] : posts_) {
    if (later.kind != Post::Kind::death) return when.first;
  }
  return kNever;
}

void Seats::step() {
  const TimeNs arrives = has_arrival_ ? std::max(shared_.now, arrival_.now) : kNever;
  const TimeNs posted = next_post_time();
  const TimeNs due = next_steps_.due();
  if (due == kNever || due > std::min(arrives, posted)) {
    const bool before_step = posted == arrives && posted != kNever && posts_.begin()->second.kind == Post::Kind::steps;
    if (posted > arrives || posted == kNever || before_step) {
      deliver_arrival();
      return;
    }
    deliver_post();
  } else {
    shared_.now = due;
    cores_[next_steps_.seat()]->step();
  }
  if (live_ != nullptr && live_->overtake(arrival_, has_arrival_)) has_arrival_ = true;
}

void Seats::post(std::uint32_t from, std::uint32_t to, const Notice& notice, TimeNs delay) {
  if (groups_.empty()) return send(from, to, notice, delay);
  Group& group = group_of(from);
  Post& sent = group.notices[from % ranks_].emplace_back();
  sent.to = to;
  sent.notice = notice;
  sent.notice.slots = {};
  sent.slots.assign(notice.slots.begin(), notice.slots.end());
  if (std::ranges::any_of(group.notices, [](const auto& of_rank) { return of_rank.empty(); })) return;
  for (auto& of_rank : group.notices) {
    const Post& other = of_rank.front();
    KV_CHECK(other.to == to && other.notice.kind == notice.kind && other.notice.request == notice.request &&
                 other.notice.attempt == notice.attempt && other.notice.first == notice.first &&
                 std::ranges::equal(other.slots, notice.slots),
             "all ranks of an engine send the same notices");
    of_rank.pop_front();
  }
  send(first_seat_of(from), to, notice, delay);
}

void Seats::landed(std::uint32_t from, std::uint32_t to, const Notice& handed, std::uint64_t number) {
  if (groups_.empty()) return send(from, to, handed, 0);
  auto& of_ranks = group_of(from).landed;
  const auto at = of_ranks.try_emplace({handed.request, handed.attempt, number}).first;
  if (++at->second < ranks_) return;
  of_ranks.erase(at);
  send(first_seat_of(from), first_seat_of(to), handed, 0);
}

void Seats::send(std::uint32_t from, std::uint32_t to, const Notice& notice, TimeNs delay) {
  KV_CHECK(to < cores_.size() && to != from, "a notice goes to another engine");
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    Post& added = posts_[{shared_.now + delay + (rank == 0 ? 0 : notice_ns_), ++last_post_}];
    added.to = to + rank;
    added.notice = notice;
    added.notice.peer = from;
    added.slots.assign(notice.slots.begin(), notice.slots.end());
  }
}

void Seats::staged_at(std::uint32_t seat, const LaneSpan& span) { cores_[seat]->received_staged(span); }

TimeNs Seats::copied_at(std::uint32_t seat, Bytes bytes, std::uint32_t receivers) {
  return cores_[seat]->copy_among_ranks(bytes, receivers);
}

void Seats::deliver_post() {
  const auto first = posts_.begin();
  shared_.now = first->first.first;
  Post post = std::move(first->second);
  posts_.erase(first);
  switch (post.kind) {
    case Post::Kind::notice:
      post.notice.slots = post.slots;
      cores_[post.to]->deliver(Input{shared_.now, post.notice});
      return;
    case Post::Kind::steps: return steps_.at(post.to)->wake();
    case Post::Kind::death:
      dead_[post.to] = true;
      for (const auto& [head, steps] : steps_) {
        if (post.to >= head && post.to < head + steps->groups()) steps->stop();
      }
      for (std::size_t rank = 0; rank < ranks_; ++rank) cores_[post.to * ranks_ + rank]->kill();
      posts_[{shared_.now + detect_ns_, ++last_post_}] = {Post::Kind::detection, post.to, {}, {}};
      return;
    case Post::Kind::detection: break;
  }
  if (route_ != nullptr) route_->engine_lost(post.to);
  Notice lost;
  lost.kind = NoticeKind::peer_lost;
  lost.peer = static_cast<std::uint32_t>(post.to * ranks_);
  for (std::size_t engine = 0; engine < engines_ && has_roles_; ++engine) {
    if (!dead_[engine]) deliver_to(engine, Input{shared_.now, lost});
  }
  Input again;
  while (route_ != nullptr && route_->sent_again(again)) {
    again.now = shared_.now;
    deliver_routed(again);
  }
}

void Seats::deliver_to(std::size_t engine, const Input& input) {
  for (std::size_t rank = 0; rank < ranks_; ++rank) cores_[engine * ranks_ + rank]->deliver(input);
}

// Delivers to each rank of the input's engine.
void Seats::deliver_routed(Input& input) {
  const InputRoute::Way way = engines_ == 1 ? InputRoute::Way{} : route_->way_of(input);
  deliver_by(way, engines_, ranks_, input, [this](std::size_t engine, const Input& part) { deliver_to(engine, part); });
}

void Seats::deliver_arrival() {
  KV_CHECK(has_arrival_, "a world was asked to go on with nothing left to do");
  shared_.now = std::max(shared_.now, arrival_.now);
  arrival_.now = shared_.now;
  deliver_routed(arrival_);
  has_arrival_ = source_->next(arrival_);
}

void Seats::set_progress(void (*tick)(void* context, TimeNs now), void* context) {
  shared_.tick = tick;
  shared_.tick_context = context;
}

bool Seats::all_answered() const {
  return std::ranges::all_of(cores_, [](const auto& core) { return core->all_answered(); });
}

// ---- collective operations of ranks ----------------------------------------------------------------------

void Seats::reduction_entered(std::uint32_t seat, std::uint32_t slot) {
  Group& group = group_of(seat);
  group.reductions[seat % ranks_].push_back(slot);
  if (std::ranges::any_of(group.reductions, [](const auto& entered) { return entered.empty(); })) return;
  ReduceVector least = core_of(seat, 0).reduction(group.reductions[0].front());
  for (std::size_t rank = 1; rank < ranks_; ++rank) {
    const ReduceVector& values = core_of(seat, rank).reduction(group.reductions[rank].front());
    for (std::size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], values[i]);
  }
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    core_of(seat, rank).answer_reduction(group.reductions[rank].front(), least, shared_.now + reduce_ns_);
    group.reductions[rank].pop_front();
  }
}

Seats::JointPass& Seats::pass_of(std::uint32_t seat, std::uint64_t ordinal) {
  Group& group = group_of(seat);
  while (ordinal - group.first_pass >= group.passes.size()) {
    group.passes.emplace_back().slots.assign(ranks_, kNoSlotIndex);
  }
  return group.passes[ordinal - group.first_pass];
}

void Seats::pass_started(std::uint32_t seat, std::uint64_t ordinal, std::uint32_t slot) {
  JointPass& pass = pass_of(seat, ordinal);
  pass.slots[seat % ranks_] = slot;
  ++pass.started;
  pass.start = shared_.now;
  settle(seat, pass);
}

void Seats::pass_ready(std::uint32_t seat, std::uint64_t ordinal) {
  JointPass& pass = pass_of(seat, ordinal);
  ++pass.ready;
  settle(seat, pass);
}

void Seats::pass_failed(std::uint32_t seat, std::uint64_t ordinal) {
  JointPass& pass = pass_of(seat, ordinal);
  pass.failed = true;
  settle(seat, pass);
}

void Seats::pass_cancelled(std::uint32_t seat, std::uint64_t ordinal) {
  JointPass& pass = pass_of(seat, ordinal);
  if (pass.cancel_time >= 0) return;
  pass.cancel_time = shared_.now;
  pass.settled = false;
  settle(seat, pass);
}

void Seats::pass_ended(std::uint32_t seat, std::uint64_t ordinal) {
  Group& group = group_of(seat);
  ++pass_of(seat, ordinal).ended;
  while (!group.passes.empty() && group.passes.front().ended == ranks_) {
    group.passes.pop_front();
    ++group.first_pass;
  }
}

// As soon as the end of the pass is known, sets this end on every rank.
void Seats::settle(std::uint32_t seat, JointPass& pass) {
  if (pass.started < ranks_ || pass.settled || (!pass.failed && pass.ready < ranks_)) return;
  pass.settled = true;
  PassEnd end;
  if (pass.failed) {
    end = {Status::gate_failed, 0, shared_.now - pass.start, shared_.now};
  } else {
    PassGates gates;
    std::size_t slowest = 0;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const WorldCore& core = core_of(seat, rank);
      const PassGates own = core.pass_gates(pass.slots[rank]);
      gates.first_step_ns = std::max(gates.first_step_ns, own.first_step_ns);
      gates.finish = std::max(gates.finish, own.finish);
      if (core.pass_ns(pass.slots[rank]) > core_of(seat, slowest).pass_ns(pass.slots[slowest])) slowest = rank;
    }
    end = core_of(seat, slowest).plan_pass(pass.slots[slowest], pass.start, gates, pass.cancel_time);
  }
  for (std::size_t rank = 0; rank < ranks_; ++rank) core_of(seat, rank).end_pass_at(pass.slots[rank], pass.start, end);
}

}  // namespace kvtwin

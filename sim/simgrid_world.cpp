// The SimGrid world. SimGrid solves the max-min shares, keeps the heap of flow ends, and drives the loop. There are no
// actors. kvtwin's model is registered first, so next_occurring_event handles every event and input that is due before
// the next flow ends. Any number of flows can start and stop there.
//
// Two clocks. The seats count whole nanoseconds, and record each piece of a flow (start, rate) with full precision in
// runs of any length. SimGrid's clock is in seconds (double) and moves only from the end of one flow to the next.
// Whenever a share changes, SimGrid's action receives the bytes that remain by kvtwin's record at SimGrid's date. So
// both clocks agree on the end of a flow, even if SimGrid learns of a start too early or too late. See
// docs/internals/simgrid.md.
#include "sim/world.hpp"

#if KVTWIN_HAVE_SIMGRID
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "policy/base/check.hpp"
#include "sim/links.hpp"
#include "sim/seats.hpp"
#include "sim/simgrid_compat.hpp"

namespace kvtwin {
namespace {

namespace kernel = simgrid::kernel::resource;
namespace lmm = simgrid::kernel::lmm;

constexpr double kNsPerSecondReal = 1e9;
// Delivers the inputs of time T only if no flow can end before T + 0.5 ns. The remaining margin covers the order of
// SimGrid's own heap: SimGrid merges ends within 0.001 ns, and the resolution of its clock is 0.02 ns after a day.
double delivery_margin_ns(TimeNs time) { return 0.502 + 1e-15 * static_cast<double>(time); }

constexpr double kSameDate = 1e-12;  // seconds; as in simgrid_compat.cpp

class FlowModel;

class FlowAction final : public kernel::Action {
 public:
  FlowAction(FlowModel& model, double bytes, WorldCore& core, std::uint32_t seat, std::uint32_t slot);
  void update_remains_lazy(double clock) override;
  double get_remains() override { return get_remains_no_update(); }
  WorldCore& core() const { return core_; }
  std::uint32_t seat() const { return seat_; }
  std::uint32_t slot() const { return slot_; }

 private:
  FlowModel& flows_;
  WorldCore& core_;
  std::uint32_t seat_, slot_;
};

class FlowModel final : public kernel::Model, public FlowBackend {
 public:
  explicit FlowModel(const WorldConfig& config) : Model("kvtwin flows"), seats_(config, *this) {
    set_update_algorithm(UpdateAlgo::LAZY);
    set_maxmin_system(lmm::System::build("maxmin", true));
    seat_flows_.resize(seats_.size());
    for (std::uint32_t seat = 0; seat < seats_.size(); ++seat) make_links(config, seat);
    plan_rate_changes(config);
  }

  Seats& seats() { return seats_; }

  // The flows of all ranks of an operation start together, have equal bytes and load equal links, so max-min gives them
  // equal rates. One variable represents all of them: it loads a rank's own link once, and a shared link `ranks` times.
  void start_flow(std::uint32_t seat, std::uint32_t slot, const Flow& flow) override {
    auto* action = new FlowAction(*this, flow.bytes, seats_.core(seat), seat, slot);
    SeatFlows& flows = seat_flows_[seat];
    action->set_last_update();
    lmm::System& system = *get_maxmin_system();
    const bool hands_over = flow.peer != kNoSeat;
    const Links& links = seats_.core(seat).links();
    const Loads loads = hands_over ? links.of_sender(flow) : links.of(flow);
    const Loads far = hands_over ? seats_.core(flow.peer).links().of_receiver(flow) : Loads{};
    action->set_variable(system.variable_new(action, 1.0,
                                             flow.max_bytes_per_second > 0.0 ? flow.max_bytes_per_second : -1.0,
                                             loads.size() + far.size() + flow.nodes.size() + 1));
    const auto load_links = [&](const Loads& all, const SeatFlows& of) {
      for (const LinkLoad& load : all) {
        lmm::Constraint* constraint = of.constraints[static_cast<std::size_t>(load.link)];
        if (constraint != nullptr) system.expand(constraint, action->get_variable(), load.weight, false);
      }
    };
    load_links(loads, flows);
    if (hands_over) load_links(far, seat_flows_[flow.peer]);
    for (const NodeShare& part : flow.nodes) {
      system.expand(port_of(seat, part.node, spec_of(flow.lane).reads), action->get_variable(),
                    links.node_weight(flow, part), false);
    }
    if (flow.own_share > 0.0) {
      system.expand(flows.own_copies, action->get_variable(), flow.ranks * flow.own_share, false);
    }
    if (slot >= flows.actions.size()) flows.actions.resize(slot + 1);
    flows.actions[slot] = action;
    shares_changed_at(Instant{seats_.now(), 0.0});
  }

  void stop_flow(std::uint32_t seat, std::uint32_t slot) override {
    FlowAction* action = std::exchange(seat_flows_[seat].actions[slot], nullptr);
    action->cancel();
    action->unref();
    shares_changed_at(Instant{seats_.now(), 0.0});
  }

  double next_occurring_event(double clock) override {
    for (;;) {
      if (changed_) {
        changed_ = false;
        next_occurring_event_lazy(clock);
      }
      const auto& heap = get_action_heap();
      const TimeNs next = seats_.next_time();
      const TimeNs change = next_change_ < changes_.size() ? changes_[next_change_] : kNever;
      if (!heap.empty() && first_end_is_before(std::min(next, change))) return std::max(0.0, heap.top_date() - clock);
      if (next == kNever && heap.empty()) return -1.0;
      if (change <= next) {
        change_rates(change);
      } else {
        seats_.step();
      }
    }
  }

  void update_actions_state(double clock, double) override {
    auto& heap = get_action_heap();
    while (!heap.empty() && heap.top_date() <= clock + kSameDate) {
      auto* action = static_cast<FlowAction*>(heap.pop());
      const std::uint32_t slot = action->slot();
      WorldCore& core = action->core();
      action->finish(kernel::Action::State::FINISHED);
      seat_flows_[action->seat()].actions[slot] = nullptr;
      core.flow_ended(slot);
      shares_changed_at(core.flow_end(slot));
      action->unref();
    }
  }

  const Instant& instant() const { return instant_; }

 private:
  struct SeatFlows {
    std::array<lmm::Constraint*, kLinks> constraints{};
    lmm::Constraint* own_copies = nullptr;  // copies of pool pages that lie on the own host
    std::vector<FlowAction*> actions;       // by slot
  };

  using Port = std::array<lmm::Constraint*, 2>;  // of a pool node: bytes that it sends, and that it receives

  // A constraint whose rate changes by a planned failure.
  struct Slowed {
    lmm::Constraint* constraint = nullptr;
    NetworkPart part = NetworkPart::nic;
    std::uint32_t node = 0;
    double rate = 0.0;
  };

  // Requires: the flow of `seat` moves pages of the node, which is not the own host.
  lmm::Constraint* port_of(std::uint32_t seat, std::uint32_t node, bool reads) const {
    if (peers_) {
      return seat_flows_[hosts_[node]].constraints[static_cast<std::size_t>(reads ? Link::nic_out : Link::nic_in)];
    }
    return ports_[ports_.size() == 1 ? 0 : seat][node][reads ? 0 : 1];
  }

  void make_links(const WorldConfig& config, std::uint32_t seat) {
    const Links& links = seats_.core(seat).links();
    make_ports(config, seat);
    for (std::size_t i = 0; i < kLinks; ++i) {
      const auto link = static_cast<Link>(i);
      // Each flow needs at least one link. Any other link that cannot limit is left out, because it would only join
      // lanes into one system to solve.
      // Hand-overs are not among the lanes that can_limit() counts.
      const bool always_modelled = spec_of(link).always_modelled || config.prefill_engines > 0;
      const WorldConfig& own = Seats::config_of(config, seat);
      // With instances, each rank has links of its own: its part of each shared link.
      const bool all_engines = !config.instances && spec_of(link).all_engines;
      const std::uint32_t sharers = all_engines ? config.engines : spec_of(link).of_gpu ? 1 : own.groups;
      const std::size_t owner = all_engines ? 0 : sharers == 1 ? seat : Seats::first_on_machine(config, seat);
      lmm::Constraint*& constraint = seat_flows_[seat].constraints[i];
      const double rate = links.rate(link);
      if (owner != seat) {
        constraint = seat_flows_[owner].constraints[i];
      } else if (rate > 0.0 &&
                 (links.is_slowed(link) || always_modelled || links.can_limit(link, own.ranks, sharers))) {
        constraint = get_maxmin_system()->constraint_new(nullptr, rate);
        if (links.is_slowed(link)) slowed_.push_back({constraint, *Links::part_of(link), 0, rate});
      }
    }
  }

  // With instances, each rank has ports of its own, as with all links.
  void make_ports(const WorldConfig& config, std::uint32_t seat) {
    const Links& links = seats_.core(seat).links();
    peers_ = config.network.peers;
    if (peers_) {
      const double rate = std::max(links.rate(Link::dram), links.rate(Link::nic_in));
      const std::size_t first = config.instances ? seat : Seats::first_on_machine(config, seat);
      if (first == seat) hosts_.push_back(seat);
      seat_flows_[seat].own_copies =
          first == seat ? get_maxmin_system()->constraint_new(nullptr, rate) : seat_flows_[first].own_copies;
      return;
    }
    if (config.network.nodes == 0 || (seat > 0 && !config.instances)) return;
    std::vector<Port>& ports = ports_.emplace_back(config.network.nodes);
    for (std::uint32_t node = 0; node < config.network.nodes; ++node) {
      for (lmm::Constraint*& way : ports[node]) {
        way = get_maxmin_system()->constraint_new(nullptr, links.node_rate());
        slowed_.push_back({way, NetworkPart::node, node, links.node_rate()});
      }
    }
  }

  void plan_rate_changes(const WorldConfig& config) {
    for (const SlowLink& slow : config.slow_links) {
      changes_.push_back(slow.span.begin);
      changes_.push_back(slow.span.end);
    }
    std::ranges::sort(changes_);
    changes_.erase(std::unique(changes_.begin(), changes_.end()), changes_.end());
  }

  void change_rates(TimeNs time) {
    ++next_change_;
    const Links& links = seats_.core(0).links();
    for (const Slowed& it : slowed_) {
      get_maxmin_system()->update_constraint_bound(it.constraint, it.rate * links.share_at(it.part, it.node, time));
    }
    shares_changed_at(Instant{time, 0.0});
  }

  void shares_changed_at(const Instant& when) {
    changed_ = true;
    instant_ = when;
  }

  bool first_end_is_before(TimeNs next) const {
    if (next == kNever) return true;
    const auto* first = static_cast<const FlowAction*>(get_heap().top().second);
    const Instant end = first->core().flow_end(first->slot());
    return static_cast<double>(end.base - next) + end.fraction < delivery_margin_ns(next);
  }
  const kernel::ActionHeap& get_heap() const { return const_cast<FlowModel*>(this)->get_action_heap(); }

  Seats seats_;
  std::vector<SeatFlows> seat_flows_;
  std::vector<std::vector<Port>> ports_;  // of the pool's nodes: one list for all seats, or with instances one for each
  bool peers_ = false;
  std::vector<std::uint32_t> hosts_;  // with peers: the first seat on each machine
  std::vector<Slowed> slowed_;
  std::vector<TimeNs> changes_;  // times of planned changes of rates
  std::size_t next_change_ = 0;
  bool changed_ = false;  // the shares must be solved again
  Instant instant_;       // time of the last change
};

FlowAction::FlowAction(FlowModel& model, double bytes, WorldCore& core, std::uint32_t seat, std::uint32_t slot)
    : Action(&model, bytes, false), flows_(model), core_(core), seat_(seat), slot_(slot) {}

// SimGrid calls this function after a solve that changed this flow, and before it reads the remaining bytes.
void FlowAction::update_remains_lazy(double clock) {
  const double rate = get_rate();
  core_.flow_rate(slot_, flows_.instant(), rate / kNsPerSecondReal);
  const Instant end = core_.flow_end(slot_);
  const double seconds = (static_cast<double>(end.base) + end.fraction) / kNsPerSecondReal - clock;
  set_remains(std::max(0.0, seconds * rate));
  set_last_update();
  set_last_value(rate);
}

class SimGridWorld final : public SeatedWorld {
 public:
  explicit SimGridWorld(const WorldConfig& config)
      : model_(std::make_shared<FlowModel>(config)), instances_(config.instances) {
    simgrid_compat::start_engine(model_);
  }
  void run_seats(InputSource& source, std::span<InputHandler* const> handlers, InputRoute* route) override {
    KV_CHECK(!std::exchange(has_run_, true), "the SimGrid world runs once");
    seated().begin(source, handlers, route);
    simgrid_compat::run_engine();
    // With instances, an operation that not all ranks entered stays open. That is an error of the policies, and the
    // user of the policies must see it.
    KV_CHECK(instances_ || seated().all_answered(), "SimGrid stopped with operations in flight");
  }

 private:
  Seats& seated() override { return model_->seats(); }

  std::shared_ptr<FlowModel> model_;
  bool instances_;
  bool has_run_ = false;
};

}  // namespace

std::unique_ptr<World> make_simgrid_world(const WorldConfig& config) {
  static bool made = false;
  KV_CHECK(!std::exchange(made, true), "SimGrid allows one world a process");
  return std::make_unique<SimGridWorld>(config);
}

}  // namespace kvtwin
#else
namespace kvtwin {
std::unique_ptr<World> make_simgrid_world(const WorldConfig&) { return nullptr; }
}  // namespace kvtwin
#endif

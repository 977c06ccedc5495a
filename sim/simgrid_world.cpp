// The SimGrid world. SimGrid solves the max-min shares, keeps the heap of flow ends and drives the loop; no
// actors. Our model is registered first, so next_occurring_event is the policy's turn: everything due before
// the next flow ends is handled there, with any number of flows started and stopped.
//
// Two clocks. Seats count whole nanoseconds and records each flow's pieces (from when, at which rate)
// with full precision however long the run; SimGrid's clock is double seconds and only moves from one flow's
// end to the next. Whenever a share changes, the action is told what is left *by the record, at SimGrid's
// date*, so that both clocks agree on the end, and a start that SimGrid hears of late, or early, costs nothing.
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
// Inputs of time T are handed out once no flow can end before T + 0.5 ns. The rest allows for the order of
// SimGrid's own heap: it merges what is 0.001 ns apart, and its clock's ulp grows to 0.02 ns in a day.
double hold_ns(TimeNs time) { return 0.502 + 1e-15 * static_cast<double>(time); }

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
  }

  Seats& seats() { return seats_; }

  // All ranks' flows of an operation start together, have equal bytes and see equal links, so max-min gives
  // them equal rates. One variable stands for them: it loads its own link once and the shared ones rank-fold.
  void start_flow(std::uint32_t seat, std::uint32_t slot, const Flow& flow) override {
    auto* action = new FlowAction(*this, flow.bytes, seats_.core(seat), seat, slot);
    SeatFlows& flows = seat_flows_[seat];
    action->set_last_update();
    lmm::System& system = *get_maxmin_system();
    const Loads loads = seats_.core(seat).links().of(flow.lane, flow.tier, flow.ranks);
    action->set_variable(system.variable_new(action, 1.0, flow.most > 0.0 ? flow.most : -1.0, loads.size()));
    for (const LinkLoad& load : loads) {
      lmm::Constraint* constraint = flows.constraints[static_cast<std::size_t>(load.link)];
      if (constraint != nullptr) system.expand(constraint, action->get_variable(), load.weight, false);
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
      if (!heap.empty() && first_end_is_before(next)) return std::max(0.0, heap.top_date() - clock);
      if (next == kNever) return -1.0;
      seats_.step();
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
    std::vector<FlowAction*> actions;  // by slot
  };

  void make_links(const WorldConfig& config, std::uint32_t seat) {
    const Links& links = seats_.core(seat).links();
    for (std::size_t i = 0; i < kLinks; ++i) {
      const auto link = static_cast<Link>(i);
      // A flow needs a link of its own to live on; a further one that can never bind would only join lanes into one
      // system to solve.
      const bool own = spec_of(link).own;
      // A rank has its part of all links, which is its own.
      const bool common = !config.instances && spec_of(link).common;
      lmm::Constraint*& constraint = seat_flows_[seat].constraints[i];
      const double rate = links.rate(link);
      if (common && seat > 0) {
        constraint = seat_flows_[0].constraints[i];
      } else if (rate > 0.0 && (own || links.can_bind(link, config.ranks, common ? config.engines : 1))) {
        constraint = get_maxmin_system()->constraint_new(nullptr, rate);
      }
    }
  }

  void shares_changed_at(const Instant& when) {
    changed_ = true;
    instant_ = when;
  }

  bool first_end_is_before(TimeNs next) const {
    if (next == kNever) return true;
    const auto* first = static_cast<const FlowAction*>(get_heap().top().second);
    const Instant end = first->core().flow_end(first->slot());
    return static_cast<double>(end.base - next) + end.fraction < hold_ns(next);
  }
  const kernel::ActionHeap& get_heap() const { return const_cast<FlowModel*>(this)->get_action_heap(); }

  Seats seats_;
  std::vector<SeatFlows> seat_flows_;
  bool changed_ = false;  // the shares have to be solved anew
  Instant instant_;       // as of when
};

FlowAction::FlowAction(FlowModel& model, double bytes, WorldCore& core, std::uint32_t seat, std::uint32_t slot)
    : Action(&model, bytes, false), flows_(model), core_(core), seat_(seat), slot_(slot) {}

// Called by the kernel after a solve that touched this flow, and before it asks for what remains.
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
    // What not all ranks have entered nobody can answer: that is the policies' fault, and for their user to see.
    KV_CHECK(instances_ || seated().quiet(), "SimGrid stopped with operations in flight");
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

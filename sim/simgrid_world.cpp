// The SimGrid world. SimGrid solves the max-min shares, keeps the heap of flow ends and drives the loop; no
// actors. Our model is registered first, so next_occurring_event is the policy's turn: everything due before
// the next flow ends is handled there, with any number of flows started and stopped.
//
// Two clocks. WorldCore counts whole nanoseconds and records each flow's pieces (from when, at which rate)
// with full precision however long the run; SimGrid's clock is double seconds and only moves from one flow's
// end to the next. Whenever a share changes, the action is told what is left *by the record, at SimGrid's
// date*, so that both clocks agree on the end, and a start that SimGrid hears of late, or early, costs nothing.
#include "sim/world.hpp"

#if KVTWIN_HAVE_SIMGRID
#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "policy/check.hpp"
#include "sim/links.hpp"
#include "sim/simgrid_compat.hpp"
#include "sim/world_core.hpp"

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
  FlowAction(FlowModel& model, double bytes, std::uint32_t slot);
  void update_remains_lazy(double clock) override;
  double get_remains() override { return get_remains_no_update(); }
  std::uint32_t slot() const { return slot_; }

 private:
  FlowModel& flows_;
  std::uint32_t slot_;
};

class FlowModel final : public kernel::Model, public FlowBackend {
 public:
  explicit FlowModel(const WorldConfig& config) : Model("kvtwin flows"), core_(config, *this), links_(config) {
    set_update_algorithm(UpdateAlgo::LAZY);
    set_maxmin_system(lmm::System::build("maxmin", true));
    for (std::size_t i = 0; i < kLinks; ++i) {
      const auto link = static_cast<Link>(i);
      // A flow needs a link of its own to live on; a further one that can never bind would only join lanes into one
      // system to solve.
      const bool own = link == Link::gpu_down || link == Link::gpu_up || link == Link::drives || link == Link::nic_in ||
                       link == Link::nic_out;
      const double rate = links_.rate(link);
      if (rate > 0.0 && (own || links_.can_bind(link, config.ranks))) {
        constraints_[i] = get_maxmin_system()->constraint_new(nullptr, rate);
      }
    }
  }

  WorldCore& core() { return core_; }
  const WorldCore& core() const { return core_; }

  // All ranks' flows of an operation start together, have equal bytes and see equal links, so max-min gives
  // them equal rates. One variable stands for them: it loads its own link once and the shared ones rank-fold.
  void start_flow(std::uint32_t slot, const Flow& flow) override {
    auto* action = new FlowAction(*this, flow.bytes, slot);
    action->set_last_update();
    lmm::System& system = *get_maxmin_system();
    const Loads loads = links_.of(flow.lane, flow.tier, flow.ranks);
    action->set_variable(system.variable_new(action, 1.0, flow.most > 0.0 ? flow.most : -1.0, loads.size()));
    for (const LinkLoad& load : loads) {
      lmm::Constraint* constraint = constraints_[static_cast<std::size_t>(load.link)];
      if (constraint != nullptr) system.expand(constraint, action->get_variable(), load.weight, false);
    }
    if (slot >= actions_.size()) actions_.resize(slot + 1);
    actions_[slot] = action;
    shares_changed_at(Instant{core_.now(), 0.0});
  }

  void stop_flow(std::uint32_t slot) override {
    FlowAction* action = std::exchange(actions_[slot], nullptr);
    action->cancel();
    action->unref();
    shares_changed_at(Instant{core_.now(), 0.0});
  }

  double next_occurring_event(double clock) override {
    for (;;) {
      if (changed_) {
        changed_ = false;
        next_occurring_event_lazy(clock);
      }
      const auto& heap = get_action_heap();
      const TimeNs next = core_.next_time();
      if (!heap.empty() && first_end_is_before(next)) return std::max(0.0, heap.top_date() - clock);
      if (next == kNever) return -1.0;
      core_.step();
    }
  }

  void update_actions_state(double clock, double) override {
    auto& heap = get_action_heap();
    while (!heap.empty() && heap.top_date() <= clock + kSameDate) {
      auto* action = static_cast<FlowAction*>(heap.pop());
      const std::uint32_t slot = action->slot();
      action->finish(kernel::Action::State::FINISHED);
      actions_[slot] = nullptr;
      core_.flow_ended(slot);
      shares_changed_at(core_.flow_end(slot));
      action->unref();
    }
  }

  const Instant& instant() const { return instant_; }

 private:
  void shares_changed_at(const Instant& when) {
    changed_ = true;
    instant_ = when;
  }

  bool first_end_is_before(TimeNs next) const {
    if (next == kNever) return true;
    const Instant end = core_.flow_end(static_cast<const FlowAction*>(get_heap().top().second)->slot());
    return static_cast<double>(end.base - next) + end.fraction < hold_ns(next);
  }
  const kernel::ActionHeap& get_heap() const { return const_cast<FlowModel*>(this)->get_action_heap(); }

  WorldCore core_;
  Links links_;
  std::array<lmm::Constraint*, kLinks> constraints_{};
  std::vector<FlowAction*> actions_;  // by slot
  bool changed_ = false;              // the shares have to be solved anew
  Instant instant_;                   // as of when
};

FlowAction::FlowAction(FlowModel& model, double bytes, std::uint32_t slot)
    : Action(&model, bytes, false), flows_(model), slot_(slot) {}

// Called by the kernel after a solve that touched this flow, and before it asks for what remains.
void FlowAction::update_remains_lazy(double clock) {
  const double rate = get_rate();
  WorldCore& core = flows_.core();
  core.flow_rate(slot_, flows_.instant(), rate / kNsPerSecondReal);
  const Instant end = core.flow_end(slot_);
  const double seconds = (static_cast<double>(end.base) + end.fraction) / kNsPerSecondReal - clock;
  set_remains(std::max(0.0, seconds * rate));
  set_last_update();
  set_last_value(rate);
}

class SimGridWorld final : public World {
 public:
  explicit SimGridWorld(const WorldConfig& config) : model_(std::make_shared<FlowModel>(config)) {
    simgrid_compat::start_engine(model_);
  }
  Substrate& substrate() override { return model_->core(); }
  TimeNs now() const override { return model_->core().now(); }
  void watch_lanes(LaneObserver* observer) override { model_->core().watch_lanes(observer); }
  void set_progress(void (*tick)(void* context, TimeNs now), void* context) override {
    model_->core().set_progress(tick, context);
  }
  void run(InputSource& source, InputHandler& handler) override {
    KV_CHECK(!std::exchange(has_run_, true), "the SimGrid world runs once");
    model_->core().begin(source, handler);
    simgrid_compat::run_engine();
    KV_CHECK(model_->core().quiet(), "SimGrid stopped with operations in flight");
  }

 private:
  std::shared_ptr<FlowModel> model_;
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

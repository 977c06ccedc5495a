// The faithful event heap: every flow has its lane's link to itself, so its end is known at its start.
#include <memory>

#include "sim/links.hpp"
#include "sim/world.hpp"
#include "sim/world_core.hpp"

namespace kvtwin {
namespace {

class EventWorld final : public World, private FlowBackend {
 public:
  explicit EventWorld(const WorldConfig& config) : links_(config), core_(config, *this) {}

  Substrate& substrate() override { return core_; }
  TimeNs now() const override { return core_.now(); }
  void watch_lanes(LaneObserver* observer) override { core_.watch_lanes(observer); }
  void set_progress(void (*tick)(void* context, TimeNs now), void* context) override {
    core_.set_progress(tick, context);
  }

  void run(InputSource& source, InputHandler& handler) override {
    core_.begin(source, handler);
    while (core_.next_time() != kNever) core_.step();
  }

 private:
  void start_flow(std::uint32_t slot, const Flow& flow) override {
    const double rate = links_.alone(flow);
    core_.flow_rate(slot, Instant{core_.now(), 0.0}, rate / static_cast<double>(kNsPerSecond));
    core_.flow_ended(slot);
  }
  void stop_flow(std::uint32_t) override {}

  Links links_;
  WorldCore core_;
};

}  // namespace

std::unique_ptr<World> make_event_world(const WorldConfig& config) { return std::make_unique<EventWorld>(config); }

}  // namespace kvtwin

// The event-heap world: a flow shares no link, so the end of the flow is known at the start.
#include <memory>
#include <span>

#include "sim/links.hpp"
#include "sim/seats.hpp"
#include "sim/world.hpp"

namespace kvtwin {
namespace {

class EventWorld final : public SeatedWorld, private FlowBackend {
 public:
  explicit EventWorld(const WorldConfig& config) : seats_(config, *this) {}

  void run_seats(InputSource& source, std::span<InputHandler* const> handlers, InputRoute* route) override {
    seats_.begin(source, handlers, route);
    while (seats_.next_time() != kNever) seats_.step();
  }

 private:
  Seats& seated() override { return seats_; }
  void start_flow(std::uint32_t seat, std::uint32_t slot, const Flow& flow) override {
    WorldCore& core = seats_.core(seat);
    const double rate = flow.peer == kNoSeat ? core.links().unshared_rate(flow)
                                             : core.links().unshared_rate(flow, seats_.core(flow.peer).links());
    core.flow_rate(slot, Instant{core.now(), 0.0}, rate / static_cast<double>(kNsPerSecond));
    core.flow_ended(slot);
  }
  void stop_flow(std::uint32_t, std::uint32_t) override {}

  Seats seats_;
};

}  // namespace

std::unique_ptr<World> make_event_world(const WorldConfig& config) { return std::make_unique<EventWorld>(config); }

}  // namespace kvtwin

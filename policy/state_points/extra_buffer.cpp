// SGLang 0.5.23, --mamba-radix-cache-strategy extra_buffer: the rule of TrackedGrid, without a say where passes end.
#include "policy/state_points/tracked_grid.hpp"

namespace kvtwin {

std::unique_ptr<StatePoints> make_extra_buffer_state_points(const EngineConfig& config, const Parameters& parameters) {
  return std::make_unique<TrackedGrid>(config, parameters);
}

}  // namespace kvtwin

// The one setting that a comparison recommends.
//
// With a goal: of the settings that meet the goal, the one with the lowest price, or without prices the fewest GPUs; of
// equals the one with the smallest tiers; of equals the one with the best figure. Without a goal: the setting with the
// lowest mean TTFT; of the settings that cannot be told from it, as above. Only settings that complete enough of the
// requests count.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lab/engine_commands.hpp"
#include "lab/sweep/comparison.hpp"
#include "models/json.hpp"

namespace kvtwin {

struct Recommendation {
  std::size_t figure = 0;              // in figures(): of the goal, else the mean TTFT
  std::optional<std::size_t> setting;  // nothing: no setting meets the goal, or none completes enough requests
  std::optional<std::size_t> nearest;  // the setting with the best figure; nothing: no setting has the figure
  std::string reason;
};
Recommendation recommend(const SweepPlan& plan, const Comparison& comparison, const std::optional<Goal>& goal,
                         double min_served = kMinServedShare);

// `commands`: of the recommended setting; empty without one. Returns `recommendation` of compare.json.
Json recommendation_json(const SweepPlan& plan, const Comparison& comparison, const Recommendation& recommendation,
                         const std::vector<EngineCommand>& commands);
// Returns the lines of the screen.
std::string recommendation_text(const SweepPlan& plan, const Comparison& comparison,
                                const Recommendation& recommendation, const std::vector<EngineCommand>& commands,
                                const std::optional<Goal>& goal);

}  // namespace kvtwin

// Measured hits of SGLang's request log, request by request, and the hits of the same requests in a simulation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/validate/validate_cell.hpp"
#include "models/json.hpp"

namespace kvtwin {

// Returns the settings that make a request log the workload of an experiment: the trace, and blocks of one
// page, so that the simulation's pages are the server's.
std::vector<std::string> request_log_settings(const std::filesystem::path& log, const Experiment& experiment);

// Returns what the log measured: hits by tier, end-to-end times, and the hits of each request. Tokens from storage
// count for the experiment's first storage tier, or for the disk if it has none. `with_events`: KV events are compared
// too, so that the log may have no hits.
// Requires: `experiment` has the settings above. Errors: InputError.
RunFigures read_request_log(const Experiment& experiment, bool with_events);

struct HitErrors {
  struct Difference {
    std::uint64_t number = 0;
    RequestHits measured, predicted;
  };
  std::uint64_t joined = 0;         // requests with hits on both sides
  std::uint64_t other_prompts = 0;  // prompts of different lengths: not joined
  std::uint64_t equal = 0;          // equal on each tier; in all, if the log has no tiers
  std::uint64_t max_tokens = 0;     // largest difference in all
  std::optional<Difference> first;
};
// Returns nothing if one side has no hits of requests.
std::optional<HitErrors> hit_errors(const ValidationCell& cell);
std::string hit_errors_text(const HitErrors& errors);
Json hit_errors_json(const HitErrors& errors);

}  // namespace kvtwin

// The figures of requests in report.json, stages.csv and on the screen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/errors/error_features.hpp"
#include "lab/experiment/stages.hpp"
#include "lab/report/request_figures.hpp"
#include "models/json.hpp"

namespace kvtwin {

// Returns "-" if there is no figure.
std::string decimal(const std::optional<double>& value, int decimals);

// Sets `requests`, `tokens`, latencies and `throughput` of a report or a stage.
struct RequestJson {
  Rates rates{};                             // for the throughput and the goodput
  std::optional<std::uint64_t> retractions;  // nothing: not in the report
  bool saved = false;                        // with saved_seconds
  ServiceLevel level{};                      // with slo, if a limit is set
  bool hand_overs = false;                   // with the time of hand-overs
  const ErrorFeatures* errors = nullptr;     // of a simulation: with the intervals of its times
};
void put_request_figures(Json& to, const RequestFigures& figures, const RequestJson& terms);
// Returns the 80 % intervals of the mean times, for the screen; empty if no request completed. `rates`: of the same
// requests.
std::string intervals_line(const RequestFigures& figures, const Rates& rates, const ErrorFeatures& errors);

// The figures of the stages: `stages` of report.json, stages.csv, and a table. A stage that has not begun has no
// figures. `hand_overs`, `errors`: as in RequestJson.
Json stages_json(const std::vector<WorkloadStage>& stages, const RequestCounter& counter, bool hand_overs,
                 const ErrorFeatures* errors);
std::string stages_csv(const std::vector<WorkloadStage>& stages, const RequestCounter& counter);
std::string stages_text(const std::vector<WorkloadStage>& stages, const RequestCounter& counter);

}  // namespace kvtwin

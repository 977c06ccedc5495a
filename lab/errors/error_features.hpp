// What the error of a predicted time depends on: facts of the settings and of the simulated run.
#pragma once

#include <map>
#include <string>

#include "lab/experiment/setup.hpp"
#include "models/json.hpp"

namespace kvtwin {

struct ErrorFeatures {
  // Source of the times of a pass: an operator table, the roofline, or figures that were fitted to measurements.
  enum class Times : std::uint8_t { table, roofline, fitted };
  Times times = Times::roofline;
  std::string engine;                 // name_of(ServingEngine)
  std::string gpu;                    // as in operator tables; empty: the hardware names none
  std::string model;                  // for the reader only
  double engines = 1;                 // that decode
  double request_s = 0, token_s = 0;  // the engine's front end: per request, per prompt token
  // By name; what is absent counts as 0. Of the settings: experts, fp4 (the GPU has such units), roles, draft,
  // attention_dp, in_step (1 or 0), ln_gpus; of figures that were fitted to a capture, fit_off_ttft and
  // fit_off_tpot (median error of the held-out requests). Of the run: ln_ttft, ln_tpot (seconds), queue_share,
  // load_share and front_share of the TTFT, ln_running (requests that decode at once, in an engine), ln_prompt (mean
  // tokens), hit_device and hit_below (shares of the prompt tokens). Of the user's own runs (add_own_runs()): own_runs,
  // own_hit_below, own_ttft_shift, own_ttft_width, and so of TPOT.
  std::map<std::string, double> values;
  // For the reader of report.json, and for docs/results/tools/published-errors.
  Json json() const;
  static ErrorFeatures from_json(const Json& json);
};
std::string_view name_of(ErrorFeatures::Times times);

// Of a simulation. Those of its run come from put_request_figures() (lab/report/request_json.hpp).
ErrorFeatures features_of_settings(const Experiment& experiment, const Setup& setup);

}  // namespace kvtwin

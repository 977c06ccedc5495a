#include "lab/errors/error_features.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "lab/errors/error_model.hpp"
#include "lab/experiment/engine_word.hpp"
#include "models/text_file.hpp"

namespace kvtwin {

std::string_view name_of(ErrorFeatures::Times times) {
  switch (times) {
    case ErrorFeatures::Times::table: return "table";
    case ErrorFeatures::Times::roofline: return "roofline";
    case ErrorFeatures::Times::fitted: return "fitted";
  }
  return "";
}

Json ErrorFeatures::json() const {
  Json json{{"times", name_of(times)}, {"engine", engine}, {"gpu", gpu}, {"model", model}};
  for (const auto& [name, value] : values) json[name] = std::round(value * 1e4) / 1e4;
  return json;
}

ErrorFeatures ErrorFeatures::from_json(const Json& json) {
  ErrorFeatures features;
  for (const Times times : {Times::table, Times::roofline, Times::fitted}) {
    if (json.at("times") == name_of(times)) features.times = times;
  }
  for (const auto& [name, value] : json.items()) {
    if (value.is_number()) features.values[name] = value;
  }
  features.engine = json.at("engine");
  features.gpu = json.at("gpu");
  features.model = json.at("model");
  return features;
}

namespace {

// Adds how far the held-out requests of `kvtwin calibrate --from` are off with the fitted figures.
void add_fit_errors(const Experiment& e, ErrorFeatures& features) {
  if (e.text("hardware.file").empty()) return;
  const Json file =
      Json::parse_or_discard(read_text_file(e.path("hardware.file"), "give a hardware description (JSON)"));
  const auto median_of = [&](const std::string& kind) -> const Json* {
    return file.is_object() ? file.find_path("/capture/errors/" + kind + "/held_out/after/median_abs_error") : nullptr;
  };
  for (const auto& [kind, name] : {std::pair("TTFT", "fit_off_ttft"), std::pair("TPOT", "fit_off_tpot")}) {
    const Json* off = median_of(kind);
    if (off == nullptr) off = median_of("end to end");
    if (off != nullptr && off->is_number()) features.values[name] = off->get<double>();
  }
}

}  // namespace

ErrorFeatures features_of_settings(const Experiment& experiment, const Setup& setup) {
  ErrorFeatures features;
  const bool table =
      experiment.text("hardware.operators") != "none" || !experiment.text("hardware.operators_file").empty();
  const bool fitted = std::ranges::any_of(setup.hardware.numbers,
                                          [](const HardwareNumber& number) { return number.low < number.high; });
  features.times = table    ? ErrorFeatures::Times::table
                   : fitted ? ErrorFeatures::Times::fitted
                            : ErrorFeatures::Times::roofline;
  features.engine = name_of(engine_word(experiment.text(kEngineKey), experiment.where(kEngineKey)).engine);
  features.gpu = setup.hardware.gpu;
  features.model = setup.model.name;
  features.engines = setup.decode == nullptr ? setup.machines() : setup.all_machines() - setup.machines();
  features.request_s = static_cast<double>(setup.serving.request_ns) / 1e9;
  features.token_s = static_cast<double>(setup.serving.token_ps) / 1e12;
  const auto flag = [&](const char* name, bool is) {
    if (is) features.values[name] = 1;
  };
  flag("experts", setup.model.experts != 0);
  flag("fp4", setup.hardware.peak_fp4 > 0);
  flag("roles", setup.decode != nullptr);
  flag("draft", setup.draft.has_value());
  flag("attention_dp", setup.attention_dp > 1);
  flag("in_step", experiment.text("workload.loop") == "closed" && experiment.text("workload.trace").empty() &&
                      experiment.number("workload.generate.range_ratio") == 1);
  if (fitted && !table) add_fit_errors(experiment, features);
  if (!experiment.text("report.validated").empty()) {
    add_own_runs(read_own_runs(experiment.path("report.validated")), features);
  }
  features.values["ln_gpus"] = std::log(static_cast<double>(setup.engine_gpus()));
  return features;
}

}  // namespace kvtwin

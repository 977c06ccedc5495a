#include "lab/calibrate/capture_keys.hpp"

#include <optional>

#include "lab/error.hpp"

namespace kvtwin {
namespace {

// The prompt tokens of all captures that hit, by tier; nothing if a capture does not know it.
std::optional<RequestHits> hits_of(const std::vector<Capture>& captures) {
  RequestHits sum{0, 0, true};
  for (const Capture& capture : captures) {
    if (!capture.hits || !capture.hits->by_tier) return std::nullopt;
    sum.host += capture.hits->host;
    sum.storage += capture.hits->storage;
  }
  return sum;
}

}  // namespace

ChosenKeys choose_keys(const std::vector<std::string>& fit, const std::vector<Capture>& captures) {
  const Experiment& experiment = captures.front().experiment;
  const Setup setup = make_setup(experiment);
  const std::optional<RequestHits> hits = hits_of(captures);
  const std::string has_no = captures.size() == 1 ? "the capture has no hits " : "the captures have no hits ";
  FitKeys wanted;
  for (const std::string& name : fit) wanted.push_back(&fit_key(name));
  if (wanted.empty()) {
    for (const FitKey& key : fit_keys()) {
      if (!key.only_if_named && is_used(key, experiment, setup)) wanted.push_back(&key);
    }
  }
  ChosenKeys chosen;
  for (const FitKey* key : wanted) {
    if (!is_used(*key, experiment, setup)) {
      throw InputError(
          "--fit " + std::string(key->name) + ": the experiment does not use it" +
          (key->time != nullptr ? "; set serving.engine" : "; it has no such tier, or serving.engine is set"));
    }
    if (hits && is_of_storage(*key) && hits->storage == 0) {
      chosen.without_hits.emplace_back(key->name, has_no + "in storage");
    } else if (hits && key->tier == Tier::host && hits->host + hits->storage == 0) {
      chosen.without_hits.emplace_back(key->name, has_no + "on the host");
    } else {
      chosen.keys.push_back(key);
    }
  }
  return chosen;
}

void refuse_overrides(const Experiment& experiment, const FitKeys& keys) {
  const auto refuse = [&](std::string_view key) {
    throw InputError(experiment.where(key) +
                     ": hides a number that is fitted; leave it out, or put it into a hardware "
                     "file (hardware.file)");
  };
  for (const char* key : {"hardware.draw", "hardware.end"}) {
    if (experiment.value(key) != find_key_of_experiment(key)->fallback) refuse(key);
  }
  if (experiment.text(kHardwareSetKey).empty()) return;
  HardwareSpec moved = hardware_of(experiment);
  for (const FitKey* key : keys) {
    for (const auto& [name, figure] : key->figures) moved.*figure /= 2;
  }
  const HardwareSpec seen = make_setup(experiment, &moved).hardware;
  for (const FitKey* key : keys) {
    for (const auto& [name, figure] : key->figures) {
      if (seen.*figure != moved.*figure) refuse(kHardwareSetKey);
    }
  }
}

void check_same_server(const std::vector<Capture>& captures, const std::vector<std::string>& paths) {
  const Experiment& first = captures.front().experiment;
  for (std::size_t i = 1; i < captures.size(); ++i) {
    const Experiment& other = captures[i].experiment;
    for (const ExperimentKey& key : experiment_keys()) {
      if (key.name.starts_with("workload.") || key.name.starts_with("report.") || key.name == "seed") continue;
      if (key.is_path && key.name != "hardware.file" && key.name != "model.config") continue;  // of empty storage
      if (first.as_toml(key.name) == other.as_toml(key.name)) continue;
      throw InputError("--from " + paths[i] + ": is of another server than " + paths.front() + ": " +
                       std::string(key.name) + " is " + other.as_toml(key.name) + " and " + first.as_toml(key.name) +
                       "; fit each server alone");
    }
  }
}

}  // namespace kvtwin

#include "lab/validate/probe.hpp"

#include <algorithm>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "models/calibration.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
ProbedCalibration probed_calibration(const std::string& hardware_file) {
  const Json file = Json::parse_or_discard(read_text_file(hardware_file, "give a hardware file of kvtwin calibrate"));
  ProbedCalibration found;
  try {
    const Json& calibration = file.at("calibration");
    for (const auto& [of, seconds] : calibration.at("probes").items()) {
      found.probes.push_back({of, seconds.get<std::vector<double>>()});
      if (found.probes.back().seconds.empty())
        throw InputError(hardware_file + ": calibration.probes." + of + ": is empty");
    }
    found.device = calibration.at("machine").at("device") == "host" ? "host" : "cuda";
    found.disk = calibration.value("probe_disk", "");
  } catch (const Json::exception&) {
    throw InputError(hardware_file +
                     ": has no probes; give a hardware file that this version of kvtwin calibrate measured");
  }
  return found;
}

ProbeCheck check_probes(const ProbedCalibration& calibrated, const Measurements& now) {
  ProbeCheck check;
  for (const ProbedCalibration::Probe& probe : calibrated.probes) {
    const auto at = std::ranges::find_if(
        now.list, [&](const Measurement& one) { return one.what == Measured::probe && one.of == probe.of; });
    if (at == now.list.end()) {
      check.not_repeated.push_back(probe.of);
      continue;
    }
    const auto [least, most] = std::ranges::minmax(probe.seconds);
    ProbeCheck::One one{probe.of, at->seconds, least, most};
    if (one.seconds > most) one.ratio = one.seconds / most;
    if (one.seconds < least) one.ratio = one.seconds / least;
    one.changed = one.ratio > kMaxProbeRatio || one.ratio < 1 / kMaxProbeRatio;
    check.probes.push_back(one);
  }
  return check;
}

std::string text_of(const ProbeCheck& check) {
  std::string text;
  for (const ProbeCheck::One& one : check.probes) {
    text += formatted("probe      %-8s %.4g ms; calibrated %.4g to %.4g ms: %s\n", one.of.c_str(), 1e3 * one.seconds,
                      1e3 * one.least, 1e3 * one.most,
                      one.changed ? formatted("%.2f times", one.ratio).c_str() : "as calibrated");
  }
  for (const std::string& of : check.not_repeated) text += "probe      " + of + ": not repeated\n";
  return text;
}

Json json_of(const ProbeCheck& check) {
  Json json{{"probes", Json::object()}, {"not_repeated", check.not_repeated}};
  for (const ProbeCheck::One& one : check.probes) {
    json["probes"][one.of] = {{"seconds", one.seconds},
                              {"least", one.least},
                              {"most", one.most},
                              {"ratio", one.ratio},
                              {"changed", one.changed}};
  }
  return json;
}

std::optional<ProbeCheck> probe_check_from(const std::string& json) {
  const Json file = Json::parse_or_discard(json);
  ProbeCheck check;
  try {
    for (const auto& [of, one] : file.at("probes").items()) {
      check.probes.push_back(
          {of, one.at("seconds"), one.at("least"), one.at("most"), one.at("ratio"), one.at("changed")});
    }
    check.not_repeated = file.at("not_repeated").get<std::vector<std::string>>();
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  return check;
}

std::string changed_sentence(const ProbeCheck& check, const std::string& hardware_file) {
  std::string changes;
  for (const ProbeCheck::One& one : check.probes) {
    if (!one.changed) continue;
    changes += (changes.empty() ? "" : ", ") + one.of + formatted(" takes %.2f times as long as then", one.ratio);
  }
  if (changes.empty()) return "";
  return hardware_file + ": this machine has changed since the calibration (" + changes +
         "); calibrate again: kvtwin calibrate --out DIR";
}

}  // namespace kvtwin

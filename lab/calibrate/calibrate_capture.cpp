#include "lab/calibrate/calibrate_capture.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "lab/calibrate/capture_case.hpp"
#include "lab/calibrate/capture_keys.hpp"
#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "models/json.hpp"
#include "models/presets.hpp"
#include "models/run_choice.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMinRequests = 16;
constexpr std::size_t kSimulationsPerCapture = 1200;
constexpr double kLargeError = 0.3;        // of the held-out times: the fit does not explain the capture
constexpr double kLargeHitDifference = 2;  // points of the prompt tokens
constexpr double kManyLookUps = 0.02;      // of the requests: those that look storage up again

// ---- the output ----------------------------------------------------------------------------------------

double rounded(double value) { return std::strtod(formatted("%.4g", value).c_str(), nullptr); }

constexpr double kGiga = 1e9;
std::string giga_unit(const RaisedPeak& peak) {
  const auto field = std::ranges::find(hardware_fields(), peak.name, &HardwareField::key);
  return "G" + std::string(field->unit);
}

struct HalfErrors {
  FigureOfRequest kind;
  FitError before, after, held_before, held_after;
};

std::vector<HalfErrors> errors_of(const std::vector<FitCase>& cases, const SimulatedFit& fit) {
  std::vector<HalfErrors> list;
  for (std::size_t k = 0; k < kFiguresOfRequest; ++k) {
    const auto kind = static_cast<FigureOfRequest>(k);
    const auto of = [&](const std::vector<std::vector<double>>& predicted, bool held_out) {
      return fit_error(cases, predicted, [&](std::size_t, const FittedFigure& figure) {
        return figure.kind == kind && figure.held_out == held_out;
      });
    };
    HalfErrors one{kind, of(fit.before, false), of(fit.after, false), of(fit.before, true), of(fit.after, true)};
    if (one.before.figures + one.held_before.figures != 0) list.push_back(one);
  }
  return list;
}

// Shares of the prompt tokens on device, host and storage, in %.
using HitShares = std::array<double, 3>;
HitShares shares_of(const std::vector<double>& simulated) {
  const double* sums = simulated.data() + simulated.size() - kHitFigures;
  HitShares shares{};
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = sums[0] > 0 ? 100 * sums[i + 1] / sums[0] : 0;
  return shares;
}
HitShares shares_of(const RequestHits& hits) {
  const auto share = [&](std::uint64_t tokens) {
    return 100 * static_cast<double>(tokens) / static_cast<double>(hits.prompt_tokens);
  };
  return {share(hits.device), share(hits.host), share(hits.storage)};
}
double sum_of(const HitShares& shares) { return shares[0] + shares[1] + shares[2]; }

std::string hits_text(const HitShares& shares) {
  return formatted("device %.1f, host %.1f, storage %.1f", shares[0], shares[1], shares[2]);
}

// Returns a sentence about each fitted number of storage whose figures jump; the share is of the simulated requests.
void note_jumps(const SimulatedFit& fit, std::vector<std::string>& notes) {
  double requests = 0, again = 0;
  for (const std::vector<double>& simulated : fit.after) {
    requests += simulated[simulated.size() - 2];
    again += simulated.back();
  }
  const bool many = again >= kManyLookUps * requests && again > 0;
  for (std::size_t i = 0; i < fit.keys.size(); ++i) {
    const SearchResult::Number& number = fit.result.numbers[i];
    if (number.identified != Identified::yes || !is_of_storage(*fit.keys[i])) continue;
    if (!many && !number.ambiguous) continue;
    std::string text(fit.keys[i]->name);
    if (many) {
      text += formatted(": %.0f %% of the simulated requests look storage up again, so the times jump with this number",
                        100 * again / requests);
    }
    text += formatted("%s %.4g to %.4g ", many ? "; its interval is" : ": has other values as good; its interval is",
                      number.low, number.high) +
            std::string(fit.keys[i]->unit);
    notes.push_back(text + (number.ambiguous ? ", and has other minima of the error" : ""));
  }
}

std::vector<std::string> notes_of(const std::vector<Capture>& captures, const std::vector<FitCase>& cases,
                                  const SimulatedFit& fit, const std::vector<HalfErrors>& errors) {
  std::vector<std::string> notes;
  const auto add = [&](std::size_t c, const std::string& note) {
    const std::string sentence = captures.size() == 1 ? note : cases[c].name + ": " + note;
    if (std::ranges::find(notes, sentence) == notes.end()) notes.push_back(sentence);
  };
  for (std::size_t c = 0; c < captures.size(); ++c) {
    if (!captures[c].by_rank) continue;
    add(c,
        "the client drew the arrivals or the prompts, and the file does not have them: the times are compared in the "
        "order of their size, not request by request");
  }
  for (std::size_t i = 0; i < fit.keys.size(); ++i) {
    if (!fit.result.numbers[i].at_bound) continue;
    const FitKey& key = *fit.keys[i];
    notes.push_back(std::string(key.name) + formatted(": is at the end of its range, %g to %g ", key.least, key.most) +
                    std::string(key.unit) +
                    ", so its interval has an open end; begin with another machine (--base, or "
                    "hardware.file of the experiment)");
  }
  for (const HalfErrors& error : errors) {
    if (error.held_after.median <= kLargeError) continue;
    notes.push_back(
        std::string(name_of(error.kind)) +
        formatted(": half of the held-out times are still off by more than %.0f %%: with these numbers, the "
                  "experiment does not give the times of the capture",
                  100 * error.held_after.median));
  }
  for (std::size_t c = 0; c < captures.size(); ++c) {
    const std::optional<RequestHits>& hits = captures[c].hits;
    if (!hits) continue;
    const HitShares simulated = shares_of(fit.after[c]);
    const double measured = 100 * static_cast<double>(hits->total) / static_cast<double>(hits->prompt_tokens);
    if (std::abs(sum_of(simulated) - measured) > kLargeHitDifference) {
      add(c, formatted("the simulated cache hits %.1f %% of the prompt tokens, and the server's %.1f %%: the "
                       "numbers make up for the difference, so correct the experiment first",
                       sum_of(simulated), measured));
    }
  }
  note_jumps(fit, notes);
  if (!fit.result.complete) notes.emplace_back("the limit of simulations ended the search; raise --simulations");
  for (std::size_t c = 0; c < captures.size(); ++c) {
    for (const std::string& note : captures[c].notes) add(c, note);
  }
  return notes;
}

class Result {
 public:
  // `halved`: what was halved, of each capture.
  Result(const CaptureFitTerms& terms, const std::vector<Capture>& captures, const ChosenKeys& chosen,
         const std::vector<std::string>& halved, const std::vector<FitCase>& cases, SimulatedFit fit)
      : terms_(terms), captures_(captures), halved_(halved), fit_(std::move(fit)), errors_(errors_of(cases, fit_)) {
    peaks_ = raise_peaks(hardware_of(first()), fit_);
    kept_ = chosen.without_hits;
    for (std::size_t i = 0; i < fit_.keys.size(); ++i) {
      const std::string why = why_kept(fit_.result.numbers[i]);
      if (!why.empty()) kept_.emplace_back(fit_.keys[i]->name, why);
    }
    notes_ = notes_of(captures, cases, fit_, errors_);
  }

  std::string text() const;
  std::string hardware() const;
  std::string experiment() const;

 private:
  const Experiment& first() const { return captures_.front().experiment; }
  std::size_t requests() const;
  std::string formats() const;
  bool fitted(std::size_t i) const { return fit_.result.numbers[i].identified == Identified::yes; }
  std::pair<FitKeys, std::vector<double>> fitted_numbers() const;
  void keep_products(const RaisedPeak& peak, const FitKeys& fitted, const HardwareSpec& base, HardwareSpec& hardware,
                     Json& file) const;
  Json capture_json() const;

  const CaptureFitTerms& terms_;
  const std::vector<Capture>& captures_;
  const std::vector<std::string>& halved_;
  SimulatedFit fit_;
  std::vector<HalfErrors> errors_;
  std::vector<RaisedPeak> peaks_;
  std::vector<std::pair<std::string, std::string>> kept_;  // name, reason
  std::vector<std::string> notes_;
};

std::size_t Result::requests() const {
  std::size_t sum = 0;
  for (const Capture& capture : captures_) sum += capture.requests.size();
  return sum;
}

// The formats, each once.
std::string Result::formats() const {
  std::string text;
  for (std::size_t c = 0; c < captures_.size(); ++c) {
    const auto same = [&](const Capture& one) { return one.format == captures_[c].format; };
    if (std::any_of(captures_.begin(), captures_.begin() + static_cast<std::ptrdiff_t>(c), same)) continue;
    text += (text.empty() ? "" : ", ") + captures_[c].format;
  }
  return text;
}

std::string Result::text() const {
  std::string text;
  for (std::size_t c = 0; c < captures_.size(); ++c) {
    const Capture& capture = captures_[c];
    text += "capture    " + terms_.captures[c].path + " (" + capture.format + "), " +
            std::to_string(capture.requests.size()) + " requests with times; half of them is held out, by " +
            halved_[c] + "\n";
    if (capture.hits && capture.hits->by_tier) {
      text += "hits, %    measured: " + hits_text(shares_of(*capture.hits)) +
              "; simulated: " + hits_text(shares_of(fit_.after[c])) + "\n";
    }
  }
  text += formatted("%-24s %11s %11s %11s %-8s %11s\n", "number", "value", "low", "high", "unit", "base");
  for (std::size_t i = 0; i < fit_.keys.size(); ++i) {
    const SearchResult::Number& number = fit_.result.numbers[i];
    if (!fitted(i)) continue;
    text += formatted("%-24s %11.4g %11.4g %11.4g %-8s %11.4g\n", std::string(fit_.keys[i]->name).c_str(), number.value,
                      number.low, number.high, std::string(fit_.keys[i]->unit).c_str(), fit_.base[i]);
  }
  for (const RaisedPeak& peak : peaks_) {
    text += formatted("%-24s %11.4g %11s %11s %-8s %11.4g\n", std::string(peak.name).c_str(), peak.value / kGiga, "",
                      "", giga_unit(peak).c_str(), peak.base / kGiga);
  }
  const auto error_text = [](const FitError& error) {
    return formatted("%.1f (%.1f)", 100 * error.mean, 100 * error.median);
  };
  text += formatted("%-24s %29s %29s\n", "mean (median) |error|, %", "fitted half", "held-out half");
  text += formatted("%-24s %14s %14s %14s %14s\n", "", "before", "after", "before", "after");
  for (const HalfErrors& error : errors_) {
    text += formatted("%-24s %14s %14s %14s %14s\n", std::string(name_of(error.kind)).c_str(),
                      error_text(error.before).c_str(), error_text(error.after).c_str(),
                      error_text(error.held_before).c_str(), error_text(error.held_after).c_str());
  }
  for (const auto& [name, why] : kept_) text += "kept       " + name + ": " + why + "\n";
  for (const std::string& note : notes_) text += "note       " + note + "\n";
  return text;
}

Json Result::capture_json() const {
  Json json{{"format", formats()},
            {"requests", requests()},
            {"date", terms_.date},
            {"kvtwin_version", terms_.version},
            {"git_commit", terms_.commit},
            {"command", terms_.command},
            {"simulations", fit_.simulations}};
  if (captures_.size() == 1) {
    json["file"] = terms_.captures.front().path;
    json["held_out_by"] = halved_.front();
  }
  for (std::size_t c = 0; captures_.size() > 1 && c < captures_.size(); ++c) {
    json["captures"].push_back({{"file", terms_.captures[c].path},
                                {"format", captures_[c].format},
                                {"requests", captures_[c].requests.size()},
                                {"held_out_by", halved_[c]}});
  }
  for (const HalfErrors& error : errors_) {
    json["errors"][std::string(name_of(error.kind))] = {
        {"fitted", {{"before", json_of(error.before)}, {"after", json_of(error.after)}}},
        {"held_out", {{"before", json_of(error.held_before)}, {"after", json_of(error.held_after)}}}};
  }
  json["serving"] = Json::object();
  for (std::size_t i = 0; i < fit_.keys.size(); ++i) {
    const SearchResult::Number& number = fit_.result.numbers[i];
    if (!fitted(i) || fit_.keys[i]->time == nullptr) continue;
    json["serving"][std::string(fit_.keys[i]->name)] = {
        {"value", number.value}, {"low", rounded(number.low)}, {"high", rounded(number.high)}};
  }
  json["kept"] = Json::object();
  for (const auto& [name, why] : kept_) json["kept"][name] = why;
  json["notes"] = notes_;
  return json;
}

std::pair<FitKeys, std::vector<double>> Result::fitted_numbers() const {
  std::pair<FitKeys, std::vector<double>> numbers;
  for (std::size_t i = 0; i < fit_.keys.size(); ++i) {
    if (!fitted(i)) continue;
    numbers.first.push_back(fit_.keys[i]);
    numbers.second.push_back(fit_.result.numbers[i].value);
  }
  return numbers;
}

// A fraction of a raised peak that was not fitted stays what it was in FLOP/s or bytes/s.
void Result::keep_products(const RaisedPeak& peak, const FitKeys& fitted, const HardwareSpec& base,
                           HardwareSpec& hardware, Json& file) const {
  for (const FitKey& key : fit_keys()) {
    if (key.of_peaks.empty() || key.of_peaks.front() != peak.figure) continue;
    if (std::ranges::find(fitted, &key) != fitted.end()) continue;
    double& fraction = hardware.*key.figures.front().second;
    fraction = base.*key.figures.front().second * peak.base / peak.value;
    file["numbers"][std::string(key.name)] = {
        {"value", rounded(fraction)},
        {"unit", key.unit},
        {"source", "the base's, of " + std::string(peak.name) + " before it was raised"},
        {"date", terms_.date}};
  }
}

std::string Result::hardware() const {
  const Experiment& e = first();
  const bool from_file = !e.text("hardware.file").empty();
  Json file = Json::parse(from_file ? read_text_file(e.path("hardware.file"), "give a hardware description (JSON)")
                                    : std::string(hardware_preset_text(e.text("hardware.name"))));
  const HardwareSpec base = hardware_of(e);
  HardwareSpec fitted_hardware = base;
  const auto [keys, values] = fitted_numbers();
  set_numbers(keys, values, fitted_hardware);
  for (const RaisedPeak& peak : peaks_) {
    fitted_hardware.*peak.figure = peak.value;
    file["numbers"][std::string(peak.name)] = {
        {"value", rounded(peak.value / kGiga)},
        {"unit", giga_unit(peak)},
        {"source", "raised by kvtwin calibrate, so that fractions of it are at most 1"},
        {"date", terms_.date}};
    keep_products(peak, keys, base, fitted_hardware, file);
  }
  file["description"] = base.description + "; fitted to a capture of a server (" + formats() + ")";
  const std::string source =
      "fitted: kvtwin calibrate, simulations of " + std::to_string(requests()) + " requests (" + formats() + ")";
  for (std::size_t i = 0; i < fit_.keys.size(); ++i) {
    const FitKey& key = *fit_.keys[i];
    if (!fitted(i) || key.time != nullptr) continue;
    const SearchResult::Number& number = fit_.result.numbers[i];
    for (const auto& [name, figure] : key.figures) {
      if (name != key.name && base.*figure == 0) continue;
      Json& entry = file["numbers"][std::string(name)];
      if (name == key.name) {
        entry = {{"value", number.value},
                 {"unit", key.unit},
                 {"low", std::min(rounded(number.low), number.value)},  // `value` has four digits
                 {"high", std::max(rounded(number.high), number.value)},
                 {"source", source}};
      } else {
        entry = {{"value", rounded(fitted_hardware.*figure / key.factor)},
                 {"unit", key.unit},
                 {"source", "moves with " + std::string(key.name) + "; " + source}};
      }
      entry["date"] = terms_.date;
    }
  }
  file["capture"] = capture_json();
  const std::string text = file.dump(2, Json::BadBytes::replace) + "\n";
  static_cast<void>(parse_hardware(text, "the fitted hardware file"));
  return text;
}

std::string Result::experiment() const {
  Experiment fitted_experiment = first();
  const fs::path out = fs::absolute(terms_.out).lexically_normal();
  // A file has no table of its own, and the times were fitted beside that of the preset.
  const std::string& operators = first().text("hardware.operators");
  if (!operators.empty()) fitted_experiment.set("hardware.operators=" + operators, "kvtwin calibrate");
  fitted_experiment.set("hardware.file=" + (out / "hardware.json").string(), "kvtwin calibrate");
  if (captures_.front().workload) {
    fitted_experiment.set("workload.trace=" + (out / kCaptureWorkloadName).string(), "kvtwin calibrate");
  }
  const auto [keys, values] = fitted_numbers();
  set_numbers(keys, values, fitted_experiment);
  return fitted_experiment.resolved();
}

}  // namespace

CaptureFit fit_capture(const CaptureFitTerms& terms, const Listener& listener) {
  std::vector<Capture> captures;
  std::vector<std::string> paths;
  std::size_t requests = 0;
  for (const CaptureArguments& arguments : terms.captures) {
    captures.push_back(read_capture(arguments));
    paths.push_back(arguments.path);
    requests += captures.back().requests.size();
  }
  if (requests < kMinRequests) {
    throw InputError("--from " + paths.front() + (paths.size() == 1 ? ": has" : " and the others: have") +
                     " the times of " + std::to_string(requests) + " requests; a fit needs " +
                     std::to_string(kMinRequests) + " or more");
  }
  check_same_server(captures, paths);
  const ChosenKeys chosen = choose_keys(terms.fit, captures);
  refuse_overrides(captures.front().experiment, chosen.keys);
  std::vector<std::string> halved(captures.size());
  std::vector<FitCase> cases;
  for (std::size_t c = 0; c < captures.size(); ++c) {
    const std::string& name = captures.size() == 1 ? captures[c].format : terms.captures[c].path;
    cases.push_back(case_of_capture(captures[c], name, c, halved[c]));
  }
  const std::size_t limit =
      terms.max_simulations != 0 ? terms.max_simulations : kSimulationsPerCapture * captures.size();
  const SimulatedFit fit = fit_by_simulation(cases, {chosen.keys, limit, terms.jobs, kRunNoise}, listener);
  const Result result(terms, captures, chosen, halved, cases, fit);
  const std::unique_ptr<WorkloadFile>& workload = captures.front().workload;
  return {result.text(), result.hardware(), result.experiment(), workload ? workload->lines() : std::string()};
}

}  // namespace kvtwin

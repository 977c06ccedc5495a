#include "lab/calibrate/calibrate_capture.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "lab/run/serve.hpp"
#include "models/json.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"
#include "policy/base/tiers.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMinRequests = 16;
constexpr double kLargeError = 0.3;        // of the held-out times: the fit does not explain the capture
constexpr double kLargeHitDifference = 2;  // points of the prompt tokens
constexpr double kManyLookUps = 0.02;      // of the requests: those that look storage up again
// Behind the times: prompt tokens, hits on device, host and storage; requests, and those that looked storage up again.
constexpr std::size_t kHitFigures = 6;

// ---- which numbers -------------------------------------------------------------------------------------

// Returns whether a simulation of the experiment uses the number.
bool is_used(const FitKey& key, const Experiment& experiment, const Setup& setup) {
  if (key.time != nullptr) return experiment.text("serving.engine") != "none";
  if (key.name == "pass_overhead") return experiment.text("serving.engine") == "none";
  if (key.tier == Tier::host) return setup.engine.host_pages > 0;
  if (!key.tier) return true;
  const bool has =
      std::ranges::any_of(setup.engine.storage, [&](const StorageTierConfig& tier) { return tier.tier == *key.tier; });
  if (key.tier == Tier::disk) return has && key.name.starts_with("file_") == setup.hardware.file_a_page;
  return has;
}

struct Chosen {
  FitKeys keys;
  std::vector<std::pair<std::string, std::string>> without_hits;  // name, reason
};

Chosen choose_keys(const CaptureFitTerms& terms, const Capture& capture, const Setup& setup) {
  FitKeys wanted;
  for (const std::string& name : terms.fit) wanted.push_back(&fit_key(name));
  if (wanted.empty()) {
    for (const FitKey& key : fit_keys()) {
      if (!key.only_if_named && is_used(key, capture.experiment, setup)) wanted.push_back(&key);
    }
  }
  Chosen chosen;
  for (const FitKey* key : wanted) {
    if (!is_used(*key, capture.experiment, setup)) {
      throw InputError(
          "--fit " + std::string(key->name) + ": the experiment does not use it" +
          (key->time != nullptr ? "; set serving.engine" : "; it has no such tier, or serving.engine is set"));
    }
    const bool knows_hits = capture.hits && capture.hits->by_tier;
    if (knows_hits && is_of_storage(*key) && capture.hits->storage == 0) {
      chosen.without_hits.emplace_back(key->name, "the capture has no hits in storage");
    } else if (knows_hits && key->tier == Tier::host && capture.hits->host + capture.hits->storage == 0) {
      chosen.without_hits.emplace_back(key->name, "the capture has no hits on the host");
    } else {
      chosen.keys.push_back(key);
    }
  }
  return chosen;
}

// The keys hardware.* apply after the hardware file, so they would hide its fitted numbers.
void refuse_overrides(const Experiment& experiment) {
  for (const ExperimentKey& key : experiment_keys()) {
    if (key.name != kHardwareSetKey && key.name != "hardware.draw" && key.name != "hardware.end") continue;
    if (experiment.value(key.name) == key.fallback) continue;
    throw InputError(experiment.where(key.name) +
                     ": hides a number that is fitted; leave it out, or put it into a hardware "
                     "file (hardware.file)");
  }
}

// ---- the simulation ------------------------------------------------------------------------------------

// The requests that end, by number.
class Ended final : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind == EventKind::finished) records_[event.record->request] = *event.record;
    if (event.kind == EventKind::prefetch_issued && ++look_ups_[event.request] == 2) ++again_;
  }
  const RequestRecord* find(std::uint64_t number) const {
    const auto at = records_.find(number);
    return at == records_.end() ? nullptr : &at->second;
  }
  std::array<double, kHitFigures> hits() const {
    std::array<double, kHitFigures> sums{};
    for (const auto& [number, record] : records_) {
      sums[0] += static_cast<double>(record.prompt_tokens);
      for (const TierSpec& spec : kTierSpecs) {
        const std::size_t at = spec.tier == Tier::device ? 1 : spec.tier == Tier::host ? 2 : 3;
        sums[at] += static_cast<double>(record.hit[spec.tier]);
      }
    }
    sums[4] = static_cast<double>(records_.size());
    sums[5] = static_cast<double>(again_);
    return sums;
  }

 private:
  std::map<std::uint64_t, RequestRecord> records_;
  std::map<std::uint64_t, std::uint64_t> look_ups_;  // by request
  std::uint64_t again_ = 0;
};

double seconds(TimeNs ns) { return static_cast<double>(ns) / 1e9; }

double predicted_time(const RequestRecord& record, FigureOfRequest kind) {
  switch (kind) {
    case FigureOfRequest::ttft: return seconds(record.first_token - record.arrival);
    case FigureOfRequest::tpot:
      if (record.output_tokens < 2) return 0;
      return seconds(record.finished - record.first_token) / static_cast<double>(record.output_tokens - 1);
    case FigureOfRequest::e2e: return seconds(record.finished - record.arrival);
  }
  return 0;
}

// Gives the k-th smallest prediction to the figure with the k-th smallest measured time, for each kind and half.
void match_by_rank(const std::vector<FittedFigure>& figures, std::vector<double>& predicted) {
  std::map<std::pair<FigureOfRequest, bool>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < figures.size(); ++i) groups[{figures[i].kind, figures[i].held_out}].push_back(i);
  for (auto& [group, members] : groups) {
    std::vector<double> values;
    for (const std::size_t i : members) values.push_back(predicted[i]);
    std::ranges::sort(values);
    std::ranges::stable_sort(members, {}, [&](std::size_t i) { return figures[i].measured; });
    for (std::size_t i = 0; i < members.size(); ++i) predicted[members[i]] = values[i];
  }
}

// Returns whether a conversation is held out: a fixed half of all numbers (splitmix64).
bool is_held_out(std::uint64_t conversation) {
  std::uint64_t x = conversation + 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return ((x ^ (x >> 31)) & 1U) != 0;
}

// Holds out half of the conversations; if that leaves a quarter of the requests or less to one half, half of the
// requests. Returns what was halved.
std::string hold_out_half(Capture& capture, std::vector<bool>& held_out) {
  for (const bool by_conversation : {true, false}) {
    held_out.clear();
    for (const CapturedRequest& request : capture.requests) {
      held_out.push_back(is_held_out(by_conversation ? request.conversation : request.number));
    }
    const auto count = static_cast<std::size_t>(std::ranges::count(held_out, true));
    const std::size_t less = std::min(count, held_out.size() - count);
    if (less * 4 > held_out.size()) return by_conversation ? "conversation" : "request";
  }
  return "request";
}

FitCase case_of(Capture& capture, std::string& halved) {
  FitCase one{capture.format, capture.experiment, {}, {}};
  std::vector<bool> held_out;
  halved = hold_out_half(capture, held_out);
  std::vector<std::uint64_t> numbers;  // of the request of each figure
  for (std::size_t i = 0; i < capture.requests.size(); ++i) {
    const CapturedRequest& request = capture.requests[i];
    const auto add = [&](FigureOfRequest kind, double measured) {
      if (!(measured > 0)) return;
      one.figures.push_back({kind, measured, held_out[i]});
      numbers.push_back(request.number);
    };
    add(FigureOfRequest::ttft, request.ttft_s);
    add(FigureOfRequest::tpot, request.tpot_s);
    add(FigureOfRequest::e2e, request.e2e_s);
  }
  one.simulate = [figures = one.figures, numbers = std::move(numbers), by_rank = capture.by_rank](
                     const Experiment& experiment, const Setup& setup) {
    const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
    ServeTerms terms;
    terms.world = experiment.text("sim.world").c_str();
    terms.device = "model";
    terms.dram_bytes_per_second = static_cast<std::uint64_t>(setup.hardware.dram_bandwidth);
    Ended ended;
    terms.rows = &ended;
    serve(experiment, setup, *world, {}, terms, {});
    std::vector<double> predicted;
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const RequestRecord* record = ended.find(numbers[i]);
      predicted.push_back(record == nullptr ? 0 : predicted_time(*record, figures[i].kind));
    }
    if (by_rank) match_by_rank(figures, predicted);
    for (const double hits : ended.hits()) predicted.push_back(hits);
    return predicted;
  };
  return one;
}

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
  const std::vector<double>& simulated = fit.after.front();
  const double requests = simulated[simulated.size() - 2], again = simulated.back();
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

std::vector<std::string> notes_of(const Capture& capture, const SimulatedFit& fit,
                                  const std::vector<HalfErrors>& errors) {
  std::vector<std::string> notes;
  if (capture.by_rank) {
    notes.emplace_back(
        "the client drew the arrivals, and the file does not have them: the times are compared in the order of their "
        "size, not request by request");
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
  if (capture.hits) {
    const HitShares simulated = shares_of(fit.after.front());
    const double measured =
        100 * static_cast<double>(capture.hits->total) / static_cast<double>(capture.hits->prompt_tokens);
    if (std::abs(sum_of(simulated) - measured) > kLargeHitDifference) {
      notes.push_back(
          formatted("the simulated cache hits %.1f %% of the prompt tokens, and the server's %.1f %%: the "
                    "numbers make up for the difference, so correct the experiment first",
                    sum_of(simulated), measured));
    }
  }
  note_jumps(fit, notes);
  if (!fit.result.complete) notes.emplace_back("the limit of simulations ended the search; raise --simulations");
  notes.insert(notes.end(), capture.notes.begin(), capture.notes.end());
  return notes;
}

class Result {
 public:
  Result(const CaptureFitTerms& terms, const Capture& capture, const Chosen& chosen, const std::string& halved,
         const std::vector<FitCase>& cases, SimulatedFit fit)
      : terms_(terms), capture_(capture), halved_(halved), fit_(std::move(fit)), errors_(errors_of(cases, fit_)) {
    peaks_ = raise_peaks(hardware_of(capture.experiment), fit_);
    kept_ = chosen.without_hits;
    for (std::size_t i = 0; i < fit_.keys.size(); ++i) {
      const std::string why = why_kept(fit_.result.numbers[i]);
      if (!why.empty()) kept_.emplace_back(fit_.keys[i]->name, why);
    }
    notes_ = notes_of(capture, fit_, errors_);
  }

  std::string text() const;
  std::string hardware() const;
  std::string experiment() const;

 private:
  bool fitted(std::size_t i) const { return fit_.result.numbers[i].identified == Identified::yes; }
  std::pair<FitKeys, std::vector<double>> fitted_numbers() const;
  void keep_products(const RaisedPeak& peak, const FitKeys& fitted, const HardwareSpec& base, HardwareSpec& hardware,
                     Json& file) const;
  Json capture_json() const;

  const CaptureFitTerms& terms_;
  const Capture& capture_;
  const std::string& halved_;
  SimulatedFit fit_;
  std::vector<HalfErrors> errors_;
  std::vector<RaisedPeak> peaks_;
  std::vector<std::pair<std::string, std::string>> kept_;  // name, reason
  std::vector<std::string> notes_;
};

std::string Result::text() const {
  std::string text = "capture    " + terms_.capture.path + " (" + capture_.format + "), " +
                     std::to_string(capture_.requests.size()) + " requests with times; half of them is held out, by " +
                     halved_ + "\n";
  if (capture_.hits && capture_.hits->by_tier) {
    text += "hits, %    measured: " + hits_text(shares_of(*capture_.hits)) +
            "; simulated: " + hits_text(shares_of(fit_.after.front())) + "\n";
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
  Json json{{"file", terms_.capture.path}, {"format", capture_.format}, {"requests", capture_.requests.size()},
            {"held_out_by", halved_},      {"date", terms_.date},       {"kvtwin_version", terms_.version},
            {"git_commit", terms_.commit}, {"command", terms_.command}, {"simulations", fit_.simulations}};
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
  const Experiment& e = capture_.experiment;
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
  file["description"] = base.description + "; fitted to a capture of a server (" + capture_.format + ")";
  const std::string source = "fitted: kvtwin calibrate, simulations of " + std::to_string(capture_.requests.size()) +
                             " requests (" + capture_.format + ")";
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
  Experiment fitted_experiment = capture_.experiment;
  const fs::path out = fs::absolute(terms_.out).lexically_normal();
  // A file has no table of its own, and the times were fitted beside that of the preset.
  const std::string& operators = capture_.experiment.text("hardware.operators");
  if (!operators.empty()) fitted_experiment.set("hardware.operators=" + operators, "kvtwin calibrate");
  fitted_experiment.set("hardware.file=" + (out / "hardware.json").string(), "kvtwin calibrate");
  if (capture_.workload) {
    fitted_experiment.set("workload.trace=" + (out / kCaptureWorkloadName).string(), "kvtwin calibrate");
  }
  const auto [keys, values] = fitted_numbers();
  set_numbers(keys, values, fitted_experiment);
  return fitted_experiment.resolved();
}

}  // namespace

CaptureFit fit_capture(const CaptureFitTerms& terms, const Listener& listener) {
  Capture capture = read_capture(terms.capture);
  if (capture.requests.size() < kMinRequests) {
    throw InputError("--from " + terms.capture.path + ": has the times of " + std::to_string(capture.requests.size()) +
                     " requests; a fit needs " + std::to_string(kMinRequests) + " or more");
  }
  refuse_overrides(capture.experiment);
  const Chosen chosen = choose_keys(terms, capture, make_setup(capture.experiment));
  std::string halved;
  const std::vector<FitCase> cases{case_of(capture, halved)};
  const SimulatedFit fit = fit_by_simulation(cases, {chosen.keys, terms.max_simulations, terms.jobs}, listener);
  const Result result(terms, capture, chosen, halved, cases, fit);
  return {result.text(), result.hardware(), result.experiment(),
          capture.workload ? capture.workload->lines() : std::string()};
}

}  // namespace kvtwin

#include "lab/calibrate/simulated_fit.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <utility>

#include "lab/child_processes.hpp"
#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "models/calibration_fit.hpp"
#include "models/json.hpp"
#include "models/names.hpp"

namespace kvtwin {
namespace {

using H = HardwareSpec;
using S = ServingTimes;

constexpr double kGb = 1e9, kUs = 1e-6, kServingUs = 1e3;

// Of a peak of the base, which another machine may exceed by far.
FitKey fraction(std::string_view name, double H::*figure, std::vector<double H::*> peaks) {
  constexpr double kLeast = 0.002, kMost = 500;
  FitKey key{name, "fraction", 1, kLeast, kMost, 0, {{name, figure}}};
  key.of_peaks = std::move(peaks);
  return key;
}

std::vector<FitKey> all_keys() {
  return {
      fraction("gemm_fraction", &H::gemm_fraction, {&H::peak_bf16, &H::peak_fp8, &H::peak_fp4}),
      fraction("attention_fraction", &H::attention_fraction, {&H::peak_bf16, &H::peak_fp8, &H::peak_fp4}),
      {.name = "attention_query_tokens",
       .unit = "count",
       .least = 1,
       .most = 65536,
       .start = 64,
       .figures = {{"attention_query_tokens", &H::attention_query_tokens}},
       .only_if_named = true},
      fraction("memory_fraction", &H::memory_fraction, {&H::memory_bandwidth}),
      {"pass_overhead", "us", kUs, 1, 1e5, 0, {{"pass_overhead", &H::pass_overhead}}},
      {"host_to_device",
       "GB/s",
       kGb,
       0.01,
       1000,
       0,
       {{"host_to_device", &H::host_to_device},
        {"kernel_read", &H::kernel_read},
        {"kernel_block_rate", &H::kernel_block_rate},
        {"ring_rate", &H::ring_rate}},
       nullptr,
       Tier::host},
      {"drive_read_bandwidth",
       "GB/s",
       kGb,
       0.001,
       32,
       0,
       {{"drive_read_bandwidth", &H::drive_read_bandwidth}},
       nullptr,
       Tier::disk},
      {"drive_read_latency",
       "us",
       kUs,
       1,
       1e5,
       0,
       {{"drive_read_latency", &H::drive_read_latency}},
       nullptr,
       Tier::disk},
      {"file_read_bandwidth",
       "GB/s",
       kGb,
       0.001,
       32,
       0,
       {{"file_read_bandwidth", &H::file_read_bandwidth}},
       nullptr,
       Tier::disk},
      {"file_read_overhead",
       "us",
       kUs,
       1,
       1e6,
       0,
       {{"file_read_overhead", &H::file_read_overhead}},
       nullptr,
       Tier::disk},
      {"shared_fs_read_bandwidth",
       "GB/s",
       kGb,
       0.001,
       1e4,
       0,
       {{"shared_fs_read_bandwidth", &H::shared_fs_read_bandwidth}},
       nullptr,
       Tier::shared_fs},
      {"shared_fs_latency",
       "us",
       kUs,
       1,
       1e6,
       0,
       {{"shared_fs_latency", &H::shared_fs_latency}},
       nullptr,
       Tier::shared_fs},
      {"pool_bandwidth",
       "GB/s",
       kGb,
       0.001,
       1000,
       0,
       {{"pool_bandwidth", &H::pool_bandwidth}, {"nic_bandwidth", &H::nic_bandwidth}},
       nullptr,
       Tier::remote},
      {"pool_latency", "us", kUs, 1, 1e6, 0, {{"pool_latency", &H::pool_latency}}, nullptr, Tier::remote},
      {"serving.request_us", "us", kServingUs, 1, 1e6, 1000, {}, &S::request_ns},
      {"serving.token_ns", "ns", kServingUs, 0.1, 1e6, 10, {}, &S::token_ps},
      {"serving.schedule_us", "us", kServingUs, 1, 1e6, 100, {}, &S::schedule_ns},
      {"serving.step_us", "us", kServingUs, 1, 1e6, 100, {}, &S::step_ns},
      {"serving.sequence_us", "us", kServingUs, 0.01, 1e4, 1, {}, &S::sequence_ns},
      {"serving.kernel_us", "us", kServingUs, 0.01, 1e3, 1, {}, &S::kernel_ns},
      {"serving.launch_us", "us", kServingUs, 0.1, 1e4, 10, {}, &S::launch_ns},
  };
}

std::string exact(double value) { return formatted("%.17g", value); }

// Rounds to four digits, so that the files show what was simulated last.
double four_digits(double value) {
  const std::string text = formatted("%.4g", value);
  double rounded = 0;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return rounded;
}

class Simulations {
 public:
  Simulations(const std::vector<FitCase>& cases, const FitKeys& keys, int jobs)
      : cases_(cases), keys_(keys), at_once_(children_at_once(jobs)) {
    const bool machine = std::ranges::any_of(keys, [](const FitKey* key) { return key->time == nullptr; });
    for (const FitCase& one : cases) {
      hardware_.push_back(machine ? std::optional(hardware_of(one.experiment)) : std::nullopt);
    }
  }

  // Returns what the cases in `which` return at each point, by point and then by case. Each point has a value per key;
  // an empty point is the base.
  std::vector<std::vector<std::vector<double>>> run(const std::vector<SearchPoint>& points,
                                                    const std::vector<std::size_t>& which) {
    std::vector<std::vector<std::vector<double>>> all(points.size(), std::vector<std::vector<double>>(which.size()));
    const std::size_t count = points.size() * which.size();
    const auto simulate_one = [&](std::size_t job) {
      return simulated(which[job % which.size()], points[job / which.size()]);
    };
    run_children(count, at_once_, simulate_one, [&](const ChildEnd& end) {
      const std::size_t number = which[end.number % which.size()];
      if (end.failure.code == 2) throw InputError(cases_[number].name + ": " + end.failure.sentence);
      if (end.failure.code != 0) throw WorkError(cases_[number].name + ": " + end.failure.sentence);
      all[end.number / which.size()][end.number % which.size()] = numbers_in(end.text);
    });
    simulations_ += count;
    return all;
  }
  std::size_t simulations() const { return simulations_; }

 private:
  std::string simulated(std::size_t number, const SearchPoint& point) const {
    const FitCase& one = cases_[number];
    Experiment experiment = one.experiment;
    std::optional<HardwareSpec> hardware = hardware_[number];
    if (!point.empty()) {
      set_numbers(keys_, point, experiment);
      if (hardware) set_numbers(keys_, point, *hardware);
    }
    const Setup setup = make_setup(experiment, hardware ? &*hardware : nullptr);
    std::string text;
    for (const double figure : one.simulate(experiment, setup)) text += exact(figure) + "\n";
    return text;
  }

  const std::vector<FitCase>& cases_;
  const FitKeys& keys_;
  std::size_t at_once_;
  std::vector<std::optional<HardwareSpec>> hardware_;  // only if a key is of the machine
  std::size_t simulations_ = 0;
};

double base_of(const FitKey& key, const Setup& setup, const std::optional<HardwareSpec>& hardware) {
  const double value =
      key.time != nullptr ? static_cast<double>(setup.serving.*key.time) : (*hardware).*key.figures.front().second;
  return value / key.factor;
}

// How far predictions are from the figures. A prediction that is missing is far.
double distance(const Predictions& predicted, const std::vector<double>& measured) {
  constexpr double kFar = 30;
  double sum = 0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const double p = predicted[i], m = measured[i];
    sum += p > 0 ? std::min(kFar, std::abs(p - m) / std::sqrt(p * m)) : kFar;
  }
  return sum;
}

// Returns the task with a start near the figures: the best of some factors on all rates of passes. The base may be of a
// machine that is many times as fast or slow, and then the queue hides all but the largest times.
SearchTask started_near(const FitKeys& keys, SearchTask task) {
  constexpr double kFactors[] = {1, 1.0 / 16, 1.0 / 4, 4, 16, 64, 256};  // the base stays if others are no better
  std::vector<SearchPoint> points;
  for (const double factor : kFactors) {
    SearchPoint& point = points.emplace_back();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const SearchedNumber& number = task.numbers[i];
      const bool rate = !keys[i]->of_peaks.empty();
      point.push_back(rate ? std::clamp(number.start * factor, number.least, number.most) : number.start);
    }
  }
  const std::vector<Predictions> found = task.predict(points);
  std::size_t best = 0;
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (distance(found[i], task.measured) < distance(found[best], task.measured)) best = i;
  }
  for (std::size_t i = 0; i < keys.size(); ++i) task.numbers[i].start = points[best][i];
  return task;
}

SearchPoint end_of(const SearchResult& result) {
  SearchPoint end;
  for (const SearchResult::Number& number : result.numbers) end.push_back(number.value);
  return end;
}

// Searches from the base and, if that is far from the figures, from a start near them. Returns the better end.
SearchResult search(const FitKeys& keys, SearchTask task) {
  const bool of_rates = std::ranges::any_of(keys, [](const FitKey* key) { return !key->of_peaks.empty(); });
  if (task.measured.empty() || !of_rates) return search_numbers(task);
  SearchTask near = started_near(keys, task);
  const auto same = [](const SearchedNumber& a, const SearchedNumber& b) { return a.start == b.start; };
  if (std::ranges::equal(near.numbers, task.numbers, same)) return search_numbers(task);
  near.max_points = task.max_points /= 2;
  SearchResult from_base = search_numbers(task), from_near = search_numbers(near);
  const std::vector<Predictions> ends = task.predict({end_of(from_base), end_of(from_near)});
  return distance(ends[1], task.measured) < distance(ends[0], task.measured) ? from_near : from_base;
}

}  // namespace

std::vector<double> numbers_in(const std::string& text) {
  std::vector<double> numbers;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    double value = 0;
    at = std::from_chars(at, text.data() + text.size(), value).ptr + 1;  // past the line break
    numbers.push_back(value);
  }
  return numbers;
}

std::span<const FitKey> fit_keys() {
  static const std::vector<FitKey> all = all_keys();
  return all;
}

const FitKey& fit_key(std::string_view name) {
  const auto at = std::ranges::find(fit_keys(), name, &FitKey::name);
  if (at != fit_keys().end()) return *at;
  std::vector<std::string> names;
  for (const FitKey& key : fit_keys()) names.emplace_back(key.name);
  throw InputError("--fit: " + unknown_name("number", name, names));
}

void set_numbers(const FitKeys& keys, const std::vector<double>& values, HardwareSpec& hardware) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i]->time != nullptr) continue;
    double& first = hardware.*keys[i]->figures.front().second;
    const double before = std::exchange(first, values[i] * keys[i]->factor);
    for (const auto& [name, figure] : keys[i]->figures) {
      if (name != keys[i]->name && before > 0) hardware.*figure *= first / before;
    }
  }
}

void set_numbers(const FitKeys& keys, const std::vector<double>& values, Experiment& experiment) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i]->time == nullptr) continue;
    experiment.set(std::string(keys[i]->name) + "=" + exact(values[i]), "kvtwin calibrate");
  }
}

std::vector<RaisedPeak> raise_peaks(const HardwareSpec& base, SimulatedFit& fit) {
  std::vector<RaisedPeak> raised;
  for (std::size_t i = 0; i < fit.keys.size(); ++i) {
    const std::vector<double H::*>& peaks = fit.keys[i]->of_peaks;
    if (peaks.empty()) continue;
    double most = 1;
    const auto each = [&](const auto& visit) {
      for (std::size_t j = 0; j < fit.keys.size(); ++j) {
        if (fit.keys[j]->of_peaks == peaks && fit.result.numbers[j].identified == Identified::yes) {
          visit(fit.result.numbers[j]);
        }
      }
    };
    each([&](const SearchResult::Number& number) { most = std::max(most, number.value); });
    if (most == 1) continue;
    each([&](SearchResult::Number& number) {
      number.value = four_digits(number.value / most);
      number.low /= most;
      number.high = std::max(number.value, std::min(1.0, number.high / most));
    });
    // A fraction of the same peaks that keeps its base is one of a higher peak now.
    for (double H::*const peak : peaks) {
      const auto field = std::ranges::find(hardware_fields(), peak, &HardwareField::member);
      if (base.*peak > 0) raised.push_back({field->key, peak, base.*peak, base.*peak * most});
    }
  }
  return raised;
}

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

bool is_of_storage(const FitKey& key) { return key.tier && *key.tier != Tier::host; }

SimulatedFit fit_by_simulation(const std::vector<FitCase>& cases, const FitTerms& terms, const Listener& listener) {
  SimulatedFit fit;
  fit.keys = terms.keys;
  Simulations simulations(cases, fit.keys, terms.jobs);
  std::vector<std::size_t> all, fitted;
  SearchTask task;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    all.push_back(c);
    bool any = false;
    for (const FittedFigure& figure : cases[c].figures) {
      if (figure.held_out) continue;
      any = true;
      task.measured.push_back(figure.measured);
      task.kind.push_back(cases[c].scale_group * kFiguresOfRequest + static_cast<std::size_t>(figure.kind));
    }
    if (any) fitted.push_back(c);
  }
  const FitCase& first = cases[fitted.empty() ? 0 : fitted.front()];
  const HardwareSpec hardware = hardware_of(first.experiment);
  const Setup setup = make_setup(first.experiment);
  for (const FitKey* key : fit.keys) {
    const double base = base_of(*key, setup, hardware);
    fit.base.push_back(base);
    task.numbers.push_back({base, std::clamp(base > 0 ? base : key->start, key->least, key->most), key->least,
                            key->most, is_of_storage(*key)});
  }
  task.common_error = terms.common_error;
  task.max_points = terms.max_simulations / std::max<std::size_t>(1, fitted.size());
  listener.begin("searches with at most " + std::to_string(terms.max_simulations) + " simulations");
  const auto begin = std::chrono::steady_clock::now();
  task.predict = [&](const std::vector<SearchPoint>& points) {
    if (listener.cells && simulations.simulations() != 0) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      listener.cells({simulations.simulations(), terms.max_simulations, spent.count(), "simulations at most"});
    }
    std::vector<Predictions> predictions;
    for (const std::vector<std::vector<double>>& of_cases : simulations.run(points, fitted)) {
      Predictions& one = predictions.emplace_back();
      for (std::size_t i = 0; i < fitted.size(); ++i) {
        const std::vector<FittedFigure>& figures = cases[fitted[i]].figures;
        for (std::size_t f = 0; f < figures.size(); ++f) {
          if (!figures[f].held_out) one.push_back(of_cases[i][f]);
        }
      }
    }
    return predictions;
  };
  fit.before = simulations.run({SearchPoint{}}, all).front();
  fit.result = search(fit.keys, task);
  SearchPoint end;
  for (SearchResult::Number& number : fit.result.numbers) {
    if (number.identified == Identified::yes) number.value = four_digits(number.value);
    end.push_back(number.value);
  }
  fit.after = simulations.run({end}, all).front();
  fit.simulations = simulations.simulations();
  return fit;
}

FitError fit_error(const std::vector<FitCase>& cases, const std::vector<std::vector<double>>& predicted,
                   const std::function<bool(std::size_t number, const FittedFigure& figure)>& takes) {
  FitError error;
  std::vector<double> sizes;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    for (std::size_t f = 0; f < cases[c].figures.size(); ++f) {
      const FittedFigure& figure = cases[c].figures[f];
      if (!takes(c, figure)) continue;
      const double off = predicted[c][f] / figure.measured - 1;
      error.bias += off;
      error.mean += std::abs(off);
      sizes.push_back(std::abs(off));
    }
  }
  error.figures = sizes.size();
  if (sizes.empty()) return error;
  std::ranges::sort(sizes);
  error.median = quantile_of(sizes, 0.5);
  error.mean /= static_cast<double>(sizes.size());
  error.bias /= static_cast<double>(sizes.size());
  return error;
}

Json json_of(const FitError& error) {
  return {{"figures", error.figures},
          {"mean_abs_error", four_digits(error.mean)},
          {"median_abs_error", four_digits(error.median)},
          {"bias", four_digits(error.bias)}};
}

std::string why_kept(const SearchResult::Number& number) {
  switch (number.identified) {
    case Identified::yes: return "";
    case Identified::no_figures: return "no figure was measured";
    case Identified::no_effect:
      return formatted(
          "moved up and down by 30 %% within its range, it moves the predictions of the fitted figures by %.2g %%, too "
          "little for a fit",
          100 * number.effect);
    case Identified::uncertain:
      return formatted(
          "the fitted figures leave it uncertain by a factor of %.2g (95 %%), and by %.2g if the other numbers were "
          "known",
          number.spread, number.spread_alone);
  }
  return "";
}

}  // namespace kvtwin

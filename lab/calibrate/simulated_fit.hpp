// Fits figures of a machine and times of a serving engine to measured figures of served requests, by simulating the
// served requests. The search is models/fit_search.hpp; each simulation is a child process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/listener.hpp"
#include "models/fit_search.hpp"
#include "models/json.hpp"

namespace kvtwin {

// A number that a fit may change: figures of a hardware file, or a time of the serving engine.
struct FitKey {
  std::string_view name;  // of the hardware file ("gemm_fraction"), or of the experiment ("serving.step_us")
  std::string_view unit;
  double factor = 1;           // the value of one unit, in units of HardwareSpec or of ServingTimes
  double least = 0, most = 0;  // range, in `unit`
  double start = 0;            // in `unit`: where the search begins if the base is 0
  // The first figure is that of `name`. The others move by the same ratio.
  std::vector<std::pair<std::string_view, double HardwareSpec::*>> figures{};
  std::uint64_t ServingTimes::*time = nullptr;
  std::optional<Tier> tier{};  // the number is the time of loads from this tier
  // A fraction is one of these figures. It may be above 1 in a fit: the machine is faster than the base
  // (raise_peaks()).
  std::vector<double HardwareSpec::*> of_peaks{};
  bool only_if_named = false;  // in --fit: few captures determine the number
};
// Returns whether the number is a time of loads from storage. Requests look storage up again when the pages above have
// gone, so the figures may jump with such a number.
bool is_of_storage(const FitKey& key);
using FitKeys = std::vector<const FitKey*>;
// Returns whether a simulation of the experiment uses the number.
bool is_used(const FitKey& key, const Experiment& experiment, const Setup& setup);
// Returns all keys, those of the machine first.
std::span<const FitKey> fit_keys();
// Returns the key of this name. Errors: InputError with the nearest name.
const FitKey& fit_key(std::string_view name);

enum class FigureOfRequest : std::uint8_t { ttft, tpot, e2e };
constexpr std::string_view name_of(FigureOfRequest kind) {
  switch (kind) {
    case FigureOfRequest::ttft: return "TTFT";
    case FigureOfRequest::tpot: return "TPOT";
    case FigureOfRequest::e2e: return "end to end";
  }
  return "";
}
inline constexpr std::size_t kFiguresOfRequest = 3;

struct FittedFigure {
  FigureOfRequest kind = FigureOfRequest::ttft;
  double measured = 0;    // s; requires: above 0
  bool held_out = false;  // not fitted; only its error is reported
};

// One simulation of measured requests.
struct FitCase {
  std::string name;  // for error texts
  Experiment experiment;
  std::vector<FittedFigure> figures;
  // Figures of one kind and one group have one scale of their residuals: runs of other workloads have other scatter.
  std::size_t scale_group = 0;
  // Simulates, and returns the prediction of each figure (0 = none), and then any further figures. Runs in a child.
  std::function<std::vector<double>(const Experiment& experiment, const Setup& setup)> simulate;
};

struct FitTerms {
  FitKeys keys;
  std::size_t max_simulations = 600;
  int jobs = 0;             // simulations at the same time; 0 = one per core
  double common_error = 0;  // SearchTask::common_error: of the figures of one kind in one scale group
};

struct SimulatedFit {
  FitKeys keys;
  std::vector<double> base;  // in the keys' units
  SearchResult result;       // numbers in the order of `keys`, in their units
  std::size_t simulations = 0;
  std::vector<std::vector<double>> before, after;  // what `simulate` returned for each case at the base, and at the end
};

// Returns the numbers of a text with one on each line, as child processes write them.
std::vector<double> numbers_in(const std::string& text);

// A case whose figures are all held out is simulated twice, at the base and at the end.
// Requires: the base of a number is that of the first case with a fitted figure. Errors: InputError or WorkError with
// the name of the case whose simulation fails.
SimulatedFit fit_by_simulation(const std::vector<FitCase>& cases, const FitTerms& terms, const Listener& listener);

// A figure of the machine that a fit has raised.
struct RaisedPeak {
  std::string_view name;
  double HardwareSpec::*figure;
  double base = 0, value = 0;  // in units of HardwareSpec
};
// Divides fractions of the same peaks, and their intervals, so that the largest is at most 1, and returns what the
// peaks are then. Requires: `base` is the machine that the fit began with.
std::vector<RaisedPeak> raise_peaks(const HardwareSpec& base, SimulatedFit& fit);

// Sets the numbers in a machine, and in an experiment.
void set_numbers(const FitKeys& keys, const std::vector<double>& values, HardwareSpec& hardware);
void set_numbers(const FitKeys& keys, const std::vector<double>& values, Experiment& experiment);

// The errors |predicted / measured - 1| of the figures of one kind.
struct FitError {
  std::size_t figures = 0;
  double mean = 0, median = 0;
  double bias = 0;  // mean of predicted / measured - 1
};
// `takes`: chooses the figures by case and figure. Figures without a prediction count as an error of 1.
FitError fit_error(const std::vector<FitCase>& cases, const std::vector<std::vector<double>>& predicted,
                   const std::function<bool(std::size_t number, const FittedFigure& figure)>& takes);

Json json_of(const FitError& error);

// Returns the reason why a number keeps its base; empty if it is identified.
std::string why_kept(const SearchResult::Number& number);

}  // namespace kvtwin

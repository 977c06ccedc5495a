#include "lab/validate/validate_notes.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "lab/formatted.hpp"
#include "models/json.hpp"
#include "models/presets.hpp"
#include "traces/passed_over.hpp"

namespace kvtwin {
namespace {

constexpr double kMaxTtftSpread = 0.1;     // spread of the mean TTFTs of a configuration's runs
constexpr double kLikeMilliseconds = 200;  // measured / predicted, of times that were given in the wrong unit

std::optional<MeasuredMachine> machine_of(const ValidationCell& cell) {
  for (const RunFigures& run : cell.measured) {
    if (run.machine) return run.machine;
  }
  return std::nullopt;
}

// Returns whether the "measured" runs are simulations, which have no machine.
bool is_simulated(const ValidationCell& cell) {
  return std::ranges::all_of(cell.measured, [](const RunFigures& run) { return run.simulated; });
}

// Returns the group of fitted figures that set the time of a lane.
std::string_view group_of(std::string_view lane) {
  if (lane == "compute") return "forward";
  if (lane == "h2d" || lane == "d2h") return "copies";
  for (const TierSpec& spec : kStorageSpecs) {
    if (lane == spec_of(spec.read).name || lane == spec_of(spec.write).name) return spec.name;
  }
  return spec_of(Tier::disk).name;  // the direct lanes are fitted with the disk
}

std::string disagreeing_repeats(const std::vector<ValidatedCell>& cells) {
  std::size_t several = 0, disagree = 0;
  const ValidatedCell* worst = nullptr;
  double most = 0;
  for (const ValidatedCell& cell : cells) {
    const ComparedFigure* const ttft = cell.errors.figure("ttft_mean_s");
    if (ttft == nullptr || !ttft->spread) continue;
    ++several;
    if (*ttft->spread <= kMaxTtftSpread) continue;
    ++disagree;
    if (*ttft->spread <= most) continue;
    most = *ttft->spread;
    worst = &cell;
  }
  if (worst == nullptr) return "";
  return "Repeats disagree: the mean TTFTs of the runs spread by more than " +
         formatted("%.0f %%", 100 * kMaxTtftSpread) + " in " + std::to_string(disagree) + " of " +
         std::to_string(several) + " configurations (" + worst->cell.name + ": " + formatted("%.0f %%", 100 * most) +
         "), so errors below twice the spread say nothing; measure on an idle machine, or more often";
}

std::vector<std::string> incomplete_comparisons(const std::vector<ValidatedCell>& cells) {
  LeftOut left_out;
  for (const ValidatedCell& cell : cells) {
    for (const std::string& reason : {cell.errors.why_not, cell.errors.other_load}) {
      if (!reason.empty()) left_out.add(reason, cell.cell.name);
    }
  }
  return left_out.sentences(cells.size(), "configurations");
}

// Tables are in seconds, and benchmarks print milliseconds: times that are all so much longer than predicted are named.
std::vector<std::string> times_in_milliseconds(const std::vector<ValidatedCell>& cells) {
  LeftOut named;
  for (const ValidatedCell& cell : cells) {
    if (cell.cell.source.empty()) continue;
    std::size_t times = 0, longer = 0;
    for (const ComparedFigure& figure : cell.errors.figures) {
      if (!figure.kind->name.ends_with("_s") || !(figure.predicted > 0)) continue;
      ++times;
      if (figure.measured > kLikeMilliseconds * figure.predicted) ++longer;
    }
    if (times != 0 && longer == times) {
      named.add("each measured time is more than " + formatted("%.0f", kLikeMilliseconds) +
                    " times the predicted: a table is in seconds, and these look like milliseconds",
                cell.cell.name);
    }
  }
  return named.sentences(cells.size(), "configurations");
}

// Notes about one hardware, over all cells of its predictions. Each note is added once.
class HardwareNotes {
 public:
  HardwareNotes(const PredictedBy& by, std::vector<std::string>& notes) : by_(by), notes_(notes) {}

  void add(const ValidatedCell& cell) {
    if (is_simulated(cell.cell)) return;
    const std::optional<MeasuredMachine> machine = machine_of(cell.cell);
    if (!by_.calibration) return say("figures", never_calibrated(machine));
    const CalibrationFacts& facts = *by_.calibration;
    if (facts.machine && machine && !facts.machine->same_as(*machine)) {
      return say("machine", by_.hardware + ": was calibrated on another machine (" + facts.machine->text() +
                                ") than the one that is validated (" + machine->text() +
                                "); calibrate that one: kvtwin calibrate --out DIR");
    }
    for (const LaneError& lane : cell.errors.lanes) look_at(lane, cell.cell.name);
  }

 private:
  void say(const std::string& about, const std::string& sentence) {
    if (said_.insert(about).second) notes_.push_back(sentence);
  }

  std::string never_calibrated(const std::optional<MeasuredMachine>& machine) const {
    return by_.hardware + ": its figures were never calibrated on the machine that is validated" +
           (machine ? " (" + machine->text() + ")" : "") +
           ", so an error may be the figures' or the simulator's; kvtwin calibrate --out DIR measures them there, and "
           "--hardware DIR/hardware.json predicts with them";
  }

  void look_at(const LaneError& lane, const std::string& cell) {
    const CalibrationFacts& facts = *by_.calibration;
    const std::string group(group_of(lane.lane));
    const auto error = facts.errors_p90.find(group);
    if (error == facts.errors_p90.end()) {
      return say(group, by_.hardware + ": was calibrated without a measurement of " + group + ", which " + lane.lane +
                            " goes by, so those figures are still " + facts.base + "'s");
    }
    const double off = std::abs(lane.ratio - 1);
    if (!lane.off || off <= error->second) return;
    say(lane.lane, by_.hardware + ": the calibration no longer holds for " + lane.lane +
                       formatted(": predicted %.2f of the measured time a %s", lane.ratio, lane.unit) + " (" + cell +
                       formatted("), off by %.0f %%, and nine in ten of its own measurements came out within %.0f %%; "
                                 "calibrate again, with recorded runs like these (--from)",
                                 100 * off, 100 * error->second));
  }

  const PredictedBy& by_;
  std::vector<std::string>& notes_;
  std::set<std::string> said_;
};

}  // namespace

std::optional<CalibrationFacts> calibration_facts(std::string_view text) {
  const Json file = Json::parse_or_discard(text);
  if (!file.is_object() || !file.contains("calibration") || !file["calibration"].is_object()) return std::nullopt;
  const Json& calibration = file["calibration"];
  CalibrationFacts facts;
  facts.base = calibration.value("base", "the base");
  if (const Json machine = calibration.value("machine", Json()); machine.is_object()) {
    facts.machine = MeasuredMachine{machine.value("cpu", ""), machine.value("kernel", ""),
                                    machine.value("cores", std::uint64_t{0}), machine.value("device", "")};
  }
  const Json fits = calibration.value("fits", Json::object());
  for (const auto& [group, fit] : fits.items()) {
    if (fit.is_object() && fit.contains("error_p90")) facts.errors_p90[group] = fit.value("error_p90", 0.0);
  }
  return facts;
}

PredictedBy predicted_by(const Experiment& experiment) {
  if (experiment.text("hardware.file").empty())
    return {std::string(hardware_preset_name(experiment.text("hardware.name"))), std::nullopt};
  std::ifstream in(experiment.path("hardware.file"), std::ios::binary);
  return {experiment.path("hardware.file").string(),
          calibration_facts(std::string{std::istreambuf_iterator<char>(in), {}})};
}

std::vector<std::string> validation_notes(const std::vector<ValidatedCell>& cells, const std::vector<PredictedBy>& by,
                                          const std::optional<MeasuredMachine>& here) {
  std::vector<std::string> notes;
  const auto add = [&](std::string sentence) {
    if (!sentence.empty()) notes.push_back(std::move(sentence));
  };
  for (std::string& sentence : incomplete_comparisons(cells)) add(std::move(sentence));
  for (std::string& sentence : times_in_milliseconds(cells)) add(std::move(sentence));
  if (here) add(here->load_sentence());
  add(disagreeing_repeats(cells));
  std::map<std::string, HardwareNotes> hardware;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    hardware.try_emplace(by[i].hardware, by[i], notes).first->second.add(cells[i]);
  }
  return notes;
}

}  // namespace kvtwin

#include "lab/calibrate/moved_numbers.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "lab/child_processes.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/formatted.hpp"
#include "lab/report/figures.hpp"
#include "lab/run/serve.hpp"
#include "models/hardware_draws.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

constexpr double kLeastStep = 0.05, kMostStep = 0.3;
constexpr double kDeviationsOf95 = 1.96;

// The difference of two values as a residual, which is nearly the difference of their logarithms.
double log_ratio(double a, double b) { return (a - b) / std::sqrt(a * b); }

// Returns the intervals of an engine's times that `calibrate --from` wrote into a hardware file.
Json fitted_times(const Experiment& e) {
  if (e.text("hardware.file").empty()) return Json::object();
  const Json file =
      Json::parse_or_discard(read_text_file(e.path("hardware.file"), "give a hardware description (JSON)"));
  const Json* const times = file.is_object() ? file.find_path("/capture/serving") : nullptr;
  return times == nullptr ? Json::object() : *times;
}

class AnsweredRequests final : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind != EventKind::finished) return;
    const RequestRecord& record = *event.record;
    const auto seconds = [](TimeNs ns) { return static_cast<double>(ns) / 1e9; };
    const auto steps = static_cast<double>(record.output_tokens) - 1;
    times_[record.request] = {seconds(record.first_token - record.arrival),
                              steps > 0 ? seconds(record.finished - record.first_token) / steps : 0};
  }
  const std::map<std::uint64_t, RequestTimes>& times() const { return times_; }

 private:
  std::map<std::uint64_t, RequestTimes> times_;
};

}  // namespace

double UncertainFit::deviation() const { return log_ratio(high, low) / (2 * kDeviationsOf95); }

double UncertainFit::step() const { return 1 + std::clamp(deviation(), kLeastStep, kMostStep); }

std::vector<UncertainFit> uncertain_fits(const Experiment& e) {
  const Setup setup = make_setup(e);
  const HardwareSpec hardware = hardware_of(e);
  const double percent = e.number("hardware.spread_percent");
  const double spread = percent > 0 ? percent / 100 : kUnknownSpread;
  const std::vector<UncertainNumber> from_file = uncertain_numbers(hardware, 0);
  const Json times = fitted_times(e);
  std::vector<UncertainFit> numbers;
  for (const FitKey& key : fit_keys()) {
    if (key.only_if_named || !is_used(key, e, setup)) continue;
    const double value =
        (key.time != nullptr ? static_cast<double>(setup.serving.*key.time) : hardware.*key.figures.front().second) /
        key.factor;
    if (!(value > 0)) continue;
    UncertainFit number{&key, value, value / (1 + spread), value * (1 + spread), percent == 0};
    const std::string name(key.name);
    const auto at = std::ranges::find(from_file, name, &UncertainNumber::key);
    if (key.time == nullptr && at != from_file.end()) {
      number.low = at->low / key.factor;
      number.high = at->high / key.factor;
      number.assumed = false;
    }
    if (key.time != nullptr && times.contains(name) &&
        std::abs(times.at(name).at("value").get<double>() / value - 1) < 1e-3) {
      number.low = times.at(name).at("low");
      number.high = times.at(name).at("high");
      number.assumed = false;
    }
    if (number.low > 0 && number.low < number.high) numbers.push_back(number);
  }
  return numbers;
}

MovedSimulations::MovedSimulations(const std::vector<UncertainFit>& numbers, std::vector<std::string> figures, int jobs,
                                   const Listener& listener)
    : numbers_(numbers), figures_(std::move(figures)), at_once_(children_at_once(jobs)), listener_(listener) {}

std::vector<std::vector<MovedAnswer>> MovedSimulations::run(const std::vector<const Experiment*>& experiments,
                                                            const std::vector<MovedNumber>& points) {
  const std::size_t count = experiments.size() * points.size();
  listener_.begin("simulates " + std::to_string(count) + " runs");
  std::vector<std::vector<MovedAnswer>> answers(experiments.size(), std::vector<MovedAnswer>(points.size()));
  const auto simulate_one = [&](std::size_t job) {
    return simulated(*experiments[job / points.size()], points[job % points.size()]);
  };
  run_children(count, at_once_, simulate_one, [&](const ChildEnd& end) {
    answers[end.number / points.size()][end.number % points.size()] =
        end.failure.code != 0 ? MovedAnswer{end.failure.sentence, {}, {}, 0, {}} : answer_in(end.text);
  });
  return answers;
}

std::vector<MovedNumber> MovedSimulations::moves() const {
  std::vector<MovedNumber> all;
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    all.push_back({i, 1});
    all.push_back({i, -1});
  }
  return all;
}

double MovedSimulations::value_at(const MovedNumber& point) const {
  const UncertainFit& number = numbers_[point.number];
  const double value = point.way > 0   ? number.value * number.step()
                       : point.way < 0 ? number.value / number.step()
                                       : number.value;
  return std::clamp(value, number.key->least, number.key->most);
}

double MovedSimulations::slope(std::size_t number, double up, double down) const {
  const double between = log_ratio(value_at({number, 1}), value_at({number, -1}));
  return between > 0 && up > 0 && down > 0 ? log_ratio(up, down) / between : 0;
}

std::string MovedSimulations::simulated(const Experiment& base, const MovedNumber& point) const {
  Experiment experiment = base;
  HardwareSpec hardware = hardware_of(base);
  if (point.way != 0) {
    const FitKeys keys{numbers_[point.number].key};
    set_numbers(keys, {value_at(point)}, experiment);
    set_numbers(keys, {value_at(point)}, hardware);
  }
  const Setup setup = make_setup(experiment, &hardware);
  const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
  ServeTerms terms = simulated_terms(experiment, setup);
  AnsweredRequests answered;
  terms.rows = &answered;
  const RunResult result = serve(experiment, setup, *world, {}, terms, {});
  const Json report = Json::parse(result.report);
  const Json figures = report_figures(report);
  const Json& timed = report.contains("warm") ? report.at("warm") : report;
  const Json intervals = timed.value("intervals", Json::object());
  std::string text = formatted("%.17g\n", result.figures.seconds);
  for (const std::string& name : figures_) {
    const bool has = figures.contains(name) && figures.at(name).is_number();
    const bool timed_figure = intervals.contains(name);
    text += formatted("%.17g\n%.17g\n%.17g\n", has ? figures.at(name).get<double>() : 0.0,
                      timed_figure ? intervals.at(name).at(0).get<double>() : 0.0,
                      timed_figure ? intervals.at(name).at(1).get<double>() : 0.0);
  }
  for (const auto& [request, times] : answered.times()) {
    text += formatted("%.17g\n%.17g\n%.17g\n", static_cast<double>(request), times.ttft_s, times.tpot_s);
  }
  return text;
}

MovedAnswer MovedSimulations::answer_in(const std::string& text) const {
  const std::vector<double> values = numbers_in(text);
  MovedAnswer answer;
  answer.seconds = values.front();
  auto at = values.begin() + 1;
  for (std::size_t f = 0; f < figures_.size(); ++f, at += 3) {
    answer.figures.push_back(at[0]);
    answer.intervals.emplace_back(at[1], at[2]);
  }
  for (; values.end() - at >= 3; at += 3) {
    answer.requests[static_cast<std::uint64_t>(at[0])] = {at[1], at[2]};
  }
  return answer;
}

}  // namespace kvtwin

#include "lab/calibrate/advise.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>
#include <variant>

#include "lab/calibrate/advised_runs.hpp"
#include "lab/calibrate/capture_keys.hpp"
#include "lab/calibrate/moved_numbers.hpp"
#include "lab/error.hpp"
#include "lab/errors/intervals.hpp"
#include "lab/formatted.hpp"
#include "lab/shell_word.hpp"
#include "models/calibration_fit.hpp"
#include "models/json.hpp"
#include "models/run_choice.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr double k80 = 1.2816;            // standard deviations of an 80 % interval
constexpr double kClientSeconds = 30;     // start of a benchmark's client
constexpr double kMostMinutes = 15;       // of a cheap run
constexpr double kLeastDeviation = 1e-4;  // of the logarithm of an answer that depends on a number
constexpr double kHardly = 0.98;          // of the deviation that remains after a run that hardly narrows it
constexpr double kFarOff = 1.5;           // how many times as wide intervals are if the base is far off
constexpr std::size_t kRuns = 3, kShown = 3;
constexpr double kTold = 0.9;  // of the deviation of a number, which is then told by a run
constexpr std::size_t kMaxPlanFileBytes = std::size_t{1} << 28;

// ---- what is asked -------------------------------------------------------------------------------------

struct Question {
  Experiment experiment;
  std::vector<std::string> figures;  // goals of the plan, then the mean TTFT
  std::vector<Json> goals;           // of the plan: figure, limit, better
};

Question question_of(const AdviseTerms& terms) {
  std::error_code error;
  const fs::path folder = terms.from;
  const bool is_plan = fs::is_directory(folder, error);
  Question question{Experiment::from_text("", terms.from), {}, {}};
  if (is_plan) {
    const fs::path file = folder / "plan.json";
    const Json plan = fs::is_regular_file(file, error)
                          ? Json::parse_or_discard(read_text_file(file, "give the folder of a plan", kMaxPlanFileBytes))
                          : Json();
    if (!plan.is_object() || plan.value("kind", "") != "plan" || !plan.contains("goals") ||
        !plan.contains("recommendation") || plan.at("recommendation").is_null()) {
      throw InputError("--advise " + terms.from +
                       ": holds no plan with a recommendation; give the folder that kvtwin plan --out wrote, or an "
                       "experiment file");
    }
    question.experiment = Experiment::from_file((folder / "recommended.toml").string());
    for (const Json& goal : plan.at("goals")) {
      question.figures.push_back(goal.at("figure"));
      question.goals.push_back(goal);
    }
  } else {
    question.experiment = Experiment::from_file(terms.from);
  }
  for (const std::string& set : terms.sets) question.experiment.set(set);
  if (std::ranges::find(question.figures, "ttft_mean_s") == question.figures.end()) {
    question.figures.emplace_back("ttft_mean_s");
  }
  return question;
}

// ---- the advice ----------------------------------------------------------------------------------------

struct CheapRun {
  CandidateRun run;
  Experiment experiment;
  double minutes = 0;
};

// The slopes of the times of every second request, of those that are answered at all points: the fit holds half of the
// requests out.
MeasurableRun measurable(const std::vector<MovedAnswer>& moved, double minutes, std::size_t numbers,
                         const MovedSimulations& simulator) {
  MeasurableRun run;
  run.cost = minutes;
  for (double RequestTimes::*const kind : {&RequestTimes::ttft_s, &RequestTimes::tpot_s}) {
    std::vector<Slopes>& rows = run.kinds.emplace_back();
    std::size_t answered = 0;
    for (const auto& [request, unused] : moved.front().requests) {
      Slopes slopes;
      for (std::size_t i = 0; i < numbers; ++i) {
        const auto up = moved[2 * i].requests.find(request), down = moved[2 * i + 1].requests.find(request);
        if (up == moved[2 * i].requests.end() || down == moved[2 * i + 1].requests.end()) break;
        if (!(up->second.*kind > 0) || !(down->second.*kind > 0)) break;
        slopes.push_back(simulator.slope(i, up->second.*kind, down->second.*kind));
      }
      if (slopes.size() == numbers && (answered++ % 2) == 0) rows.push_back(std::move(slopes));
    }
  }
  return run;
}

// How far the times of a measured run are from the simulated ones.
struct MeasuredBase {
  std::string path;
  std::size_t requests = 0;
  double ttft = 0, tpot = 0;  // measured / simulated, of the medians; 0: not measured
  double allowed = 1;         // such a factor is at the end of the 80 % that the numbers allow: that of TTFT or TPOT
  double wider = 1;           // how many times as wide the numbers' intervals must be to allow the factors
};

// Gives the experiment of a measured run the machine and the engine's times of the question.
void take_machine(const Experiment& question, const std::string& from, Experiment& run) {
  for (const ExperimentKey& key : experiment_keys()) {
    if (!key.name.starts_with("hardware.") && !key.name.starts_with("serving.")) continue;
    if (question.value(key.name) == run.value(key.name)) continue;
    const bool is_text = std::holds_alternative<std::string>(key.fallback);
    const std::string value = key.is_path && !question.text(key.name).empty() ? question.path(key.name).string()
                              : is_text                                       ? question.text(key.name)
                                                                              : question.as_toml(key.name);
    run.set(std::string(key.name) + "=" + value, from);
  }
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return quantile_of(values, 0.5);
}

// Returns the median of one kind of time, of the requests that were measured.
double median_time(const MovedAnswer& answer, const Capture& capture, double RequestTimes::*kind) {
  std::vector<double> times;
  for (const CapturedRequest& request : capture.requests) {
    const auto at = answer.requests.find(request.number);
    if (at != answer.requests.end() && at->second.*kind > 0) times.push_back(at->second.*kind);
  }
  return median_of(std::move(times));
}

struct AnswerInterval {
  double low = 0, high = 0;
};

class Adviser {
 public:
  Adviser(const AdviseTerms& terms, const Listener& listener)
      : terms_(terms),
        question_(question_of(terms)),
        numbers_(uncertain_fits(question_.experiment)),
        simulator_(numbers_, question_.figures, terms.jobs, listener) {}

  Advice advice() {
    ask();
    for (const CaptureArguments& capture : terms_.captures) compare_with(capture);
    find_candidates();
    choose();
    return {text(), json().dump(2) + "\n", files()};
  }

 private:
  // Simulates the answer, and its slopes.
  void ask() {
    FitKeys keys;
    for (const UncertainFit& number : numbers_) keys.push_back(number.key);
    refuse_overrides(question_.experiment, keys);  // --from would refuse them
    std::vector<MovedNumber> points = simulator_.moves();
    points.push_back({});
    const std::vector<MovedAnswer> answers = simulator_.run({&question_.experiment}, points).front();
    for (const MovedAnswer& answer : answers) {
      if (!answer.failure.empty()) throw InputError("--advise " + terms_.from + ": " + answer.failure);
    }
    for (const UncertainFit& number : numbers_) task_.deviations.push_back(number.deviation());
    for (std::size_t f = 0; f < question_.figures.size(); ++f) {
      task_.figure.clear();
      for (std::size_t i = 0; i < numbers_.size(); ++i) {
        task_.figure.push_back(simulator_.slope(i, answers[2 * i].figures[f], answers[2 * i + 1].figures[f]));
      }
      figure_ = question_.figures[f];
      goal_ = f < question_.goals.size() ? question_.goals[f] : Json();
      value_ = answers.back().figures[f];
      by_others_ = {answers.back().intervals[f].first, answers.back().intervals[f].second};
      if (value_ > 0 && !numbers_.empty() && deviation_after(task_, {}) > kLeastDeviation) return;
    }
    throw InputError("--advise " + terms_.from +
                     ": the answer hangs on no number that kvtwin calibrate --from can fit, so no run narrows it; "
                     "measured operator times count as exact (hardware.operators)");
  }

  // Simulates a run that is measured already, and compares the times.
  void compare_with(const CaptureArguments& arguments) {
    Capture capture = read_capture(arguments);
    take_machine(question_.experiment, terms_.from, capture.experiment);
    std::vector<MovedNumber> points = simulator_.moves();
    points.push_back({});
    const std::vector<MovedAnswer> answers = simulator_.run({&capture.experiment}, points).front();
    for (const MovedAnswer& answer : answers) {
      if (!answer.failure.empty()) throw InputError("--from " + arguments.path + ": " + answer.failure);
    }
    MeasuredBase& base = measured_.emplace_back();
    base.path = arguments.path;
    base.requests = capture.requests.size();
    bool any = false;
    for (const auto& [of_capture, kind, factor] :
         {std::tuple(&CapturedRequest::ttft_s, &RequestTimes::ttft_s, &MeasuredBase::ttft),
          std::tuple(&CapturedRequest::tpot_s, &RequestTimes::tpot_s, &MeasuredBase::tpot)}) {
      std::vector<double> times;
      for (const CapturedRequest& request : capture.requests) {
        if (request.*of_capture > 0) times.push_back(request.*of_capture);
      }
      const double measured = median_of(std::move(times)), simulated = median_time(answers.back(), capture, kind);
      if (!(measured > 0) || !(simulated > 0)) continue;
      any = true;
      double variance = kRunNoise * kRunNoise;
      for (std::size_t i = 0; i < numbers_.size(); ++i) {
        const double moved = simulator_.slope(i, median_time(answers[2 * i], capture, kind),
                                              median_time(answers[2 * i + 1], capture, kind)) *
                             task_.deviations[i];
        variance += moved * moved;
      }
      base.*factor = measured / simulated;
      const double allowed = k80 * std::sqrt(variance), wider = std::abs(std::log(measured / simulated)) / allowed;
      if (wider <= base.wider && base.allowed != 1) continue;
      base.allowed = std::exp(allowed);
      base.wider = std::max(1.0, wider);
    }
    if (!any) {
      throw InputError(
          "--from " + arguments.path +
          ": has no TTFT and no TPOT; give a file of bench_serving with --output-details, or a run folder");
    }
    wider_ = std::max(wider_, base.wider);
  }

  void find_candidates() {
    const Setup setup = make_setup(question_.experiment);
    std::vector<CheapRun> all;
    for (CandidateRun& run : candidate_runs(question_.experiment, setup)) {
      Experiment experiment = experiment_of(run, question_.experiment);
      all.push_back({std::move(run), std::move(experiment), 0});
    }
    std::vector<const Experiment*> experiments;
    for (const CheapRun& one : all) experiments.push_back(&one.experiment);
    const std::vector<std::vector<MovedAnswer>> base = simulator_.run(experiments, {MovedNumber{}});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const MovedAnswer& answer = base[i].front();
      all[i].minutes = std::ceil((answer.seconds + kClientSeconds) / 60);
      if (!answer.failure.empty()) {
        left_out_.emplace_back(all[i].run.name, answer.failure);
      } else if (answer.requests.empty()) {
        left_out_.emplace_back(all[i].run.name, "no request completes");
      } else if (all[i].minutes > kMostMinutes) {
        left_out_.emplace_back(all[i].run.name, formatted("takes about %.0f minutes", all[i].minutes));
      } else {
        candidates_.push_back(std::move(all[i]));
      }
    }
    if (!candidates_.empty()) return;
    throw InputError("--advise " + terms_.from + ": no run is cheap: " + left_out_.front().first + " " +
                     left_out_.front().second);
  }

  void choose() {
    std::vector<const Experiment*> experiments;
    for (const CheapRun& one : candidates_) experiments.push_back(&one.experiment);
    const std::vector<std::vector<MovedAnswer>> moved = simulator_.run(experiments, simulator_.moves());
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      task_.runs.push_back(measurable(moved[i], candidates_[i].minutes, numbers_.size(), simulator_));
    }
    task_.count = kRuns;
    choice_ = choose_runs(task_);
  }

  // Returns the numbers that the chosen run determines, the most important first.
  std::vector<std::string> told_by(std::size_t place) const {
    const std::vector<double>& before = place == 0 ? task_.deviations : choice_.chosen[place - 1].numbers;
    const std::vector<double>& after = choice_.chosen[place].numbers;
    std::vector<std::pair<double, std::string>> told;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      if (after[i] > kTold * before[i]) continue;
      told.emplace_back(std::abs(task_.figure[i]) * (before[i] - after[i]), numbers_[i].key->name);
    }
    std::ranges::stable_sort(told, std::greater<>(), [](const auto& one) { return one.first; });
    std::vector<std::string> names;
    for (auto& [effect, name] : told) names.push_back(std::move(name));
    return names;
  }

  // Around the answer of the base; if that is off, around this answer times the measured factor.
  AnswerInterval interval_of(double deviation) const {
    const double factor = wider_ > 1 ? std::exp(k80 * wider_ * deviation) : 1 + k80 * deviation;
    return {centre() / factor, centre() * factor};
  }
  double centre() const {
    if (wider_ == 1) return value_;
    double sum = 0, count = 0;
    for (const MeasuredBase& base : measured_) {
      const TimeKind kind = time_kind(figure_);
      for (const auto& [factor, other] : {std::pair(base.ttft, TimeKind::tpot), std::pair(base.tpot, TimeKind::ttft)}) {
        if (kind == other || !(factor > 0)) continue;
        sum += std::log(factor);
        ++count;
      }
    }
    return count == 0 ? value_ : value_ * std::exp(sum / count);
  }
  std::string range_text(double deviation) const {
    const AnswerInterval interval = interval_of(deviation);
    return formatted("%.4g to %.4g", interval.low, interval.high);
  }

  std::string experiment_file(std::size_t place) const {
    const std::string name = "run" + std::to_string(place + 1) + ".toml";
    return terms_.out.empty() ? name : (fs::path(terms_.out) / name).string();
  }

  RunCommand command(std::size_t place) const {
    return command_of(candidates_[choice_.chosen[place].run].run, question_.experiment, place + 1);
  }

  std::string fit_command() const {
    std::string from, experiments;
    for (std::size_t place = 0; place < choice_.chosen.size(); ++place) {
      from += " " + command(place).file;
      experiments += " " + shell_word(experiment_file(place));
    }
    const std::string out = terms_.out.empty() ? "out/fitted" : (fs::path(terms_.out) / "fitted").string();
    return "kvtwin calibrate --from" + from + " --experiment" + experiments + " --out " + shell_word(out);
  }

  // The effect of a number's 80 % interval on the answer, as a share.
  double effect(std::size_t number) const { return k80 * std::abs(task_.figure[number]) * task_.deviations[number]; }
  std::vector<std::size_t> by_effect() const {
    std::vector<std::size_t> order(numbers_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return effect(i); });
    return order;
  }

  std::string text() const;
  Json json() const;
  std::vector<std::pair<std::string, std::string>> files() const {
    std::vector<std::pair<std::string, std::string>> list;
    for (std::size_t place = 0; place < choice_.chosen.size(); ++place) {
      list.emplace_back("run" + std::to_string(place + 1) + ".toml",
                        candidates_[choice_.chosen[place].run].experiment.resolved());
    }
    list.emplace_back("advice.json", json().dump(2) + "\n");
    return list;
  }

  const AdviseTerms& terms_;
  Question question_;
  std::vector<UncertainFit> numbers_;
  MovedSimulations simulator_;
  RunChoiceTask task_;
  std::string figure_;  // the answer's
  Json goal_;           // that has the figure; null: none
  double value_ = 0;
  AnswerInterval by_others_;  // of runs that others measured; 0 and 0: none
  std::vector<MeasuredBase> measured_;
  double wider_ = 1;  // the intervals, as the measured runs are further off than the numbers allow
  std::vector<CheapRun> candidates_;
  std::vector<std::pair<std::string, std::string>> left_out_;  // name, reason
  RunChoice choice_;
};

std::string Adviser::text() const {
  std::string text = "answer     " + figure_ + " of " + terms_.from + formatted(": %.4g; ", value_) +
                     (wider_ > 1 ? formatted("by what is measured about %.4g, ", centre()) : "") + "with 80 % " +
                     range_text(choice_.before);
  if (measured_.empty()) text += " if the numbers are within their intervals";
  if (!goal_.is_null()) {
    text +=
        formatted("; the goal is %.4g or ", goal_.at("limit").get<double>()) + goal_.at("better").get<std::string>();
  }
  text += "\n";
  for (const MeasuredBase& base : measured_) {
    std::string factors;
    for (const auto& [name, factor] : {std::pair("TTFT", base.ttft), std::pair("TPOT", base.tpot)}) {
      if (factor > 0) factors += (factors.empty() ? "" : " and ") + std::string(name) + formatted(" %.3g", factor);
    }
    text += "measured   " + base.path + ": " + factors +
            formatted(" times the simulated (medians of %zu requests); the numbers allow %.3g\n", base.requests,
                      base.allowed);
  }
  if (wider_ > 1) {
    text += formatted("           So all intervals here are %.2g times as wide as the numbers give them\n", wider_);
  }
  if (measured_.empty() && by_others_.high > 0) {
    text += formatted("           By runs that others measured: %.4g to %.4g. Nothing of this server is measured yet\n",
                      by_others_.low, by_others_.high);
  }
  bool assumed = false;
  const std::vector<std::size_t> order = by_effect();
  for (std::size_t k = 0; k < std::min(kShown, order.size()); ++k) {
    const UncertainFit& number = numbers_[order[k]];
    text += (k == 0 ? "hangs on   " : "           ") + std::string(number.key->name) +
            formatted(" %.4g (%.4g to %.4g) ", number.value, number.low, number.high) + std::string(number.key->unit) +
            formatted(": %.1f %%\n", 100 * effect(order[k]));
  }
  for (const UncertainFit& number : numbers_) assumed = assumed || number.assumed;
  for (std::size_t place = 0; place < choice_.chosen.size(); ++place) {
    const ChosenRun& chosen = choice_.chosen[place];
    const CheapRun& candidate = candidates_[chosen.run];
    const double before = place == 0 ? choice_.before : choice_.chosen[place - 1].deviation;
    text += "run " + std::to_string(place + 1) + "      " + candidate.run.words +
            formatted("; about %.0f min; then ", candidate.minutes) + range_text(chosen.deviation) +
            (chosen.deviation > kHardly * before ? ": hardly narrower\n" : "\n");
    const std::vector<std::string> told = told_by(place);
    for (std::size_t k = 0; k < std::min(kShown, told.size()); ++k) {
      text += (k == 0 ? "           tells " : ", ") + told[k];
    }
    text += (told.empty() ? "           " : "\n           ") + command(place).line + "\n";
  }
  for (const auto& [name, why] : left_out_) text += "left out   " + name + ": " + why + "\n";
  text += "then       " + fit_command() + "\n";
  if (terms_.out.empty())
    text += "note       --out DIR writes the experiment of each run, which the last command reads\n";
  if (assumed) {
    text += formatted(
        "note       numbers without an interval: %.0f %% assumed (95 %%); hardware.spread_percent sets "
        "another share\n",
        100 * kUnknownSpread);
  }
  if (measured_.empty()) {
    text +=
        "note       nothing here says whether the true numbers are within their intervals. After a first run, ask "
        "again with it:\n"
        "           kvtwin calibrate --advise " +
        shell_word(terms_.from) + " --from " + command(0).file + " --experiment " + shell_word(experiment_file(0)) +
        "\n";
  } else if (wider_ > kFarOff) {
    std::string from, experiments;
    for (const CaptureArguments& capture : terms_.captures) {
      from += " " + shell_word(capture.path);
      if (!capture.experiment.empty()) experiments += " " + shell_word(capture.experiment);
    }
    text +=
        "note       the base is far off, and the slopes are those at the base. Fit what is measured first, and ask "
        "again with\n"
        "           hardware.file = the fitted one: kvtwin calibrate --from" +
        from + (experiments.empty() ? "" : " --experiment" + experiments) + " --out out/first\n";
  }
  const std::string& table = question_.experiment.text("hardware.operators");
  if (!table.empty() && table != "none") {
    text += "note       the intervals are of these numbers only: the operator times of " + table +
            " count as exact. The interval of simulate has their errors too; it takes the runs into account after\n"
            "           kvtwin validate --bench-serving " +
            command(0).file + " --experiment " + shell_word(experiment_file(0)) +
            " --out out/validated, with report.validated=out/validated\n";
  }
  text += formatted(
      "note       a request's time is assumed to be predicted within %.0f %%, and all of a run within "
      "%.0f %% (one standard deviation)\n",
      100 * kRequestNoise, 100 * kRunNoise);
  return text;
}

Json Adviser::json() const {
  const auto interval_json = [&](double deviation) {
    const AnswerInterval interval = interval_of(deviation);
    return Json{{"low", interval.low}, {"high", interval.high}};
  };
  Json json{{"schema_version", 1}, {"kind", "advice"}, {"of", terms_.from}, {"figure", figure_}, {"value", value_}};
  json["goal"] = goal_;
  json["interval"] = interval_json(choice_.before);
  json["interval_by_others"] = by_others_.high > 0 ? Json{{"low", by_others_.low}, {"high", by_others_.high}} : Json();
  json["wider"] = wider_;
  json["measured"] = Json::array();
  for (const MeasuredBase& base : measured_) {
    json["measured"].push_back({{"run", base.path},
                                {"requests", base.requests},
                                {"ttft", base.ttft > 0 ? Json(base.ttft) : Json()},
                                {"tpot", base.tpot > 0 ? Json(base.tpot) : Json()},
                                {"allowed", base.allowed},
                                {"wider", base.wider}});
  }
  json["numbers"] = Json::array();
  for (const std::size_t i : by_effect()) {
    const UncertainFit& number = numbers_[i];
    json["numbers"].push_back({{"number", number.key->name},
                               {"unit", number.key->unit},
                               {"value", number.value},
                               {"low", number.low},
                               {"high", number.high},
                               {"assumed", number.assumed},
                               {"slope", task_.figure[i]},
                               {"effect", effect(i)}});
  }
  json["runs"] = Json::array();
  for (std::size_t place = 0; place < choice_.chosen.size(); ++place) {
    const ChosenRun& chosen = choice_.chosen[place];
    const CheapRun& candidate = candidates_[chosen.run];
    const RunCommand run = command(place);
    json["runs"].push_back({{"run", candidate.run.name},
                            {"words", candidate.run.words},
                            {"minutes", candidate.minutes},
                            {"interval_after", interval_json(chosen.deviation)},
                            {"tells", told_by(place)},
                            {"command", run.line},
                            {"file", run.file},
                            {"experiment", "run" + std::to_string(place + 1) + ".toml"}});
  }
  json["candidates"] = Json::array();
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const CandidateRun& run = candidates_[i].run;
    json["candidates"].push_back({{"run", run.name},
                                  {"words", run.words},
                                  {"groups", run.groups},
                                  {"prompts_per_group", run.requests / run.groups},
                                  {"prefix_tokens", run.prefix_tokens},
                                  {"question_tokens", run.question_tokens},
                                  {"output_tokens", run.output_tokens},
                                  {"concurrency", run.clients},
                                  {"minutes", candidates_[i].minutes},
                                  {"interval_alone", interval_json(choice_.alone[i])}});
  }
  json["left_out"] = Json::object();
  for (const auto& [name, why] : left_out_) json["left_out"][name] = why;
  json["then"] = fit_command();
  return json;
}

}  // namespace

Advice advise_runs(const AdviseTerms& terms, const Listener& listener) { return Adviser(terms, listener).advice(); }

}  // namespace kvtwin

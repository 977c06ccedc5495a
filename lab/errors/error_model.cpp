#include "lab/errors/error_model.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lab/errors/intervals.hpp"
#include "lab/formatted.hpp"
#include "models/calibration_fit.hpp"
#include "models/json.hpp"
#include "models/presets.hpp"

namespace kvtwin {
namespace {

// A linear function of the features. "" is the constant.
struct Line {
  std::map<std::string, double> coefficients;
  double at(const std::map<std::string, double>& features) const {
    double sum = 0;
    for (const auto& [name, coefficient] : coefficients) {
      const auto value = features.find(name);
      sum += coefficient * (name.empty() ? 1 : value == features.end() ? 0 : value->second);
    }
    return sum;
  }
};

struct Stratum {
  std::set<std::string> gpus;
  struct Range {
    double low = 0, high = 0;
  };
  std::map<std::string, Range> ranges;  // of the published runs
  struct Figure {
    Line middle, width;  // of the logarithm; the width's own logarithm
  };
  Figure ttft, tpot;
  ErrorFactors::Factors of_set;  // share of the residuals' variance that is between sets
  struct Residual {
    double ttft = 0, tpot = 0;
  };
  std::map<std::string, std::vector<Residual>> residuals;  // by engine
};

struct Model {
  std::map<std::string, Stratum> strata;               // by source of the times
  std::map<std::string, ErrorFactors::Factors> widen;  // by feature that no published run has
  ErrorFactors::Factors repeat;
};

Line line_of(const Json& json) {
  Line line;
  for (const auto& [name, value] : json.items()) line.coefficients[name] = value;
  return line;
}

const Model& model() {
  static const Model read = [] {
    Model result;
    const Json table = Json::parse(errors_preset_text());
    for (const Json& json : table.at("strata")) {
      Stratum& stratum = result.strata[json.at("times").get<std::string>()];
      for (const Json& gpu : json.at("gpus")) stratum.gpus.insert(gpu.get<std::string>());
      for (const auto& [name, range] : json.at("ranges").items()) stratum.ranges[name] = {range.at(0), range.at(1)};
      stratum.ttft = {line_of(json.at("ttft").at("middle")), line_of(json.at("ttft").at("width"))};
      stratum.tpot = {line_of(json.at("tpot").at("middle")), line_of(json.at("tpot").at("width"))};
      stratum.of_set = {json.at("ttft").at("of_set"), json.at("tpot").at("of_set")};
      for (const auto& [engine, residuals] : json.at("residuals").items()) {
        const Json &ttft = residuals.at("ttft"), &tpot = residuals.at("tpot");
        std::vector<Stratum::Residual>& list = stratum.residuals[engine];
        for (std::size_t i = 0; i < ttft.size(); ++i) list.push_back({ttft[i], tpot[i]});
      }
    }
    for (const auto& [name, factor] : table.at("widen").items()) {
      const bool both = factor.is_number();
      result.widen[name] = {both ? factor : factor.at("ttft"), both ? factor : factor.at("tpot")};
    }
    result.repeat = {table.at("repeat").at("ttft"), table.at("repeat").at("tpot")};
    return result;
  }();
  return read;
}

std::string words_of(ErrorFeatures::Times times) {
  switch (times) {
    case ErrorFeatures::Times::table: return "times from operator tables";
    case ErrorFeatures::Times::roofline: return "times from the roofline";
    case ErrorFeatures::Times::fitted: return "figures fitted to the machine";
  }
  return "";
}

std::string words_of(const ErrorFactors::Factors& wider) {
  if (wider.ttft == wider.tpot) return formatted("wider by a factor of %.2g", wider.ttft);
  if (wider.ttft == 1) return formatted("TPOT wider by a factor of %.2g", wider.tpot);
  if (wider.tpot == 1) return formatted("TTFT wider by a factor of %.2g", wider.ttft);
  return formatted("wider by factors of %.2g (TTFT) and %.2g (TPOT)", wider.ttft, wider.tpot);
}

// The prediction in the terms of the model.
struct Placed {
  explicit Placed(const ErrorFeatures& features)
      : stratum(model().strata.at(std::string(name_of(features.times)))), values(features.values) {
    values[features.engine] = 1;
    for (const char* name : {"experts", "fp4"}) values[features.engine + "." + name] = values[name];
    for (const auto& [name, range] : stratum.ranges) {
      double& value = values[name];
      value = std::clamp(value, range.low, range.high);
    }
  }
  double factor(const Stratum::Figure& figure, double residual) const {
    return std::exp(figure.middle.at(values) + residual * std::exp(figure.width.at(values)));
  }
  double residual(const Stratum::Figure& figure, double factor) const {
    return (std::log(factor) - figure.middle.at(values)) / std::exp(figure.width.at(values));
  }

  // The logarithm of the interval's upper end divided by the lower one.
  double width(const Stratum::Figure& figure, const std::vector<Stratum::Residual>& residuals,
               double Stratum::Residual::*which) const {
    std::vector<double> sorted;
    for (const Stratum::Residual& residual : residuals) sorted.push_back(residual.*which);
    std::ranges::sort(sorted);
    return std::exp(figure.width.at(values)) *
           (quantile_of(sorted, (1 + kIntervalShare) / 2) - quantile_of(sorted, (1 - kIntervalShare) / 2));
  }

  const Stratum& stratum;
  std::map<std::string, double> values;
};

double value_of(const ErrorFeatures& features, const char* name, double otherwise) {
  const auto at = features.values.find(name);
  return at == features.values.end() ? otherwise : at->second;
}

// The fits behind the published runs with fitted figures left half of their held-out requests off by less
// (docs/calibrate-and-validate.md). A fit that explains its own requests worse is wider in proportion.
constexpr ErrorFactors::Factors kFitOff{0.14, 0.13};
constexpr double kWorthSaying = 1.1;
constexpr double kNearShare = 0.02;

// Upper / lower end of an interval. Widening ends there: nothing that was measured is further off.
constexpr double kWidest = 100;
double widest(double wider, double width) { return std::min(wider, std::max(1.0, std::log(kWidest) / width)); }

template <typename Widen>
void widen_by_fit(const ErrorFeatures& features, const Widen& widen_by) {
  const ErrorFactors::Factors off{value_of(features, "fit_off_ttft", 0), value_of(features, "fit_off_tpot", 0)};
  const ErrorFactors::Factors by{std::max(1.0, off.ttft / kFitOff.ttft), std::max(1.0, off.tpot / kFitOff.tpot)};
  if (std::max(by.ttft, by.tpot) < kWorthSaying) return;
  widen_by(by,
           formatted("the fit leaves half of its held-out requests off by more than %.0f %% (TTFT) and %.0f %% (TPOT)",
                     100 * off.ttft, 100 * off.tpot));
}

}  // namespace

ErrorFactors error_factors(const ErrorFeatures& features) {
  const Placed placed(features);
  const Stratum& stratum = placed.stratum;
  ErrorFactors result;
  result.repeat = model().repeat;
  const double own_runs = value_of(features, "own_runs", 0);
  ErrorFactors::Factors wider;
  const auto widen_by = [&](const ErrorFactors::Factors& by, const std::string& sentence) {
    wider = {wider.ttft * by.ttft, wider.tpot * by.tpot};
    if (by.ttft == 1 && by.tpot == 1) return;
    result.widened.push_back(sentence + ": " + words_of(by));
  };
  const auto widen = [&](const char* kind, const std::string& sentence) { widen_by(model().widen.at(kind), sentence); };
  const bool known = stratum.residuals.contains(features.engine),
             fitted = features.times == ErrorFeatures::Times::fitted;
  const bool own = own_runs != 0;
  if (!own && !fitted) widen("elsewhere", "no measured run is of this server");
  if (!own && !fitted && !stratum.gpus.contains(features.gpu)) {
    widen("gpu", "no measured run is of " + (features.gpu.empty() ? "this hardware" : features.gpu));
  }
  if (!own && fitted) widen("server", "the measured runs are of one server");
  if (fitted) widen_by_fit(features, widen_by);
  if (!own && !known) widen("engine", "no measured run is of engine = " + features.engine);
  const auto queue = stratum.ranges.find("queue_share");
  if (!own && !fitted && queue != stratum.ranges.end() &&
      value_of(features, "queue_share", 0) > queue->second.high + kNearShare) {
    widen("queue",
          formatted("requests of the measured runs queue for at most %.0f %% of their TTFT", 100 * queue->second.high));
  }
  constexpr double kSomeHits = 0.01;
  if (value_of(features, "hit_below", 0) > std::max(kSomeHits, value_of(features, "own_hit_below", 0))) {
    widen("tiers", "few measured runs hit below the device");
  }
  std::vector<Stratum::Residual> residuals;
  for (const auto& [engine, of_engine] : stratum.residuals) {
    if (!known || engine == features.engine) residuals.insert(residuals.end(), of_engine.begin(), of_engine.end());
  }
  const double own_ttft = value_of(features, "own_ttft_width", 1), own_tpot = value_of(features, "own_tpot_width", 1);
  const ErrorFactors::Factors asked = wider;
  wider.ttft = widest(wider.ttft, own_ttft * placed.width(stratum.ttft, residuals, &Stratum::Residual::ttft));
  wider.tpot = widest(wider.tpot, own_tpot * placed.width(stratum.tpot, residuals, &Stratum::Residual::tpot));
  if (wider.ttft != asked.ttft || wider.tpot != asked.tpot) {
    result.widened.push_back(formatted("no interval is wider than a factor of %.0f for this", kWidest));
  }
  const double ttft_shift = value_of(features, "own_ttft_shift", 0),
               tpot_shift = value_of(features, "own_tpot_shift", 0);
  for (const Stratum::Residual& residual : residuals) {
    result.runs.push_back({placed.factor(stratum.ttft, ttft_shift + wider.ttft * own_ttft * residual.ttft),
                           placed.factor(stratum.tpot, tpot_shift + wider.tpot * own_tpot * residual.tpot)});
  }
  result.of = std::to_string(result.runs.size()) + " measured runs" + (known ? " of " + features.engine : "") +
              " with " + words_of(features.times);
  if (own) result.of += formatted(" and %.0f of report.validated", own_runs);
  return result;
}

void add_own_runs(const std::vector<OwnRun>& runs, ErrorFeatures& features) {
  double count = 0, ttft = 0, tpot = 0, below = 0;
  for (const OwnRun& run : runs) {
    if (run.features.times != features.times || run.features.engine != features.engine ||
        run.features.gpu != features.gpu) {
      continue;
    }
    const Placed placed(run.features);
    ttft += placed.residual(placed.stratum.ttft, run.factors.ttft);
    tpot += placed.residual(placed.stratum.tpot, run.factors.tpot);
    below = std::max(below, value_of(run.features, "hit_below", 0));
    ++count;
  }
  if (count == 0) return;
  const Stratum& stratum = model().strata.at(std::string(name_of(features.times)));
  // A server's own middle is known from its runs, the better the more there are: the estimate of a random effect. Its
  // variance is that of servers that the model has not seen.
  const bool fitted = features.times == ErrorFeatures::Times::fitted;
  const ErrorFactors::Factors unseen = model().widen.at(fitted ? "server" : "elsewhere");
  const auto put = [&](const std::string& figure, double sum, double of_set, double wider) {
    const double within = 1 - of_set, between = wider * wider - within;
    const double known = count * between / (count * between + within);
    features.values["own_" + figure + "_shift"] = known * sum / count;
    features.values["own_" + figure + "_width"] = std::sqrt(within + between * (1 - known));
  };
  put("ttft", ttft, stratum.of_set.ttft, unseen.ttft);
  put("tpot", tpot, stratum.of_set.tpot, unseen.tpot);
  features.values["own_runs"] = count;
  features.values["own_hit_below"] = below;
}

std::optional<ErrorFactors> errors_of_report(const Json& report) {
  const Json& part = report.contains("warm") ? report.at("warm") : report;
  if (!part.contains("intervals_of")) return std::nullopt;
  return error_factors(ErrorFeatures::from_json(part.at("intervals_of").at("features")));
}

}  // namespace kvtwin

#include "lab/errors/error_model.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lab/formatted.hpp"
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
  std::map<std::string, Stratum> strata;  // by source of the times
  std::map<std::string, double> widen;    // by feature that no published run has
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
    for (const auto& [name, factor] : table.at("widen").items()) result.widen[name] = factor;
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

  const Stratum& stratum;
  std::map<std::string, double> values;
};

double value_of(const ErrorFeatures& features, const char* name, double otherwise) {
  const auto at = features.values.find(name);
  return at == features.values.end() ? otherwise : at->second;
}

}  // namespace

ErrorFactors error_factors(const ErrorFeatures& features) {
  const Placed placed(features);
  const Stratum& stratum = placed.stratum;
  ErrorFactors result;
  result.repeat = model().repeat;
  const double own_runs = value_of(features, "own_runs", 0);
  double wider = 1;
  const auto widen = [&](const char* kind, const std::string& sentence) {
    const double factor = model().widen.at(kind);
    wider *= factor;
    result.widened.push_back(sentence + formatted(": wider by a factor of %.2g", factor));
  };
  const bool known = stratum.residuals.contains(features.engine);
  if (own_runs == 0 && features.times != ErrorFeatures::Times::fitted && !stratum.gpus.contains(features.gpu)) {
    widen("gpu", "no measured run is of " + (features.gpu.empty() ? "this hardware" : features.gpu));
  }
  if (own_runs == 0 && features.times == ErrorFeatures::Times::fitted) {
    widen("server", "the measured runs are of one server");
  }
  if (own_runs == 0 && !known) widen("engine", "no measured run is of engine = " + features.engine);
  constexpr double kSomeHits = 0.01;
  if (value_of(features, "hit_below", 0) > std::max(kSomeHits, value_of(features, "own_hit_below", 0))) {
    widen("tiers", "few measured runs hit below the device");
  }
  const auto add = [&](const std::vector<Stratum::Residual>& residuals) {
    const auto own = [&](double residual, const char* shift, const char* share) {
      return value_of(features, shift, 0) + wider * value_of(features, share, 1) * residual;
    };
    for (const Stratum::Residual& residual : residuals) {
      result.runs.push_back({placed.factor(stratum.ttft, own(residual.ttft, "own_ttft_shift", "own_ttft_width")),
                             placed.factor(stratum.tpot, own(residual.tpot, "own_tpot_shift", "own_tpot_width"))});
    }
  };
  if (known) {
    add(stratum.residuals.at(features.engine));
  } else {
    for (const auto& [engine, residuals] : stratum.residuals) add(residuals);
  }
  result.of = std::to_string(result.runs.size()) + " measured runs" + (known ? " of " + features.engine : "") +
              " with " + words_of(features.times);
  if (own_runs != 0) result.of += formatted(" and %.0f of report.validated", own_runs);
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
  // A set's own middle is known from its runs, the better the more there are: the estimate of a random effect.
  const auto put = [&](const std::string& figure, double sum, double of_set) {
    const double known = count * of_set / (count * of_set + 1 - of_set);
    features.values["own_" + figure + "_shift"] = known * sum / count;
    features.values["own_" + figure + "_width"] = std::sqrt(1 - of_set * known);
  };
  put("ttft", ttft, stratum.of_set.ttft);
  put("tpot", tpot, stratum.of_set.tpot);
  features.values["own_runs"] = count;
  features.values["own_hit_below"] = below;
}

std::optional<ErrorFactors> errors_of_report(const Json& report) {
  const Json& part = report.contains("warm") ? report.at("warm") : report;
  if (!part.contains("intervals_of")) return std::nullopt;
  return error_factors(ErrorFeatures::from_json(part.at("intervals_of").at("features")));
}

}  // namespace kvtwin

#include "lab/report/request_json.hpp"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <utility>

#include "lab/errors/intervals.hpp"
#include "lab/formatted.hpp"
#include "lab/or_null.hpp"
#include "models/json.hpp"
#include "policy/base/tiers.hpp"

namespace kvtwin {
namespace {

double in_seconds(TimeNs ns) { return static_cast<double>(ns) / 1e9; }

Json quantiles(const DurationHistogram& h) {
  const auto quantile = [&](std::uint64_t per_mille) { return or_null(h.quantile_seconds(per_mille)); };
  return {{"mean", or_null(h.mean_seconds())},
          {"p50", quantile(500)},
          {"p90", quantile(900)},
          {"p95", quantile(950)},
          {"p99", quantile(990)},
          {"max", or_null(h.max_seconds())}};
}

// The shortest decimal that reads back as the same value.
std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), value).ptr};
}

std::string number_cell(const std::optional<double>& value) { return value ? formatted("%.9f", *value) : ""; }

std::optional<double> hit_ratio(const RequestFigures& m) {
  if (m.prompt == 0) return std::nullopt;
  return static_cast<double>(m.hit.sum()) / static_cast<double>(m.prompt);
}

const StageFigures& figures_of(std::size_t stage, const RequestCounter& counter) {
  static const StageFigures none;
  return stage < counter.stages().size() ? counter.stages()[stage] : none;
}

// Adds the features of a run, or of a part of it. `rates`: of the same requests.
ErrorFeatures with_run(ErrorFeatures features, const RequestFigures& figures, const Rates& rates) {
  const auto put = [&](const char* name, double value) {
    if (std::isfinite(value)) features.values[name] = value;
  };
  const double ttft = figures.ttft.mean_seconds().value_or(0), tpot = figures.tpot.mean_seconds().value_or(0);
  const double completed = std::max<double>(1, static_cast<double>(figures.completed));
  if (ttft > 0) {
    put("ln_ttft", std::log(ttft));
    const double front = features.request_s + features.token_s * static_cast<double>(figures.prompt) / completed;
    put("front_share", std::min(1.0, front / ttft));
    put("queue_share", std::max(0.0, figures.queue.mean_seconds().value_or(0) - front) / ttft);
    put("load_share",
        (figures.prefetch_wait.mean_seconds().value_or(0) + figures.load_wait.mean_seconds().value_or(0)) / ttft);
  }
  if (tpot > 0) {
    put("ln_tpot", std::log(tpot));
    const double running = rates.per_second(rates.output).value_or(0) * tpot / features.engines;
    put("ln_running", std::log(std::max(1.0, running)));
  }
  if (figures.completed != 0) {
    const auto prompt = static_cast<double>(figures.prompt);
    put("ln_prompt", std::log(std::max(1.0, prompt / completed)));
    const auto device = static_cast<double>(figures.hit[Tier::device]);
    put("hit_device", device / prompt);
    put("hit_below", (static_cast<double>(figures.hit.sum()) - device) / prompt);
  }
  return features;
}

}  // namespace

std::string decimal(const std::optional<double>& value, int decimals) {
  return value ? formatted("%.*f", decimals, *value) : "-";
}

void put_request_figures(Json& to, const RequestFigures& m, const RequestJson& terms) {
  Json rejected = Json::object();
  for (const auto& [reason, count] : m.rejected) rejected[std::string(reason)] = count;
  Json failed = Json::object();
  if (m.aborted != 0) failed["aborted"] = m.aborted;
  Json& requests = to["requests"];
  requests = {{"total", m.arrived},   {"completed", m.completed},     {"rejected", m.rejected_total},
              {"failed", m.failed()}, {"rejected_reasons", rejected}, {"failed_reasons", failed}};
  if (terms.retractions) requests["retractions"] = *terms.retractions;
  requests["rejected_share"] = or_null(m.share_of_arrived(m.rejected_total));
  requests["failed_share"] = or_null(m.share_of_arrived(m.failed()));
  Json& tokens = to["tokens"];
  tokens["prompt"] = m.prompt;
  for (const TierSpec& spec : kTierSpecs) tokens[std::string(spec.hit_column)] = m.hit[spec.tier];
  tokens["recomputed_after_stop"] = m.recomputed_after_stop;
  tokens["miss"] = m.miss;
  if (m.unusable != 0) tokens["unusable"] = m.unusable;
  if (m.infinite_hit) tokens["infinite_cache_hit"] = *m.infinite_hit;
  tokens["output"] = m.output;
  tokens["retracted_recompute"] = m.retracted_recompute;
  if (terms.saved) to["saved_seconds"] = in_seconds(m.saved_ns);
  to["ttft_seconds"] = quantiles(m.ttft);
  for (const auto& [name, of] : {std::pair("hinted", &m.hinted), std::pair("not_hinted", &m.not_hinted)}) {
    if (m.hinted.ttft.count() == 0) break;
    to[name] = {{"requests", of->ttft.count()},
                {"prompt_tokens", of->prompt},
                {"hit_tokens", of->hit},
                {"ttft_seconds", quantiles(of->ttft)}};
  }
  to["tpot_seconds"] = quantiles(m.tpot);
  to["e2e_seconds"] = quantiles(m.e2e);
  to["ttft_parts_seconds"] = {{"queue", or_null(m.queue.mean_seconds())},
                              {"prefetch_wait", or_null(m.prefetch_wait.mean_seconds())},
                              {"load_wait", or_null(m.load_wait.mean_seconds())},
                              {"compute", or_null(m.compute.mean_seconds())}};
  if (terms.hand_overs) {
    to["ttft_parts_seconds"]["hand_over"] = or_null(m.hand_over.mean_seconds());
    to["hand_over_seconds"] = quantiles(m.hand_over);
  }
  if (terms.level.set()) {
    Json& slo = to["slo"];
    const auto limit = [&](const char* name, TimeNs ns) {
      if (ns != 0) slo[name] = in_seconds(ns);
    };
    limit("ttft_s", terms.level.ttft);
    limit("tpot_s", terms.level.tpot);
    limit("e2e_s", terms.level.e2e);
    slo["good"] = m.good;
    slo["good_share"] = or_null(m.share_of_arrived(m.good));
    slo["goodput_per_second"] = or_null(terms.rates.per_second(terms.rates.good));
  }
  const Rates& rates = terms.rates;
  to["throughput"] = {{"requests_per_second", or_null(rates.per_second(rates.completed))},
                      {"prompt_tokens_per_second", or_null(rates.per_second(rates.prompt))},
                      {"output_tokens_per_second", or_null(rates.per_second(rates.output))},
                      {"window_seconds", rates.completed == 0 ? Json() : Json(in_seconds(rates.span))}};
  if (terms.errors == nullptr || m.completed == 0) return;
  const ErrorFeatures features = with_run(*terms.errors, m, rates);
  const ErrorFactors errors = error_factors(features);
  to["intervals"] = intervals_json(to, errors);
  to["intervals_of"] = {{"runs", errors.of}, {"widened", errors.widened}, {"features", features.json()}};
}

std::string intervals_line(const RequestFigures& m, const Rates& rates, const ErrorFeatures& errors) {
  if (m.completed == 0) return "";
  Json times;
  put_request_figures(times, m, {rates, std::nullopt, false, {}, false, &errors});
  return intervals_text(times.at("intervals"), times.at("intervals_of"));
}

Json stages_json(const std::vector<WorkloadStage>& stages, const RequestCounter& counter, bool hand_overs,
                 const ErrorFeatures* errors) {
  Json list = Json::array();
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageFigures& stage = figures_of(i, counter);
    Json json;
    if (stages[i].clients != 0) json["clients"] = stages[i].clients;
    if (stages[i].clients == 0) json["requests_per_second"] = stages[i].requests_per_second;
    json["window_seconds"] = in_seconds(stage.window_ns());
    json["left_out"] = {{"warmup", stage.warmup}, {"drain", stage.drain}};
    put_request_figures(json, stage.figures,
                        {stage.rates, std::nullopt, false, counter.terms().level, hand_overs, errors});
    list.push_back(std::move(json));
  }
  return list;
}

std::string stages_csv(const std::vector<WorkloadStage>& stages, const RequestCounter& counter) {
  std::string out =
      "stage,clients,requests_per_second,completed,rejected,failed,warmup,drain,window_s,ttft_mean_s,ttft_p50_s,"
      "ttft_p90_s,ttft_p99_s,tpot_mean_s,tpot_p50_s,tpot_p99_s,e2e_mean_s,e2e_p50_s,e2e_p99_s,completed_per_second,"
      "prompt_tokens_per_second,output_tokens_per_second,hit_ratio\n";
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageFigures& stage = figures_of(i, counter);
    const RequestFigures& m = stage.figures;
    out += std::to_string(i + 1) + ",";
    out += stages[i].clients != 0 ? std::to_string(stages[i].clients) + ",,"
                                  : "," + shortest(stages[i].requests_per_second) + ",";
    out += formatted("%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.9f", m.completed, m.rejected_total,
                     m.failed(), stage.warmup, stage.drain, in_seconds(stage.window_ns()));
    for (const std::optional<double>& cell :
         {m.ttft.mean_seconds(), m.ttft.quantile_seconds(500), m.ttft.quantile_seconds(900),
          m.ttft.quantile_seconds(990), m.tpot.mean_seconds(), m.tpot.quantile_seconds(500),
          m.tpot.quantile_seconds(990), m.e2e.mean_seconds(), m.e2e.quantile_seconds(500), m.e2e.quantile_seconds(990),
          stage.rates.per_second(stage.rates.completed), stage.rates.per_second(stage.rates.prompt),
          stage.rates.per_second(stage.rates.output), hit_ratio(m)}) {
      out += "," + number_cell(cell);
    }
    out += "\n";
  }
  return out;
}

std::string stages_text(const std::vector<WorkloadStage>& stages, const RequestCounter& counter) {
  const auto row = [](const auto... cells) {
    return formatted("%-10s %9s %9s %8s %10s %10s %10s %10s %10s %12s %6s\n", cells...);
  };
  const bool clients = !stages.empty() && stages.front().clients != 0;
  std::string out = row("stage", clients ? "clients" : "sent/s", "completed", "left out", "TTFT mean", "TTFT p99",
                        "TPOT mean", "end to end", "requests/s", "out tokens/s", "hit %");
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageFigures& stage = figures_of(i, counter);
    const RequestFigures& m = stage.figures;
    const std::string load = clients ? std::to_string(stages[i].clients) : shortest(stages[i].requests_per_second);
    std::optional<double> hits = hit_ratio(m);
    if (hits) *hits *= 100;
    out +=
        row(std::to_string(i + 1).c_str(), load.c_str(), std::to_string(m.completed).c_str(),
            std::to_string(stage.warmup + stage.drain).c_str(), decimal(m.ttft.mean_seconds(), 4).c_str(),
            decimal(m.ttft.quantile_seconds(990), 4).c_str(), decimal(m.tpot.mean_seconds(), 4).c_str(),
            decimal(m.e2e.mean_seconds(), 4).c_str(), decimal(stage.rates.per_second(stage.rates.completed), 2).c_str(),
            decimal(stage.rates.per_second(stage.rates.output), 1).c_str(), decimal(hits, 1).c_str());
  }
  return out;
}

}  // namespace kvtwin

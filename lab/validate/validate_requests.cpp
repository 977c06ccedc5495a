#include "lab/validate/validate_requests.hpp"

#include <algorithm>
#include <memory>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/validate/validate_bench.hpp"
#include "lab/validate/validate_errors.hpp"
#include "policy/base/tiers.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

RequestHits hits_of(const TraceRequest& request) {
  RequestHits hits{request.input, request.measured_hits->total, request.measured_hits->by_tier};
  hits.device = request.measured_hits->device;
  hits.host = request.measured_hits->host;
  hits.storage = request.measured_hits->storage;
  return hits;
}

void take_latencies(std::vector<double> seconds, RunFigures& run) {
  if (seconds.empty()) return;
  run.figures["e2e_mean_s"] = mean_and_spread(seconds, false).first;
  const Quantiles quantiles = quantiles_of(std::move(seconds));
  run.figures["e2e_p50_s"] = quantiles.p50;
  run.figures["e2e_p90_s"] = quantiles.p90;
  run.figures["e2e_p99_s"] = quantiles.p99;
}

bool equal(const RequestHits& measured, const RequestHits& predicted) {
  if (!measured.by_tier) return measured.total == predicted.total;
  return measured.device == predicted.device && measured.host == predicted.host &&
         measured.storage == predicted.storage;
}

std::string words_of(const RequestHits& hits) {
  std::string words = grouped(hits.total);
  if (hits.by_tier) {
    words += " (device " + grouped(hits.device) + ", host " + grouped(hits.host) + ", storage " +
             grouped(hits.storage) + ")";
  }
  return words;
}

Json json_of(const RequestHits& hits) {
  Json json{{"total", hits.total}};
  if (hits.by_tier) json.update({{"device", hits.device}, {"host", hits.host}, {"storage", hits.storage}});
  return json;
}

}  // namespace

std::vector<std::string> request_log_settings(const fs::path& log, const Experiment& experiment) {
  return {"workload.trace=" + Json(fs::absolute(log).string()).dump(), "workload.format=\"auto\"",
          "workload.block_tokens=" + std::to_string(experiment.integer("cache.page_tokens"))};
}

RunFigures read_request_log(const Experiment& experiment, bool with_events) {
  const std::string log = experiment.path("workload.trace").string();
  const std::unique_ptr<TraceSource> workload = open_workload(experiment);
  const auto limit = static_cast<std::uint64_t>(experiment.integer("workload.limit"));
  RunFigures run;
  RequestHits sum{0, 0, true};
  std::vector<double> seconds;
  TraceRequest request;
  std::uint64_t number = 0;
  try {
    for (; (limit == 0 || number < limit) && workload->next(request); number += request.is_hint ? 0 : 1) {
      if (request.is_hint) continue;
      if (request.measured_latency >= 0) seconds.push_back(static_cast<double>(request.measured_latency) / 1e9);
      if (!request.measured_hits) continue;
      const RequestHits hits = run.hits[number] = hits_of(request);
      sum.prompt_tokens += hits.prompt_tokens;
      sum.total += hits.total;
      sum.device += hits.device;
      sum.host += hits.host;
      sum.storage += hits.storage;
      sum.by_tier = sum.by_tier && hits.by_tier;
    }
  } catch (const TraceError& error) {
    throw InputError(error.what());
  }
  run.completed = static_cast<double>(number);
  take_latencies(std::move(seconds), run);
  if (!run.hits.empty()) {
    add_hit_shares(sum, experiment, run);
  } else if (!with_events) {
    throw InputError(
        log +
        ": has no hits of its requests (in SGLang's log out.meta_info.cached_tokens); take a log of a server "
        "that writes them, or give --events, a recording of its KV events");
  }
  return run;
}

std::optional<HitErrors> hit_errors(const ValidationCell& cell) {
  HitErrors errors;
  for (const RunFigures& run : cell.measured) {
    for (const auto& [number, measured] : run.hits) {
      const auto predicted = cell.predicted.hits.find(number);
      if (predicted == cell.predicted.hits.end()) continue;
      if (predicted->second.prompt_tokens != measured.prompt_tokens) {
        ++errors.other_prompts;
        continue;
      }
      ++errors.joined;
      const auto [less, more] = std::minmax(measured.total, predicted->second.total);
      errors.max_tokens = std::max(errors.max_tokens, more - less);
      if (equal(measured, predicted->second)) {
        ++errors.equal;
      } else if (!errors.first) {
        errors.first = HitErrors::Difference{number, measured, predicted->second};
      }
    }
  }
  if (errors.joined + errors.other_prompts == 0) return std::nullopt;
  return errors;
}

std::string hit_errors_text(const HitErrors& errors) {
  std::string text = "  hits, each request     equal in " + grouped(errors.equal) + " of " + grouped(errors.joined) +
                     "; largest difference " + grouped(errors.max_tokens) + " tokens\n";
  if (errors.other_prompts != 0) {
    text += "                         " + grouped(errors.other_prompts) +
            " left out: their prompts are of another length on one side\n";
  }
  if (!errors.first) return text;
  text += "    first difference     request " + std::to_string(errors.first->number) + ", prompt of " +
          grouped(errors.first->measured.prompt_tokens) + " tokens\n";
  text += "    measured             " + words_of(errors.first->measured) + "\n";
  return text + "    predicted            " + words_of(errors.first->predicted) + "\n";
}

Json hit_errors_json(const HitErrors& errors) {
  Json json{{"joined", errors.joined},
            {"other_prompts", errors.other_prompts},
            {"equal", errors.equal},
            {"max_difference_tokens", errors.max_tokens},
            {"first_difference", nullptr}};
  if (errors.first) {
    json["first_difference"] = {{"request", errors.first->number},
                                {"prompt_tokens", errors.first->measured.prompt_tokens},
                                {"measured", json_of(errors.first->measured)},
                                {"predicted", json_of(errors.first->predicted)}};
  }
  return json;
}

}  // namespace kvtwin

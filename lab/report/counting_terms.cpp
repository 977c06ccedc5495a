#include "lab/report/counting_terms.hpp"

#include <algorithm>
#include <string>

#include "lab/error.hpp"
#include "lab/experiment/stages.hpp"

namespace kvtwin {
namespace {

TimeNs limit_ns(const Experiment& e, std::string_view key) {
  return static_cast<TimeNs>(e.number(key) * static_cast<double>(kNsPerSecond) + 0.5);
}

}  // namespace

CountingTerms counting_terms(const Experiment& e) {
  CountingTerms terms;
  terms.warmup_requests = static_cast<std::uint64_t>(e.integer("workload.warmup_requests"));
  terms.counts_drain = e.flag("workload.count_drain");
  terms.closed = e.text("workload.loop") == "closed";
  terms.level = {limit_ns(e, "slo.ttft_s"), limit_ns(e, "slo.tpot_s"), limit_ns(e, "slo.e2e_s")};
  for (const WorkloadStage& stage : stages_of(e)) terms.stages.push_back(stage.requests);
  if (!terms.counts_drain && !terms.closed) {
    throw InputError(e.where("workload.count_drain") + ": is false, and " + e.where("workload.loop") +
                     " is open, where the requests that wait at the end are part of the result; set one of them back");
  }
  const auto leaves_none = [&](std::uint64_t requests, const std::string& what) {
    if (requests == 0 || terms.warmup_requests < requests) return;
    throw InputError(e.where("workload.warmup_requests") + ": is " + std::to_string(terms.warmup_requests) + ", and " +
                     what + " has " + std::to_string(requests) + " requests; make it smaller than that");
  };
  leaves_none(static_cast<std::uint64_t>(e.integer("workload.limit")), "the run (" + e.where("workload.limit") + ")");
  if (!terms.stages.empty())
    leaves_none(std::ranges::min(terms.stages), "a stage (" + e.where("workload.generate.stages") + ")");
  return terms;
}

}  // namespace kvtwin

#include "lab/check/file_check.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "impl/runtime/policy_library.hpp"
#include "lab/check/eviction_rules.hpp"
#include "lab/error.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/formatted.hpp"
#include "lab/prices/price_list.hpp"
#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/json.hpp"
#include "models/operator_table.hpp"
#include "models/text_file.hpp"
#include "policy/choices.hpp"
#include "policy/policy_library.hpp"
#include "traces/info.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWanted =
    "give the path of an experiment, a price list, a trace, a config.json, a hardware file or a policy library (.so)";

// Returns whether a line of the file begins a table, or sets a key, that only price lists have.
bool is_price_list(const std::string& toml) {
  constexpr std::array kTables{"currency", "[gpu.", "[dram]", "[drive]", "[nic.", "[pool]", "[power]", "[life]"};
  for (std::size_t at = 0; at < toml.size();) {
    const std::string_view line = std::string_view(toml).substr(at, toml.find('\n', at) - at);
    const std::size_t first = line.find_first_not_of(" \t");
    if (first != std::string_view::npos) {
      const std::string_view text = line.substr(first);
      if (std::ranges::any_of(kTables, [&](const char* begin) { return text.starts_with(begin); })) return true;
    }
    at += line.size() + 1;
  }
  return false;
}

CheckedFile checked_prices(const fs::path& path) {
  const PriceList list = PriceList::from_file(path);
  const auto assumed = std::ranges::count_if(list.figures(), [](const PriceFigure& one) { return one.is_assumed(); });
  return {"price list",
          formatted("%zu figures in ", list.figures().size()) + list.currency() +
              formatted(", %td of them assumed", assumed),
          {}};
}

CheckedFile checked_json(const fs::path& path, const Json& json) {
  const std::string name = path.string();
  if (json.contains("numbers")) {
    const HardwareSpec hardware = hardware_from_file(name);
    return {"hardware",
            formatted("%zu figures", hardware.numbers.size()) + (hardware.gpu.empty() ? "" : " of " + hardware.gpu),
            {}};
  }
  if (json.contains("model_type") || json.contains("architectures")) {
    const ModelGeometry model = model_from_file(name);
    CheckedFile checked{"model", model.name + formatted(": %zu layers, ", model.layers.size()) + model.kv_formula, {}};
    checked.notes = model.inexact;
    checked.notes.insert(checked.notes.end(), model.notes.begin(), model.notes.end());
    return checked;
  }
  if (json.contains("gpu") && json.contains("engine")) {
    const OperatorTable table = operators_from_file(name);
    return {"operator table", table.gpu + ", " + table.engine, {}};
  }
  throw InputError(name + ": is JSON of no kind that kvtwin knows; " + kWanted);
}

CheckedFile checked_policy_library(const std::string& path) {
  install_policy_loader();
  const PolicyFacts facts = facts_of_policy(PolicyKind::eviction, path);
  if (!facts.error.empty()) throw InputError(facts.error);
  const RulesKept kept = test_eviction_rules([&](const EvictionSetup& setup) { return make_eviction(path, setup); });
  if (!kept.broken.empty()) {
    std::string sentence = path + ": breaks rules of eviction policies: ";
    for (const std::string& broken : kept.broken) sentence += (broken == kept.broken.front() ? "" : "; ") + broken;
    throw InputError(sentence + "; docs/contributing/add-a-policy.md has the rules");
  }
  return {
      "eviction policy",
      text_of_policy(fs::path(path).stem().string(), facts.parameters, ParameterTexts::all) +
          formatted("; keeps the rules of policies in %llu random traces, %llu evicted pages",
                    static_cast<unsigned long long>(kept.traces), static_cast<unsigned long long>(kept.evicted_pages)),
      facts.notes};
}

CheckedFile checked_trace(const fs::path& path, const TraceOptions& options) {
  TraceReader reader(path.string(), options);
  const TraceInfo info = trace_info(reader, 0);
  return {"trace",
          std::string(reader.format()) + formatted(": %llu requests in %.0f s, %.1f prompt tokens and %.1f "
                                                   "answer tokens on average",
                                                   static_cast<unsigned long long>(info.requests),
                                                   info.duration_seconds, info.input.mean, info.output.mean),
          reader.notes()};
}

}  // namespace

CheckedFile check_experiment(const Experiment& experiment) {
  const Setup setup = make_setup(experiment);
  CheckedFile checked{"experiment", setup.model.name + " on " + experiment.text("hardware.name"), {}};
  const std::uint32_t machines = setup.all_machines();
  checked.facts += formatted(", %u engine%s, %llu GPU%s", machines, machines == 1 ? "" : "s",
                             static_cast<unsigned long long>(setup.gpus()), setup.gpus() == 1 ? "" : "s");
  const std::unique_ptr<TraceSource> workload = open_workload(experiment);
  const std::string& trace = experiment.text("workload.trace");
  TraceRequest request;
  std::uint64_t requests = 0;
  const auto limit = static_cast<std::uint64_t>(experiment.integer("workload.limit"));
  // Generated traffic may have no end; its first request shows that its figures are complete.
  while (workload->next(request) && (request.is_hint || ++requests != (trace.empty() ? 1 : limit))) {
  }
  checked.facts += trace.empty() ? "; generated traffic of kind " + experiment.text("workload.generate.kind")
                                 : formatted("; %llu requests of ", static_cast<unsigned long long>(requests)) + trace;
  const std::vector<std::string> idle = idle_sentences(idle_keys(experiment));
  for (const std::vector<std::string>& more : {experiment.notes(), setup.notes, workload->notes(), idle}) {
    checked.notes.insert(checked.notes.end(), more.begin(), more.end());
  }
  return checked;
}

CheckedFile check_file(const fs::path& path, const TraceOptions& of_traces) {
  if (path.extension() == ".toml") {
    if (is_price_list(read_text_file(path, kWanted))) return checked_prices(path);
    return check_experiment(Experiment::from_file(path));
  }
  if (is_policy_library(path.string())) return checked_policy_library(path.string());
  if (path.extension() == ".json") {
    const Json json = Json::parse_or_discard(read_text_file(path, kWanted));
    if (json.is_object()) return checked_json(path, json);
  }
  return checked_trace(path, of_traces);
}

}  // namespace kvtwin

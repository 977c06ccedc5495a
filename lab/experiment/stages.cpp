#include "lab/experiment/stages.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "lab/error.hpp"
#include "lab/experiment/workload_recipe.hpp"

namespace kvtwin {
namespace {

constexpr const char* kKey = "workload.generate.stages";
constexpr std::size_t kMaxStages = 1000;
constexpr double kMinRate = 1e-3, kMaxRate = 1e6;
constexpr std::uint64_t kMaxClients = 1'000'000;
constexpr std::uint64_t kMaxRequests = 1'000'000'000'000;  // of a stage

[[noreturn]] void refuse(const Experiment& e, const std::string& sentence) {
  throw InputError(e.where(kKey) + ": " + sentence);
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Returns whether all of `text` is a number.
template <typename Number>
bool reads(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

WorkloadStage stage_of(const Experiment& e, std::string_view part, bool closed) {
  const std::size_t cross = part.find('x');
  const std::string_view load = without_blanks(part.substr(0, cross));
  WorkloadStage stage;
  const bool valid = closed ? reads(load, stage.clients) && stage.clients >= 1 && stage.clients <= kMaxClients
                            : reads(load, stage.requests_per_second) && stage.requests_per_second >= kMinRate &&
                                  stage.requests_per_second <= kMaxRate;
  const bool counted =
      cross == std::string_view::npos || (reads(without_blanks(part.substr(cross + 1)), stage.requests) &&
                                          stage.requests >= 1 && stage.requests <= kMaxRequests);
  if (valid && counted) return stage;
  refuse(e,
         "\"" + std::string(without_blanks(part)) + "\" must be " +
             (closed ? "a number of clients from 1 to 1000000" : "a rate from 0.001 to 1000000 requests per second") +
             ", and with x a number of requests, e.g. " + (closed ? "8 or 8x80" : "0.5 or 0.5x80"));
}

// Gives each stage an equal share of all requests.
void share(const Experiment& e, std::vector<WorkloadStage>& stages) {
  auto requests = static_cast<std::uint64_t>(e.integer("workload.generate.requests"));
  if (requests == 0) {
    requests = static_cast<std::uint64_t>(e.integer("workload.generate.groups")) *
               static_cast<std::uint64_t>(e.integer("workload.generate.prompts_per_group"));
  }
  if (requests < stages.size()) {
    refuse(e, "has " + std::to_string(stages.size()) + " stages for " + std::to_string(requests) +
                  " requests; give each stage its requests, e.g. 8x80, or raise workload.generate.requests");
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    stages[i].requests = requests / stages.size() + (i < requests % stages.size() ? 1 : 0);
  }
}

}  // namespace

std::vector<WorkloadStage> stages_of(const Experiment& e) {
  std::string_view rest = e.text(kKey);
  if (rest.empty() || !e.text("workload.trace").empty() || e.text("workload.generate.kind") != "groups") return {};
  const bool closed = e.text("workload.loop") == "closed";
  if (e.integer("workload.generate.concurrency") != 0) {
    refuse(e, "gives each stage its load, and " + e.where("workload.generate.concurrency") +
                  " gives one to all; leave one of them out");
  }
  std::vector<WorkloadStage> stages;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    stages.push_back(stage_of(e, rest.substr(0, comma), closed));
    if (more) rest.remove_prefix(comma + 1);
    if (stages.size() > kMaxStages) refuse(e, "has more than 1000 stages; give fewer");
  }
  const auto counted = std::ranges::count_if(stages, [](const WorkloadStage& stage) { return stage.requests != 0; });
  if (counted == 0 && has_recipe(e)) {
    for (WorkloadStage& stage : stages) stage.requests = stage.clients * kRecipePromptsPerClient;
  } else if (counted == 0) {
    share(e, stages);
  } else if (static_cast<std::size_t>(counted) != stages.size()) {
    refuse(e, "gives some stages a number of requests; give all stages one, e.g. 8x80, or none");
  } else if (e.integer("workload.generate.requests") != 0) {
    refuse(e, "gives each stage its requests, and " + e.where("workload.generate.requests") +
                  " gives all of them; leave one of them out");
  }
  return stages;
}

std::string stages_past_limit(const Experiment& e, const std::vector<std::uint64_t>& sent) {
  const std::vector<WorkloadStage> stages = stages_of(e);
  std::uint64_t all = 0;
  std::size_t first_empty = 0;  // stages from here on have no request
  std::string part;             // of the stage with too few requests
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::uint64_t planned = stages[i].requests, got = i < sent.size() ? sent[i] : 0;
    all += planned;
    if (got == 0) continue;
    first_empty = i + 1;
    if (got < planned) {
      part = "stage " + std::to_string(i + 1) + " has " + std::to_string(got) + " of its " + std::to_string(planned) +
             " requests";
    }
  }
  const std::size_t empty = stages.size() - first_empty;
  if (part.empty() && empty == 0) return "";
  std::string text = "workload.limit cuts the ladder: " + part + (part.empty() || empty == 0 ? "" : ", and ");
  if (empty == 1) {
    text += "stage " + std::to_string(stages.size()) + " has none of its " + std::to_string(stages.back().requests) +
            " requests";
  } else if (empty != 0) {
    text += "stages " + std::to_string(first_empty + 1) + " to " + std::to_string(stages.size()) + " have none";
  }
  return text + "; all stages need " + std::to_string(all) + " requests";
}

}  // namespace kvtwin

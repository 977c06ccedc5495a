#include "lab/experiment/workload_recipe.hpp"

#include <algorithm>
#include <string>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/stages.hpp"

namespace kvtwin {
namespace {

// github.com/SemiAnalysisAI/InferenceX (InferenceMAX before 2026), commit 843c6254: benchmarks/benchmark_lib.sh has the
// client's options (--request-rate inf, --ignore-eos, --num-warmups of 2 per client), the scripts of
// benchmarks/single_node/fixed_seq_len 10 prompts per client, .github/workflows/benchmark-tmpl.yml RANDOM_RANGE_RATIO
// 0.8, utils/matrix_logic/generate_sweep_configs.py the lengths and clients that double. configs/*-master.yaml say the
// clients of each model: most often 4 to 64. 1k8k was in use until commit 0f78cf4e (2026-03-27).
// All warm-up requests send the first prompt, and end before the others begin (utils/bench_serving/
// benchmark_serving.py). So no recipe has them: they only leave one prompt in the cache.
constexpr std::string_view kSource =
    "SemiAnalysisAI/InferenceX, commit 843c6254 (2026-08-21): benchmarks/benchmark_lib.sh, benchmark-tmpl.yml";
constexpr std::string_view kOldSource =
    "SemiAnalysisAI/InferenceX, commit 0f78cf4e (2026-03-27), the last with these lengths";
constexpr const char* kRangeRatio = "0.8";
constexpr std::uint64_t kLadder[] = {4, 8, 16, 32, 64};

constexpr WorkloadRecipe kRecipes[] = {
    {"inferencemax-1k1k", "InferenceMAX (InferenceX): prompts and answers of 820 to 1,024 tokens", "1024", "1024",
     kSource},
    {"inferencemax-1k8k", "InferenceMAX: prompts of 820 to 1,024 tokens, answers of 6,554 to 8,192", "1024", "8192",
     kOldSource},
    {"inferencemax-8k1k", "InferenceMAX (InferenceX): prompts of 6,554 to 8,192 tokens, answers of 820 to 1,024",
     "8192", "1024", kSource},
};

// Returns the number of prompts of the stages that the experiment gives; 0 if they cannot be read, which
// open_workload() refuses.
std::uint64_t prompts_of_stages(const Experiment& e) {
  std::uint64_t prompts = 0;
  try {
    for (const WorkloadStage& stage : stages_of(e)) prompts += stage.requests;
  } catch (const InputError&) {
    return 0;
  }
  return prompts;
}

}  // namespace

std::span<const WorkloadRecipe> workload_recipes() { return kRecipes; }

std::vector<std::string_view> workload_recipe_names() {
  std::vector<std::string_view> names{kNoRecipe};
  for (const WorkloadRecipe& recipe : kRecipes) names.push_back(recipe.name);
  return names;
}

bool has_recipe(const Experiment& e) { return e.text(kRecipeKey) != kNoRecipe; }

std::vector<EngineSetting> recipe_settings(const Experiment& e) {
  std::vector<EngineSetting> settings;
  const auto* const recipe = std::ranges::find(kRecipes, e.text(kRecipeKey), &WorkloadRecipe::name);
  if (recipe == std::end(kRecipes)) return settings;
  const std::string generate = "workload.generate.";
  settings = {{"workload.loop", "closed"},
              {generate + "kind", "groups"},
              {generate + "groups", "1"},
              {generate + "prefix_tokens", "0"},
              {generate + "question_tokens", std::string(recipe->prompt_tokens)},
              {generate + "output_tokens", std::string(recipe->output_tokens)},
              {generate + "range_ratio", kRangeRatio}};
  std::uint64_t prompts = static_cast<std::uint64_t>(e.integer(generate + "concurrency")) * kRecipePromptsPerClient;
  if (e.is_given(generate + "stages") && !e.text(generate + "stages").empty()) {
    prompts = prompts_of_stages(e);
  } else if (prompts == 0) {
    std::string stages;
    for (const std::uint64_t clients : kLadder) {
      stages += (stages.empty() ? "" : ",") + std::to_string(clients);
      prompts += clients * kRecipePromptsPerClient;
    }
    settings.push_back({generate + "stages", stages});
  }
  if (prompts != 0) settings.push_back({generate + "prompts_per_group", std::to_string(prompts)});
  return settings;
}

}  // namespace kvtwin

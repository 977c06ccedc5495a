// The key workload.recipe: the requests of a published benchmark by name. A recipe sets keys workload.* that the
// experiment does not give, as the key `engine` does (engine_word.hpp). workload.generate.concurrency or
// workload.generate.stages choose the clients; without them, the benchmark's own ladder is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lab/experiment/engine_word.hpp"

namespace kvtwin {

inline constexpr std::string_view kRecipeKey = "workload.recipe", kNoRecipe = "none";
// Begin of the origin of a key that the recipe sets.
inline constexpr std::string_view kByRecipe = "workload.recipe = ";

struct WorkloadRecipe {
  std::string_view name, help;
  std::string_view prompt_tokens, output_tokens;  // the largest
  std::string_view source;
};
std::span<const WorkloadRecipe> workload_recipes();
// The names, and before them kNoRecipe.
std::vector<std::string_view> workload_recipe_names();

// Prompts per client, of each recipe.
inline constexpr std::uint64_t kRecipePromptsPerClient = 10;
// Returns whether the experiment has a recipe.
bool has_recipe(const Experiment& experiment);
// Returns the keys that the recipe sets in this experiment, whether or not the experiment gives them.
std::vector<EngineSetting> recipe_settings(const Experiment& experiment);

}  // namespace kvtwin

#include "lab/experiment/workload_recipe.hpp"

#include <gtest/gtest.h>

#include <string>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/stages.hpp"
#include "lab/experiment/workload.hpp"

namespace kvtwin::test {
namespace {

Experiment with(const std::vector<std::string>& settings) {
  Experiment e = Experiment::from_text("", "test");
  for (const std::string& setting : settings) e.set(setting);
  return e;
}

struct Work {
  std::uint64_t requests = 0;
  Tokens least_input = ~Tokens{0}, most_input = 0, most_output = 0;
};
Work work(const Experiment& e) {
  Work found;
  TraceRequest request;
  const std::unique_ptr<TraceSource> source = open_workload(e);
  while (source->next(request)) {
    ++found.requests;
    found.least_input = std::min(found.least_input, request.input);
    found.most_input = std::max(found.most_input, request.input);
    found.most_output = std::max(found.most_output, request.output);
  }
  return found;
}

TEST(WorkloadRecipe, HasTenPromptsPerClientOfEachLoad) {
  const Experiment ladder = with({"workload.recipe=inferencemax-8k1k"});
  const std::vector<WorkloadStage> stages = stages_of(ladder);
  ASSERT_EQ(stages.size(), 5U);
  EXPECT_EQ(stages.back().clients, 64U);
  EXPECT_EQ(stages.back().requests, 640U);
  const Work all = work(ladder);
  EXPECT_EQ(all.requests, 1240U);
  EXPECT_GE(all.least_input, 6553U) << "80 % of 8,192";
  EXPECT_LE(all.most_input, 8192U);
  EXPECT_GT(all.most_input, 8100U);
  EXPECT_LE(all.most_output, 1024U);
  EXPECT_EQ(ladder.text("workload.loop"), "closed");
  EXPECT_FALSE(ladder.is_given("workload.generate.kind")) << "the recipe gives it";
}

TEST(WorkloadRecipe, KeysReplaceItsOwn) {
  const Experiment one = with({"workload.recipe=inferencemax-1k1k", "workload.generate.concurrency=16"});
  EXPECT_TRUE(stages_of(one).empty());
  EXPECT_EQ(work(one).requests, 160U);
  // In any order.
  const Experiment two = with({"workload.generate.stages=2,4x30", "workload.recipe=inferencemax-1k1k"});
  EXPECT_THROW(stages_of(two), InputError) << "all stages have a number of requests, or none";
  const Experiment three =
      with({"workload.generate.stages=2,4", "workload.generate.output_tokens=7", "workload.recipe=inferencemax-1k8k"});
  EXPECT_EQ(work(three).requests, 60U);
  EXPECT_EQ(work(three).most_output, 7U);
  Experiment none = three;
  none.set("workload.recipe=none");
  EXPECT_EQ(none.text("workload.generate.kind"), "chat") << "the keys of the recipe go with it";
}

TEST(WorkloadRecipe, IsRecordedAndReadAgain) {
  Experiment first = with({"workload.recipe=inferencemax-1k1k", "workload.generate.concurrency=4"});
  Experiment again = Experiment::from_text(first.resolved(), "recorded");
  EXPECT_EQ(work(again).requests, 40U);
  again.set("workload.generate.concurrency=8");
  EXPECT_EQ(work(again).requests, 80U) << "the number of prompts follows the clients";
}

TEST(WorkloadRecipe, HasNoTraceAndNoOtherKindBesideIt) {
  const Experiment chat = with({"workload.recipe=inferencemax-1k1k", "workload.generate.kind=chat"});
  EXPECT_THROW(open_workload(chat), InputError);
  EXPECT_NO_THROW(open_workload(with({"workload.recipe=inferencemax-1k1k", "workload.generate.kind=groups"})));
  const Experiment both = with({"workload.recipe=inferencemax-1k1k", "workload.trace=x.jsonl"});
  EXPECT_THROW(open_workload(both), InputError);
  EXPECT_THROW(with({"workload.recipe=inferencemax-2k2k"}), InputError);
}

}  // namespace
}  // namespace kvtwin::test

#include "lab/experiment/named_workloads.hpp"

#include <algorithm>
#include <vector>

#include "lab/error.hpp"
#include "models/names.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kMooncake =
    "Mooncake's conversation trace (Qin et al., FAST 2025; github.com/kvcache-ai/Mooncake, FAST25-release/traces): "
    "12,031 "
    "requests of one hour, averages by kvtwin trace info";
constexpr std::string_view kClaudeCode =
    "sessions of Claude Code (WEKA kv-cache-tester, Apache-2.0): 9,284 requests of 240 sessions, with drawn starts, "
    "averages by kvtwin trace info";
constexpr std::string_view kRagPulse =
    "RAGPulse (Wang et al., arXiv 2511.12979; github.com/flashserve/RAGPulse): 7,106 requests of a university's "
    "question "
    "service in one week";
constexpr std::string_view kAzureCode =
    "Azure's code trace of 2023 (Patel et al., ISCA 2024; github.com/Azure/AzurePublicDataset): 8,819 requests";

// new_tokens follow from the mean prompts, 12,035 and 83,831 tokens.
constexpr WorkloadFigure kChat[] = {
    {"turns", "1.63", kMooncake},        {"new_tokens", "6937", kMooncake}, {"output_tokens", "343", kMooncake},
    {"prefix_tokens", "512", kMooncake}, {"think_s", "196.2", kMooncake},   {"length_spread", "1.24", kMooncake},
    {"think_spread", "1.16", kMooncake},
};
constexpr WorkloadFigure kCodingAgent[] = {
    {"turns", "38.68", kClaudeCode},        {"new_tokens", "1638", kClaudeCode}, {"output_tokens", "417", kClaudeCode},
    {"prefix_tokens", "4764", kClaudeCode}, {"think_s", "46.7", kClaudeCode},    {"length_spread", "1.18", kClaudeCode},
    {"think_spread", "1.88", kClaudeCode},
};
// prefix_tokens: the part of the instructions that an earlier request had, on average. Retrieved texts stand before the
// history of the conversation, so a follow-up shares no more than a first question does.
constexpr WorkloadFigure kRag[] = {
    {"turns", "1",
     "assumed: a follow-up has other retrieved texts in front of the history, so no longer prefix is shared"},
    {"prompt_tokens", "2944", kRagPulse},
    {"output_tokens", "283", kRagPulse},
    {"prefix_tokens", "925", kRagPulse},
    {"think_s", "40", "assumed: the median gap between requests of a session in RAGPulse; its mean counts later days"},
    {"length_spread", "0.6", "assumed: RAGPulse has 0.43 for prompts and 0.78 for answers"},
};
constexpr WorkloadFigure kBatch[] = {
    {"turns", "1", "assumed: each document is one request"},
    {"prompt_tokens", "2048", kAzureCode},
    {"output_tokens", "28", kAzureCode},
    {"prefix_tokens", "0", "assumed"},
    {"think_s", "0", "assumed: the next document is sent at once"},
};

constexpr NamedWorkload kWorkloads[] = {
    {"chat", "conversations of people", kChat},
    {"coding-agent", "coding agents: many tool calls on a growing context", kCodingAgent},
    {"rag", "single questions with long texts, after a fixed instruction", kRag},
    {"batch", "documents that are processed one after another, without pauses", kBatch},
};

}  // namespace

std::span<const NamedWorkload> named_workloads() { return kWorkloads; }

const NamedWorkload& named_workload(const std::string& name) {
  const auto* const at = std::ranges::find(kWorkloads, name, &NamedWorkload::name);
  if (at != std::end(kWorkloads)) return *at;
  std::vector<std::string> names;
  for (const NamedWorkload& one : kWorkloads) names.emplace_back(one.name);
  throw InputError("--workload: " + unknown_name("workload", name, names));
}

}  // namespace kvtwin

#include "lab/experiment/generated.hpp"

#include "traces/agents.hpp"
#include "traces/generate.hpp"
#include "traces/tools.hpp"

namespace kvtwin {

std::unique_ptr<TraceSource> generated_traffic(std::string_view kind, std::uint64_t seed, std::uint64_t requests,
                                               TimeNs duration, double sessions_per_second,
                                               double requests_per_second) {
  if (kind == "tools") {
    ToolsConfig config{seed, requests, duration, requests_per_second};
    return std::make_unique<ToolsGenerator>(config);
  }
  if (kind == "agentic") {
    AgentsConfig config{seed, requests, duration};
    if (sessions_per_second != 0) config.sessions_per_second = sessions_per_second;
    return std::make_unique<AgentsGenerator>(config);
  }
  ChatConfig config;
  config.seed = seed;
  config.requests = requests;
  config.duration = duration;
  if (sessions_per_second != 0) config.sessions_per_second = sessions_per_second;
  return std::make_unique<ChatGenerator>(config);
}

}  // namespace kvtwin

// Hits of a trace, as `kvtwin hitrate` counts them.
#pragma once

#include <string>
#include <vector>

#include "sim/bounds/hitrate.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin::test {

inline std::vector<HitRate> hit_rates(const std::string& path, const std::vector<Pages>& capacities,
                                      const std::vector<std::string>& evictions = {"lru"}) {
  TraceReader reader(path);
  TraceInputOptions options;
  options.page_tokens = reader.block_tokens();
  options.last_page = LastPage::partial;
  TraceInputSource source(reader, options);
  HitRateConfig config;
  config.evictions = evictions;
  config.capacities = capacities;
  config.block_tokens = reader.block_tokens();
  return replay_hit_rates(source, config);
}

}  // namespace kvtwin::test

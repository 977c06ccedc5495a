#include "sim/bounds/states.hpp"

#include <algorithm>
#include <vector>

#include "policy/base/check.hpp"
#include "sim/bounds/flow.hpp"

namespace kvtwin {

std::uint64_t opt_state_hits(const RequestLog& log, std::span<const Turn> turns, std::span<const std::uint32_t> ends,
                             Pages states) {
  KV_CHECK(ends.size() == turns.size(), "each turn has an end");
  std::vector<std::uint32_t> last_end(log.parent_.size(),
                                      0);  // 1 + the latest end of the turns whose path has the node
  std::vector<FlowArc> arcs;
  std::uint64_t hits = 0;
  for (std::uint32_t turn = 0; turn < turns.size(); ++turn) {
    KV_CHECK(ends[turn] >= turn, "a turn ends after its beginning");
    const std::uint32_t request = turns[turn].request;
    std::uint32_t depth = log.blocks_[request], hit = 0, since = 0;  // of the deeper hit that was looked at last
    for (std::uint32_t node = log.last_node_[request]; node != RequestLog::kRoot; node = log.parent_[node], --depth) {
      std::uint32_t& end = last_end[node];
      if (depth <= turns[turn].counted && end > since) {
        if (hit > 0) arcs.push_back({since - 1, std::min(end - 1, turn), 1, hit - depth});
        hit = depth;
        since = std::min(end, turn + 1);
      }
      end = std::max(end, ends[turn] + 1);
    }
    if (hit == 0) continue;
    if (since - 1 < turn) {
      arcs.push_back({since - 1, turn, 1, hit});
    } else {
      hits += hit;  // the earlier turn had not ended: the state was kept over no gap
    }
  }
  if (arcs.empty()) return hits;
  const auto flow = dearest_flow(turns.size(), arcs, static_cast<std::int64_t>(std::min<Pages>(states, arcs.size())));
  for (std::size_t i = 0; i < arcs.size(); ++i) hits += arcs[i].each * flow[i];
  return hits;
}

}  // namespace kvtwin

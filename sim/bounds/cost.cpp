#include "sim/bounds/cost.hpp"

#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"
#include "sim/bounds/flow.hpp"

namespace kvtwin {
namespace {

// Blocks of one run that save the same cost each.
struct Step {
  std::uint32_t run = 0, blocks = 0;
  std::uint64_t each = 0;
};

struct Point {
  std::uint32_t blocks = 0;
  std::uint64_t cost = 0;
};

// Whether `middle` lies on or below the line from `a` to `b`.
bool below(const Point& a, const Point& middle, const Point& b) {
  return UnsignedWide{middle.cost - a.cost} * (b.blocks - a.blocks) <=
         UnsignedWide{b.cost - a.cost} * (middle.blocks - a.blocks);
}

// Appends the concave hull of the costs of a run's first blocks, as steps. Later steps save less per block.
void add_steps(const Future& future, std::uint32_t run, const PrefixCost& cost, std::vector<Step>& steps) {
  const Reuse& reuse = future.reuses()[run];
  const std::uint32_t end = std::min(reuse.end, future.counted(reuse.to));
  if (end <= reuse.first) return;
  const std::uint64_t base = cost(reuse.to, reuse.first);
  std::vector<Point> hull{{0, 0}};
  for (std::uint32_t depth = reuse.first + 1; depth <= end; ++depth) {
    const Point next{depth - reuse.first, cost(reuse.to, depth) - base};
    while (hull.size() > 1 && below(hull[hull.size() - 2], hull.back(), next)) hull.pop_back();
    hull.push_back(next);
  }
  for (std::size_t i = 1; i < hull.size(); ++i) {
    const std::uint32_t blocks = hull[i].blocks - hull[i - 1].blocks;
    const std::uint64_t earned = hull[i].cost - hull[i - 1].cost;
    steps.push_back({run, blocks, earned / blocks + (earned % blocks != 0 ? 1 : 0)});
  }
}

// A cache that keeps the blocks of the flow as far as they form prefixes: a block leaves together with its parent.
class CostPlan {
 public:
  // `kept`: by run, the number of the run's first blocks that the flow keeps.
  CostPlan(const Future& future, const std::vector<std::uint32_t>& kept)
      : future_(future), kept_(kept), back_(future.turns()), since_(future.turns()) {}

  std::vector<std::uint32_t> hits() {
    std::vector<std::uint32_t> hits;
    std::uint32_t run = 0;
    for (std::uint32_t turn = 0; turn < future_.turns(); ++turn) {
      hits.push_back(serve(turn));
      for (const Reuse& reuse : future_.reuses_of(turn)) back_[reuse.to].push_back(run++);
    }
    return hits;
  }

 private:
  // Consecutive blocks of a path, down to depth `end`, that have been present since turn `since`. Deeper stays begin
  // later.
  struct Stay {
    std::uint32_t end = 0, since = 0;
  };

  std::uint32_t serve(std::uint32_t turn) {
    std::vector<Stay>& stays = since_[turn];
    std::uint32_t hit = 0;
    for (std::size_t i = back_[turn].size(); i-- > 0;) {  // runs of the last user are first on the path
      const Reuse& run = future_.reuses()[back_[turn][i]];
      const bool stayed = stays.empty() || stays.back().since <= run.from;
      if (run.first != hit || !stayed) break;
      hit += kept_[back_[turn][i]];
      for (const Stay& stay : since_[run.from]) {
        if (stay.end > run.first && (stays.empty() ? 0 : stays.back().end) < hit) {
          stays.push_back({std::min(stay.end, hit), stay.since});
        }
      }
    }
    back_[turn] = {};
    stays.push_back({future_.blocks(turn), turn});
    return hit;
  }

  const Future& future_;
  const std::vector<std::uint32_t>& kept_;
  std::vector<std::vector<std::uint32_t>> back_;  // by turn: the runs that end in the turn, in order of `from`
  std::vector<std::vector<Stay>> since_;          // by turn: the stays after the turn
};

}  // namespace

CostBound opt_cost(const Future& future, Pages capacity, const PrefixCost& cost) {
  const std::span<const Reuse> runs = future.reuses();
  std::vector<Step> steps;
  for (std::uint32_t run = 0; run < runs.size(); ++run) add_steps(future, run, cost, steps);
  UnsignedWide all = 0;
  Pages blocks = 0;
  for (const Step& step : steps) {
    all += UnsignedWide{step.each} * step.blocks;
    blocks += step.blocks;
  }
  KV_CHECK(all >> 62 == 0, "all reuses together cost less than 2^62");
  CostBound bound;
  bound.kept.resize(future.turns());
  if (steps.empty()) {
    bound.plan_hits = bound.kept;
    return bound;
  }
  std::vector<FlowArc> arcs;
  for (const Step& step : steps) arcs.push_back({runs[step.run].from, runs[step.run].to, step.blocks, step.each});
  const auto flow = dearest_flow(future.turns(), arcs, static_cast<std::int64_t>(std::min(capacity, blocks)));
  std::vector<std::uint32_t> kept(runs.size(), 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    bound.saved += steps[i].each * flow[i];
    kept[steps[i].run] += flow[i];
    bound.kept[runs[steps[i].run].to] += flow[i];
  }
  bound.plan_hits = CostPlan(future, kept).hits();
  return bound;
}

}  // namespace kvtwin

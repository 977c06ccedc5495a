#include "sim/bounds/flow.hpp"

#include <lemon/network_simplex.h>
#include <lemon/smart_graph.h>

#include "policy/base/check.hpp"

namespace kvtwin {

std::vector<std::uint32_t> dearest_flow(std::size_t turns, std::span<const FlowArc> arcs, std::int64_t capacity) {
  using Graph = lemon::SmartDigraph;
  Graph graph;
  graph.reserveNode(static_cast<int>(turns));
  graph.reserveArc(static_cast<int>(turns + arcs.size()));
  std::vector<Graph::Node> nodes;
  for (std::size_t turn = 0; turn < turns; ++turn) nodes.push_back(graph.addNode());
  Graph::ArcMap<std::int64_t> upper(graph), price(graph);
  const auto add = [&](std::size_t from, std::size_t to, std::int64_t width, std::int64_t earned) {
    const Graph::Arc arc = graph.addArc(nodes[from], nodes[to]);
    upper[arc] = width;
    price[arc] = -earned;
    return arc;
  };
  for (std::size_t turn = 1; turn < turns; ++turn) add(turn - 1, turn, capacity, 0);  // room that stays free
  std::vector<Graph::Arc> added;
  for (const FlowArc& arc : arcs) {
    added.push_back(add(arc.from, arc.to, arc.width, static_cast<std::int64_t>(arc.each)));
  }
  lemon::NetworkSimplex<Graph, std::int64_t, std::int64_t> simplex(graph);
  simplex.upperMap(upper).costMap(price).stSupply(nodes.front(), nodes.back(), capacity);
  KV_CHECK(simplex.run() == decltype(simplex)::OPTIMAL, "keeping nothing is a flow");
  std::vector<std::uint32_t> kept;
  for (const Graph::Arc arc : added) kept.push_back(static_cast<std::uint32_t>(simplex.flow(arc)));
  return kept;
}

}  // namespace kvtwin

// The policies of a run in the seats of its world: one engine; several, among which a router shares out the requests;
// or one engine's ranks as policies of their own, which must all decide the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/setup.hpp"
#include "policy/engine.hpp"
#include "policy/seam/journal.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

// Who looks on at one seat. All may be null, and outlive the cluster.
struct SeatWatch {
  Observer* observer = nullptr;
  DecisionSink* decisions = nullptr;
  InputHandler* inputs = nullptr;  // told each input before the engine is
  ByteSink* journal = nullptr;
};

// WorkError, naming them, when ranks of one engine decided differently.
void refuse_disagreement(const std::vector<DecisionMark>& ranks);

class Cluster {
 public:
  // As many watches as the world has seats, or fewer. `checked`: the seam's contract is. `text`: the journals' own.
  Cluster(const Setup& setup, World& world, const std::vector<SeatWatch>& watches, bool checked, std::string_view text);
  ~Cluster();

  // To the end, at which everything has been answered. WorkError when work is left, or ranks decided differently.
  void run(InputSource& source);

  std::size_t seats() const;
  // Of a storage tier that engines share: at most what there is of it.
  Pages pages_used_max(Tier tier) const;
  // Of all engines, in their order: counts are summed and digests chained. One engine's is its own; so is that of
  // ranks.
  DecisionMark decisions() const;
  DecisionMark decisions_of(std::size_t seat) const;
  std::uint64_t reductions_of(std::size_t seat) const;

 private:
  class Seat;
  class Route;

  const Setup& setup_;
  World& world_;
  std::unique_ptr<Route> route_;  // of several engines
  std::vector<std::unique_ptr<Seat>> seats_;
};

}  // namespace kvtwin

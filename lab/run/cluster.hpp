// The engines of a run, each in one seat of its world. Three cases: one engine; several engines, with a router that
// distributes the requests; or the ranks of one engine as instances, each with a policy of its own. Instances must all
// decide the same. In a real run of several engines, each process has a cluster of its own rank (real_engines.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/request_route.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/report/metrics.hpp"
#include "policy/engine.hpp"
#include "policy/seam/journal.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

// The observers of one seat. Each may be null, and must outlive the cluster.
struct SeatWatch {
  Observer* observer = nullptr;
  DecisionSink* decisions = nullptr;
  InputHandler* inputs = nullptr;  // receives each input before the engine does
  ByteSink* journal = nullptr;
};

// Errors: WorkError with the rank and both digests, if the ranks of one engine decided differently. `who`: begins the
// error's sentence.
void refuse_disagreement(const std::vector<DecisionMark>& ranks, const std::string& who = {});
// Returns the sum of the counts, and the digests chained in the order of the engines.
DecisionMark joined_decisions(const std::vector<DecisionMark>& engines);

class Cluster {
 public:
  // `watches`: one per seat; a seat without one has no observers. `checked`: check the seam's contract.
  // `text`: the resolved experiment, for the journals. Requires: `setup` and `world` outlive this object.
  Cluster(const Setup& setup, World& world, const std::vector<SeatWatch>& watches, bool checked, std::string_view text);
  ~Cluster();

  // `lost` is called with each engine that is found dead. Call it before run().
  void tell_losses_to(std::function<void(std::size_t engine)> lost);
  // Serves all requests. Errors: WorkError if work is left at the end, or if ranks decided differently.
  void run(InputSource& source);

  std::size_t seats() const;
  // Returns the largest number of used pages, summed over the engines. Of a shared tier: the pages that the tier held.
  // A real world does not know them, so there it is the sum of the pages that each engine expects, at most the
  // capacity.
  Pages pages_used_max(Tier tier) const;
  // The same for pool `at` of these engines: pages of pool 0, slots of the others (1 + index in EngineConfig::pools).
  Pages pool_used_max(std::size_t at, Tier tier, EngineRange engines = {}) const;
  // Returns the count and digest of all engines: counts are summed, and digests are chained in the order of the
  // engines. One engine, and ranks as instances, have the count and digest of seat 0.
  DecisionMark decisions() const;
  DecisionMark decisions_of(std::size_t seat) const;
  std::uint64_t reductions_of(std::size_t seat) const;

 private:
  class Seat;

  const Setup& setup_;
  World& world_;
  std::unique_ptr<RequestRoute> route_;  // null for one engine
  std::vector<std::unique_ptr<Seat>> seats_;
};

}  // namespace kvtwin

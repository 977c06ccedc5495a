// The run folder: report.json, requests.csv, lanes.csv, experiment.resolved.toml, metrics.prom. A simulation
// can be repeated, so its folder is written into a temporary sibling and appears when whole; a real run can't,
// so its folder grows in place, and who finds no report.json in it knows that it was cut short.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "impl/world.hpp"
#include "lab/report/hit_bounds.hpp"
#include "lab/report/lane_meter.hpp"
#include "lab/report/metrics.hpp"
#include "lab/report/prefetch_bounds.hpp"
#include "lab/sweep/draws.hpp"
#include "models/calibration_samples.hpp"
#include "policy/seam/journal.hpp"

namespace kvtwin {

// What only a real run has.
struct RealFacts {
  LoopReport loop;
  Verification verification;
  std::vector<StorageCounters> storage;  // of all ranks
  MeasuredMachine machine;
};

// What a report needs besides the metrics.
struct RunFacts {
  std::string world;   // simgrid, events, real
  std::string device;  // model, host, cuda
  std::uint64_t seed = 0;
  struct TierFacts {
    Pages capacity = 0, used_max = 0;
  };
  PerTier<TierFacts> tiers;
  TierFacts& tier(Tier which) { return tiers[which]; }
  const TierFacts& tier(Tier which) const { return tiers[which]; }
  bool stores() const {
    return std::ranges::any_of(kStorageSpecs, [this](const TierSpec& spec) { return tier(spec.tier).capacity != 0; });
  }
  Bytes stored_page_bytes = 0;  // that a page written to a storage tier takes there, all ranks together
  Tokens page_tokens = 0;
  // A target and its draft model, or nothing: what of a page is moved to and from the device, of one rank.
  struct Component {
    const char* name = "";
    Bytes page_bytes = 0;
  };
  std::vector<Component> components;
  TimeNs simulated_ns = 0;
  double wall_seconds = 0;
  std::string kv_formula;
  std::vector<std::string> notes;     // approximations that the reader must know, and warnings
  std::vector<std::string> warnings;  // their short names (lab/report/warnings.hpp)
  std::optional<RealFacts> real;
  struct RankFacts {
    std::uint64_t digest = 0, reductions = 0;
  };
  struct BoundFacts {
    HitBounds::Found hits;
    PrefetchBounds::Found stops;
  };
  std::optional<BoundFacts> bounds;
  std::optional<Draws> draws;
  std::vector<RankFacts> ranks;       // that are policies of their own
  std::vector<DecisionMark> engines;  // if there are several
};

// Which page, tier, layer, and what was found there.
std::string wrong_page_sentence(const WrongPage& page);

// The report as contract.md fixes it (schema_version 1), as JSON text.
std::string report_json(const RunFacts& facts, const Metrics& metrics, const DecisionMark& decisions,
                        const std::vector<LaneUse>& lanes);

// One screen for a person.
std::string summary_text(const RunFacts& facts, const Metrics& metrics, const DecisionMark& decisions,
                         const std::vector<LaneUse>& lanes);

// The counters under SGLang's metric names, in Prometheus' text format (version 0.0.4). A tier that isn't there has
// none.
std::string prometheus_text(const RunFacts& facts, const Metrics& metrics, const std::vector<LaneUse>& lanes);

class RunFolder final : public Observer {
 public:
  enum class Appears : std::uint8_t { whole, at_once };
  // Refuses (InputError) a non-empty `path` without `force`, and with it what is no run folder.
  RunFolder(std::filesystem::path path, bool force, Appears appears = Appears::whole);
  ~RunFolder() override;
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  void on_event(const Event& event) override;  // a row of requests.csv for each request that ends
  // Where a file of that name is written now; after commit it lies in path().
  std::filesystem::path place(const std::string& name) const { return staging_ / name; }
  void write(const std::string& name, const std::string& content);
  void write_lanes(const std::vector<LaneUse>& lanes);
  // The run is over: moves everything into place. WorkError if the disk says no.
  void commit();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path beside(const char* what) const;
  void move_into_place();
  void undo();
  void forget_replaced();

  std::filesystem::path path_;  // as given
  std::filesystem::path target_, staging_;
  Appears appears_;
  std::ofstream requests_;
  std::filesystem::path replaced_;  // the run that was there, until ours has something to tell
  bool fill_ = false;               // the folder was there, and empty
  bool recorded_ = false;           // at_once: a request has ended; from now on a failed run's folder stays
  bool committed_ = false;
};

}  // namespace kvtwin

// The run folder: report.json, requests.csv, lanes.csv, experiment.resolved.toml, metrics.prom.
//
// The folder of a simulation is written next to its place under a temporary name, and renamed when it is complete. A
// real run cannot be repeated, so its folder grows in place; without report.json, the run was cut short.
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
#include "lab/errors/error_features.hpp"
#include "lab/experiment/bill.hpp"
#include "lab/experiment/stages.hpp"
#include "lab/report/draws_text.hpp"
#include "lab/report/hit_bounds.hpp"
#include "lab/report/joined_requests.hpp"
#include "lab/report/lane_meter.hpp"
#include "lab/report/metrics.hpp"
#include "lab/report/page_history.hpp"
#include "lab/report/prefetch_bounds.hpp"
#include "lab/report/warm_figures.hpp"
#include "models/calibration_samples.hpp"
#include "models/device_memory.hpp"
#include "models/engine_pools.hpp"
#include "models/layer_table.hpp"
#include "policy/seam/journal.hpp"
#include "traces/drawn_traffic.hpp"

namespace kvtwin {

// Facts that only a real run has.
struct RealFacts {
  LoopReport loop;
  Verification verification;
  std::vector<StorageCounters> storage;  // sums over all ranks
  MeasuredMachine machine;
};

// The facts of a report that are not in Metrics.
struct RunFacts {
  std::string world;   // simgrid, events, real
  std::string engine;  // of a simulation: engine_line(); empty for a real run
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
  bool prefetches = true;       // false: vLLM's offloading reads storage tiers
  std::uint64_t gpus = 1;       // of all engines
  Bytes stored_page_bytes = 0;  // size of a page in a storage tier, all ranks together
  Tokens page_tokens = 0;
  std::uint64_t objects_per_page = 0;  // in a storage tier, all ranks together; 0 without such a tier
  // The target and the draft model: the bytes of a page that move to and from the device, for one rank. Empty without a
  // draft model.
  struct Component {
    const char* name = "";
    Bytes page_bytes = 0;
  };
  std::vector<Component> components;
  std::vector<WorkloadStage> stages;  // of workload.generate.stages
  TimeNs simulated_ns = 0;
  Rates measured;  // of the window that the rates, the price and the wear of drives are of
  double wall_seconds = 0;
  std::string kv_formula;
  std::vector<LayerRow> layers;  // of the model
  // The memory of a GPU, where its KV is what the rest leaves. `role`: with cluster.prefill, prefill or decode.
  struct MemoryFacts {
    std::string role;
    DeviceMemory memory;
  };
  std::vector<MemoryFacts> memory;
  // SGLang's pools of one engine or group of attention, for a model with several kinds of KV. `role`: with
  // cluster.prefill, prefill or decode.
  struct PoolFacts {
    Tier tier = Tier::device;
    std::string role;
    PoolSize size;  // of one rank
    Tokens window = 0;
    std::uint8_t number = 0;  // as in Event::pool
    EngineRange engines;      // that have this pool
    Pages used_max = 0;       // slots, of all of them; 0 if the pool is not simulated
  };
  std::vector<PoolFacts> pools;
  // vLLM's pool of blocks of one engine, for such a model.
  struct BlockPoolFacts {
    std::string role;
    BlockPool pool;              // of one rank
    std::uint64_t used_max = 0;  // blocks, of all engines; 0: the run does not decide by blocks
  };
  std::vector<BlockPoolFacts> block_pools;
  std::optional<ErrorFeatures> errors;  // of a simulation
  std::vector<std::string> notes;       // approximations and findings, for the reader of the report
  struct WarningFacts {
    std::string name, sentence;
  };
  std::vector<WarningFacts> warnings;        // lab/report/warnings.hpp
  std::optional<PerMissCause> missed_pages;  // nothing: not known
  std::optional<RealFacts> real;
  struct RankFacts {
    std::uint64_t digest = 0, reductions = 0;
  };
  struct BoundFacts {
    HitBounds::Found hits;  // of the requests that the figures count: with report.warm of its window
    PrefetchBounds::Found stops;
  };
  std::optional<BoundFacts> bounds;
  std::optional<WarmFigures> warm;    // report.warm
  std::optional<DrawnTraffic> drawn;  // of generated conversations
  std::uint64_t continued = 0;        // requests that continue another one whose answer the trace does not place
  Tokens answers_again = 0;           // tokens of these answers, at most
  std::optional<Draws> draws;
  std::optional<Bill> bill;      // nothing if the price list has no price for the GPU
  std::vector<RankFacts> ranks;  // of ranks as instances
  // Of several engines.
  struct EngineFacts {
    DecisionMark decisions;
    std::vector<RankFacts> ranks;    // of a real run with several ranks
    std::optional<LoopReport> loop;  // of a real run: of its first rank
  };
  std::vector<EngineFacts> engines;
  struct RoleFacts {
    std::uint64_t prefill = 0, decode = 0;  // engines
    HandOverFigures hand_overs;
    Bytes bytes = 0;  // over the network, also of writes that failed late
  };
  std::optional<RoleFacts> roles;
};

// Returns a sentence with the page, the tier, the place within the page, and the found value.
std::string wrong_page_sentence(const WrongPage& page);

// Returns report.json (schema_version 1; docs/reference/report.md).
std::string report_json(const RunFacts& facts, const Metrics& metrics, const DecisionMark& decisions,
                        const std::vector<LaneUse>& lanes);

// Returns the summary for the screen.
std::string summary_text(const RunFacts& facts, const Metrics& metrics, const DecisionMark& decisions,
                         const std::vector<LaneUse>& lanes);

// Returns metrics.prom: the counters under SGLang's metric names, in Prometheus' text format (version 0.0.4). An absent
// tier has no counters.
std::string prometheus_text(const RunFacts& facts, const Metrics& metrics, const std::vector<LaneUse>& lanes);

// Columns that requests.csv has only in some runs.
struct RequestColumns {
  bool engine = false;     // several engines
  bool hand_over = false;  // hand_over_s: engines with roles
  bool pools = false;      // unusable, without_window, without_state: windows or states decide the hits
};

class RunFolder final : public Observer {
 public:
  enum class Appears : std::uint8_t { whole, at_once };
  // Errors: InputError if `path` is a file, a non-empty folder without `force`, or a non-empty folder that is no run
  // folder; WorkError if the folder cannot be written.
  RunFolder(std::filesystem::path path, bool force, Appears appears = Appears::whole, RequestColumns columns = {});
  ~RunFolder() override;
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Writes one row of requests.csv for each request that finishes or is rejected.
  void on_event(const Event& event) override;
  // Returns the current place of a file. After commit() the file is in path().
  std::filesystem::path place(const std::string& name) const { return staging_ / name; }
  void write(const std::string& name, const std::string& content);
  void write_lanes(const std::vector<LaneUse>& lanes);
  // Completes the folder and moves it to its place. Errors: WorkError.
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
  RequestColumns columns_;
  std::ofstream requests_;
  std::filesystem::path replaced_;  // temporary name of the replaced folder, until the new folder has a result
  bool fill_ = false;               // the folder existed and was empty
  bool recorded_ = false;           // at_once: a request has ended, so the folder stays even if the run fails
  bool committed_ = false;
};

}  // namespace kvtwin

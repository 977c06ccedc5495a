// A description of the servers that are watched: an experiment. It adds the twin of the engine, prefill times, prices
// and flags to what events alone tell.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/engine_arguments.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/watch/hit_curve.hpp"
#include "sim/bounds/instant_engine.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct ServerDescription {
  std::string experiment;  // file; empty: none
  EngineArguments flags;
  std::vector<std::string> sets;
};

class WatchedServer {
 public:
  // Returns nothing if the description is empty. Errors: InputError.
  static std::unique_ptr<WatchedServer> make(const ServerDescription& description);

  const Setup& setup() const { return setup_; }
  const Experiment& experiment() const { return experiment_; }
  Tokens block_tokens() const { return setup_.engine.shape.page_tokens; }
  Pages device_blocks() const { return setup_.engine.device_pages; }
  Pages host_blocks() const { return setup_.engine.host_pages; }
  Pages present_blocks() const { return std::max(device_blocks(), host_blocks()); }
  // Bytes of a block, of all ranks together.
  double block_bytes() const;
  // Bytes that may be written to one drive of the price list in its life.
  double drive_endurance() const;
  PrefillTime prefill_time() const;
  // The server with a host tier of this size.
  struct WithHost {
    std::string command;              // of the server, to paste; empty if the experiment names neither engine
    std::optional<double> per_month;  // price of the tier's memory, of one engine
  };
  WithHost with_host(Pages host_blocks) const;
  // The engine with caches of another size: up to its present device, a device of this size and no host; above, the
  // present device and a host tier of this size. Of a model with windows or states always a device of this size, and
  // nothing if it has a host tier. Nothing if the engine can't have this size.
  std::optional<EngineConfig> engine_of(Pages blocks) const;
  // Price of the GPUs of one engine for a second; nothing if the list has no price for them.
  std::optional<double> engine_second_price() const;
  bool is_vllm() const { return experiment_.text("engine").starts_with("vllm"); }
  bool is_sglang() const { return experiment_.text("engine").starts_with("sglang"); }

 private:
  explicit WatchedServer(Experiment experiment);
  std::optional<EngineConfig> engine_with(const std::string& set) const;
  Experiment experiment_;
  Setup setup_;
};

// The engine's own rules: the policy code decides, and operations take no time.
class EngineTwin {
 public:
  EngineTwin(const EngineConfig& engine, Tokens block_tokens);

  struct Hits {
    Tokens device = 0, host = 0;
    bool rejected = false;
    Tokens without_window = 0, without_state = 0;
  };
  // Requires: arrivals do not go back by more than the engine's clock allows; an earlier one counts as now.
  Hits serve(const TraceRequest& request);
  // About: by the pages and the requests that were computed, up to the size of each tier.
  std::size_t memory_bytes() const;

 private:
  const EngineConfig config_;
  Pages computed_ = 0;
  ArrivalMaker maker_;
  InstantEngine engine_;
  RequestId served_ = 0;
  TimeNs now_ = 0;
};

}  // namespace kvtwin

// The measurements of a machine, one JSON object per line (measurements.jsonl), so that measuring and fitting are
// separate:
//
//   {"what":"machine","cpu":"...","cores":2,"kernel":"...","device":"host",            first line, if known
//    "load_average":[before, after],"steal_share":..}                                 both optional
//   {"what":"model","name":"tiny","config":{...}}                                      a config.json for passes
//   {"what":"transfer","path":"kernel","direction":"h2d","bytes":..,"descriptors":..,...,"seconds":..}
//   {"what":"both",...}            as transfer; "bytes" per direction; time until both directions have ended
//   {"what":"forward","model":"tiny","tp":1,"steps":1,"prefill_tokens":..,...,"seconds":..}
//   {"what":"disk"|"remote","verb":"get","pages":..,"page_bytes":..,...,"seconds":..}
//   {"what":"nic","bytes":..,"stream":true,"seconds":..}                one message, in a stream of messages or alone
//   {"what":"interference","lane":"compute","beside":"h2d","alone_seconds":..,"seconds":..}
//   {"what":"probe","of":"copies"|"forward"|"disk","seconds":..}        the same work at several times, in order of
//   time
//
// "recorded": true for the passes of a served run; absent for measurements of their own. Requires: seconds above 0.
// Errors: ModelError with file and line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "models/geometry.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

// Other load of the machine during the measurements.
struct MachineLoad {
  double before = 0, after = 0;  // load average of the last minute
  double steal_share = 0;        // share of processor time that a hypervisor gave to other machines
};

struct MeasuredMachine {
  std::string cpu, kernel;
  std::uint64_t cores = 0;
  std::string device;  // "host", or the name of the GPU
  std::optional<MachineLoad> load = {};
  // Compares CPU, cores and device. The kernel may differ.
  bool same_as(const MeasuredMachine& other) const {
    return cpu == other.cpu && cores == other.cores && device == other.device;
  }
  std::string text() const;  // for the user
  // Returns a sentence if other work disturbed the measurements: a load of at least half the cores before the start, or
  // at least 1 % of stolen time. Otherwise, or if the load is not known, returns an empty text.
  std::string load_sentence() const;
};

struct MeasuredModel {
  std::string name;
  std::string config;  // text of config.json
  ModelGeometry geometry;
};

enum class Measured : std::uint8_t { transfer, both, forward, storage, nic, interference, probe };

struct Measurement {
  Measured what = Measured::transfer;
  double seconds = 0;
  bool recorded = false;
  Plan plan;  // transfer, both; without runs
  // forward
  std::size_t model = 0;  // index in Measurements::models
  std::uint32_t tp = 1;
  ForwardShape shape;
  std::uint64_t steps = 1;
  StorageWork work;  // storage
  // nic
  Bytes bytes = 0;
  bool stream = false;
  // interference
  std::string lane, beside;
  double alone_seconds = 0;
  std::string of;  // probe: the group of the fit whose work it repeats
};

struct Measurements {
  std::optional<MeasuredMachine> machine;
  std::vector<MeasuredModel> models;
  std::vector<Measurement> list;

  // Returns the index of the model. An equal model is added once.
  std::size_t add_model(const std::string& name, const std::string& config);
  // Errors: ModelError with `from` if the measurements are of another machine.
  void add(Measurements more, const std::string& from);
};

std::string to_jsonl(const Measurements& measurements);
Measurements parse_measurements(std::string_view text, const std::string& file);

// Returns a measurement without its seconds: equal texts mean equal work.
std::string features_of(const Measurements& all, const Measurement& one);

// Returns whether the text is a table of ucx_perftest, ib_write_bw, ib_read_bw, ib_write_lat or ib_read_lat.
bool looks_like_perftest(std::string_view text);
Measurements parse_perftest(std::string_view text, const std::string& file);

}  // namespace kvtwin

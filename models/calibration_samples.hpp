// What was measured on a machine, one measurement a line of JSON (measurements.jsonl), so that fitting is a matter of
// its own:
//
//   {"what":"machine","cpu":"...","cores":2,"kernel":"...","device":"host",            the first line, if it is known
//    "load_average":[before, after],"steal_share":..}                                 both optional
//   {"what":"model","name":"tiny","config":{...}}                                      a config.json; passes name it
//   {"what":"transfer","path":"kernel","direction":"h2d","bytes":..,"descriptors":..,...,"seconds":..}
//   {"what":"both",...}            as transfer; "bytes" each way at once, for as long as both moved
//   {"what":"forward","model":"tiny","tp":1,"steps":1,"prefill_tokens":..,...,"seconds":..}
//   {"what":"disk"|"remote","verb":"get","pages":..,"page_bytes":..,...,"seconds":..}
//   {"what":"nic","bytes":..,"stream":true,"seconds":..}                one message, of many in a row or by itself
//   {"what":"interference","lane":"compute","beside":"h2d","alone_seconds":..,"seconds":..}
//
// "recorded": true where it is of a served run, else it was measured for its own sake. Seconds are above 0.
// Errors: ModelError, with file and line.
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

// What else a machine did while it was measured.
struct MachineLoad {
  double before = 0, after = 0;  // load averages of a minute
  double steal_share = 0;        // of the processors' time: what a hypervisor gave to others
};

struct MeasuredMachine {
  std::string cpu, kernel;
  std::uint64_t cores = 0;
  std::string device;  // host, or the GPU's name
  std::optional<MachineLoad> load = {};
  // By processor, cores and device; a kernel may be renewed.
  bool same_as(const MeasuredMachine& other) const {
    return cpu == other.cpu && cores == other.cores && device == other.device;
  }
  std::string text() const;  // for people
  // That other work disturbed what was measured: a load of half the cores before it began, or 1 % of stolen time.
  // Empty if neither is known.
  std::string load_sentence() const;
};

struct MeasuredModel {
  std::string name;
  std::string config;  // as config.json has it
  ModelGeometry geometry;
};

enum class Measured : std::uint8_t { transfer, both, forward, storage, nic, interference };

struct Measurement {
  Measured what = Measured::transfer;
  double seconds = 0;
  bool recorded = false;
  Plan plan;  // transfer, both; without runs
  // forward
  std::size_t model = 0;  // in Measurements::models
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
};

struct Measurements {
  std::optional<MeasuredMachine> machine;
  std::vector<MeasuredModel> models;
  std::vector<Measurement> list;

  // Its number; the same for an equal one.
  std::size_t add_model(const std::string& name, const std::string& config);
  // ModelError, which names `from`, if that is of another machine.
  void add(Measurements more, const std::string& from);
};

std::string to_jsonl(const Measurements& measurements);
Measurements parse_measurements(std::string_view text, const std::string& file);

// One measurement without its seconds: equal for equal work.
std::string features_of(const Measurements& all, const Measurement& one);

// The table that ucx_perftest, ib_write_bw, ib_read_bw, ib_write_lat or ib_read_lat print.
bool looks_like_perftest(std::string_view text);
Measurements parse_perftest(std::string_view text, const std::string& file);

}  // namespace kvtwin

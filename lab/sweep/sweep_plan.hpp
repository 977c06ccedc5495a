// The plan of a sweep: keys with lists of values (axes), and cases (named groups of settings). The cells of the sweep
// are all combinations. The plan comes from the [sweep] section of an experiment file, or from the command line:
//
//   [sweep]
//   title = "When is L3 worth waiting for?"     # title of the figure
//   along = "hardware.disk_read_gbps"           # x axis: a varied key with numbers in ascending order
//   pairs = [["waits", "recompute"]]            # cases: where on the x axis is the first one slower?
//   show = ["ttft_mean_s", "ttft_p99_s"]        # figures to print and draw; these are the default
//   warm_up = 0.25                              # share of the first requests that TTFT figures leave out
//   [sweep.vary]
//   hardware.disk_read_gbps = [1, 10, 100]
//   "tiers.disk.gib+tiers.remote.gib" = [1, 2]  # both keys have the same value
//   [sweep.case.waits]
//   cache.prefetch_policy = "wait_complete"
//   [sweep.case.recompute]
//   tiers.disk.gib = 0
//   hardware.disk_read_gbps = 0                 # a key that the case sets does not vary in the case
//
// Order of the cells: cases in the order of the file; within a case, the lists in their order, the last list varies
// fastest. Errors: InputErrors name the line or the option.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/experiment/experiment.hpp"

namespace kvtwin {

struct SweepValue {
  std::string text;  // for Experiment::set()
  std::optional<double> number;
  friend bool operator==(const SweepValue&, const SweepValue&) = default;
};

struct SweepAxis {
  std::string name;  // the keys, joined by +
  std::vector<std::string> keys;
  std::vector<SweepValue> values;
  std::string origin;
};

struct SweepCase {
  std::string name;
  std::vector<std::pair<std::string, SweepValue>> settings;
  std::string origin;
};

struct SweepCell {
  std::size_t of_case = 0;                          // meaningless without cases
  std::vector<std::optional<std::size_t>> indices;  // index of each axis' value; nothing if the case sets the key
  friend bool operator==(const SweepCell&, const SweepCell&) = default;
};

class SweepPlan {
 public:
  // Reads the [sweep] section of a file. Without this section, nothing varies. Errors: InputError.
  static SweepPlan from_file(const std::filesystem::path& path);
  static SweepPlan from_text(std::string_view text, const std::string& name);

  // Adds an axis, or replaces the axis of the file. `assignment`: key=a,b,c or key+key=a,b,c. Errors: InputError.
  void vary(std::string_view assignment);
  // Adds a last axis: the values `first`, `first` + 1, ... of `key`, `times` in all. `origin`: the option, for errors.
  void repeat(const std::string& key, std::int64_t first, std::size_t times, const std::string& origin);
  // Keeps only these cases, and the pairs of these cases. Errors: InputError for an unknown case.
  void only_cases(const std::vector<std::string>& names);
  const std::string& show_origin() const { return show_origin_; }
  // Checks the complete plan. Errors: InputError for contradictions, and if nothing varies.
  void check() const;

  std::vector<SweepCell> cells() const;
  // Returns keys and values of a cell: the settings of its case first, then the axes.
  std::vector<std::pair<std::string, std::string>> settings(const SweepCell& cell) const;
  Experiment experiment(const Experiment& base, const SweepCell& cell) const;
  // Returns e.g. "case waits, hardware.disk_read_gbps=10".
  std::string name_of(const SweepCell& cell) const;

  std::string title;
  std::string along;  // name of the x axis; empty = none
  std::vector<std::string> show{"ttft_mean_s", "ttft_p99_s"};
  double warm_up = 0;
  std::vector<SweepAxis> axes;
  std::vector<SweepCase> cases;
  std::vector<std::pair<std::string, std::string>> pairs;
  std::optional<std::size_t> along_axis() const;
  std::size_t case_named(std::string_view name) const;  // cases.size() for an unknown name

 private:
  bool pinned(const SweepCase& of_case, const SweepAxis& axis) const;
  std::string pairs_origin_, along_origin_, show_origin_;
};

}  // namespace kvtwin

// What a sweep runs: an experiment's keys with lists of values, and cases, sets of settings with a name; their
// cross product is the sweep's cells. Told by the experiment file's [sweep], or on the command line:
//
//   [sweep]
//   title = "When is L3 worth waiting for?"     # of the figure
//   along = "hardware.disk_read_gbps"           # its x axis: one of those that vary, numbers in ascending order
//   pairs = [["waits", "recompute"]]            # cases: where along it is the first one slower?
//   show = ["ttft_mean_s", "ttft_p99_s"]        # figures of a row that are printed and drawn; these are the default
//   warm_up = 0.25                              # share of the requests, the first ones, that TTFT figures leave out
//   [sweep.vary]
//   hardware.disk_read_gbps = [1, 10, 100]
//   "tiers.disk.gib+tiers.remote.gib" = [1, 2]  # both take the same value
//   [sweep.case.waits]
//   cache.prefetch_policy = "wait_complete"
//   [sweep.case.recompute]
//   tiers.disk.gib = 0
//   hardware.disk_read_gbps = 0                 # what a case sets doesn't vary in it: one cell, not three
//
// Order of cells: cases as they are given, then each list in the order given, the last one fastest. InputErrors name
// the line, or the option.
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
  std::string text;  // as Experiment::set takes it
  std::optional<double> number;
  friend bool operator==(const SweepValue&, const SweepValue&) = default;
};

struct SweepAxis {
  std::string name;  // its keys, joined by +
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
  std::size_t of_case = 0;                          // none if there are no cases
  std::vector<std::optional<std::size_t>> indices;  // of each axis' values; none: the case sets it
  friend bool operator==(const SweepCell&, const SweepCell&) = default;
};

class SweepPlan {
 public:
  // The file's [sweep]; without one, nothing varies.
  static SweepPlan from_file(const std::filesystem::path& path);
  static SweepPlan from_text(std::string_view text, const std::string& name);

  // key=a,b,c or key+key=a,b,c: instead of the file's list for it, or a list more.
  void vary(std::string_view assignment);
  // Each cell so often, with as many values of `key` from `first` on: an axis more, the last one. `origin`: the option.
  void repeat(const std::string& key, std::int64_t first, std::size_t times, const std::string& origin);
  // Only these cases; pairs with others are left out.
  void only_cases(const std::vector<std::string>& names);
  const std::string& show_origin() const { return show_origin_; }
  // Nothing contradicts itself, and something varies. Call it once all has been said.
  void check() const;

  std::vector<SweepCell> cells() const;
  // The cell's settings in order: key and value, those of its case first.
  std::vector<std::pair<std::string, std::string>> settings(const SweepCell& cell) const;
  Experiment experiment(const Experiment& base, const SweepCell& cell) const;
  // In words: "case waits, hardware.disk_read_gbps=10".
  std::string name_of(const SweepCell& cell) const;

  std::string title;
  std::string along;  // an axis' name; empty = none
  std::vector<std::string> show{"ttft_mean_s", "ttft_p99_s"};
  double warm_up = 0;
  std::vector<SweepAxis> axes;
  std::vector<SweepCase> cases;
  std::vector<std::pair<std::string, std::string>> pairs;
  std::optional<std::size_t> along_axis() const;
  std::size_t case_named(std::string_view name) const;  // cases.size() if there is none

 private:
  bool pinned(const SweepCase& of_case, const SweepAxis& axis) const;
  std::string pairs_origin_, along_origin_, show_origin_;
};

}  // namespace kvtwin

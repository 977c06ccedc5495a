// What a plan may vary, and a setting: one value of each.
//
// Kinds of choices: an amount (numbers of which more is assumed to serve at least as well: tiers' sizes, drives, NICs,
// bandwidths), a part (anything else that is bought: the GPU, tensor parallelism, the model), and a policy (keys of
// cache, scheduler and cluster.route, which cost nothing). The number of engines is an amount of its own.
//
// The choice "drives" is the number of drives of an engine: 0 = no disk tier; N = hardware.disk_drives = N, and a disk
// tier of 90 % of what N drives of the price list hold.
//
// The choice "prefill_share" is the share of the engines that only prefill, a part: 0 = no engine has a role; otherwise
// the nearest whole number of engines, and at least one engine of each role.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/prices/price_list.hpp"
#include "lab/sweep/sweep_plan.hpp"

namespace kvtwin {

enum class ChoiceKind : std::uint8_t { amount, part, policy };

struct PlanChoice {
  std::string name;                // the key, or "drives"
  std::vector<std::string> keys;   // the keys that it sets to the value; empty for drives
  std::vector<SweepValue> values;  // amounts: ascending
  ChoiceKind kind = ChoiceKind::part;
  bool none_first = false;  // amounts: the first value is 0, a machine without this tier
};

inline constexpr std::int64_t kMaxEngines = 1024;

struct Setting {
  std::vector<std::size_t> values;  // by choice: index of its value
  std::int64_t engines = 1;
  friend auto operator<=>(const Setting&, const Setting&) = default;
};

struct RoleCounts {
  std::int64_t prefill = 0, decode = 0;  // engines; 0 and 0: no engine has a role
};

// Sets the number of engines of each role, and of all engines.
void set_roles(const RoleCounts& roles, Experiment& experiment);

class Choices {
 public:
  // `lists`: --vary, as for sweeps, and NAME=A..B for the engines. parallel.tp, tiers.host.gib, drives and
  // cluster.route vary too, unless `lists` or the experiment sets them. Roles of the experiment fix the number of
  // engines. Errors: InputError.
  Choices(const std::vector<std::string>& lists, const Experiment& base, const PriceList& prices);

  const std::vector<PlanChoice>& list() const { return list_; }
  // Returns the numbers of engines to choose from: of --vary, or that of the experiment; empty if neither gives one.
  const std::vector<std::int64_t>& engines() const { return engines_; }
  std::vector<std::size_t> of_kind(ChoiceKind kind) const;  // indices in list()
  Setting largest() const;                                  // the last value of each choice, and two engines
  // Returns the engines of each role with the setting's number of engines. Requires: at least fewest_engines().
  RoleCounts roles(const Setting& setting) const;
  bool has_roles(const Setting& setting) const { return roles_.prefill > 0 || prefill_share(setting) > 0; }
  std::int64_t fewest_engines(const Setting& setting) const { return has_roles(setting) ? 2 : 1; }

  // Returns `base` with the values of the setting. Storage without a host tier needs cache.path = direct, which is set
  // unless the base sets cache.path. Errors: InputError.
  Experiment experiment(const Experiment& base, const Setting& setting) const;
  // Returns names and values, with cluster.engines, and with the engines of each role where prefill_share gives roles.
  std::vector<std::pair<std::string, std::string>> texts(const Setting& setting) const;
  // Returns "parallel.tp=4 cluster.engines=5".
  std::string text(const Setting& setting) const;

 private:
  void add(SweepAxis axis);
  void add_defaults(const Experiment& base);
  void take_roles(const Experiment& base);
  double prefill_share(const Setting& setting) const;  // 0 without this choice

  std::vector<PlanChoice> list_;
  std::vector<std::int64_t> engines_;
  RoleCounts roles_;      // of the experiment
  double drive_gib_ = 0;  // usable, of one drive
};

}  // namespace kvtwin

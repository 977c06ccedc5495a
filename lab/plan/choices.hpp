// What a plan may vary, and a setting: one value of each.
//
// Kinds of choices: an amount (numbers of which more is assumed to serve at least as well: tiers' sizes, drives, NICs,
// bandwidths), a part (anything else that is bought: the GPU, tensor parallelism, the model), and a policy (keys of
// cache, scheduler and cluster.route, which cost nothing). The number of engines is an amount of its own.
//
// The choice "drives" is the number of drives of an engine: 0 = no disk tier; N = hardware.set.drive_count = N, and a
// disk tier of 90 % of what N drives of the price list hold.
//
// The choice "prefill_share" is the share of the engines that only prefill, a part: 0 = no engine has a role; otherwise
// the nearest whole number of engines, and at least one engine of each role.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
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
  bool by_default = false;  // nobody named it
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
  // `lists`: --vary, as for sweeps, and NAME=A..B for the engines. hardware.name and model.weights
  // (lab/plan/default_parts.hpp), parallel.tp, tiers.host.gib, drives and cluster.route vary too, unless `lists` or the
  // experiment sets them, or `defaults` is false: then the engines are the experiment's as well. Roles of the
  // experiment fix the number of engines. Errors: InputError, ModelError.
  Choices(const std::vector<std::string>& lists, const Experiment& base, const PriceList& prices, bool defaults = true);

  const std::vector<PlanChoice>& list() const { return list_; }
  // Returns the numbers of engines to choose from: of --vary, or that of the experiment; empty if neither gives one.
  const std::vector<std::int64_t>& engines() const { return engines_; }
  std::vector<std::size_t> of_kind(ChoiceKind kind) const;  // indices in list()
  // Returns the choices whose next values are neighbours of a setting: amounts, and the formats of the weights that
  // vary by default, so that of equal prices the model's own format is found.
  std::vector<std::size_t> in_steps() const;
  // Returns the setting with the next value of the choice that is offered, upwards (step = 1) or downwards (-1);
  // nothing if there is none.
  std::optional<Setting> stepped(Setting setting, std::size_t choice, int step) const;
  // Returns the last value of each choice, of the last combination of parts that is offered, and two engines.
  Setting largest() const;
  // Returns false for parts that vary by default and do not go together: a GPU without units for the format of the
  // weights, or without memory for the model.
  bool offers(const Setting& setting) const;
  // Returns the place of the setting's format of weights among those that vary by default; 0 = the model's own format.
  std::size_t format_place(const Setting& setting) const;
  // Returns sentences: which values vary that nobody gave, which were left out, and why.
  const std::vector<std::string>& assumed() const { return assumed_; }
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
  // Returns the names and values in which `setting` differs from `from`, as text() has them; "the same" without any.
  std::string difference(const Setting& setting, const Setting& from) const;

 private:
  void add(SweepAxis axis);
  void add_defaults(const Experiment& base, const PriceList& prices);
  bool is_open(std::initializer_list<std::string_view> keys, const Experiment& base) const;
  void add_default_parts(const Experiment& base, const PriceList& prices);
  void leave_out_unfit(const Experiment& base);
  std::vector<std::size_t> parts_of(const Setting& setting) const;
  std::optional<std::size_t> default_format() const;  // model.weights in list_, if it varies by default
  void take_roles(const Experiment& base);
  double prefill_share(const Setting& setting) const;  // 0 without this choice

  std::vector<PlanChoice> list_;
  std::vector<std::int64_t> engines_;
  std::set<std::vector<std::size_t>> offered_;  // values of all parts; empty: all combinations
  std::vector<std::string> assumed_;
  RoleCounts roles_;      // of the experiment
  double drive_gib_ = 0;  // usable, of one drive
};

}  // namespace kvtwin

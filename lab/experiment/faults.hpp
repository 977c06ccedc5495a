// The key `faults`: a list of planned faults, each with its parameters, as policies have them:
//
//   faults = ["engine(index=3, at=30s, detect=2s)", "node(index=1, from=10s, to=20s)"]
//
// The same list fails the same parts in `simulate` and in `run`. A world that lacks a fault refuses the fault by name.
// Times count from the start of the run. Keys of earlier versions (earlier_keys()) add faults to the list.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/choices.hpp"
#include "sim/world.hpp"

namespace kvtwin {

class Experiment;

constexpr std::string_view kFaultsKey = "faults";

std::span<const std::string_view> fault_names();
// Returns the parameters of a fault, as facts_of_policy() does for a policy.
PolicyFacts facts_of_fault(std::string_view text);

struct Fault {
  PolicyFacts facts;

  const std::string& name() const { return facts.name; }
  std::string text() const { return facts.text(ParameterTexts::given); }
  // A count, ns, or the place of a word. Requires, here and below: the fault has the parameter.
  std::int64_t number(std::string_view parameter) const { return facts.find(parameter)->number; }
  double decimal(std::string_view parameter) const;
  const std::string& word(std::string_view parameter) const { return facts.find(parameter)->value; }
  FaultSpan span() const { return {static_cast<TimeNs>(number("from")), static_cast<TimeNs>(number("to"))}; }
};

// Returns the faults of a list with commas; "none" is no fault. Errors: InputError that begins with `where`, for
// another form, and for two faults of one part at the same time.
std::vector<Fault> faults_in(std::string_view list, const std::string& where);
// Returns the list's text, which reads as the same faults.
std::string text_of_faults(const std::vector<Fault>& faults);

// Returns the faults of the experiment with this name, in the order of the list.
std::vector<Fault> faults_of(const Experiment& experiment, std::string_view name);
// Returns the beginning of an error text: "faults (--set): engine(index=3)".
std::string where_of(const Experiment& experiment, const Fault& fault);

// Returns the faults of an earlier key with a list of spans, e.g. faults.node_down = "1@60+30". Errors: InputError that
// begins with `where`.
std::string faults_of_spans(std::string_view fault, std::string_view spans, const std::string& where);

// Sets the faults of the storage tiers and of their network. Requires: `world` has its network and its storage tiers.
// Errors: InputError for a part that is not there.
void read_faults(const Experiment& experiment, WorldConfig& world);

// Errors: InputError for the first fault that this kind of world cannot do.
void refuse_faults_of_runs(const Experiment& experiment);         // those that only kvtwin run can do
void refuse_faults_of_simulations(const Experiment& experiment);  // those that only kvtwin simulate can do

}  // namespace kvtwin

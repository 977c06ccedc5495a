// Every decision that a policy makes, the names of its policies, and the parameters of each policy. Users choose a
// policy by a text, "slru(protected=3)" (policy/base/parameters.hpp). The functions make_eviction(), make_router() and
// so on take such texts, and return null for a text with a fault; facts_of_policy() says which fault.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/parameters.hpp"

namespace kvtwin {

enum class PolicyKind : std::uint8_t {
  eviction,
  termination,
  write,
  prefetch_admission,
  load_back_admission,
  route,
  order,
  style,
  state_points,
  pool_eviction
};

// Returns the known names.
std::span<const std::string_view> policy_names(PolicyKind kind);
// True for these, and for the path of a policy library (policy/policy_library.hpp) if the kind is eviction. Whether the
// library can be loaded shows facts_of_policy().
bool is_policy_name(PolicyKind kind, std::string_view name);

struct PolicyFacts {
  std::string name;                   // as in the text; not of a known policy if it is none of policy_names()
  std::string error;                  // one sentence; empty if the text has no fault
  std::vector<Parameter> parameters;  // all that the policy has, with the values of the text
  std::vector<std::string> notes;     // of the policy about these values

  // Returns the text of the policy with these parameters.
  std::string text(ParameterTexts which) const { return text_of_policy(name, parameters, which); }
  // Returns null for a parameter that the policy lacks.
  const Parameter* find(std::string_view parameter) const;
};
PolicyFacts facts_of_policy(PolicyKind kind, std::string_view text);

}  // namespace kvtwin

// The policies of every decision, by their names. (Trace formats are in traces/format.cpp.)
#include "policy/choices.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/config.hpp"
#include "policy/eviction.hpp"
#include "policy/load_back_admission.hpp"
#include "policy/order.hpp"
#include "policy/policy_library.hpp"
#include "policy/pool_eviction.hpp"
#include "policy/prefetch_admission.hpp"
#include "policy/route.hpp"
#include "policy/route_groups.hpp"
#include "policy/state_points.hpp"
#include "policy/style.hpp"
#include "policy/termination.hpp"
#include "policy/write.hpp"

namespace kvtwin {
namespace {

EvictionLoader installed_loader = nullptr;

template <typename Make>
struct Choice {
  std::string_view name;
  Make* make;
};

template <typename Make, std::size_t count>
constexpr std::array<std::string_view, count> names_in(const Choice<Make> (&choices)[count]) {
  std::array<std::string_view, count> names;
  for (std::size_t i = 0; i < count; ++i) names[i] = choices[i].name;
  return names;
}

// Makes the policy that `text` names. `call`: calls a make function with parameters, which keep the record of what was
// read. Returns null for a text with a fault. `facts`: if not null, gets what is known about the text.
template <typename Make, std::size_t count, typename Call>
auto make(const Choice<Make> (&choices)[count], std::string_view text, PolicyFacts* facts, const Call& call) {
  Parameters parameters;
  decltype(call(choices[0].make, parameters)) made;
  const PolicyText parts = policy_text(text);
  if (facts != nullptr) facts->name = parts.name;
  std::string wrong = parts.closed ? "no policy has this name" : "write name(parameter=value, ...)";
  Make* function = nullptr;
  if (const auto* const choice = std::ranges::find(choices, parts.name, &Choice<Make>::name);
      parts.closed && choice != std::end(choices)) {
    function = choice->make;
  }
  if constexpr (std::is_same_v<Make, MakeEviction>) {
    if (parts.closed && is_policy_library(parts.name) && installed_loader != nullptr) {
      LoadedEviction loaded = installed_loader(parts.name);
      function = loaded.make;
      wrong = std::move(loaded.error);
    }
  }
  if (function == nullptr) {
    if (facts != nullptr) facts->error = std::move(wrong);
    return made;
  }
  parameters = Parameters(parts.parameters);
  made = call(function, parameters);
  const std::string error = parameters.error();
  if (!error.empty()) made = nullptr;
  if (facts != nullptr) {
    if (!error.empty()) facts->error = facts->name + ": " + error;
    facts->parameters = parameters.read();
    facts->notes = parameters.notes();
  }
  return made;
}

// For make functions that take their parameters as a part of a setup.
template <typename Setup>
auto with_setup(const Setup& setup) {
  return [&setup](auto* make, Parameters& parameters) {
    Setup own = setup;
    own.parameters = std::move(parameters);
    auto made = make(own);
    parameters = std::move(own.parameters);
    return made;
  };
}

auto with_config(const EngineConfig& config) {
  return [&config](auto* make, const Parameters& parameters) { return make(config, parameters); };
}

constexpr auto kParametersOnly = [](auto* make, const Parameters& parameters) { return make(parameters); };

}  // namespace

void set_eviction_loader(EvictionLoader loader) { installed_loader = loader; }

bool is_policy_name(PolicyKind kind, std::string_view name) {
  if (kind == PolicyKind::eviction && installed_loader != nullptr && is_policy_library(name)) return true;
  return std::ranges::find(policy_names(kind), name) != policy_names(kind).end();
}

// CMake writes each policy/DECISION.inc: KV_CHOICE(NAME) for each policy/DECISION/NAME.cpp (cmake/Choices.cmake).

// ---- eviction ----

#define KV_CHOICE(name) std::unique_ptr<EvictionPolicy> make_##name(const EvictionSetup&);
#include "policy/eviction.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<MakeEviction> kEvictions[] = {
#define KV_CHOICE(name) {#name, make_##name},
#include "policy/eviction.inc"
#undef KV_CHOICE
};
constexpr auto kEvictionNames = names_in(kEvictions);
}  // namespace

std::span<const std::string_view> eviction_names() { return kEvictionNames; }

std::unique_ptr<EvictionPolicy> make_eviction(std::string_view text, const EvictionSetup& setup) {
  return make(kEvictions, text, nullptr, with_setup(setup));
}

// ---- termination ----

#define KV_CHOICE(name) std::unique_ptr<Termination> make_##name##_termination(const EngineConfig&, const Parameters&);
#include "policy/termination.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<Termination>(const EngineConfig&, const Parameters&)> kTerminations[] = {
#define KV_CHOICE(name) {#name, make_##name##_termination},
#include "policy/termination.inc"
#undef KV_CHOICE
};
constexpr auto kTerminationNames = names_in(kTerminations);
}  // namespace

std::span<const std::string_view> termination_names() { return kTerminationNames; }

std::unique_ptr<Termination> make_termination(const EngineConfig& config) {
  return make(kTerminations, config.prefetch_policy, nullptr, with_config(config));
}

// ---- write ----

#define KV_CHOICE(name) std::unique_ptr<WritePolicy> make_##name##_write_policy(const Parameters&);
#include "policy/write.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<WritePolicy>(const Parameters&)> kWritePolicies[] = {
#define KV_CHOICE(name) {#name, make_##name##_write_policy},
#include "policy/write.inc"
#undef KV_CHOICE
};
constexpr auto kWritePolicyNames = names_in(kWritePolicies);
}  // namespace

std::span<const std::string_view> write_policy_names() { return kWritePolicyNames; }

std::unique_ptr<WritePolicy> make_write_policy(std::string_view text) {
  return make(kWritePolicies, text, nullptr, kParametersOnly);
}

// ---- prefetch admission ----

#define KV_CHOICE(name) std::unique_ptr<PrefetchAdmission> make_##name##_prefetch_admission(const Parameters&);
#include "policy/prefetch_admission.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<PrefetchAdmission>(const Parameters&)> kPrefetchAdmissions[] = {
#define KV_CHOICE(name) {#name, make_##name##_prefetch_admission},
#include "policy/prefetch_admission.inc"
#undef KV_CHOICE
};
constexpr auto kPrefetchAdmissionNames = names_in(kPrefetchAdmissions);
}  // namespace

std::span<const std::string_view> prefetch_admission_names() { return kPrefetchAdmissionNames; }

std::unique_ptr<PrefetchAdmission> make_prefetch_admission(std::string_view text) {
  return make(kPrefetchAdmissions, text, nullptr, kParametersOnly);
}

// ---- load-back admission ----

#define KV_CHOICE(name) std::unique_ptr<LoadBackAdmission> make_##name##_load_back_admission(const Parameters&);
#include "policy/load_back_admission.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<LoadBackAdmission>(const Parameters&)> kLoadBackAdmissions[] = {
#define KV_CHOICE(name) {#name, make_##name##_load_back_admission},
#include "policy/load_back_admission.inc"
#undef KV_CHOICE
};
constexpr auto kLoadBackAdmissionNames = names_in(kLoadBackAdmissions);
}  // namespace

std::span<const std::string_view> load_back_admission_names() { return kLoadBackAdmissionNames; }

std::unique_ptr<LoadBackAdmission> make_load_back_admission(std::string_view text) {
  return make(kLoadBackAdmissions, text, nullptr, kParametersOnly);
}

// ---- route ----

#define KV_CHOICE(name) std::unique_ptr<Router> make_##name##_router(const RouterSetup&);
#include "policy/route.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<Router>(const RouterSetup&)> kRouters[] = {
#define KV_CHOICE(name) {#name, make_##name##_router},
#include "policy/route.inc"
#undef KV_CHOICE
};
constexpr auto kRouterNames = names_in(kRouters);
}  // namespace

std::span<const std::string_view> route_names() { return kRouterNames; }

std::unique_ptr<Router> make_router(std::string_view text, const RouterSetup& setup) {
  KV_CHECK(setup.engines > 0, "there is an engine to send requests to");
  if (setup.groups > 1) return make_grouped_router(text, setup);
  return make(kRouters, text, nullptr, with_setup(setup));
}

// ---- order ----

#define KV_CHOICE(name) std::unique_ptr<RequestOrder> make_##name##_order(const Parameters&);
#include "policy/order.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<RequestOrder>(const Parameters&)> kOrders[] = {
#define KV_CHOICE(name) {#name, make_##name##_order},
#include "policy/order.inc"
#undef KV_CHOICE
};
constexpr auto kOrderNames = names_in(kOrders);
}  // namespace

std::span<const std::string_view> request_order_names() { return kOrderNames; }

std::unique_ptr<RequestOrder> make_request_order(std::string_view text) {
  return make(kOrders, text, nullptr, kParametersOnly);
}

// ---- style ----

#define KV_CHOICE(name) std::unique_ptr<EngineStyle> make_##name##_style(const EngineConfig&, const Parameters&);
#include "policy/style.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<EngineStyle>(const EngineConfig&, const Parameters&)> kStyles[] = {
#define KV_CHOICE(name) {#name, make_##name##_style},
#include "policy/style.inc"
#undef KV_CHOICE
};
constexpr auto kStyleNames = names_in(kStyles);
}  // namespace

std::span<const std::string_view> style_names() { return kStyleNames; }

std::unique_ptr<EngineStyle> make_style(std::string_view text, const EngineConfig& config) {
  return make(kStyles, text, nullptr, with_config(config));
}

// ---- state points ----

#define KV_CHOICE(name) std::unique_ptr<StatePoints> make_##name##_state_points(const EngineConfig&, const Parameters&);
#include "policy/state_points.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<StatePoints>(const EngineConfig&, const Parameters&)> kStatePoints[] = {
#define KV_CHOICE(name) {#name, make_##name##_state_points},
#include "policy/state_points.inc"
#undef KV_CHOICE
};
constexpr auto kStatePointsNames = names_in(kStatePoints);
}  // namespace

std::span<const std::string_view> state_points_names() { return kStatePointsNames; }

std::unique_ptr<StatePoints> make_state_points(const EngineConfig& config) {
  return make(kStatePoints, config.state_points, nullptr, with_config(config));
}

// ---- pool eviction ----

#define KV_CHOICE(name) \
  std::unique_ptr<PoolEviction> make_##name##_pool_eviction(const EngineConfig&, const Parameters&);
#include "policy/pool_eviction.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<PoolEviction>(const EngineConfig&, const Parameters&)> kPoolEvictions[] = {
#define KV_CHOICE(name) {#name, make_##name##_pool_eviction},
#include "policy/pool_eviction.inc"
#undef KV_CHOICE
};
constexpr auto kPoolEvictionNames = names_in(kPoolEvictions);
}  // namespace

std::span<const std::string_view> pool_eviction_names() { return kPoolEvictionNames; }

std::unique_ptr<PoolEviction> make_pool_eviction(const EngineConfig& config) {
  return make(kPoolEvictions, config.pool_eviction, nullptr, with_config(config));
}

// ---- all ----

std::span<const std::string_view> policy_names(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::eviction: return eviction_names();
    case PolicyKind::termination: return termination_names();
    case PolicyKind::write: return write_policy_names();
    case PolicyKind::prefetch_admission: return prefetch_admission_names();
    case PolicyKind::load_back_admission: return load_back_admission_names();
    case PolicyKind::route: return route_names();
    case PolicyKind::order: return request_order_names();
    case PolicyKind::style: return style_names();
    case PolicyKind::state_points: return state_points_names();
    case PolicyKind::pool_eviction: return pool_eviction_names();
  }
  return {};
}

PolicyFacts facts_of_policy(PolicyKind kind, std::string_view text) {
  PolicyFacts facts;
  static const EngineConfig kPlain;
  switch (kind) {
    case PolicyKind::eviction: make(kEvictions, text, &facts, with_setup(EvictionSetup{})); break;
    case PolicyKind::termination: make(kTerminations, text, &facts, with_config(kPlain)); break;
    case PolicyKind::write: make(kWritePolicies, text, &facts, kParametersOnly); break;
    case PolicyKind::prefetch_admission: make(kPrefetchAdmissions, text, &facts, kParametersOnly); break;
    case PolicyKind::load_back_admission: make(kLoadBackAdmissions, text, &facts, kParametersOnly); break;
    case PolicyKind::route: make(kRouters, text, &facts, with_setup(RouterSetup{})); break;
    case PolicyKind::order: make(kOrders, text, &facts, kParametersOnly); break;
    case PolicyKind::style: make(kStyles, text, &facts, with_config(kPlain)); break;
    case PolicyKind::state_points: make(kStatePoints, text, &facts, with_config(kPlain)); break;
    case PolicyKind::pool_eviction: make(kPoolEvictions, text, &facts, with_config(kPlain)); break;
  }
  return facts;
}

const Parameter* PolicyFacts::find(std::string_view parameter) const {
  const auto at = std::ranges::find(parameters, parameter, &Parameter::name);
  return at == parameters.end() ? nullptr : &*at;
}

}  // namespace kvtwin

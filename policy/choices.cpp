// The policies of every decision, by their names. (Trace formats are in traces/format.cpp.)
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/check.hpp"
#include "policy/eviction.hpp"
#include "policy/load_back_admission.hpp"
#include "policy/order.hpp"
#include "policy/prefetch_admission.hpp"
#include "policy/route.hpp"
#include "policy/route_groups.hpp"
#include "policy/style.hpp"
#include "policy/termination.hpp"
#include "policy/write.hpp"

namespace kvtwin {
namespace {

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

// Returns null for an unknown name.
template <typename Make, std::size_t count, typename... Arguments>
auto make(const Choice<Make> (&choices)[count], std::string_view name, const Arguments&... arguments) {
  for (const Choice<Make>& choice : choices) {
    if (choice.name == name) return choice.make(arguments...);
  }
  return decltype(choices[0].make(arguments...)){};
}

}  // namespace

// CMake writes each policy/DECISION.inc: KV_CHOICE(NAME) for each policy/DECISION/NAME.cpp (cmake/Choices.cmake).

// ---- eviction ----

#define KV_CHOICE(name) std::unique_ptr<EvictionPolicy> make_##name(const EvictionSetup&);
#include "policy/eviction.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<EvictionPolicy>(const EvictionSetup&)> kEvictions[] = {
#define KV_CHOICE(name) {#name, make_##name},
#include "policy/eviction.inc"
#undef KV_CHOICE
};
constexpr auto kEvictionNames = names_in(kEvictions);
}  // namespace

std::span<const std::string_view> eviction_names() { return kEvictionNames; }

std::unique_ptr<EvictionPolicy> make_eviction(std::string_view name, const EvictionSetup& setup) {
  return make(kEvictions, name, setup);
}

// ---- termination ----

#define KV_CHOICE(name) std::unique_ptr<Termination> make_##name##_termination(const EngineConfig&);
#include "policy/termination.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<Termination>(const EngineConfig&)> kTerminations[] = {
#define KV_CHOICE(name) {#name, make_##name##_termination},
#include "policy/termination.inc"
#undef KV_CHOICE
};
constexpr auto kTerminationNames = names_in(kTerminations);
}  // namespace

std::span<const std::string_view> termination_names() { return kTerminationNames; }

std::unique_ptr<Termination> make_termination(const EngineConfig& config) {
  return make(kTerminations, config.prefetch_policy, config);
}

// ---- write ----

#define KV_CHOICE(name) std::unique_ptr<WritePolicy> make_##name##_write_policy();
#include "policy/write.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<WritePolicy>()> kWritePolicies[] = {
#define KV_CHOICE(name) {#name, make_##name##_write_policy},
#include "policy/write.inc"
#undef KV_CHOICE
};
constexpr auto kWritePolicyNames = names_in(kWritePolicies);
}  // namespace

std::span<const std::string_view> write_policy_names() { return kWritePolicyNames; }

std::unique_ptr<WritePolicy> make_write_policy(std::string_view name) { return make(kWritePolicies, name); }

// ---- prefetch admission ----

#define KV_CHOICE(name) std::unique_ptr<PrefetchAdmission> make_##name##_prefetch_admission();
#include "policy/prefetch_admission.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<PrefetchAdmission>()> kPrefetchAdmissions[] = {
#define KV_CHOICE(name) {#name, make_##name##_prefetch_admission},
#include "policy/prefetch_admission.inc"
#undef KV_CHOICE
};
constexpr auto kPrefetchAdmissionNames = names_in(kPrefetchAdmissions);
}  // namespace

std::span<const std::string_view> prefetch_admission_names() { return kPrefetchAdmissionNames; }

std::unique_ptr<PrefetchAdmission> make_prefetch_admission(std::string_view name) {
  return make(kPrefetchAdmissions, name);
}

// ---- load-back admission ----

#define KV_CHOICE(name) std::unique_ptr<LoadBackAdmission> make_##name##_load_back_admission();
#include "policy/load_back_admission.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<LoadBackAdmission>()> kLoadBackAdmissions[] = {
#define KV_CHOICE(name) {#name, make_##name##_load_back_admission},
#include "policy/load_back_admission.inc"
#undef KV_CHOICE
};
constexpr auto kLoadBackAdmissionNames = names_in(kLoadBackAdmissions);
}  // namespace

std::span<const std::string_view> load_back_admission_names() { return kLoadBackAdmissionNames; }

std::unique_ptr<LoadBackAdmission> make_load_back_admission(std::string_view name) {
  return make(kLoadBackAdmissions, name);
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

std::unique_ptr<Router> make_router(std::string_view name, const RouterSetup& setup) {
  KV_CHECK(setup.engines > 0, "there is an engine to send requests to");
  if (setup.groups > 1) return make_grouped_router(name, setup);
  return make(kRouters, name, setup);
}

// ---- order ----

#define KV_CHOICE(name) std::unique_ptr<RequestOrder> make_##name##_order();
#include "policy/order.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<RequestOrder>()> kOrders[] = {
#define KV_CHOICE(name) {#name, make_##name##_order},
#include "policy/order.inc"
#undef KV_CHOICE
};
constexpr auto kOrderNames = names_in(kOrders);
}  // namespace

std::span<const std::string_view> request_order_names() { return kOrderNames; }

std::unique_ptr<RequestOrder> make_request_order(std::string_view name) { return make(kOrders, name); }

// ---- style ----

#define KV_CHOICE(name) std::unique_ptr<EngineStyle> make_##name##_style(const EngineConfig&);
#include "policy/style.inc"
#undef KV_CHOICE

namespace {
constexpr Choice<std::unique_ptr<EngineStyle>(const EngineConfig&)> kStyles[] = {
#define KV_CHOICE(name) {#name, make_##name##_style},
#include "policy/style.inc"
#undef KV_CHOICE
};
constexpr auto kStyleNames = names_in(kStyles);
}  // namespace

std::span<const std::string_view> style_names() { return kStyleNames; }

std::unique_ptr<EngineStyle> make_style(std::string_view name, const EngineConfig& config) {
  return make(kStyles, name, config);
}

}  // namespace kvtwin

#include "policy/eviction.hpp"

#include <array>
#include <cstddef>
#include <iterator>

namespace kvtwin {

// Made by CMake: KV_EVICTION(name) for each policy/eviction/name.cpp, in order of their names.
#define KV_EVICTION(name) std::unique_ptr<EvictionPolicy> make_##name(const EvictionSetup&);
#include "policy/eviction_policies.inc"
#undef KV_EVICTION

namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<EvictionPolicy> (*make)(const EvictionSetup&);
};

constexpr Entry kEntries[] = {
#define KV_EVICTION(name) Entry{#name, make_##name},
#include "policy/eviction_policies.inc"
#undef KV_EVICTION
};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kEntries)> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kEntries[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> eviction_names() { return kNames; }

std::unique_ptr<EvictionPolicy> make_eviction(std::string_view name, const EvictionSetup& setup) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.make(setup);
  }
  return nullptr;
}

}  // namespace kvtwin

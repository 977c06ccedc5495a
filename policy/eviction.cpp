#include "policy/eviction.hpp"

#include <array>
#include <cstddef>

#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<EvictionPolicy> (*make)();
};

constexpr std::array kPolicies = {
    Entry{"lru", make_lru},
    Entry{"fifo", make_fifo},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kPolicies.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kPolicies[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> eviction_names() { return kNames; }

std::unique_ptr<EvictionPolicy> make_eviction(std::string_view name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name == name) return entry.make();
  }
  return nullptr;
}

}  // namespace kvtwin

// Which hits on L2 are worth loading to L1 (cache.load_back_admission). Each engine has one LoadBackAdmission. The
// cache calls admits() for each hit of an admitted request; a hit that isn't loaded is computed.
//
// A hit shorter than cache.load_back_min_tokens, or above cache.load_back_quota_tokens, is declined before. A policy is
// one file, policy/load_back_admission/NAME.cpp, that defines
// std::unique_ptr<LoadBackAdmission> make_NAME_load_back_admission(const Parameters&); the build finds the file by its
// name. Times are in nanoseconds, and 10^18 at most.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/parameters.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct LoadBackOffer {
  Tokens from = 0, to = 0;   // tokens of the prompt that hit on L2
  TimeNs load_ns = 0;        // loading them, after all loads in flight
  TimeNs compute_ns = 0;     // computing them instead
  TimeNs beside_ns = 0;      // computing the tokens after the hit, in the pass that waits for the load
  std::uint32_t layers = 1;  // of the model; each waits only for its own bytes
};

class LoadBackAdmission {
 public:
  virtual ~LoadBackAdmission() = default;
  // Returns whether to load the hit.
  virtual bool admits(const LoadBackOffer& offer) const = 0;
};

// Known names.
std::span<const std::string_view> load_back_admission_names();
// `text`: a name, with parameters or without (policy/choices.hpp). Null for a text with a fault.
std::unique_ptr<LoadBackAdmission> make_load_back_admission(std::string_view text);

}  // namespace kvtwin

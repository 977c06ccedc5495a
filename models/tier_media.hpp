// The medium of each storage tier, in terms of a machine's figures.
#pragma once

#include <string_view>

#include "models/hardware.hpp"
#include "policy/base/tiers.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

struct TierMedium {
  bool (*is_there)(const HardwareSpec&) = nullptr;
  // Returns bytes/s of all devices together, for gets or for sets.
  double (*rate)(const HardwareSpec&, StorageVerb) = nullptr;
  std::string_view devices;   // for "HARDWARE has no DEVICES"
  std::string_view measured;  // for "and MEASURED was measured"
  std::string_view missing;   // for "HARDWARE has MISSING": the missing medium, and the figures to give
};

// Requires: a storage tier.
const TierMedium& medium_of(Tier tier);

}  // namespace kvtwin

// What each storage tier lies on, as a machine's figures know it.
#pragma once

#include <string_view>

#include "models/hardware.hpp"
#include "policy/base/tiers.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

struct TierMedium {
  bool (*is_there)(const HardwareSpec&) = nullptr;
  // Bytes/s of all its devices together, for gets or for sets.
  double (*rate)(const HardwareSpec&, StorageVerb) = nullptr;
  std::string_view devices;   // "HARDWARE has no DEVICES"
  std::string_view measured;  // "and MEASURED was measured"
  std::string_view missing;   // "HARDWARE has MISSING": what it lacks, and which figures to give
};

// Of a storage tier.
const TierMedium& medium_of(Tier tier);

}  // namespace kvtwin

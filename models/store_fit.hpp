// Fits the figures of a remote store (models/stores.hpp) to measured operations of the remote tier:
//
//   look-up   look_up_call + objects * look_up_key
//   get, set  call + objects * time per object + bytes / stream rate
//
// Least squares of the relative errors, without negative figures. One client measures no servers, so the figures of a
// server, leases and eviction come from the nearest preset.
#pragma once

#include <string>
#include <string_view>

#include "models/calibration_samples.hpp"
#include "models/stores.hpp"

namespace kvtwin {

struct StoreFitTerms {
  std::string kind;    // scheme of the URL, for example "redis" or "nixl+posix"
  std::string preset;  // nearest preset; empty = none
  std::string source, date;
};

// Returns the kind and the nearest preset of a store by its URL.
StoreFitTerms store_kind(std::string_view url);

// Returns a store file (JSON). Errors: ModelError if look-ups, gets or sets of the remote tier are missing.
std::string fitted_store(const Measurements& measurements, const StoreFitTerms& terms);

}  // namespace kvtwin

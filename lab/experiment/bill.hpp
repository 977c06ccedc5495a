// The parts that an experiment's engines need, with their price and power.
//
// A bought part costs per month: price / (life.years * 12) + watts * power.pue * power.kwh * 730 h. A rented GPU costs
// hour * 730; its rent includes its power. Months have 730 hours.
//
// Counts, over all engines: GPUs = engines * ranks; DRAM = the host tier's bytes; drives = those of the hardware with a
// disk tier, and at least as many as hold it; NICs = those of the hardware with a remote tier or a shared file system,
// and for a remote tier as many of the same speed as give the pool its bandwidth; pool and shared file system = their
// bytes. Everything else in a server belongs to the figures of its GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/prices/price_list.hpp"

namespace kvtwin {

struct Setup;

inline constexpr double kHoursPerMonth = 730;

struct BillPart {
  std::string name;  // for example "GPU h100-sxm", "GiB of DRAM"
  double count = 0;
  double per_month = 0;  // of all these parts, in the currency of the list
  double watts = 0;      // of all these parts, without the site's overhead
};

struct Bill {
  std::string currency, origin;  // of the price list
  std::vector<BillPart> parts;
  std::vector<PriceFigure> used;  // the figures of the list that the bill needs, sorted by name
  double per_month = 0;
  double watts = 0;  // with the site's overhead (power.pue)
  // Of the drives; 0 without a disk tier.
  std::uint64_t drives = 0;
  double drive_bytes = 0;      // capacity of one drive
  double drive_month = 0;      // of the price per month, the part that pays for the drives themselves
  double life_years = 0;       // over which they are paid
  double drive_endurance = 0;  // bytes that may be written to one drive in its life: tb * dwpd * days of the warranty
  std::vector<std::string> assumed() const;  // names of assumed figures
};

// What a run writes to the drives of a bill.
struct DriveWear {
  double bytes_per_day = 0;       // of all drives
  double writes_per_day = 0;      // full writes of a drive per day, as DWPD
  std::optional<double> years;    // until the endurance is used up; nothing if nothing is written
  double replacements_month = 0;  // price per month of the drives that replace worn ones within life.years
};
// `written`: bytes written to all drives in `seconds`. Requires: bill.drives > 0.
DriveWear drive_wear(const Bill& bill, std::uint64_t written, double seconds);

// Returns nothing if the list has no price for the GPU. Errors: InputError if another part has no price.
std::optional<Bill> bill_of(const Setup& setup, const PriceList& prices);

}  // namespace kvtwin

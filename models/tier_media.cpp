#include "models/tier_media.hpp"

namespace kvtwin {
namespace {

bool has_drives(const HardwareSpec& hw) { return hw.has_drives(); }
bool has_pool(const HardwareSpec& hw) { return hw.has_pool(); }

double drive_rate(const HardwareSpec& hw, StorageVerb verb) {
  return (verb == StorageVerb::get ? hw.drive_read_bandwidth : hw.drive_write_bandwidth) * hw.drive_count;
}
double nic_rate(const HardwareSpec& hw, StorageVerb) { return hw.nic_bandwidth * hw.nic_count; }

constexpr PerTier<TierMedium> kMedia{{{
    {},  // device
    {},  // host
    {has_drives, drive_rate, "drives", "a disk", "no drives; give its drive_count, bandwidths, IOPS and latencies"},
    {has_pool, nic_rate, "remote pool", "one", "no NIC; give its nic_count, bandwidths and latencies"},
}}};

}  // namespace

const TierMedium& medium_of(Tier tier) { return kMedia[tier]; }

}  // namespace kvtwin

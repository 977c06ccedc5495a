#include "models/tier_media.hpp"

namespace kvtwin {
namespace {

bool has_drives(const HardwareSpec& hw) { return hw.has_drives(); }
bool has_pool(const HardwareSpec& hw) { return hw.has_pool(); }

double drive_rate(const HardwareSpec& hw, StorageVerb verb) {
  return (verb == StorageVerb::get ? hw.drive_read_bandwidth : hw.drive_write_bandwidth) * hw.drive_count;
}
bool has_shared_fs(const HardwareSpec& hw) { return hw.has_shared_fs(); }
double shared_fs_rate(const HardwareSpec& hw, StorageVerb verb) {
  return verb == StorageVerb::get ? hw.shared_fs_read_bandwidth : hw.shared_fs_write_bandwidth;
}
double nic_rate(const HardwareSpec& hw, StorageVerb) { return hw.nic_bandwidth * hw.nic_count; }

constexpr PerTier<TierMedium> kMedia{{{
    {},  // device
    {},  // host
    {has_drives, drive_rate, "drives", "a disk", "no drives; give its drive_count, bandwidths, IOPS and latencies"},
    {has_shared_fs, shared_fs_rate, "shared file system", "one",
     "no shared file system; give hardware.set.shared_fs_read_bandwidth, "
     "hardware.set.shared_fs_write_bandwidth, hardware.set.shared_fs_latency and hardware.set.shared_fs_file, or these "
     "in its file"},
    {has_pool, nic_rate, "remote pool", "one", "no NIC; give its nic_count, bandwidths and latencies"},
}}};
static_assert(has_all_storage_tiers(kMedia, [](const TierMedium& medium) {
  return medium.is_there != nullptr && medium.rate != nullptr;
}));

}  // namespace

const TierMedium& medium_of(Tier tier) { return kMedia[tier]; }

}  // namespace kvtwin

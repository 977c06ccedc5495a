// The tiers of the cache and the lanes between them, as data. docs/contributing/add-a-tier.md lists what else a new
// tier needs.
//
// Decisions, worlds and reports index PerTier and PerLane arrays, or read the rows of these tables. Code names a single
// tier only for the tier's own keys, figures or back end: the fits of calibration, cuFile's disk tier, SGLang's flags.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvtwin {

enum class Tier : std::uint8_t { device, host, disk, shared_fs, remote };  // L1, L2, then L3 in the order of look-ups
constexpr std::size_t kTiers = 5;

enum class Lane : std::uint8_t {
  compute,
  h2d,
  d2h,
  disk_read,
  disk_write,
  remote_read,
  remote_write,
  direct_read,
  direct_write,
  peer,
  shared_fs_read,
  shared_fs_write
};
constexpr std::size_t kLanes = 12;

// An array with an element for each enumerator.
template <typename Index, typename T, std::size_t kCount>
struct IndexedArray {
  std::array<T, kCount> values{};

  constexpr T& operator[](Index index) { return values[static_cast<std::size_t>(index)]; }
  constexpr const T& operator[](Index index) const { return values[static_cast<std::size_t>(index)]; }
  constexpr auto begin() { return values.begin(); }
  constexpr auto end() { return values.end(); }
  constexpr auto begin() const { return values.begin(); }
  constexpr auto end() const { return values.end(); }
  constexpr T sum() const {
    T total{};
    for (const T& value : values) total += value;
    return total;
  }
  friend bool operator==(const IndexedArray&, const IndexedArray&) = default;
};
template <typename T>
using PerTier = IndexedArray<Tier, T, kTiers>;
template <typename T>
using PerLane = IndexedArray<Lane, T, kLanes>;

enum class LaneKind : std::uint8_t {
  compute,  // forward passes
  copy,     // between the device and the host
  storage,  // between a storage tier and the host
  direct,   // between a storage tier and the device, without the host
  peer,
};

struct LaneSpec {
  Lane lane = Lane::compute;
  std::string_view name;
  LaneKind kind = LaneKind::compute;
  bool reads = false;  // moves pages towards the device
};

constexpr std::array<LaneSpec, kLanes> kLaneSpecs{{
    {Lane::compute, "compute", LaneKind::compute, false},
    {Lane::h2d, "h2d", LaneKind::copy, true},
    {Lane::d2h, "d2h", LaneKind::copy, false},
    {Lane::disk_read, "disk_read", LaneKind::storage, true},
    {Lane::disk_write, "disk_write", LaneKind::storage, false},
    {Lane::remote_read, "remote_read", LaneKind::storage, true},
    {Lane::remote_write, "remote_write", LaneKind::storage, false},
    {Lane::direct_read, "direct_read", LaneKind::direct, true},
    {Lane::direct_write, "direct_write", LaneKind::direct, false},
    {Lane::peer, "peer", LaneKind::peer, false},
    {Lane::shared_fs_read, "shared_fs_read", LaneKind::storage, true},
    {Lane::shared_fs_write, "shared_fs_write", LaneKind::storage, false},
}};

constexpr const LaneSpec& spec_of(Lane lane) { return kLaneSpecs[static_cast<std::size_t>(lane)]; }

enum class TierKind : std::uint8_t { memory, storage };

struct TierSpec {
  Tier tier = Tier::device;
  std::string_view name;  // in keys (tiers.NAME), reports and sentences
  std::string_view hit_column;
  std::string_view where;  // "hit WHERE"
  TierKind kind = TierKind::memory;
  Lane read = Lane::compute, write = Lane::compute;  // lanes to and from the memory tier above
  bool shared = false;  // one tier for all engines, across a network, with one capacity and one content
  bool owned = true;  // the engine knows the content and evicts; false: the store evicts, and look-ups show the content
};

constexpr std::array<TierSpec, kTiers> kTierSpecs{{
    {Tier::device, "device", "hit_device", "on the device", TierKind::memory, Lane::compute, Lane::compute},
    {Tier::host, "host", "hit_host", "on the host", TierKind::memory, Lane::h2d, Lane::d2h},
    {Tier::disk, "disk", "hit_disk", "on disk", TierKind::storage, Lane::disk_read, Lane::disk_write},
    {Tier::shared_fs, "shared_fs", "hit_shared_fs", "on the shared file system", TierKind::storage,
     Lane::shared_fs_read, Lane::shared_fs_write, true, false},
    {Tier::remote, "remote", "hit_remote", "remotely", TierKind::storage, Lane::remote_read, Lane::remote_write, true,
     false},
}};

constexpr const TierSpec& spec_of(Tier tier) { return kTierSpecs[static_cast<std::size_t>(tier)]; }
// Returns null if no tier has that name.
constexpr const TierSpec* tier_named(std::string_view name) {
  for (const TierSpec& spec : kTierSpecs) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}
constexpr bool is_storage(Tier tier) { return spec_of(tier).kind == TierKind::storage; }

constexpr std::size_t kMemoryTiers = 2;
constexpr std::size_t kStorageTiers = kTiers - kMemoryTiers;
// The tiers of L3, in the order of look-ups.
constexpr std::span<const TierSpec> kStorageSpecs = std::span(kTierSpecs).subspan<kMemoryTiers>();

// Whether each storage tier has a row in a table. A table asserts this, so that a new tier is not forgotten there.
// `filled`: whether a row is one.
template <typename Row, typename Filled>
constexpr bool has_all_storage_tiers(const PerTier<Row>& table, Filled filled) {
  for (const TierSpec& spec : kStorageSpecs) {
    if (!filled(table[spec.tier])) return false;
  }
  return true;
}

namespace tier_tables {
constexpr bool are_in_order() {
  for (std::size_t i = 0; i < kTiers; ++i) {
    const bool storage = kTierSpecs[i].kind == TierKind::storage;
    if (kTierSpecs[i].tier != static_cast<Tier>(i) || storage != (i >= kMemoryTiers)) return false;
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    if (kLaneSpecs[i].lane != static_cast<Lane>(i)) return false;
  }
  return true;
}
static_assert(are_in_order(), "a row lies at its enumerator's place, memory tiers first");
}  // namespace tier_tables

}  // namespace kvtwin

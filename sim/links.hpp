// Which links a flow loads, and how much: the one account that both worlds charge by.
//
// A flow is what one rank moves; the ranks of an operation move alike, so a link that they share carries each byte of
// one of them `ranks` times. A link with rate 0 isn't there, or never binds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "policy/seam/substrate.hpp"
#include "sim/world.hpp"

namespace kvtwin {

enum class Link : std::uint8_t {
  gpu_down,  // one GPU's own link, from the host's side to it
  gpu_up,
  gpu_both,  // both directions of it together
  dram,
  root_in,  // from devices into the root complex
  root_out,
  drives,  // in bytes read: a byte written takes as long as read rate / write rate bytes read
  nic_in,
  nic_out,
  fabric_in,  // the pool hosts' side of the network
  fabric_out,
  shared_fs_in,  // the shared file system's side of the network
  shared_fs_out,
};
constexpr std::size_t kLinks = 13;

struct LinkSpec {
  Link link = Link::gpu_down;
  bool own = false;     // a flow of some lane may have no other link to live on
  bool common = false;  // serves all engines
  bool host = false;    // the whole host shares it
};

constexpr std::array<LinkSpec, kLinks> kLinkSpecs{{
    {Link::gpu_down, true},
    {Link::gpu_up, true},
    {Link::gpu_both},
    {Link::dram, false, false, true},
    {Link::root_in, false, false, true},
    {Link::root_out, false, false, true},
    {Link::drives, true},
    {Link::nic_in, true},
    {Link::nic_out, true},
    {Link::fabric_in, false, true},
    {Link::fabric_out, false, true},
    {Link::shared_fs_in, true, true},
    {Link::shared_fs_out, true, true},
}};
constexpr const LinkSpec& spec_of(Link link) { return kLinkSpecs[static_cast<std::size_t>(link)]; }

// What a storage tier's bytes cross, but for the host's own links. The first one is the tier's: without a rate there is
// no such tier.
struct TierLinks {
  std::span<const Link> reads, writes;
};
constexpr std::array<Link, 1> kDriveLinks{Link::drives};
constexpr std::array<Link, 2> kPoolReads{Link::nic_in, Link::fabric_in}, kPoolWrites{Link::nic_out, Link::fabric_out};
// A machine without NICs has another way to it.
constexpr std::array<Link, 2> kSharedFsReads{Link::shared_fs_in, Link::nic_in},
    kSharedFsWrites{Link::shared_fs_out, Link::nic_out};
constexpr PerTier<TierLinks> kTierLinks{{{
    {},                                 // device
    {},                                 // host
    {kDriveLinks, kDriveLinks},         // disk
    {kSharedFsReads, kSharedFsWrites},  // shared_fs
    {kPoolReads, kPoolWrites},          // remote
}}};

struct Flow {
  Lane lane = Lane::h2d;
  Tier tier = Tier::host;   // of storage lanes
  std::uint32_t ranks = 1;  // that move it
  double bytes = 0.0;       // of one rank
  double most = 0.0;        // bytes a second of one rank at most; 0 = the links' own
};

struct LinkLoad {
  Link link = Link::dram;
  double weight = 0.0;  // bytes over it for a byte of the flow
};

class Loads {
 public:
  void add(Link link, double weight) { loads_[size_++] = {link, weight}; }
  const LinkLoad* begin() const { return loads_.data(); }
  const LinkLoad* end() const { return loads_.data() + size_; }
  std::size_t size() const { return size_; }

 private:
  std::array<LinkLoad, 6> loads_{};
  std::size_t size_ = 0;
};

class Links {
 public:
  explicit Links(const WorldConfig& config) {
    set(Link::gpu_down, config.h2d_bytes_per_second);
    set(Link::gpu_up, config.d2h_bytes_per_second);
    set(Link::gpu_both, config.both_ways_bytes_per_second);
    set(Link::dram, config.dram_bytes_per_second);
    set(Link::root_in, config.root_bytes_per_second);
    set(Link::root_out, config.root_bytes_per_second);
    set(Link::drives, config.disk_read_bytes_per_second);
    set(Link::nic_in, config.nic_bytes_per_second);
    set(Link::nic_out, config.nic_bytes_per_second);
    set(Link::fabric_in, config.fabric_bytes_per_second);
    set(Link::fabric_out, config.fabric_bytes_per_second);
    set(Link::shared_fs_in, config.shared_fs_read_bytes_per_second);
    set(Link::shared_fs_out, config.shared_fs_write_bytes_per_second);
    write_weights_.fill(1.0);
    if (config.disk_write_bytes_per_second > 0) {
      write_weights_[static_cast<std::size_t>(Link::drives)] =
          rate(Link::drives) / static_cast<double>(config.disk_write_bytes_per_second);
    }
    writes_to_drives_ = config.disk_write_bytes_per_second > 0;
    for (const StorageTier& tier : config.storage) has_[tier.tier] = true;
  }

  // Is there what the tier lies on?
  bool has_medium(Tier tier) const {
    const Link reads = kTierLinks[tier].reads.front(), writes = kTierLinks[tier].writes.front();
    return rate(reads) > 0.0 && rate(writes) > 0.0 && (writes != Link::drives || writes_to_drives_);
  }
  double rate(Link link) const { return rates_[static_cast<std::size_t>(link)]; }

  Loads of(Lane lane, Tier tier, std::uint32_t ranks) const {
    Loads loads;
    const double all = ranks;
    const LaneSpec& spec = kvtwin::spec_of(lane);
    const bool direct = spec.kind == LaneKind::direct, stores = spec.kind == LaneKind::storage, reads = spec.reads;
    const bool in = stores ? reads : !reads;  // into the root complex, from a device
    if (!stores) {
      add(loads, reads ? Link::gpu_down : Link::gpu_up, 1.0);
      add(loads, Link::gpu_both, 1.0);
    }
    if (stores || direct) {
      for (const Link link : reads ? kTierLinks[tier].reads : kTierLinks[tier].writes) {
        add(loads, link, reads ? all : all * write_weights_[static_cast<std::size_t>(link)]);
      }
    }
    if (dram_crossings(lane) != 0) add(loads, Link::dram, all * dram_crossings(lane));
    // From port to port of one root; a machine whose drives and NICs sit under the GPUs' own switch has it for itself.
    if (in || direct) add(loads, Link::root_in, all);
    if (!in || direct) add(loads, Link::root_out, all);
    return loads;
  }

  // The rate of a flow that has its way to itself. What the whole host shares, DRAM and root, is left to those who
  // share it out.
  double alone(const Flow& flow) const {
    double least = flow.most > 0.0 ? flow.most : std::numeric_limits<double>::infinity();
    for (const LinkLoad& load : of(flow.lane, flow.tier, flow.ranks)) {
      if (spec_of(load.link).host) continue;
      least = std::min(least, rate(load.link) / load.weight);
    }
    return least;
  }

  // Can the flows of all lanes of `sharers` such engines together want more of it than there is? What can't bind would
  // only join the lanes into one system to solve.
  bool can_bind(Link link, std::uint32_t ranks, std::uint32_t sharers = 1) const {
    double wanted = 0.0;
    for (const LaneSpec& spec : kLaneSpecs) {
      if (spec.kind == LaneKind::compute || spec.kind == LaneKind::peer) continue;
      wanted += most_wanted(link, spec.lane, ranks);
    }
    return wanted * sharers > rate(link);
  }

 private:
  void set(Link link, std::uint64_t bytes_per_second) {
    rates_[static_cast<std::size_t>(link)] = static_cast<double>(bytes_per_second);
  }
  void add(Loads& loads, Link link, double weight) const {
    if (rate(link) > 0.0) loads.add(link, weight);
  }

  // Of one lane, were the link without bound. Some operations are of one rank only.
  double most_wanted(Link link, Lane lane, std::uint32_t ranks) const {
    double most = 0.0;
    const bool storage = spec_of(lane).kind != LaneKind::copy;
    for (const TierSpec& spec : kStorageSpecs) {
      const Tier tier = spec.tier;
      if (storage && !serves(lane, tier)) continue;
      for (const std::uint32_t movers : {ranks, storage ? 1U : ranks}) {
        double weight = 0.0, least = std::numeric_limits<double>::infinity();
        for (const LinkLoad& load : of(lane, tier, movers)) {
          if (load.link == link) {
            weight = load.weight;
          } else {
            least = std::min(least, rate(load.link) / load.weight);
          }
        }
        if (weight > 0.0) most = std::max(most, weight * least);
      }
    }
    return most;
  }
  bool serves(Lane lane, Tier tier) const {
    if (!has_[tier]) return false;
    return spec_of(lane).kind == LaneKind::direct || lane == spec_of(tier).read || lane == spec_of(tier).write;
  }

  std::array<double, kLinks> rates_{};
  std::array<double, kLinks> write_weights_{};  // of a byte written, in bytes read
  bool writes_to_drives_ = false;
  PerTier<bool> has_{};
};

}  // namespace kvtwin

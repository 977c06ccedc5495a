// The links that a flow loads, and the weight on each link. Both simulated worlds charge flows by this table.
//
// A flow is the transfer of one rank. All ranks of an operation move alike, so a link that they share carries each byte
// of the flow `ranks` times. A link with rate 0 is absent or never limits.
// Units: rates in bytes per second.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "policy/seam/substrate.hpp"
#include "sim/world.hpp"

namespace kvtwin {

enum class Link : std::uint8_t {
  gpu_down,  // one GPU's own link, host to GPU
  gpu_up,
  gpu_both,  // both directions of that link together
  dram,
  root_in,  // from devices into the PCIe root complex
  root_out,
  drives,  // in bytes read: a written byte counts as read rate / write rate bytes
  nic_in,
  nic_out,
  switch_in,  // between the switches of the engines and of the pool
  switch_out,
  fabric_in,  // network of the pool hosts, if they are one pool
  fabric_out,
  shared_fs_in,  // network of the shared file system
  shared_fs_out,
  store_drives,  // of the remote store, behind its memory; reads only
};
constexpr std::size_t kLinks = 16;

struct LinkSpec {
  Link link = Link::gpu_down;
  bool always_modelled = false;  // on some lane, a flow may load no other link
  bool all_engines = false;      // one link for all engines
  bool whole_host = false;       // DRAM and PCIe root: of the host, and no lane's own
  bool of_gpu = false;           // of one rank
};

constexpr std::array<LinkSpec, kLinks> kLinkSpecs{{
    {Link::gpu_down, true, false, false, true},
    {Link::gpu_up, true, false, false, true},
    {Link::gpu_both, false, false, false, true},
    {Link::dram, false, false, true},
    {Link::root_in, false, false, true},
    {Link::root_out, false, false, true},
    {Link::drives, true},
    {Link::nic_in, true},
    {Link::nic_out, true},
    {Link::switch_in, false, true},
    {Link::switch_out, false, true},
    {Link::fabric_in, false, true},
    {Link::fabric_out, false, true},
    {Link::shared_fs_in, true, true},
    {Link::shared_fs_out, true, true},
    {Link::store_drives, true, true},
}};
constexpr const LinkSpec& spec_of(Link link) { return kLinkSpecs[static_cast<std::size_t>(link)]; }

// The links that the bytes of a storage tier load, without the links of the host. The first link is the tier's medium:
// if its rate is 0, the tier does not exist.
struct TierLinks {
  std::span<const Link> reads, writes;
  bool pool = false;  // the bytes cross the network to the pool (PoolNetwork)
};
constexpr std::array<Link, 1> kDriveLinks{Link::drives};
constexpr std::array<Link, 3> kPoolReads{Link::nic_in, Link::switch_in, Link::fabric_in},
    kPoolWrites{Link::nic_out, Link::switch_out, Link::fabric_out};
// The NIC comes second, because a machine without NICs may reach the file system in another way.
constexpr std::array<Link, 2> kSharedFsReads{Link::shared_fs_in, Link::nic_in},
    kSharedFsWrites{Link::shared_fs_out, Link::nic_out};
constexpr PerTier<TierLinks> kTierLinks{{{
    {},                                 // device
    {},                                 // host
    {kDriveLinks, kDriveLinks},         // disk
    {kSharedFsReads, kSharedFsWrites},  // shared_fs
    {kPoolReads, kPoolWrites, true},    // remote
}}};
static_assert(has_all_storage_tiers(kTierLinks, [](const TierLinks& links) {
  return !links.reads.empty() && !links.writes.empty();
}));

// A part of a flow that one node of the pool sends or receives.
struct NodeShare {
  std::uint32_t node = 0;
  double share = 0.0;  // of the flow's bytes
};

constexpr std::uint32_t kNoSeat = ~std::uint32_t{0};

struct Flow {
  Lane lane = Lane::h2d;
  Tier tier = Tier::host;              // storage lanes only
  std::uint32_t ranks = 1;             // number of ranks that move the same bytes
  double bytes = 0.0;                  // bytes of one rank
  double max_bytes_per_second = 0.0;   // limit of one rank; 0 = only the links limit
  std::span<const NodeShare> nodes{};  // of other hosts; empty if the pool has no nodes
  double own_share = 0.0;              // share of the bytes that stay on the own host
  double drive_share = 0.0;            // share of the bytes that the drives of the remote store have alone
  // Hand-overs only. `ranks` send `bytes` each.
  std::uint32_t peer = kNoSeat;
  std::uint32_t receivers = 1;
  bool staged = false;  // through host memory on both sides
};

struct LinkLoad {
  Link link = Link::dram;
  double weight = 0.0;  // bytes on the link per byte of the flow
};

class Loads {
 public:
  void add(Link link, double weight) { loads_[size_++] = {link, weight}; }
  const LinkLoad* begin() const { return loads_.data(); }
  const LinkLoad* end() const { return loads_.data() + size_; }
  std::size_t size() const { return size_; }

 private:
  std::array<LinkLoad, 8> loads_{};
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
    set(Link::switch_in, config.network.switch_bytes_per_second);
    set(Link::switch_out, config.network.switch_bytes_per_second);
    set(Link::fabric_in, config.fabric_bytes_per_second);
    set(Link::fabric_out, config.fabric_bytes_per_second);
    set(Link::shared_fs_in, config.shared_fs_read_bytes_per_second);
    set(Link::shared_fs_out, config.shared_fs_write_bytes_per_second);
    set(Link::store_drives, config.store_drive_bytes_per_second);
    write_weights_.fill(1.0);
    if (config.disk_write_bytes_per_second > 0) {
      write_weights_[static_cast<std::size_t>(Link::drives)] =
          rate(Link::drives) / static_cast<double>(config.disk_write_bytes_per_second);
    }
    network_ = config.network;
    groups_ = config.groups;
    slow_links_ = config.slow_links;
    writes_to_drives_ = config.disk_write_bytes_per_second > 0;
    for (const StorageTier& tier : config.storage) has_[tier.tier] = true;
  }

  // Returns whether the medium of the tier exists.
  bool has_medium(Tier tier) const {
    const Link reads = kTierLinks[tier].reads.front(), writes = kTierLinks[tier].writes.front();
    return rate(reads) > 0.0 && rate(writes) > 0.0 && (writes != Link::drives || writes_to_drives_);
  }
  double rate(Link link) const { return rates_[static_cast<std::size_t>(link)]; }

  // Returns the part of the network that a link belongs to, or nothing.
  static std::optional<NetworkPart> part_of(Link link) {
    switch (link) {
      case Link::nic_in:
      case Link::nic_out: return NetworkPart::nic;
      case Link::switch_in:
      case Link::switch_out: return NetworkPart::switches;
      case Link::fabric_in:
      case Link::fabric_out: return NetworkPart::pool;
      default: return std::nullopt;
    }
  }
  // Returns the share of its rate that a link has at a time, by the planned failures.
  double share_at(Link link, TimeNs time) const {
    const std::optional<NetworkPart> part = part_of(link);
    return part ? share_at(*part, 0, time) : 1.0;
  }
  // `node`: of a node's port.
  double share_at(NetworkPart part, std::uint32_t node, TimeNs time) const {
    double share = 1.0;
    for (const SlowLink& slow : slow_links_) {
      const bool hit = slow.part == part && (part != NetworkPart::node || slow.node == node);
      const bool of_all = part == NetworkPart::node && slow.part == NetworkPart::pool;
      if ((hit || of_all) && slow.span.has(time)) share *= slow.share;
    }
    return share;
  }
  bool is_slowed(Link link) const {
    const std::optional<NetworkPart> part = part_of(link);
    return part && std::ranges::find(slow_links_, *part, &SlowLink::part) != slow_links_.end();
  }

  // Returns the bytes that all NICs together carry, if each rank is bound to a rail, per byte that they would carry if
  // each rank used all of them: the fullest rail limits. Groups of attention are taken to move at the same time.
  double rail_weight(std::uint32_t ranks) const {
    if (network_.rails == 0) return 1.0;
    const std::uint32_t all = ranks * groups_;
    const std::uint32_t on_one = (all + network_.rails - 1) / network_.rails;
    return static_cast<double>(on_one) * network_.rails / all;
  }
  const PoolNetwork& network() const { return network_; }
  // Returns the weight of a flow's part on its node's port.
  double node_weight(const Flow& flow, const NodeShare& part) const {
    return flow.ranks * part.share * (network_.peers ? rail_weight(flow.ranks) : 1.0);
  }
  // Returns the rate of a node's port.
  double node_rate() const {
    return network_.peers ? rate(Link::nic_in) : static_cast<double>(network_.node_bytes_per_second);
  }

  // As below; bytes that stay on the own host cross no network, and some come from the drives of the store.
  Loads of(const Flow& flow) const {
    Loads loads;
    for (const LinkLoad& load : of(flow.lane, flow.tier, flow.ranks)) {
      const double weight = part_of(load.link) ? load.weight * (1.0 - flow.own_share) : load.weight;
      if (weight > 0.0) loads.add(load.link, weight);
    }
    if (flow.drive_share > 0.0) add(loads, Link::store_drives, flow.ranks * flow.drive_share);
    return loads;
  }

  Loads of(Lane lane, Tier tier, std::uint32_t ranks) const {
    Loads loads;
    const double all = ranks;
    const LaneSpec& spec = kvtwin::spec_of(lane);
    const bool direct = spec.kind == LaneKind::direct, stores = spec.kind == LaneKind::storage, reads = spec.reads;
    const bool in = stores ? reads : !reads;  // from a device into the root complex
    if (!stores) {
      add(loads, reads ? Link::gpu_down : Link::gpu_up, 1.0);
      add(loads, Link::gpu_both, 1.0);
    }
    if (stores || direct) {
      for (const Link link : reads ? kTierLinks[tier].reads : kTierLinks[tier].writes) {
        const double weight = reads ? all : all * write_weights_[static_cast<std::size_t>(link)];
        const bool on_rails = kTierLinks[tier].pool && part_of(link) == NetworkPart::nic;
        add(loads, link, on_rails ? weight * rail_weight(ranks) : weight);
      }
    }
    if (dram_crossings(lane) != 0) add(loads, Link::dram, all * dram_crossings(lane));
    // The bytes go from one port of the root to another. The model charges the root even if drives and NICs are below
    // the GPUs' own switch, where bytes do not cross the root.
    if (in || direct) add(loads, Link::root_in, all);
    if (!in || direct) add(loads, Link::root_out, all);
    return loads;
  }

  // The links of a hand-over: those of the engine that sends, and those of the engine that receives. The receiver's
  // ranks share the bytes of all senders.
  Loads of_sender(const Flow& flow) const {
    Loads loads;
    const double all = flow.ranks;
    add(loads, Link::gpu_up, 1.0);
    add(loads, Link::gpu_both, 1.0);
    add(loads, Link::nic_out, all * rail_weight(flow.ranks));
    if (network_.peers) add(loads, Link::switch_out, all);
    if (flow.staged) add(loads, Link::dram, 2.0 * all);
    add(loads, Link::root_in, all);
    add(loads, Link::root_out, all);
    return loads;
  }
  Loads of_receiver(const Flow& flow) const {
    Loads loads;
    const double all = flow.ranks, each = all / flow.receivers;
    add(loads, Link::gpu_down, each);
    add(loads, Link::gpu_both, each);
    add(loads, Link::nic_in, all * rail_weight(flow.receivers));
    if (network_.peers) add(loads, Link::switch_in, all);
    if (flow.staged) add(loads, Link::dram, 2.0 * all);
    add(loads, Link::root_in, all);
    add(loads, Link::root_out, all);
    return loads;
  }

  // The same as unshared_rate() for a hand-over to the engine with the links `peer`.
  double unshared_rate(const Flow& flow, const Links& peer, TimeNs now) const {
    double least =
        flow.max_bytes_per_second > 0.0 ? flow.max_bytes_per_second : std::numeric_limits<double>::infinity();
    for (const LinkLoad& load : of_sender(flow)) {
      if (spec_of(load.link).whole_host) continue;
      least = std::min(least, rate(load.link) * share_at(load.link, now) / load.weight);
    }
    for (const LinkLoad& load : peer.of_receiver(flow)) {
      if (spec_of(load.link).whole_host) continue;
      least = std::min(least, peer.rate(load.link) * peer.share_at(load.link, now) / load.weight);
    }
    return least;
  }

  // Returns the rate of a flow that shares its links with no other flow, in bytes per second. Leaves out the links that
  // the whole host shares (DRAM, root): the event heap does not share them. `now`: for planned failures of links.
  double unshared_rate(const Flow& flow, TimeNs now) const {
    double least =
        flow.max_bytes_per_second > 0.0 ? flow.max_bytes_per_second : std::numeric_limits<double>::infinity();
    for (const LinkLoad& load : of(flow)) {
      if (spec_of(load.link).whole_host) continue;
      least = std::min(least, rate(load.link) * share_at(load.link, now) / load.weight);
    }
    for (const NodeShare& part : flow.nodes) {
      const NetworkPart link = network_.peers ? NetworkPart::nic : NetworkPart::node;
      least = std::min(least, node_rate() * share_at(link, part.node, now) / node_weight(flow, part));
    }
    return least;
  }

  // Returns whether the flows of all lanes of `sharers` equal engines can demand more than the rate of the link. A link
  // that cannot limit would only join the lanes into one system to solve.
  bool can_limit(Link link, std::uint32_t ranks, std::uint32_t sharers = 1) const {
    double wanted = 0.0;
    for (const LaneSpec& spec : kLaneSpecs) {
      if (spec.kind == LaneKind::compute || spec.kind == LaneKind::peer) continue;
      wanted += max_demand(link, spec.lane, ranks);
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

  // Returns the largest demand of one lane if the link had no limit. Some storage operations run on one rank only.
  double max_demand(Link link, Lane lane, std::uint32_t ranks) const {
    double demand = 0.0;
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
        if (weight > 0.0) demand = std::max(demand, weight * least);
      }
    }
    return demand;
  }
  bool serves(Lane lane, Tier tier) const {
    if (!has_[tier]) return false;
    return spec_of(lane).kind == LaneKind::direct || lane == spec_of(tier).read || lane == spec_of(tier).write;
  }

  std::array<double, kLinks> rates_{};
  std::array<double, kLinks> write_weights_{};  // bytes read that take as long as one byte written
  bool writes_to_drives_ = false;
  PerTier<bool> has_{};
  PoolNetwork network_;
  std::uint32_t groups_ = 1;
  std::vector<SlowLink> slow_links_;
};

}  // namespace kvtwin

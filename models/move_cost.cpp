#include "models/move_cost.hpp"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "models/rounding.hpp"
#include "models/wide.hpp"

namespace kvtwin {
namespace {

using Wide = Wide128;

TransferCoefficients transfer_coefficients(const HardwareSpec& hw, Direction direction) {
  const bool up = direction == Direction::host_to_device;
  TransferCoefficients t;
  t.call_ns = round_half_up(hw.copy_call * 1e9);
  t.gap_ps = round_half_up(hw.descriptor_gap * 1e12);
  t.descriptor_ps = round_half_up((up ? hw.descriptor_h2d : hw.descriptor_d2h) * 1e12);
  t.link_rate = whole_rate(up ? hw.host_to_device : hw.device_to_host);
  if (up && hw.inline_limit > 0) {
    t.inline_limit = round_half_up(hw.inline_limit);
    t.inline_rate = whole_rate(hw.inline_rate);
  }
  t.box_row_ps = round_half_up(hw.box_row * 1e12);
  t.launch_ns = round_half_up(hw.kernel_launch * 1e9);
  t.kernel_rate = whole_rate(std::min(hw.kernel_block_rate * hw.kernel_blocks, up ? hw.kernel_read : hw.kernel_write));
  t.ring_rate = hw.ring_rate > 0 ? whole_rate(hw.ring_rate) : t.kernel_rate;
  t.scatter_rate = whole_rate(hw.scatter_rate);
  t.staging_bytes = round_half_up(hw.staging_bytes);
  return t;
}

StorageTierCoefficients disk_coefficients(const HardwareSpec& hw) {
  StorageTierCoefficients tier;
  if (!hw.has_drives()) return tier;
  tier.look_up_ns = round_half_up(hw.disk_look_up * 1e9);
  tier.read.object_ns = round_half_up(hw.drive_read_latency * 1e9);
  tier.write.object_ns = round_half_up(hw.drive_write_latency * 1e9);
  tier.read.depth = tier.write.depth = std::max<std::uint64_t>(1, round_half_up(hw.drive_queue_depth * hw.drive_count));
  tier.read.object_fs = femtoseconds(1, hw.drive_read_iops * hw.drive_count);
  tier.write.object_fs = femtoseconds(1, hw.drive_write_iops * hw.drive_count);
  tier.read.rate = whole_rate(hw.drive_read_bandwidth * hw.drive_count);
  tier.write.rate = whole_rate(hw.drive_write_bandwidth * hw.drive_count);
  if (hw.file_a_page) {
    tier.read.object_ns = round_half_up(hw.file_read_overhead * 1e9);
    tier.write.object_ns = round_half_up(hw.file_write_overhead * 1e9);
    tier.read.stream_rate = whole_rate(hw.file_read_bandwidth);
    tier.write.stream_rate = whole_rate(hw.file_write_bandwidth);
  }
  return tier;
}

StorageTierCoefficients remote_coefficients(const HardwareSpec& hw) {
  StorageTierCoefficients tier;
  if (!hw.has_pool()) return tier;
  tier.look_up_ns = round_half_up(hw.pool_look_up * 1e9);
  tier.read.request_ns = round_half_up(hw.pool_latency * 1e9);
  tier.read.object_ns = round_half_up(hw.nic_latency * 1e9);
  tier.read.object_fs = femtoseconds(hw.nic_object, hw.nic_count);
  const StoreFigures& store = hw.store;
  const double nodes = std::max(1.0, hw.pool_nodes);
  const double pool = store.node_bandwidth > 0 ? store.node_bandwidth * nodes : hw.pool_bandwidth;
  tier.read.rate = whole_rate(std::min(hw.nic_bandwidth * hw.nic_count, pool));
  tier.write = tier.read;
  if (!store.given()) return tier;
  tier.look_up_ns = round_half_up(store.look_up_call * 1e9);
  tier.look_up_object_fs = femtoseconds(store.look_up_key, 1);
  const auto set = [&](StorageCoefficients& c, double call, double object, double stream, double node_object) {
    c.request_ns = round_half_up(call * 1e9);
    c.object_fs = std::max(c.object_fs, femtoseconds(node_object, nodes));
    if (stream == 0) return;
    c.object_ns = round_half_up(object * 1e9);
    c.stream_rate = whole_rate(stream);
    c.streams_objects = true;
  };
  set(tier.read, store.get_call, store.get_object, store.stream_read_bandwidth, store.node_get_object);
  set(tier.write, store.set_call, store.set_object, store.stream_write_bandwidth, store.node_set_object);
  return tier;
}

// The files of a batch are opened in parallel; the metadata servers handle them one after another.
StorageTierCoefficients shared_fs_coefficients(const HardwareSpec& hw) {
  StorageTierCoefficients tier;
  if (!hw.has_shared_fs()) return tier;
  tier.look_up_ns = tier.read.object_ns = tier.write.object_ns = round_half_up(hw.shared_fs_latency * 1e9);
  tier.look_up_page_fs = tier.read.object_fs = tier.write.object_fs = femtoseconds(hw.shared_fs_file, 1);
  tier.read.rate = whole_rate(hw.shared_fs_read_bandwidth);
  tier.write.rate = whole_rate(hw.shared_fs_write_bandwidth);
  return tier;
}

constexpr PerTier<StorageTierCoefficients (*)(const HardwareSpec&)> kStorageCoefficients{{
    nullptr,  // device
    nullptr,  // host
    disk_coefficients,
    shared_fs_coefficients,
    remote_coefficients,
}};
static_assert(has_all_storage_tiers(kStorageCoefficients, [](auto* make) { return make != nullptr; }));

// Returns the lower of two rates; a rate of 0 means "as fast as the link".
std::uint64_t slower(std::uint64_t a, std::uint64_t b) {
  if (a == 0) return b;
  return b == 0 ? a : std::min(a, b);
}

// Returns 0 if the link itself is the limit.
std::uint64_t cap_at_link(std::uint64_t rate, const TransferCoefficients& t) {
  return t.link_rate != 0 && rate >= t.link_rate ? 0 : rate;
}

// Returns the rate of `bytes` bytes that take at least `min_ps`; 0 if the link itself is the limit.
std::uint64_t rate_of(Bytes bytes, std::uint64_t min_ps, const TransferCoefficients& t) {
  if (bytes == 0 || min_ps == 0) return 0;
  const Wide rate = Wide{bytes} * 1'000'000'000'000U / min_ps;
  const auto limited = static_cast<std::uint64_t>(std::min<Wide>(rate, std::numeric_limits<std::uint64_t>::max()));
  return cap_at_link(std::max<std::uint64_t>(1, limited), t);
}

std::uint64_t engine_rate(const TransferCoefficients& t, Bytes piece) {
  if (piece != 0 && piece < t.inline_limit && t.inline_rate != 0) return cap_at_link(t.inline_rate, t);
  return rate_of(piece, t.descriptor_ps, t);
}

constexpr Wide kPsPerNs = 1000;

TimeNs latency(Wide ps) {
  const Wide ns = (ps + (kPsPerNs - 1)) / kPsPerNs;
  return static_cast<TimeNs>(std::min<Wide>(ns, static_cast<Wide>(std::numeric_limits<TimeNs>::max())));
}

}  // namespace

MoveCoefficients move_coefficients_of(const HardwareSpec& hw, std::uint32_t ranks) {
  MoveCoefficients c;
  if (ranks > 1) {
    c.broadcast_ns = round_half_up(hw.peer_latency * 1e9);
    c.broadcast_rate = whole_rate(exchange_rate(hw, ranks));
  }
  c.host_to_device = transfer_coefficients(hw, Direction::host_to_device);
  c.device_to_host = transfer_coefficients(hw, Direction::device_to_host);
  for (const TierSpec& spec : kStorageSpecs) c.storage[spec.tier] = kStorageCoefficients[spec.tier](hw);
  if (hw.has_gpudirect()) {
    c.gpudirect_rate = whole_rate(hw.gpudirect_bandwidth);
    c.gpudirect_object_fs = femtoseconds(hw.gpudirect_object, 1);
  }
  return c;
}

TransferCost MoveCost::storage(const StorageWork& work) const {
  const StorageTierCoefficients& tier = c_.storage[work.tier];
  if (work.verb == StorageVerb::look_up) {
    const Wide pages_fs = saturated_product(tier.look_up_page_fs, work.pages);
    const Wide objects_fs = saturated_product(tier.look_up_object_fs, saturated_product(work.pages, work.objects));
    return {latency(saturated_sum(Wide{tier.look_up_ns} * kPsPerNs, saturated_sum(pages_fs, objects_fs) / 1000)), 0, 0};
  }
  const StorageCoefficients& c = work.verb == StorageVerb::get ? tier.read : tier.write;
  const Wide request = Wide{c.request_ns} + c.object_ns;
  if (work.verb == StorageVerb::remove || work.pages == 0) return {latency(request * kPsPerNs), 0, 0};
  const Wide objects = saturated_product(saturated_product(work.pages, work.objects), work.ranks);
  const Wide bytes = saturated_product(saturated_product(work.pages, work.page_bytes), work.ranks);
  constexpr Wide kMaxBytes = std::numeric_limits<Bytes>::max();
  // The minimum time of all bytes, by each of the limits that count objects.
  const Wide rounds = c.depth == 0 ? 1 : (objects + c.depth - 1) / c.depth;
  Wide min_fs = std::max(saturated_product(c.object_fs, objects),
                         saturated_product(saturated_product(rounds - 1, c.object_ns), kFsPerNs));
  constexpr Wide kFsPerSecond = 1'000'000'000'000'000U;
  if (c.stream_rate != 0) {
    const Wide each = c.streams_objects ? saturated_product(work.pages, work.objects) : Wide{work.pages};
    const Wide stream_fs =
        saturated_sum(saturated_product(saturated_product(work.pages, work.page_bytes), kFsPerSecond) / c.stream_rate,
                      saturated_product(saturated_product(each - 1, c.object_ns), kFsPerNs));
    min_fs = c.streams_objects ? std::max(stream_fs, saturated_product(c.object_fs, objects)) : stream_fs;
  }
  std::uint64_t rate = c.rate;
  if (work.memory == Tier::device) {
    min_fs = std::max(min_fs, saturated_product(c_.gpudirect_object_fs, objects / std::max(1U, work.ranks)));
    const Wide direct = saturated_product(c_.gpudirect_rate, work.ranks);
    rate = slower(rate, static_cast<std::uint64_t>(std::min(direct, kMaxBytes)));
  }
  if (min_fs > 0) {
    const Wide limited = saturated_product(bytes, kFsPerSecond) / min_fs;
    rate = slower(rate, static_cast<std::uint64_t>(std::max<Wide>(1, std::min(limited, kMaxBytes))));
  }
  return {latency(request * kPsPerNs), static_cast<Bytes>(std::min(bytes, kMaxBytes)), rate};
}

TransferCost MoveCost::hand_over(const HandOverWork& work) const {
  const StorageCoefficients& nic = c_.storage[Tier::remote].write;
  Wide latency_ns = nic.object_ns;
  if (work.staged) latency_ns += Wide{c_.device_to_host.call_ns} + c_.host_to_device.call_ns;
  constexpr Wide kFsPerSecond = 1'000'000'000'000'000U;
  constexpr Wide kMaxRate = std::numeric_limits<std::uint64_t>::max();
  const Wide min_fs = saturated_product(nic.object_fs, work.writes);
  std::uint64_t rate = 0;
  if (min_fs > 0) {
    const Wide limited = saturated_product(work.bytes, kFsPerSecond) / min_fs;
    rate = static_cast<std::uint64_t>(std::max<Wide>(1, std::min(limited, kMaxRate)));
  }
  return {latency(latency_ns * kPsPerNs), work.bytes, rate};
}

TimeNs MoveCost::broadcast_ns(Bytes bytes) const {
  if (c_.broadcast_rate == 0) return 0;
  const Wide bytes_ns = (saturated_product(bytes, 1'000'000'000U) + c_.broadcast_rate - 1) / c_.broadcast_rate;
  return latency((c_.broadcast_ns + bytes_ns) * kPsPerNs);
}

TransferCost MoveCost::transfer(const Plan& plan) const {
  const TransferCoefficients& t = plan.direction == Direction::host_to_device ? c_.host_to_device : c_.device_to_host;
  const Wide launch = t.launch_ns * kPsPerNs;
  const Wide engine = t.call_ns * kPsPerNs + Wide{plan.descriptors} * t.gap_ps;
  const std::uint64_t windowed = rate_of(plan.window / kWindowPortions, t.call_ns * 1000, t);
  switch (plan.path) {
    case TransferPath::copy_engine:
      return {latency(engine), plan.bytes, slower(windowed, engine_rate(t, plan.descriptor_bytes))};
    case TransferPath::boxes: {
      const std::uint64_t by_rows = rate_of(plan.piece_bytes, t.box_row_ps, t);
      const std::uint64_t by_boxes = rate_of(plan.descriptor_bytes, t.descriptor_ps, t);
      return {latency(engine), plan.bytes, slower(windowed, slower(by_rows, by_boxes))};
    }
    case TransferPath::kernel: return {latency(launch), plan.bytes, cap_at_link(t.kernel_rate, t)};
    case TransferPath::ring: return {latency(launch), plan.bytes, cap_at_link(t.ring_rate, t)};
    case TransferPath::staged: {
      const bool grouped = plan.layer_groups > 1;
      const Wide last = (t.staging_bytes == 0 ? plan.bytes : std::min(plan.bytes, t.staging_bytes)) / plan.layer_groups;
      const Wide relayout = t.scatter_rate == 0 ? 0 : (last * 1'000'000'000'000U + t.scatter_rate - 1) / t.scatter_rate;
      const std::uint64_t by_engine = grouped ? slower(rate_of(plan.piece_bytes, t.box_row_ps, t),
                                                       rate_of(plan.descriptor_bytes, t.descriptor_ps, t))
                                              : engine_rate(t, plan.descriptor_bytes);
      const std::uint64_t rate = slower(by_engine, cap_at_link(t.scatter_rate, t));
      return {latency(engine + launch + relayout), plan.bytes, slower(windowed, rate)};
    }
  }
  return {0, plan.bytes, 0};
}

std::string to_string(const MoveCoefficients& c) {
  std::string text;
  const auto line = [&](std::string_view name, std::uint64_t value, std::string_view unit) {
    text.append(name).append(" = ").append(std::to_string(value)).append(" ").append(unit).append("\n");
  };
  if (c.broadcast_rate != 0) {
    line("broadcast", c.broadcast_ns, "ns");
    line("broadcast.rate", c.broadcast_rate, "bytes/s");
  }
  for (const Direction direction : {Direction::host_to_device, Direction::device_to_host}) {
    const bool up = direction == Direction::host_to_device;
    const TransferCoefficients& t = up ? c.host_to_device : c.device_to_host;
    const std::string prefix = up ? "host_to_device." : "device_to_host.";
    line(prefix + "call", t.call_ns, "ns");
    line(prefix + "gap", t.gap_ps, "ps/descriptor");
    line(prefix + "descriptor", t.descriptor_ps, "ps/descriptor");
    line(prefix + "link_rate", t.link_rate, "bytes/s");
    line(prefix + "inline_limit", t.inline_limit, "bytes");
    line(prefix + "inline_rate", t.inline_rate, "bytes/s");
    line(prefix + "box_row", t.box_row_ps, "ps/row");
    line(prefix + "launch", t.launch_ns, "ns");
    line(prefix + "kernel_rate", t.kernel_rate, "bytes/s");
    line(prefix + "ring_rate", t.ring_rate, "bytes/s");
    line(prefix + "scatter_rate", t.scatter_rate, "bytes/s");
    line(prefix + "staging", t.staging_bytes, "bytes");
  }
  for (const TierSpec& spec : kStorageSpecs) {
    const StorageTierCoefficients& tier = c.storage[spec.tier];
    if (tier.read.rate == 0) continue;
    const std::string name = std::string(spec.name) + ".";
    line(name + "look_up", tier.look_up_ns, "ns");
    if (tier.look_up_page_fs != 0) line(name + "look_up_page", tier.look_up_page_fs, "fs/page");
    if (tier.look_up_object_fs != 0) line(name + "look_up_object", tier.look_up_object_fs, "fs/object");
    for (const auto& [verb, s] : {std::pair{"read.", &tier.read}, std::pair{"write.", &tier.write}}) {
      const std::string prefix = name + verb;
      line(prefix + "request", s->request_ns, "ns");
      line(prefix + "object", s->object_ns, "ns");
      line(prefix + "depth", s->depth, "objects");
      line(prefix + "object_gap", s->object_fs, "fs/object");
      line(prefix + "rate", s->rate, "bytes/s");
      if (s->stream_rate != 0) line(prefix + "stream_rate", s->stream_rate, "bytes/s");
      if (s->streams_objects) line(prefix + "streams_objects", 1, "");
    }
  }
  if (c.gpudirect_rate != 0) {
    line("gpudirect.rate", c.gpudirect_rate, "bytes/s");
    line("gpudirect.object", c.gpudirect_object_fs, "fs/object");
  }
  return text;
}

}  // namespace kvtwin

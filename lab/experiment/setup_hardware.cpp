#include "lab/experiment/setup_parts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "models/hardware_draws.hpp"
#include "models/names.hpp"
#include "models/presets.hpp"
#include "policy/index/page_key.hpp"
#include "policy/write.hpp"

namespace kvtwin {
namespace {

std::string gigabytes_a_second(double bytes_per_second) {
  char text[40];
  std::snprintf(text, sizeof text, "%g GB/s", bytes_per_second / 1e9);
  return text;
}

// Rounds to whole bytes/s. Only an absent device has the rate 0; a slow one has at least 1.
std::uint64_t rate(double bytes_per_second) {
  if (bytes_per_second == 0) return 0;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(bytes_per_second + 0.5));
}

// Sets the network to the remote pool, and the pool's bandwidth that follows from it and from the store.
void configure_network(const Experiment& e, Setup& setup) {
  HardwareSpec& hw = setup.hardware;
  if (!has_tier(e, Tier::remote) || !hw.has_pool()) return;
  PoolNetwork& network = setup.world.network;
  const auto engines = static_cast<std::uint32_t>(total_engines(e));
  network.nodes = static_cast<std::uint32_t>(e.integer("hardware.set.pool_nodes"));
  network.peers = e.flag("hardware.set.pool_peers");
  network.rails = static_cast<std::uint32_t>(e.integer("hardware.set.rails"));
  const double nics = hw.nic_bandwidth * hw.nic_count;
  if (network.peers) {
    if (engines == 1) {
      throw InputError(e.where("hardware.set.pool_peers") +
                       ": needs other engines, and there is one; set cluster.engines to more, or this to false");
    }
    if (network.nodes != 0 && network.nodes != engines) {
      throw InputError(e.where("hardware.set.pool_nodes") + ": is " + std::to_string(network.nodes) +
                       ", and with hardware.set.pool_peers the nodes are the " + std::to_string(engines) +
                       " engines; leave it out");
    }
    network.nodes = engines;
  }
  if (network.rails > 0 && network.rails > hw.nic_count) {
    throw InputError(e.where("hardware.set.rails") + ": is " + std::to_string(network.rails) + ", and " + hw.name +
                     " has " + std::to_string(static_cast<int>(hw.nic_count)) + " NICs per engine; make it smaller");
  }
  const double free = 1 - e.number("hardware.set.network_share");
  const double node_gbps = e.number("hardware.set.pool_node_gbps");
  const double nodes = std::max(1U, network.nodes);
  double node = network.peers ? nics : hw.pool_bandwidth / nodes;
  const bool pool_is_given = e.number("hardware.set.remote_gbps") != 0 || e.number("hardware.set.pool_bandwidth") != 0;
  if (node_gbps != 0 && e.number("hardware.set.pool_bandwidth") != 0) {
    throw InputError(e.where("hardware.set.pool_node_gbps") +
                     ": gives the bandwidth of each node, and hardware.set.pool_bandwidth that of all; leave one out");
  }
  if (!network.peers && !pool_is_given && hw.store.node_bandwidth > 0) node = hw.store.node_bandwidth;
  if (!network.peers && node_gbps != 0) node = node_gbps * 1e9;
  hw.store.node_bandwidth = 0;  // from here on, it is in pool_bandwidth
  hw.pool_nodes = network.nodes;
  hw.pool_bandwidth = node * nodes * (network.peers ? 1 : free);
  const double over = e.number("hardware.set.switch_oversubscription");
  if (over > 1 || free < 1) network.switch_bytes_per_second = rate(nics * engines / over * free);
}

// Sets the figures of a hardware file that hardware.set has, with a note for each.
void set_figures(const Experiment& e, bool (*chosen)(std::string_view), Setup& setup) {
  HardwareSpec& hw = setup.hardware;
  for (const HardwareField& field : hardware_fields()) {
    const std::string key = "hardware.set." + std::string(field.key);
    const double base = unit_of_figure(field).base;
    const double wanted = field.whole ? static_cast<double>(e.integer(key)) : e.number(key) * base;
    if (wanted == 0 || !chosen(field.key)) continue;
    const double before = hw.*field.member;
    hw.*field.member = wanted;
    const std::string_view device = incomplete_device(hw, field.key);
    if (!device.empty() && device != "shared file system") {  // check_storage() refuses an incomplete one
      throw InputError(e.where(key) + ": " + hw.name + " has no " + std::string(device) +
                       "; leave it out, or set it to 0");
    }
    const std::string unit(unit_of_figure(field).name);
    const auto shown = [&](double value) { return formatted("%g", value / base) + (unit.empty() ? "" : " " + unit); };
    setup.notes.push_back(key + ": " + shown(wanted) + " instead of " + shown(before) + " as of " + hw.name);
  }
}

}  // namespace

void draw_hardware(const Experiment& e, Setup& setup) {
  HardwareSpec& hw = setup.hardware;
  const double spread = e.number("hardware.spread_percent") / 100;
  const auto draw = static_cast<std::uint64_t>(e.integer("hardware.draw"));
  const std::string& end = e.text("hardware.end");
  if (draw != 0) {
    const std::size_t count = uncertain_numbers(hw, spread).size();
    if (count == 0) {
      throw InputError(e.where("hardware.draw") + ": " + without_intervals(hw));
    }
    move_to_draw(hw, draw, spread);
    setup.notes.push_back("hardware.draw: variant " + std::to_string(draw) + " of " + hw.name + ", " +
                          std::to_string(count) + " figures drawn");
  }
  if (end.empty()) return;
  const std::size_t colon = end.find(':');
  const std::string key = end.substr(0, colon), which = colon == std::string::npos ? "" : end.substr(colon + 1);
  if (which != "low" && which != "high") {
    throw InputError(e.where("hardware.end") + ": is \"" + end + "\"; it must be NUMBER:low or NUMBER:high");
  }
  const std::vector<UncertainNumber> numbers = uncertain_numbers(hw, spread);
  if (numbers.empty()) throw InputError(e.where("hardware.end") + ": " + without_intervals(hw));
  if (!move_to_end(hw, key, which == "high", spread)) {
    std::vector<std::string> known;
    for (const UncertainNumber& number : numbers) known.push_back(number.key);
    throw InputError(e.where("hardware.end") + ": " + unknown_name("figure with an interval", key, known));
  }
  setup.notes.push_back("hardware.end: " + key + " of " + hw.name + " at its interval's " + which + " end");
}

void override_hardware(const Experiment& e, Setup& setup) {
  HardwareSpec& hw = setup.hardware;
  const auto change = [&](const char* key, bool has_one, const char* what, double before, auto apply) {
    const double wanted = e.number(key) * 1e9;
    if (wanted == 0) return;
    if (!has_one)
      throw InputError(e.where(key) + ": " + hw.name + " has no " + what + "; leave it out, or set it to 0");
    apply(wanted);
    setup.notes.push_back(std::string(key) + ": " + what + " at " + gigabytes_a_second(wanted) + " instead of " +
                          gigabytes_a_second(before) + " as of " + hw.name);
  };
  set_figures(
      e, [](std::string_view figure) { return figure != "pool_bandwidth"; }, setup);
  change("hardware.set.disk_read_gbps", hw.has_drives(), "drives", hw.drive_read_bandwidth * hw.drive_count,
         [&](double rate) { hw.drive_read_bandwidth = rate / hw.drive_count; });
  change("hardware.set.disk_write_gbps", hw.has_drives(), "drives", hw.drive_write_bandwidth * hw.drive_count,
         [&](double rate) { hw.drive_write_bandwidth = rate / hw.drive_count; });
  configure_store(e, setup);
  change("hardware.set.remote_gbps", hw.has_pool(), "remote pool",
         std::min(hw.nic_bandwidth * hw.nic_count, hw.pool_bandwidth), [&](double rate) {
           hw.nic_bandwidth = rate / hw.nic_count;
           hw.pool_bandwidth = rate;
         });
  set_figures(
      e, [](std::string_view figure) { return figure == "pool_bandwidth"; }, setup);
  configure_network(e, setup);
  change("hardware.set.host_link_gbps", true, "GPU's host link", hw.host_to_device, [&](double rate) {
    hw.kernel_read *= rate / hw.host_to_device;
    hw.kernel_write *= rate / hw.device_to_host;
    hw.kernel_block_rate *= rate / hw.host_to_device;
    hw.host_to_device = hw.device_to_host = rate;
  });
}

void configure_world(const Experiment& e, Setup& setup) {
  const HardwareSpec& hw = setup.hardware;
  WorldConfig& world = setup.world;
  world.ranks = setup.engine.ranks;
  world.h2d_bytes_per_second = rate(hw.host_to_device);
  world.d2h_bytes_per_second = rate(hw.device_to_host);
  if (e.flag("sim.both_ways_shared"))
    world.both_ways_bytes_per_second = rate(hw.bidirectional_factor * (hw.host_to_device + hw.device_to_host));
  if (e.flag("sim.dram_shared")) world.dram_bytes_per_second = rate(hw.dram_bandwidth);
  // If one socket has fewer accelerators than there are ranks, more sockets are used, each with a PCIe root of its own.
  const double sockets = std::ceil(setup.engine_gpus() / hw.accelerators_per_socket);
  world.root_bytes_per_second = rate(hw.pcie_root_bandwidth * sockets);
  world.disk_read_bytes_per_second = rate(hw.drive_read_bandwidth * hw.drive_count);
  world.disk_write_bytes_per_second = rate(hw.drive_write_bandwidth * hw.drive_count);
  world.nic_bytes_per_second = rate(hw.nic_bandwidth * hw.nic_count);
  if (world.network.nodes == 0) {
    world.fabric_bytes_per_second = rate(hw.pool_bandwidth);
  } else {
    world.network.node_bytes_per_second = rate(hw.pool_bandwidth / world.network.nodes);
  }
  world.shared_fs_read_bytes_per_second = rate(hw.shared_fs_read_bandwidth);
  world.shared_fs_write_bytes_per_second = rate(hw.shared_fs_write_bandwidth);
  world.cost = setup.cost.get();
}

HardwareSpec hardware_of(const Experiment& e) {
  if (e.text("hardware.file").empty()) {
    return with_key(e, "hardware.name", [&] { return hardware_preset(e.text("hardware.name")); });
  }
  return with_key(e, "hardware.file", [&] { return hardware_from_file(e.path("hardware.file").string()); });
}

HardwareSpec hardware_with_memory(const Experiment& e) {
  HardwareSpec hardware = hardware_of(e);
  if (const double bytes = e.number("hardware.set.memory_bytes"); bytes != 0) hardware.memory_bytes = bytes;
  return hardware;
}

std::string without_intervals(const HardwareSpec& hardware) {
  return "no figure of " + hardware.name +
         " has an interval; take a file of kvtwin calibrate (hardware.file), or set hardware.spread_percent to what "
         "they "
         "may be off";
}

}  // namespace kvtwin

// A device without a GPU: an arena in host memory stands in for HBM, a thread for each copy engine and one for
// the compute stream, each a FIFO of its own.
//
// Copies. Executes the Plan as it was decided, by the kernels' CPU twins: copy engine, copy kernel, or staged. A
// load moves layer by layer and tells how many have landed (staged: all at the end).
// Passes. Each step of each layer: waits for the layer's bytes of every gate (first step only), does matrix
// products of the layer's size, reads every page of every sequence's context and checks each byte against the page's
// key (kernels/page_pattern.hpp), then writes the new tokens' bytes. Any thread may have put them there; what is wrong
// is counted and named, and the run goes on. The device pool is layer_first, the host pool in any layout.
//
// A device is one rank's. In a group of ranks (impl/ranks.hpp) passes are joint, as the all-reduces within tie them:
// the k-th of each rank belong together, and after each step the compute threads agree on what became of it. A burst
// that any rank has cancelled ends on all after the same step, at least one; a load that any has lost fails it on all:
// gate_failed, or failed on a rank whose pass had no gates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "impl/device/device.hpp"
#include "impl/ranks.hpp"
#include "policy/layout.hpp"

namespace kvtwin {

struct HostDeviceConfig {
  KvShape shape;
  Layout host_layout = Layout::page_first;
  Pages device_pages = 0;
  Pages host_pages = 0;
  std::uint32_t hidden = 0;  // of the matrix product, with `width` columns; 0 = no arithmetic
  std::uint32_t width = 0;
  std::uint32_t pair_work = 0;  // multiply-adds of attention, a layer and pair of prefill tokens
  std::uint64_t seed = 1;
  RankGroup* ranks = nullptr;  // null = alone; outlives the device, and is left before the device goes in mid-run
  double slow_factor = 1;      // copies take so many times as long

  // For tests. Flips one bit, drawn from the seed: of the first page that a pass completes in device memory, or of
  // the first host page that is loaded, before it is.
  enum class Flip : std::uint8_t { none, device, host } flip = Flip::none;
  // Called before each thing that is acquired, by its name; may throw.
  std::function<void(const char* step)> before;
};

// What its arenas and matrices take.
Bytes host_device_bytes(const HostDeviceConfig& config);

std::unique_ptr<Device> make_host_device(const HostDeviceConfig& config);

}  // namespace kvtwin

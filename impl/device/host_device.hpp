// A device without a GPU. An arena in host memory takes the place of HBM, one thread the place of each copy engine, and
// one thread the place of the compute stream (paged_device.hpp).
//
// Copies: executes each Plan with the CPU twins of the kernels (copy engine, copy kernel, or staged). A load moves
// group by group and reports each landed group of layers (staged: all at the end).
//
// Passes: for each layer of each step, the compute thread waits for the layer's bytes of every gate (first step only),
// computes matrix products of the layer's size, reads every page of each sequence's context and checks each byte
// against the page key (kernels/page_pattern.hpp), and writes the bytes of the new tokens. Wrong bytes are counted and
// reported, and the run continues. The device pool is layer_first; the host pool has any layout.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"

namespace kvtwin {

struct HostDeviceConfig : DeviceConfig {
  std::uint32_t hidden = 0;  // of the matrix product; 0 = no arithmetic
  std::uint32_t width = 0;   // columns of the matrix product
  // Multiply-adds of attention per layer. pair_work: per pair of prefill tokens. decode_work: per context token of a
  // decode step (0 if pair_work is 0). context_work: per context token of a prefill, to compute keys and values (MLA).
  std::uint32_t pair_work = 0;
  std::uint64_t decode_work = 0, context_work = 0;
  std::uint64_t head_work = 0;           // multiply-adds of the output head, per sequence that yields a token
  std::vector<HostDeviceConfig> beside;  // of a draft model's pool, and of windows and states
};

// The work of one layer in one step: rows of its product, and pairs of its attention. The multiply-adds are those that
// models/roofline.hpp counts, except for layers with windows or states. The last layer also does the output head.
struct LayerWork {
  std::uint64_t rows = 0, pairs = 0;
};
LayerWork layer_work(const HostDeviceConfig& config, const ForwardShape& shape, std::uint64_t step,
                     std::uint32_t layer);

// Returns the bytes of the arenas and matrices.
Bytes host_device_bytes(const HostDeviceConfig& config);

std::unique_ptr<Device> make_host_device(const HostDeviceConfig& config);

}  // namespace kvtwin

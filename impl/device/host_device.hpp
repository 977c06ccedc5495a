// A device without a GPU: an arena in host memory stands in for HBM, a thread for each copy engine and one for
// the compute stream (paged_device.hpp).
//
// Copies. Executes the Plan as it was decided, by the kernels' CPU twins: copy engine, copy kernel, or staged. A
// load moves layer by layer and tells how many have landed (staged: all at the end).
// Passes. Each step of each layer: waits for the layer's bytes of every gate (first step only), does matrix
// products of the layer's size, reads every page of every sequence's context and checks each byte against the page's
// key (kernels/page_pattern.hpp), then writes the new tokens' bytes. Any thread may have put them there; what is wrong
// is counted and named, and the run goes on. The device pool is layer_first, the host pool in any layout.
#pragma once

#include <cstdint>
#include <memory>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"

namespace kvtwin {

struct HostDeviceConfig : DeviceConfig {
  std::uint32_t hidden = 0;  // of the matrix product, with `width` columns; 0 = no arithmetic
  std::uint32_t width = 0;
  // Multiply-adds of a layer's attention: a pair of prefill tokens; a token of context, of a decode step (none where a
  // pair takes none); and of a prefill's context, to get at its keys and values (MLA).
  std::uint32_t pair_work = 0;
  std::uint64_t decode_work = 0, context_work = 0;
  std::uint64_t head_work = 0;  // multiply-adds of the output head, a sequence that yields a token
};

// What a layer computes in a step of a pass: rows of its product, and pairs of its attention, that come to as many
// multiply-adds as models/roofline.hpp counts, but for layers with windows or states. The last layer does the head's.
struct LayerWork {
  std::uint64_t rows = 0, pairs = 0;
};
LayerWork layer_work(const HostDeviceConfig& config, const ForwardShape& shape, std::uint64_t step,
                     std::uint32_t layer);

// What its arenas and matrices take.
Bytes host_device_bytes(const HostDeviceConfig& config);

std::unique_ptr<Device> make_host_device(const HostDeviceConfig& config);

}  // namespace kvtwin

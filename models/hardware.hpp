// A machine's figures: one accelerator, its link to the host, its peers, the host's memory, drives and NICs. Read from
// a preset or a JSON file of the same form:
//
//   {"description": "...", "numbers": {"memory_bandwidth": {"value": 4.8, "unit": "TB/s", "source": "...", "date":
//   "..."}, ...}}
//
// A number that was fitted to measurements also has "low" and "high", in its unit: between them it lies with 95 %
// confidence, were the residuals chance. "calibration" beside "numbers" may hold anything; kvtwin calibrate says there
// what was measured, when, on what and by which command.
//
// Held in bytes, bytes/s, FLOP/s, seconds, plain fractions and counts (GB = 10^9 bytes). Doubles, because they
// are measurements: models/roofline rounds them once into integers and no double goes further.
// All are required but peak_fp8, peak_fp4, attention_serial, descriptor_gap, inline_limit, inline_rate, box_row, those
// from bulk_copies to layer_group_min, and those of storage, by the device: all of the drives', of the network's and
// its pool's, of the shared file system's, of GPUDirect's, or none. Left out, they are 0.
//
// Errors: ModelError for an unknown preset or key (the nearest is named), a missing or non-positive number, a
// unit of another kind, and a number that no machine reaches (lint limits: host link 1,000 GB/s, memory
// 20 TB/s, 50 PFLOP/s, and so on; see hardware.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "models/geometry.hpp"
#include "policy/base/types.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {

// One number as the file states it.
struct HardwareNumber {
  std::string key;
  std::string value;  // as written
  std::string unit;
  double low = 0, high = 0;  // 95 % interval of `value`, in `unit`; 0 = none is known
  std::string source;        // begins with "assumed" where nothing was measured or specified
  std::string date;          // when the source was published, or read where it bears no date
};

struct HardwareSpec {
  std::string name;  // preset name or file
  std::string description;
  std::vector<HardwareNumber> numbers;  // in the file's order

  // The accelerator.
  double memory_bytes = 0;
  double memory_bandwidth = 0;  // peak
  double memory_fraction = 0;   // of it, what kernels reach
  double peak_bf16 = 0;         // dense FLOP/s; fp16 is the same
  double peak_fp8 = 0;          // 0 = no such units: computed in bf16
  double peak_fp4 = 0;
  double gemm_fraction = 0;       // of the peak, matrix products
  double attention_fraction = 0;  // of the bf16 peak, attention
  // In attention: of the shorter of computing and reading KV, the part that the longer doesn't hide. 0 = a roofline.
  double attention_serial = 0;
  double pass_overhead = 0;   // host and launch time of a forward pass that nothing hides
  double peer_bandwidth = 0;  // to the other ranks, one direction
  double peer_latency = 0;    // of one all-reduce

  // The link to host memory, one accelerator's.
  double host_to_device = 0;        // usable by the copy engine, alone
  double device_to_host = 0;        // usable by the copy engine, alone
  double bidirectional_factor = 0;  // each direction's share when both are busy
  double link_latency = 0;          // one way over the wire; the paths' own overheads below include it

  // The copy engine.
  double copy_call = 0;       // one batch call
  double descriptor_gap = 0;  // between descriptors
  double descriptor_h2d = 0;  // least time of a descriptor
  double descriptor_d2h = 0;
  double inline_limit = 0;  // host-to-device descriptors shorter than this many bytes are carried by the
  double inline_rate = 0;   // driver at inline_rate; limit 0 = no such cliff
  double box_row = 0;       // least time of a row of a strided copy; 0 = no less than its bytes'
  // Copy kernels.
  double kernel_launch = 0;
  double kernel_block_rate = 0;  // bytes/s that one thread block sustains over the link
  double kernel_blocks = 0;      // blocks in use
  double kernel_read = 0;        // the most that all blocks read from host memory
  double kernel_write = 0;       // the most that all blocks write to host memory
  double scatter_rate = 0;       // relayout within device memory, with the blocks in use
  double staging_bytes = 0;      // one staging chunk
  double bulk_copies = 0;        // 1 = it has them (compute capability 9.0 and later)
  double ring_rate = 0;          // of a kernel that uses them, all blocks; 0 = as other copy kernels
  // From where on one way of copying is faster than another, see PlannerLimits; 0 = its default.
  double copy_engine_min_h2d = 0, copy_engine_min_d2h = 0;  // bytes of a piece
  double box_min = 0, box_min_busy = 0;                     // bytes of a row
  double kernel_min_pieces = 0;
  double window_h2d = 0;       // bytes
  double layer_group_min = 0;  // bytes

  // Host memory of one socket, and how many accelerators share it.
  double dram_bandwidth = 0;  // usable
  double accelerators_per_socket = 0;

  // Storage of one socket; 0 = it has no such device. One drive:
  double drive_count = 0;
  double drive_read_bandwidth = 0, drive_write_bandwidth = 0;  // sequential
  double drive_read_iops = 0, drive_write_iops = 0;            // of requests too small for the bandwidth
  double drive_read_latency = 0, drive_write_latency = 0;      // of one request alone
  double drive_queue_depth = 0;                                // requests under way at once
  double disk_look_up = 0;                                     // asking the index of what is stored, a batch
  // Where each page is a file (HiCache's file back end): one thread a rank that opens, reads or writes, and closes
  // page after page through the system's cache. Beside its bytes a page takes the overhead.
  double file_read_overhead = 0, file_write_overhead = 0;
  double file_read_bandwidth = 0, file_write_bandwidth = 0;
  // One NIC, each direction, and the remote pool behind it.
  double nic_count = 0;
  double nic_bandwidth = 0;
  double nic_latency = 0;     // of one object's read or write, and its queue pair's depth hides it
  double nic_object = 0;      // a NIC's time for one object, whatever its size
  double pool_bandwidth = 0;  // of all pool hosts together, each direction
  double pool_latency = 0;    // of a request to the pool: where the objects lie, or where they go
  double pool_look_up = 0;    // the round trip of asking for a batch
  // A file system that machines share (Lustre, 3FS, NFS), as one engine's machine sees it. It serves all engines
  // together at these rates.
  double shared_fs_read_bandwidth = 0, shared_fs_write_bandwidth = 0;
  double shared_fs_latency = 0;  // of one file's read, write or look-up, alone
  double shared_fs_file = 0;     // its metadata servers' time for one file, whatever its size
  // Between drives or NICs and one accelerator's memory, past host memory.
  double gpudirect_bandwidth = 0;
  double gpudirect_object = 0;  // an accelerator's submitters' time for one object
  // PCIe root of one socket, each direction: what all its accelerators, drives and NICs together move. 0 = never binds.
  double pcie_root_bandwidth = 0;

  // How drives are used; no figure of the machine's.
  bool file_a_page = false;

  bool has_drives() const { return drive_count > 0; }
  bool has_pool() const { return nic_count > 0; }
  bool has_shared_fs() const {
    return shared_fs_read_bandwidth > 0 && shared_fs_write_bandwidth > 0 && shared_fs_latency > 0 && shared_fs_file > 0;
  }
  bool has_gpudirect() const { return gpudirect_bandwidth > 0; }
};

// A number of HardwareSpec's.
struct HardwareField {
  std::string_view key;
  double HardwareSpec::*member = nullptr;
  double most = 0;      // more no machine reaches
  bool varies = false;  // a rate, time, frequency or share: it may be off by some per cent
};
std::span<const HardwareField> hardware_fields();

HardwareSpec parse_hardware(std::string_view json, const std::string& file);
HardwareSpec hardware_from_file(const std::string& path);
HardwareSpec hardware_preset(std::string_view name);

PlannerLimits planner_limits(const HardwareSpec& hardware);

// KV bytes that one rank's device memory has room for:
//   memory_bytes * mem_fraction - weights/tp - activations,
// where the ranks split all weights evenly, and activations are those of a prefill of `chunk_tokens`: in the
// activations' type, six hidden rows and three feed-forward rows (split over tp) a token.
// ModelError when nothing is left, naming a tp that would do where there is one.
constexpr double kMemFraction = 0.9;  // the rest: CUDA context, graphs, workspaces
constexpr Tokens kActivationTokens = 8192;
Bytes device_kv_bytes(const HardwareSpec& hardware, const ModelGeometry& model, std::uint32_t tp,
                      double mem_fraction = kMemFraction, Tokens chunk_tokens = kActivationTokens);

}  // namespace kvtwin

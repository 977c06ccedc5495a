// The figures of a machine: one accelerator, its link to the host, its peers, the host's memory, drives and NICs. Read
// from a preset, or from a JSON file of this form:
//
//   {"description": "...", "gpu": "h200-sxm", "numbers": {"memory_bandwidth": {"value": 4.8, "unit": "TB/s", "source":
//   "...", "date": "..."}, ...}}
//
// "gpu" is the GPU whose operator tables (models/operator_table.hpp) belong to the machine: a preset's name, or the
// name in a table of the user's own. A machine without it has no operator table of its own.
//
// A number that was fitted to measurements also has "low" and "high", in its unit: the 95 % confidence interval, if
// residuals are random. "calibration" beside "numbers" may contain anything; kvtwin calibrate writes the measurements,
// dates, machine and command there; "capture" beside it is what a fit to a server's times writes.
//
// Units: bytes, bytes/s, FLOP/s, seconds, fractions and counts (GB = 10^9 bytes). The numbers are doubles, because they
// are measurements. models/roofline rounds them once to integers, and no double is used after that.
//
// Optional numbers (0 if absent): domain_ranks, peak_fp8, peak_fp4, attention_serial, attention_query_tokens,
// descriptor_gap, inline_limit, inline_rate, box_row, the numbers from bulk_copies to layer_group_min, and
// pcie_root_bandwidth. Storage numbers are optional per device: the drives, the network with its pool, the shared file
// system, and GPUDirect each have all of their numbers or none. All other numbers are required.
//
// Errors: ModelError for an unknown preset or key (with the nearest known one), a missing or non-positive number, a
// unit of another kind, or a number that no machine reaches (limits: host link 1,000 GB/s, memory 20 TB/s, 50 PFLOP/s,
// and so on; see hardware.cpp).
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

// One number, as written in the file.
struct HardwareNumber {
  std::string key;
  std::string value;  // text in the file
  std::string unit;
  double low = 0, high = 0;  // 95 % interval of `value`, in `unit`; 0 = not known
  std::string source;        // begins with "assumed" if nothing was measured or specified
  std::string date;          // date of the source, or of reading it if it has no date
};

// The figures of a remote store (models/stores.hpp). 0 = not known: the machine's network alone counts.
struct StoreFigures {
  double look_up_call = 0;  // of a batch look-up
  double look_up_key = 0;   // added per object
  double get_call = 0, set_call = 0;
  // One client moves one object after another, each with this time and the time of its bytes.
  double get_object = 0, set_object = 0;
  double stream_read_bandwidth = 0, stream_write_bandwidth = 0;
  double node_bandwidth = 0;                        // of one server, per direction
  double node_get_object = 0, node_set_object = 0;  // one server's time per object of any size, for all clients
  double drive_read_bandwidth = 0, drive_write_bandwidth = 0;  // of all drives of a store behind its memory
  double lease = 0;  // a page that was looked up or read is not evicted for this time, and a get must end within it

  bool given() const { return get_call > 0; }
  friend bool operator==(const StoreFigures&, const StoreFigures&) = default;
};

struct HardwareSpec {
  std::string name;  // preset name or file
  std::string description;
  std::string gpu;                      // the name in operator tables, as "h100-sxm"; empty = not named
  std::vector<HardwareNumber> numbers;  // in the order of the file

  // The accelerator.
  double memory_bytes = 0;
  double memory_bandwidth = 0;  // peak
  double memory_fraction = 0;   // share of memory_bandwidth that kernels reach
  double peak_bf16 = 0;         // dense FLOP/s; equal for fp16
  double peak_fp8 = 0;          // 0 = no fp8 units: computed in bf16
  double peak_fp4 = 0;
  double gemm_fraction = 0;       // share of the peak that matrix products reach
  double attention_fraction = 0;  // share of the bf16 peak that attention reaches
  // Attention computes and reads KV at the same time. This share of the shorter part is not hidden by the longer. 0 = a
  // roofline.
  double attention_serial = 0;
  // A prefill that computes so many tokens of a sequence in a pass reaches half of attention_fraction. 0 = the share
  // does not depend on the number.
  double attention_query_tokens = 0;
  double pass_overhead = 0;   // host and launch time of a forward pass that is not hidden
  double peer_bandwidth = 0;  // to the other ranks, per direction
  double peer_latency = 0;    // of one all-reduce
  double domain_ranks = 0;    // accelerators that reach each other at peer_bandwidth; 0 = 8

  // The link between host memory and one accelerator.
  double host_to_device = 0;        // usable by the copy engine, one direction alone
  double device_to_host = 0;        // usable by the copy engine, one direction alone
  double bidirectional_factor = 0;  // share of each direction while both are busy
  double link_latency = 0;          // one way on the wire; the overheads below include this time

  // The copy engine.
  double copy_call = 0;       // one batch call
  double descriptor_gap = 0;  // between descriptors
  double descriptor_h2d = 0;  // minimum time of a descriptor
  double descriptor_d2h = 0;
  double inline_limit = 0;  // the driver copies shorter host-to-device descriptors, in bytes; 0 = no such limit
  double inline_rate = 0;   // rate of such copies
  double box_row = 0;       // minimum time of a row of a strided copy; 0 = only the time of its bytes
  // Copy kernels.
  double kernel_launch = 0;
  double kernel_block_rate = 0;  // bytes/s of one thread block over the link
  double kernel_blocks = 0;      // blocks in use
  double kernel_read = 0;        // limit of reads from host memory by all blocks
  double kernel_write = 0;       // limit of writes to host memory by all blocks
  double scatter_rate = 0;       // relayout in device memory, with `kernel_blocks` blocks
  double staging_bytes = 0;      // one staging chunk
  double bulk_copies = 0;        // 1 = available (compute capability 9.0 and later)
  double ring_rate = 0;          // of a kernel with bulk copies, all blocks; 0 = as other copy kernels
  // Real runs only; 0 = the default: `kernel_blocks`, 4 stages.
  double ring_blocks = 0, ring_stages = 0;  // blocks of a kernel with bulk copies; stages of 16 KB in each block
  // The limits of the planner; see PlannerLimits. 0 = the default.
  double copy_engine_min_h2d = 0, copy_engine_min_d2h = 0;  // bytes of a piece
  double box_min = 0, box_min_busy = 0;                     // bytes of a row
  double kernel_min_pieces = 0;
  double window_h2d = 0;       // bytes
  double layer_group_min = 0;  // bytes

  // Host memory of one socket, and the number of accelerators that share it.
  double dram_bandwidth = 0;  // usable
  double dram_bytes = 0;      // installed; 0 = not known
  double accelerators_per_socket = 0;

  // Storage of one socket; 0 = no such device. One drive:
  double drive_count = 0;
  double drive_read_bandwidth = 0, drive_write_bandwidth = 0;  // sequential
  double drive_read_iops = 0, drive_write_iops = 0;            // limit for small requests
  double drive_read_latency = 0, drive_write_latency = 0;      // of one request alone
  double drive_queue_depth = 0;                                // requests in flight
  double disk_look_up = 0;                                     // index look-up for a batch
  // One file per page (HiCache's file back end): per rank, one thread opens, reads or writes, and closes file after
  // file, through the page cache. A page takes the overhead and the time of its bytes.
  double file_read_overhead = 0, file_write_overhead = 0;
  double file_read_bandwidth = 0, file_write_bandwidth = 0;
  // One NIC, per direction, and the remote pool behind the NICs.
  double nic_count = 0;
  double nic_bandwidth = 0;
  double nic_latency = 0;     // of one object's read or write; hidden by the depth of the queue pair
  double nic_object = 0;      // a NIC's time for one object of any size
  double pool_bandwidth = 0;  // all pool hosts together, per direction
  double pool_latency = 0;    // of a request to the pool, to locate its objects
  double pool_look_up = 0;    // round trip of a batch look-up
  // A file system that machines share (Lustre, 3FS, NFS), as the machine of one engine sees it. These rates are for all
  // engines together.
  double shared_fs_read_bandwidth = 0, shared_fs_write_bandwidth = 0;
  double shared_fs_latency = 0;  // of one file's read, write or look-up, alone
  double shared_fs_file = 0;     // the metadata servers' time for one file of any size
  // Between drives or NICs and the memory of one accelerator, without host memory.
  double gpudirect_bandwidth = 0;
  double gpudirect_object = 0;  // time of an accelerator's submitters for one object
  // PCIe root of one socket, per direction, shared by its accelerators, drives and NICs. 0 = never limits.
  double pcie_root_bandwidth = 0;

  // Settings, not figures of the machine.
  bool file_a_page = false;  // one file per page
  StoreFigures store;        // of the remote tier; its times replace pool_latency and pool_look_up
  double pool_nodes = 0;     // servers of the remote tier; 0 = one pool of pool_bandwidth

  bool has_drives() const { return drive_count > 0; }
  bool has_pool() const { return nic_count > 0; }
  bool has_shared_fs() const {
    return shared_fs_read_bandwidth > 0 && shared_fs_write_bandwidth > 0 && shared_fs_latency > 0 && shared_fs_file > 0;
  }
  bool has_gpudirect() const { return gpudirect_bandwidth > 0; }
};

// A number of HardwareSpec.
struct HardwareField {
  std::string_view key;
  double HardwareSpec::*member = nullptr;
  double least = 0;       // above 0
  double most = 0;        // no machine exceeds this value
  bool varies = false;    // a rate, time, frequency or share, which can be off by some per cent
  bool whole = false;     // a count
  std::string_view unit;  // "B", "B/s", "FLOP/s", "s", "IOPS"; empty for counts and fractions
};
std::span<const HardwareField> hardware_fields();
// Returns the device that has the figure, e.g. "drives", if the device lacks another of its figures; else empty.
std::string_view incomplete_device(const HardwareSpec& hardware, std::string_view figure);

HardwareSpec parse_hardware(std::string_view json, const std::string& file);
HardwareSpec hardware_from_file(const std::string& path);
HardwareSpec hardware_preset(std::string_view name);

// Returns whether the machine's GPU is of AMD, by "gpu" or "description".
bool is_amd(const HardwareSpec& hardware);

PlannerLimits planner_limits(const HardwareSpec& hardware);

// Returns the bytes/s at which one of `ranks` accelerators exchanges data with the others, per direction. Beyond one
// domain, a ring crosses the NICs of all accelerators of a domain side by side. Without NICs: peer_bandwidth.
double exchange_rate(const HardwareSpec& hardware, std::uint32_t ranks);

}  // namespace kvtwin

// The cost of moving bytes: transfers between device and host, storage operations, hand-overs, broadcasts. Part of the
// cost model (roofline.hpp), with the same units and rules of rounding.
//
// Transfers follow published figures of copy engines and copy kernels (sources: models/presets/hardware):
//   copy_engine  call + descriptors * gap, then bytes at piece / max(minimum descriptor time, piece / link rate); short
//                host-to-device pieces at the driver's inline rate
//   boxes        the same with boxes as descriptors, and at most row / minimum row time; no inline rate
//   kernel       launch, then bytes at min(blocks * block rate, limit of all blocks); ring: at the ring rate
//   staged       latency of the copy engine + launch + relayout of the last chunk, then bytes at min(copy engine,
//                scatter rate). In layer groups: by boxes, and the last chunk is that of a group
// A plan's window limits the bytes in flight in the copy engine. Each call submits a part of the window
// (kWindowPortions), so other parts move during the submission. The window costs time only if a part moves faster than
// a call takes.
//
// Storage: n objects of all ranks together, over all drives or NICs of the socket. A latency, then bytes at a rate:
//   get, set     request + latency L of one object. The rate is the lowest of: sequential bandwidth; IOPS; time per
//                object of NICs and GPUDirect's submitters; queue: ceil(n / depth) - 1 further rounds of L. So an
//                operation alone takes request + L + max(bytes / rate, (rounds - 1) * L). GPUDirect has a rate limit of
//                its own. With a file per page, each rank takes L + bytes / stream rate per page, one page after
//                another
//                With a remote store that one client reads object by object, each rank takes its time per object and
//                bytes / stream rate, one object after another
//   look_up      one answer of the index, or one round trip, per batch; in a shared file system also the time of each
//                file, in a remote store of each object
//   remove       a request
// The world limits the rate further by the rates of the links.
//
// Hand-over: NIC latency (staged: and a call of the copy engine on each side), then bytes at the rate at which the NICs
// accept the writes: bytes / (writes * NIC time per object). The links of both engines limit the rate further.
// Broadcast of an MLA latent among n ranks of a decode engine: latency of an all-reduce, then bytes / rate. A ring of n
// accelerators that pass pieces on has this time if the pieces are small; each link carries each byte once.
#pragma once

#include <cstdint>
#include <string>

#include "models/hardware.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

// One direction between device and host memory.
struct TransferCoefficients {
  std::uint64_t call_ns = 0;
  std::uint64_t gap_ps = 0;         // per descriptor
  std::uint64_t descriptor_ps = 0;  // minimum time of a descriptor
  std::uint64_t link_rate = 0;      // bytes/s; 0 = not known, limits nothing
  std::uint64_t inline_limit = 0;   // shorter descriptors, in bytes, use inline_rate
  std::uint64_t inline_rate = 0;    // bytes/s
  std::uint64_t box_row_ps = 0;     // minimum time of a row of a strided copy
  std::uint64_t launch_ns = 0;      // launch of a copy kernel
  std::uint64_t kernel_rate = 0;    // bytes/s
  std::uint64_t ring_rate = 0;      // bytes/s of a copy kernel with bulk copies
  std::uint64_t scatter_rate = 0;   // bytes/s, relayout in device memory
  std::uint64_t staging_bytes = 0;  // one staging chunk
  friend bool operator==(const TransferCoefficients&, const TransferCoefficients&) = default;
};

// One direction of one storage tier, all devices together.
struct StorageCoefficients {
  std::uint64_t request_ns = 0;  // latency of a batch
  std::uint64_t object_ns = 0;   // latency of one object, alone
  std::uint64_t depth = 0;       // objects in flight; 0 = all
  std::uint64_t object_fs = 0;   // minimum time between two objects
  std::uint64_t rate = 0;        // bytes/s; 0 = no such tier
  // If not 0, each rank moves one page after another at this rate, each page after object_ns; `depth` and `object_fs`
  // do not count.
  std::uint64_t stream_rate = 0;  // bytes/s
  // With stream_rate: each object takes object_ns, not each page, and object_fs counts too.
  bool streams_objects = false;
  friend bool operator==(const StorageCoefficients&, const StorageCoefficients&) = default;
};

struct StorageTierCoefficients {
  StorageCoefficients read, write;
  std::uint64_t look_up_ns = 0;
  std::uint64_t look_up_page_fs = 0;    // added per page
  std::uint64_t look_up_object_fs = 0;  // added per object
  friend bool operator==(const StorageTierCoefficients&, const StorageTierCoefficients&) = default;
};

// Coefficients of one rank.
struct MoveCoefficients {
  std::uint64_t broadcast_ns = 0;    // latency of a broadcast within a group
  std::uint64_t broadcast_rate = 0;  // bytes/s of all groups; 0 = a group has one rank
  TransferCoefficients host_to_device, device_to_host;
  PerTier<StorageTierCoefficients> storage;  // of storage tiers
  std::uint64_t gpudirect_rate = 0;          // bytes/s of one rank; 0 = not available
  std::uint64_t gpudirect_object_fs = 0;     // of one rank
  friend bool operator==(const MoveCoefficients&, const MoveCoefficients&) = default;
};

// `ranks`: of a group of attention.
MoveCoefficients move_coefficients_of(const HardwareSpec& hardware, std::uint32_t ranks);

// Returns one line "name = value unit" per coefficient.
std::string to_string(const MoveCoefficients& coefficients);

class MoveCost {
 public:
  explicit MoveCost(const MoveCoefficients& coefficients) : c_(coefficients) {}

  TransferCost transfer(const Plan& plan) const;
  TransferCost storage(const StorageWork& work) const;
  TransferCost hand_over(const HandOverWork& work) const;
  TimeNs broadcast_ns(Bytes bytes) const;

 private:
  MoveCoefficients c_;
};

}  // namespace kvtwin

// Reads of files into GPU memory by cuFile: threads that each wait for one read at a time, since one thread that
// submits leaves a fast disk idle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "impl/device/cuda/cufile.hpp"
#include "impl/disk/files.hpp"

namespace kvtwin {

struct GpuBuffers {
  std::byte* start = nullptr;  // GPU memory that outlives the queue
  Bytes bytes = 0;             // of each
  std::uint32_t count = 0;
};

// The buffers are registered, or, where cuFile refuses that, used as they are. A file is registered at its first read,
// for as long as it is open (BlockFile::registration); one that can't be is answered -EOPNOTSUPP. std::system_error if
// there are no threads to be had.
std::unique_ptr<BlockQueue> make_cufile_queue(std::shared_ptr<CuFile> cufile, const GpuBuffers& buffers,
                                              std::uint32_t threads, int ordinal);

}  // namespace kvtwin

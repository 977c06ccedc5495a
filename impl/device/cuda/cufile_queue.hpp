// A queue of reads from files into GPU memory with cuFile. Several threads execute one read each, because one thread
// alone leaves a fast disk idle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "impl/device/cuda/cufile.hpp"
#include "impl/disk/files.hpp"

namespace kvtwin {

struct GpuBuffers {
  std::byte* start = nullptr;  // GPU memory; outlives the queue
  Bytes bytes = 0;             // of each buffer
  std::uint32_t count = 0;
};

// Registers the buffers. If cuFile refuses, the buffers are used without registration. A file is registered at its
// first read, and stays registered while it is open (BlockFile::registration). If this fails, reads of the file end
// with -EOPNOTSUPP.
// Errors: std::system_error if the system has no thread.
std::unique_ptr<BlockQueue> make_cufile_queue(std::shared_ptr<CuFile> cufile, const GpuBuffers& buffers,
                                              std::uint32_t threads, int ordinal);

}  // namespace kvtwin

// Blocks read and written by an io_uring of this queue's own: with buffers and files registered where the kernel lets
// us (RLIMIT_MEMLOCK may be in the way), else plain.
#pragma once

#include <functional>
#include <memory>

#include "impl/disk/files.hpp"

namespace kvtwin {

// None: the kernel has no ring for us, or too old a one. (Containers often forbid it.)
std::unique_ptr<BlockQueue> make_uring_queue(std::uint32_t depth, std::size_t buffer_bytes,
                                             const std::function<void(const char*)>& before);

}  // namespace kvtwin

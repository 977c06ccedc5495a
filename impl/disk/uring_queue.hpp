// A BlockQueue with an io_uring of its own. Buffers and files are registered if the kernel permits (RLIMIT_MEMLOCK may
// prevent it), and otherwise used without registration.
#pragma once

#include <functional>
#include <memory>

#include "impl/disk/files.hpp"

namespace kvtwin {

// Returns null if the kernel gives no ring, or one that is too old. Containers often forbid io_uring.
std::unique_ptr<BlockQueue> make_uring_queue(std::uint32_t depth, std::size_t buffer_bytes,
                                             const std::function<void(const char*)>& before);

}  // namespace kvtwin

// A BlockQueue of threads, for systems without io_uring.
#pragma once

#include <functional>
#include <memory>

#include "impl/disk/files.hpp"

namespace kvtwin {

std::unique_ptr<BlockQueue> make_thread_queue(std::uint32_t depth, std::size_t buffer_bytes,
                                              const std::function<void(const char*)>& before);

}  // namespace kvtwin

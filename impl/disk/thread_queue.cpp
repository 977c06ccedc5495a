#include "impl/disk/thread_queue.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "impl/disk/block_threads.hpp"
#include "impl/disk/folder_file.hpp"
#include "impl/runtime/arena.hpp"

namespace kvtwin {
namespace {

// Enough threads to keep a disk busy; more threads only cost memory.
constexpr std::uint32_t kMaxThreads = 16;
constexpr int kMaxCallRetries = 1000;  // of a call that was interrupted or moved no byte

class ThreadQueue final : public BlockQueue {
 public:
  ThreadQueue(std::uint32_t depth, std::size_t buffer_bytes, const std::function<void(const char*)>& before)
      : buffer_bytes_(buffer_bytes), threads_([this](const BlockOperation& operation) { return execute(operation); }) {
    before("buffers");
    buffers_ = Arena(depth * buffer_bytes);
    for (std::uint32_t i = 0; i < std::min(depth, kMaxThreads); ++i) {
      before("thread");
      threads_.add();
    }
  }

  std::span<std::byte> buffer(std::uint32_t index) override {
    return {buffers_.data() + index * buffer_bytes_, buffer_bytes_};
  }
  void submit(const BlockOperation& operation) override { threads_.submit(operation); }
  void wait(std::vector<BlockEnd>& ends) override { threads_.wait(ends); }
  std::string description() const override { return "threads that read and write"; }

 private:
  std::int64_t execute(const BlockOperation& operation);

  const std::size_t buffer_bytes_;
  Arena buffers_;
  BlockThreads threads_;  // last member: destroyed before the data that it uses
};

std::int64_t ThreadQueue::execute(const BlockOperation& operation) {
  const auto& file = *static_cast<FolderFile*>(operation.file);
  const int descriptor = file.descriptor();
  Bytes done = 0;
  for (int retries = 0; retries < kMaxCallRetries; ++retries) {
    ssize_t result = 0;
    if (operation.kind == BlockOperation::Kind::sync) {
      result = file.is_folder() ? ::fsync(descriptor) : ::fdatasync(descriptor);
    } else {
      iovec piece{buffer(operation.buffer).data() + done, operation.bytes - done};
      const auto at = static_cast<off_t>(operation.offset + done);
      const bool reads = operation.kind == BlockOperation::Kind::read;
      result = reads ? ::preadv(descriptor, &piece, 1, at) : ::pwritev(descriptor, &piece, 1, at);
    }
    if (result < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return -errno;
    }
    // Continues after a partial result at a whole block, because direct I/O can only start there.
    const Bytes whole = done + static_cast<Bytes>(result);
    if (result == 0 || whole >= operation.bytes) return static_cast<std::int64_t>(whole);
    done = whole / kBlockBytes * kBlockBytes;
  }
  return operation.kind == BlockOperation::Kind::sync ? -EAGAIN : static_cast<std::int64_t>(done);
}

}  // namespace

std::unique_ptr<BlockQueue> make_thread_queue(std::uint32_t depth, std::size_t buffer_bytes,
                                              const std::function<void(const char*)>& before) {
  return std::make_unique<ThreadQueue>(depth, buffer_bytes, before);
}

}  // namespace kvtwin

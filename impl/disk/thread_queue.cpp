#include "impl/disk/thread_queue.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "impl/device/arena.hpp"
#include "impl/disk/folder_file.hpp"

namespace kvtwin {
namespace {

// Each waits for one operation at a time. A disk is busy with this many; more threads only cost memory.
constexpr std::uint32_t kMostThreads = 16;
constexpr int kMostRetries = 1000;  // of a call that was interrupted, or moved nothing

class ThreadQueue final : public BlockQueue {
 public:
  ThreadQueue(std::uint32_t depth, std::size_t buffer_bytes, const std::function<void(const char*)>& before)
      : buffer_bytes_(buffer_bytes) {
    before("buffers");
    buffers_ = Arena(depth * buffer_bytes);
    try {
      for (std::uint32_t i = 0; i < std::min(depth, kMostThreads); ++i) {
        before("thread");
        threads_.emplace_back([this] { work(); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~ThreadQueue() override { stop(); }

  std::span<std::byte> buffer(std::uint32_t index) override {
    return {buffers_.data() + index * buffer_bytes_, buffer_bytes_};
  }
  void submit(const BlockOperation& operation) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(operation);
      ++under_way_;
    }
    submitted_.notify_one();
  }
  void wait(std::vector<BlockEnd>& ends) override {
    std::unique_lock lock(mutex_);
    if (under_way_ == 0) return;
    ended_.wait(lock, [this] { return !ends_.empty(); });
    under_way_ -= ends_.size();
    ends.insert(ends.end(), ends_.begin(), ends_.end());
    ends_.clear();
  }
  std::string description() const override { return "threads that read and write"; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      submitted_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const BlockOperation operation = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const BlockEnd end{operation.tag, carry_out(operation)};
      lock.lock();
      ends_.push_back(end);
      ended_.notify_one();
    }
  }
  std::int64_t carry_out(const BlockOperation& operation);
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    submitted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const std::size_t buffer_bytes_;
  Arena buffers_;
  std::mutex mutex_;
  std::condition_variable submitted_, ended_;
  std::deque<BlockOperation> waiting_;
  std::vector<BlockEnd> ends_;
  std::size_t under_way_ = 0;  // submitted, and not handed out by wait
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

std::int64_t ThreadQueue::carry_out(const BlockOperation& operation) {
  const auto& file = *static_cast<FolderFile*>(operation.file);
  const int descriptor = file.descriptor();
  Bytes done = 0;
  for (int retries = 0; retries < kMostRetries; ++retries) {
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
    // What came in part goes on at a whole block: direct I/O begins nowhere else.
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

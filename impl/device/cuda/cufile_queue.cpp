#include "impl/device/cuda/cufile_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "impl/device/cuda/handles.hpp"
#include "policy/check.hpp"

namespace kvtwin {
namespace {

// What a file that cuFile knows carries; without a handle it was refused, and isn't asked for again.
struct KnownFile {
  std::shared_ptr<void> handle;
};

class CuFileQueue final : public BlockQueue {
 public:
  CuFileQueue(std::shared_ptr<CuFile> cufile, const GpuBuffers& buffers, std::uint32_t threads, int ordinal)
      : cufile_(std::move(cufile)),
        buffers_(buffers),
        ordinal_(ordinal),
        registered_(cufile_->register_buffer(buffers.start, buffers.count * buffers.bytes)) {
    try {
      for (std::uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~CuFileQueue() override { stop(); }

  std::span<std::byte> buffer(std::uint32_t index) override {
    return {buffers_.start + index * buffers_.bytes, buffers_.bytes};  // not for the CPU
  }
  void submit(const BlockOperation& operation) override {
    KV_CHECK(operation.kind == BlockOperation::Kind::read, "it only reads");
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
  std::string description() const override {
    return "by " + cufile_->description() +
           (registered_.what ? ""
                             : ", which refuses to register our buffers (error " + std::to_string(registered_.error) +
                                   ") and so copies once more");
  }

 private:
  void work();
  std::int64_t carry_out(const BlockOperation& operation);
  std::shared_ptr<void> handle_of(BlockFile& file);
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    submitted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const std::shared_ptr<CuFile> cufile_;
  const GpuBuffers buffers_;
  const int ordinal_;
  const CuFile::Registered registered_;
  std::mutex mutex_;
  std::condition_variable submitted_, ended_;
  std::deque<BlockOperation> waiting_;
  std::vector<BlockEnd> ends_;
  std::size_t under_way_ = 0;  // submitted, and not handed out by wait
  bool stopping_ = false;
  std::mutex files_mutex_;
  std::vector<std::thread> threads_;
};

void CuFileQueue::work() {
  const bool has_gpu = cudaSetDevice(ordinal_) == cudaSuccess;
  std::unique_lock lock(mutex_);
  for (;;) {
    submitted_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const BlockOperation operation = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    const BlockEnd end{operation.tag, has_gpu ? carry_out(operation) : -EIO};
    lock.lock();
    ends_.push_back(end);
    ended_.notify_one();
  }
}

std::int64_t CuFileQueue::carry_out(const BlockOperation& operation) {
  const std::shared_ptr<void> handle = handle_of(*operation.file);
  if (!handle) return -EOPNOTSUPP;
  return cufile_->read(handle.get(), buffers_.start, operation.buffer * buffers_.bytes, operation.bytes,
                       operation.offset);
}

std::shared_ptr<void> CuFileQueue::handle_of(BlockFile& file) {
  if (file.descriptor() < 0) return nullptr;
  const std::lock_guard lock(files_mutex_);
  if (!file.registration) {
    file.registration = std::make_shared<KnownFile>(cufile_->register_file(file.descriptor()).what);
  }
  return std::static_pointer_cast<KnownFile>(file.registration)->handle;
}

}  // namespace

std::unique_ptr<BlockQueue> make_cufile_queue(std::shared_ptr<CuFile> cufile, const GpuBuffers& buffers,
                                              std::uint32_t threads, int ordinal) {
  return std::make_unique<CuFileQueue>(std::move(cufile), buffers, threads, ordinal);
}

}  // namespace kvtwin

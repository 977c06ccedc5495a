#include "impl/device/cuda/cufile_queue.hpp"

#include <cerrno>
#include <mutex>
#include <vector>

#include "impl/device/cuda/handles.hpp"
#include "impl/disk/block_threads.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

// cuFile's data of a file. A null handle: cuFile has refused the file, and is not asked again.
struct KnownFile {
  std::shared_ptr<void> handle;
};

class CuFileQueue final : public BlockQueue {
 public:
  CuFileQueue(std::shared_ptr<CuFile> cufile, const GpuBuffers& buffers, std::uint32_t threads, int ordinal)
      : cufile_(std::move(cufile)),
        buffers_(buffers),
        registered_(cufile_->register_buffer(buffers.start, buffers.count * buffers.bytes)),
        threads_([this](const BlockOperation& operation) { return execute(operation); },
                 [ordinal] { return cudaSetDevice(ordinal) == cudaSuccess ? 0 : -EIO; }) {
    for (std::uint32_t i = 0; i < threads; ++i) threads_.add();
  }

  std::span<std::byte> buffer(std::uint32_t index) override {
    return {buffers_.start + index * buffers_.bytes, buffers_.bytes};  // not for the CPU
  }
  void submit(const BlockOperation& operation) override {
    KV_CHECK(operation.kind == BlockOperation::Kind::read, "it only reads");
    threads_.submit(operation);
  }
  void wait(std::vector<BlockEnd>& ends) override { threads_.wait(ends); }
  std::string description() const override {
    return "by " + cufile_->description() +
           (registered_.what ? ""
                             : ", which refuses to register our buffers (error " + std::to_string(registered_.error) +
                                   ") and so copies once more");
  }

 private:
  std::int64_t execute(const BlockOperation& operation);
  std::shared_ptr<void> handle_of(BlockFile& file);

  const std::shared_ptr<CuFile> cufile_;
  const GpuBuffers buffers_;
  const CuFile::Registered registered_;
  std::mutex files_mutex_;
  BlockThreads threads_;  // last member: destroyed before the data that it uses
};

std::int64_t CuFileQueue::execute(const BlockOperation& operation) {
  const std::shared_ptr<void> handle = handle_of(*operation.file);
  if (!handle) return -EOPNOTSUPP;
  return cufile_->read(handle.get(), buffers_.start, operation.buffer * buffers_.bytes, operation.bytes,
                       operation.offset);
}

std::shared_ptr<void> CuFileQueue::handle_of(BlockFile& file) {
  if (file.descriptor() < 0) return nullptr;
  const std::lock_guard lock(files_mutex_);
  if (!file.registration) {
    file.registration = std::make_shared<KnownFile>(KnownFile{cufile_->register_file(file.descriptor()).what});
  }
  return std::static_pointer_cast<KnownFile>(file.registration)->handle;
}

}  // namespace

std::unique_ptr<BlockQueue> make_cufile_queue(std::shared_ptr<CuFile> cufile, const GpuBuffers& buffers,
                                              std::uint32_t threads, int ordinal) {
  return std::make_unique<CuFileQueue>(std::move(cufile), buffers, threads, ordinal);
}

}  // namespace kvtwin

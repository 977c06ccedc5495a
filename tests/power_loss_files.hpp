// A disk in memory that loses power. The disk knows which writes were synced. At a power cut, each other write is kept,
// dropped, or torn into pieces of 512 bytes or 4 KiB, in any combination (this includes reordering). The same holds for
// created and removed files.
//
// Every call that changes the disk is a step. The test selects the step at which the power is cut. This step and all
// later steps fail, but the effect of this step may have reached the medium. Pending operations end in any order.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "impl/disk/files.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

enum class CutMode : std::uint8_t { keep, drop, tear_512, tear_4096, reorder };
constexpr std::size_t kCutModes = 5;

class PowerLossFiles final : public Files {
 public:
  enum class Step : std::uint8_t { create, open, remove, read, write, sync, sync_folder };
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  explicit PowerLossFiles(std::uint64_t seed = 0) : rng_(mix(seed)) {}

  // ---- for tests
  std::uint64_t steps() const { return steps_; }
  void cut_at(std::uint64_t step) { cut_at_ = step; }
  bool is_cut() const { return cut_; }
  // Restores power. `mode` determines which unsynced changes are on the disk.
  void restart(CutMode mode);
  // Returns 0, or -errno to make the step fail. Called before each step, from any thread.
  std::function<int(Step)> fault = [](Step) { return 0; };
  Bytes room = ~Bytes{0};
  struct Image {
    std::vector<std::byte> now;   // the content that the process sees
    std::vector<std::byte> safe;  // the synced content
    struct Write {
      Bytes offset;
      std::vector<std::byte> bytes;
    };
    std::vector<Write> unsynced;
    std::uint64_t synced = 0;  // number of writes before `unsynced`
    bool size_safe = false, entry_safe = false, removed = false;
  };
  // Returns the files on the disk. A test may damage them.
  std::map<FileNumber, std::shared_ptr<Image>> images() const {
    std::map<FileNumber, std::shared_ptr<Image>> there = images_;
    std::erase_if(there, [](const auto& it) { return it.second->removed; });
    return there;
  }
  // Adds a file that is already durable.
  void put(FileNumber number, std::vector<std::byte> bytes) {
    auto image = std::make_shared<Image>();
    image->now = image->safe = std::move(bytes);
    image->size_safe = image->entry_safe = true;
    images_[number] = std::move(image);
    largest_ = std::max(largest_, number);
  }

  // ---- Files
  std::vector<FileNumber> list(int& error) override;
  FileNumber next_number() override {
    const std::lock_guard lock(mutex_);
    return ++largest_;
  }
  OpenedFile create(FileNumber number, Bytes bytes, std::span<const std::byte, kBlockBytes> first) override;
  OpenedFile open(FileNumber number) override;
  int shrink(BlockFile&, Bytes) override { return 0; }  // no effect, as if the shrink never became durable
  int remove(FileNumber number, BlockFile* open) override;
  int sync(BlockFile& file) override;
  BlockFile& folder() override { return folder_; }
  std::unique_ptr<BlockQueue> queue(std::uint32_t depth, std::size_t buffer_bytes) override;
  std::string description() const override { return "no real"; }

 private:
  struct OpenImage final : BlockFile {
    explicit OpenImage(std::shared_ptr<Image> i) : image(std::move(i)) {}
    const std::shared_ptr<Image> image;
  };
  struct FolderMark final : BlockFile {};
  class Queue;

  // Returns 0, or the error of the step. `at_cut` is set to true at the step at which the power is cut: the step fails,
  // but may have an effect.
  int step(Step what, bool& at_cut);
  int carry_out_folder_sync();
  Bytes used() const;
  static void write(Image& image, Bytes offset, std::span<const std::byte> bytes);
  std::vector<std::byte> survivor(const Image& image, CutMode mode);
  bool survives(CutMode mode) { return mode == CutMode::keep || (mode != CutMode::drop && rng_.chance(50)); }

  mutable std::mutex mutex_;
  FolderMark folder_;
  std::map<FileNumber, std::shared_ptr<Image>> images_;
  FileNumber largest_ = 0, largest_safe_ = 0;
  Splitmix rng_;
  std::uint64_t steps_ = 0, cut_at_ = kNever;
  bool cut_ = false;
};

inline int PowerLossFiles::step(Step what, bool& at_cut) {
  at_cut = false;
  if (cut_) return -EIO;
  if (what != Step::read && steps_++ == cut_at_) {
    cut_ = at_cut = true;
    return -EIO;
  }
  return fault(what);
}

inline Bytes PowerLossFiles::used() const {
  Bytes bytes = 0;
  for (const auto& [number, image] : images_) bytes += image->removed ? 0 : image->now.size();
  return bytes;
}

inline void PowerLossFiles::write(Image& image, Bytes offset, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, image.now.begin() + static_cast<std::ptrdiff_t>(offset));
  image.unsynced.push_back({offset, {bytes.begin(), bytes.end()}});
}

inline std::vector<FileNumber> PowerLossFiles::list(int& error) {
  const std::lock_guard lock(mutex_);
  error = 0;
  std::vector<FileNumber> numbers;
  for (const auto& [number, image] : images_) {
    if (!image->removed) numbers.push_back(number);
  }
  return numbers;
}

inline OpenedFile PowerLossFiles::create(FileNumber number, Bytes bytes,
                                         std::span<const std::byte, kBlockBytes> first) {
  const std::lock_guard lock(mutex_);
  bool at_cut = false;
  int error = step(Step::create, at_cut);
  if (error == 0 && used() + bytes > room) error = -ENOSPC;
  if (error != 0 && !at_cut) return {nullptr, 0, error};
  auto image = std::make_shared<Image>();
  image->now.resize(bytes);
  write(*image, 0, first);
  images_[number] = image;
  if (error != 0) return {nullptr, 0, error};
  return {std::make_shared<OpenImage>(std::move(image)), bytes, 0};
}

inline OpenedFile PowerLossFiles::open(FileNumber number) {
  const std::lock_guard lock(mutex_);
  const auto at = images_.find(number);
  if (at == images_.end() || at->second->removed) return {nullptr, 0, -ENOENT};
  if (const int error = fault(Step::open); error != 0) return {nullptr, 0, error};
  return {std::make_shared<OpenImage>(at->second), at->second->now.size(), 0};
}

inline int PowerLossFiles::remove(FileNumber number, BlockFile*) {
  const std::lock_guard lock(mutex_);
  bool at_cut = false;
  const int error = step(Step::remove, at_cut);
  if (error != 0 && !at_cut) return error;
  const auto at = images_.find(number);
  if (at == images_.end() || at->second->removed) return -ENOENT;
  at->second->removed = true;
  return error;
}

inline int PowerLossFiles::sync(BlockFile& file) {
  const std::lock_guard lock(mutex_);
  if (&file == &folder_) return carry_out_folder_sync();
  bool at_cut = false;
  const int error = step(Step::sync, at_cut);
  if (error != 0) return error;
  Image& image = *static_cast<OpenImage&>(file).image;
  image.safe = image.now;
  image.synced += image.unsynced.size();
  image.unsynced.clear();
  image.size_safe = true;
  return 0;
}

inline int PowerLossFiles::carry_out_folder_sync() {
  bool at_cut = false;
  const int error = step(Step::sync_folder, at_cut);
  if (error != 0) return error;
  std::erase_if(images_, [](const auto& it) { return it.second->removed; });
  for (const auto& [number, image] : images_) image->entry_safe = true;
  largest_safe_ = largest_;
  return 0;
}

inline std::vector<std::byte> PowerLossFiles::survivor(const Image& image, CutMode mode) {
  std::vector<std::byte> bytes = image.safe;
  bytes.resize(image.now.size());
  for (const Image::Write& it : image.unsynced) {
    if (mode == CutMode::drop || (mode == CutMode::reorder && rng_.chance(50))) continue;
    const std::size_t piece = mode == CutMode::tear_512 ? 512 : mode == CutMode::tear_4096 ? 4096 : it.bytes.size();
    for (std::size_t at = 0; at < it.bytes.size(); at += piece) {
      const bool torn = mode == CutMode::tear_512 || mode == CutMode::tear_4096;
      if (torn && rng_.chance(50)) continue;
      const std::size_t end = std::min(at + piece, it.bytes.size());
      std::copy(it.bytes.begin() + static_cast<std::ptrdiff_t>(at), it.bytes.begin() + static_cast<std::ptrdiff_t>(end),
                bytes.begin() + static_cast<std::ptrdiff_t>(it.offset + at));
    }
  }
  if (!image.size_safe && !survives(mode)) bytes.resize(512 * rng_.below(bytes.size() / 512 + 1));
  return bytes;
}

inline void PowerLossFiles::restart(CutMode mode) {
  const std::lock_guard lock(mutex_);
  std::map<FileNumber, std::shared_ptr<Image>> kept;
  for (const auto& [number, image] : images_) {
    if (!image->entry_safe && !survives(mode)) continue;
    if (image->removed && survives(mode)) continue;
    auto after = std::make_shared<Image>();
    after->now = after->safe = survivor(*image, mode);
    after->size_safe = after->entry_safe = true;
    kept.emplace(number, std::move(after));
  }
  images_ = std::move(kept);
  if (!survives(mode)) largest_ = largest_safe_;
  if (!images_.empty()) largest_ = std::max(largest_, images_.rbegin()->first);
  largest_safe_ = largest_;
  cut_ = false;
  cut_at_ = kNever;
  steps_ = 0;
}

class PowerLossFiles::Queue final : public BlockQueue {
 public:
  Queue(PowerLossFiles& files, std::uint32_t depth, std::size_t buffer_bytes)
      : files_(files), buffers_(depth, std::vector<std::byte>(buffer_bytes)) {}

  std::span<std::byte> buffer(std::uint32_t index) override { return buffers_[index]; }
  void submit(const BlockOperation& operation) override {
    const std::lock_guard lock(files_.mutex_);
    if (operation.file == &files_.folder_) {
      under_way_.push_back({operation, 0});
      return;
    }
    // A sync covers the writes before the submission of the sync.
    const auto& image = *static_cast<OpenImage*>(operation.file)->image;
    under_way_.push_back({operation, image.synced + image.unsynced.size()});
  }
  void wait(std::vector<BlockEnd>& ends) override {
    if (under_way_.empty()) return;
    const std::lock_guard lock(files_.mutex_);
    const std::size_t which = files_.rng_.below(under_way_.size());
    const Waiting it = under_way_[which];
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which));
    ends.push_back({it.operation.tag, carry_out(it)});
  }
  std::string description() const override { return "memory"; }

 private:
  struct Waiting {
    BlockOperation operation;
    std::uint64_t writes;  // number of writes of the file at the submission
  };

  std::int64_t carry_out(const Waiting& it) {
    const BlockOperation& operation = it.operation;
    if (operation.file == &files_.folder_) return files_.carry_out_folder_sync();
    Image& image = *static_cast<OpenImage*>(operation.file)->image;
    const std::span<std::byte> bytes(buffers_[operation.buffer].data(), operation.bytes);
    bool at_cut = false;
    if (operation.kind == BlockOperation::Kind::read) {
      const int error = files_.step(Step::read, at_cut);
      if (error != 0) return error;
      const Bytes size = image.now.size();
      const Bytes count = operation.offset >= size ? 0 : std::min<Bytes>(operation.bytes, size - operation.offset);
      if (count > 0) std::memcpy(bytes.data(), image.now.data() + operation.offset, count);
      return static_cast<std::int64_t>(count);
    }
    if (operation.kind == BlockOperation::Kind::write) {
      const int error = files_.step(Step::write, at_cut);
      if (error == 0 || at_cut) PowerLossFiles::write(image, operation.offset, bytes);
      return error != 0 ? error : static_cast<std::int64_t>(operation.bytes);
    }
    const int error = files_.step(Step::sync, at_cut);
    if (error != 0) return error;
    const std::uint64_t count = std::max(it.writes, image.synced) - image.synced;
    image.safe.resize(image.now.size());
    for (std::size_t i = 0; i < count; ++i) {
      const Image::Write& write = image.unsynced[i];
      std::ranges::copy(write.bytes, image.safe.begin() + static_cast<std::ptrdiff_t>(write.offset));
    }
    image.synced += count;
    image.unsynced.erase(image.unsynced.begin(), image.unsynced.begin() + static_cast<std::ptrdiff_t>(count));
    image.size_safe = true;
    return 0;
  }

  PowerLossFiles& files_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<Waiting> under_way_;
};

inline std::unique_ptr<BlockQueue> PowerLossFiles::queue(std::uint32_t depth, std::size_t buffer_bytes) {
  return std::make_unique<Queue>(*this, depth, buffer_bytes);
}

}  // namespace kvtwin::test

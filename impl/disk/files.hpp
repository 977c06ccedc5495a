// The narrow seam between the disk tier and the operating system: the files of one folder, named by numbers, and queues
// that read and write aligned blocks of them.
//
// Files: any thread. A BlockQueue belongs to one thread at a time, which has nothing under way when another takes over.
// Nothing here throws but make_folder_files and Files::queue (what can't be had at the start); all else says -errno.
// Implementations: make_folder_files (a real folder), tests/power_loss_files.hpp (a disk that loses power).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

// Offsets, lengths and buffers are multiples of it: what any disk takes without a copy of the kernel's.
constexpr std::size_t kBlockBytes = 4096;

// Larger is younger; never reused in a folder, so that bytes of an old file can't be taken for those of a new one.
using FileNumber = std::uint64_t;

// An open file; its last owner closes it.
class BlockFile {
 public:
  virtual ~BlockFile() = default;
  // For who reads it by other means than a queue of its Files; -1: it has none.
  virtual int descriptor() const { return -1; }
  // What such a one, the disk tier's direct queue, keeps of it: goes before the file is closed.
  std::shared_ptr<void> registration;
};

struct OpenedFile {
  std::shared_ptr<BlockFile> file;  // none: error
  Bytes bytes = 0;
  int error = 0;  // -errno
};

struct BlockOperation {
  enum class Kind : std::uint8_t { read, write, sync } kind = Kind::read;
  BlockFile* file = nullptr;  // outlives the operation
  Bytes offset = 0, bytes = 0;
  std::uint32_t buffer = 0;  // read into, or written, from its start on; not of a sync
  std::uint64_t tag = 0;     // the giver's own
};

struct BlockEnd {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  // bytes (fewer than asked: the file ends there), 0 of a sync, or -errno
};

// `depth` operations with a buffer each, and a few syncs beside them.
class BlockQueue {
 public:
  virtual ~BlockQueue() = default;
  virtual std::span<std::byte> buffer(std::uint32_t index) = 0;
  // On its way after the next flush or wait.
  virtual void submit(const BlockOperation& operation) = 0;
  virtual void flush() {}
  // Appends what has ended; waits for one if something is under way and none has.
  virtual void wait(std::vector<BlockEnd>& ends) = 0;
  // How it does it, in a few words.
  virtual std::string description() const = 0;
};

class Files {
 public:
  virtual ~Files() = default;
  // Ascending. `error`: -errno if the folder can't be read.
  virtual std::vector<FileNumber> list(int& error) = 0;
  // Larger than any that a file of this folder has ever had.
  virtual FileNumber next_number() = 0;
  // A new file of so many bytes for which there is room; all zeros but its first block.
  virtual OpenedFile create(FileNumber number, Bytes bytes, std::span<const std::byte, kBlockBytes> first) = 0;
  virtual OpenedFile open(FileNumber number) = 0;
  // Gives back the room of what lies behind `bytes`.
  virtual int shrink(BlockFile& file, Bytes bytes) = 0;
  // `open`: it, if it is open: who still reads it can, and its room comes back when the last one lets go.
  virtual int remove(FileNumber number, BlockFile* open) = 0;
  // What was written (created, removed) before survives the machine's power.
  virtual int sync(BlockFile& file) = 0;
  virtual int sync_folder() { return sync(folder()); }
  // To be synced only: which files there are, then survives.
  virtual BlockFile& folder() = 0;
  // std::system_error if there is none to be had.
  virtual std::unique_ptr<BlockQueue> queue(std::uint32_t depth, std::size_t buffer_bytes) = 0;
  virtual std::string description() const = 0;
};

struct FolderOptions {
  bool force_threads = false;   // no io_uring
  bool force_buffered = false;  // no O_DIRECT
  // For tests. Called before each thing that is acquired, by its name; may throw.
  std::function<void(const char* step)> before = [](const char*) {};
};

// Makes the folder (0700) if it isn't there. One at a time, in all processes: std::runtime_error if another has it, or
// others may write to it; std::system_error if it can't be used.
std::unique_ptr<Files> make_folder_files(const std::filesystem::path& folder, const FolderOptions& options);

}  // namespace kvtwin

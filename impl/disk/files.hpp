// The interface between the disk tier and the operating system: the files of one folder, named by numbers, and queues
// that read and write aligned blocks of these files.
//
// Thread: Files: any thread. BlockQueue: one thread at a time; no operation is in progress when another thread takes
// over.
// Errors: make_folder_files and Files::queue throw. All other calls return -errno.
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

// Offsets, lengths and buffers are multiples of this size: then a disk needs no copy in the kernel.
constexpr std::size_t kBlockBytes = 4096;

// A larger number is a younger file. Numbers are never reused in a folder, so that bytes of an old file are not
// mistaken for bytes of a new one.
using FileNumber = std::uint64_t;

// An open file. The last owner closes it.
class BlockFile {
 public:
  virtual ~BlockFile() = default;
  // Returns the file descriptor for readers that use no queue of Files, or -1 if there is none.
  virtual int descriptor() const { return -1; }
  // Data of such a reader, for example of a direct queue. Destroyed before the file is closed.
  std::shared_ptr<void> registration;
};

struct OpenedFile {
  std::shared_ptr<BlockFile> file;  // null: see error
  Bytes bytes = 0;
  int error = 0;  // -errno
};

struct BlockOperation {
  enum class Kind : std::uint8_t { read, write, sync } kind = Kind::read;
  BlockFile* file = nullptr;  // outlives the operation
  Bytes offset = 0, bytes = 0;
  std::uint32_t buffer = 0;  // starts at the first byte of this buffer; not used by sync
  std::uint64_t tag = 0;     // for the caller; returned in BlockEnd
};

struct BlockEnd {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  // number of bytes (fewer than requested: end of file); 0 of a sync; or -errno
};

// A queue for `depth` operations, each with a buffer, and a few syncs in addition.
class BlockQueue {
 public:
  virtual ~BlockQueue() = default;
  virtual std::span<std::byte> buffer(std::uint32_t index) = 0;
  // The operation starts with the next flush() or wait(), at the latest.
  virtual void submit(const BlockOperation& operation) = 0;
  virtual void flush() {}
  // Appends the ended operations. If none has ended and some are in progress, waits for one.
  virtual void wait(std::vector<BlockEnd>& ends) = 0;
  // Returns a short text on the kind of I/O.
  virtual std::string description() const = 0;
};

class Files {
 public:
  virtual ~Files() = default;
  // Returns the numbers in ascending order. `error`: -errno if the folder cannot be read.
  virtual std::vector<FileNumber> list(int& error) = 0;
  // Returns a number that is larger than the number of any file that this folder has ever had.
  virtual FileNumber next_number() = 0;
  // Creates a file of `bytes` bytes and allocates its room. The first block is `first`; all other bytes are 0.
  virtual OpenedFile create(FileNumber number, Bytes bytes, std::span<const std::byte, kBlockBytes> first) = 0;
  virtual OpenedFile open(FileNumber number) = 0;
  // Frees the room behind the first `bytes` bytes.
  virtual int shrink(BlockFile& file, Bytes bytes) = 0;
  // `open`: the open file, or null. Its readers can continue; its room is freed when the last owner releases it.
  virtual int remove(FileNumber number, BlockFile* open) = 0;
  // All earlier writes (creations, removals) become durable against power loss.
  virtual int sync(BlockFile& file) = 0;
  virtual int sync_folder() { return sync(folder()); }
  // Returns the folder. Only for sync operations: the list of files becomes durable.
  virtual BlockFile& folder() = 0;
  // Errors: std::system_error if the queue cannot be created.
  virtual std::unique_ptr<BlockQueue> queue(std::uint32_t depth, std::size_t buffer_bytes) = 0;
  virtual std::string description() const = 0;
};

struct FolderOptions {
  bool force_threads = false;   // use no io_uring
  bool force_buffered = false;  // use no O_DIRECT
  // For tests. Called before each acquired resource, with its name; may throw.
  std::function<void(const char* step)> before = [](const char*) {};
};

// Creates the folder with mode 0700 if it does not exist. Only one process may use the folder at a time.
// Errors: std::runtime_error if another process uses the folder, or if other users may write to it. std::system_error
// if the folder cannot be used.
std::unique_ptr<Files> make_folder_files(const std::filesystem::path& folder, const FolderOptions& options);

}  // namespace kvtwin

// cuFile (GPUDirect Storage): reads from files into GPU memory. The library is loaded at its first use, so the program
// also runs on machines without cuFile. The build needs no header of cuFile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "policy/base/types.hpp"

namespace kvtwin {

class CuFile : public std::enable_shared_from_this<CuFile> {
 public:
  // Loads libcufile.so.0 from the linker's search path or the toolkit's folder, or the file `library` (the Python
  // package nvidia-cufile has this library beside others of CUDA), and opens the driver. Requires: at most one object
  // per process at a time. `nvidia_fs`: folder in which that kernel module describes itself; tests pass another.
  // Errors: std::runtime_error, one sentence: the attempts and the reason.
  static std::shared_ptr<CuFile> load(const std::string& library = "",
                                      const std::filesystem::path& nvidia_fs = "/proc/driver/nvidia-fs");
  ~CuFile();
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  // The ways that the kernel offers. compatible: cuFile moves all bytes through host memory. In the other modes, cuFile
  // can still do so for single files, if their file system or disk does not support direct reads.
  enum class Mode : std::uint8_t { nvidia_fs, p2p_dma, compatible };
  Mode mode() const { return mode_; }
  // for example "cuFile 1.15 (libcufile.so.0), GPUDirect Storage by nvidia-fs 2.26"
  const std::string& description() const { return description_; }

  // A registration keeps the library loaded, and can be released in any thread. `error`: 0, or cuFile's error code.
  struct Registered {
    std::shared_ptr<void> what;
    int error = 0;
  };
  // Requires: the descriptor stays open as long as the registration. `what` is the `file` of read().
  Registered register_file(int descriptor);
  // Registers GPU memory.
  Registered register_buffer(std::byte* start, Bytes bytes);

  // Reads from `file` at `offset` into start + at. `start` is a registered buffer, or any GPU memory.
  // Returns the number of bytes (fewer than requested: end of file), or -errno; -EIO for cuFile's own errors.
  // Thread: any thread that has selected a GPU.
  std::int64_t read(void* file, std::byte* start, Bytes at, Bytes bytes, Bytes offset) const;

 private:
  struct Library;
  explicit CuFile(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
  Mode mode_ = Mode::compatible;
  std::string description_;
};

}  // namespace kvtwin

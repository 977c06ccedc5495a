// cuFile (GPUDirect Storage): reads from files into GPU memory. Loaded when it is first wanted: the program starts, and
// runs, where there is none. No header of cuFile is needed to build this.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "policy/base/types.hpp"

namespace kvtwin {

class CuFile : public std::enable_shared_from_this<CuFile> {
 public:
  // libcufile.so.0 by the linker's search path, then where the toolkit puts it; `library` names another file (the
  // nvidia-cufile package of Python's has it beside others of CUDA). Opens the driver. A process has one at a time.
  // std::runtime_error, one sentence: what was tried, and why it failed. `nvidia_fs`: where that kernel module tells of
  // itself, for tests.
  static std::shared_ptr<CuFile> load(const std::string& library = "",
                                      const std::filesystem::path& nvidia_fs = "/proc/driver/nvidia-fs");
  ~CuFile();
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  // What the kernel offers cuFile. compatible: all bytes go through host memory inside cuFile. Else cuFile may still do
  // so for single files, where their file system or disk doesn't take part.
  enum class Mode : std::uint8_t { nvidia_fs, p2p_dma, compatible };
  Mode mode() const { return mode_; }
  // e.g. "cuFile 1.15 (libcufile.so.0), GPUDirect Storage by nvidia-fs 2.26"
  const std::string& description() const { return description_; }

  // What is registered keeps the library, and goes in any thread. 0, or cuFile's error code.
  struct Registered {
    std::shared_ptr<void> what;
    int error = 0;
  };
  // The descriptor stays open as long as it. `what` is for read().
  Registered register_file(int descriptor);
  // GPU memory, or what cuFile takes for it.
  Registered register_buffer(std::byte* start, Bytes bytes);

  // From `file` at `offset` to start + at, `start` being a registered buffer's, or any. Any thread that has a GPU.
  // Bytes read (fewer than asked: the file ends there), or -errno; -EIO for cuFile's own errors.
  std::int64_t read(void* file, std::byte* start, Bytes at, Bytes bytes, Bytes offset) const;

 private:
  struct Library;
  explicit CuFile(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
  Mode mode_ = Mode::compatible;
  std::string description_;
};

}  // namespace kvtwin

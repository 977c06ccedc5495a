// Memory for a pool of pages. All pages are mapped and touched at the start, so that no copy waits for a page fault.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <utility>

#include "policy/base/types.hpp"

namespace kvtwin {

class Arena {
 public:
  Arena() = default;
  // Filled with kPoison. Errors: std::system_error if the system has no memory.
  explicit Arena(Bytes bytes);
  ~Arena();
  Arena(Arena&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Arena& operator=(Arena&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }
  Bytes bytes() const { return bytes_; }

  static constexpr unsigned char kPoison = 0xDB;  // shows reads of bytes that were never written

 private:
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

// Returns the bytes that this process can still allocate before the machine swaps or the control group kills the
// process. None if not known. `proc`, `cgroup`: the kernel's folders; tests pass others.
std::optional<Bytes> memory_available(const std::filesystem::path& proc = "/proc",
                                      const std::filesystem::path& cgroup = "/sys/fs/cgroup");

// Returns whether the control group allows this process `bytes` more in huge pages of 2 MiB. Past a limit, mmap
// succeeds and the first touch ends the process (SIGBUS). `cgroup`: the kernel's folder; tests pass another.
bool huge_pages_allowed(Bytes bytes, const std::filesystem::path& cgroup = "/sys/fs/cgroup");

}  // namespace kvtwin

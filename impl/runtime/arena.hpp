// Memory for a pool of pages: mapped, and every page of it touched, so that no copy pays for page faults.
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
  // std::system_error if the system has no room. Filled with kPoison.
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

  static constexpr unsigned char kPoison = 0xDB;  // a read of what was never written is seen

 private:
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

// What this process can still take without the machine swapping or its control group killing it; none = not known.
// `proc` and `cgroup`: where the kernel tells, for tests.
std::optional<Bytes> memory_available(const std::filesystem::path& proc = "/proc",
                                      const std::filesystem::path& cgroup = "/sys/fs/cgroup");

}  // namespace kvtwin

#include "impl/device/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>

namespace kvtwin {
namespace {

// 0 if the file has no number there.
Bytes number_in(const char* path, const std::string& after) {
  std::ifstream in(path);
  std::string word;
  while (in >> word) {
    if (!after.empty()) {
      if (word != after || !(in >> word)) continue;
    }
    if (word.find_first_not_of("0123456789") != std::string::npos || word.size() > 18) return 0;
    return std::stoull(word);
  }
  return 0;
}

}  // namespace

Arena::Arena(Bytes bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "mapping a pool of " + std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<std::byte*>(mapped);
  ::madvise(mapped, bytes, MADV_HUGEPAGE);  // a wish; small pages do too
  std::memset(mapped, kPoison, bytes);
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Bytes memory_available() {
  const Bytes machine = 1024 * number_in("/proc/meminfo", "MemAvailable:");
  const Bytes most = number_in("/sys/fs/cgroup/memory.max", "");
  const Bytes used = number_in("/sys/fs/cgroup/memory.current", "");
  if (most == 0) return machine;
  const Bytes group = most > used ? most - used : 0;
  return machine == 0 ? group : std::min(machine, group);
}

}  // namespace kvtwin

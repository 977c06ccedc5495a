#include "impl/runtime/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>

namespace kvtwin {
namespace {

// The number after the word `name`, or the first one if `name` is empty; none if the file has no number there.
std::optional<Bytes> number_in(const std::filesystem::path& path, const std::string& name) {
  std::ifstream in(path);
  std::string word;
  while (in >> word) {
    if (!name.empty() && (word != name || !(in >> word))) continue;
    if (word.find_first_not_of("0123456789") != std::string::npos || word.size() > 18) return std::nullopt;
    return std::stoull(word);
  }
  return std::nullopt;
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

std::optional<Bytes> memory_available(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  std::optional<Bytes> available = number_in(proc / "meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  const std::optional<Bytes> most = number_in(cgroup / "memory.max", "");  // "max" = no limit
  std::optional<Bytes> used = number_in(cgroup / "memory.current", "");
  if (!most || !used) return available;
  // Files that were read or written count as used, and go when memory is wanted.
  for (const char* reclaimable : {"inactive_file", "active_file", "slab_reclaimable"}) {
    *used -= std::min(*used, number_in(cgroup / "memory.stat", reclaimable).value_or(0));
  }
  const Bytes left = *most - std::min(*most, *used);
  return available ? std::min(*available, left) : left;
}

}  // namespace kvtwin

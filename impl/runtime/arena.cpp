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

// Returns the number after the word `name`, or the first number if `name` is empty. None if the file has no such
// number.
std::optional<Bytes> number_after_word(const std::filesystem::path& path, const std::string& name) {
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
  ::madvise(mapped, bytes, MADV_HUGEPAGE);  // a hint; small pages work too
  std::memset(mapped, kPoison, bytes);
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

std::optional<Bytes> memory_available(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  std::optional<Bytes> available = number_after_word(proc / "meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  const std::optional<Bytes> limit = number_after_word(cgroup / "memory.max", "");  // "max" = no limit
  std::optional<Bytes> used = number_after_word(cgroup / "memory.current", "");
  if (!limit || !used) return available;
  // The kernel counts the cache of files as used, but frees the cache when memory is needed.
  for (const char* reclaimable : {"inactive_file", "active_file", "slab_reclaimable"}) {
    *used -= std::min(*used, number_after_word(cgroup / "memory.stat", reclaimable).value_or(0));
  }
  const Bytes free_bytes = *limit - std::min(*limit, *used);
  return available ? std::min(*available, free_bytes) : free_bytes;
}

bool huge_pages_allowed(Bytes bytes, const std::filesystem::path& cgroup) {
  // The files of a limit and of its use, for pages in use, reservations, and version 1 of control groups.
  constexpr std::pair<const char*, const char*> kLimits[] = {
      {"hugetlb.2MB.max", "hugetlb.2MB.current"},
      {"hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.current"},
      {"hugetlb/hugetlb.2MB.limit_in_bytes", "hugetlb/hugetlb.2MB.usage_in_bytes"}};
  return std::ranges::all_of(kLimits, [&](const auto& files) {
    const std::optional<Bytes> limit = number_after_word(cgroup / files.first, "");
    if (!limit) return true;  // none, or "max"
    const Bytes used = number_after_word(cgroup / files.second, "").value_or(0);
    return used <= *limit && bytes <= *limit - used;
  });
}

}  // namespace kvtwin

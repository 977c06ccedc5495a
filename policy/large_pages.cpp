#include "policy/large_pages.hpp"

#include <sys/mman.h>

namespace kvtwin {

void ask_for_large_pages(void* memory, std::size_t bytes) { static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE)); }

}  // namespace kvtwin

// Memory for the policy's large tables, in huge pages of 2 MiB if the kernel has free ones. Reason: the tables are much
// larger than the CPU caches and are read at random, so with 4 KiB pages almost every access is also a TLB miss.
// Blocks smaller than 4 MiB come from operator new.
#pragma once

#include <memory_resource>

namespace kvtwin {

// The resource for std::pmr::set_default_resource(), from which policy/ allocates its tables.
// Ownership: static; lives until the program ends. Keeps no freed memory.
// Thread: any. Errors: std::bad_alloc.
std::pmr::memory_resource* large_pages();

}  // namespace kvtwin

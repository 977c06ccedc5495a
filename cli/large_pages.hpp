// Memory for tables that are far larger than any cache and are read at random: in the kernel's large pages of 2 MiB
// where it has them to give, since with small ones almost each access is also a miss in the TLB. Small tables are
// allocated as ever.
#pragma once

#include <memory_resource>

namespace kvtwin {

// For std::pmr::set_default_resource, from which policy/ takes its tables. It keeps nothing and lasts as long as the
// program; any thread may use it. Throws std::bad_alloc.
std::pmr::memory_resource* large_pages();

}  // namespace kvtwin

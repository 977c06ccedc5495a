// The name of a page on servers that know names and values.
#pragma once

#include <cstdint>
#include <string>

#include "policy/base/types.hpp"

namespace kvtwin {

// Returns "kvtwin:" and 32 hex digits of `stored_as` (stored_page_key). `secret`: id of the secret, between the two;
// 0 = none.
std::string remote_name_of(const PageKey& stored_as, std::uint32_t secret = 0);

}  // namespace kvtwin

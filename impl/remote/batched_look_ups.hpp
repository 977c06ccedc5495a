// Look-ups of servers that answer a batch of keys per message. find_first(keys) looks up the first of the keys, as many
// as a message may have, and returns their pages, each with a `cause`: `none` if present, `missing`, or why that is not
// known.
#pragma once

#include <span>
#include <vector>

#include "impl/storage/backend.hpp"

namespace kvtwin {

// StorageBackend::look_up.
template <typename FindFirst>
LookedUp look_up_in_batches(std::span<const PageKey> keys, FindFirst find_first) {
  LookedUp found;
  while (found.pages < keys.size()) {
    for (const auto& page : find_first(keys.subspan(found.pages))) {
      if (page.cause != Cause::none) return {found.pages, page.cause};
      ++found.pages;
    }
  }
  return found;
}

// StorageBackend::find.
template <typename FindFirst>
Cause find_in_batches(std::span<const PageKey> keys, std::vector<bool>& there, FindFirst find_first) {
  there.clear();
  Cause unknown = Cause::none;
  while (there.size() < keys.size()) {
    for (const auto& page : find_first(keys.subspan(there.size()))) {
      there.push_back(page.cause == Cause::none);
      const bool is_known = page.cause == Cause::none || page.cause == Cause::missing;
      if (!is_known && unknown == Cause::none) unknown = page.cause;
    }
  }
  return unknown;
}

}  // namespace kvtwin

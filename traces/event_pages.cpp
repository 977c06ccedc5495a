#include "traces/event_pages.hpp"

#include <optional>

#include "policy/index/page_key.hpp"
#include "traces/fields.hpp"
#include "traces/paging.hpp"
#include "traces/token_ids.hpp"

namespace kvtwin {

EventPages::Page EventPages::page(const Page* parent, std::span<const std::uint32_t> tokens,
                                  std::string_view cache_salt) const {
  Page page;
  const PageKey first = parent == nullptr ? token_blocks_seed(salt_) : parent->digest;
  page.digest = token_page_key(&first, tokens);
  const BlockSegment segment{page.digest.words[0], 0, static_cast<std::uint32_t>(tokens.size())};
  if (parent != nullptr) {
    page.key = block_page_key(&parent->key, {&segment, 1});
    return page;
  }
  std::uint64_t tenant = 0;
  if (!cache_salt.empty()) {
    std::string space;
    append_namespace_part(space, "cache_salt", cache_salt);
    tenant = string_id(space);
  }
  const std::optional<PageKey> seed = tenant_seed(salt_, tenant);
  page.key = block_page_key(seed ? &*seed : nullptr, {&segment, 1});
  return page;
}

}  // namespace kvtwin

// The header of a stored page: 128 bytes beside the payload, little-endian. It proves which page the payload is.
//
//   0 u64 magic | 8 u32 version | 12 u32 layout | 16 32 space | 48 32 key | 80 u32 layers, planes, heads, head_bytes,
//   page_tokens | 100 u32 id of the secret | 104 u64 payload bytes |
//   version 1, without a secret: 112 u64 check of the payload | 120 u64 check of the 120 bytes before it
//   version 2, with one: 112 16 MAC of the 112 bytes before it and the payload (page_seal.hpp)
//
// The checks of version 1 are XXH3 (64 bits). They find accidents: torn, flipped or misplaced bytes. A user who can
// write to the store can forge such a page. A reader with a secret accepts only pages of this secret; a reader without
// a secret accepts only pages without one. All functions are pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "impl/storage/page_seal.hpp"
#include "impl/storage/pieces.hpp"
#include "policy/base/types.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

constexpr std::size_t kPageHeaderBytes = 128;
using PageHeader = std::array<std::byte, kPageHeaderBytes>;

// The form of a tier's pages: one rank's KV of page_tokens tokens, in `layout` as if the pool had one page.
struct PageForm {
  KvShape shape;
  Layout layout = Layout::page_first;
  Bytes bytes() const { return shape.page_bytes(); }
};

// The form of the `objects` equal parts of a page, which are consecutive ranges of the page's bytes: 1 = the page, or
// the number of planes, or, in layer_first, layers * planes.
// Requires: the layout has such parts.
PageForm object_form(const PageForm& page, std::uint32_t objects);

// The name of a page in a store that keeps pages of several forms: XXH3 (128 bits) over space, key and form. So a page
// never takes the name of a page of another form, whose header it could not match.
PageKey stored_page_key(const PageForm& form, const PageKey& space, const PageKey& key);

// The content of a header.
struct PageClaim {
  PageKey space, key;
  Bytes payload_bytes = 0;
  std::uint32_t secret = 0;  // id of the secret; 0 = none
};

PageHeader make_page_header(const PageForm& form, const PageKey& space, const PageKey& key,
                            std::span<const std::byte> payload, const PageSeal* seal = nullptr);
// The same for a payload in pieces.
PageHeader make_page_header(const PageForm& form, const PageKey& space, const PageKey& key, const Pieces& payload,
                            const PageSeal* seal = nullptr);
// Returns none if the header is absent or damaged, or belongs to pages of another form. The header of a page with a
// secret is not checked here: holds_page checks it together with the payload.
std::optional<PageClaim> read_page_header(const PageForm& form, std::span<const std::byte, kPageHeaderBytes> header);
// Returns whether the bytes are the named page, undamaged.
bool holds_page(const PageForm& form, const PageKey& space, const PageKey& key,
                std::span<const std::byte, kPageHeaderBytes> header, std::span<const std::byte> payload,
                const PageSeal* seal = nullptr);
bool holds_page(const PageForm& form, const PageKey& space, const PageKey& key,
                std::span<const std::byte, kPageHeaderBytes> header, const Pieces& payload,
                const PageSeal* seal = nullptr);

}  // namespace kvtwin

// What vouches for a stored page wherever it lies: 128 bytes beside its payload, little-endian.
//
//   0 u64 magic | 8 u32 version | 12 u32 layout | 16 32 space | 48 32 key | 80 u32 layers, planes, heads, head_bytes,
//   page_tokens | 100 u32 id of the secret | 104 u64 payload bytes |
//   version 1, without a secret: 112 u64 check of the payload | 120 u64 check of the 120 bytes before it
//   version 2, with one: 112 16 MAC of the 112 bytes before it and the payload (page_seal.hpp)
//
// The checks of version 1 are XXH3 (64 bits), against accidents: torn, flipped, misplaced bytes. Who can write to the
// store can forge such a page. A reader with a secret takes pages of that secret only; one without, pages without.
// Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "impl/storage/page_seal.hpp"
#include "policy/base/types.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

constexpr std::size_t kPageHeaderBytes = 128;
using PageHeader = std::array<std::byte, kPageHeaderBytes>;

// What a tier's pages are: one rank's KV of page_tokens tokens, in `layout` as of a pool of one page.
struct PageForm {
  KvShape shape;
  Layout layout = Layout::page_first;
  Bytes bytes() const { return shape.page_bytes(); }
};

// What a header says.
struct PageClaim {
  PageKey space, key;
  Bytes payload_bytes = 0;
  std::uint32_t secret = 0;  // its id; 0: none
};

PageHeader make_page_header(const PageForm& form, const PageKey& space, const PageKey& key,
                            std::span<const std::byte> payload, const PageSeal* seal = nullptr);
// None: no header, or a damaged one, or of pages of another form. The header of a page with a secret is checked
// together with its payload only, by holds_page.
std::optional<PageClaim> read_page_header(const PageForm& form, std::span<const std::byte, kPageHeaderBytes> header);
// Is this that page, whole?
bool holds_page(const PageForm& form, const PageKey& space, const PageKey& key,
                std::span<const std::byte, kPageHeaderBytes> header, std::span<const std::byte> payload,
                const PageSeal* seal = nullptr);

}  // namespace kvtwin

// How page keys are made. There are two chains, which are never mixed in one run:
//
//   token chain   SGLang HiCache's SHA-256 chain over real tokens: a hash of the previous page's digest, then of every
//                 token as 4 little-endian bytes; seeded by the namespace
//   block chain   a 128-bit XXH3 hash of the parent key and of (block id, offset, length) segments, for traces that
//                 have block ids instead of tokens. words[2] and words[3] are 0.
//
// A collision in the block chain has a probability of 2^-128 per pair, but XXH3 does not resist an attacker. So the
// chain is for trusted traces; tokens from strangers take the SHA-256 chain.
// Thread: one, because the hash's working state is kept between calls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

// The seed of a namespace (LoRA adapter, tenant salt): SHA-256("sglang-cache-namespace-v1" || for each of (extra_key,
// salt): 0x00 if absent, else 0x01 || length as 8 bytes LE || UTF-8 bytes). Returns nullopt if both are absent: then
// the chain has no prior.
std::optional<PageKey> namespace_seed(std::optional<std::string_view> extra_key, std::optional<std::string_view> salt);

// Identifies what stored KV was computed with. A page's key names only tokens. Two pages with different identities
// never share a stored page. Missing parts are empty or 0.
struct StorageIdentity {
  std::string_view model = {}, revision = {}, kv_dtype = {};
  std::uint32_t page_tokens = 0;
  std::string_view layout = {};  // of the stored bytes
  std::uint32_t tp = 1, pp = 1;  // the rank layout: the number of parts that a page is cut into
  std::uint32_t rank = 0;        // the number of the part; 0 if one engine stands for all its ranks, or if all parts
                                 // are alike
  std::string_view draft = {};   // identity of the draft model, if the pages hold its KV too
  std::string_view name_space = {};  // the user's own partition of the store
  std::string_view pool = {};        // name of the pool beside pool 0, if the objects are not its pages
};
// SHA-256 over "kvtwin-storage-v1" and each field, in order. A string is its length (8 bytes LE) and its bytes; a
// number is 8 bytes LE. An empty `pool` is left out: earlier versions had none.
PageKey storage_space(const StorageIdentity& identity);

// The name of a page in a store that several identities share: XXH3 (128 bits) over space and page key.
PageKey storage_page_key(const PageKey& space, const PageKey& page);

// The key of one object of a page that is stored as several: XXH3 (128 bits) over page key and number. A mark in
// words[2] makes it different from the other keys made here.
PageKey storage_object_key(const PageKey& page, std::uint32_t object);

// The key of what a pool beside pool 0 has of a page: its window, or the state behind it. `pool`: its number, from 1
// on. XXH3 (128 bits) over page key and number, with a mark in words[2].
PageKey pool_page_key(const PageKey& page, std::size_t pool);
// The key of the state behind `tokens` tokens of the page; of a full page, pool_page_key(). `pool`: as there.
PageKey state_key(const PageKey& page, Tokens tokens, Tokens page_tokens, std::size_t pool);
// The pool of such a key; 0: the key of a page.
std::size_t pool_of(const PageKey& key);

// The key of a page of real tokens. `prior`: the key of the page before, else the namespace seed, else null. The words
// of the key are the digest's 32 bytes in order (little-endian).
PageKey token_page_key(const PageKey* prior, std::span<const std::uint32_t> tokens);

// A part of one trace block: `length` tokens from `offset` on.
struct BlockSegment {
  std::uint64_t block = 0;
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
};

// The key of a page made of block segments. `prior` as above. The same tokens in other segments give another key:
// traces are cut only at block and page boundaries.
PageKey block_page_key(const PageKey* prior, std::span<const BlockSegment> segments);

// The key of a generated page that the trace does not name. The key is private to the request, so no other request
// matches it. A mark in words[2] makes it different from every block key.
PageKey private_page_key(const PageKey* prior, RequestId request, std::uint64_t page_index);

}  // namespace kvtwin

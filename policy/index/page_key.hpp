// How page keys are made. Two chains, never mixed in one run:
//  * token chain: SGLang HiCache's SHA-256 chain over real tokens (hash of the previous page's digest, then
//    every token as 4 little-endian bytes), seeded by the namespace;
//  * block chain: a 128-bit hash (XXH3) of the parent key and (block id, offset, length) segments, for
//    traces that carry block ids instead of tokens. Collisions: 2^-128 per pair, fine for traces we trust;
//    tokens of strangers take the SHA-256 chain. words[2] and [3] are 0.
// One thread: the hash's working state is kept from call to call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

// Seed of a namespace (LoRA adapter, tenant salt); nullopt when both are absent: then the chain has no prior.
// SHA-256("sglang-cache-namespace-v1" || for each of (extra_key, salt): 0x00 if absent else 0x01 ||
// length as 8 bytes LE || UTF-8 bytes).
std::optional<PageKey> namespace_seed(std::optional<std::string_view> extra_key, std::optional<std::string_view> salt);

// What the KV in a store is KV of. A page's key names tokens; two of these that differ in anything never share a
// stored page. Missing parts are empty or 0.
struct StorageIdentity {
  std::string_view model = {}, revision = {}, kv_dtype = {};
  std::uint32_t page_tokens = 0;
  std::string_view layout = {};      // of the stored bytes
  std::uint32_t tp = 1, pp = 1;      // the rank layout: into how many parts a page is cut ...
  std::uint32_t rank = 0;            // ... and which this is; 0 where one engine stands for all its ranks, or the parts
                                     // are all alike
  std::string_view draft = {};       // of what else the pages hold
  std::string_view name_space = {};  // the user's own partition of the store
};
// SHA-256 over "kvtwin-storage-v1" and each field, in order: a string as its length (8 bytes LE) and its bytes, a
// number as 8 bytes LE.
PageKey storage_space(const StorageIdentity& identity);

// The name of a page in a store that several such identities share: XXH3 (128 bits) over space and page key.
PageKey storage_page_key(const PageKey& space, const PageKey& page);

// Key of a page of real tokens. `prior`: key of the page before it, else the namespace seed, else null.
// The key's words hold the digest's 32 bytes in order (little-endian words).
PageKey token_page_key(const PageKey* prior, std::span<const std::uint32_t> tokens);

// A stretch of one trace block: `length` tokens from `offset` on.
struct BlockSegment {
  std::uint64_t block = 0;
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
};

// Key of a page made of block segments. `prior` as above. The same tokens cut differently give another key:
// traces cut at block and page boundaries only.
PageKey block_page_key(const PageKey* prior, std::span<const BlockSegment> segments);

// Key of a generated page that no trace names: private to its request, so it never matches another's.
// Marked in words[2], so that it never equals a block key.
PageKey private_page_key(const PageKey* prior, RequestId request, std::uint64_t page_index);

}  // namespace kvtwin

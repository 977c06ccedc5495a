#include "policy/index/page_key.hpp"

#include <openssl/evp.h>

// The hash of a page is of a few words, and a call of the shared library costs as much as the hash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"
#include "policy/base/mix.hpp"
#include "policy/base/mutant.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kSegmentBytes = 24;
// Values of words[2]; a block key has 0 there.
constexpr std::uint64_t kPrivateMark = 1;
constexpr std::uint64_t kStoreMark = 2;
constexpr std::uint64_t kObjectMark = 3;
constexpr std::uint64_t kPoolMark = 4;

std::byte* store_key(std::byte* to, const PageKey& key) {
  for (const std::uint64_t word : key.words) to = store_le64(to, word);
  return to;
}

// Keeps the digest and the context, because fetching and allocating them costs more than hashing a page.
class Sha256 {
 public:
  Sha256() : digest_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), context_(EVP_MD_CTX_new()) {
    KV_CHECK(digest_ != nullptr && context_ != nullptr, "libcrypto has SHA-256");
  }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256() {
    EVP_MD_CTX_free(context_);
    EVP_MD_free(digest_);
  }

  void begin() { KV_CHECK(EVP_DigestInit_ex2(context_, digest_, nullptr) == 1, "SHA-256 starts"); }
  void add(const void* data, std::size_t bytes) {
    KV_CHECK(EVP_DigestUpdate(context_, data, bytes) == 1, "SHA-256 takes bytes");
  }
  PageKey end() {
    std::array<std::byte, kKeyBytes> bytes;
    KV_CHECK(EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(bytes.data()), nullptr) == 1,
             "SHA-256 ends");
    PageKey key;
    for (std::size_t i = 0; i < key.words.size(); ++i) key.words[i] = load_le64(bytes.data() + 8 * i);
    return key;
  }

 private:
  EVP_MD* digest_;
  EVP_MD_CTX* context_;
};

Sha256& sha256() {
  static Sha256 instance;
  return instance;
}

void add_namespace_part(Sha256& hash, const std::optional<std::string_view>& part) {
  std::array<std::byte, 9> head{};
  if (!part) {
    hash.add(head.data(), 1);
    return;
  }
  head[0] = std::byte{1};
  store_le64(head.data() + 1, part->size());
  hash.add(head.data(), head.size());
  hash.add(part->data(), part->size());
}

}  // namespace

std::optional<PageKey> namespace_seed(std::optional<std::string_view> extra_key, std::optional<std::string_view> salt) {
  if (!extra_key && !salt) return std::nullopt;
  constexpr std::string_view kTag = "sglang-cache-namespace-v1";
  Sha256& hash = sha256();
  hash.begin();
  hash.add(kTag.data(), kTag.size());
  add_namespace_part(hash, extra_key);
  add_namespace_part(hash, salt);
  return hash.end();
}

PageKey storage_space(const StorageIdentity& identity) {
  constexpr std::string_view kTag = "kvtwin-storage-v1";
  Sha256& hash = sha256();
  const auto add_number = [&hash](std::uint64_t number) {
    std::array<std::byte, 8> bytes{};
    store_le64(bytes.data(), number);
    hash.add(bytes.data(), bytes.size());
  };
  const auto add_text = [&](std::string_view text) {
    add_number(text.size());
    hash.add(text.data(), text.size());
  };
  hash.begin();
  hash.add(kTag.data(), kTag.size());
  add_text(identity.model);
  add_text(identity.revision);
  if (!KV_MUTANT(12)) add_text(identity.kv_dtype);  // NOLINT(readability-simplify-boolean-expr): false but in a mutant
  add_number(identity.page_tokens);
  add_text(identity.layout);
  add_number(identity.tp);
  add_number(identity.pp);
  add_number(identity.rank);
  add_text(identity.draft);
  if (!KV_MUTANT(7)) add_text(identity.name_space);  // NOLINT(readability-simplify-boolean-expr)
  if (!identity.pool.empty()) add_text(identity.pool);
  return hash.end();
}

// The page key is a digest already, and no one can choose its value. So mixing it with the space needs no cryptographic
// hash.
PageKey storage_page_key(const PageKey& space, const PageKey& page) {
  std::array<std::byte, 2 * kKeyBytes> packed;
  store_key(store_key(packed.data(), space), page);
  const XXH128_hash_t hash = XXH3_128bits(packed.data(), packed.size());
  return PageKey{{hash.low64, hash.high64, kStoreMark, 0}};
}

namespace {
PageKey numbered_key(const PageKey& page, std::uint64_t mark, std::uint64_t number) {
  std::array<std::byte, kKeyBytes + 8> packed;
  store_le64(store_key(packed.data(), page), number);
  const XXH128_hash_t hash = XXH3_128bits(packed.data(), packed.size());
  return PageKey{{hash.low64, hash.high64, mark, number}};
}
}  // namespace

PageKey storage_object_key(const PageKey& page, std::uint32_t object) {
  return numbered_key(page, kObjectMark, object);
}

PageKey pool_page_key(const PageKey& page, std::size_t pool) { return numbered_key(page, kPoolMark, pool); }
PageKey state_key(const PageKey& page, Tokens tokens, Tokens page_tokens, std::size_t pool) {
  PageKey key = pool_page_key(page, pool);
  if (tokens != page_tokens) key.words[1] ^= mixed_bits(tokens);
  return key;
}

std::size_t pool_of(const PageKey& key) { return key.words[2] == kPoolMark ? key.words[3] : 0; }

PageKey token_page_key(const PageKey* prior, std::span<const std::uint32_t> tokens) {
  Sha256& hash = sha256();
  hash.begin();
  // Each update passes whole blocks to libcrypto: the prior with as many tokens as fit, then further full buffers.
  std::array<std::byte, kKeyBytes + 4 * 256> buffer;
  std::byte* to = prior != nullptr ? store_key(buffer.data(), *prior) : buffer.data();
  for (const std::uint32_t token : tokens) {
    if (to == buffer.data() + buffer.size()) {
      hash.add(buffer.data(), buffer.size());
      to = buffer.data();
    }
    to = store_le32(to, token);
  }
  hash.add(buffer.data(), static_cast<std::size_t>(to - buffer.data()));
  return hash.end();
}

// A key with a prior cannot equal one without: the packed lengths differ, because a key is not a whole number of
// segments.
PageKey block_page_key(const PageKey* prior, std::span<const BlockSegment> segments) {
  std::array<std::byte, kKeyBytes + kSegmentBytes * 16> few;
  std::vector<std::byte> many;
  std::byte* packed = few.data();
  if (segments.size() > 16) {
    many.resize(kKeyBytes + kSegmentBytes * segments.size());
    packed = many.data();
  }
  std::byte* to = prior != nullptr && !KV_MUTANT(11) ? store_key(packed, *prior) : packed;
  for (const BlockSegment& segment : segments) {
    to = store_le64(to, segment.block);
    to = store_le64(to, segment.offset);
    to = store_le64(to, segment.length);
  }
  const XXH128_hash_t hash = XXH3_128bits(packed, static_cast<std::size_t>(to - packed));
  return PageKey{{hash.low64, hash.high64, 0, 0}};
}

PageKey private_page_key(const PageKey* prior, RequestId request, std::uint64_t page_index) {
  std::array<std::byte, kKeyBytes + 16> packed;
  std::byte* to = prior != nullptr ? store_key(packed.data(), *prior) : packed.data();
  to = store_le64(to, request);
  to = store_le64(to, page_index);
  const XXH128_hash_t hash = XXH3_128bits(packed.data(), static_cast<std::size_t>(to - packed.data()));
  return PageKey{{hash.low64, hash.high64, kPrivateMark, 0}};
}

}  // namespace kvtwin

#include "impl/storage/page_header.hpp"

#include <algorithm>
#include <cstring>

#include "impl/storage/checksum.hpp"
#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kPageMagic = 0x67706E697774766B;  // the bytes "kvtwinpg"
constexpr std::uint32_t kPageVersion = 1, kPageVersionWithSecret = 2;
constexpr std::size_t kSpaceAt = 16, kKeyAt = 48, kShapeAt = 80, kSecretAt = 100, kBytesAt = 104, kPayloadCheckAt = 112,
                      kHeaderCheckAt = 120, kMacAt = kPayloadCheckAt;

void put_key(const PageKey& key, std::byte* at) {
  for (std::size_t i = 0; i < key.words.size(); ++i) store_le64(at + 8 * i, key.words[i]);
}
PageKey get_key(const std::byte* at) {
  PageKey key;
  for (std::size_t i = 0; i < key.words.size(); ++i) key.words[i] = load_le64(at + 8 * i);
  return key;
}

// Returns the header without its checks.
PageHeader unsigned_header(const PageForm& form, const PageKey& space, const PageKey& key, std::uint32_t secret) {
  PageHeader header{};
  std::byte* at = header.data();
  store_le64(at, kPageMagic);
  store_le32(at + 8, secret == 0 ? kPageVersion : kPageVersionWithSecret);
  store_le32(at + 12, static_cast<std::uint32_t>(form.layout));
  put_key(space, at + kSpaceAt);
  put_key(key, at + kKeyAt);
  const KvShape& s = form.shape;
  const std::uint32_t shape[] = {s.layers, s.planes, s.heads, s.head_bytes, s.page_tokens};
  for (std::size_t i = 0; i < std::size(shape); ++i) store_le32(at + kShapeAt + 4 * i, shape[i]);
  store_le32(at + kSecretAt, secret);
  store_le64(at + kBytesAt, form.bytes());
  return header;
}

template <typename Payload>
PageHeader complete_header(const PageForm& form, const PageKey& space, const PageKey& key, const Payload& payload,
                           const PageSeal* seal) {
  PageHeader header = unsigned_header(form, space, key, id_of(seal));
  if (seal != nullptr) {
    std::ranges::copy(seal->of(std::span(header).first(kMacAt), payload), header.begin() + kMacAt);
    return header;
  }
  store_le64(header.data() + kPayloadCheckAt, checksum(payload));
  store_le64(header.data() + kHeaderCheckAt, checksum(std::span<const std::byte>(header).first(kHeaderCheckAt)));
  return header;
}

// `bytes`: of the payload.
template <typename Payload>
bool is_page(const PageForm& form, const PageKey& space, const PageKey& key,
             std::span<const std::byte, kPageHeaderBytes> header, const Payload& payload, Bytes bytes,
             const PageSeal* seal) {
  const std::optional<PageClaim> claim = read_page_header(form, header);
  if (!claim || claim->space != space || claim->key != key || claim->payload_bytes != bytes) return false;
  if (claim->secret != id_of(seal)) return false;
  if (seal != nullptr) return same_mac(header.subspan<kMacAt>(), seal->of(header.first<kMacAt>(), payload));
  return load_le64(header.data() + kPayloadCheckAt) == checksum(payload);
}

}  // namespace

PageForm object_form(const PageForm& page, std::uint32_t objects) {
  PageForm object = page;
  KvShape& shape = object.shape;
  if (objects != 1) shape.planes = 1;
  if (objects > page.shape.planes) shape.layers = 1;
  KV_CHECK(object.bytes() * objects == page.bytes() &&
               (shape.layers == page.shape.layers || page.layout == Layout::layer_first),
           "the objects of a page are its planes, or the layers of its planes");
  return object;
}

PageKey stored_page_key(const PageForm& form, const PageKey& space, const PageKey& key) {
  const KvShape& s = form.shape;
  const auto pair = [](std::uint64_t low, std::uint64_t high) { return low | high << 32; };
  const PageKey form_key{
      {pair(s.layers, s.planes), pair(s.heads, s.head_bytes), s.page_tokens, static_cast<std::uint64_t>(form.layout)}};
  return storage_page_key(storage_page_key(space, key), form_key);
}

PageHeader make_page_header(const PageForm& form, const PageKey& space, const PageKey& key,
                            std::span<const std::byte> payload, const PageSeal* seal) {
  return complete_header(form, space, key, payload, seal);
}

PageHeader make_page_header(const PageForm& form, const PageKey& space, const PageKey& key, const Pieces& payload,
                            const PageSeal* seal) {
  return complete_header(form, space, key, payload, seal);
}

std::optional<PageClaim> read_page_header(const PageForm& form, std::span<const std::byte, kPageHeaderBytes> header) {
  const std::byte* at = header.data();
  const std::uint32_t secret = load_le32(at + kSecretAt);
  if (secret == 0 && load_le64(at + kHeaderCheckAt) != checksum(header.first(kHeaderCheckAt))) return std::nullopt;
  const PageClaim claim{get_key(at + kSpaceAt), get_key(at + kKeyAt), load_le64(at + kBytesAt), secret};
  const PageHeader expected = unsigned_header(form, claim.space, claim.key, secret);
  if (std::memcmp(at, expected.data(), kPayloadCheckAt) != 0) return std::nullopt;
  return claim;
}

bool holds_page(const PageForm& form, const PageKey& space, const PageKey& key,
                std::span<const std::byte, kPageHeaderBytes> header, std::span<const std::byte> payload,
                const PageSeal* seal) {
  return is_page(form, space, key, header, payload, payload.size(), seal);
}

bool holds_page(const PageForm& form, const PageKey& space, const PageKey& key,
                std::span<const std::byte, kPageHeaderBytes> header, const Pieces& payload, const PageSeal* seal) {
  return is_page(form, space, key, header, payload, bytes_of(payload), seal);
}

}  // namespace kvtwin

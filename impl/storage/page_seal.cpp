#include "impl/storage/page_seal.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "policy/base/byte_order.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kSha256Bytes = 32;
constexpr std::string_view kIdText = "kvtwin page key id";

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

PageSeal::PageSeal(std::string_view secret) {
  if (secret.size() < kMinSecretBytes) {
    throw std::runtime_error("must have " + std::to_string(kMinSecretBytes) +
                             " characters at least, such as what `openssl rand -hex 32` prints");
  }
  EVP_MAC* hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  keyed_ = hmac == nullptr ? nullptr : EVP_MAC_CTX_new(hmac);
  EVP_MAC_free(hmac);
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                   OSSL_PARAM_construct_end()};
  const auto* key = reinterpret_cast<const unsigned char*>(secret.data());
  if (keyed_ == nullptr || EVP_MAC_init(keyed_, key, secret.size(), parameters) != 1) {
    EVP_MAC_CTX_free(keyed_);
    throw std::runtime_error("can't be used: this OpenSSL has no HMAC-SHA256");
  }
  const PageMac mac = of(std::as_bytes(std::span(kIdText)), Pieces{});
  id_ = std::max<std::uint32_t>(1, load_le32(mac.data()));
}

PageSeal::~PageSeal() { EVP_MAC_CTX_free(keyed_); }

// Payloads are only read.
PageMac PageSeal::of(std::span<const std::byte> header, std::span<const std::byte> payload) const {
  return of(header, Pieces{{const_cast<std::byte*>(payload.data()), payload.size()}});
}

PageMac PageSeal::of(std::span<const std::byte> header, const Pieces& payload) const {
  const std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> one(EVP_MAC_CTX_dup(keyed_), &EVP_MAC_CTX_free);
  std::array<unsigned char, kSha256Bytes> whole;
  std::size_t bytes = 0;
  bool right = one && EVP_MAC_update(one.get(), raw(header), header.size()) == 1;
  for (const std::span<std::byte> piece : payload) {
    right = right && EVP_MAC_update(one.get(), raw(piece), piece.size()) == 1;
  }
  if (!right || EVP_MAC_final(one.get(), whole.data(), &bytes, whole.size()) != 1 || bytes != whole.size()) {
    throw std::bad_alloc();
  }
  PageMac mac;
  std::ranges::copy(std::as_bytes(std::span(whole)).first<kPageMacBytes>(), mac.begin());
  return mac;
}

bool same_mac(std::span<const std::byte, kPageMacBytes> a, std::span<const std::byte, kPageMacBytes> b) {
  return CRYPTO_memcmp(a.data(), b.data(), kPageMacBytes) == 0;
}

}  // namespace kvtwin

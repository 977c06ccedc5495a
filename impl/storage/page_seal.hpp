// A keyed check of stored pages: HMAC-SHA256 of a page's header and payload, cut to 128 bits. Only who has the secret
// can make a page that passes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_mac_ctx_st;

namespace kvtwin {

constexpr std::size_t kMinSecretBytes = 16;
constexpr std::size_t kPageMacBytes = 16;
using PageMac = std::array<std::byte, kPageMacBytes>;

// Any thread.
class PageSeal {
 public:
  // std::runtime_error if the secret is shorter than kMinSecretBytes (the text does not repeat it), or if the
  // cryptographic library refuses its service.
  explicit PageSeal(std::string_view secret);
  ~PageSeal();
  PageSeal(const PageSeal&) = delete;
  PageSeal& operator=(const PageSeal&) = delete;

  // Tells pages of other secrets apart before their payload is read; no proof of anything. Never 0.
  std::uint32_t id() const { return id_; }
  // std::bad_alloc if there is no memory for it.
  PageMac of(std::span<const std::byte> header, std::span<const std::byte> payload) const;

 private:
  evp_mac_ctx_st* keyed_ = nullptr;  // not changed after the constructor
  std::uint32_t id_ = 0;
};

// 0: without a secret.
inline std::uint32_t id_of(const PageSeal* seal) { return seal == nullptr ? 0 : seal->id(); }

// In a time that does not tell where they differ.
bool same_mac(std::span<const std::byte, kPageMacBytes> a, std::span<const std::byte, kPageMacBytes> b);

}  // namespace kvtwin

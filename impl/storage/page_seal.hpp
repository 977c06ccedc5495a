// A keyed check of stored pages: HMAC-SHA256 over header and payload, cut to 128 bits. A page that passes the check can
// only be made with the secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "impl/storage/pieces.hpp"

struct evp_mac_ctx_st;

namespace kvtwin {

constexpr std::size_t kMinSecretBytes = 16;
constexpr std::size_t kPageMacBytes = 16;
using PageMac = std::array<std::byte, kPageMacBytes>;

// Thread: any thread.
class PageSeal {
 public:
  // Errors: std::runtime_error if the secret is shorter than kMinSecretBytes (the text does not contain the secret), or
  // if OpenSSL has no HMAC-SHA256.
  explicit PageSeal(std::string_view secret);
  ~PageSeal();
  PageSeal(const PageSeal&) = delete;
  PageSeal& operator=(const PageSeal&) = delete;

  // Returns a number that tells pages of different secrets apart before their payload is read. Proves nothing. Never 0.
  std::uint32_t id() const { return id_; }
  // Errors: std::bad_alloc.
  PageMac of(std::span<const std::byte> header, std::span<const std::byte> payload) const;
  PageMac of(std::span<const std::byte> header, const Pieces& payload) const;

 private:
  evp_mac_ctx_st* keyed_ = nullptr;  // constant after the constructor
  std::uint32_t id_ = 0;
};

// Returns 0 without a seal.
inline std::uint32_t id_of(const PageSeal* seal) { return seal == nullptr ? 0 : seal->id(); }

// Compares in constant time: the duration does not show where the codes differ.
bool same_mac(std::span<const std::byte, kPageMacBytes> a, std::span<const std::byte, kPageMacBytes> b);

}  // namespace kvtwin

#include "policy/index/page_key.hpp"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

using ByteString = std::vector<unsigned char>;

void append_le(ByteString& bytes, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes.push_back(static_cast<unsigned char>(value >> (8 * i)));
}

ByteString sha256_of(const ByteString& bytes) {
  ByteString digest(SHA256_DIGEST_LENGTH);
  SHA256(bytes.data(), bytes.size(), digest.data());
  return digest;
}

ByteString bytes_of(const PageKey& key) {
  ByteString bytes;
  for (const std::uint64_t word : key.words) append_le(bytes, word, 8);
  return bytes;
}

std::string hex(const PageKey& key) {
  std::string text;
  for (const unsigned char byte : bytes_of(key)) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

const std::vector<std::uint32_t> kFirst = {1, 2, 3, 0xffffffff};
const std::vector<std::uint32_t> kSecond = {7, 8, 9, 10};

// Digests by another implementation (Python's hashlib).
TEST(TokenChain, KnownDigests) {
  const PageKey first = token_page_key(nullptr, kFirst);
  EXPECT_EQ(hex(first), "9f4b4e89af4660781651baede3c19ef0b853c51c71c2b53dca1348e66e5a1b76");
  EXPECT_EQ(hex(token_page_key(&first, kSecond)), "d310b5364144c2529c49820ba51166d066e306e36e21ba57d77009daad7a8dd7");
  const std::optional<PageKey> seed = namespace_seed("lora-a", std::nullopt);
  ASSERT_TRUE(seed);
  EXPECT_EQ(hex(*seed), "407c773a7c02b33bd4a62af6bf5fc77997c2c8067811ecf2b39e3839c3f4284b");
  EXPECT_EQ(hex(token_page_key(&*seed, kFirst)), "b7fc44ad9b1edd2fa998238130d9800c724ad4b17fb6728962af35285cf91268");
}

TEST(TokenChain, EqualsSha256OverExplicitBytes) {
  test::Splitmix random(1);
  for (const bool seeded : {false, true}) {
    std::optional<PageKey> prior = seeded ? namespace_seed("adapter", "salt") : std::nullopt;
    ByteString before = prior ? bytes_of(*prior) : ByteString{};
    // Lengths around the hash's block and the implementation's buffer.
    for (const std::size_t length : {1u, 8u, 16u, 64u, 255u, 256u, 257u, 264u, 512u, 1000u}) {
      std::vector<std::uint32_t> tokens;
      ByteString bytes = before;
      for (std::size_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<std::uint32_t>(random.next()));
        append_le(bytes, tokens.back(), 4);
      }
      prior = token_page_key(prior ? &*prior : nullptr, tokens);
      before = sha256_of(bytes);
      ASSERT_EQ(bytes_of(*prior), before) << length;
    }
  }
}

TEST(TokenChain, GoesOnAfterARestart) {
  const PageKey first = token_page_key(nullptr, kFirst);
  const PageKey second = token_page_key(&first, kSecond);
  PageKey restored;  // as read back from a file
  const ByteString stored = bytes_of(first);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    restored.words[i / 8] |= static_cast<std::uint64_t>(stored[i]) << (8 * (i % 8));
  }
  EXPECT_EQ(token_page_key(&restored, kSecond), second);
  EXPECT_NE(token_page_key(nullptr, kSecond), second);
}

TEST(NamespaceSeed, BytesAsSpecified) {
  const auto expected = [](std::optional<std::string> extra, std::optional<std::string> salt) {
    const std::string tag = "sglang-cache-namespace-v1";
    ByteString bytes(tag.begin(), tag.end());
    for (const auto& part : {extra, salt}) {
      bytes.push_back(part ? 1 : 0);
      if (!part) continue;
      append_le(bytes, part->size(), 8);
      bytes.insert(bytes.end(), part->begin(), part->end());
    }
    return sha256_of(bytes);
  };
  EXPECT_EQ(namespace_seed(std::nullopt, std::nullopt), std::nullopt);
  EXPECT_EQ(bytes_of(*namespace_seed("a", std::nullopt)), expected("a", std::nullopt));
  EXPECT_EQ(bytes_of(*namespace_seed(std::nullopt, "a")), expected(std::nullopt, "a"));
  EXPECT_EQ(bytes_of(*namespace_seed("", "b\xC3\xA9")), expected("", "b\xC3\xA9"));
  EXPECT_NE(namespace_seed("ab", "c"), namespace_seed("a", "bc"));
  EXPECT_NE(namespace_seed("", std::nullopt), namespace_seed(std::nullopt, ""));
}

TEST(BlockChain, SensitiveToEveryField) {
  const PageKey prior = block_page_key(nullptr, std::vector<BlockSegment>{{1, 0, 64}});
  PageKey other = prior;
  other.words[1] ^= 1;
  std::vector<PageKey> keys;
  const auto add = [&](const PageKey* before, std::vector<BlockSegment> segments) {
    keys.push_back(block_page_key(before, segments));
  };
  add(&prior, {{5, 0, 64}});
  add(nullptr, {{5, 0, 64}});
  add(&other, {{5, 0, 64}});
  add(&prior, {{6, 0, 64}});
  add(&prior, {{5, 1, 64}});
  add(&prior, {{5, 0, 63}});
  add(&prior, {{5u | std::uint64_t{1} << 63, 0, 64}});
  add(&prior, {{5, 0, 32}, {5, 32, 32}});
  add(&prior, {{5, 0, 32}, {6, 0, 32}});
  add(&prior, {{6, 0, 32}, {5, 0, 32}});
  add(&prior, {});
  const std::set<PageKey> distinct(keys.begin(), keys.end());
  EXPECT_EQ(distinct.size(), keys.size());
  for (const PageKey& key : keys) {
    EXPECT_EQ(key.words[2], 0u);
    EXPECT_EQ(key.words[3], 0u);
  }
  EXPECT_EQ(block_page_key(&prior, std::vector<BlockSegment>{{5, 0, 64}}), keys[0]);
}

TEST(BlockChain, TakesAnyNumberOfSegments) {
  std::set<PageKey> keys;
  std::vector<BlockSegment> segments;
  for (std::uint32_t i = 0; i < 40; ++i) {
    segments.push_back({i, 0, 1});
    keys.insert(block_page_key(nullptr, segments));
  }
  EXPECT_EQ(keys.size(), 40u);
}

TEST(PrivateKeys, DifferByRequestPageAndPriorAndFromBlockKeys) {
  const PageKey prior = block_page_key(nullptr, std::vector<BlockSegment>{{1, 0, 64}});
  std::set<PageKey> keys;
  for (RequestId request = 0; request < 20; ++request) {
    for (std::uint64_t page = 0; page < 20; ++page) {
      keys.insert(private_page_key(&prior, request, page));
      keys.insert(private_page_key(nullptr, request, page));
    }
  }
  EXPECT_EQ(keys.size(), 800u);
  for (const PageKey& key : keys) EXPECT_NE(key.words[2], 0u);
}

}  // namespace
}  // namespace kvtwin

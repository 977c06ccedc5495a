#include "kernels/page_pattern.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

namespace kvtwin {
namespace {

constexpr std::byte kUntouched{0x5A};
constexpr std::uint64_t kSeed = 0x0123456789ABCDEF;

// Returns a block made byte by byte, as page_pattern.hpp defines it.
std::vector<std::byte> plain_block(std::uint64_t seed, std::uint64_t bytes) {
  std::vector<std::byte> block(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) block[i] = static_cast<std::byte>(pattern_byte(seed, i));
  return block;
}

TEST(PagePattern, BytesAreTheWordsInLittleEndianOrder) {
  for (std::uint64_t i = 0; i < 64; ++i) {
    const std::uint32_t word = pattern_word(kSeed, static_cast<std::uint32_t>(i / 4));
    std::uint8_t bytes[4];
    std::memcpy(bytes, &word, sizeof bytes);
    EXPECT_EQ(pattern_byte(kSeed, i), bytes[i % 4]);
  }
}

// Every alignment of both ends and of the block itself: with rows of 6 bytes, a layer may begin at any address.
TEST(PagePattern, FillsExactlyWhatItIsAskedFor) {
  constexpr std::uint64_t kBytes = 45;
  const std::vector<std::byte> whole = plain_block(kSeed, kBytes);
  for (std::uint64_t shift = 0; shift < 4; ++shift) {
    for (std::uint64_t begin = 0; begin <= kBytes; ++begin) {
      for (std::uint64_t end = begin; end <= kBytes; ++end) {
        std::vector<std::byte> room(shift + kBytes, kUntouched);
        std::byte* const block = room.data() + shift;
        fill_pattern(block, kSeed, begin, end);
        for (std::uint64_t i = 0; i < kBytes; ++i) {
          ASSERT_EQ(block[i], i >= begin && i < end ? whole[i] : kUntouched)
              << "byte " << i << " of [" << begin << ", " << end << "), block shifted by " << shift;
        }
        ASSERT_EQ(check_pattern(block, kSeed, begin, end), end);
      }
    }
  }
}

TEST(PagePattern, PartsMakeTheWhole) {
  for (const std::uint64_t row : {1U, 2U, 3U, 5U, 6U, 7U, 10U, 16U, 70U, 255U}) {
    constexpr std::uint64_t kTokens = 17;
    const std::vector<std::byte> whole = plain_block(kSeed, kTokens * row);
    for (std::uint64_t cut = 0; cut <= kTokens; ++cut) {
      std::vector<std::byte> block(kTokens * row, kUntouched);
      fill_pattern(block.data(), kSeed, cut * row, kTokens * row);
      fill_pattern(block.data(), kSeed, 0, cut * row);
      ASSERT_EQ(block, whole) << "rows of " << row << " bytes, cut after " << cut;
    }
    std::vector<std::byte> by_token(kTokens * row, kUntouched);
    for (std::uint64_t token = 0; token < kTokens; ++token) {
      fill_pattern(by_token.data(), kSeed, token * row, (token + 1) * row);
    }
    ASSERT_EQ(by_token, whole) << "rows of " << row << " bytes, one by one";
  }
}

// Blocks that are long enough for every vector width, with every length of the rest.
TEST(PagePattern, WideBlocksAreTheSameWords) {
  for (std::uint64_t bytes = 0; bytes < 700; ++bytes) {
    std::vector<std::byte> block(bytes, kUntouched);
    fill_pattern(block.data(), kSeed, 0, bytes);
    ASSERT_EQ(block, plain_block(kSeed, bytes)) << bytes << " bytes";
    ASSERT_EQ(check_pattern(block.data(), kSeed, 0, bytes), bytes);
  }
}

TEST(PagePattern, EveryFlippedBitIsFoundWhereItIs) {
  for (const std::uint64_t bytes : {1U, 3U, 4U, 7U, 34U, 131U}) {
    std::vector<std::byte> block = plain_block(kSeed, bytes);
    for (std::uint64_t at = 0; at < bytes; ++at) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        block[at] ^= std::byte{1} << bit;
        ASSERT_EQ(check_pattern(block.data(), kSeed, 0, bytes), at) << bytes << " bytes";
        block[at] ^= std::byte{1} << bit;
      }
    }
  }
}

// For all begins and ends: bytes outside the range aren't checked, and the position of the first wrong byte inside it
// is returned.
TEST(PagePattern, ChecksExactlyWhatItIsAskedFor) {
  constexpr std::uint64_t kBytes = 41;
  std::vector<std::byte> block = plain_block(kSeed, kBytes);
  for (std::uint64_t at = 0; at < kBytes; ++at) {
    block[at] ^= std::byte{0x80};
    for (std::uint64_t begin = 0; begin <= kBytes; ++begin) {
      for (std::uint64_t end = begin; end <= kBytes; ++end) {
        ASSERT_EQ(check_pattern(block.data(), kSeed, begin, end), at >= begin && at < end ? at : end)
            << "byte " << at << " is wrong; asked for [" << begin << ", " << end << ")";
      }
    }
    block[at] ^= std::byte{0x80};
  }
  block[11] ^= std::byte{1};
  block[23] ^= std::byte{1};
  EXPECT_EQ(check_pattern(block.data(), kSeed, 0, kBytes), 11U);
  EXPECT_EQ(check_pattern(block.data(), kSeed, 12, kBytes), 23U);
}

// No page can be mistaken for another one: the seed depends on each word of the key, on its position, on the layer and
// on the plane.
TEST(PagePattern, SeedsTellBlocksApart) {
  std::set<std::uint64_t> seeds;
  std::size_t made = 0;
  const auto add = [&](std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d, std::uint32_t layer,
                       std::uint32_t plane) {
    const std::uint64_t key[4] = {a, b, c, d};
    seeds.insert(pattern_seed(key, layer, plane));
    ++made;
  };
  for (std::uint32_t layer = 0; layer < 8; ++layer) {
    for (std::uint32_t plane = 0; plane < 2; ++plane) {
      for (std::uint64_t word = 0; word < 3; ++word) {
        add(word, 7, 8, 9, layer, plane);
        add(7, word, 8, 9, layer, plane);
        add(7, 8, word, 9, layer, plane);
        add(7, 8, 9, word, layer, plane);
      }
      add(7, 7, 0, 0, layer, plane);
      add(0, 0, 7, 7, layer, plane);
    }
  }
  EXPECT_EQ(seeds.size(), made);
}

TEST(PagePattern, BlocksOfOtherSeedsDifferNearlyEverywhere) {
  constexpr std::uint64_t kWords = 256;
  for (std::uint32_t layer = 0; layer < 16; ++layer) {
    const std::uint64_t key[4] = {1, 2, 0, 0};
    const std::uint64_t a = pattern_seed(key, layer, 0), b = pattern_seed(key, layer, 1);
    std::uint64_t equal = 0;
    for (std::uint32_t i = 0; i < kWords; ++i) equal += pattern_word(a, i) == pattern_word(b, i) ? 1 : 0;
    EXPECT_LE(equal, 1U) << "layer " << layer;
  }
}

TEST(PagePattern, IsNeverThePoolsPoison) {
  // Memory that was never written holds 0xDB in every byte. It must not look like written data.
  const std::uint64_t key[4] = {1, 2, 0, 0};
  std::vector<std::byte> poison(64, std::byte{0xDB});
  for (std::uint32_t layer = 0; layer < 64; ++layer) {
    EXPECT_LT(check_pattern(poison.data(), pattern_seed(key, layer, 0), 0, poison.size()), 8U);
  }
}

}  // namespace
}  // namespace kvtwin

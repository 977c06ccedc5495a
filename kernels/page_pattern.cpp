#include "kernels/page_pattern.hpp"

#include <bit>
#include <cstring>

namespace kvtwin {
namespace {

static_assert(std::endian::native == std::endian::little, "words are stored as they are");

std::uint32_t load(const std::byte* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t check_bytes(const std::byte* block, std::uint64_t seed, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t i = begin; i < end; ++i) {
    if (static_cast<std::uint8_t>(block[i]) != pattern_byte(seed, i)) return i;
  }
  return end;
}

void fill_bytes(std::byte* block, std::uint64_t seed, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t i = begin; i < end; ++i) block[i] = static_cast<std::byte>(pattern_byte(seed, i));
}

// Compiles variants for wide vectors; integer arithmetic gives the same bytes in each. Not with sanitizers, because
// their runtimes start after the resolvers that select a variant.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define KV_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KV_WIDE
#endif

KV_WIDE void fill_words(std::byte* block, std::uint64_t seed, std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t i = first; i < last; ++i) {
    const std::uint32_t word = pattern_word(seed, static_cast<std::uint32_t>(i));
    std::memcpy(block + 4 * i, &word, sizeof word);
  }
}

// Returns whether all words are right. One pass without branches.
KV_WIDE bool words_match(const std::byte* block, std::uint64_t seed, std::uint64_t first, std::uint64_t last) {
  std::uint32_t wrong = 0;
  for (std::uint64_t i = first; i < last; ++i) {
    wrong |= load(block + 4 * i) ^ pattern_word(seed, static_cast<std::uint32_t>(i));
  }
  return wrong == 0;
}

// The whole words in [begin, end), as word numbers; none if first >= last.
struct Words {
  Words(std::uint64_t begin, std::uint64_t end) : first((begin + 3) / 4), last(end / 4) {}
  std::uint64_t first, last;
};

}  // namespace

void fill_pattern(std::byte* block, std::uint64_t seed, std::uint64_t begin, std::uint64_t end) {
  const Words words(begin, end);
  if (words.first >= words.last) return fill_bytes(block, seed, begin, end);
  fill_bytes(block, seed, begin, 4 * words.first);
  fill_words(block, seed, words.first, words.last);
  fill_bytes(block, seed, 4 * words.last, end);
}

std::uint64_t check_pattern(const std::byte* block, std::uint64_t seed, std::uint64_t begin, std::uint64_t end) {
  const Words words(begin, end);
  if (words.first >= words.last) return check_bytes(block, seed, begin, end);
  const bool right = words_match(block, seed, words.first, words.last) &&
                     check_bytes(block, seed, begin, 4 * words.first) == 4 * words.first &&
                     check_bytes(block, seed, 4 * words.last, end) == end;
  return right ? end : check_bytes(block, seed, begin, end);
}

}  // namespace kvtwin

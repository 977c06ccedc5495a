// The bytes of one memory tier in the adversarial world: slots of kPageBytes. A slot is poisoned, has the bytes of its
// page key, or is partly written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "policy/base/types.hpp"
#include "tests/adversary/adversarial_world.hpp"

namespace kvtwin {

// splitmix64: the only source of randomness in the world.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : state_(seed) {}
  static constexpr std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  std::uint64_t next() { return mix(state_ += 0x9E3779B97F4A7C15u); }
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : next() % bound; }
  bool in(std::uint64_t share, std::uint64_t whole) { return below(whole) < share; }

 private:
  std::uint64_t state_;
};

using PageImage = std::array<std::byte, kPageBytes>;

// Returns the correct bytes of a page.
inline PageImage image_of(const PageKey& key) {
  std::array<std::uint64_t, kPageBytes / 8> words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = Chance::mix(key.words[i % key.words.size()] + i * 0x9E3779B97F4A7C15u);
  }
  PageImage image;
  std::memcpy(image.data(), words.data(), kPageBytes);
  return image;
}

class PageArena {
 public:
  explicit PageArena(Pages pages) : bytes_(pages * kPageBytes), allocated_(pages) {
    for (SlotId slot = 0; slot < pages; ++slot) poison(slot);
  }

  bool contains(SlotId slot) const { return slot < allocated_.size(); }
  bool allocated(SlotId slot) const { return allocated_[slot] != 0; }
  void set_allocated(SlotId slot, bool allocated) { allocated_[slot] = allocated ? 1 : 0; }

  std::byte* at(SlotId slot) { return bytes_.data() + std::size_t{slot} * kPageBytes; }
  const std::byte* at(SlotId slot) const { return bytes_.data() + std::size_t{slot} * kPageBytes; }

  void poison(SlotId slot) { std::memset(at(slot), 0xDB, kPageBytes); }
  void scribble(SlotId slot, Chance& chance) {
    for (std::size_t i = 0; i < kPageBytes; i += 8) {
      const std::uint64_t word = chance.next();
      std::memcpy(at(slot) + i, &word, sizeof word);
    }
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::uint8_t> allocated_;
};

}  // namespace kvtwin

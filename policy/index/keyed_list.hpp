// Values with a page key each, by number, for tables of millions of pages. A value stands beside its key, so reading
// both is one cache miss. The words 2 and 3 of a key take memory only if some key of the list has them: those of block
// keys are 0 (policy/index/page_key.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/base/chunked_list.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

template <typename T>
class KeyedList {
 public:
  std::size_t size() const { return places_.size(); }
  // Appends T{}, with an empty key.
  void grow() {
    places_.grow();
    if (has_tails_) tails_.grow();
  }
  T& operator[](std::size_t at) { return places_[at].value; }
  const T& operator[](std::size_t at) const { return places_[at].value; }
  PageKey key(std::size_t at) const {
    const Half& head = places_[at].head;
    if (!has_tails_) return {{head[0], head[1], 0, 0}};
    return {{head[0], head[1], tails_[at][0], tails_[at][1]}};
  }
  void set_key(std::size_t at, const PageKey& key) {
    places_[at].head = {key.words[0], key.words[1]};
    if (!has_tails_) {
      if ((key.words[2] | key.words[3]) == 0) return;
      has_tails_ = true;
      while (tails_.size() < places_.size()) tails_.grow();
    }
    tails_[at] = {key.words[2], key.words[3]};
  }

 private:
  using Half = std::array<std::uint64_t, 2>;
  // A place of a cache line lies in one.
  struct alignas(sizeof(Half) + sizeof(T) == 64 ? 64 : alignof(Half)) Place {
    Half head{};
    T value{};
  };
  ChunkedList<Place> places_;
  ChunkedList<Half> tails_;
  bool has_tails_ = false;
};

}  // namespace kvtwin

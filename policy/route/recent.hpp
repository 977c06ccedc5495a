// The values of the keys that were put last, for routers that remember what they have sent. Two generations: if the
// young one is full, the older one is forgotten. So at least `generation` keys are remembered, and at most twice as
// many.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <utility>

namespace kvtwin {

template <typename Key, typename Value, typename Hash>
class Recent {
 public:
  explicit Recent(std::size_t generation) : generation_(generation) {}

  // Null: not remembered.
  const Value* find(const Key& key) const {
    for (const Values* values : {&young_, &old_}) {
      if (const auto found = values->find(key); found != values->end()) return &found->second;
    }
    return nullptr;
  }
  // The next `keys` keys belong to one generation.
  void reserve(std::size_t keys) {
    if (young_.size() + keys > generation_) old_ = std::exchange(young_, {});
  }
  void put(const Key& key, const Value& value) { young_[key] = value; }

 private:
  using Values = std::unordered_map<Key, Value, Hash>;  // looked up only, never iterated

  std::size_t generation_;
  Values young_, old_;
};

}  // namespace kvtwin

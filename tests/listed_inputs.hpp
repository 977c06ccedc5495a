// A source of inputs at given times, for tests of worlds.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "policy/seam/substrate.hpp"

namespace kvtwin::test {

class ListedInputs final : public InputSource {
 public:
  explicit ListedInputs(std::vector<Input> inputs) : inputs_(std::move(inputs)) {}
  bool next(Input& input) override {
    if (at_ == inputs_.size()) return false;
    input = inputs_[at_++];
    return true;
  }

 private:
  std::vector<Input> inputs_;
  std::size_t at_ = 0;
};

}  // namespace kvtwin::test

// Counts the keys of other programs' files that a reader does not read, so that the user sees their names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtwin {

// Memory: at most kMaxNames names of kMaxNameBytes bytes, whatever the file holds.
class PassedOver {
 public:
  static constexpr std::size_t kMaxNames = 24;
  static constexpr std::size_t kMaxNameBytes = 48;  // the rest of a longer name is cut off

  void add(std::string_view name, std::uint64_t times = 1);
  bool empty() const { return total_ == 0; }
  std::uint64_t total() const { return total_; }
  // Returns e.g. "foo (120), bar (3), others (7)", in order of the first appearance. Control characters become '?'.
  std::string text() const;

 private:
  std::vector<std::pair<std::string, std::uint64_t>> names_;
  std::uint64_t total_ = 0;
};

}  // namespace kvtwin

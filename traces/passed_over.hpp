// Counts by name what a reader of other programs' files does not read or use (keys, columns, rows, configurations), so
// that the user sees the names.
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
  static constexpr std::size_t kMaxNameBytes = 96;  // the rest of a longer name is cut off

  void add(std::string_view name, std::uint64_t times = 1);
  void add(const PassedOver& more);
  bool empty() const { return total_ == 0; }
  std::uint64_t total() const { return total_; }
  // Returns e.g. "foo (120), bar (3), others (7)", by first appearance. Control characters and broken UTF-8 become '?'.
  std::string text() const { return listed(true); }
  // The same without the counts of single names: "foo, bar, others (7)".
  std::string names() const { return listed(false); }

 private:
  std::string listed(bool counts) const;

  std::vector<std::pair<std::string, std::uint64_t>> names_;
  std::uint64_t total_ = 0;
};

// The entries of a list that are not used, by reason.
class LeftOut {
 public:
  void add(std::string_view reason, std::string_view entry);
  // Returns a sentence per reason, in order of the first appearance: "3 of 12 entries: REASON (a, b, c)". `all`: number
  // of all entries; `what`: their name in the plural.
  std::vector<std::string> sentences(std::uint64_t all, std::string_view what) const;

 private:
  std::vector<std::pair<std::string, PassedOver>> by_reason_;
};

}  // namespace kvtwin

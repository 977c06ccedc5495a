// Reads keys of one JSON object. A null value counts as absent, as in Hugging Face's files. Private to models/*.cpp.
// Errors: ModelError with file, key and a valid value.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json.hpp"

namespace kvtwin {

class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string file) : object_(object), file_(std::move(file)) {}

  const std::string& file() const { return file_; }
  const Json* find(std::string_view key) const;  // null when absent
  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::vector<std::string> keys() const;  // sorted
  // Refuses any key that is not among `known`.
  void only(const std::vector<std::string>& known) const;
  // Returns whether the value is neither null, false, 0 nor empty.
  bool matters(std::string_view key) const;

  // Integers up to 2^24. need: the key must be present and positive. first: the first of several spellings that is
  // present and not 0, because some configs write 0 for "none".
  std::uint32_t need(std::string_view key) const;
  std::uint32_t get(std::string_view key, std::uint32_t fallback) const;  // 0 allowed
  std::uint32_t first(std::initializer_list<std::string_view> keys, std::uint32_t fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;

  [[noreturn]] void fail(std::string_view key, std::string_view what_is_right) const;

 private:
  const Json& object_;
  std::string file_;
};

// Parses the text as a JSON object, with its keys sorted. Errors: ModelError with the position of the mistake, or with
// a key that an object has twice.
Json parse_object(std::string_view text, const std::string& file);

}  // namespace kvtwin

// Reads MessagePack value by value, out of the bytes of a message, and builds nothing. A length that is declared and
// not there costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvtwin {

class MessagePack {
 public:
  static constexpr std::size_t kMaxDepth = 16;  // of lists and maps in each other

  enum class Kind : std::uint8_t { nil, boolean, natural, negative, real, text, bytes, list, map, extension };

  // A value; of a list or a map only the head: its entries follow.
  struct Value {
    Kind kind = Kind::nil;
    std::uint64_t number = 0;  // natural; negative: the bits of the std::int64_t; boolean; list, map: number of entries
    double real = 0;
    std::span<const std::uint8_t> bytes;  // of text, bytes and extension

    bool is_integer() const { return kind == Kind::natural || kind == Kind::negative; }
    std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
  };

  // Requires: `bytes` outlives the reader and its values.
  explicit MessagePack(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  // Returns the next value; nothing if the bytes hold no whole value there. A list or map never declares more entries
  // than bytes are left.
  std::optional<Value> next();
  // Skips the next value with all its entries. Returns false if there is no whole value, or if it is deeper than
  // kMaxDepth. Cost: linear in the bytes, and no memory.
  bool skip();
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  bool take(std::size_t count, std::uint64_t& number);
  bool take_bytes(std::uint64_t count, Value& value);
  bool take_sized(Kind kind, std::size_t size_bytes, Value& value);
  bool take_entries(Kind kind, std::uint64_t count, Value& value);
  bool take_by_type(std::uint8_t type, Value& value);

  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

}  // namespace kvtwin

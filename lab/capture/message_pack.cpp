#include "lab/capture/message_pack.hpp"

#include <array>
#include <bit>

namespace kvtwin {
namespace {

// Bytes of a value whose type alone tells them, with that of the type; 0: of another value.
constexpr std::array<std::uint8_t, 256> kPlainBytes = [] {
  std::array<std::uint8_t, 256> bytes{};
  for (std::size_t type = 0; type < 256; ++type) bytes[type] = type < 0x80 || type >= 0xe0 ? 1 : 0;
  for (std::size_t type = 0xa0; type < 0xc0; ++type) bytes[type] = static_cast<std::uint8_t>(1 + (type & 0x1f));
  for (const std::size_t type : std::array<std::size_t, 3>{0xc0, 0xc2, 0xc3}) bytes[type] = 1;
  for (const auto& [type, more] : {std::array{0xca, 4},
                                   {0xcb, 8},
                                   {0xcc, 1},
                                   {0xcd, 2},
                                   {0xce, 4},
                                   {0xcf, 8},
                                   {0xd0, 1},
                                   {0xd1, 2},
                                   {0xd2, 4},
                                   {0xd3, 8}}) {
    bytes[static_cast<std::size_t>(type)] = static_cast<std::uint8_t>(more + 1);
  }
  return bytes;
}();

}  // namespace

std::optional<MessagePack::Value> MessagePack::next() {
  std::uint64_t type = 0;
  Value value;
  if (!take(1, type) || !take_by_type(static_cast<std::uint8_t>(type), value)) return std::nullopt;
  return value;
}

bool MessagePack::skip() {
  if (const std::size_t plain = at_end() ? 0 : kPlainBytes[bytes_[at_]]; plain != 0) {
    if (plain > bytes_.size() - at_) return false;
    at_ += plain;
    return true;
  }
  std::array<std::uint64_t, kMaxDepth> left{};  // values that are still to come, of each open list or map
  std::size_t depth = 0;
  while (true) {
    // Most values are tokens, in long lists.
    const std::uint8_t* const begin = bytes_.data();
    std::uint64_t more = depth == 0 ? 0 : left[depth - 1];
    std::size_t plain = 0;
    while (more > 0 && at_ < bytes_.size() && (plain = kPlainBytes[begin[at_]]) != 0) {
      if (plain > bytes_.size() - at_) return false;
      at_ += plain;
      --more;
    }
    if (depth > 0) left[depth - 1] = more;
    while (depth > 0 && left[depth - 1] == 0) {
      if (--depth == 0) return true;
    }
    if (depth > 0) --left[depth - 1];
    const std::optional<Value> value = next();
    if (!value) return false;
    if (value->kind == Kind::list || value->kind == Kind::map) {
      if (depth == kMaxDepth) return false;
      left[depth++] = value->kind == Kind::map ? 2 * value->number : value->number;
    }
    if (depth == 0) return true;
  }
}

// Takes a big-endian number of `count` bytes.
bool MessagePack::take(std::size_t count, std::uint64_t& number) {
  if (count > bytes_.size() - at_) return false;
  const std::uint8_t* const from = bytes_.data() + at_;
  at_ += count;
  number = 0;
  // Hashes have 8 bytes: compilers turn this loop into one move.
  if (count == 8) {
    for (std::size_t i = 0; i < 8; ++i) number |= static_cast<std::uint64_t>(from[i]) << (56 - 8 * i);
    return true;
  }
  for (std::size_t i = 0; i < count; ++i) number = number << 8 | from[i];
  return true;
}

bool MessagePack::take_bytes(std::uint64_t count, Value& value) {
  if (count > bytes_.size() - at_) return false;
  value.bytes = bytes_.subspan(at_, static_cast<std::size_t>(count));
  at_ += static_cast<std::size_t>(count);
  return true;
}

bool MessagePack::take_sized(Kind kind, std::size_t size_bytes, Value& value) {
  value.kind = kind;
  std::uint64_t count = 0;
  if (!take(size_bytes, count)) return false;
  return take_bytes(kind == Kind::extension ? count + 1 : count, value);  // an extension has a byte of its own
}

bool MessagePack::take_entries(Kind kind, std::uint64_t count, Value& value) {
  value.kind = kind;
  value.number = count;
  return count <= bytes_.size() - at_;  // an entry has at least a byte
}

// https://github.com/msgpack/msgpack/blob/master/spec.md
bool MessagePack::take_by_type(std::uint8_t type, Value& value) {
  if (type < 0x80 || type >= 0xe0) {
    value.kind = type < 0x80 ? Kind::natural : Kind::negative;
    value.number = static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int8_t>(type)));
    return true;
  }
  if (type < 0x90) return take_entries(Kind::map, type & 0x0F, value);
  if (type < 0xa0) return take_entries(Kind::list, type & 0x0F, value);
  if (type < 0xc0) {
    value.kind = Kind::text;
    return take_bytes(type & 0x1F, value);
  }
  std::uint64_t bits = 0;
  switch (type) {
    case 0xc0: return true;
    case 0xc2:
    case 0xc3:
      value.kind = Kind::boolean;
      value.number = type & 1;
      return true;
    case 0xc4:
    case 0xc5:
    case 0xc6: return take_sized(Kind::bytes, std::size_t{1} << (type - 0xc4), value);
    case 0xc7:
    case 0xc8:
    case 0xc9: return take_sized(Kind::extension, std::size_t{1} << (type - 0xc7), value);
    case 0xca:
      value.kind = Kind::real;
      if (!take(4, bits)) return false;
      value.real = static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
      return true;
    case 0xcb:
      value.kind = Kind::real;
      if (!take(8, bits)) return false;
      value.real = std::bit_cast<double>(bits);
      return true;
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf: value.kind = Kind::natural; return take(std::size_t{1} << (type - 0xcc), value.number);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3: {
      const std::size_t bytes = std::size_t{1} << (type - 0xd0);
      if (!take(bytes, bits)) return false;
      const auto unused = static_cast<unsigned>(64 - 8 * bytes);
      const std::int64_t number = static_cast<std::int64_t>(bits << unused) >> unused;
      value.kind = number < 0 ? Kind::negative : Kind::natural;
      value.number = static_cast<std::uint64_t>(number);
      return true;
    }
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8: value.kind = Kind::extension; return take_bytes((std::uint64_t{1} << (type - 0xd4)) + 1, value);
    case 0xd9:
    case 0xda:
    case 0xdb: return take_sized(Kind::text, std::size_t{1} << (type - 0xd9), value);
    case 0xdc:
    case 0xdd: return take(std::size_t{2} << (type - 0xdc), bits) && take_entries(Kind::list, bits, value);
    case 0xde:
    case 0xdf: return take(std::size_t{2} << (type - 0xde), bits) && take_entries(Kind::map, bits, value);
    default: return false;  // 0xc1 is never used
  }
}

}  // namespace kvtwin

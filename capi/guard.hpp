// What the functions of the C interface share: errors as values, texts, and the rule of struct_size.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kvtwin/base.h"

namespace kvtwin::capi {

// A wrong argument. The text is for the caller: what, and what would be right.
class BadArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void write_text(std::string_view from, char* to, std::size_t size) noexcept {
  if (to == nullptr || size == 0) return;
  const std::size_t length = std::min(from.size(), size - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

// Returns what `call` returns. An exception becomes a status, and its text goes to `error`.
template <class Call>
kvtwin_status guarded(kvtwin_error error, Call call) noexcept {
  try {
    return call();
  } catch (const BadArgument& bad) {
    write_text(bad.what(), error.text, error.size);
    return KVTWIN_BAD_ARGUMENT;
  } catch (const std::bad_alloc&) {
    write_text("not enough memory", error.text, error.size);
    return KVTWIN_NO_MEMORY;
  } catch (const std::exception& failure) {
    write_text(failure.what(), error.text, error.size);
    return KVTWIN_FAILED;
  } catch (...) {
    write_text("an error without a text", error.text, error.size);
    return KVTWIN_FAILED;
  }
}

// Whether the structure has this size in some version of the interface. A later version only appends fields; a size
// between two fields, or two versions, would cut what belongs together.
template <class Struct>
constexpr bool has_had_size(std::size_t size) {
  return size == sizeof(Struct);
}

// Copies a structure whose first member is struct_size. Fields that the caller's version lacks are 0.
// Errors: BadArgument if `from` is null, or if the size is no size that the structure has had.
template <class Struct>
Struct sized_copy(const Struct* from, const char* name) {
  if (from == nullptr) throw BadArgument(std::string(name) + " is NULL; pass a structure");
  std::uint32_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (!has_had_size<Struct>(size)) {
    throw BadArgument(std::string(name) + ".struct_size is " + std::to_string(size) + "; set it to sizeof(" + name +
                      "), which is " + std::to_string(sizeof(Struct)) + " in this version");
  }
  Struct copy{};
  std::memcpy(&copy, from, size);
  return copy;
}

// Element i of an array of such structures. The first one's struct_size is the distance of two elements.
// Requires: the size was checked by sized_element().
template <class Struct>
Struct* element_of(Struct* array, std::size_t i) {
  std::uint32_t size = 0;
  std::memcpy(&size, array, sizeof size);
  return reinterpret_cast<Struct*>(reinterpret_cast<char*>(array) + i * size);
}
// Copies element i. Errors: as sized_copy.
template <class Struct>
Struct sized_element(const Struct* array, std::size_t i, const char* name) {
  const Struct first = sized_copy(array, name);
  return i == 0 ? first : sized_copy(element_of(const_cast<Struct*>(array), i), name);
}

inline std::string_view text_or_empty(const char* text) {
  return text == nullptr ? std::string_view() : std::string_view(text);
}

}  // namespace kvtwin::capi

// A JSON value: null, true or false, a number, a text, a list or an object. An object keeps its keys in the order in
// which they were added. models/json.cpp alone includes the JSON library, which takes a compiler seconds per file.
//
//   Json row{{"name", "lru"}, {"hits", {1, 2, 3}}};  // a list of pairs that begin with a text is an object
//   row["share"] = 0.25;
//   const double share = row.at("share").get<double>();
//
// Errors: Json::out_of_range for a key or place that is absent, Json::type_error for a value of another kind.
// Thread: like a container of the standard library.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvtwin {

class Json;
struct JsonItem;

template <typename T>
concept JsonInteger = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char>;
template <typename T>
concept JsonScalar = std::same_as<T, bool> || JsonInteger<T> || std::floating_point<T>;
template <typename T>
concept JsonText = std::convertible_to<const T&, std::string_view>;
// A container whose elements are values, or a map from texts to values.
template <typename T>
concept JsonMap = JsonText<typename T::key_type> && requires {
  typename T::mapped_type;
};
template <typename T>
concept JsonList = !std::same_as<T, Json> && !std::same_as<T, std::initializer_list<JsonItem>> && !JsonText<T> &&
                   !JsonMap<T> && !std::convertible_to<const T&, std::string> &&  // a path is a list of paths
                   requires(const T& list) {
  list.begin() != list.end();
  *list.begin();
};

class Json {
 public:
  struct Member;
  struct exception : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  struct parse_error : exception {
    parse_error(const std::string& what, std::size_t at) : exception(what), byte(at) {}
    std::size_t byte;
  };
  struct type_error : exception {
    using exception::exception;
  };
  struct out_of_range : exception {
    using exception::exception;
  };

  // Walks the values of a list or an object; null and scalars have none.
  template <typename Value>
  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = Json;
    using reference = Value&;
    using pointer = Value*;
    using iterator_category = std::forward_iterator_tag;
    using MemberOf = std::conditional_t<std::is_const_v<Value>, const Member, Member>;

    Iterator() = default;
    explicit Iterator(Value* value) : value_(value) {}
    explicit Iterator(MemberOf* member) : member_(member) {}
    Value& operator*() const;
    Value* operator->() const { return &**this; }
    Iterator& operator++();
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    Value* value_ = nullptr;      // of a list
    MemberOf* member_ = nullptr;  // of an object
  };
  using value_type = Json;
  using iterator = Iterator<Json>;
  using const_iterator = Iterator<const Json>;

  // What dump() does with bytes that are not UTF-8: throw type_error, or write U+FFFD for them.
  enum class BadBytes : std::uint8_t { refuse, replace };

  Json() noexcept {}
  Json(std::nullptr_t) noexcept {}
  template <std::same_as<bool> T>
  Json(T value) noexcept : kind_(Kind::boolean) {
    held_.boolean = value;
  }
  template <JsonInteger T>
  Json(T value) noexcept : kind_(std::is_signed_v<T> ? Kind::integer : Kind::natural) {
    if constexpr (std::is_signed_v<T>) {
      held_.integer = value;
    } else {
      held_.natural = value;
    }
  }
  template <std::floating_point T>
  Json(T value) noexcept : kind_(Kind::real) {
    held_.real = static_cast<double>(value);
  }
  Json(std::string text);
  Json(std::string_view text);
  Json(const char* text);
  Json(std::initializer_list<JsonItem> items);
  template <JsonList T>
  Json(const T& list) : Json(array()) {
    for (const auto& element : list) push_back(Json(element));
  }
  template <JsonMap T>
  Json(const T& map) : Json(object()) {
    for (const auto& [key, value] : map) add(std::string(key), Json(value));
  }
  template <typename First, typename Second>
  Json(const std::pair<First, Second>& pair) : Json(array()) {
    push_back(Json(pair.first));
    push_back(Json(pair.second));
  }
  Json(const Json& other);
  Json(Json&& other) noexcept : kind_(other.kind_), held_(other.held_) { other.kind_ = Kind::null; }
  Json& operator=(Json other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(held_, other.held_);
    return *this;
  }
  ~Json() {
    if (kind_ >= Kind::text) destroy();
  }

  static Json array();
  static Json array(std::initializer_list<JsonItem> items);
  static Json object();
  // Of a key that an object has twice, the last value counts. Errors: parse_error; out_of_range for a number that no
  // double holds.
  static Json parse(std::string_view text);
  // Returns a value with is_discarded() for a text that is no JSON, or that is nested deeper than `max_depth`.
  static Json parse_or_discard(std::string_view text, std::size_t max_depth = SIZE_MAX);

  // `indent`: spaces per level; negative: all on one line.
  std::string dump(int indent = -1, BadBytes bad = BadBytes::refuse) const;
  // Sorts the keys of this object and of all objects in it.
  void sort_keys();

  bool is_null() const { return kind_ == Kind::null; }
  bool is_boolean() const { return kind_ == Kind::boolean; }
  bool is_number() const { return kind_ >= Kind::integer && kind_ <= Kind::real; }
  bool is_number_integer() const { return kind_ == Kind::integer || kind_ == Kind::natural; }
  bool is_number_unsigned() const { return kind_ == Kind::natural; }
  bool is_number_float() const { return kind_ == Kind::real; }
  bool is_string() const { return kind_ == Kind::text; }
  bool is_array() const { return kind_ == Kind::list; }
  bool is_object() const { return kind_ == Kind::object; }
  bool is_structured() const { return is_array() || is_object(); }
  bool is_primitive() const { return kind_ < Kind::list; }
  bool is_discarded() const { return kind_ == Kind::discarded; }

  // Numbers convert to each other; others do not. T: a number, bool, std::string, or a vector of such.
  template <typename T>
  T get() const {
    if constexpr (std::same_as<T, Json>) {
      return *this;
    } else if constexpr (std::same_as<T, bool>) {
      return boolean();
    } else if constexpr (std::floating_point<T>) {
      return static_cast<T>(real());
    } else if constexpr (std::signed_integral<T>) {
      return static_cast<T>(integer());
    } else if constexpr (std::unsigned_integral<T>) {
      return static_cast<T>(natural());
    } else if constexpr (std::same_as<T, std::string>) {
      return text();
    } else {
      T list;
      for (const Json& element : elements()) list.push_back(element.template get<typename T::value_type>());
      return list;
    }
  }
  template <typename T>
  requires JsonScalar<T> || std::same_as<T, std::string>
  operator T() const { return get<T>(); }
  const std::string& text() const;

  // A list.
  std::span<const Json> elements() const;
  Json& operator[](std::size_t place);
  const Json& operator[](std::size_t place) const { return at(place); }
  Json& at(std::size_t place);
  const Json& at(std::size_t place) const;
  void push_back(Json value);  // null becomes a list
  template <typename... T>
  Json& emplace_back(T&&... value) {
    push_back(Json(std::forward<T>(value)...));
    return back();
  }
  Json& front();
  const Json& front() const;
  Json& back();
  const Json& back() const;
  void erase(std::size_t place);
  void resize(std::size_t size);

  // An object. Of a value that is not const, operator[] adds an absent key; null becomes an object.
  std::span<Member> items();  // of another value: none
  std::span<const Member> items() const;
  Json& operator[](std::string_view key);
  const Json& operator[](std::string_view key) const { return at(key); }
  template <std::same_as<char> T>
  Json& operator[](const T* key) {
    return (*this)[std::string_view(key)];
  }
  template <std::same_as<char> T>
  const Json& operator[](const T* key) const {
    return at(std::string_view(key));
  }
  Json& at(std::string_view key);
  const Json& at(std::string_view key) const;
  iterator find(std::string_view key);
  const_iterator find(std::string_view key) const;
  bool contains(std::string_view key) const;
  std::size_t count(std::string_view key) const { return contains(key) ? 1 : 0; }
  Json value(std::string_view key, Json fallback) const;
  std::string value(std::string_view key, const char* fallback) const;
  template <typename T>
  requires JsonScalar<T> || std::same_as<T, std::string> T value(std::string_view key, T fallback)
  const {
    const Json* const found = member_or_null(key);
    return found == nullptr ? fallback : found->get<T>();
  }
  std::size_t erase(std::string_view key);
  template <std::same_as<char> T>
  std::size_t erase(const T* key) {
    return erase(std::string_view(key));
  }
  void update(const Json& other);  // sets all keys of `other`

  // The value at a path like "/tiers/0/name". find_path: null if there is none.
  const Json* find_path(std::string_view path) const;
  const Json& at_path(std::string_view path) const;

  iterator begin();
  iterator end();
  const_iterator begin() const;
  const_iterator end() const;
  std::size_t size() const;  // 0 of null, 1 of another value without elements
  bool empty() const { return size() == 0; }
  void clear();

  // Numbers are equal if their values are. Objects with the same members in another order differ.
  friend bool operator==(const Json& a, const Json& b);
  template <JsonScalar T>
  friend bool operator==(const Json& a, T b) {
    return a == Json(b);
  }
  // Numbers compare by their values, texts by their bytes; other values are unordered.
  friend std::partial_ordering operator<=>(const Json& a, const Json& b);
  template <JsonScalar T>
  friend std::partial_ordering operator<=>(const Json& a, T b) {
    return a <=> Json(b);
  }

 private:
  enum class Kind : std::uint8_t { null, boolean, integer, natural, real, discarded, text, list, object };
  union Held {
    bool boolean;
    std::int64_t integer;
    std::uint64_t natural;
    double real = 0;
    std::string* text;
    std::vector<Json>* list;
    std::vector<Member>* object;
  };
  class Reader;

  bool boolean() const;
  std::int64_t integer() const;
  std::uint64_t natural() const;
  double real() const;
  const Json* member_or_null(std::string_view key) const;
  std::vector<Json>& list() const;
  std::vector<Member>& members() const;
  void add(std::string key, Json value);
  const char* kind_name() const;
  [[noreturn]] void refuse(const char* needed) const;
  void write(std::string& to, int indent, int depth, BadBytes bad) const;
  void destroy();

  Kind kind_ = Kind::null;
  Held held_;
};

struct Json::Member {
  std::string key;
  Json value;
};

// An element of an initializer list, which are all const: `mutable` lets the value be moved out.
struct JsonItem {
  template <typename T>
  requires(!std::same_as<T, JsonItem> && std::convertible_to<T, Json>) JsonItem(T from) : value(std::move(from)) {}
  JsonItem(std::initializer_list<JsonItem> items) : value(items) {}

  mutable Json value;
};

template <typename Value>
Value& Json::Iterator<Value>::operator*() const {
  return member_ != nullptr ? member_->value : *value_;
}
template <typename Value>
Json::Iterator<Value>& Json::Iterator<Value>::operator++() {
  if (member_ != nullptr) {
    ++member_;
  } else {
    ++value_;
  }
  return *this;
}

std::ostream& operator<<(std::ostream& out, const Json& json);

// What a text of JSON has that its parsed value does not show, up to the first error of the text.
struct JsonShape {
  std::string repeated;   // the first key that an object has twice; empty: none
  std::size_t depth = 0;  // of the deepest object or list; 1: the outermost
};
JsonShape json_shape(std::string_view text);
// Returns the parsed text, discarded if it is no JSON. `repeated`: the first key that an object has twice; unchanged if
// there is none. For files of other programs, where such a key is no valid input.
Json parse_json(std::string_view text, std::string& repeated);

}  // namespace kvtwin

#include "models/json.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>
#include <set>

namespace kvtwin {
namespace {

// Of the SAX interface, whose numbers are those of this type.
using Parsed = nlohmann::json;
using ParserError = nlohmann::detail::exception;

// Sets the last value of each key at its first place.
void drop_repeated_keys(std::vector<Json::Member>& members) {
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return std::string_view(members[i].key); });
  std::vector<bool> dropped(members.size());
  bool any = false;
  for (std::size_t i = order.size(); i-- > 1;) {
    if (members[order[i]].key != members[order[i - 1]].key) continue;
    members[order[i - 1]].value = std::move(members[order[i]].value);
    dropped[order[i]] = any = true;
  }
  if (!any) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (dropped[i]) continue;
    if (i != kept) members[kept] = std::move(members[i]);
    ++kept;
  }
  members.erase(members.begin() + static_cast<std::ptrdiff_t>(kept), members.end());
}

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

void write_text(std::string& to, const std::string& text, Json::BadBytes bad) {
  if (is_plain(text)) {
    to.append(1, '"').append(text).append(1, '"');
    return;
  }
  using Handler = Parsed::error_handler_t;
  try {
    to += Parsed(text).dump(-1, ' ', false, bad == Json::BadBytes::replace ? Handler::replace : Handler::strict);
  } catch (const ParserError&) {
    throw Json::type_error("a text has bytes that are not UTF-8");
  }
}

template <typename Number>
void write_number(std::string& to, Number number) {
  char text[32];
  to.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

// Reads a shape. A callback of Parsed::parse() could do it too, but goes through the whole outer object after each
// inner one: a minute for a config of 3 MB.
class ShapeReader final : public nlohmann::json_sax<Parsed> {
 public:
  const JsonShape& shape() const { return shape_; }

  bool start_object(std::size_t /*elements*/) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*elements*/) override { return open(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (!open_.back().insert(name).second && shape_.repeated.empty()) shape_.repeated = name;
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(std::int64_t /*value*/) override { return true; }
  bool number_unsigned(std::uint64_t /*value*/) override { return true; }
  bool number_float(double /*value*/, const std::string& /*text*/) override { return true; }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(Parsed::binary_t& /*value*/) override { return true; }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/, const ParserError& /*error*/) override {
    return false;
  }

 private:
  bool open() {
    open_.emplace_back();
    shape_.depth = std::max(shape_.depth, open_.size());
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonShape shape_;
  std::vector<std::set<std::string>> open_;  // the keys of each open object; a list has none
};

}  // namespace

// Builds a value. A list or object that is open is the last of its parent, so its address holds until it is closed.
class Json::Reader final : public nlohmann::json_sax<Parsed> {
 public:
  explicit Reader(std::size_t max_depth) : max_depth_(max_depth) {}

  Json take() { return std::move(root_); }
  // Errors: of the text, as of Json::parse().
  [[noreturn]] void fail() const {
    constexpr int kNumberTooLarge = 406;
    if (error_id_ == kNumberTooLarge) throw out_of_range(error_);
    throw Json::parse_error(error_, at_);
  }

  bool start_object(std::size_t /*elements*/) override { return open(Json::object()); }
  bool end_object() override {
    if (open_.back()->members().size() > 1) drop_repeated_keys(open_.back()->members());
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t /*elements*/) override { return open(Json::array()); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool key(std::string& name) override {
    open_.back()->add(std::move(name), {});
    return true;
  }
  bool null() override { return put({}); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string& /*text*/) override { return put(value); }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(Parsed::binary_t& /*value*/) override { return false; }  // a text has none
  bool parse_error(std::size_t at, const std::string& /*token*/, const ParserError& error) override {
    at_ = at;
    error_id_ = error.id;
    error_ = error.what();
    return false;
  }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_object()) return parent.members().back().value = std::move(value);
    parent.list().push_back(std::move(value));
    return parent.list().back();
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= max_depth_) return false;
    open_.push_back(&place(std::move(value)));
    return true;
  }

  std::size_t max_depth_;
  Json root_;
  std::vector<Json*> open_;
  std::size_t at_ = 0;
  int error_id_ = 0;
  std::string error_;
};

Json::Json(std::string text) : kind_(Kind::text) { held_.text = new std::string(std::move(text)); }
Json::Json(std::string_view text) : Json(std::string(text)) {}
Json::Json(const char* text) : Json(std::string(text)) {}

Json::Json(std::initializer_list<JsonItem> items) {
  const bool is_map = std::ranges::all_of(items, [](const JsonItem& item) {
    return item.value.is_array() && item.value.size() == 2 && item.value[0].is_string();
  });
  if (!is_map) {
    *this = array(items);
    return;
  }
  *this = object();
  members().reserve(items.size());
  for (const JsonItem& item : items) {
    std::vector<Json>& pair = item.value.list();
    // The first value of a key counts, as in a map of the standard library.
    if (!contains(pair[0].text())) add(std::move(*pair[0].held_.text), std::move(pair[1]));
  }
}

Json::Json(const Json& other) : kind_(other.kind_), held_(other.held_) {
  if (kind_ == Kind::text) held_.text = new std::string(*other.held_.text);
  if (kind_ == Kind::list) held_.list = new std::vector<Json>(*other.held_.list);
  if (kind_ == Kind::object) held_.object = new std::vector<Member>(*other.held_.object);
}

// Without calls of itself for values in each other: the text of another program may be nested a million times.
void Json::destroy() {
  std::vector<Json> rest;
  const auto take_inner = [&rest](Json& outer) {
    const auto take = [&rest](Json& inner) {
      if (inner.is_structured() && !inner.empty()) rest.push_back(std::move(inner));
    };
    if (outer.is_array()) std::ranges::for_each(*outer.held_.list, take);
    if (outer.is_object()) std::ranges::for_each(*outer.held_.object, take, &Member::value);
  };
  take_inner(*this);
  while (!rest.empty()) {
    Json inner = std::move(rest.back());
    rest.pop_back();
    take_inner(inner);
  }
  if (kind_ == Kind::text) delete held_.text;
  if (kind_ == Kind::list) delete held_.list;
  if (kind_ == Kind::object) delete held_.object;
  kind_ = Kind::null;
}

Json Json::array() {
  Json json;
  json.held_.list = new std::vector<Json>;
  json.kind_ = Kind::list;
  return json;
}

Json Json::array(std::initializer_list<JsonItem> items) {
  Json json = array();
  json.held_.list->reserve(items.size());
  for (const JsonItem& item : items) json.held_.list->push_back(std::move(item.value));
  return json;
}

Json Json::object() {
  Json json;
  json.held_.object = new std::vector<Member>;
  json.kind_ = Kind::object;
  return json;
}

Json Json::parse(std::string_view text) {
  Reader reader(SIZE_MAX);
  if (!Parsed::sax_parse(text, &reader)) reader.fail();
  return reader.take();
}

Json Json::parse_or_discard(std::string_view text, std::size_t max_depth) {
  Reader reader(max_depth);
  Json json;
  if (Parsed::sax_parse(text, &reader)) {
    json = reader.take();
  } else {
    json.kind_ = Kind::discarded;
  }
  return json;
}

std::string Json::dump(int indent, BadBytes bad) const {
  std::string text;
  write(text, indent, 0, bad);
  return text;
}

void Json::write(std::string& to, int indent, int depth, BadBytes bad) const {
  const auto line_at = [&to, indent](int level) {
    if (indent >= 0) to.append(1, '\n').append(static_cast<std::size_t>(indent * level), ' ');
  };
  switch (kind_) {
    case Kind::null: to += "null"; return;
    case Kind::boolean: to += held_.boolean ? "true" : "false"; return;
    case Kind::integer: write_number(to, held_.integer); return;
    case Kind::natural: write_number(to, held_.natural); return;
    case Kind::real: to += Parsed(held_.real).dump(); return;
    case Kind::discarded: to += "<discarded>"; return;
    case Kind::text: write_text(to, *held_.text, bad); return;
    case Kind::list:
      to += '[';
      for (const Json& element : *held_.list) {
        if (&element != held_.list->data()) to += ',';
        line_at(depth + 1);
        element.write(to, indent, depth + 1, bad);
      }
      if (!held_.list->empty()) line_at(depth);
      to += ']';
      return;
    case Kind::object:
      to += '{';
      for (const Member& member : *held_.object) {
        if (&member != held_.object->data()) to += ',';
        line_at(depth + 1);
        write_text(to, member.key, bad);
        to += indent >= 0 ? ": " : ":";
        member.value.write(to, indent, depth + 1, bad);
      }
      if (!held_.object->empty()) line_at(depth);
      to += '}';
      return;
  }
}

void Json::sort_keys() {
  std::vector<Json*> rest{this};
  while (!rest.empty()) {
    Json& json = *rest.back();
    rest.pop_back();
    if (json.is_object()) std::ranges::sort(json.members(), {}, &Member::key);
    for (Json& inner : json) {
      if (inner.is_structured()) rest.push_back(&inner);
    }
  }
}

const char* Json::kind_name() const {
  switch (kind_) {
    case Kind::null: return "null";
    case Kind::boolean: return "true or false";
    case Kind::integer:
    case Kind::natural:
    case Kind::real: return "a number";
    case Kind::discarded: return "no JSON";
    case Kind::text: return "a text";
    case Kind::list: return "a list";
    case Kind::object: return "an object";
  }
  return "";
}

void Json::refuse(const char* needed) const {
  throw type_error(std::string("a value is ") + kind_name() + "; it must be " + needed);
}

bool Json::boolean() const {
  if (kind_ != Kind::boolean) refuse("true or false");
  return held_.boolean;
}

std::int64_t Json::integer() const {
  if (kind_ == Kind::natural) return static_cast<std::int64_t>(held_.natural);
  if (kind_ == Kind::real) return static_cast<std::int64_t>(held_.real);
  if (kind_ != Kind::integer) refuse("a number");
  return held_.integer;
}

std::uint64_t Json::natural() const {
  if (kind_ == Kind::integer) return static_cast<std::uint64_t>(held_.integer);
  if (kind_ == Kind::real) return static_cast<std::uint64_t>(held_.real);
  if (kind_ != Kind::natural) refuse("a number");
  return held_.natural;
}

double Json::real() const {
  if (kind_ == Kind::integer) return static_cast<double>(held_.integer);
  if (kind_ == Kind::natural) return static_cast<double>(held_.natural);
  if (kind_ != Kind::real) refuse("a number");
  return held_.real;
}

const std::string& Json::text() const {
  if (kind_ != Kind::text) refuse("a text");
  return *held_.text;
}

std::vector<Json>& Json::list() const {
  if (kind_ != Kind::list) refuse("a list");
  return *held_.list;
}

std::vector<Json::Member>& Json::members() const {
  if (kind_ != Kind::object) refuse("an object");
  return *held_.object;
}

std::span<const Json> Json::elements() const { return list(); }
Json& Json::operator[](std::size_t place) { return at(place); }
Json& Json::at(std::size_t place) { return const_cast<Json&>(std::as_const(*this).at(place)); }
const Json& Json::at(std::size_t place) const {
  if (place >= list().size()) {
    throw out_of_range("a list has no place " + std::to_string(place) + ", only " + std::to_string(list().size()));
  }
  return list()[place];
}

void Json::push_back(Json value) {
  if (is_null()) *this = array();
  list().push_back(std::move(value));
}

Json& Json::front() { return at(std::size_t{0}); }
const Json& Json::front() const { return at(std::size_t{0}); }
Json& Json::back() { return at(list().size() - 1); }
const Json& Json::back() const { return at(list().size() - 1); }

void Json::erase(std::size_t place) {
  at(place);
  list().erase(list().begin() + static_cast<std::ptrdiff_t>(place));
}

void Json::resize(std::size_t size) { list().resize(size); }

std::span<Json::Member> Json::items() {
  if (is_object()) return *held_.object;
  return {};
}

std::span<const Json::Member> Json::items() const {
  if (is_object()) return *held_.object;
  return {};
}

const Json* Json::member_or_null(std::string_view key) const {
  const auto found = std::ranges::find(members(), key, &Member::key);
  return found == members().end() ? nullptr : &found->value;
}

void Json::add(std::string key, Json value) { members().push_back({std::move(key), std::move(value)}); }

Json& Json::operator[](std::string_view key) {
  if (is_null()) *this = object();
  if (const Json* const found = member_or_null(key)) return const_cast<Json&>(*found);
  add(std::string(key), {});
  return members().back().value;
}

Json& Json::at(std::string_view key) { return const_cast<Json&>(std::as_const(*this).at(key)); }
const Json& Json::at(std::string_view key) const {
  const Json* const found = member_or_null(key);
  if (found == nullptr) throw out_of_range("key \"" + std::string(key) + "\" is missing");
  return *found;
}

Json::iterator Json::find(std::string_view key) {
  if (!is_object()) return end();
  const auto found = std::ranges::find(members(), key, &Member::key);
  return iterator(members().data() + (found - members().begin()));
}

Json::const_iterator Json::find(std::string_view key) const {
  if (!is_object()) return end();
  const auto found = std::ranges::find(members(), key, &Member::key);
  return const_iterator(members().data() + (found - members().begin()));
}

bool Json::contains(std::string_view key) const { return is_object() && member_or_null(key) != nullptr; }

Json Json::value(std::string_view key, Json fallback) const {
  const Json* const found = member_or_null(key);
  return found == nullptr ? std::move(fallback) : *found;
}

std::string Json::value(std::string_view key, const char* fallback) const { return value(key, std::string(fallback)); }

std::size_t Json::erase(std::string_view key) {
  return std::erase_if(members(), [&](const Member& member) { return member.key == key; });
}

void Json::update(const Json& other) {
  if (is_null()) *this = object();
  for (const auto& [key, value] : other.members()) (*this)[key] = value;
}

const Json& Json::at_path(std::string_view path) const {
  const Json* const found = find_path(path);
  if (found == nullptr) throw out_of_range("path \"" + std::string(path) + "\" is missing");
  return *found;
}

const Json* Json::find_path(std::string_view path) const {
  const Json* json = this;
  while (!path.empty()) {
    path.remove_prefix(1);  // the slash
    const std::string_view step = path.substr(0, path.find('/'));
    path.remove_prefix(step.size());
    if (json->is_object()) {
      json = json->member_or_null(step);
    } else if (json->is_array()) {
      std::size_t place = 0;
      const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), place);
      const bool is_place = error == std::errc() && end == step.data() + step.size() && place < json->list().size();
      json = is_place ? &json->list()[place] : nullptr;
    } else {
      json = nullptr;
    }
    if (json == nullptr) return nullptr;
  }
  return json;
}

Json::iterator Json::begin() {
  if (is_array()) return iterator(held_.list->data());
  if (is_object()) return iterator(held_.object->data());
  return {};
}

Json::iterator Json::end() {
  if (is_array()) return iterator(held_.list->data() + held_.list->size());
  if (is_object()) return iterator(held_.object->data() + held_.object->size());
  return {};
}

Json::const_iterator Json::begin() const {
  if (is_array()) return const_iterator(held_.list->data());
  if (is_object()) return const_iterator(held_.object->data());
  return {};
}

Json::const_iterator Json::end() const {
  if (is_array()) return const_iterator(held_.list->data() + held_.list->size());
  if (is_object()) return const_iterator(held_.object->data() + held_.object->size());
  return {};
}

std::size_t Json::size() const {
  if (is_array()) return held_.list->size();
  if (is_object()) return held_.object->size();
  return is_null() ? 0 : 1;
}

void Json::clear() {
  if (is_array()) {
    held_.list->clear();
  } else if (is_object()) {
    held_.object->clear();
  } else {
    *this = Json();
  }
}

bool operator==(const Json& a, const Json& b) {
  using Kind = Json::Kind;
  if (a.is_number() && b.is_number()) return (a <=> b) == 0;
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case Kind::boolean: return a.held_.boolean == b.held_.boolean;
    case Kind::text: return *a.held_.text == *b.held_.text;
    case Kind::list: return *a.held_.list == *b.held_.list;
    case Kind::object:
      return std::ranges::equal(*a.held_.object, *b.held_.object, [](const Json::Member& x, const Json::Member& y) {
        return x.key == y.key && x.value == y.value;
      });
    case Kind::discarded: return false;
    default: return true;  // null
  }
}

std::partial_ordering operator<=>(const Json& a, const Json& b) {
  if (a.is_string() && b.is_string()) return a.text() <=> b.text();
  if (!a.is_number() || !b.is_number()) return std::partial_ordering::unordered;
  if (a.is_number_float() || b.is_number_float()) return a.real() <=> b.real();
  const bool below_a = a.integer() < 0 && !a.is_number_unsigned(), below_b = b.integer() < 0 && !b.is_number_unsigned();
  if (below_a || below_b) return below_a && below_b ? a.integer() <=> b.integer() : below_b <=> below_a;
  return a.natural() <=> b.natural();
}

std::ostream& operator<<(std::ostream& out, const Json& json) { return out << json.dump(); }

JsonShape json_shape(std::string_view text) {
  ShapeReader reader;
  Parsed::sax_parse(text, &reader);
  return reader.shape();
}

Json parse_json(std::string_view text, std::string& repeated) {
  if (JsonShape shape = json_shape(text); !shape.repeated.empty()) repeated = std::move(shape.repeated);
  return Json::parse_or_discard(text);
}

}  // namespace kvtwin

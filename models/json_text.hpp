// Parses JSON that other programs wrote. A key that one object has twice is no valid input: nlohmann::json would keep
// the last value and say nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtwin {

// What a text of JSON has that its parsed value does not show, up to the first error of the text.
struct JsonShape {
  std::string repeated;   // the first key that an object has twice; empty: none
  std::size_t depth = 0;  // of the deepest object or list; 1: the outermost
};

// Reads a shape, as the handler of Json::sax_parse(). A callback of Json::parse() could do it too, but nlohmann::json
// then goes through the whole outer object after each inner one: a minute for a config of 3 MB.
template <typename Json>
class JsonShapeReader : public nlohmann::json_sax<Json> {
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
  bool number_integer(typename Json::number_integer_t /*value*/) override { return true; }
  bool number_unsigned(typename Json::number_unsigned_t /*value*/) override { return true; }
  bool number_float(typename Json::number_float_t /*value*/, const std::string& /*text*/) override { return true; }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(typename Json::binary_t& /*value*/) override { return true; }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
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

template <typename Json>
JsonShape json_shape(std::string_view text) {
  JsonShapeReader<Json> reader;
  Json::sax_parse(text, &reader);
  return reader.shape();
}

// Returns the parsed text, discarded if it is no JSON, like Json::parse(text, nullptr, false). `repeated`: the first
// key that an object has twice; unchanged if there is none.
template <typename Json>
Json parse_json(std::string_view text, std::string& repeated) {
  if (JsonShape shape = json_shape<Json>(text); !shape.repeated.empty()) repeated = std::move(shape.repeated);
  return Json::parse(text, nullptr, false);
}

}  // namespace kvtwin

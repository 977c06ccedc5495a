#include "models/config_reader.hpp"

#include <algorithm>

#include "models/error.hpp"
#include "models/json.hpp"
#include "models/names.hpp"

namespace kvtwin {

const Json* ConfigReader::find(std::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

void ConfigReader::only(const std::vector<std::string>& known) const {
  for (const std::string& key : keys()) {
    if (std::ranges::find(known, key) == known.end()) throw ModelError(file_ + ": " + unknown_name("key", key, known));
  }
}

bool ConfigReader::matters(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && *value != false && *value != 0 && !value->empty();
}

void ConfigReader::fail(std::string_view key, std::string_view what_is_right) const {
  const Json* value = find(key);
  std::string sentence = file_ + ": key \"" + std::string(key) + "\" ";
  if (value == nullptr) {
    sentence += "is missing";
  } else if (value->is_structured()) {  // not printed, because it may be long or deep
    sentence += value->is_array() ? "is a list" : "is an object";
  } else {
    sentence += "is " + value->dump().substr(0, 60);
  }
  throw ModelError(sentence + "; it must be " + std::string(what_is_right) + ".");
}

std::uint32_t ConfigReader::get(std::string_view key, std::uint32_t fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  constexpr std::int64_t kLimit = std::int64_t{1} << 24;
  if (!value->is_number_integer()) fail(key, "an integer");
  // A number above 2^63 reads as unsigned; as signed it would wrap.
  if (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(kLimit)) {
    fail(key, "at most 2^24");
  }
  const auto number = value->get<std::int64_t>();
  if (number < 0 || number > kLimit) fail(key, "an integer of at least 0 and at most 2^24");
  return static_cast<std::uint32_t>(number);
}

std::uint32_t ConfigReader::need(std::string_view key) const {
  const std::uint32_t value = get(key, 0);
  if (value == 0) fail(key, "a positive integer");
  return value;
}

std::uint32_t ConfigReader::first(std::initializer_list<std::string_view> keys, std::uint32_t fallback) const {
  for (std::string_view key : keys) {
    if (const std::uint32_t value = get(key, 0); value != 0) return value;
  }
  return fallback;
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

namespace {

// Python writes Infinity and NaN, which JSON does not have. They become empty texts, which no key takes for a number.
std::string without_python_numbers(std::string text) {
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      for (std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (text.compare(i, word.size(), word) != 0) continue;
        text.replace(i, word.size(), std::string(word.size() - 2, ' ').insert(0, "\"\""));
        i += word.size() - 1;
        break;
      }
    }
  }
  return text;
}

}  // namespace

Json parse_object(std::string_view text, const std::string& file) {
  try {
    const std::string json = without_python_numbers(std::string(text));
    Json object = Json::parse(json);
    object.sort_keys();
    if (const std::string repeated = json_shape(json).repeated; !repeated.empty()) {
      throw ModelError(file + ": key \"" + repeated + "\" is given twice in one object; it must be given once.");
    }
    if (!object.is_object()) throw ModelError(file + ": this is no JSON object; it must be one, { ... }.");
    return object;
  } catch (const Json::parse_error& error) {
    throw ModelError(file + ": this is no valid JSON near byte " + std::to_string(error.byte) +
                     "; it must be one JSON object.");
  } catch (const Json::exception&) {
    throw ModelError(file + ": this holds a number beyond all bounds; it must be one JSON object.");
  }
}

}  // namespace kvtwin

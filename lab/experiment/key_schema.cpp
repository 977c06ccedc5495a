#include "lab/experiment/key_schema.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "lab/experiment/keys.hpp"

namespace kvtwin {
namespace {

Json fallback_of(const KeyValue& value) {
  return std::visit([](const auto& one) { return Json(one); }, value);
}

Json number_schema(const ExperimentKey& key, const char* type) {
  Json number{{"type", type}};
  number["minimum"] = key.min_nonzero > 0 ? 0 : key.min;
  if (key.max < kMaxKeyValue) number["maximum"] = key.max;
  return number;
}

Json key_schema(const ExperimentKey& key) {
  Json schema;
  if (std::holds_alternative<bool>(key.fallback)) {
    schema["type"] = "boolean";
  } else if (!std::holds_alternative<std::string>(key.fallback)) {
    const bool whole = std::holds_alternative<std::int64_t>(key.fallback);
    schema["anyOf"] = {number_schema(key, whole ? "integer" : "number"), {{"type", "string"}}};
  } else if (key.policy || key.is_list) {  // a policy may have parameters, and be a table
    schema["type"] = {"string", "object", "array"};
  } else if (!key.choices.empty()) {
    schema["enum"] = Json::array();
    for (const std::string_view choice : key.choices) schema["enum"].push_back(choice);
  } else {
    schema["type"] = "string";
  }
  schema["description"] = std::string(key.help) + " (" + key.range() + ")";
  schema["default"] = fallback_of(key.fallback);
  return schema;
}

// Returns the properties of the table that has the key, and makes the tables on the way.
Json& properties_of(Json& schema, std::string_view& key) {
  Json* at = &schema["properties"];
  for (std::size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.')) {
    Json& table = (*at)[std::string(key.substr(0, dot))];
    if (table.is_null()) table = {{"type", "object"}, {"additionalProperties", false}};
    if (!table.contains("properties")) table["properties"] = Json::object();
    at = &table["properties"];
    key.remove_prefix(dot + 1);
  }
  return *at;
}

}  // namespace

Json experiment_schema() {
  Json schema{{"$schema", "http://json-schema.org/draft-07/schema#"},
              {"title", "kvtwin experiment"},
              {"type", "object"},
              {"additionalProperties", false},
              {"properties", Json::object()}};
  const auto add = [&](const ExperimentKey& key, bool deprecated) {
    std::string_view name = key.name;
    Json& properties = properties_of(schema, name);
    Json& entry = properties[std::string(name)];
    if (!entry.is_null()) return;  // the table of its parameters
    entry = key_schema(key);
    if (deprecated) entry["deprecated"] = true;
  };
  for (const KeyTable& table : key_tables()) {
    for (const ExperimentKey& key : table.keys) add(key, false);
  }
  for (const ExperimentKey& key : experiment_keys()) add(key, false);
  for (const KeyTable& table : key_tables()) {  // also a text, or a list of texts
    std::string_view name = table.name;
    Json& properties = properties_of(schema, name);
    Json& entry = properties[std::string(name)];
    entry = {{"anyOf", {entry, {{"type", {"string", "array"}}}}}};
  }
  for (const EarlierKey& earlier : earlier_keys()) add(earlier.key, true);
  return schema;
}

}  // namespace kvtwin

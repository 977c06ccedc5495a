#include "lab/experiment/experiment.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <span>
#include <sstream>

#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/names.hpp"
#include "lab/toml_text.hpp"
#include "lab/units.hpp"
#include "models/names.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

const char* type_name(const KeyValue& value) {
  static constexpr std::array kNames{"a string", "an integer", "a number", "true or false"};
  static_assert(kNames.size() == std::variant_size_v<KeyValue>);
  return kNames[value.index()];
}

std::string shown(const KeyValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    std::ostringstream out;
    out << toml::value<std::string>(*text);
    return out.str();
  }
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  std::ostringstream out;
  out << toml::value<double>(std::get<double>(value));
  return out.str();
}

// Returns whether the value can be written to TOML and read back. Text that is not UTF-8, for example a file name,
// cannot.
bool can_be_written(const KeyValue& value) {
  if (!std::holds_alternative<std::string>(value)) return true;
  try {
    const toml::table parsed = toml::parse("value = " + shown(value));
    return parsed["value"].value<std::string>() == std::get<std::string>(value);
  } catch (const toml::parse_error&) {
    return false;
  }
}

const ExperimentKey& find_key(std::string_view name, const std::string& where) {
  for (const ExperimentKey& key : experiment_keys()) {
    if (key.name == name) return key;
  }
  std::vector<std::string> names;
  for (const ExperimentKey& key : experiment_keys()) names.emplace_back(key.name);
  const std::string nearest = nearest_name(name, names);
  std::string sentence = where + ": unknown key \"" + std::string(name) + "\"";
  if (!nearest.empty()) sentence += "; did you mean \"" + nearest + "\"?";
  throw InputError(sentence + (nearest.empty() ? "; " : " ") + "`kvtwin simulate --help-keys` lists all keys");
}

KeyValue to_value(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  throw InputError(where + ": must be a string, a number or true/false");
}

// A key of type double takes integers too, and a key of a number takes a text such as "64GiB".
KeyValue as_type_of(const ExperimentKey& key, KeyValue value, const std::string& where) {
  const bool whole = std::holds_alternative<std::int64_t>(key.fallback);
  const bool is_number = whole || std::holds_alternative<double>(key.fallback);
  const auto* const text = std::get_if<std::string>(&value);
  if (is_number && text != nullptr && has_unit(*text)) {
    const double number = number_in(unit_named(key.name), *text, where);
    if (!whole) return number;
    if (number == std::floor(number) && std::abs(number) <= kMaxKeyValue) return static_cast<std::int64_t>(number);
    throw InputError(where + " is " + *text + ", which is " + plain_number(number) + "; it must be a whole number (" +
                     std::string(key.help) + ")");
  }
  if (std::holds_alternative<double>(key.fallback) && std::holds_alternative<std::int64_t>(value)) {
    return static_cast<double>(std::get<std::int64_t>(value));
  }
  return value;
}

// Reads the value of a key; text that is no TOML literal stays a string.
KeyValue read_value(const ExperimentKey& key, const std::string& text, const std::string& where) {
  if (!std::holds_alternative<std::string>(key.fallback)) {
    try {
      const toml::table parsed = toml::parse("value = " + text);
      if (parsed.size() == 1) return to_value(*parsed.get("value"), where);
    } catch (const toml::parse_error&) {  // stays a string; assign() refuses the type
    }
  } else if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    return text.substr(1, text.size() - 2);
  }
  return text;
}

KeyValue value_of_setting(const EngineSetting& setting, const std::string& where) {
  const ExperimentKey& key = find_key(setting.key, where);
  return as_type_of(key, read_value(key, setting.value, where), where);
}

constexpr std::string_view kResolvedHeader = "# Every key, its value and where it came from.\n";

}  // namespace

Experiment::Experiment() {
  for (const ExperimentKey& key : experiment_keys()) entries_[std::string(key.name)].value = key.fallback;
  apply_engine();
}

Experiment Experiment::from_file(const std::filesystem::path& path) {
  Experiment experiment = from_text(read_text_file(path, kWantedExperiment, kMaxExperimentBytes), path.string());
  experiment.folder_ = path.parent_path();
  return experiment;
}

Experiment Experiment::from_text(std::string_view text, const std::string& name) {
  Experiment experiment;
  const toml::table document = parse_toml(text, name);
  struct Level {
    std::string prefix;
    const toml::table* table;
  };
  std::vector<Level> open{{"", &document}};  // breadth first: no recursion on user input
  for (std::size_t i = 0; i < open.size(); ++i) {
    const Level level = open[i];
    for (const auto& [key, node] : *level.table) {
      const std::string full = level.prefix + std::string(key.str());
      const std::string where = name + ":" + std::to_string(node.source().begin.line);
      if (full == "sweep" && node.is_table()) continue;  // read by SweepPlan (sweep_plan.hpp)
      if (const auto* child = node.as_table()) {
        open.push_back({full + ".", child});
        continue;
      }
      const ExperimentKey& known = find_key(full, where);
      experiment.assign(known, to_value(node, where + ": " + full), where, true);
    }
  }
  if (text.starts_with(kResolvedHeader)) experiment.read_recorded(name);
  experiment.apply_engine();
  return experiment;
}

void Experiment::set(std::string_view assignment, const std::string& origin) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw InputError(origin + " " + std::string(assignment) + ": must be key=value, e.g. cache.page_tokens=32");
  }
  const std::string key(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));
  const ExperimentKey& known = find_key(key, origin);
  KeyValue value = read_value(known, text, origin + " " + key);
  if (!can_be_written(value)) {
    throw InputError(origin + ": " + key + " is given in bytes that an experiment file can't hold; it must be UTF-8");
  }
  assign(known, std::move(value), origin, false);
  apply_engine();
}

// A resolved experiment gives every key. Keys with the value that `engine` sets are set by `engine` again, so that they
// follow a later setting of the engine or of the hardware. All other values stay.
void Experiment::read_recorded(const std::string& name) {
  if (origin(kEngineKey) == "default") {
    entry(kEngineKey) = {std::string(name_of(ServingEngine::none)), name + ", recorded without this key", false};
  }
  for (const EngineSetting& setting : engine_settings(*this)) {
    Entry& recorded = entry(setting.key);
    if (!is_given(setting.key)) {  // since then, the engine has got this rule
      recorded = {find_key(setting.key, name).fallback, name + ", recorded without this key", false};
    } else if (recorded.value == value_of_setting(setting, name)) {
      recorded.origin = kByEngine;
    }
  }
}

void Experiment::apply_engine() {
  for (const ExperimentKey& key : experiment_keys()) {
    Entry& e = entry(key.name);
    if (e.origin.starts_with(kByEngine)) e = {key.fallback, "default", false};
  }
  const std::string by = std::string(kByEngine) + text(kEngineKey);
  for (const EngineSetting& setting : engine_settings(*this)) {
    Entry& e = entry(setting.key);
    if (e.origin != "default") continue;
    e = {value_of_setting(setting, by), by, false};
  }
}

bool Experiment::is_given(std::string_view key) const {
  return origin(key) != "default" && !origin(key).starts_with(kByEngine);
}

void Experiment::assign(const ExperimentKey& key, KeyValue value, const std::string& origin, bool from_file) {
  const std::string where = origin + ": " + std::string(key.name);
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr && text->find('\0') != std::string::npos) {
    throw InputError(where + ": contains a zero byte (\\u0000), which no name may have; leave it out");
  }
  value = as_type_of(key, std::move(value), where);
  if (value.index() != key.fallback.index()) {
    throw InputError(where + " is " + shown(value) + "; it must be " + type_name(key.fallback) + " (" +
                     std::string(key.help) + ")");
  }
  const auto check = [&](double number) {
    const double min = key.min_nonzero > 0 && number != 0 ? key.min_nonzero : key.min;
    if (!(number >= min && number <= key.max)) {
      throw InputError(where + " is " + shown(value) + "; it must be " + key.range() + " (" + std::string(key.help) +
                       ")");
    }
  };
  if (!key.choices.empty()) {
    checked_name("name", std::get<std::string>(value), key.choices, std::string(key.name) + " (" + origin + ")");
  }
  if (key.name == kEngineKey) engine_word(std::get<std::string>(value), std::string(key.name) + " (" + origin + ")");
  if (const auto* integer = std::get_if<std::int64_t>(&value)) check(static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&value)) check(*number);
  const bool empty = value == KeyValue(std::string()) || value == KeyValue(std::int64_t{0}) || value == KeyValue(0.0);
  entries_.find(key.name)->second = {std::move(value), origin, from_file};
  // Pairs of keys with the same meaning. A later setting replaces the other key. One file with both keys is an error.
  static constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {"tiers.device.tokens", "tiers.device.gib"},
      {"tiers.device.tokens", "tiers.device.memory_fraction"},
      {"tiers.device.gib", "tiers.device.memory_fraction"},
      {"tiers.host.tokens", "tiers.host.gib"},
      {"tiers.host.tokens", "tiers.host.ratio"},
      {"tiers.host.gib", "tiers.host.ratio"},
      {"tiers.disk.tokens", "tiers.disk.gib"},
      {"tiers.shared_fs.tokens", "tiers.shared_fs.gib"},
      {"tiers.remote.tokens", "tiers.remote.gib"},
      {"model.name", "model.config"},
      {"hardware.name", "hardware.file"},
      {"hardware.operators", "hardware.operators_file"}};
  for (const auto& [a, b] : kPairs) {
    if (key.name != a && key.name != b) continue;
    if (empty && from_file) continue;  // an empty value sets nothing, as in a resolved experiment
    const std::string_view other_name = key.name == a ? b : a;
    Entry& other = entry(other_name);
    const bool other_empty = std::visit([](const auto& v) { return v == std::decay_t<decltype(v)>{}; }, other.value);
    if (other.from_file && from_file && !other_empty) {
      throw InputError(where + ": " + std::string(other_name) + " is given too (" + other.origin +
                       "); give one of them");
    }
    if (other_empty) continue;
    const bool preset =
        other_name == "model.name" || other_name == "hardware.name" || other_name == "hardware.operators";
    if (empty && preset) continue;  // an empty path does not replace the preset
    other.value = std::visit([](const auto& v) { return KeyValue(std::decay_t<decltype(v)>{}); }, other.value);
    other.origin = origin;
    other.from_file = false;
  }
}

Experiment::Entry& Experiment::entry(std::string_view key) { return entries_.find(key)->second; }
const Experiment::Entry& Experiment::entry(std::string_view key) const { return entries_.find(key)->second; }

const std::string& Experiment::text(std::string_view key) const { return std::get<std::string>(entry(key).value); }
std::int64_t Experiment::integer(std::string_view key) const { return std::get<std::int64_t>(entry(key).value); }
double Experiment::number(std::string_view key) const { return std::get<double>(entry(key).value); }
bool Experiment::flag(std::string_view key) const { return std::get<bool>(entry(key).value); }
const std::string& Experiment::origin(std::string_view key) const { return entry(key).origin; }

std::string Experiment::as_toml(std::string_view key) const { return shown(entry(key).value); }

// Notes may quote any bytes, and go to reports and terminals.
void Experiment::note(std::string_view sentence) {
  std::string text;
  for (const char c : sentence) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      text += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      text += escaped;
    }
  }
  notes_.push_back(std::move(text));
}

std::string Experiment::where(std::string_view key) const { return std::string(key) + " (" + origin(key) + ")"; }

std::filesystem::path Experiment::path(std::string_view key) const {
  const std::filesystem::path given_path = text(key);
  return given_path.is_absolute() || !entry(key).from_file ? given_path : folder_ / given_path;
}

void Experiment::apply_keys(const ExperimentKey::Configuration& to) const {
  for (const ExperimentKey& key : experiment_keys()) {
    if (key.apply != nullptr) key.apply(value(key.name), to);
  }
}

std::string Experiment::resolved() const {
  std::ostringstream out;
  out << kResolvedHeader;
  for (const ExperimentKey& key : experiment_keys()) {
    const Entry& e = entry(key.name);
    KeyValue value = e.value;
    if (key.is_path && !text(key.name).empty())
      value = std::filesystem::absolute(path(key.name)).lexically_normal().string();
    out << key.name << " = " << shown(value) << "  # " << e.origin << "\n";
  }
  return out.str();
}

}  // namespace kvtwin

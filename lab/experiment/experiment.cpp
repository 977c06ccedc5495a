#include "lab/experiment/experiment.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <sstream>

#include "impl/runtime/policy_library.hpp"
#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/experiment/workload_recipe.hpp"
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
  if (const ExperimentKey* known = find_key_of_experiment(name)) return *known;
  const KeyTable* const table = table_of(name);
  std::vector<std::string> names;
  for (const ExperimentKey& key : table == nullptr ? experiment_keys() : table->keys) names.emplace_back(key.name);
  const std::string nearest = nearest_name(name, names);
  std::string sentence = where + ": unknown key \"" + std::string(name) + "\"";
  if (!nearest.empty()) sentence += "; did you mean \"" + nearest + "\"?";
  throw InputError(sentence + (nearest.empty() ? "; " : " ") + "`kvtwin simulate --help-keys` lists all keys");
}

KeyValue to_value(const ExperimentKey& key, const toml::node& node, const std::string& where) {
  if (const auto* list = node.as_array(); list != nullptr && key.is_list) return text_of_list(*list, where);
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
    const double number = number_in(unit_of(key), *text, where);
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
  if (!std::holds_alternative<std::string>(key.fallback) || (key.is_list && text.starts_with('['))) {
    try {
      const toml::table parsed = toml::parse("value = " + text);
      if (parsed.size() == 1) return to_value(key, *parsed.get("value"), where);
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

// Returns the facts of a policy that a key chooses. Errors: InputError for brackets and parameters with a fault, and
// for an unknown name if the key has choices.
PolicyFacts checked_policy(const ExperimentKey& key, const std::string& text, const std::string& origin) {
  const std::string where = std::string(key.name) + " (" + origin + ")";
  const PolicyText parts = policy_text(text);
  const std::string name(parts.name);
  if (!parts.closed) throw InputError(where + " is \"" + text + "\"; write " + name + "(parameter=value, ...)");
  install_policy_loader();
  if (!is_policy_name(*key.policy, name)) {
    if (!key.choices.empty()) checked_name("name", name, key.choices, where);
    PolicyFacts unknown;
    unknown.name = text;
    return unknown;
  }
  PolicyFacts facts = facts_of_policy(*key.policy, text);
  if (!facts.error.empty()) throw InputError(where + ": " + facts.error);
  return facts;
}

// Returns the value of an earlier key as the value of its parameter.
std::string parameter_text(const ExperimentKey& key, const KeyValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  char text[400];  // every double without an exponent
  const auto end = std::to_chars(text, text + sizeof text, std::get<double>(value), std::chars_format::fixed).ptr;
  return std::string(text, end) + (key.name.ends_with("_s") ? "s" : "");
}

bool is_off(const KeyValue& value, const ExperimentKey& key) { return value == key.fallback; }

constexpr std::string_view kResolvedHeader = "# Every key, its value and where it came from.\n";

// Returns the numbers of the lines of a recorded experiment that have a default; in ascending order.
std::vector<std::size_t> lines_of_defaults(std::string_view text) {
  std::vector<std::size_t> lines;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::string_view one = text.substr(0, text.find('\n'));
    if (one.ends_with("  # default")) lines.push_back(line);
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
  return lines;
}

}  // namespace

Experiment::Experiment() {
  for (const ExperimentKey& key : experiment_keys()) entries_[std::string(key.name)].value = key.fallback;
  for (const KeyTable& table : key_tables()) {
    for (const ExperimentKey& key : table.keys) entries_[std::string(key.name)].value = key.fallback;
  }
  for (const EarlierKey& earlier : earlier_keys()) entries_[std::string(earlier.key.name)].value = earlier.key.fallback;
  apply_words();
}

Experiment Experiment::from_file(const std::filesystem::path& path) {
  Experiment experiment = from_text(read_text_file(path, kWantedExperiment, kMaxExperimentBytes), path.string());
  experiment.folder_ = path.parent_path();
  experiment.apply_words();  // again: a path of a hardware file is relative to the folder
  return experiment;
}

Experiment Experiment::from_text(std::string_view text, const std::string& name) {
  Experiment experiment;
  experiment.is_recorded_ = text.starts_with(kResolvedHeader);
  const toml::table document = parse_toml(text, name);
  std::vector<std::size_t> default_lines;
  if (experiment.is_recorded_) default_lines = lines_of_defaults(text);
  std::vector<const ExperimentKey*> defaults;
  struct Level {
    std::string prefix;
    const toml::table* table;
  };
  std::vector<Level> open{{"", &document}};  // breadth first: no recursion on user input
  for (std::size_t i = 0; i < open.size(); ++i) {
    const Level level = open[i];
    for (const auto& [key, node] : *level.table) {
      const std::string full = level.prefix + std::string(key.str());
      const std::size_t line = node.source().begin.line;
      const std::string where = name + ":" + std::to_string(line);
      if (full == "sweep" && node.is_table()) continue;  // read by SweepPlan (sweep_plan.hpp)
      if (const auto* child = node.as_table()) {
        open.push_back({full + ".", child});
        continue;
      }
      const ExperimentKey& known = find_key(full, where);
      experiment.assign(known, to_value(known, node, where + ": " + full), where, true);
      if (std::ranges::binary_search(default_lines, line)) defaults.push_back(&known);
    }
  }
  if (experiment.is_recorded_) experiment.read_recorded(name, defaults);
  experiment.is_recorded_ = false;
  experiment.apply_words();
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
  apply_words();
}

// A resolved experiment gives every key. Keys with the value that `engine` sets are set by `engine` again, so that they
// follow a later setting of the engine or of the hardware. All other values stay.
// `defaults`: keys that were recorded with their default. They are not given, unless the default or the value has
// changed since. The record of a table has no defaults.
void Experiment::read_recorded(const std::string& name, const std::vector<const ExperimentKey*>& defaults) {
  if (origin(kEngineKey) == "default") {
    entry(kEngineKey) = {std::string(name_of(ServingEngine::none)), name + ", recorded without this key", false};
  }
  for (const EngineSetting& setting : recipe_settings(*this)) {
    Entry& recorded = entry(setting.key);
    if (recorded.value == value_of_setting(setting, name)) recorded.origin = kByRecipe;
  }
  for (const EngineSetting& setting : engine_settings(*this)) {
    Entry& recorded = entry(setting.key);
    if (!is_given(setting.key)) {  // since then, the engine has got this rule
      recorded = {find_key(setting.key, name).fallback, name + ", recorded without this key", false};
    } else if (recorded.value == value_of_setting(setting, name)) {
      recorded.origin = kByEngine;
    }
  }
  const auto keep_default = [&](const ExperimentKey& key) {
    if (is_given(key.name) && value(key.name) == key.fallback) entry(key.name).is_recorded_default = true;
  };
  for (const ExperimentKey* key : defaults) keep_default(*key);
  for (const KeyTable& table : key_tables()) std::ranges::for_each(table.keys, keep_default);
}

void Experiment::apply_words() {
  for (auto& [name, e] : entries_) {
    if (!is_by_a_word(e)) continue;
    e = {find_key_of_experiment(name)->fallback, "default", false};
  }
  const auto apply = [&](const std::vector<EngineSetting>& settings, const std::string& by) {
    for (const EngineSetting& setting : settings) {
      Entry& e = entry(setting.key);
      if (e.origin == "default") e = {value_of_setting(setting, by), by, false};
    }
  };
  apply(engine_settings(*this), std::string(kByEngine) + text(kEngineKey));
  apply(recipe_settings(*this), std::string(kByRecipe) + text(kRecipeKey));
  for (const KeyTable& table : key_tables()) list_table(table);
  if (has_earlier_keys_) apply_earlier_keys();
  if (has_earlier_keys_) apply_earlier_faults();
}

bool Experiment::gives_earlier(const EarlierKey& key) const { return origin(key.key.name) != "default"; }

// Makes the texts of the policies with the parameters that earlier keys give. Of an earlier key and the new form, the
// later one counts. One file with both, or both from one place, is an error.
void Experiment::apply_earlier_keys() {
  for (const ExperimentKey& key : experiment_keys()) {
    if (!key.policy) continue;
    const auto at = given_policies_.find(key.name);
    const bool is_given = at != given_policies_.end();
    const std::string& own_text = std::get<std::string>(is_given ? at->second.value : key.fallback);
    const PolicyFacts own = facts_of_policy(*key.policy, own_text);
    std::string added;
    const Entry* last = nullptr;
    std::vector<std::string_view> replaced;
    for (const EarlierKey& earlier : earlier_keys()) {
      const bool is_of = std::ranges::find(earlier.of, key.name) != earlier.of.end() &&
                         std::ranges::find(earlier.policies, own.name) != earlier.policies.end();
      if (!is_of || !gives_earlier(earlier)) continue;
      const Entry& e = entry(earlier.key.name);
      const std::string value = std::string(earlier.parameter) + "=" + parameter_text(earlier.key, e.value);
      const PolicyFacts alone = facts_of_policy(*key.policy, own.name + "(" + value + ")");
      const Parameter* const given = own.find(earlier.parameter);
      if (given == nullptr || alone.find(earlier.parameter) == nullptr) continue;  // a build without this policy
      if (given->given) {
        const bool one_place = (at->second.from_file && e.from_file) || at->second.origin == e.origin;
        if (one_place && given->value != alone.find(earlier.parameter)->value) {
          throw InputError(e.origin + ": " + std::string(earlier.key.name) + " is " + as_toml(earlier.key.name) +
                           ", and " + std::string(key.name) + " = \"" + own_text + "\" gives " +
                           std::string(earlier.parameter) + " too (" + at->second.origin + "); give one of them");
        }
        if (at->second.order > e.order) continue;
        replaced.push_back(earlier.parameter);
      }
      added += (added.empty() ? "" : ", ") + value;
      if (last == nullptr || last->order < e.order) last = &e;
    }
    Entry& result = entry(key.name);
    if (last == nullptr) continue;
    for (const Parameter& one : own.parameters) {
      if (one.given && std::ranges::find(replaced, one.name) == replaced.end())
        added += ", " + one.name + "=" + one.value;
    }
    result.value = facts_of_policy(*key.policy, own.name + "(" + added + ")").text(ParameterTexts::different);
    if (!is_given) result = {std::move(result.value), last->origin, last->from_file, true};
  }
}

// Adds the faults of earlier keys to the list, unless the list was given later, in another place.
void Experiment::apply_earlier_faults() {
  const auto at = given_policies_.find(kFaultsKey);
  const Entry given = at == given_policies_.end() ? Entry{.value = std::string()} : at->second;
  std::string list = std::get<std::string>(given.value);
  const Entry* last = nullptr;
  std::string_view group, parameters_of;  // the fault whose parameters stand at the end of the list
  for (const EarlierKey& earlier : earlier_keys()) {
    if (earlier.switched_by.empty()) continue;
    if (earlier.switched_by != group) {
      if (!parameters_of.empty()) list += ")";
      group = earlier.switched_by;
      parameters_of = {};
    }
    const Entry& switched = entry(group);
    const bool one_place = (given.from_file && switched.from_file) || given.origin == switched.origin;
    if (is_off(switched.value, find_earlier_key(group)->key) || (given.order > switched.order && !one_place)) continue;
    const Entry& e = entry(earlier.key.name);
    if (last == nullptr || last->order < e.order) last = &e;
    const std::string name(earlier.policies.front());
    if (earlier.parameter.empty()) {
      const std::string more = faults_of_spans(name, std::get<std::string>(e.value), where(earlier.key.name));
      list += (list.empty() ? "" : ", ") + more;
      continue;
    }
    list += !parameters_of.empty() ? ", " : (list.empty() ? "" : ", ") + name + "(";
    parameters_of = group;
    list += std::string(earlier.parameter) + "=" + parameter_text(earlier.key, e.value);
  }
  if (!parameters_of.empty()) list += ")";
  Entry& result = entry(kFaultsKey);
  if (last != nullptr) result = {std::string(), last->origin, last->from_file, at == given_policies_.end()};
  if (last == nullptr) result = given;
  result.value = text_of_faults(faults_in(list, where(kFaultsKey)));
}

void Experiment::note_earlier_key(const EarlierKey& earlier) {
  if (earlier.policies.empty()) {
    const std::string name(earlier.key.name);
    if (is_off(entry(name).value, earlier.key)) return;
    const std::string sentence =
        name + " = " + as_toml(name) + ": write " + std::string(earlier.of.front()) + " = " + as_toml(name);
    if (std::ranges::find(notes_, sentence) == notes_.end()) note(sentence);
    return;
  }
  if (!earlier.switched_by.empty()) {
    const std::string name(earlier.key.name), fault(earlier.policies.front());
    if (is_off(entry(name).value, earlier.key)) return;
    const std::string form = earlier.parameter.empty() ? faults_of_spans(fault, text(name), where(name))
                                                       : fault + "(" + std::string(earlier.parameter) + "=" +
                                                             parameter_text(earlier.key, entry(name).value) + ")";
    const std::string sentence = name + " = " + as_toml(name) + ": write faults = \"" + form + "\"";
    if (std::ranges::find(notes_, sentence) == notes_.end()) note(sentence);
    return;
  }
  const std::string key(earlier.of.front()), name(earlier.key.name);
  const std::string chosen = policy(key).name;
  const bool fits = std::ranges::find(earlier.policies, chosen) != earlier.policies.end();
  const std::string sentence = name + " = " + as_toml(name) + ": write " + key + " = \"" +
                               (fits ? chosen : std::string(earlier.policies.front())) + "(" +
                               std::string(earlier.parameter) + "=" + parameter_text(earlier.key, entry(name).value) +
                               ")\"";
  if (std::ranges::find(notes_, sentence) == notes_.end()) note(sentence);
}

PolicyFacts Experiment::policy(std::string_view key) const {
  const auto keys = experiment_keys();
  return facts_of_policy(*std::ranges::find(keys, key, &ExperimentKey::name)->policy, text(key));
}

bool Experiment::gives_parameter(std::string_view key, std::string_view parameter) const {
  const std::string name = policy(key).name;
  if (const auto at = given_policies_.find(key); at != given_policies_.end()) {
    const auto keys = experiment_keys();
    const PolicyKind kind = *std::ranges::find(keys, key, &ExperimentKey::name)->policy;
    const PolicyFacts own = facts_of_policy(kind, std::get<std::string>(at->second.value));
    const Parameter* const one = own.find(parameter);
    if (one != nullptr && one->given) return true;
  }
  return std::ranges::any_of(earlier_keys(), [&](const EarlierKey& earlier) {
    return earlier.parameter == parameter && gives_earlier(earlier) &&
           std::ranges::find(earlier.of, key) != earlier.of.end() &&
           std::ranges::find(earlier.policies, name) != earlier.policies.end();
  });
}

bool Experiment::is_given(std::string_view key) const {
  const Entry& e = entry(key);
  return e.origin != "default" && !is_by_a_word(e) && !e.by_earlier_keys && !e.is_recorded_default;
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
  KeyValue given = value;
  if (key.policy) {
    const PolicyFacts facts = checked_policy(key, std::get<std::string>(value), origin);
    given = facts.text(ParameterTexts::given);
    value = facts.text(ParameterTexts::different);
  } else if (key.name == kFaultsKey) {
    value = given =
        text_of_faults(faults_in(std::get<std::string>(value), std::string(key.name) + " (" + origin + ")"));
  } else if (!key.choices.empty()) {
    checked_name("name", std::get<std::string>(value), key.choices, std::string(key.name) + " (" + origin + ")");
  }
  if (key.name == kEngineKey) engine_word(std::get<std::string>(value), std::string(key.name) + " (" + origin + ")");
  if (const auto* integer = std::get_if<std::int64_t>(&value)) check(static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&value)) check(*number);
  const KeyTable* const table = table_of(key.name);
  if (table != nullptr) {  // a file gives a key twice by an earlier name only
    const Entry& before = entry(key.name);
    if (before.from_file && from_file && before.order != 0 && before.value != value) {
      throw InputError(where + " is " + shown(value) + ", and " + this->where(key.name) + " gives the same " +
                       std::string(table->one) + "; give one of them");
    }
  }
  const bool empty = value == KeyValue(std::string()) || value == KeyValue(std::int64_t{0}) || value == KeyValue(0.0);
  entries_.find(key.name)->second = {std::move(value), origin, from_file, false, false, ++assignments_};
  if (key.policy || key.is_list)
    given_policies_[std::string(key.name)] = {std::move(given), origin, from_file, false, false, assignments_};
  if (const EarlierKey* earlier = find_earlier_key(key.name)) {
    has_earlier_keys_ = true;
    if (!is_recorded_) note_earlier_key(*earlier);
    if (earlier->policies.empty()) assign_renamed(*earlier);
  }
  if (table != nullptr) list_table(*table);
  for (const KeyTable& whole : key_tables()) {
    if (whole.name == key.name) assign_table(whole, origin, from_file);
  }
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
    other.from_file = other.is_recorded_default = false;
  }
}

// Passes the value of a renamed key on to its key of today, which keeps the name that was given, for errors.
void Experiment::assign_renamed(const EarlierKey& earlier) {
  const Entry given = entry(earlier.key.name);
  const ExperimentKey& now = *find_key_of_experiment(earlier.of.front());
  assign(now, given.value, given.origin, given.from_file);
  entry(now.name).given_as = earlier.key.name;
}

// Sets the settings of the whole list. A setting that the list lacks is not given any more; in a recorded experiment it
// is the default.
void Experiment::assign_table(const KeyTable& table, const std::string& origin, bool from_file) {
  const std::string list = text(table.name);
  for (const ExperimentKey& key : table.keys) {
    Entry& e = entry(key.name);
    if (is_recorded_) {
      e = {key.fallback, origin, from_file};
    } else if (!from_file || !e.from_file) {
      e = {key.fallback};
    }
  }
  for (std::string_view item : split_list(list)) {
    item.remove_prefix(std::min(item.find_first_not_of(' '), item.size()));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw InputError(origin + ": " + std::string(table.name) + ": \"" + std::string(item) + "\" is no " +
                       std::string(table.one) + "; write name=value, e.g. " + std::string(table.example));
    }
    const std::string name = std::string(table.name) + "." + std::string(item.substr(0, equals));
    const ExperimentKey& key = find_key(name, origin);
    assign(key, read_value(key, std::string(item.substr(equals + 1)), origin + ": " + name), origin, from_file);
  }
  list_table(table);
}

// Makes the text of the list: of what is not the default. Its origin is that of the last setting that was given, or of
// the engine.
void Experiment::list_table(const KeyTable& table) {
  std::string list;
  const Entry* last = nullptr;
  for (const ExperimentKey& key : table.keys) {
    const Entry& e = entry(key.name);
    if (e.origin != "default" && (last == nullptr || e.order > last->order)) last = &e;
    if (e.value == key.fallback) continue;
    const auto* const text = std::get_if<std::string>(&e.value);
    list += (list.empty() ? "" : ", ") + std::string(key.name.substr(table.name.size() + 1)) + "=" +
            (text != nullptr ? *text : shown(e.value));
  }
  Entry& whole = entry(table.name);
  whole.value = list;
  if (last != nullptr) whole.origin = last->origin;
  whole.is_recorded_default = last != nullptr && last->is_recorded_default;
}

bool Experiment::is_by_a_word(const Entry& e) {
  return e.origin.starts_with(kByEngine) || e.origin.starts_with(kByRecipe);
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

std::string Experiment::where(std::string_view key) const {
  const std::string_view given = entry(key).given_as;
  return std::string(given.empty() ? key : given) + " (" + origin(key) + ")";
}

std::filesystem::path Experiment::path(std::string_view key) const {
  const std::filesystem::path given_path = text(key);
  return given_path.is_absolute() || !entry(key).from_file ? given_path : folder_ / given_path;
}

void Experiment::apply_keys(const ExperimentKey::Configuration& to) const {
  const auto apply = [&](std::span<const ExperimentKey> keys) {
    for (const ExperimentKey& key : keys) {
      if (key.apply != nullptr) key.apply(value(key.name), to);
    }
  };
  apply(experiment_keys());
  for (const KeyTable& table : key_tables()) apply(table.keys);
}

std::string Experiment::resolved() const {
  std::ostringstream out;
  out << kResolvedHeader;
  for (const ExperimentKey& key : experiment_keys()) {
    const Entry& e = entry(key.name);
    KeyValue value = e.value;
    if (key.policy) value = policy(key.name).text(ParameterTexts::all);
    if (key.is_path && !text(key.name).empty())
      value = std::filesystem::absolute(path(key.name)).lexically_normal().string();
    out << key.name << " = " << shown(value) << "  # " << (e.is_recorded_default ? "default" : e.origin) << "\n";
  }
  return out.str();
}

}  // namespace kvtwin

#include "lab/engine_flags/flag_table.hpp"

#include <algorithm>
#include <sstream>

namespace kvtwin {

FlagTable::FlagTable(std::string_view engine, std::string_view version, std::vector<EngineFlag> flags,
                     std::vector<Alias> aliases, std::span<const FlagWord> words)
    : engine_(engine), version_(version), flags_(std::move(flags)), aliases_(std::move(aliases)), words_(words) {
  for (const EngineFlag& flag : flags_) names_.push_back(flag.name);
  for (const Alias& alias : aliases_) names_.push_back(alias.name);
}

const EngineFlag* FlagTable::find_field(std::string_view field) const {
  const auto found = std::ranges::find(flags_, field, &EngineFlag::field);
  if (found != flags_.end()) return &*found;
  const auto alias = std::ranges::find(aliases_, flag_name_of(field), &Alias::name);
  return alias == aliases_.end() ? nullptr : find_field(alias->field);
}

NamedFlag FlagTable::named(std::string_view name) const {
  const auto found = std::ranges::find(flags_, name, &EngineFlag::name);
  if (found != flags_.end()) return {&*found, false};
  const auto alias = std::ranges::find(aliases_, name, &Alias::name);
  if (alias != aliases_.end()) return {find_field(alias->field), alias->off};
  const EngineFlag* only = nullptr;
  if (name.size() < 4) return {};
  for (const EngineFlag& flag : flags_) {
    if (!flag.name.starts_with(name)) continue;
    if (only != nullptr) return {};
    only = &flag;
  }
  return {only, false};
}

FlagWord FlagTable::word(std::string_view field, std::string_view theirs) const {
  for (const FlagWord& word : words_) {
    if (word.field == field && word.theirs == theirs) return word;
  }
  return {field, theirs, theirs};
}

std::string flag_name_of(std::string_view field) {
  std::string name = "--" + std::string(field);
  std::ranges::replace(name, '_', '-');
  return name;
}

void add_listed_flags(std::vector<EngineFlag>& flags, std::string_view fields, EngineFlag::Is is, std::string_view why,
                      std::string_view key) {
  std::istringstream words{std::string(fields)};
  for (std::string word; words >> word;) {
    EngineFlag flag;
    flag.is = is;
    flag.why = why;
    flag.key = key;
    if (const std::size_t equals = word.find('='); equals != std::string::npos) {
      flag.preset = word.substr(equals + 1);
      word.resize(equals);
    }
    if (word.back() == '!') flag.takes = EngineFlag::Takes::nothing;
    if (word.back() == '*') flag.takes = EngineFlag::Takes::list;
    if (flag.takes != EngineFlag::Takes::text) word.pop_back();
    flag.field = word;
    flag.name = flag_name_of(word);
    flags.push_back(std::move(flag));
  }
}

}  // namespace kvtwin

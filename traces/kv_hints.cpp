#include "traces/kv_hints.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace kvtwin {
namespace {

constexpr std::int64_t kMaxMilliseconds = std::int64_t{1} << 40;  // 35 years

std::optional<HintKind> kind_of(std::string_view type) {
  if (type.starts_with("kv.")) type.remove_prefix(3);
  if (type == "retain") return HintKind::pin;
  for (std::size_t kind = 0; kind < kHintKinds; ++kind) {
    const auto known = static_cast<HintKind>(kind);
    if (known != HintKind::abort && name_of(known) == type) return known;
  }
  return std::nullopt;
}

// Of a time that is given: 0 says "until unpin", and no time is rounded to that. Nothing: it is no time.
std::optional<std::int64_t> in_range(std::optional<double> milliseconds) {
  if (!milliseconds || !(*milliseconds >= 0)) return std::nullopt;
  return static_cast<std::int64_t>(std::ceil(std::min(*milliseconds, static_cast<double>(kMaxMilliseconds))));
}

struct TimeField {
  std::string_view name;
  double milliseconds;  // of one
};
constexpr TimeField kTimes[] = {{"value", 1}, {"ttl_ms", 1}, {"ttl_s", 1000}};

// Returns the text of the value behind 'NAME': in the text of a Python dictionary; nothing if there is none or None.
std::optional<std::string_view> value_in(std::string_view text, std::string_view name) {
  const std::string key = "'" + std::string(name) + "':";
  std::size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  at = text.find_first_not_of(' ', at + key.size());
  const std::string_view value = at == std::string_view::npos ? std::string_view() : text.substr(at);
  return value.starts_with("None") ? std::nullopt : std::optional(value);
}

std::optional<double> number_of(std::string_view value) {
  double number = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
  return read.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<double> number_of(const JsonValue& value) {
  double number = 0;
  return value.get(number) == simdjson::SUCCESS ? std::optional(number) : std::nullopt;
}

// Returns the time of an action, 0 without one, or nothing if a field of it is no time. `value_of(NAME)`: an optional.
template <typename ValueOf>
std::optional<std::int64_t> time_of(const ValueOf& value_of) {
  std::optional<std::int64_t> found = 0;
  for (const TimeField& time : kTimes) {
    const auto value = value_of(time.name);
    if (!value) continue;
    const std::optional<double> number = number_of(*value);
    found = in_range(number ? std::optional(*number * time.milliseconds) : std::nullopt);
    if (!found) return std::nullopt;
  }
  return found;
}

}  // namespace

void KvHints::add(std::string_view type, std::optional<std::int64_t> milliseconds, std::uint64_t session,
                  std::vector<Hint>& hints) {
  const std::optional<HintKind> kind = kind_of(type);
  if (!kind || !milliseconds) {
    const std::string name = std::string(type) + (kind ? " of a time that is no number from 0 on" : "");
    const bool full = unknown_.size() >= kMaxNames && !unknown_.contains(name);
    ++unknown_[full ? "others" : name];
  } else if (session == 0) {
    ++without_session_;
  } else {
    ++taken_;
    hints.push_back({*kind, session, *milliseconds});
  }
}

bool KvHints::read(const JsonValue& envelope, std::uint64_t session, std::vector<Hint>& hints) {
  std::string_view text;
  if (envelope.get(text) == simdjson::SUCCESS) return read_text(text, session, hints);
  simdjson::dom::array actions;
  if (envelope["actions"].get(actions) != simdjson::SUCCESS) return false;
  std::string_view type;
  for (const JsonValue action : actions) {
    if (action["action_type"].get(type) != simdjson::SUCCESS) return false;
  }
  for (const JsonValue action : actions) {
    type = action["action_type"];
    const auto value_of = [&action](std::string_view name) {
      JsonValue value;
      const bool is_there = action["payload"][name].get(value) == simdjson::SUCCESS && !value.is_null();
      return is_there ? std::optional(value) : std::nullopt;
    };
    add(type, time_of(value_of), session, hints);
  }
  return true;
}

bool KvHints::read_text(std::string_view text, std::uint64_t session, std::vector<Hint>& hints) {
  constexpr std::string_view kType = "action_type='";
  if (text.find("actions=") == std::string_view::npos) return false;
  for (std::size_t at = text.find(kType); at != std::string_view::npos;) {
    const std::size_t begin = at + kType.size(), end = text.find('\'', begin);
    if (end == std::string_view::npos) return false;
    at = text.find(kType, end);
    const std::string_view rest = text.substr(end, at == std::string_view::npos ? at : at - end);
    const auto value_of = [rest](std::string_view name) { return value_in(rest, name); };
    add(text.substr(begin, end - begin), time_of(value_of), session, hints);
  }
  return true;
}

void KvHints::add_notes(std::vector<std::string>& notes) const {
  if (taken_ > 0)
    notes.push_back("trace: " + std::to_string(taken_) + " hints of kv_hints; cache.hints says what they do");
  if (without_session_ > 0) {
    notes.push_back("trace: " + std::to_string(without_session_) +
                    " hints of kv_hints were passed over: their requests have no session");
  }
  if (unknown_.empty()) return;
  std::string names;
  for (const auto& [name, count] : unknown_) {
    names += (names.empty() ? "" : ", ") + name + " (" + std::to_string(count) + ")";
  }
  notes.push_back("trace: actions of kv_hints were passed over, because kvtwin has no such hint: " + names);
}

}  // namespace kvtwin

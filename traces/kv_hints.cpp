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
std::optional<std::int64_t> in_range(double milliseconds) {
  if (!(milliseconds >= 0)) return std::nullopt;
  return static_cast<std::int64_t>(std::ceil(std::min(milliseconds, static_cast<double>(kMaxMilliseconds))));
}

struct TimeField {
  std::string_view name;
  double milliseconds;  // of one
};
constexpr TimeField kTimes[] = {{"value", 1}, {"ttl_ms", 1}, {"ttl_s", 1000}};

// Returns the number behind 'NAME': in the text of a Python dictionary.
std::optional<double> number_in(std::string_view text, std::string_view name) {
  const std::string key = "'" + std::string(name) + "':";
  std::size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  at = text.find_first_not_of(' ', at + key.size());
  double number = 0;
  if (at == std::string_view::npos) return std::nullopt;
  const auto read = std::from_chars(text.data() + at, text.data() + text.size(), number);
  return read.ec == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace

void KvHints::add(std::string_view type, std::optional<std::int64_t> milliseconds, std::uint64_t session,
                  std::vector<Hint>& hints) {
  const std::optional<HintKind> kind = kind_of(type);
  if (!kind || !milliseconds) {
    const std::string name = std::string(type) + (kind ? " of a time below 0" : "");
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
    double milliseconds = 0, number = 0;
    for (const TimeField& time : kTimes) {
      if (action["payload"][time.name].get(number) == simdjson::SUCCESS) milliseconds = number * time.milliseconds;
    }
    add(type, in_range(milliseconds), session, hints);
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
    double milliseconds = 0;
    for (const TimeField& time : kTimes) {
      if (const auto number = number_in(rest, time.name)) milliseconds = *number * time.milliseconds;
    }
    add(text.substr(begin, end - begin), in_range(milliseconds), session, hints);
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

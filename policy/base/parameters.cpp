#include "policy/base/parameters.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/nearest_name.hpp"
#include "policy/base/unit_suffixes.hpp"
#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kNoNumber = std::uint64_t{1} << 63;  // above every bound
constexpr std::size_t kMaxDigits = 18;
constexpr int kMaxPlaces = 30;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// mantissa / 10^places.
struct DecimalNumber {
  std::uint64_t mantissa = 0;
  int places = 0;
};

// Takes the number at the start of the text.
std::optional<DecimalNumber> take_number(std::string_view& text) {
  DecimalNumber number;
  std::size_t at = 0, digits = 0;
  bool any = false;
  for (bool point = false; at < text.size() && (is_digit(text[at]) || (text[at] == '.' && !point)); ++at) {
    if (text[at] == '.') {
      point = true;
      continue;
    }
    any = true;
    digits += number.mantissa != 0 || text[at] != '0';
    if (digits > kMaxDigits) return std::nullopt;
    number.mantissa = 10 * number.mantissa + static_cast<std::uint64_t>(text[at] - '0');
    number.places += point;
  }
  if (!any) return std::nullopt;
  text.remove_prefix(at);
  if (text.size() > 1 && (text[0] == 'e' || text[0] == 'E')) {
    std::string_view power = text.substr(text[1] == '+' ? 2 : 1);
    int exponent = 0;
    const auto [end, wrong] = std::from_chars(power.data(), power.data() + power.size(), exponent);
    if (wrong != std::errc() || exponent < -kMaxPlaces || exponent > kMaxPlaces) return std::nullopt;
    number.places -= exponent;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  if (number.places > kMaxPlaces) return std::nullopt;
  return number;
}

// Returns number * factor, rounded to the nearest whole number; kNoNumber if that is too large. `exact`: whether it is
// whole without rounding.
std::uint64_t times(const DecimalNumber& number, std::uint64_t factor, bool& exact) {
  exact = true;
  if (number.mantissa == 0) return 0;
  UnsignedWide value = UnsignedWide{number.mantissa} * factor, divisor = 1;
  for (int place = number.places; place < 0; ++place) {
    if (value >= kNoNumber) return kNoNumber;
    value *= 10;
  }
  for (int place = 0; place < number.places; ++place) divisor *= 10;
  exact = value % divisor == 0;
  value = (2 * value + divisor) / (2 * divisor);
  return value >= kNoNumber ? kNoNumber : static_cast<std::uint64_t>(value);
}

template <std::size_t count>
const UnitSuffix* find_suffix(const UnitSuffix (&suffixes)[count], std::string_view text) {
  const auto* const at = std::ranges::find(suffixes, text, &UnitSuffix::text);
  return at == std::end(suffixes) ? nullptr : at;
}

// Returns none if the text is no such number.
std::optional<std::uint64_t> whole_in(std::string_view text) {
  auto number = take_number(text);
  const UnitSuffix* suffix = find_suffix(kCountSuffixes, without_blanks(text));
  if (!number || suffix == nullptr) return std::nullopt;
  number->places -= suffix->power_of_10;
  bool exact = false;
  const std::uint64_t value = times(*number, suffix->factor, exact);
  return exact ? std::optional<std::uint64_t>(value) : std::nullopt;
}

std::string with_point(std::uint64_t digits, int places) {
  for (; places > 0 && digits % 10 == 0; --places) digits /= 10;
  std::string text = std::to_string(digits);
  if (places <= 0) return text;
  const auto after = static_cast<std::size_t>(places);
  if (text.size() <= after) text.insert(0, after + 1 - text.size(), '0');
  return text.insert(text.size() - after, ".");
}

struct Read {
  std::uint64_t number = 0;  // in 1/1024, or ns
  std::string text;
};

std::optional<Read> decimal_in(std::string_view text) {
  auto number = take_number(text);
  const std::string_view suffix = without_blanks(text);
  if (!number || (!suffix.empty() && suffix != "%")) return std::nullopt;
  if (suffix == "%") number->places += 2;
  for (; number->places < 0; ++number->places) {
    if (number->mantissa >= kNoNumber / 10) return std::nullopt;
    number->mantissa *= 10;
  }
  bool exact = false;
  return Read{times(*number, 1024, exact), with_point(number->mantissa, number->places)};
}

std::optional<Read> time_in(std::string_view text) {
  auto number = take_number(text);
  const std::string_view given = without_blanks(text);
  const UnitSuffix* suffix = find_suffix(kTimeSuffixes, given.empty() ? "s" : given);
  if (!number || suffix == nullptr) return std::nullopt;
  number->places -= suffix->power_of_10 + 9;
  bool exact = false;
  const std::uint64_t ns = times(*number, suffix->factor, exact);
  return Read{ns, with_point(ns, 9) + "s"};
}

std::string in_quotes(std::string_view text) { return "\"" + std::string(text) + "\""; }

std::string bounds_text(std::string_view least, std::string_view most) {
  std::string text = "at least " + std::string(least);
  if (!most.empty()) text += " and at most " + std::string(most);
  return text;
}

}  // namespace

PolicyText policy_text(std::string_view text) {
  text = without_blanks(text);
  const std::size_t open = text.find('(');
  if (open == std::string_view::npos) return {text, {}, text.find(')') == std::string_view::npos};
  const std::size_t close = text.find(')', open);
  PolicyText parts{without_blanks(text.substr(0, open)), {}, close + 1 == text.size()};
  parts.closed = parts.closed && text.find('(', open + 1) == std::string_view::npos;
  if (parts.closed) parts.parameters = without_blanks(text.substr(open + 1, close - open - 1));
  return parts;
}

std::vector<std::string_view> split_list(std::string_view text, char separator) {
  std::vector<std::string_view> items;
  if (text.empty()) return items;
  std::size_t first = 0, depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '(') ++depth;
    if (text[at] == ')' && depth > 0) --depth;
    if (text[at] != separator || depth > 0) continue;
    items.push_back(text.substr(first, at - first));
    first = at + 1;
  }
  items.push_back(text.substr(first));
  return items;
}

Parameters::Parameters(std::string_view text) {
  for (const std::string_view item : split_list(text)) {
    const std::size_t equals = item.find('=');
    const std::string name(without_blanks(item.substr(0, equals)));
    if (equals == std::string_view::npos || name.empty()) {
      if (error_.empty()) error_ = in_quotes(without_blanks(item)) + " is no parameter; write name=value";
      continue;
    }
    if (std::ranges::find(given_, name, &Given::name) != given_.end()) {
      if (error_.empty()) error_ = name + " is given twice; give one value";
      continue;
    }
    given_.push_back({name, std::string(without_blanks(item.substr(equals + 1)))});
  }
}

const std::string* Parameters::declare(std::string_view name, std::string range, std::string_view help) const {
  KV_CHECK(std::ranges::find(read_, name, &Parameter::name) == read_.end(), "a policy reads a parameter once");
  Parameter& read = read_.emplace_back();
  read.name = name;
  read.range = std::move(range);
  read.help = help;
  const auto at = std::ranges::find(given_, name, &Given::name);
  if (at == given_.end()) return nullptr;
  read.given = true;
  return &at->value;
}

void Parameters::refuse(std::string_view value) const {
  const Parameter& read = read_.back();
  if (!error_.empty()) return;
  error_ = read.name + " is " + (value.empty() ? "empty" : std::string(value)) + "; it must be " + read.range + " (" +
           read.help + ")";
}

std::uint64_t Parameters::whole(std::string_view name, const Whole& of) const {
  KV_CHECK(of.fallback >= of.least && of.fallback <= of.most && of.most < kNoNumber, "the default is in the range");
  const std::string* given = declare(name, bounds_text(std::to_string(of.least), std::to_string(of.most)), of.help);
  std::uint64_t value = of.fallback;
  if (given != nullptr) {
    const auto number = whole_in(*given);
    if (number && *number >= of.least && *number <= of.most) value = *number;
    if (number != value) refuse(*given);
  }
  Parameter& read = read_.back();
  read.fallback = std::to_string(of.fallback);
  read.value = std::to_string(value);
  read.number = static_cast<std::int64_t>(value);
  return value;
}

std::uint64_t Parameters::scaled(std::string_view name, const Decimal& of, bool is_time) const {
  const auto read_in = [&](std::string_view text) { return is_time ? time_in(text) : decimal_in(text); };
  const auto fallback = read_in(of.fallback), least = read_in(of.least), most = read_in(of.most);
  KV_CHECK(fallback && least && most, "the default and the bounds are such numbers");
  KV_CHECK(fallback->number >= least->number && fallback->number <= most->number, "the default is in the range");
  const std::string* given = declare(name, bounds_text(least->text, most->text), of.help);
  Read value = *fallback;
  if (given != nullptr) {
    const auto number = read_in(*given);
    if (number && number->number >= least->number && number->number <= most->number) {
      value = *number;
    } else {
      refuse(*given);
    }
  }
  Parameter& read = read_.back();
  read.fallback = fallback->text;
  read.value = value.text;
  read.number = static_cast<std::int64_t>(value.number);
  return value.number;
}

std::uint32_t Parameters::per_1024(std::string_view name, const Decimal& of) const {
  const std::uint64_t value = scaled(name, of, false);
  KV_CHECK(value >> 32 == 0, "the upper bound of a decimal number is below 4,194,304");
  return static_cast<std::uint32_t>(value);
}

TimeNs Parameters::time(std::string_view name, const Decimal& of) const {
  return static_cast<TimeNs>(scaled(name, of, true));
}

bool Parameters::flag(std::string_view name, bool fallback, std::string_view help) const {
  const std::string* given = declare(name, "true or false", help);
  bool value = fallback;
  if (given != nullptr) {
    if (*given == "true" || *given == "false") {
      value = *given == "true";
    } else {
      refuse(*given);
    }
  }
  Parameter& read = read_.back();
  read.fallback = fallback ? "true" : "false";
  read.value = value ? "true" : "false";
  read.number = value ? 1 : 0;
  return value;
}

std::size_t Parameters::word(std::string_view name, std::span<const std::string_view> words,
                             std::string_view help) const {
  KV_CHECK(!words.empty(), "there is a word to choose");
  std::string range;
  for (const std::string_view word : words) range.append(range.empty() ? "one of " : ", ").append(word);
  const std::string* given = declare(name, std::move(range), help);
  std::size_t value = 0;
  if (given != nullptr) {
    const auto at = std::ranges::find(words, *given);
    if (at == words.end()) {
      refuse(*given);
    } else {
      value = static_cast<std::size_t>(at - words.begin());
    }
  }
  Parameter& read = read_.back();
  read.fallback = words.front();
  read.value = words[value];
  read.number = static_cast<std::int64_t>(value);
  return value;
}

std::string Parameters::error() const {
  if (!error_.empty()) return error_;
  std::vector<std::string> known;
  for (const Parameter& one : read_) known.push_back(one.name);
  for (const Given& one : given_) {
    if (std::ranges::find(known, one.name) != known.end()) continue;
    if (known.empty()) return "has no parameters; leave out " + one.name;
    std::string sentence = "unknown parameter " + in_quotes(one.name);
    const std::string nearest = nearest_name(one.name, known);
    sentence += nearest.empty() ? "." : ": did you mean " + in_quotes(nearest) + "?";
    sentence += " Known:";
    for (std::size_t i = 0; i < known.size(); ++i) sentence += (i == 0 ? " " : ", ") + known[i];
    return sentence + ".";
  }
  return "";
}

std::string text_of_policy(std::string_view name, std::span<const Parameter> parameters, ParameterTexts which) {
  std::string list;
  for (const Parameter& one : parameters) {
    if (which == ParameterTexts::given && !one.given) continue;
    if (which == ParameterTexts::different && one.value == one.fallback) continue;
    list += (list.empty() ? "" : ", ") + one.name + "=" + one.value;
  }
  return list.empty() ? std::string(name) : std::string(name) + "(" + list + ")";
}

}  // namespace kvtwin

#include "lab/units.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "lab/error.hpp"
#include "policy/base/unit_suffixes.hpp"

namespace kvtwin {
namespace {

using Kind = Unit::Kind;

struct UnitText {
  std::string_view text;
  Unit unit;
};
// The first ending that fits counts.
constexpr UnitText kEndings[] = {
    {"_per_second", {}},
    {"bytes_per_token", {Kind::bytes, "bytes"}},
    {"_percent", {Kind::percent, "%"}},
    {"_bytes", {Kind::bytes, "bytes"}},
    {"gib", {Kind::bytes, "GiB", 0, kGib}},
    {"_gbps", {Kind::byte_rate, "GB/s", 9}},
    {"_kw", {Kind::power, "kW", 3}},
    {"_share", {Kind::share, ""}},
    {"_fraction", {Kind::share, ""}},
    {"hit_ratio", {Kind::share, ""}},
    {"_ns", {Kind::time, "nanoseconds", -9}},
    {"_us", {Kind::time, "microseconds", -6}},
    {"_ms", {Kind::time, "milliseconds", -3}},
    {"_s", {Kind::time, "seconds"}},
    {"-s", {Kind::time, "seconds"}},
};

std::optional<Unit> with_prefix(std::string_view text, Kind kind, double factor = 1) {
  const auto* const at = std::ranges::find(kCountSuffixes, text, &UnitSuffix::text);
  if (at == std::end(kCountSuffixes)) return std::nullopt;
  return Unit{kind, "", at->power_of_10, static_cast<double>(at->factor) * factor};
}

bool drop_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

// Returns the meaning of a suffix for a number of this kind.
std::optional<Unit> meaning(std::string_view text, Kind kind) {
  if (kind == Kind::time) {
    const auto* const at = std::ranges::find(kTimeSuffixes, text, &UnitSuffix::text);
    if (at == std::end(kTimeSuffixes)) return std::nullopt;
    return Unit{kind, "", at->power_of_10, static_cast<double>(at->factor)};
  }
  if (kind == Kind::share) return text == "%" ? std::optional<Unit>(Unit{kind, "", -2}) : std::nullopt;
  if (kind == Kind::percent) return text == "%" ? std::optional<Unit>(Unit{kind, ""}) : std::nullopt;
  if (kind == Kind::byte_rate) {
    drop_end(text, "/s");
    if (drop_end(text, "bit") || drop_end(text, "b")) return with_prefix(text, kind, 1.0 / 8);
    drop_end(text, "B");
  }
  if (kind == Kind::bytes) drop_end(text, "B");
  if (kind == Kind::power) drop_end(text, "W");
  return with_prefix(text, kind);
}

struct KindWords {
  Kind kind;
  std::string_view what, examples;
};
constexpr KindWords kKinds[] = {{Kind::count, "a count", "60000, 60k or 4Ki"},
                                {Kind::time, "a time", "20s, 500ms or 1h"},
                                {Kind::bytes, "an amount of bytes", "64GiB or 1.5TB"},
                                {Kind::byte_rate, "a rate of bytes", "12GB/s or 400Gb/s"},
                                {Kind::power, "a power", "700W or 1.2kW"},
                                {Kind::share, "a share", "0.9 or 90%"},
                                {Kind::percent, "a percentage", "90 or 90%"}};

const KindWords& words_of(Kind kind) { return *std::ranges::find(kKinds, kind, &KindWords::kind); }

// Returns the kind that a suffix speaks of, for error texts.
std::optional<Kind> unit_kind_of(std::string_view suffix) {
  for (const Kind kind : {Kind::time, Kind::share, Kind::count, Kind::bytes, Kind::power, Kind::byte_rate}) {
    if (meaning(suffix, kind)) return kind;
  }
  return std::nullopt;
}

// Returns the length of the number at the start of the text: sign, digits, point, exponent.
std::size_t length_of_number(std::string_view text) {
  std::size_t at = 0;
  const auto digits = [&] {
    const std::size_t from = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    return at - from;
  };
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
  std::size_t count = digits();
  if (at < text.size() && text[at] == '.') {
    ++at;
    count += digits();
  }
  if (count == 0) return 0;
  const std::size_t mantissa = at;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    if (digits() == 0) at = mantissa;
  }
  return at;
}

// Returns number * 10^power, correctly rounded.
double shifted(std::string_view number, int power) {
  if (number.starts_with('+')) number.remove_prefix(1);
  const std::size_t e = number.find_first_of("eE");
  int exponent = power;
  if (e != std::string_view::npos) {
    std::string_view of = number.substr(e + 1);
    if (of.starts_with('+')) of.remove_prefix(1);
    int own = 0;
    if (std::from_chars(of.data(), of.data() + of.size(), own).ec != std::errc()) return NAN;
    exponent = std::clamp(own, -10'000, 10'000) + power;
  }
  const std::string text = std::string(number.substr(0, e)) + "e" + std::to_string(exponent);
  double value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return NAN;
  return value;
}

}  // namespace

Unit unit_named(std::string_view name) {
  std::string text(name);
  if (!text.ends_with("-s")) std::ranges::replace(text, '-', '_');
  for (const UnitText& ending : kEndings) {
    if (std::string_view(text).ends_with(ending.text)) return ending.unit;
  }
  return {};
}

Unit unit_of_price(std::string_view unit) {
  if (unit == "TB") return {Kind::bytes, "TB", 12};
  if (unit == "W") return {Kind::power, "W"};
  return {};
}

bool begins_as_number(std::string_view text) { return length_of_number(text) != 0; }

bool has_unit(std::string_view text) { return begins_as_number(text) && length_of_number(text) < text.size(); }

double number_in(const Unit& unit, std::string_view text, const std::string& where) {
  const std::string shown(text);
  const KindWords& wanted = words_of(unit.kind);
  const std::string right =
      (unit.name.empty() ? "" : " in " + std::string(unit.name)) + ", e.g. " + std::string(wanted.examples);
  const std::size_t length = length_of_number(text);
  if (length == 0) throw InputError(where + " is " + shown + "; it must be " + std::string(wanted.what) + right);
  const std::string_view number = text.substr(0, length);
  std::string_view suffix = text.substr(length);
  while (suffix.starts_with(' ')) suffix.remove_prefix(1);
  double value = NAN;
  if (suffix.empty()) {
    value = shifted(number, 0);
  } else {
    const std::optional<Unit> given = meaning(suffix, unit.kind);
    if (!given && suffix.starts_with('K') && !suffix.starts_with("Ki")) {
      throw InputError(where + " is " + shown +
                       "; K is 1,000 for some programs and 1,024 for others: write k (1,000) or "
                       "Ki (1,024)");
    }
    if (!given) {
      const std::optional<Kind> other = unit_kind_of(suffix);
      throw InputError(where + " is " + shown + "; " + std::string(suffix) + " is " +
                       (other && *other != unit.kind ? "the unit of " + std::string(words_of(*other).what)
                                                     : std::string("no unit that kvtwin knows")) +
                       ", and it must be " + std::string(wanted.what) + right);
    }
    // Whole factors first: a factor of 1,024 or 60 is exact.
    value = shifted(number, given->power_of_10 - unit.power_of_10) * given->factor / unit.factor;
  }
  if (!std::isfinite(value)) {
    throw InputError(where + " is " + shown + ", which is too large; it must be " + std::string(wanted.what) + right);
  }
  return value;
}

std::string plain_number(double value) {
  char text[40];
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  const std::to_chars_result end = whole ? std::to_chars(text, text + sizeof text, value, std::chars_format::fixed)
                                         : std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

}  // namespace kvtwin

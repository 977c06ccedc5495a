#include "traces/fields.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

namespace kvtwin {
namespace {

constexpr double kMaxFieldSeconds = 9.0e9;  // 285 years; 9e10 s in ns would not fit TimeNs

// Removes `count` digits from the front of `text` and stores their value; returns false if there are fewer digits.
bool take_number(std::string_view& text, std::size_t count, int& value) {
  if (text.size() < count) return false;
  value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(count);
  return true;
}

bool take_sign(std::string_view& text, char sign) {
  if (text.empty() || text.front() != sign) return false;
  text.remove_prefix(1);
  return true;
}

struct Date {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  TimeNs fraction = 0;
  std::optional<TimeNs> zone;
};

bool take_fraction(std::string_view& text, TimeNs& fraction) {
  if (!take_sign(text, '.')) return true;
  TimeNs unit = kNsPerSecond;
  int digit = 0, digits = 0;
  for (; take_number(text, 1, digit); ++digits) {
    unit /= 10;  // 0 after the ninth digit: further digits are ignored
    fraction += unit * digit;
  }
  return digits > 0;
}

bool take_zone(std::string_view& text, std::optional<TimeNs>& zone) {
  if (text.empty()) return true;
  if (take_sign(text, 'Z')) {
    zone = 0;
    return text.empty();
  }
  const bool east = take_sign(text, '+');
  if (!east && !take_sign(text, '-')) return false;
  int hours = 0, minutes = 0;
  if (!take_number(text, 2, hours) || !take_sign(text, ':') || !take_number(text, 2, minutes)) return false;
  zone = (TimeNs{hours} * 60 + minutes) * 60 * kNsPerSecond * (east ? 1 : -1);
  return text.empty() && hours < 24 && minutes < 60;
}

bool parse_date(std::string_view text, Date& d) {
  return take_number(text, 4, d.year) && take_sign(text, '-') && take_number(text, 2, d.month) &&
         take_sign(text, '-') && take_number(text, 2, d.day) && (take_sign(text, ' ') || take_sign(text, 'T')) &&
         take_number(text, 2, d.hour) && take_sign(text, ':') && take_number(text, 2, d.minute) &&
         take_sign(text, ':') && take_number(text, 2, d.second) && take_fraction(text, d.fraction) &&
         take_zone(text, d.zone) && d.hour < 24 && d.minute < 60 && d.second < 61;
}

bool is_leap(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

int days_of(int year, int month) {
  constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  return kDays[month - 1] + (month == 2 && is_leap(year) ? 1 : 0);
}

}  // namespace

JsonObject json_line(const TraceLines& lines, simdjson::dom::parser& parser, std::string_view text) {
  JsonValue document;
  // `false`: simdjson does not copy the line, because TraceLines keeps SIMDJSON_PADDING readable bytes after the line.
  if (const auto error = parser.parse(text.data(), text.size(), false).get(document); error != simdjson::SUCCESS) {
    lines.fail(std::string("not one whole JSON object (") + simdjson::error_message(error) + ")");
  }
  JsonObject object;
  if (document.get(object) != simdjson::SUCCESS) {
    lines.fail("must be a JSON object in braces, like {\"timestamp\": 0, ...}");
  }
  return object;
}

TimeNs time_field(const TraceLines& lines, std::string_view key, const JsonValue& value, TimeNs unit) {
  const bool ms = unit == kNsPerMs;
  const double largest = kMaxFieldSeconds * static_cast<double>(kNsPerSecond / unit);
  const auto too_large = [&] {
    lines.fail(key, ms ? "is too large; times end at 9e12 ms" : "is too large; times end at 9e9 s");
  };
  std::uint64_t whole = 0;
  if (value.get(whole) == simdjson::SUCCESS) {
    if (whole > static_cast<std::uint64_t>(largest)) too_large();
    return static_cast<TimeNs>(whole) * unit;
  }
  double number = -1.0;
  if (!value.is_double() || value.get(number) != simdjson::SUCCESS || !(number >= 0.0)) {
    lines.fail(key, ms ? "must be a number of milliseconds >= 0" : "must be a number of seconds >= 0");
  }
  if (number > largest) too_large();
  return static_cast<TimeNs>(number * static_cast<double>(unit) + 0.5);
}

std::uint64_t natural_field(const TraceLines& lines, std::string_view key, const JsonValue& value,
                            std::uint64_t largest) {
  std::uint64_t result = 0;
  if (value.get(result) != simdjson::SUCCESS || result > largest) {
    lines.fail(key, "must be an integer from 0 to " + std::to_string(largest));
  }
  return result;
}

std::int64_t integer_field(const TraceLines& lines, std::string_view key, const JsonValue& value, std::int64_t least,
                           std::int64_t largest) {
  std::int64_t result = 0;
  if (value.get(result) != simdjson::SUCCESS || result < least || result > largest) {
    lines.fail(key, "must be an integer from " + std::to_string(least) + " to " + std::to_string(largest));
  }
  return result;
}

// FNV-1a over the bytes, then a final mix. The top bit is set, so that a hash never equals a small integer. The value
// kSessionZero is left out.
std::uint64_t string_id(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  h ^= h >> 32;
  h *= 0x9e3779b97f4a7c15ULL;
  h ^= h >> 29;
  h |= kSessionZero;
  return h == kSessionZero ? h + 1 : h;
}

void pass_over_unknown(const JsonObject& object, std::string_view within, std::initializer_list<std::string_view> known,
                       PassedOver& passed_over) {
  for (const auto& entry : object) {
    const std::string_view key = entry.key;
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    within.empty() ? passed_over.add(key) : passed_over.add(std::string(within).append(key));
  }
}

std::uint64_t id_field(const TraceLines& lines, std::string_view key, const JsonValue& value) {
  std::uint64_t number = 0;
  if (value.get(number) == simdjson::SUCCESS) return number;
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) return string_id(text);
  lines.fail(key, "must be an integer >= 0 or a string");
}

std::uint64_t session_field(const TraceLines& lines, std::string_view key, const JsonValue& value) {
  const std::uint64_t session = id_field(lines, key, value);
  return session == 0 ? kSessionZero : session;
}

void ids_field(const TraceLines& lines, std::string_view key, const JsonValue& value, std::uint64_t largest,
               std::vector<std::uint64_t>& into) {
  simdjson::dom::array array;
  const std::string range = largest == std::numeric_limits<std::uint64_t>::max()
                                ? std::string("integers >= 0")
                                : "integers from 0 to " + std::to_string(largest);
  if (value.get(array) != simdjson::SUCCESS) lines.fail(key, "must be an array of " + range);
  const std::size_t before = into.size();
  for (const JsonValue& element : array) {
    std::uint64_t number = 0;
    if (element.get(number) != simdjson::SUCCESS || number > largest) {
      lines.fail(key, "must hold " + range + "; entry " + std::to_string(into.size() - before) +
                          " (from 0) is something else");
    }
    into.push_back(number);
  }
}

TimeNs date_field(const TraceLines& lines, std::string_view key, std::string_view text, TimeNs zone, bool* is_local) {
  Date d;
  constexpr int kFirstYear = 1971, kLastYear = 2250;  // TimeNs holds these years in every time zone
  if (!parse_date(text, d) || d.year < kFirstYear || d.year > kLastYear || d.month < 1 || d.month > 12 || d.day < 1 ||
      d.day > days_of(d.year, d.month)) {
    lines.fail(key, "must be a date and time like 2023-11-16 18:15:46.6805900");
  }
  TimeNs days = 0;
  for (int year = 1970; year < d.year; ++year) days += is_leap(year) ? 366 : 365;
  for (int month = 1; month < d.month; ++month) days += days_of(d.year, month);
  days += d.day - 1;
  const TimeNs seconds = ((days * 24 + d.hour) * 60 + d.minute) * 60 + d.second;
  if (is_local != nullptr && !d.zone) *is_local = true;
  return seconds * kNsPerSecond + d.fraction - d.zone.value_or(zone);
}

}  // namespace kvtwin

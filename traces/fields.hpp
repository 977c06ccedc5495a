// Values of JSON keys, refused in one sentence where they aren't what they should be. Internal to traces/.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "traces/lines.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

using JsonValue = simdjson::dom::element;
using JsonObject = simdjson::dom::object;

constexpr TimeNs kNsPerMs = 1'000'000;

// Of a line, into an object of `parser`.
JsonObject json_line(const TraceLines& lines, simdjson::dom::parser& parser, std::string_view text);

// The functions below fail with `key` as its name.

// An integer or decimal of `unit` (kNsPerMs or kNsPerSecond), >= 0, rounded to the nearest ns; 285 years at most.
TimeNs time_field(const TraceLines& lines, std::string_view key, const JsonValue& value, TimeNs unit);
std::uint64_t natural_field(const TraceLines& lines, std::string_view key, const JsonValue& value,
                            std::uint64_t largest);
std::int64_t integer_field(const TraceLines& lines, std::string_view key, const JsonValue& value, std::int64_t least,
                           std::int64_t largest);
// An integer, or a string as its hash, which has the top bit set and is never kSessionZero.
std::uint64_t id_field(const TraceLines& lines, std::string_view key, const JsonValue& value);
// The same of a session: 0 is a session like any other.
std::uint64_t session_field(const TraceLines& lines, std::string_view key, const JsonValue& value);
// Appends an array of integers from 0 to `largest`.
void ids_field(const TraceLines& lines, std::string_view key, const JsonValue& value, std::uint64_t largest,
               std::vector<std::uint64_t>& into);

std::uint64_t string_id(std::string_view text);

// 2023-11-16 18:15:46.6805900 (or with a T between, and a Z or +hh:mm behind) as ns since 1970; fails as above.
TimeNs date_field(const TraceLines& lines, std::string_view key, std::string_view text);

}  // namespace kvtwin

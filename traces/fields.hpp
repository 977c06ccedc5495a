// Reads the values of JSON keys. If a value has the wrong type or range, the error is one sentence with the file, the
// line and the key. Internal to traces/.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "traces/lines.hpp"
#include "traces/passed_over.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

using JsonValue = simdjson::dom::element;
using JsonObject = simdjson::dom::object;

constexpr TimeNs kNsPerMs = 1'000'000;

// Parses one line. The returned object lives in `parser`, until the next line is parsed.
JsonObject json_line(const TraceLines& lines, simdjson::dom::parser& parser, std::string_view text);

// Errors of the functions below: TraceError, with `key` as the key's name.

// An integer or a decimal in `unit` (kNsPerMs or kNsPerSecond), >= 0. Rounds to the nearest ns; at most 285 years.
TimeNs time_field(const TraceLines& lines, std::string_view key, const JsonValue& value, TimeNs unit);
std::uint64_t natural_field(const TraceLines& lines, std::string_view key, const JsonValue& value,
                            std::uint64_t largest);
std::int64_t integer_field(const TraceLines& lines, std::string_view key, const JsonValue& value, std::int64_t least,
                           std::int64_t largest);
// An integer as its value, or a string as its hash. A hash has the top bit set and is never kSessionZero.
std::uint64_t id_field(const TraceLines& lines, std::string_view key, const JsonValue& value);
// Like id_field(), for a session: returns kSessionZero for the integer 0, because 0 means "no session".
std::uint64_t session_field(const TraceLines& lines, std::string_view key, const JsonValue& value);
// Appends an array of integers from 0 to `largest`.
void ids_field(const TraceLines& lines, std::string_view key, const JsonValue& value, std::uint64_t largest,
               std::vector<std::uint64_t>& into);

std::uint64_t string_id(std::string_view text);

// Counts the keys of `object` that are not among `known`. `within`: the path of the object, for example "obj.".
void pass_over_unknown(const JsonObject& object, std::string_view within, std::initializer_list<std::string_view> known,
                       PassedOver& passed_over);

// Returns a date as ns since 1970. Form: 2023-11-16 18:15:46.6805900, or with T instead of the space, optionally
// followed by Z or +hh:mm. A date without these is of `zone` (east of UTC); *is_local, if not null, then becomes true.
// Errors as above.
TimeNs date_field(const TraceLines& lines, std::string_view key, std::string_view text, TimeNs zone = 0,
                  bool* is_local = nullptr);

}  // namespace kvtwin

// Numbers with units, as people write them: 60k, 20s, 500ms, 64GiB, 1.5TB, 400Gb/s, 90%.
//
// A number without a unit is in the unit of its place (a key, an option, a goal, a price). k, M, G, T and P are powers
// of 1,000; Ki, Mi, Gi, Ti and Pi are powers of 1,024.
//   count         60k, 4Ki, 1.5M
//   time          ns, us, ms, s, min (or m), h, d
//   bytes         64GiB, 1.5TB, 4Ki; B may be left out
//   bytes/second  12GB/s, 400Gb/s; /s may be left out, and b is a bit
//   watts         700W, 1.2kW
//   share         90%
//   percent       90 or 90%
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvtwin {

inline constexpr double kGib = 1073741824.0;

struct Unit {
  enum class Kind : std::uint8_t { count, time, bytes, byte_rate, power, share, percent };

  Kind kind = Kind::count;
  std::string_view name;  // for error texts, for example "GiB"; empty for counts and shares
  int power_of_10 = 0;    // 1 of this unit is factor * 10^power_of_10 seconds, bytes, bytes/second or watts
  double factor = 1;
};

// Returns the unit of a key, an option or a figure by its name: "tiers.host.gib", "--think-s", "ttft_p90_s". A name
// without a unit is a count.
Unit unit_named(std::string_view name);
// Returns the unit of a figure of a price list: "TB", "W", "USD/GiB", "years".
Unit unit_of_price(std::string_view unit);

// Returns whether `text` begins as a number does, so that number_in() can read it or say why not.
bool begins_as_number(std::string_view text);
// Returns whether `text` is a number with something after it.
bool has_unit(std::string_view text);
// Returns the number in `unit`, correctly rounded. `where`: the place, for errors. Errors: InputError for a text that
// is no number, for an unknown unit and for a unit of another kind.
double number_in(const Unit& unit, std::string_view text, const std::string& where);
// Returns the shortest text that reads as this number, without an exponent where a whole number below 10^15 needs none.
std::string plain_number(double value);

}  // namespace kvtwin

// The parameters of a policy. A text chooses a policy and gives its parameters: "slru(protected=3)". The policy's make
// function reads each parameter once, in every case, by its name, range, default and help:
//
//   Slru(const EvictionSetup& setup)
//       : protected_(setup.parameters.whole("protected", {.fallback = 2, .least = 1, .most = 9, .help = "..."})) {}
//
// So a parameter is declared where it is used. To list the parameters of a policy, the library calls its make function
// with empty Parameters, and takes the list of what was read (policy/choices.hpp).
//
// Values: a whole number (20, 4Ki, 60k), a decimal number (0.5, 50%), a time (250ms, 0.25s; a number without a unit is
// in seconds), true or false, or one of some words. Numbers are read without floating point.
// Errors: a value that cannot be read or is out of range, and a name that was not read, become error(). The reading
// functions return the default then.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

// The parts of "NAME" or "NAME(PARAMETERS)". Blanks around both are left out.
struct PolicyText {
  std::string_view name, parameters;
  bool closed = true;  // false: the brackets do not match, or something follows them
};
PolicyText policy_text(std::string_view text);

// Returns the items of a list. A separator inside brackets does not separate. An empty text has no item; "a," has an
// empty one at its end.
std::vector<std::string_view> split_list(std::string_view text, char separator = ',');

// A parameter that was read.
struct Parameter {
  std::string name;
  std::string fallback, value;  // as texts that read as the same value; `value` is the default if none was given
  std::string range;            // "at least 1 and at most 9", "one of events, prompts"
  std::string help;
  std::int64_t number = 0;  // of `value`: a count, 1/1024, ns, 0 or 1, the place of the word
  bool given = false;
};

class Parameters {
 public:
  struct Whole {
    std::uint64_t fallback = 0, least = 0, most = std::uint64_t{1} << 62;
    std::string_view help;
  };
  // Of a decimal number and of a time.
  struct Decimal {
    std::string_view fallback, least = "0", most;
    std::string_view help;
  };

  Parameters() = default;
  // `text`: what stands in the brackets, e.g. "protected=3".
  explicit Parameters(std::string_view text);

  std::uint64_t whole(std::string_view name, const Whole& of) const;
  // Returns the number in units of 1/1024, rounded to the nearest.
  std::uint32_t per_1024(std::string_view name, const Decimal& of) const;
  // Returns nanoseconds, rounded to the nearest.
  TimeNs time(std::string_view name, const Decimal& of) const;
  bool flag(std::string_view name, bool fallback, std::string_view help) const;
  // Returns the place of the word among the words. The first one is the default.
  std::size_t word(std::string_view name, std::span<const std::string_view> words, std::string_view help) const;
  // Keeps a sentence for the user, about these values.
  void note(std::string_view sentence) const { notes_.emplace_back(sentence); }

  // What was read, in the order of reading.
  const std::vector<Parameter>& read() const { return read_; }
  const std::vector<std::string>& notes() const { return notes_; }
  // Returns the first fault in one sentence: what, where, and what would be right. Empty if there is none.
  std::string error() const;

 private:
  struct Given {
    std::string name, value;
  };
  // Adds the parameter to read_. Returns the value that was given; null if none was.
  const std::string* declare(std::string_view name, std::string range, std::string_view help) const;
  void refuse(std::string_view value) const;
  std::uint64_t scaled(std::string_view name, const Decimal& of, bool is_time) const;

  std::vector<Given> given_;
  // Reading changes no value. It only keeps a record.
  mutable std::vector<Parameter> read_;
  mutable std::vector<std::string> notes_;
  mutable std::string error_;
};

enum class ParameterTexts : std::uint8_t {
  given,      // those that the user gave
  different,  // those that differ from their defaults
  all,
};
// Returns "name(a=1, b=2)", in the order of reading; "name" without any.
std::string text_of_policy(std::string_view name, std::span<const Parameter> parameters, ParameterTexts which);

}  // namespace kvtwin

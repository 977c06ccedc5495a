// Text of a server's command line: words, numbers, JSON, misspellings.
#pragma once

#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "models/json.hpp"

namespace kvtwin {

// Splits a line as a shell does, but without variables. In addition, a word or a value behind "=" that begins with {
// extends to its }, because JSON within the quotes of an option often has no quotes of its own. `option`: for errors.
// Errors: InputError.
std::vector<std::string> split_flag_line(std::string_view line, std::string_view option);
// Removes what follows the command that begins before `first`: a redirection, a pipe, a second command.
void cut_at_operator(std::vector<std::string>& words, std::size_t first);

// Returns the known name that `name` probably means; empty if no known name is near, so `name` may belong to a later
// version.
std::string misspelt(std::string_view name, std::span<const std::string> known);

// Returns at most 60 characters.
std::string short_text(std::string_view text);
std::string lower_case(std::string_view text);
// Returns the shortest text of exactly this number.
std::string number_text(double number);
std::vector<std::string> split_words(std::string_view words);
// Returns the list with commas, and the number of further entries.
std::string joined_words(const std::vector<std::string>& list, std::size_t most = 40);

// Returns the number if the whole text is one.
template <typename T>
std::optional<T> number_of(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Reads one JSON object, and sorts its keys. `where`: for errors. Errors: InputError for other text, a key twice, or
// deep nesting.
Json read_json_object(std::string_view text, const std::string& where);
// Reads a file of at most 1 MiB. `right`: for errors, "give the path of a JSON file". Errors: InputError.
std::string read_argument_file(const std::string& path, const std::string& where, const std::string& right);
// Returns the first 4 MiB of a server's log. Errors: InputError.
std::string read_log_head(const std::string& path, const std::string& where);

}  // namespace kvtwin

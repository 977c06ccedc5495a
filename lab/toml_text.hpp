// Parses TOML files of users.
#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>

namespace kvtwin {

// `name`: of the file, for errors. Errors: InputError with file and line for text that is not TOML, and for a line with
// more than 64 dots. toml++ nests one table per dot and destroys the tables by recursion, so thousands of dots would
// overflow the stack.
toml::table parse_toml(std::string_view text, const std::string& name);

// Returns the texts of a list, joined by ", ". Errors: InputError that begins with `where` for an item that is no text.
std::string text_of_list(const toml::array& list, const std::string& where);

}  // namespace kvtwin

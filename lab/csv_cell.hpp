// Cells of CSV files that kvtwin writes.
#pragma once

#include <string>
#include <string_view>

namespace kvtwin {

// Returns the text as a cell: in quotes if it contains a comma, a quote or a line break. A spreadsheet takes a text
// that begins with = + - @, a tab or a carriage return for a formula, so such a text gets a leading apostrophe, unless
// it is a number.
std::string csv_cell(std::string_view text);

}  // namespace kvtwin

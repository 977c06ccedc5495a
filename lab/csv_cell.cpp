#include "lab/csv_cell.hpp"

#include <charconv>
#include <system_error>

namespace kvtwin {
namespace {

bool is_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);  // from_chars() refuses a plus sign
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string csv_cell(std::string_view text) {
  std::string cell;
  if (!text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos && !is_number(text)) {
    cell = "'";
  }
  for (const char c : text) cell += c == '"' ? "\"\"" : std::string(1, c);
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  return '"' + cell + '"';
}

}  // namespace kvtwin

#include "models/text_file.hpp"

#include <array>
#include <fstream>
#include <system_error>

#include "models/error.hpp"

namespace kvtwin {

std::string read_text_file(const std::filesystem::path& path, std::string_view wanted, std::size_t max_bytes) {
  const auto refuse = [&](const std::string& why) {
    throw ModelError(path.string() + ": " + why + "; " + std::string(wanted));
  };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (exists(status) && !is_regular_file(status)) refuse("can't be read, as it is no regular file");
  std::ifstream in(path, std::ios::binary);
  std::string text;
  std::array<char, 1 << 16> piece{};
  while (text.size() <= max_bytes && (in.read(piece.data(), piece.size()), in.gcount() > 0)) {
    text.append(piece.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (text.size() > max_bytes) refuse("is longer than " + std::to_string(max_bytes >> 20) + " MiB");
  if (!in.eof()) refuse("can't be read");
  return text;
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t end = line.find(',');
    fields.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return fields;
    line.remove_prefix(end + 1);
  }
}

}  // namespace kvtwin

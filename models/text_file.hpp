// Reads a small file as a whole: an experiment, a model's configuration, a machine's figures, a table. Splits the lines
// of a table.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxRowsBytes = std::size_t{1} << 30;  // of a file with a row per request

// `wanted`: end of the error text, for example "give the path of a JSON file".
// Errors: ModelError if `path` is no regular file (a device may have no end), cannot be read, or has more than
// `max_bytes`.
// Cost: memory for at most `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::string_view wanted,
                           std::size_t max_bytes = kMaxTextBytes);

// Returns the fields between the commas of a line without quotes, at least one. They are parts of `line`.
std::vector<std::string_view> fields_of(std::string_view line);

}  // namespace kvtwin

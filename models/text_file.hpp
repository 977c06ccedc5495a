// Reads a small file whole: an experiment, a model's configuration, a machine's figures, a table.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvtwin {

constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxRowsBytes = std::size_t{1} << 30;  // of a file with a row a request

// `wanted` ends an error's sentence: "give the path of a JSON file".
// Errors: ModelError if `path` is no regular file (a device may have no end), can't be read, or holds more than
// `max_bytes`.
// Cost: memory for `max_bytes` at most.
std::string read_text_file(const std::filesystem::path& path, std::string_view wanted,
                           std::size_t max_bytes = kMaxTextBytes);

}  // namespace kvtwin

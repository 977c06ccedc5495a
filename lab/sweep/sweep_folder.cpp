#include "lab/sweep/sweep_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

#include "lab/csv_cell.hpp"
#include "lab/error.hpp"
#include "lab/out_files.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// Returns whether the file is sweep.jsonl or the file of a shard.
bool is_row_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "sweep.jsonl" || (name.starts_with("sweep.shard-") && name.ends_with(".jsonl"));
}

std::string cell_of(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? csv_cell(value.get<std::string>()) : value.dump();
}

}  // namespace

Shard Shard::from_text(std::string_view text) {
  Shard shard{0, 0};
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, shard.number);
  const bool slash = number.ec == std::errc() && number.ptr != end && *number.ptr == '/';
  const auto of = slash ? std::from_chars(number.ptr + 1, end, shard.of) : number;
  if (!slash || of.ec != std::errc() || of.ptr != end || shard.number == 0 || shard.number > shard.of ||
      shard.of > 100'000) {
    throw InputError("--shard " + std::string(text) + ": must be i/n, the i-th of n shares, e.g. 1/4");
  }
  return shard;
}

SweepFolder::SweepFolder(const std::string& path, std::optional<Shard> shard, bool force)
    : path_(path), rows_(path_ / "sweep.jsonl") {
  if (shard) {
    rows_ = RowFile(path_ /
                    ("sweep.shard-" + std::to_string(shard->number) + "-of-" + std::to_string(shard->of) + ".jsonl"));
  }
  std::error_code error;
  const bool there = fs::exists(path_, error) && !fs::is_empty(path_, error);
  if (there && row_files().empty()) {
    throw InputError("--out " + path + ": is not empty, and no sweep's; name another folder");
  }
  make_out_folder(path_, error);
  if (!fs::is_directory(path_)) {
    throw WorkError("--out " + path + ": can't be made" + (error ? ": " + error.message() : ""));
  }
  if (!force) return;
  if (shard) {
    fs::remove(rows_.path(), error);
    return;
  }
  for (const fs::path& file : row_files()) fs::remove(file, error);
  for (const char* name : {"sweep.csv", "sweep.json", "compare.csv", "compare.jsonl", "compare.json"}) {
    fs::remove(path_ / name, error);
  }
}

std::vector<fs::path> SweepFolder::row_files() const {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    if (is_row_file(entry.path())) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::map<std::string, Json> SweepFolder::earlier() const {
  std::map<std::string, Json> rows;
  for (const fs::path& file : row_files()) RowFile::read(file, rows);
  return rows;
}

void SweepFolder::write_rows(const std::vector<Json>& rows) {
  write("sweep.csv", csv_of(rows));
  write("sweep.jsonl", json_lines(rows));
}

void SweepFolder::write(const std::string& name, const std::string& content) {
  rows_.close();
  write_whole(path_ / name, content);
}

std::string json_lines(const std::vector<Json>& rows) {
  std::string lines;
  for (const Json& row : rows) lines += row.dump() + "\n";
  return lines;
}

std::string csv_of(const std::vector<Json>& rows) {
  std::vector<std::string> columns;  // the union of all rows' columns, because a failed row has other columns
  for (const Json& row : rows) {
    for (const auto& [name, value] : row.items()) {
      const bool shown = !value.is_array() && name != "identity";
      if (shown && std::ranges::find(columns, name) == columns.end()) columns.push_back(name);
    }
  }
  const auto line_of = [&](const auto& cell) {
    std::string line;
    for (const std::string& column : columns) {
      line += (&column == columns.data() ? "" : ",") + cell_of(cell(column));
    }
    return line + "\n";
  };
  std::string text = line_of([](const std::string& column) { return Json(column); });
  for (const Json& row : rows) {
    text += line_of([&](const std::string& column) { return row.value(column, Json()); });
  }
  return text;
}

}  // namespace kvtwin

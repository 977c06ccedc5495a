// The folder of a sweep. Each row is stored as soon as its cell is done, so an interrupted sweep can continue. The
// final files are written at the end. Several shards may write into one folder at the same time, each into a file of
// its own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/sweep/row_file.hpp"
#include "models/json.hpp"

namespace kvtwin {

// A share of the cells: of each `of` neighbouring cells, the cell `number`, counted from 1.
struct Shard {
  std::size_t number = 1, of = 1;
  bool holds(std::size_t cell) const { return cell % of == number - 1; }
  // Reads "2/8". Errors: InputError.
  static Shard from_text(std::string_view text);
};

class SweepFolder {
 public:
  // Creates the folder if it does not exist. `force`: removes earlier rows; for a shard, only its own rows.
  // Errors: InputError if the folder is not empty and no sweep's; WorkError if the folder cannot be created.
  SweepFolder(const std::string& path, std::optional<Shard> shard, bool force);

  // Returns the rows of earlier runs of the sweep and of all shards, by identity. Failed rows are left out.
  std::map<std::string, Json> earlier() const;
  // Appends a row. Errors: WorkError.
  void keep(const Json& row) { rows_.keep(row); }
  // Replaces the stored rows by these rows in order. Requires: not a shard.
  void write_rows(const std::vector<Json>& rows);
  // Writes a file; the file appears when it is complete. Errors: WorkError.
  void write(const std::string& name, const std::string& content);

 private:
  std::vector<std::filesystem::path> row_files() const;
  std::filesystem::path path_;
  RowFile rows_;
};

// Returns one JSON object per line.
std::string json_lines(const std::vector<Json>& rows);
// Returns CSV text. Lists and `identity` are left out.
std::string csv_of(const std::vector<Json>& rows);

}  // namespace kvtwin

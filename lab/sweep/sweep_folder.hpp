// A sweep's folder: its rows, kept as soon as they are there so that a sweep that was ended goes on where it was, and
// what is made of them at the end. Several shards may write into one folder at once, each into a file of its own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

// A share of a sweep's cells: of every `of` neighbours the `number`-th, from 1 on.
struct Shard {
  std::size_t number = 1, of = 1;
  bool holds(std::size_t cell) const { return cell % of == number - 1; }
  // "2/8"; InputError if it isn't one.
  static Shard from_text(std::string_view text);
};

class SweepFolder {
 public:
  // Made if it isn't there; InputError if it is another's. `force` forgets earlier rows, with a shard its own only.
  SweepFolder(const std::string& path, std::optional<Shard> shard, bool force);

  // Rows of earlier sweeps and of all shards, by identity.
  std::map<std::string, nlohmann::ordered_json> earlier() const;
  void keep(const nlohmann::ordered_json& row);
  // Rows in their order, instead of those that were kept one by one. Not of a shard.
  void write_rows(const std::vector<nlohmann::ordered_json>& rows);
  // Appears when whole.
  void write(const std::string& name, const std::string& content);

 private:
  std::vector<std::filesystem::path> row_files() const;
  std::filesystem::path path_, rows_;
  std::ofstream log_;
};

// One object a line.
std::string json_lines(const std::vector<nlohmann::ordered_json>& rows);
// Columns are the first row's; lists and `identity` are left out.
std::string csv_of(const std::vector<nlohmann::ordered_json>& rows);

}  // namespace kvtwin

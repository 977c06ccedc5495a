// Results of simulations, one JSON object per line with an `identity`, in a file that grows as they come. A command
// that was interrupted reads them and goes on.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "lab/experiment/experiment.hpp"
#include "models/json.hpp"

namespace kvtwin {

class RowFile {
 public:
  explicit RowFile(std::filesystem::path path) : path_(std::move(path)) {}

  // Adds the rows of the file to `rows`, by identity. A row that was cut short is left out, and one with a `failure`.
  static void read(const std::filesystem::path& path, std::map<std::string, Json>& rows);
  std::map<std::string, Json> rows() const;
  // Appends a row. Errors: WorkError.
  void keep(const Json& row);
  void close() { log_.close(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::ofstream log_;
};

// Returns a hash of the build, the experiment, the contents of its files, and `more`. Equal identities have equal
// results.
std::string identity_of(const Experiment& experiment, std::string_view more);

}  // namespace kvtwin

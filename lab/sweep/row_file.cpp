#include "lab/sweep/row_file.hpp"

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>
#include <vector>

#include "lab/decision_text.hpp"
#include "lab/out_files.hpp"
#include "lab/version.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ULL;

void mix(std::uint64_t& hash, std::string_view text) {  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
}

// Returns size and hash of a file. The path does not matter, because shards may run on other machines.
std::string content_mark(const fs::path& path) {
  static std::map<fs::path, std::string> known;
  const auto [at, fresh] = known.try_emplace(path);
  if (!fresh) return at->second;
  std::ifstream in(path, std::ios::binary);
  std::uint64_t hash = kHashStart, size = 0;
  std::vector<char> piece(1 << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0) {
    const auto got = static_cast<std::size_t>(in.gcount());
    mix(hash, {piece.data(), got});
    size += got;
  }
  return at->second = std::to_string(size) + " " + digest_text(hash);
}

}  // namespace

void RowFile::read(const fs::path& path, std::map<std::string, Json>& rows) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    Json row = Json::parse_or_discard(line);
    if (!row.is_object() || !row.contains("identity") || !row["identity"].is_string()) continue;
    if (row.contains("failure")) continue;
    const std::string identity = row["identity"];
    rows[identity] = std::move(row);
  }
}

std::map<std::string, Json> RowFile::rows() const {
  std::map<std::string, Json> rows;
  read(path_, rows);
  return rows;
}

void RowFile::keep(const Json& row) {
  errno = 0;
  if (!log_.is_open()) {
    std::ifstream before(path_, std::ios::binary | std::ios::ate);
    const bool cut_short = before && before.tellg() > 0 && before.seekg(-1, std::ios::end).get() != '\n';
    log_.open(path_, std::ios::app | std::ios::binary);
    if (cut_short) log_ << "\n";  // the writer of the last row was killed
  }
  log_ << row.dump() << "\n" << std::flush;
  if (!log_) throw cannot_write(path_, errno);
}

std::string identity_of(const Experiment& experiment, std::string_view more) {
  std::uint64_t hash = kHashStart;
  const auto add = [&](std::string_view text) {
    mix(hash, text);
    mix(hash, "\xFF");
  };
  add(kGitCommit);
  add(more);
  for (const ExperimentKey& key : experiment_keys()) {
    const bool is_path = key.name == "workload.trace" || key.name == "model.config" || key.name == "hardware.file" ||
                         key.name == "hardware.operators_file" || key.name == "prices.file";
    std::error_code missing;
    const bool is_file =
        is_path && !experiment.text(key.name).empty() && fs::is_regular_file(experiment.path(key.name), missing);
    add(key.name);
    add(is_file ? content_mark(experiment.path(key.name)) : experiment.as_toml(key.name));
  }
  return digest_text(hash);
}

}  // namespace kvtwin

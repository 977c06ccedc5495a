#include "models/path_matrix.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

namespace kvtwin {
namespace {

constexpr double kAsGood = 0.95;
constexpr Direction kDirections[] = {Direction::host_to_device, Direction::device_to_host};

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// One row's fields, by the columns that are needed.
class Row {
 public:
  Row(std::vector<std::string_view> fields, std::string where) : fields_(std::move(fields)), where_(std::move(where)) {}

  std::string_view text(std::size_t column) const { return fields_[column]; }
  double number(std::size_t column) const {
    double value = 0;
    const std::string_view field = fields_[column];
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error != std::errc() || end != field.data() + field.size() || !(value >= 0)) {
      throw ModelError(where_ + ": `" + std::string(field) + "` where a number of 0 or more belongs");
    }
    return value;
  }
  Direction direction(std::size_t column) const {
    const std::string_view field = fields_[column];
    if (field == "h2d") return Direction::host_to_device;
    if (field == "d2h") return Direction::device_to_host;
    throw ModelError(where_ + ": direction `" + std::string(field) + "`; there are h2d and d2h");
  }

 private:
  std::vector<std::string_view> fields_;
  std::string where_;
};

std::array<std::size_t, 5> columns_of(const std::vector<std::string_view>& names, const std::string& file) {
  constexpr std::string_view kNeeded[] = {"path", "direction", "chunk_bytes", "chunks", "r_median"};
  std::array<std::size_t, 5> columns{};
  for (std::size_t i = 0; i < std::size(kNeeded); ++i) {
    const auto found = std::find(names.begin(), names.end(), kNeeded[i]);
    if (found == names.end()) throw ModelError(file + ": no column " + std::string(kNeeded[i]));
    columns[i] = static_cast<std::size_t>(found - names.begin());
  }
  return columns;
}

bool ours(const PathRate& rate) { return rate.path != "copy_loop" && rate.path != "warp_per_row"; }

// By path, of one cell: the best rate of one of ours, and of a few.
struct Cell {
  double best = 0, batch = 0, boxes = 0, kernel = 0;
  void add(const PathRate& rate) {
    best = std::max(best, rate.rate);
    if (rate.path == "batch") batch = rate.rate;
    if (rate.path == "boxes") boxes = rate.rate;
    if (rate.path == "kernel" || rate.path == "ring") kernel = std::max(kernel, rate.rate);
  }
};
using Cells = std::map<Bytes, std::map<std::uint64_t, Cell>>;  // by piece size, number of pieces

Cells cells_of(std::span<const PathRate> matrix, Direction direction) {
  Cells cells;
  for (const PathRate& rate : matrix) {
    if (rate.direction == direction && ours(rate)) cells[rate.chunk][rate.chunks].add(rate);
  }
  return cells;
}

// The piece size from which on `path` is as good as the best, with the most pieces of each size. Nothing if it was
// never measured.
std::optional<Bytes> good_from(const Cells& cells, double Cell::*path) {
  std::optional<Bytes> from;
  for (auto size = cells.rbegin(); size != cells.rend(); ++size) {
    const Cell& cell = size->second.rbegin()->second;
    if (cell.*path == 0) continue;
    if (cell.*path < kAsGood * cell.best) return from ? from : 2 * size->first;
    from = size->first;
  }
  return from;
}

// The number of pieces from which on a kernel is faster than a batch, for every size below `below`.
std::optional<std::uint64_t> kernels_from(const Cells& cells, Bytes below) {
  std::optional<std::uint64_t> most;
  for (const auto& [chunk, counts] : cells) {
    if (chunk >= below) break;
    std::optional<std::uint64_t> from;
    for (auto count = counts.rbegin(); count != counts.rend(); ++count) {
      const Cell& cell = count->second;
      if (cell.kernel == 0 || cell.batch == 0) continue;
      if (cell.kernel < cell.batch) break;
      from = count->first;
    }
    if (from) most = std::max(most.value_or(0), *from);
  }
  return most;
}

}  // namespace

std::vector<PathRate> parse_path_matrix(std::string_view csv, const std::string& file) {
  std::vector<PathRate> matrix;
  std::vector<std::string_view> names;
  std::array<std::size_t, 5> columns{};
  std::size_t number = 0;
  for (std::string_view line : split(csv, '\n')) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    std::vector<std::string_view> fields = split(line, ',');
    if (names.empty()) {
      names = std::move(fields);
      columns = columns_of(names, file);
      continue;
    }
    const std::string where = file + ":" + std::to_string(number);
    if (fields.size() != names.size()) {
      throw ModelError(where + ": " + std::to_string(fields.size()) + " fields under " + std::to_string(names.size()) +
                       " columns");
    }
    const Row row(std::move(fields), where);
    matrix.push_back({std::string(row.text(columns[0])), row.direction(columns[1]),
                      static_cast<Bytes>(row.number(columns[2])), static_cast<std::uint64_t>(row.number(columns[3])),
                      row.number(columns[4])});
  }
  if (names.empty()) throw ModelError(file + ": no line of column names");
  return matrix;
}

std::vector<PathRate> fastest_paths(std::span<const PathRate> matrix) {
  const auto cell = [](const PathRate& r) { return std::tuple(r.direction, r.chunk, r.chunks); };
  std::vector<PathRate> sorted;
  std::copy_if(matrix.begin(), matrix.end(), std::back_inserter(sorted), ours);
  std::stable_sort(sorted.begin(), sorted.end(), [&](const PathRate& a, const PathRate& b) {
    return cell(a) != cell(b) ? cell(a) < cell(b) : a.rate > b.rate;
  });
  const auto same = [&](const PathRate& a, const PathRate& b) { return cell(a) == cell(b); };
  sorted.erase(std::unique(sorted.begin(), sorted.end(), same), sorted.end());
  return sorted;
}

PlannerLimits limits_from(std::span<const PathRate> matrix, PlannerLimits limits) {
  std::optional<Bytes> box_min;
  std::optional<std::uint64_t> pieces;
  for (const Direction direction : kDirections) {
    const Cells cells = cells_of(matrix, direction);
    Bytes& least = direction == Direction::host_to_device ? limits.copy_engine_min_h2d : limits.copy_engine_min_d2h;
    least = good_from(cells, &Cell::batch).value_or(least);
    if (const auto from = good_from(cells, &Cell::boxes)) box_min = std::max(box_min.value_or(0), *from);
    if (const auto from = kernels_from(cells, least)) pieces = std::max(pieces.value_or(0), *from);
  }
  limits.box_min = box_min.value_or(limits.box_min);
  limits.kernel_min_pieces = pieces.value_or(limits.kernel_min_pieces);
  return limits;
}

}  // namespace kvtwin

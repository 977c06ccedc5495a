#include "models/path_matrix.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "policy/base/names.hpp"

namespace kvtwin {
namespace {

constexpr double kMinRelativePathRate = 0.95;
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

// The fields of one row, by the required columns.
class PathRow {
 public:
  PathRow(std::vector<std::string_view> fields, std::string where)
      : fields_(std::move(fields)), where_(std::move(where)) {}

  std::string_view text(std::size_t column) const { return fields_[column]; }
  double rate(std::size_t column) const {
    const std::optional<double> value = read<double>(column);
    if (!value || !std::isfinite(*value) || *value < 0) fail(column, "a number of 0 or more");
    return *value;
  }
  std::uint64_t whole(std::size_t column) const {
    const std::optional<std::uint64_t> value = read<std::uint64_t>(column);
    if (!value || *value == 0 || *value > kMaxValue) fail(column, "a whole number from 1 to 2^40");
    return *value;
  }
  Direction direction(std::size_t column) const {
    const std::string_view field = fields_[column];
    if (const std::optional<Direction> value = value_named<Direction>(field)) return *value;
    throw ModelError(where_ + ": direction `" + std::string(field) + "`; there are h2d and d2h");
  }

 private:
  static constexpr std::uint64_t kMaxValue = std::uint64_t{1} << 40;

  template <typename Number>
  std::optional<Number> read(std::size_t column) const {
    Number value{};
    const std::string_view field = fields_[column];
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error != std::errc() || end != field.data() + field.size()) return std::nullopt;
    return value;
  }
  [[noreturn]] void fail(std::size_t column, const char* right) const {
    throw ModelError(where_ + ": `" + std::string(fields_[column].substr(0, 60)) + "` where " + right + " belongs");
  }

  std::vector<std::string_view> fields_;
  std::string where_;
};

std::array<std::size_t, 5> columns_of(const std::vector<std::string_view>& names, const std::string& where) {
  constexpr std::string_view kNeeded[] = {"path", "direction", "chunk_bytes", "chunks", "r_median"};
  std::array<std::size_t, 5> columns{};
  for (std::size_t i = 0; i < std::size(kNeeded); ++i) {
    const auto found = std::find(names.begin(), names.end(), kNeeded[i]);
    if (found == names.end()) {
      throw ModelError(where + ": no column " + std::string(kNeeded[i]) +
                       "; a matrix.csv of gpu_bench has path, direction, chunk_bytes, chunks and r_median");
    }
    columns[i] = static_cast<std::size_t>(found - names.begin());
  }
  return columns;
}

bool is_planner_path(const PathRate& rate) { return rate.path != "copy_loop" && rate.path != "warp_per_row"; }

// The rates of one cell, of several rows the fastest: the best of all planner paths, and three paths by name.
struct Cell {
  double best = 0, batch = 0, boxes = 0, kernel = 0;
  void add(const PathRate& rate) {
    best = std::max(best, rate.rate);
    if (rate.path == "batch") batch = std::max(batch, rate.rate);
    if (rate.path == "boxes") boxes = std::max(boxes, rate.rate);
    if (rate.path == "kernel" || rate.path == "ring") kernel = std::max(kernel, rate.rate);
  }
};
using Cells = std::map<Bytes, std::map<std::uint64_t, Cell>>;  // by piece size, then number of pieces

Cells cells_of(std::span<const PathRate> matrix, Direction direction) {
  Cells cells;
  for (const PathRate& rate : matrix) {
    if (rate.direction == direction && is_planner_path(rate)) cells[rate.chunk][rate.chunks].add(rate);
  }
  return cells;
}

// Returns the smallest piece size from which `path` is as good as the best, with the largest number of pieces of each
// size. None if the path was not measured.
std::optional<Bytes> good_from(const Cells& cells, double Cell::*path) {
  std::optional<Bytes> from;
  for (auto size = cells.rbegin(); size != cells.rend(); ++size) {
    const Cell& cell = size->second.rbegin()->second;
    if (cell.*path == 0) continue;
    if (cell.*path < kMinRelativePathRate * cell.best) return from ? from : 2 * size->first;
    from = size->first;
  }
  return from;
}

// Returns the number of pieces from which a kernel is faster than a batch, for every piece size below `below`.
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
  std::size_t number = 0, wrong_bytes = 0;
  for (std::string_view line : split(csv, '\n')) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    std::vector<std::string_view> fields = split(line, ',');
    const std::string where = file + ":" + std::to_string(number);
    if (names.empty()) {
      names = std::move(fields);
      columns = columns_of(names, where);
      wrong_bytes = static_cast<std::size_t>(std::ranges::find(names, "wrong_bytes") - names.begin());
      continue;
    }
    if (fields.size() != names.size()) {
      throw ModelError(where + ": " + std::to_string(fields.size()) + " fields under " + std::to_string(names.size()) +
                       " columns");
    }
    const PathRow row(std::move(fields), where);
    if (wrong_bytes != names.size() && row.text(wrong_bytes) != "0") {
      throw ModelError(where + ": wrong_bytes is " + std::string(row.text(wrong_bytes).substr(0, 60)) +
                       ", so this path did not copy; leave the row out, or measure again");
    }
    matrix.push_back({std::string(row.text(columns[0])), row.direction(columns[1]), row.whole(columns[2]),
                      row.whole(columns[3]), row.rate(columns[4])});
  }
  if (names.empty()) throw ModelError(file + ": no line of column names; it must be a matrix.csv of gpu_bench");
  return matrix;
}

MeasuredLimits limits_from(std::span<const PathRate> matrix) {
  MeasuredLimits limits;
  const auto raise = [](auto& most, const auto& found) {
    if (found) most = std::max(most.value_or(0), *found);
  };
  for (const Direction direction : kDirections) {
    const Cells cells = cells_of(matrix, direction);
    const std::optional<Bytes> batches_from = good_from(cells, &Cell::batch);
    (direction == Direction::host_to_device ? limits.copy_engine_min_h2d : limits.copy_engine_min_d2h) = batches_from;
    raise(limits.box_min, good_from(cells, &Cell::boxes));
    raise(limits.kernel_min_pieces, kernels_from(cells, batches_from.value_or(0)));
  }
  return limits;
}

}  // namespace kvtwin

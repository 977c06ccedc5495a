#include "models/operator_table.hpp"

#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "models/presets.hpp"
#include "models/text_file.hpp"

namespace kvtwin {

namespace {

constexpr std::uint64_t kFsPerTableNs = 1'000'000;
constexpr std::uint64_t kMaxPosition = std::uint64_t{1} << 40;  // bytes, tokens or pairs on an axis
constexpr std::uint64_t kMaxNs = 1'000'000'000'000;             // 1000 s
constexpr std::string_view kWantedTable =
    "give a table of kvtwin import-ops, or one of the names that kvtwin presets lists";
bool is_compressed(std::string_view bytes) { return bytes.starts_with(std::string_view("\x28\xb5\x2f\xfd", 4)); }

std::string decompressed(std::string_view bytes, const std::string& file) {
  const auto refuse = [&](const std::string& why) {
    throw ModelError(file + ": " + why + "; " + std::string(kWantedTable));
  };
  std::string text;
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(), &ZSTD_freeDCtx);
  if (context == nullptr) throw std::bad_alloc();
  std::string piece(std::size_t{1} << 17, '\0');
  ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
  std::size_t rest = 1;
  while (rest != 0) {
    ZSTD_outBuffer output{piece.data(), piece.size(), 0};
    const std::size_t before = input.pos;
    rest = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(rest) != 0) refuse(std::string("is not valid zstd: ") + ZSTD_getErrorName(rest));
    text.append(piece, 0, output.pos);
    if (text.size() > kMaxTextBytes) refuse("is longer than " + std::to_string(kMaxTextBytes >> 20) + " MiB");
    if (rest != 0 && output.pos == 0 && input.pos == before) refuse("is cut off in the middle of a zstd frame");
  }
  if (input.pos != input.size) refuse("has more than one zstd frame");
  return text;
}

}  // namespace

Wide128 between_fs(std::uint64_t at, std::uint64_t low_at, std::uint64_t high_at, Wide128 low, Wide128 high) {
  return (low * (high_at - at) + high * (at - low_at)) / (high_at - low_at);
}

// One axis after the other: the time on the line through the two neighbours, whose times come from the next axis.
Wide128 OperatorLattice::inside_fs(std::size_t axis, std::size_t from,
                                   const std::array<std::uint64_t, kMaxAxes>& at) const {
  if (axis == axes_.size()) return Wide128{ns_[from]} * kFsPerTableNs;
  const std::vector<std::uint64_t>& values = axes_[axis];
  const auto above = std::ranges::upper_bound(values, at[axis]);
  const auto next = static_cast<std::size_t>(above - values.begin());
  const auto time_of = [&](std::size_t i) { return inside_fs(axis + 1, from + i * strides_[axis], at); };
  if (next == 0) return time_of(0);
  const Wide128 low = time_of(next - 1);
  if (next == values.size() || values[next - 1] == at[axis]) return low;
  return between_fs(at[axis], values[next - 1], values[next], low, time_of(next));
}

Wide128 OperatorLattice::at_fs(std::uint64_t x, std::uint64_t y, std::uint64_t z) const {
  const std::array<std::uint64_t, kMaxAxes> wanted{x, y, z};
  std::array<std::uint64_t, kMaxAxes> at{};
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    at[i] = std::clamp(wanted[i], axes_[i].front(), axes_[i].back());
  }
  Wide128 fs = inside_fs(0, 0, at);
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (wanted[i] > axes_[i].back()) fs = scaled_by(fs, wanted[i], axes_[i].back());
  }
  return fs;
}

const OperatorLattice* OperatorTable::find(std::string_view lattice) const {
  const auto found = lattices.find(lattice);
  return found == lattices.end() ? nullptr : &found->second;
}

class OperatorTableReader {
 public:
  OperatorTableReader(std::string_view text, const std::string& file) : rest_(text), file_(file) {}

  OperatorTable read() {
    table_.name = file_;
    line();
    if (line_ != "kvtwin-operators 1") fail("the first line must be \"kvtwin-operators 1\"");
    table_.gpu = header("gpu");
    table_.engine = header("engine");
    table_.source = header("source");
    table_.date = header("date");
    if (!line()) fail("there is no table");
    while (!at_end_) read_lattice();
    return std::move(table_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ModelError(file_ + ": line " + std::to_string(number_) + ": " + what + "; " + std::string(kWantedTable));
  }

  // Reads the next line that is no comment into line_. Returns false at the end.
  bool line() {
    do {
      if (rest_.empty()) {
        at_end_ = true;
        line_ = {};
        return false;
      }
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      line_ = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++number_;
    } while (line_.starts_with('#'));
    return true;
  }

  std::string header(std::string_view key) {
    line();
    const std::string begin = std::string(key) + " ";
    if (!line_.starts_with(begin)) fail("must be \"" + begin + "...\"");
    return printable(line_.substr(begin.size()));
  }

  std::string printable(std::string_view text) const {
    const bool fine = std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
    constexpr std::size_t kMaxNameBytes = 200;
    if (text.empty() || text.size() > kMaxNameBytes || !fine) fail("must have a text of 1 to 200 ASCII characters");
    return std::string(text);
  }

  // Appends the numbers of a line "word 1 2 3".
  void numbers(std::string_view text, std::uint64_t most, std::vector<std::uint64_t>& to) {
    const char* at = text.data();
    const char* const end = text.data() + text.size();
    while (at != end) {
      std::uint64_t value = 0;
      const auto [stop, error] = std::from_chars(at, end, value);
      if (error != std::errc() || value == 0 || value > most || (stop != end && *stop != ' ')) {
        fail("the numbers must be integers from 1 to " + std::to_string(most) + " with one space between them");
      }
      to.push_back(value);
      at = stop == end ? end : stop + 1;
    }
  }

  void read_lattice() {
    constexpr std::string_view kTable = "table ", kAxis = "axis ", kTimes = "ns ";
    if (!line_.starts_with(kTable)) fail("a table must begin with \"table NAME\"");
    const std::string name = printable(line_.substr(kTable.size()));
    OperatorLattice lattice;
    std::size_t points = 1;
    while (line() && line_.starts_with(kAxis)) {
      const std::string_view axis = line_.substr(kAxis.size());
      const std::size_t space = std::min(axis.find(' '), axis.size());
      std::vector<std::uint64_t> values;
      numbers(axis.substr(std::min(space + 1, axis.size())), kMaxPosition, values);
      const bool rises = std::ranges::adjacent_find(values, std::greater_equal<>()) == values.end();
      if (values.empty() || !rises) fail("the values of an axis must rise");
      if (lattice.axes_.size() == OperatorLattice::kMaxAxes) fail("a table has at most 3 axes");
      points *= values.size();
      all_points_ += points;
      if (points > kMaxOperatorPoints || all_points_ > 4 * kMaxOperatorPoints) fail("there are too many points");
      lattice.axes_.push_back(std::move(values));
    }
    if (lattice.axes_.empty()) fail("a table must have an axis");
    const std::size_t row = lattice.axes_.back().size();
    for (; !at_end_ && line_.starts_with(kTimes) && lattice.ns_.size() < points; line()) {
      const std::size_t before = lattice.ns_.size();
      numbers(line_.substr(kTimes.size()), kMaxNs, lattice.ns_);
      if (lattice.ns_.size() - before != row)
        fail("must have " + std::to_string(row) + " times, one per value of the last axis");
    }
    if (lattice.ns_.size() != points) {
      fail("table " + name + " must have " + std::to_string(points / row) + " lines of times");
    }
    lattice.strides_.assign(lattice.axes_.size(), 1);
    for (std::size_t i = lattice.axes_.size() - 1; i-- > 0;) {
      lattice.strides_[i] = lattice.strides_[i + 1] * lattice.axes_[i + 1].size();
    }
    check_monotone(lattice, name);
    if (!table_.lattices.emplace(name, std::move(lattice)).second) fail("table " + name + " occurs twice");
  }

  // Of a product with three axes (m, n, k), only m counts tokens.
  void check_monotone(const OperatorLattice& lattice, const std::string& name) const {
    const std::size_t rising = lattice.axes_.size() == OperatorLattice::kMaxAxes ? 1 : lattice.axes_.size();
    for (std::size_t axis = 0; axis < rising; ++axis) {
      const std::size_t stride = lattice.strides_[axis], size = lattice.axes_[axis].size();
      for (std::size_t i = 0; i < lattice.ns_.size(); ++i) {
        if (i / stride % size + 1 < size && lattice.ns_[i] > lattice.ns_[i + stride]) {
          fail("table " + name + ": the times must not fall along the axis " + std::to_string(axis + 1));
        }
      }
    }
  }

  std::string_view rest_, line_;
  const std::string& file_;
  std::size_t number_ = 0, all_points_ = 0;
  bool at_end_ = false;
  OperatorTable table_;
};

OperatorTable parse_operators(std::string_view bytes, const std::string& file) {
  if (!is_compressed(bytes)) return OperatorTableReader(bytes, file).read();
  return OperatorTableReader(decompressed(bytes, file), file).read();
}

OperatorTable operators_from_file(const std::string& path) {
  return parse_operators(read_text_file(path, kWantedTable), path);
}

const OperatorTable& operators_preset(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, OperatorTable, std::less<>> read;  // a reference to an element stays valid
  const std::lock_guard lock(mutex);
  const auto at = read.find(name);
  if (at != read.end()) return at->second;
  return read.emplace(name, parse_operators(operators_preset_bytes(name), std::string(name))).first->second;
}

}  // namespace kvtwin
